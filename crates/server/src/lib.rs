//! The server: sessions that outlive connections, the dispatcher, the pump, and authentication in front of them.
//!
//! Reading order: [`core`] owns everything that lives as long as the server. [`session`] is what a client resumes.
//! `holder_link` talks to the session's holder. `process` is the server's view of one child and its log. `connection`
//! receives messages, `dispatch` and `handlers` act on them, `pump` sends messages. `compat` has the rules for older
//! protocol generations. [`access`] decides who may do what, and [`audit`] records it. [`listen`] accepts sockets and
//! [`admission`] authenticates them: no socket becomes a connection without passing admission.
//!
//! The server never forks and owns no child: children belong to holders and survive the server process.

pub mod access;
pub mod admission;
pub mod audit;
pub mod core;
pub mod listen;
pub mod metrics;
pub mod session;
pub mod state_dir;
pub mod tls;
pub mod wall_clock;

mod compat;
mod connection;
mod descriptors;
mod dispatch;
mod environment;
mod error;
mod fetch;
mod file_tasks;
mod files;
mod handlers;
mod holder_link;
mod incoming;
mod own_files;
mod placeholder;
mod process;
mod pump;
mod sandbox;
mod trace;
