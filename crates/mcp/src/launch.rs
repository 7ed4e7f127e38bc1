//! Starts an MCP server on stdio, on this machine or on an executor. The two cases differ only in the environment variables of the process.
//!
//! The process is terminated when its last handle is dropped. Every launch uses a new `processId`. The MCP protocol itself is in
//! `transport`.

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
    Client, Error, Start,
    environment::Backend,
    protocol::{failure::Kind, process::Overflow},
};

use tokio::{io::AsyncReadExt as _, time};

use crate::{
    config::StdioConfig,
    env::{self, EnvError, LaunchEnv, Variables},
    transport::{StderrLog, StdioTransport},
};

/// The number that this program gives to its next launch of a server, starting at 1.
static LAUNCHES: AtomicU64 = AtomicU64::new(1);

/// Distinguishes our launches from those of another program that shares the session.
static NONCE: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));

/// Time limit for asking an executor for its `PATH`, and how many bytes of the reply are read. Used only for an error message.
const PATH_WITHIN: Duration = Duration::from_secs(5);
const PATH_BYTES: u64 = 64 << 10; // 64 KiB

/// A server to be started.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Used in logs.
    pub name: &'a str,
    pub stdio: &'a StdioConfig,
    /// Our environment variables. The server may get some of them.
    pub variables: &'a Variables,
    /// The working directory if the configuration has none, and the base of a relative one. If both are absent, the executor's
    /// own is used.
    pub cwd: Option<&'a Path>,
    /// Receives the server's stderr.
    pub log: Arc<StderrLog>,
}

/// Why a server could not be started.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The program does not exist, or is not in `PATH`.
    #[error("start `{program}`: {}", not_found(program, path.as_deref()))]
    NotFound {
        program: String,
        /// The `PATH` of the server's environment, if it is known. A `program` that contains a slash is not looked up in it.
        path: Option<String>,
    },
    /// The executor refused to start the program.
    #[error("start `{program}`: {source}")]
    Start { program: String, source: Error },
}

/// Starts a server and returns the transport to it.
pub async fn launch(backend: &Backend, launch: Launch<'_>) -> Result<StdioTransport, LaunchError> {
    let environment = if backend.is_remote() { env::executor } else { env::local };
    let environment = environment(launch.stdio, launch.variables)?;
    let start = start(&launch, &environment);
    match backend.client().start(start).await {
        Ok(process) => Ok(StdioTransport::new(launch.name, process, launch.log)),
        Err(error) if error.server_kind() == Some(Kind::ProgramNotFound) => {
            let program = launch.stdio.command.clone();
            let path = match environment.env.get("PATH") {
                Some(path) => Some(path.clone()),
                None if program.contains('/') => None,
                None => path_on_executor(backend.client(), &environment).await,
            };
            Err(LaunchError::NotFound { program, path })
        }
        Err(source) => Err(LaunchError::Start { program: launch.stdio.command.clone(), source }),
    }
}

/// The `PATH` that a process with this environment gets. A shell on the executor prints it, because we do not know the executor's own
/// variables.
async fn path_on_executor(client: &Client, environment: &LaunchEnv) -> Option<String> {
    let asking = async {
        let shell = with_environment(Start::new(["/bin/sh", "-c", "printf %s \"$PATH\""]), environment);
        let process = client.start(shell.terminate_on_drop(true)).await.ok()?;
        let mut path = String::new();
        process.stdout().take(PATH_BYTES).read_to_string(&mut path).await.ok()?;
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
        // The default of the protocol, but set explicitly: losing a message would be worse than blocking the server.
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

/// Whether a directory is relative, on Unix and on Windows. A `file:` URI, a path with a drive letter, and a UNC path are not.
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

/// Why a program was not found, and where it was looked up.
fn not_found(program: &str, path: Option<&str>) -> String {
    match path {
        _ if program.contains('/') => "no such program on the executor".to_owned(),
        Some(path) => format!("not found in the PATH that it would get: {path}"),
        None => "not found in the PATH of its executor; give an absolute path, or set `env.PATH`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_and_absolute_paths_of_any_system_are_not_relative() {
        for dir in ["src", "./src", "../x", "a:b", "file", "c"] {
            assert!(is_relative(dir.as_ref()), "{dir}");
        }
        for dir in ["/srv", "file:///srv", "FILE:///C:/x", r"C:\x", "c:/x", "C:", r"\\host\share"] {
            assert!(!is_relative(dir.as_ref()), "{dir}");
        }
    }
}
