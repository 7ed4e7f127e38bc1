//! Turns a policy for files and the network into what the kernel enforces: mounts, Landlock and a seccomp filter.
//!
//! The crate defines what a policy means and how it is applied. It does not depend on the wire protocol, on sessions or
//! on a runtime.
//!
//! ```text
//!  Policy ── resolve(scope) ──▶ AccessRules ──┬── decide(path) ──────────▶ allowed or denied, for error texts
//!                                             ├── ViewScript ── build ──▶ BuiltView: a mount namespace and its root
//!                                             └── Ruleset (Landlock) ──┐
//!                                                      Kit: namespace ─┴──▶ applied by a child between clone and exec
//! ```
//!
//! - [`Policy`] is the request. [`Policy::resolve`] evaluates it on this host, at this moment, into [`AccessRules`]:
//!   paths without symbolic links, of which the longest match decides.
//! - A view is a mount namespace that contains only what the rules grant, read-only where they say so. [`build`] makes
//!   the view from a [`ViewScript`], in a single-threaded process that does nothing else. The fds of the view keep the
//!   namespace alive. A process that has these fds can resolve paths in the view without entering the namespace.
//! - Landlock alone is not enough: it cannot deny anything inside a granted directory, and does not cover modes, owners
//!   and times of files. A view alone is not enough either: it does not keep a process from accessing another
//!   process, which may see more files. So a sandboxed process always has both ([`Kit`]).
//! - A sandboxed process sees the kernel's own file systems read-only, and has its own IPC namespace where the host can
//!   create one. Otherwise the IPC system calls are refused ([`Ipc`]).
//! - [`FileUser`] is not part of a sandbox: it lets a thread of the server access files as the user that processes run
//!   as.
//! - If something cannot be enforced, the result is an error that says what is missing. No restriction is ever dropped
//!   silently.

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
mod mountinfo;
mod paths;
mod policy;
mod rules;
mod script;
mod system;
mod view_mounts;

pub use build::{BuildError, BuiltView, build};
pub use file_user::{ActingUser, FileUser, as_server};
pub use host::Host;
pub use kit::{AppliedKit, ChildKit, Ipc, Kit, KitError};
pub use paths::is_ours;
pub use policy::{Policy, PolicyEntry, PolicyError, PolicyPath, PolicyScope};
pub use rules::{Access, AccessDenied, AccessRule, AccessRules};
pub use script::{ViewPurpose, ViewScript};
pub use system::{address, system_call};
pub use view_mounts::ViewMounts;
