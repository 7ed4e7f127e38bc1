//! The holder: a small process that owns a session's children and their logs, so that they outlive the server.
//!
//! At the top of `main`, the program forks a *spawner* ([`spawner::fork_spawner`]). The spawner forks one holder per
//! session. A holder is one epoll thread ([`run`]) that drives a [`Holder`]. The holder spawns children, reads their
//! pipes and terminals straight into logs in shared memory (crate `log`), writes each byte of their stdin exactly once
//! (`session::StdinLedger`), reaps them, and enforces their timeouts and the session's lease (`session::Lease`). One
//! *controller*, the server, sends commands over a `SOCK_SEQPACKET` socket ([`control`]) and maps the logs. The
//! controller may die at any moment and another server may replace it: no state of the session lives in the controller.
//!
//! ```text
//!          control (messages and their descriptors)          pipes, terminals
//!   server ◀───────────────────────────────────▶ Holder ◀──────────────────────▶ children
//!      └── maps ── log segments, control block ──┘  └── spill thread ──▶ DIR/SLOT-ID.seg
//! ```
//!
//! States of the session:
//! - *attached*: a client is connected, and a full log blocks its child.
//! - *detached*: a full log spills to disk, and the lease clock runs.
//! - *ending*: the holder kills all processes and repeats this until none is alive.
//! - *ended*.
//!
//! Failure paths:
//! - The controller disconnects: the session becomes detached and the current time to live runs.
//! - The controller sends an invalid message: the holder drops that connection.
//! - The controller does not read: messages queue up to a bound, then the holder reads neither children nor commands.
//! - The disk is full: the child blocks and the write is retried.
//! - The holder panics: it kills every descendant, then aborts.
//!
//! Does not depend on the client protocol, JSON, tokio or the network.

#![expect(unsafe_code, reason = "fork, signal dispositions and process attributes have no safe wrapper")]

mod adoption;
pub mod archive_file;
mod archiving;
pub mod cgroup;
mod config;
mod context;
pub mod control;
mod controller;
mod controller_listener;
mod denial;
mod dispatch;
mod holder;
pub mod inherited;
mod input;
mod lent_segments;
pub mod manifest;
mod orphans;
mod output;
mod poller;
mod process;
mod process_end;
mod reap;
mod run;
mod session_end;
mod session_file;
mod spawn_batch;
pub mod spawner;
mod spill;
mod stream_holders;
mod title;
pub mod tombstone;
mod unfinished_line;

pub use config::{ChildRestrictions, ChildSpawner, HolderConfig, HolderLimits, OsSpawner};
pub use exec_server_process::{ChildUser, TerminalSize};
pub use holder::{Holder, TurnResult};
pub use orphans::kill_orphans;
pub use run::run;
