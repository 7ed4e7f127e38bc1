//! The holder: the small process that owns a session's children and their logs, so that they outlive the server.
//!
//! Theory of operation. At the top of `main` the program forks a *spawner* ([`spawner::fork_spawner`]); the spawner forks
//! one holder per session. A holder is one epoll thread ([`run`]) that turns a [`Holder`]: it spawns children, reads
//! their pipes and terminals straight into logs in shared memory (crate `log`), writes their stdin exactly once
//! (`session::StdinLedger`), reaps them, runs their timeouts and the session's clock (`session::Lease`). One *controller*,
//! the server, commands it over a `SOCK_SEQPACKET` socket ([`wire`]) and maps its logs. The controller may die at any
//! moment and another take its place: nothing of the session depends on it.
//!
//! ```text
//!            wire (control messages, descriptors)            pipes, terminals
//!   server ◀───────────────────────────────────▶ Holder ◀──────────────────────▶ children
//!      └── maps ── log segments, control block ──┘  └── spill thread ──▶ DIR/SLOT-ID.seg
//! ```
//!
//! States of the session: *attached* (a client is there, a full log blocks its child), *detached* (a full log goes to
//! disk, the clock runs), *ending* (all is killed, until nothing is left alive), *ended*.
//!
//! Failure paths. The controller goes: detached, the time to live in force runs. The controller talks nonsense: that
//! connection is dropped. The controller does not read: messages queue up to a bound, then children are not read. The
//! disk is full: block and retry. The holder itself panics: every descendant is killed, then it aborts.
//!
//! It must not know the wire of clients, JSON, tokio or the network.

#![expect(unsafe_code, reason = "fork, signal dispositions and process attributes have no safe wrapper")]

mod adoption;
pub mod archive;
mod archiving;
mod births;
pub mod cgroup;
mod config;
mod context;
mod controller;
mod denial;
mod dispatch;
mod door;
mod end;
mod ending;
mod grip;
mod holder;
pub mod inherited;
mod input;
mod lent;
mod line;
mod orphans;
mod output;
mod poller;
mod process;
mod reap;
pub mod roll;
mod run;
pub mod spawner;
mod spill;
mod title;
pub mod tombstone;
pub mod wire;

pub use config::{Config, Confine, Forker, Limits, Spawner};
pub use exec_server_process::{Size, User};
pub use holder::{Holder, Turn};
pub use orphans::kill_orphans;
pub use run::run;
