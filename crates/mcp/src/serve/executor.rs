//! The executor as the tools see it: a session for files that is replaced when it is lost, the base directory of relative paths, and the
//! sandbox that restricts the tools to a root directory (`ServeConfig::root`). Processes run in separate sessions, see `process_sessions`.
//!
//! ```text
//! ServedExecutor ── client() ──▶ the current session ──lost──▶ open() ──▶ the next one
//!   └── base, root ──▶ sandbox: sent with every file call and every start, enforced by the executor's server
//! ```
//!
//! Failure paths: if the executor cannot enforce a root, `connect` fails and no tool is offered. If a later session reaches a server
//! without sandbox support, and the tools are restricted, the call fails. When a session is lost, its processes are gone and their handles
//! report an error. The next call opens a new session.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use exec_server_client::{
    Client, ConnectionState, Error, Start,
    fs::{self, EntryKind, FileSystem as _, Links, RemoteFiles},
    protocol::{failure, path::PathArg, process::Inherit, sandbox::SandboxContext},
    transport::BoxFuture,
};
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};
use tokio::{sync::Mutex, time};

/// Opens a session with the executor: one for all file tools, and one for the processes of each MCP session. It is called again when a
/// session was lost.
pub type OpenSession = Box<dyn Fn() -> BoxFuture<'static, Result<ExecutorSession, Error>> + Send + Sync>;

/// A session with the executor, and the future that ends it.
pub struct ExecutorSession {
    pub client: Client,
    /// Ends the session and everything that runs in it. If it is dropped instead, the executor ends the session after its time-to-live.
    pub end: BoxFuture<'static, ()>,
}

impl fmt::Debug for ExecutorSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutorSession").field("client", &self.client).finish_non_exhaustive()
    }
}

impl ExecutorSession {
    /// Ends the session. If the executor does not answer in time, the session's time-to-live ends it.
    pub(super) async fn end(self) {
        if time::timeout(END_WITHIN, self.end).await.is_err() {
            tracing::warn!("could not end a session with the executor: no answer");
        }
    }
}

/// Whether a session is permanently lost.
pub(super) fn is_lost(client: &Client) -> bool {
    matches!(client.state(), ConnectionState::Lost { .. })
}

/// Time limit for ending a session, during which the executor kills all processes of the session.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Time limit for testing a root, which starts one small program.
const ROOT_TEST_WITHIN: Duration = Duration::from_secs(20);

/// POSIX-like shells, for which models write commands. If the executor's default shell is another one, `sh` is used.
const SHELLS: [&str; 5] = ["bash", "sh", "dash", "zsh", "ksh"];

/// The executor to serve, and the restrictions.
pub struct ServeConfig {
    /// Connects to the executor.
    pub open: OpenSession,
    /// Offers only tools that change nothing: no processes, no writing.
    pub read_only: bool,
    /// Restricts files and processes to this directory of the executor.
    pub root: Option<PathBuf>,
    /// With a root: additional directories that processes may read.
    pub readable: Vec<PathBuf>,
    /// Allows writing `.git` in the root. The hooks and settings in it run commands outside of the sandbox when a person uses git there.
    pub writable_git: bool,
    /// Paths hidden from clients in read-only mode without a root, in addition to the own files of the executor's server.
    pub hidden: Vec<PathBuf>,
    /// Which environment variables a process inherits from the executor's server.
    pub inherit: Inherit,
}

impl fmt::Debug for ServeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeConfig")
            .field("read_only", &self.read_only)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

/// Why an executor cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The executor cannot be reached, or does not report its environment.
    #[error("the executor cannot be used")]
    Executor(#[source] Error),
    /// The root cannot be used.
    #[error("the root `{}` cannot be used", root.display())]
    Root { root: PathBuf, source: fs::FileError },
    /// The root is a file.
    #[error("the root `{}` is not a directory", root.display())]
    NotADirectory { root: PathBuf },
    /// The own files of the executor's server cannot be hidden.
    #[error(
        "the server's own files cannot be hidden at {address}: {missing}; `exec-server doctor` on that machine says what to do"
    )]
    NotHidden {
        address: String,
        /// The missing feature or the failed check.
        missing: String,
    },
    /// The sandbox of the root cannot be enforced.
    #[error(
        "the root `{}` cannot be enforced at {address}: {missing}; `exec-server doctor` on that machine says what to do; \
         with --read-only the host needs to support less",
        root.display()
    )]
    NotEnforceable {
        root: PathBuf,
        address: String,
        /// The missing feature or the failed check.
        missing: String,
    },
}

/// An executor, with everything that the tools need to know about it.
pub(super) struct ServedExecutor {
    open: OpenSession,
    /// The session for files. `None` after `end`. Locked while a session is opened, so that concurrent calls open only one.
    current: Mutex<Option<ExecutorSession>>,
    /// The base of relative paths. An absolute path on the executor.
    pub(super) base: PathBuf,
    /// The shell that runs commands given as one string.
    pub(super) shell: String,
    /// The executor's address, without a token.
    pub(super) address: String,
    /// Set with a root, and in read-only mode if the executor's server supports sandboxes.
    policies: Option<SandboxPolicies>,
    /// The sandbox of file calls without `policies`: grants everything, but every sandbox hides the files of the executor's server. `None`
    /// if that server does not support sandboxes.
    default_sandbox: Option<Box<RawValue>>,
    inherit: Inherit,
}

/// The sandbox policies of file calls and of processes.
struct SandboxPolicies {
    files: Box<RawValue>,
    processes: SandboxContext,
}

impl ServedExecutor {
    /// Connects to the executor and queries it. Tests the sandbox if there is a root.
    pub(super) async fn connect(config: ServeConfig) -> Result<Self, ServeError> {
        let ServeConfig { open, read_only, root, readable, writable_git, hidden, inherit } = config;
        let opened = open().await.map_err(ServeError::Executor)?;
        let client = opened.client.clone();
        let info = match client.environment_info().await {
            Ok(info) => Some(info),
            // An older server, which does not know this method. For some of them the client fails with `Protocol` without a request.
            Err(Error::Server { code: failure::METHOD_NOT_FOUND, .. } | Error::Protocol(_)) => None,
            Err(error) => {
                opened.end().await;
                return Err(ServeError::Executor(error));
            }
        };
        let cwd = info.as_ref().and_then(|info| info.cwd.clone());
        let cwd = cwd.and_then(|cwd| PathArg::new(cwd).resolve().ok()).unwrap_or_else(|| PathBuf::from("/"));
        let shell = info.and_then(|info| info.shell).filter(|shell| SHELLS.contains(&shell.name.as_str()));
        let mut executor = Self {
            address: client.address(),
            open,
            current: Mutex::new(Some(opened)),
            base: cwd,
            shell: shell.map_or_else(|| "sh".to_owned(), |shell| shell.path),
            policies: None,
            default_sandbox: client.server().capabilities.sandbox.then(everything_but_the_server),
            inherit,
        };
        let confined = match &root {
            Some(root) => executor.confine(root, &readable, read_only, writable_git).await,
            None if read_only => executor.hide(&hidden).await,
            None => Ok(()),
        };
        if let Err(error) = confined {
            executor.end().await;
            return Err(error);
        }
        Ok(executor)
    }

    /// Opens another session. It may reach another server than the first one did, so this fails if a sandbox is needed and that server does
    /// not support it.
    pub(super) async fn open(&self) -> Result<ExecutorSession, Error> {
        let opened = (self.open)().await?;
        if self.policies.is_some() && !opened.client.server().capabilities.sandbox {
            let text = format!(
                "the server at {} does not support sandboxes, so the restrictions of `mcp serve` cannot be enforced",
                self.address
            );
            opened.end().await;
            return Err(Error::Protocol(text));
        }
        Ok(opened)
    }

    /// The current session for files. Opens a new one if it is lost.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        let mut current = self.current.lock().await;
        if let Some(opened) = current.as_ref().filter(|opened| !is_lost(&opened.client)) {
            return Ok(opened.client.clone());
        }
        Ok(current.insert(self.open().await?).client.clone())
    }

    /// Ends the session for files.
    pub(super) async fn end(&self) {
        let ending = async {
            let current = self.current.lock().await.take();
            if let Some(opened) = current {
                opened.end().await;
            }
        };
        // Ignore a timeout: either a call that still opens a session holds the lock, or the executor does not answer. In both cases the
        // executor ends the session after its time-to-live.
        time::timeout(END_WITHIN, ending).await.ok();
    }

    /// The file system of the executor, in the sandbox of `Self::sandbox`.
    pub(super) async fn files(&self) -> Result<RemoteFiles, Error> {
        let remote = RemoteFiles::new(self.client().await?);
        Ok(match self.sandbox() {
            Some(sandbox) => remote.sandboxed(sandbox),
            None => remote,
        })
    }

    /// The sandbox of file calls: the root, or everything except the files of the executor's server. Without it, the file tools
    /// could read or change that server's tokens with the rights of the user who runs `mcp serve`. Commands still can, unless there are
    /// `policies`.
    pub(super) fn sandbox(&self) -> Option<Box<RawValue>> {
        self.policies.as_ref().map(|policies| policies.files.clone()).or_else(|| self.default_sandbox.clone())
    }

    /// Makes a path absolute. Checks nothing: the executor resolves symlinks and enforces the sandbox.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.base.join(path).components().collect()
    }

    /// Formats a path for display: relative if it is below the base.
    pub(super) fn show(&self, path: &Path) -> String {
        let shown = path.strip_prefix(&self.base).ok().filter(|rest| !rest.as_os_str().is_empty());
        shown.unwrap_or(path).display().to_string()
    }

    /// Builds a start request with the sandbox of processes. A relative or missing `cwd` starts at the base. `env` is set in addition to
    /// the inherited variables.
    pub(super) fn start(&self, argv: Vec<String>, cwd: Option<&str>, env: BTreeMap<String, String>) -> Start {
        let dir = cwd.map_or_else(|| self.base.clone(), |cwd| self.path(cwd));
        let start = Start::new(argv).cwd(dir).inherit(self.inherit).terminate_on_drop(true);
        let start = env.into_iter().fold(start, |start, (name, value)| start.env(name, value));
        match &self.policies {
            Some(policies) => start.sandbox(policies.processes.clone()),
            None => start,
        }
    }

    /// Restricts files and processes to a root, and tests that the executor enforces it.
    async fn confine(
        &mut self,
        root: &Path,
        readable: &[PathBuf],
        read_only: bool,
        writable_git: bool,
    ) -> Result<(), ServeError> {
        let client = self.client().await.map_err(ServeError::Executor)?;
        let root = self.base.join(root);
        let address = self.address.clone();
        let not_enforceable =
            |missing: String| ServeError::NotEnforceable { root: root.clone(), address: address.clone(), missing };
        if !client.server().capabilities.sandbox {
            return Err(not_enforceable("its server does not support sandboxes".to_owned()));
        }
        let failed = |source| ServeError::Root { root: root.clone(), source };
        let unrestricted = RemoteFiles::new(client.clone());
        let real = unrestricted.canonicalize(&root).await.map_err(failed)?;
        if unrestricted.metadata(&real, Links::Follow).await.map_err(failed)?.kind != EntryKind::Directory {
            return Err(ServeError::NotADirectory { root: root.clone() });
        }
        let readable = readable.iter().map(|dir| self.base.join(dir));
        let policies = SandboxPolicies::new(&real, readable, read_only, writable_git)
            .map_err(|error| not_enforceable(error.to_string()))?;
        let sandboxed = unrestricted.sandboxed(policies.files.clone());
        self.base = real;
        self.policies = Some(policies);
        sandboxed.metadata(&self.base, Links::Follow).await.map_err(|error| not_enforceable(error.reason))?;
        if !read_only {
            self.test_process(&client).await.map_err(not_enforceable)?;
        }
        Ok(())
    }

    /// Read-only mode without a root: allows reading all files except `hidden` and the own files of the executor's server, which every
    /// sandbox hides.
    ///
    /// Hides nothing on a server without sandbox support. That is another implementation, and we do not know its files.
    async fn hide(&mut self, hidden: &[PathBuf]) -> Result<(), ServeError> {
        let client = self.client().await.map_err(ServeError::Executor)?;
        if !client.server().capabilities.sandbox {
            return Ok(());
        }
        let not_hidden = |missing: String| ServeError::NotHidden { address: client.address(), missing };
        let policies = SandboxPolicies::hiding(hidden).map_err(|error| not_hidden(error.to_string()))?;
        let sandboxed = RemoteFiles::new(client.clone()).sandboxed(policies.files.clone());
        sandboxed.metadata(&self.base, Links::Follow).await.map_err(|error| not_hidden(error.reason))?;
        self.policies = Some(policies);
        Ok(())
    }

    /// Tests that the shell starts in the sandbox and runs an empty command.
    async fn test_process(&self, client: &Client) -> Result<(), String> {
        let argv = vec![self.shell.clone(), "-c".to_owned(), ":".to_owned()];
        let start = self.start(argv, None, BTreeMap::new());
        let test = async { client.start(start).await?.wait().await };
        match time::timeout(ROOT_TEST_WITHIN, test).await {
            Ok(Ok(exit)) if exit.code == 0 => Ok(()),
            Ok(Ok(exit)) => Err(format!("`{} -c :` exits with code {} in the sandbox", self.shell, exit.code)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("`{} -c :` does not exit in the sandbox", self.shell)),
        }
    }
}

/// A policy that grants access to all files. A server hides its own files in every sandbox.
fn everything_but_the_server() -> Box<RawValue> {
    to_raw_value(&policy(&[special("root", "write")])).expect("a value is JSON")
}

impl SandboxPolicies {
    /// Files: only the root. Processes: also the files that programs need to run, and the readable directories. The network is not
    /// restricted.
    fn new(
        root: &Path,
        readable: impl Iterator<Item = PathBuf>,
        read_only: bool,
        writable_git: bool,
    ) -> Result<Self, serde_json::Error> {
        let access = if read_only { "read" } else { "write" };
        let mut file_entries = vec![entry(root, access)];
        if !read_only && writable_git {
            // A policy keeps `.git` read-only unless an entry names it.
            file_entries.push(entry(&root.join(".git"), "write"));
        }
        let mut process_entries = file_entries.clone();
        process_entries.push(special("minimal", "read"));
        process_entries.extend(readable.map(|dir| entry(&dir, "read")));
        Ok(Self {
            files: to_raw_value(&policy(&file_entries))?,
            processes: serde_json::from_value(policy(&process_entries))?,
        })
    }

    /// Everything may be read except these paths.
    fn hiding(hidden: &[PathBuf]) -> Result<Self, serde_json::Error> {
        let mut entries = vec![special("root", "read")];
        entries.extend(hidden.iter().map(|path| {
            let mut entry = entry(path, "deny");
            // A path that does not exist must not make the policy fail.
            entry["missing_path_behavior"] = json!("skip");
            entry
        }));
        let policy = policy(&entries);
        Ok(Self { files: to_raw_value(&policy)?, processes: serde_json::from_value(policy)? })
    }
}

fn entry(path: &Path, access: &str) -> serde_json::Value {
    let path = exec_server_client::protocol::path::to_uri(path);
    json!({"path": {"type": "path", "path": path}, "access": access})
}

fn special(kind: &str, access: &str) -> serde_json::Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

fn policy(entries: &[serde_json::Value]) -> serde_json::Value {
    let files = json!({"type": "restricted", "entries": entries});
    json!({"permissions": {"type": "managed", "network": "enabled", "file_system": files}})
}
