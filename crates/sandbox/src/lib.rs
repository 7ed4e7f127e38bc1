//! Turns a policy about files and the network into what the kernel enforces: Landlock, mounts and a filter of system calls.
//!
//! The crate owns what a policy means and how it is applied. It knows nothing of the wire, of sessions or of a runtime.
//!
//! ```text
//!  Policy ── resolve(scope) ──▶ Rules ──┬── decide(path) ─────────────▶ an answer, for error texts
//!                                       ├── Script ── build ──▶ Built:  a mount namespace and its root
//!                                       └── Ruleset (Landlock) ──┐
//!                                                Kit: namespace ─┴──▶ applied by a child between clone and exec
//! ```
//!
//! - [`Policy`] is what somebody asked for; [`Policy::resolve`] finds out what it means on this host now: [`Rules`], paths without
//!   links, the longest of which decides.
//! - A view is a mount namespace in which only what the rules grant can be reached, read-only where they say so. A process that
//!   is single-threaded and will end builds it ([`build`]) from a [`Script`]; whoever holds its descriptors keeps it alive and can
//!   resolve paths in it without being in it.
//! - Landlock denies nothing inside of what it allows, and knows nothing of modes, owners and times of files: so there is always a view.
//!   A view alone does not keep a process from reaching into another one, which sees more: so a process always gets Landlock, too ([`Kit`]).
//! - A process sees the kernel's own file systems read-only, and has an IPC namespace of its own.
//! - [`FileUser`] is no part of a sandbox: it lets a thread of the server use files as the user that processes run as.
//! - What cannot be enforced is an error that says what is missing; nothing is ever left out in silence.

#![expect(unsafe_code, reason = "namespaces, Landlock and seccomp have no safe wrapper")]

mod aliases;
mod build;
mod file_user;
mod filter;
mod glob;
mod host;
mod kernel_files;
mod kit;
mod landlock;
mod mounted;
mod paths;
mod policy;
mod rules;
mod script;
mod system;

pub use build::{BuildError, Built, build};
pub use file_user::{Acting, FileUser, as_server};
pub use host::Host;
pub use kit::{Applied, InChild, Ipc, Kit, KitError};
pub use mounted::Mounted;
pub use paths::is_ours;
pub use policy::{Entry, Place, Policy, PolicyError, Scope};
pub use rules::{Access, Denied, Rule, Rules};
pub use script::{Purpose, Script};
pub use system::{address, system_call};
