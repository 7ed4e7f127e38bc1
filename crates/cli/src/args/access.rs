//! The arguments of `token` and `audit`, and the flags of `serve` for access control.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use exec_server_server::{access::SandboxFloor, audit::AuditPolicy, listen::ListenUrl};

use super::values;

pub(super) const TOKEN_HELP: &str = "\
A token is printed once and not stored; the token file has only its digest. A running server applies a change within a second: it \
disconnects clients whose token was revoked or has expired. Their processes keep running, and a new token with the same name finds \
them again.

An entry in the token file can also restrict or revoke a client certificate (see `serve --client-ca`):
  [[certificates]]
  name = \"alice\"
  san = \"alice@example.org\"     (or sha256 = \"…\", the fingerprint)
  scopes = [\"exec\", \"stdin\"]

Exit codes: 0 success; 1 the entry does not exist, or exists already; 2 invalid command line; 255 the file cannot be used

Examples:
  exec-server token create ci --listen ws://127.0.0.1:4000 \\
      --scope exec --scope stdin --expires 30d --out ci.token
  exec-server token list
  exec-server token revoke ci";

pub(super) const AUDIT_HELP: &str = "\
Each line of an audit log has the hash of the previous one. Give the parts of a rotated log in order, the oldest first. \
The anchor is a file that records where the log began and how far it was written. It is in the server's state directory or, if the \
server removes that directory at exit, in ~/.local/state/exec-server/audit. Only with the anchor can \
`verify` detect a truncated end or a replaced log; without it, the output says what was not checked. `verify` looks for the anchor in \
--state-dir. Without this flag it looks in the state directories of this user, and then at the path that the log itself names, which a \
forger could change.

Exit codes: 0 the log is intact; 1 it is not, and stderr says why; 2 invalid command line; 255 a file cannot be read

Examples:
  exec-server audit verify /var/log/exec-server/audit.log
  exec-server audit verify audit.log.1 audit.log --state-dir /srv/exec
  exec-server audit verify audit.log.1 audit.log --has 5feceb66ffc86f38…";

/// Flags of `serve` for access control and the audit log.
#[derive(Debug, Args)]
pub(crate) struct AccessArgs {
    /// File with the named tokens and certificates, and their permissions; see `exec-server token` [default: tokens.toml in
    /// the state directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Read the owner's token from this fd, up to EOF
    #[arg(long, value_name = "N", conflicts_with = "token_file")]
    pub(crate) token_fd: Option<u32>,
    /// Append a line to FILE for each connection, session, start, signal, exit, HTTP request and refusal; each line has the
    /// hash of the previous one
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,
    /// While the audit log cannot be written: continue and count lost records, or refuse starts and HTTP requests
    #[arg(long, value_enum, value_name = "MODE", default_value_t = AuditMode::BestEffort, requires = "audit")]
    audit_mode: AuditMode,
}

impl AccessArgs {
    /// What the server does while the audit log cannot be written.
    pub(crate) fn audit_mode(&self) -> AuditPolicy {
        match self.audit_mode {
            AuditMode::BestEffort => AuditPolicy::BestEffort,
            AuditMode::Strict => AuditPolicy::Strict,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AuditMode {
    BestEffort,
    Strict,
}

/// A subcommand of `token`.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token and print it, once.
    #[command(after_help = TOKEN_HELP)]
    Create(TokenCreateArgs),
    /// List names, permissions and dates.
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        location: TokenFileArgs,
    },
    /// Revoke a token or certificate, and disconnect the clients that use it.
    Revoke {
        /// The name
        name: String,
        #[command(flatten)]
        location: TokenFileArgs,
    },
}

/// Flags of `token create`.
#[derive(Debug, Args)]
pub(crate) struct TokenCreateArgs {
    /// Name under which the server knows the clients with this token
    pub(crate) name: String,
    /// Scopes: exec, stdin, signal, fs-read, fs-write, http, metrics; repeatable [default: all]
    #[arg(long, value_name = "SCOPE", value_parser = values::scope)]
    pub(crate) scope: Vec<String>,
    /// Allow files and working directories only in DIR and below; repeatable. Does not confine running processes
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Vec<PathBuf>,
    /// Let clients set only this variable, or with `LC_*` every variable with this prefix; repeatable [default: any]
    #[arg(long, value_name = "NAME")]
    pub(crate) env: Vec<String>,
    /// Require a sandbox for starts and file access. required: it must restrict files; offline: it must restrict files and have no network
    /// [default: no sandbox is needed]
    #[arg(long, value_name = "FLOOR", value_parser = values::floor)]
    pub(crate) sandbox: Option<SandboxFloor>,
    /// Time until the token expires, such as 12h or 30d [default: never]
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) expires: Option<Duration>,
    /// Write the token to FILE with mode 0600 instead of printing it; FILE must not exist
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) location: TokenFileArgs,
}

/// Selects the token file, by its path or by its server on this machine.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct TokenFileArgs {
    /// State directory of the server [default: that of your background server, ~/.local/state/exec-server/default]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Token file, as in `serve --tokens`
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// The server that was started with this --listen and without --state-dir
    #[arg(long, value_name = "URL")]
    pub(crate) listen: Option<ListenUrl>,
    /// Like --listen, with the URL that clients use; it may have `localhost` and `?token=`
    #[arg(long, value_name = "URL")]
    pub(crate) connect: Option<String>,
}

/// A subcommand of `audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Check whether a line was removed, changed or moved, the end was truncated, or the log was replaced.
    #[command(after_help = AUDIT_HELP)]
    Verify {
        /// Log file, or its parts, the oldest first
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Hash that the first line must continue from: the last hash of the previous part
        #[arg(long, value_name = "HASH")]
        after: Option<String>,
        /// Hash of a line that must be in the log
        #[arg(long, value_name = "HASH")]
        has: Option<String>,
        /// Directory with the anchor, such as the state directory of the server that writes the log
        #[arg(long, value_name = "DIR", conflicts_with = "anchor")]
        state_dir: Option<PathBuf>,
        /// Anchor file, or a copy of it
        #[arg(long, value_name = "FILE")]
        anchor: Option<PathBuf>,
    },
}
