//! Describes a program that speaks the protocol on its stdin and stdout: a server, or a program that connects to one.
//!
//! This module defines what is started and how. `program` runs and ends it.

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    BoxFuture, Connect, Connection,
    program::{self, EndScope},
    token::TOKEN_VARIABLE,
};
use crate::error::Error;

/// A program to start, which speaks newline-delimited JSON on its stdin and stdout.
///
/// The program inherits this program's environment, with `env` added. It does not inherit `EXEC_SERVER_TOKEN`, unless `env` sets it. It
/// runs in its own process group, so that a Ctrl-C on the terminal does not reach it. Its stderr goes to the log. When the connection ends,
/// the program gets EOF on stdin, SIGTERM a second later, and SIGKILL two seconds after that. The signals go to its whole process group.
///
/// ```
/// use exec_server_client::transport::Launch;
///
/// let launch = Launch::new("exec-server").args(["serve", "--listen", "stdio"]).cwd("/tmp");
/// # assert_eq!(launch.args.len(), 3);
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Launch {
    /// The program: a path, or a name that is looked up in `PATH`.
    pub program: OsString,
    /// The arguments, without the program's name.
    pub args: Vec<OsString>,
    /// Variables to add to the inherited environment. The last entry of a name wins.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory of the program; `None` for that of this program.
    pub cwd: Option<PathBuf>,
}

impl Launch {
    /// Describes `program` without arguments.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self { program: program.into(), args: Vec::new(), env: Vec::new(), cwd: None }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    setters! {
        /// Sets the working directory.
        cwd(cwd: impl AsRef<Path>) => cwd = Some(cwd.as_ref().to_owned());
    }

    fn name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    fn command(&self) -> Command {
        let mut command = command(&self.program);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        command
    }

    /// The error for a program that could not be started. The system reports ENOENT both for a missing program and for a missing working
    /// directory, so this checks which of them it is.
    fn failed(&self, error: &io::Error) -> Error {
        let reason = match &self.cwd {
            Some(cwd) if !cwd.is_dir() => format!("working directory `{}` is not a directory here", cwd.display()),
            _ if error.kind() == io::ErrorKind::NotFound => "no such program; check its name and `PATH`".to_owned(),
            _ => error.to_string(),
        };
        Error::Spawn { program: self.name(), reason }
    }
}

/// Creates a command that does not inherit the token.
pub(super) fn command(program: &OsStr) -> Command {
    #[expect(
        clippy::disallowed_methods,
        reason = "the programs that carry a connection; `program` ends and reaps them"
    )]
    let mut command = Command::new(program);
    command.env_remove(TOKEN_VARIABLE);
    command
}

impl Connect for Launch {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>> {
        Box::pin(async {
            let (stream, running) =
                program::spawn(self.command(), EndScope::Group).map_err(|error| self.failed(&error))?;
            let program = self.name();
            Ok(program::connection(stream, running, move |running, exit| {
                let reason = format!("it ended before it answered{}", running.describe_exit(exit));
                Error::Spawn { program: program.clone(), reason }
            }))
        })
    }

    fn address(&self) -> String {
        self.to_string()
    }
}

/// Shows only the program: arguments may contain secrets.
impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stdio:{}", self.program.display())
    }
}

/// Shows neither arguments nor the values of variables, which may contain secrets.
impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.iter().map(|(name, _)| name).collect();
        f.debug_struct("Launch")
            .field("program", &self.program)
            .field("args", &self.args.len())
            .field("env", &names)
            .field("cwd", &self.cwd)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the command treats the token variable: `None` if not mentioned, `Some(None)` if removed, or its value.
    fn token_of(command: &Command) -> Option<Option<&OsStr>> {
        command.get_envs().find(|(name, _)| *name == TOKEN_VARIABLE).map(|(_, value)| value)
    }

    #[test]
    fn programs_do_not_inherit_the_token() {
        assert_eq!(token_of(&Launch::new("p").command()), Some(None));
        let given = Launch::new("p").env(TOKEN_VARIABLE, "its own").command();
        assert_eq!(token_of(&given), Some(Some("its own".as_ref())));
    }
}
