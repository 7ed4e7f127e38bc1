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
//! - A view is a mount namespace that contains only what the rules grant, read-only where they say so. A
//!   single-threaded process that does nothing else builds it ([`build`]) from a [`ViewScript`]. The fds of the view
//!   keep it alive. A process that has them can resolve paths in the view without entering it.
//! - Landlock cannot deny anything inside a granted directory, and does not cover modes, owners and times of files. So
//!   there is always a view. A view alone does not keep a process from accessing another process that sees more. So a
//!   process always gets Landlock too ([`Kit`]).
//! - A process sees the kernel's own file systems read-only, and has its own IPC namespace.
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
