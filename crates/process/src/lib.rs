//! One child process on Linux: its pipes or terminal, process group, signals and exit status.
//!
//! The crate spawns, watches and ends a child. It needs no async runtime: once the child runs its program, calls do not
//! wait for it. To wait, the caller polls an fd. The exception is the drop of a running child, which waits up to one
//! second for its death.
//!
//! *Leader* is the child process itself: it leads the session and the process group in which its descendants start.
//!
//! - [`Spawn`] describes a child, [`Spawn::spawn`] starts it. The child runs in its own session. It gets fds 0, 1, 2
//!   and the declared ones, default signal dispositions, an empty signal mask and exactly the given environment. A
//!   failure is a typed [`SpawnError`], never exit code 127.
//! - [`Child`] holds the parent's ends of the streams (nonblocking) and an exit fd that becomes readable when the
//!   leader has ended.
//! - [`kill_tree`] kills a leader with its group, its session and its descendants. [`kill_descendants`] kills the
//!   descendants of a given process, but not the process itself.
//! - [`ScriptDriver`] simulates a child without a process ([`Child::scripted`]), for tests of code that uses this
//!   crate.
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
//! The example `run` executes a command with pipes, or on a terminal with `-t`, and prints its output:
//!
//! ```text
//! cargo run -p exec-server-process --example run -- -t sh -c 'stty size; tty'
//! ```

#![expect(unsafe_code, reason = "clone, wait4 and the child's side between clone and exec have no safe wrapper")]

mod child;
mod driver;
mod launch;
mod low_fds;
mod spawn;
mod streams;
mod tree;

pub use child::{Child, ChildExit, CloseStdinOutcome};
pub use driver::ScriptDriver;
pub use launch::IgnoredSignals;
pub use low_fds::LowFds;
pub use rustix::process::Pid;
pub use spawn::{ChildUser, Spawn, SpawnError, SpawnStage, StdinMode, StdioMode, TerminalSize};
pub use tree::{KillOutcome, TreeMember, TreeScope, descendants_of, kill_descendants, kill_tree, kill_trees};
