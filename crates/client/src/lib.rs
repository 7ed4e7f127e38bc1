//! Client of exec-server.

pub mod backend;
mod backoff;
mod client;
pub mod environment;
pub mod error;
mod hearing;
mod link;
#[cfg(feature = "local")]
pub mod local;
mod process;
pub mod requests;
mod routes;
mod session;
pub mod transport;

pub use backoff::Backoff;
pub use client::{Attach, Builder, Client};
pub use error::{Error, ErrorKind};
pub use exec_server_protocol as protocol;
pub use process::{
    Chunk, Events, Output, Process, Read, Stdin,
    event::{Event, Exit, Totals},
    start::Start,
};
pub use session::{Generation, ServerDescription, State};
pub use transport::{Launch, Target, Tls, Token};

/// A word that nobody else will think of: 16 letters and digits.
pub(crate) fn random_word() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; 16];
    // Without randomness no token could have been made either; a clash is refused by the server.
    getrandom::fill(&mut bytes).ok();
    bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect()
}
