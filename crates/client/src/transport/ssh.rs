//! The `ssh://` transport: the system's ssh runs `exec-server dial-stdio` on another machine.
//!
//! Keys, agents, jump hosts and names are left to ssh and its configuration.

use std::{
    ffi::OsString,
    fmt,
    process::Command,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use exec_server_protocol::path::percent_decode;
use exec_server_rpc::url::UrlParts;

use super::{
    BoxFuture, Connect, Connection, launch,
    program::{self, EndScope, ProgramExit, RunningProgram},
    target::{BAD_ESCAPE, TargetError, host_name},
};
use crate::error::{ConnectFailure, Error};

mod preamble;

/// Options for ssh. They override the configuration file. They come after [`Ssh::options`], which therefore take
/// precedence.
///
/// The client reconnects only after ssh notices that the connection is dead. Without `ServerAlive…`, ssh sends nothing over an idle
/// connection. Forwardings are useless here, and would fail if another ssh already holds their ports. A configured `RemoteCommand` would
/// replace ours, and a `LocalCommand` would run at every reconnect.
const OPTIONS: [&str; 6] = [
    "ServerAliveInterval=15",
    "ServerAliveCountMax=3",
    "ConnectTimeout=15",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
];

/// Starts ssh (`$0`) with SIGINT and SIGQUIT ignored, so that a Ctrl-C or Ctrl-\ meant for the remote process does not cut the connection.
/// ssh keeps ignored signals ignored. ssh stays in this program's process group: otherwise it could not ask for a password on the terminal.
const LAUNCHER: &str = "trap '' INT QUIT
command -v \"$0\" >/dev/null || { echo 'no such program here' >&2; exit 125; }
exec \"$0\" \"$@\"";

/// The exit status and message of [`LAUNCHER`] if ssh is not installed.
const NO_SSH: (ProgramExit, &str) = (ProgramExit::Code(125), "no such program here");

/// Texts in the messages of an ssh that could not reach the host and exits with status 255. A later attempt may
/// succeed.
const UNREACHABLE: [&str; 5] = [
    "Connection refused",
    "Connection timed out",
    "No route to host",
    "Network is unreachable",
    "Could not resolve hostname",
];

/// Runs `exec-server` from `PATH`, or from directories that the `PATH` of a non-login shell often lacks.
const FIND: &str = "echo; for p in exec-server \"$HOME/.local/bin/exec-server\" \"$HOME/.cargo/bin/exec-server\"; \
     do command -v \"$p\" >/dev/null && exec \"$p\" dial-stdio; done; exit 127";

/// Time to type a password: the default `LoginGraceTime` of sshd.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server on another machine, reached by the system's ssh with its configuration, keys, agent and prompts.
///
/// Parsed from `ssh://[user@]host[:port][/path-to-exec-server]`. A path that begins with `/~/` is relative to the remote home directory.
/// Without a path, `exec-server` is searched in `PATH`, `~/.local/bin` and `~/.cargo/bin` of the remote host.
///
/// The first connection may ask for a password on the terminal. Once the server has answered, later connections use `BatchMode` and ask
/// nothing: a prompt would interrupt the user's work, and the answer could go to the wrong program.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ssh {
    /// The local program. Default: `ssh`.
    pub program: OsString,
    /// Further arguments for ssh, such as `-F` and a file, or `-o` and a setting. They override those that this library passes.
    pub options: Vec<OsString>,
    user: Option<String>,
    host: String,
    port: Option<u16>,
    /// The path of the program on the remote host. Relative to the home directory if it begins with `~/`.
    server: Option<String>,
    has_answered: AnsweredFlag,
}

/// Whether the server has answered. A clone starts with false, because it may belong to another client.
#[derive(Debug, Default)]
struct AnsweredFlag(Arc<AtomicBool>);

impl Ssh {
    /// Parses the part of a URL after `ssh://`.
    pub(super) fn parse(rest: &str) -> Result<Self, TargetError> {
        if rest.contains(['?', '#']) {
            return Err(TargetError::new("`ssh://` takes no query; write `?` and `#` as `%3F` and `%23`"));
        }
        let url = UrlParts::parse(rest)?;
        if url.user.as_deref().is_some_and(|user| !is_user(user)) {
            return Err(TargetError::new("the user is not a plain name; leave the password out, ssh asks for it"));
        }
        if url.port == Some(0) {
            return Err(TargetError::new("port 0 cannot be connected to"));
        }
        Ok(Self {
            program: "ssh".into(),
            options: Vec::new(),
            host: host_name(&url.host),
            port: url.port,
            server: server_path(&url.path)?,
            user: url.user,
            has_answered: AnsweredFlag::default(),
        })
    }

    /// `user@host`, as ssh expects it.
    fn login(&self) -> String {
        match &self.user {
            Some(user) => format!("{user}@{}", self.host),
            None => self.host.clone(),
        }
    }

    fn command(&self) -> Command {
        let mut command = launch::command("sh".as_ref());
        // No terminal, and no forwarding of X11 or of the agent.
        command.args(["-c", LAUNCHER]).arg(&self.program).args(["-T", "-x", "-a"]).args(&self.options);
        for option in OPTIONS {
            command.args(["-o", option]);
        }
        if self.has_answered.0.load(Ordering::Relaxed) {
            command.args(["-o", "BatchMode=yes"]);
        }
        if let Some(port) = self.port {
            command.args(["-p", &port.to_string()]);
        }
        command.args(["--", &self.login(), &self.remote_command()]);
        command
    }

    /// The command for the user's remote shell, which can be any shell. `echo` prints a blank line, which ends a line that a profile may
    /// have left unterminated. Readers of newline-delimited JSON skip it.
    fn remote_command(&self) -> String {
        match &self.server {
            None => format!("exec sh -c {}", quoted(FIND)),
            Some(server) => match server.strip_prefix("~/") {
                Some(path) => format!("echo; exec \"$HOME\"/{} dial-stdio", quoted(path)),
                None => format!("echo; exec {} dial-stdio", quoted(server)),
            },
        }
    }

    fn carrier_name(&self) -> String {
        format!("{} {}", self.program.display(), self.login())
    }

    /// The error for an exit of ssh before the server has answered.
    fn exit_error(&self, exit: ProgramExit, running: &RunningProgram) -> Error {
        let reason = self.explain_exit(exit, running);
        if exit == ProgramExit::Code(255) && UNREACHABLE.iter().any(|words| reason.contains(words)) {
            return Error::Connect { address: self.to_string(), failure: ConnectFailure::Unreachable, reason };
        }
        Error::Spawn { program: self.carrier_name(), reason }
    }

    /// Explains the exit of ssh before the server has answered.
    fn explain_exit(&self, exit: ProgramExit, running: &RunningProgram) -> String {
        let login = self.login();
        let last = running.tail.last().unwrap_or_default();
        if (exit, last.as_str()) == NO_SSH {
            return "it is not installed on this machine".to_owned();
        }
        // csh exits with status 1 if it does not find a command.
        let is_missing =
            exit == ProgramExit::Code(127) || (exit == ProgramExit::Code(1) && last.ends_with("Command not found."));
        match (exit, &self.server) {
            _ if is_missing => self.install_hint(),
            (ProgramExit::Code(126), _) => {
                let details = running.describe_exit(exit);
                format!("exec-server on {login} cannot be executed; is it built for that kind of machine?{details}")
            }
            (ProgramExit::Code(255), _) if !last.is_empty() => running.tail.text(),
            _ => format!("it ended before the server on {login} answered{}", running.describe_exit(exit)),
        }
    }

    fn install_hint(&self) -> String {
        let login = self.login();
        if let Some(server) = &self.server {
            return format!(
                "there is no `{server}` on {login}; leave the path out to use the `exec-server` in PATH there"
            );
        }
        let port = self.port.map(|port| format!("-p {port} ")).unwrap_or_default();
        format!(
            "there is no `exec-server` on {login}, not in PATH, ~/.local/bin or ~/.cargo/bin; if both machines are of \
             the same kind, this installs it: ssh {port}{login} 'mkdir -p .local/bin && cat >.local/bin/exec-server && \
             chmod +x .local/bin/exec-server' <\"$(command -v exec-server)\"; \
             if it is elsewhere, add its path: {self}/path/to/exec-server"
        )
    }
}

/// Whether a user name contains only characters that are safe in a command of the ssh configuration, such as a `ProxyCommand` with `%r`.
fn is_user(user: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'+' | b'@');
    !user.starts_with('-') && user.bytes().all(is_name)
}

/// The remote program that the path of a URL names.
fn server_path(path: &str) -> Result<Option<String>, TargetError> {
    if path.is_empty() || path == "/" {
        return Ok(None);
    }
    let path = percent_decode(path.as_bytes()).ok_or(BAD_ESCAPE)?;
    let path = String::from_utf8(path).map_err(|_| TargetError::new("the path is not UTF-8"))?;
    if path.contains(char::is_control) {
        return Err(TargetError::new("control character in the path"));
    }
    if path.ends_with('/') {
        return Err(TargetError::new("the path is a directory; it must be that of the program"));
    }
    let below_home = path.strip_prefix('/').filter(|rest| rest.starts_with("~/"));
    Ok(Some(below_home.map_or_else(|| path.clone(), str::to_owned)))
}

/// Quotes a word for sh, bash, zsh and fish. fish interprets a backslash even between single quotes, so backslashes are moved outside of
/// them.
fn quoted(word: &str) -> String {
    let mut text = String::from("'");
    for char in word.chars() {
        match char {
            '\'' => text.push_str("'\\''"),
            '\\' => text.push_str("'\\\\'"),
            char => text.push(char),
        }
    }
    text.push('\'');
    text
}

impl Connect for Ssh {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>> {
        Box::pin(async {
            let failed =
                |error: std::io::Error| Error::Spawn { program: self.carrier_name(), reason: error.to_string() };
            let (mut stream, running) = program::spawn(self.command(), EndScope::Leader).map_err(failed)?;
            let (tail, has_answered) = (Arc::clone(&running.tail), Arc::clone(&self.has_answered.0));
            stream.reader = Box::new(preamble::PreambleSkipper::new(stream.reader, tail, has_answered));
            let ssh = self.clone();
            Ok(program::connection(stream, running, move |running, exit| ssh.exit_error(exit, running)))
        })
    }

    fn address(&self) -> String {
        self.to_string()
    }

    fn patience(&self) -> Duration {
        if self.has_answered.0.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE }
    }
}

impl FromStr for Ssh {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        Self::parse(text.strip_prefix("ssh://").ok_or(TargetError::new("the scheme is not `ssh`"))?)
    }
}

impl fmt::Display for Ssh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ssh://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        if self.host.contains(':') { write!(f, "[{}]", self.host) } else { f.write_str(&self.host) }?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        match &self.server {
            Some(server) if server.starts_with('/') => f.write_str(server),
            Some(server) => write!(f, "/{server}"),
            None => Ok(()),
        }
    }
}

impl Clone for AnsweredFlag {
    fn clone(&self) -> Self {
        Self::default()
    }
}
