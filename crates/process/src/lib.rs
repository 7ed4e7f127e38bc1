//! One child process: its pipes or terminal, its process group, its signals, its exit status.
//!
//! The crate owns how a child is made, watched and ended on Linux. It knows nothing of sessions, logs, wire
//! messages or a runtime: every call returns at once, and what has to be waited for is a descriptor that the
//! caller polls.
//!
//! - [`Spawn`] describes a child, [`Spawn::spawn`] makes it. The child is in its own session, sees exactly the
//!   descriptors 0, 1, 2 and the declared ones, default signal dispositions, an empty signal mask and exactly the
//!   given environment. A failure is a typed [`SpawnError`], never an exit code 127.
//! - [`Child`] holds our ends of the streams (nonblocking) and an exit descriptor that becomes readable when the
//!   leader has ended.
//! - [`kill_tree`] and [`kill_descendants`] end everything that a child has left behind.
//! - [`Driver`] plays a child without a process ([`Child::scripted`]), for tests of what sits on top.
//! - With the feature `tokio`, `AsyncChild` and `AsyncStream` wrap the same things for a runtime.
//!
//! ```
//! use exec_server_process::{Spawn, SpawnError};
//!
//! let spawn = Spawn::from_bytes(["no-such-program"])?;
//! let error = spawn.spawn().expect_err("the program does not exist");
//! assert!(matches!(error, SpawnError::Exec { .. }));
//! # Ok::<(), SpawnError>(())
//! ```
//!
//! The example `run` executes a command with pipes, or on a terminal with `-t`, and prints what it says:
//!
//! ```text
//! cargo run -p exec-server-process --example run -- -t sh -c 'stty size; tty'
//! ```

#![expect(unsafe_code, reason = "clone, wait4 and the child's side between clone and exec have no safe wrapper")]

#[cfg(feature = "tokio")]
mod asynchronous;
mod child;
mod driver;
mod launch;
mod spawn;
mod streams;
mod tree;

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncChild, AsyncStream};
pub use child::{Child, CloseStdin, Exited};
pub use driver::Driver;
pub use launch::Ignored;
pub use rustix::process::Pid;
pub use spawn::{Size, Spawn, SpawnError, Stage, Stdin, Stdio, User};
pub use tree::{Killed, Member, TreeScope, descendants_of, kill_descendants, kill_tree, kill_trees};
