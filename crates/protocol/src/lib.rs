//! The wire's vocabulary: messages, methods, params, results, limits and failure kinds.
//!
//! Everything that derives serde for the wire lives here, for the generations V0, S and H of the reference and for
//! the additions of this server. It must not know sockets, sessions, processes or who calls it; it reads no clock
//! and does no input or output.

#![warn(missing_docs)]

pub mod base64;
pub mod capabilities;
pub mod command;
pub mod environment;
pub mod failure;
pub mod frame;
pub mod fs;
pub mod http;
pub mod id;
pub mod initialize;
pub mod limits;
pub mod message;
pub mod method;
pub mod output;
pub mod path;
pub mod process;
pub mod sandbox;
mod scan;
#[cfg(feature = "schema")]
mod schema;
pub mod session;
pub mod signal;
mod tolerant;

pub use id::{ProcessId, SessionId};
pub use message::{Incoming, RequestId, decode};
#[cfg(feature = "schema")]
pub use schema::schema;
pub use tolerant::Empty;

/// JSON Schema of the whole wire: what `schema` makes of the types, made beforehand, since the code that makes it is larger.
pub const SCHEMA: &str = include_str!("../schema.json");
