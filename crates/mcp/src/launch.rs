//! Starts an MCP server on its standard streams: on this machine or on an executor, which differ in nothing but the
//! environment that the process gets.
//!
//! The process is the launcher's: it ends with the last handle of it, and its name is new with every launch. Must not know
//! the protocol that the server speaks.

use std::{
    hash::{BuildHasher as _, RandomState},
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use exec_server_client::{
    Error, Start,
    backend::Backend,
    protocol::{failure::Kind, process::Overflow},
};

use tokio::{io::AsyncReadExt as _, time};

use crate::{
    config::StdioConfig,
    env::{self, EnvError, LaunchEnv, Variables},
    transport::{Log, Stdio},
};

/// Launches of this program, from 1 on.
static LAUNCHES: AtomicU64 = AtomicU64::new(1);

/// Tells this program's launches from those of another, in a session that both have.
static NONCE: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));

/// How long, and how much, an executor may say about its `PATH`, for an error.
const PATH_WITHIN: Duration = Duration::from_secs(5);
const PATH_BYTES: u64 = 64 << 10; // 64 KiB

/// A server to be started.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Its name, for logs.
    pub name: &'a str,
    /// Its program.
    pub stdio: &'a StdioConfig,
    /// Our variables, of which it may get some.
    pub variables: &'a Variables,
    /// Its directory where its configuration has none; without, it is the executor's own.
    pub cwd: Option<&'a Path>,
    /// Where its standard error goes.
    pub log: Arc<Log>,
}

/// Why a server could not be started.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Its environment cannot be made.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// There is no such program where it is looked for.
    #[error("start `{program}`: {}", NotFound { program, path })]
    NotFound {
        /// The program.
        program: String,
        /// The `PATH` that it would get, where it is looked for there and could be learned.
        path: Option<String>,
    },
    /// The place refused to start it.
    #[error("start `{program}`: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: Error,
    },
}

/// Starts a server at a place, and returns the transport to it.
pub async fn launch(backend: &dyn Backend, launch: Launch<'_>) -> Result<Stdio, LaunchError> {
    let environment = match backend.is_remote() {
        true => env::executor(launch.stdio, launch.variables)?,
        false => env::local(launch.stdio, launch.variables)?,
    };
    let start = start(&launch, &environment);
    match backend.start(start).await {
        Ok(running) => Ok(Stdio::new(launch.name, running.process().clone(), launch.log)),
        Err(error) if error.server_kind() == Some(Kind::ProgramNotFound) => {
            let program = launch.stdio.command.clone();
            let path = match environment.env.get("PATH") {
                Some(path) => Some(path.clone()),
                None if program.contains('/') => None,
                None => path_there(backend, &environment).await,
            };
            Err(LaunchError::NotFound { program, path })
        }
        Err(source) => Err(LaunchError::Start { program: launch.stdio.command.clone(), source }),
    }
}

/// The `PATH` that a process with this environment gets: the executor's own variables are not ours to know otherwise.
async fn path_there(backend: &dyn Backend, environment: &LaunchEnv) -> Option<String> {
    let asking = async {
        let shell = with_environment(Start::new(["/bin/sh", "-c", "printf %s \"$PATH\""]), environment);
        let running = backend.start(shell.terminate_on_drop(true)).await.ok()?;
        let mut path = String::new();
        running.process().stdout().take(PATH_BYTES).read_to_string(&mut path).await.ok()?;
        Some(path)
    };
    time::timeout(PATH_WITHIN, asking).await.ok().flatten()
}

fn with_environment(start: Start, environment: &LaunchEnv) -> Start {
    let start = start.env_policy(Some(environment.policy.clone()));
    environment.env.iter().fold(start, |start, (name, value)| start.env(name, value))
}

fn start(launch: &Launch<'_>, environment: &LaunchEnv) -> Start {
    let StdioConfig { command, args, cwd, .. } = launch.stdio;
    let number = LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let start = Start::new(std::iter::once(command).chain(args).cloned())
        .id(format!("mcp-stdio-{number}-{:08x}", *NONCE as u32))
        .pipe_stdin(true)
        // Whatever the place does by default: a message that is gone is worse than a server that waits.
        .overflow(Overflow::Block)
        .terminate_on_drop(true);
    let start = with_environment(start, environment);
    match (cwd, launch.cwd) {
        (Some(own), Some(base)) if is_relative(own) => start.cwd(base.join(own)),
        (Some(dir), _) => start.cwd(dir),
        (None, Some(dir)) => start.cwd(PathBuf::from(dir)),
        (None, None) => start,
    }
}

/// Whether a directory is below another. A URI is not, nor is a path of a system that names its drives.
#[must_use]
pub fn is_relative(dir: &Path) -> bool {
    let text = dir.to_string_lossy();
    let is_uri = text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"));
    let is_drive = match text.as_bytes() {
        [letter, b':', rest @ ..] => letter.is_ascii_alphabetic() && matches!(rest.first(), None | Some(b'/' | b'\\')),
        _ => text.starts_with("\\\\"),
    };
    !dir.is_absolute() && !is_uri && !is_drive
}

/// Why a program was not found, and where it was looked for.
struct NotFound<'a> {
    program: &'a str,
    path: &'a Option<String>,
}

impl std::fmt::Display for NotFound<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.program.contains('/') {
            return f.write_str("there is no such program there");
        }
        match self.path {
            Some(path) => write!(f, "not found in the PATH that it would get: {path}"),
            None => f.write_str("not found in the PATH of its executor; give its whole path, or set `env.PATH`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_below_another_is_relative() {
        for dir in ["src", "./src", "../x", "a:b", "file", "c"] {
            assert!(is_relative(dir.as_ref()), "{dir}");
        }
        for dir in ["/srv", "file:///srv", "FILE:///C:/x", r"C:\x", "c:/x", "C:", r"\\host\share"] {
            assert!(!is_relative(dir.as_ref()), "{dir}");
        }
    }
}
