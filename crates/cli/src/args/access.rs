//! The arguments of `token` and `audit`, and the flags of `serve` for access control.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use exec_server_server::{access::SandboxFloor, audit::AuditPolicy, listen::ListenUrl};

use super::values;

const TOKEN_HELP: &str = "\
A token is printed once and kept nowhere; the file has its digest. A running server notices a change within a second: \
whoever is revoked or expired is disconnected, its processes go on, and a new token under the old name finds them again.

A certificate of a client (see `serve --client-ca`) is granted less than everything, or revoked, by an entry in the same file:
  [[certificates]]
  name = \"alice\"
  san = \"alice@example.org\"     (or sha256 = \"…\", the fingerprint)
  scopes = [\"exec\", \"stdin\"]

Exit codes: 0 done; 1 there is no such entry, or one too many; 2 the command line is wrong; 255 trouble with the file

Examples:
  exec-server token create ci --listen ws://127.0.0.1:4000 --scope exec --scope stdin --expires 30d --out ci.token
  exec-server token list
  exec-server token revoke ci";

const AUDIT_HELP: &str = "\
Each line of an audit log has the hash of the one before it. A log that was rotated is given in its parts, the oldest first. \
Where the log began and how far it was written stands in its anchor, a file in the server's state directory. With the anchor a removed end and \
a replaced log are noticed; without it they are not, and the output says so. The anchor is looked for in --state-dir; by default in the state \
directories of this user and where the log says that it is, which a forger could change.

Exit codes: 0 the log is what was written; 1 it is not, and the line is named; 2 the command line is wrong; 255 a file cannot be read

Examples:
  exec-server audit verify /var/log/exec-server/audit.log
  exec-server audit verify audit.log.1 audit.log --state-dir /var/lib/exec-server
  exec-server audit verify audit.log.1 audit.log --has 5feceb66ffc86f38…";

/// Flags of `serve` about access and its record.
#[derive(Debug, Args)]
pub(crate) struct AccessArgs {
    /// Named tokens and certificates, and what each may do; see `exec-server token` [default: tokens.toml in the state directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Read the owner's token from this descriptor, to its end
    #[arg(long, value_name = "N", conflicts_with = "token_file")]
    pub(crate) token_fd: Option<u32>,
    /// Append who came, what was started and how it ended to FILE, each line with the hash of the one before
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,
    /// While the audit log cannot be written: go on and count what is lost, or start and request nothing
    #[arg(long, value_enum, value_name = "MODE", default_value_t = AuditMode::BestEffort, requires = "audit")]
    audit_mode: AuditMode,
}

impl AccessArgs {
    /// Reaction to an audit log that cannot be written.
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

/// `exec-server token …`.
#[derive(Debug, Args)]
#[command(after_help = TOKEN_HELP)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

/// A subcommand of `token`.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it, the only time that it is seen.
    #[command(after_help = TOKEN_HELP)]
    Create(TokenCreateArgs),
    /// List names, rights and dates.
    List {
        /// As JSON
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
    /// Name by which the server identifies the bearer
    pub(crate) name: String,
    /// Scopes: exec, stdin, signal, fs-read, fs-write, http, metrics; repeatable [default: all]
    #[arg(long, value_name = "SCOPE", value_parser = values::scope)]
    pub(crate) scope: Vec<String>,
    /// Touch files and start processes only in DIR or beneath it; repeatable. No confinement: a process that runs goes where it likes
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Vec<PathBuf>,
    /// Let it set only this variable, LC_* for all that begin so; repeatable [default: any]
    #[arg(long, value_name = "NAME")]
    pub(crate) env: Vec<String>,
    /// Refuse what touches files or starts processes without a sandbox of this server: required, or offline for one without a network
    /// [default: none is needed]
    #[arg(long, value_name = "FLOOR", value_parser = values::floor)]
    pub(crate) sandbox: Option<SandboxFloor>,
    /// Let it end after so long: 12h, 30d [default: never]
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) expires: Option<Duration>,
    /// Write the token to FILE, readable for you alone, instead of printing it; FILE must not exist
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) location: TokenFileArgs,
}

/// Which server of this machine, and so which file.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct TokenFileArgs {
    /// The state directory of the server [default: that of the user's own server]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// The token file that the server was given with the same flag
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// The server that was started with this --listen and no --state-dir
    #[arg(long, value_name = "URL")]
    pub(crate) listen: Option<ListenUrl>,
    /// The server of this machine that clients reach by this URL
    #[arg(long, value_name = "URL")]
    pub(crate) connect: Option<String>,
}

/// `exec-server audit …`.
#[derive(Debug, Args)]
#[command(after_help = AUDIT_HELP)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    pub(crate) command: AuditCommand,
}

/// A subcommand of `audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Say whether a line was removed, changed or moved, and which; whether the end was cut off or the log replaced.
    #[command(after_help = AUDIT_HELP)]
    Verify {
        /// The log, or its parts, the oldest first
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// The hash that the first line must follow: the last one of the part before
        #[arg(long, value_name = "HASH")]
        after: Option<String>,
        /// The hash of a line that must be there
        #[arg(long, value_name = "HASH")]
        has: Option<String>,
        /// The state directory of the server that writes the log; its anchor is there
        #[arg(long, value_name = "DIR", conflicts_with = "anchor")]
        state_dir: Option<PathBuf>,
        /// The anchor itself, or a copy of it
        #[arg(long, value_name = "FILE")]
        anchor: Option<PathBuf>,
    },
}
