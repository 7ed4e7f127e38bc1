//! The server: sessions that outlive connections, the dispatcher, the pump, and the doors in front of them.
//!
//! Reading order: [`core`] owns everything that lives as long as the server; [`session`] is what a client comes back to;
//! `link` speaks with the session's holder; `process` is the server's picture of one child and its log;
//! `connection` takes messages in, `dispatch` and `handlers` act on them, `pump` sends everything out.
//! [`access`] says who may come in and do what, [`audit`] keeps the record of it; [`door`] and [`listen`] stand in front: nothing gets a connection without having passed the door.
//!
//! The server never forks and owns no child: children belong to holders, and survive this program.

pub mod access;
pub mod audit;
pub mod core;
pub mod door;
pub mod listen;
pub mod metrics;
mod seekers;
pub mod session;
pub mod state_dir;
pub mod tls;
pub mod wall_clock;

mod connection;
mod descriptors;
mod dispatch;
mod environment;
mod error;
mod fetch;
mod files;
mod handlers;
mod incoming;
mod link;
mod own_files;
mod placeholder;
mod process;
mod pump;
mod sandbox;
mod trace;
