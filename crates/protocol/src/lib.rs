//! Wire types of the exec-server protocol: messages, methods, params, results, limits and error kinds.
//!
//! All types that derive serde for the wire are in this crate. They cover the three generations of the reference's
//! protocol (V0, S and H) and the additions of this server. The crate does no I/O and reads no clock. It does not
//! depend on sockets, sessions or processes.

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
pub use method::requests;
#[cfg(feature = "schema")]
pub use schema::schema;
pub use tolerant::Empty;

/// JSON Schema of all messages, as text. It is generated from the types by `schema` (feature `schema`) and checked in, because the
/// generator code would make the binary larger than this text does.
pub const SCHEMA: &str = include_str!("../schema.json");
