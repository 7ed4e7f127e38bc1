//! The executor as the tools see it: a session for files that is opened again when it is lost, the directory that relative paths begin
//! at, and the walls of a root. Processes run in sessions of their own: see `executors`.
//!
//! ```text
//! Place ── client() ──▶ the session of the moment ──lost──▶ open() ──▶ the next one
//!   └── base, root ──▶ sandbox: sent with every file call and every start, enforced by the executor's server
//! ```
//!
//! Failure paths: a root that the executor cannot enforce is an error before the first tool is offered, and one that a server does not know
//! that comes after is an error of the call. A session that is lost takes its
//! processes with it; their handles say so, and the next call begins anew.
//!
//! Must not know MCP.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use exec_server_client::{
    Client, Error, Start, State,
    fs::{self, EntryKind, FileSystem as _, Links, Remote},
    protocol::{failure, path::PathArg, process::Inherit, sandbox::SandboxContext},
    transport::BoxFuture,
};
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};
use tokio::{sync::Mutex, time};

/// Opens a session with the executor: one for files, one for the processes of each MCP session, the next one where one is lost.
pub type Open = Box<dyn Fn() -> BoxFuture<'static, Result<Opened, Error>> + Send + Sync>;

/// A session with the executor, and what ends it.
pub struct Opened {
    /// The session.
    pub client: Client,
    /// Ends it and everything that runs in it. Dropped instead, the executor does so after a while.
    pub end: BoxFuture<'static, ()>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Opened {
    /// Ends it, unless the executor takes too long; then its time-to-live does.
    pub(super) async fn end(self) {
        if time::timeout(END_WITHIN, self.end).await.is_err() {
            tracing::warn!("a session with the executor could not be ended: no answer");
        }
    }

    fn is_lost(&self) -> bool {
        is_lost(&self.client)
    }
}

/// Whether a session is gone for good.
pub(super) fn is_lost(client: &Client) -> bool {
    matches!(client.state(), State::Lost { .. })
}

/// How long the end of a session may take: all that runs in it is killed.
const END_WITHIN: Duration = Duration::from_secs(5);

/// How long the trial of a root may take: the start of one small program.
const TRIAL: Duration = Duration::from_secs(20);

/// Shells that take what models write; with any other, `sh` does.
const SHELLS: [&str; 5] = ["bash", "sh", "dash", "zsh", "ksh"];

/// What is served, and within which bounds.
pub struct Config {
    /// The way to the executor.
    pub open: Open,
    /// Offers only what changes nothing: no processes, no writing.
    pub read_only: bool,
    /// Keeps files and processes beneath this directory of the executor.
    pub root: Option<PathBuf>,
    /// Directories that processes may read besides, where there is a root.
    pub readable: Vec<PathBuf>,
    /// Lets `.git` of the root be changed: its hooks and settings run commands outside of the root's walls when a person uses git there.
    pub writable_git: bool,
    /// What read-only serving without a root shows nobody, besides the executor's own files.
    pub hidden: Vec<PathBuf>,
    /// Which variables of the executor processes inherit.
    pub inherit: Inherit,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("read_only", &self.read_only).field("root", &self.root).finish_non_exhaustive()
    }
}

/// Why an executor cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The executor cannot be reached, or does not say what it is.
    #[error("reach the executor")]
    Executor(#[source] Error),
    /// The root cannot be used.
    #[error("use the root `{}`", root.display())]
    Root {
        /// The root.
        root: PathBuf,
        /// What is wrong with it.
        source: fs::Error,
    },
    /// The root is a file.
    #[error("the root `{}` is not a directory", root.display())]
    NotADirectory {
        /// The root.
        root: PathBuf,
    },
    /// The executor's own files could be read.
    #[error(
        "the server's own files cannot be hidden at {address}: {missing}; `exec-server doctor` on that machine says what to do"
    )]
    NotHidden {
        /// The executor.
        address: String,
        /// What is missing, in the words of the executor.
        missing: String,
    },
    /// The walls of the root would not hold.
    #[error(
        "the root `{}` cannot be enforced at {address}: {missing}; `exec-server doctor` on that machine says what to do, \
         and read-only serving needs less of it",
        root.display()
    )]
    NotEnforceable {
        /// The root.
        root: PathBuf,
        /// The executor.
        address: String,
        /// What is missing, in the words of the executor.
        missing: String,
    },
}

/// An executor with everything that tools have to know of it.
pub(super) struct Place {
    open: Open,
    /// Nothing when it is over.
    current: Mutex<Option<Opened>>,
    /// Where relative paths begin: absolute, at the executor.
    pub(super) base: PathBuf,
    /// What runs commands that are one text.
    pub(super) shell: String,
    /// The executor's address, without a token.
    pub(super) address: String,
    walls: Option<Walls>,
    /// The sandbox of file calls without a root: everything but the files of the executor's server, which no sandbox shows. Absent where
    /// that server knows no sandboxes.
    around_server: Option<Box<RawValue>>,
    inherit: Inherit,
}

/// What is allowed within a root.
struct Bounds {
    readable: Vec<PathBuf>,
    read_only: bool,
    writable_git: bool,
}

/// What keeps files and processes beneath a root.
struct Walls {
    files: Box<RawValue>,
    processes: SandboxContext,
}

impl Place {
    /// Goes there and looks; a root is tried out.
    pub(super) async fn find(config: Config) -> Result<Self, ServeError> {
        let opened = (config.open)().await.map_err(ServeError::Executor)?;
        let client = opened.client.clone();
        let bounds =
            Bounds { readable: config.readable, read_only: config.read_only, writable_git: config.writable_git };
        let info = match client.environment_info().await {
            Ok(info) => Some(info),
            // An older server, which does not know the question.
            Err(Error::Server { code: failure::METHOD_NOT_FOUND, .. } | Error::Protocol(_)) => None,
            Err(error) => {
                opened.end().await;
                return Err(ServeError::Executor(error));
            }
        };
        let cwd = info.as_ref().and_then(|info| info.cwd.clone());
        let cwd = cwd.and_then(|cwd| PathArg::new(cwd).resolve().ok()).unwrap_or_else(|| PathBuf::from("/"));
        let shell = info.and_then(|info| info.shell).filter(|shell| SHELLS.contains(&shell.name.as_str()));
        let mut place = Self {
            address: client.address(),
            open: config.open,
            current: Mutex::new(Some(opened)),
            base: cwd,
            shell: shell.map_or_else(|| "sh".to_owned(), |shell| shell.path),
            walls: None,
            around_server: client.server().capabilities.sandbox.then(everything_but_the_server).flatten(),
            inherit: config.inherit,
        };
        let walled = match &config.root {
            Some(root) => place.confine(root, &bounds).await,
            None if bounds.read_only => place.hide(&config.hidden).await,
            None => Ok(()),
        };
        if let Err(error) = walled {
            place.end().await;
            return Err(error);
        }
        Ok(place)
    }

    /// A session more. Whoever answers now may be another server than the one that was looked at first: without walls nothing is done there.
    pub(super) async fn open(&self) -> Result<Opened, Error> {
        let opened = (self.open)().await?;
        if self.walls.is_some() && !opened.client.server().capabilities.sandbox {
            let text = format!("the server at {} knows no sandbox any more, and its files need one", self.address);
            opened.end().await;
            return Err(Error::Protocol(text));
        }
        Ok(opened)
    }

    /// The session for files of the moment, or the next one where that is lost.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        let mut current = self.current.lock().await;
        if let Some(opened) = current.as_ref().filter(|opened| !opened.is_lost()) {
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
        // Elapsed or done: somebody may still be opening the next one.
        time::timeout(END_WITHIN, ending).await.ok();
    }

    /// The files, within the root where there is one.
    pub(super) async fn files(&self) -> Result<Remote, Error> {
        let remote = Remote::new(self.client().await?);
        Ok(match self.sandbox() {
            Some(sandbox) => remote.sandboxed(sandbox),
            None => remote,
        })
    }

    /// The sandbox of file calls: the root, or everything but the files of the executor's server. An MCP client acts with the rights of
    /// whoever serves it, and is not the owner of that server.
    pub(super) fn sandbox(&self) -> Option<Box<RawValue>> {
        self.walls.as_ref().map(|walls| walls.files.clone()).or_else(|| self.around_server.clone())
    }

    /// An absolute path at the executor. Where it leads is not judged here but by the executor, link by link.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.base.join(path).components().collect()
    }

    /// A path as it is shown: relative where it is below the base.
    pub(super) fn show(&self, path: &Path) -> String {
        let shown = path.strip_prefix(&self.base).ok().filter(|rest| !rest.as_os_str().is_empty());
        shown.unwrap_or(path).display().to_string()
    }

    /// A process of this place: its directory, environment and walls.
    pub(super) fn start(&self, argv: Vec<String>, cwd: Option<&str>) -> Start {
        let dir = cwd.map_or_else(|| self.base.clone(), |cwd| self.path(cwd));
        let start = Start::new(argv).cwd(dir).inherit(self.inherit).terminate_on_drop(true);
        match &self.walls {
            Some(walls) => start.sandbox(walls.processes.clone()),
            None => start,
        }
    }

    /// Puts the walls up, and tries whether they hold.
    async fn confine(&mut self, root: &Path, bounds: &Bounds) -> Result<(), ServeError> {
        let client = self.client().await.map_err(ServeError::Executor)?;
        let root = self.base.join(root);
        let address = self.address.clone();
        let not_enforceable =
            |missing: String| ServeError::NotEnforceable { root: root.clone(), address: address.clone(), missing };
        if !client.server().capabilities.sandbox {
            return Err(not_enforceable("its server knows no sandbox".to_owned()));
        }
        let failed = |source| ServeError::Root { root: root.clone(), source };
        let bare = Remote::new(client.clone());
        let real = bare.canonicalize(&root).await.map_err(failed)?;
        if bare.metadata(&real, Links::Follow).await.map_err(failed)?.kind != EntryKind::Directory {
            return Err(ServeError::NotADirectory { root: root.clone() });
        }
        let readable: Vec<PathBuf> = bounds.readable.iter().map(|dir| self.base.join(dir)).collect();
        let walls = match Walls::new(&real, &readable, bounds) {
            Ok(walls) => walls,
            Err(error) => return Err(not_enforceable(error.to_string())),
        };
        let within = bare.sandboxed(walls.files.clone());
        self.base = real;
        self.walls = Some(walls);
        if let Err(error) = within.metadata(&self.base, Links::Follow).await {
            return Err(not_enforceable(error.reason));
        }
        if !bounds.read_only
            && let Err(missing) = self.try_process(&client).await
        {
            return Err(not_enforceable(missing));
        }
        Ok(())
    }

    /// Shows everything but the executor's own files, which every sandbox hides, and these. A server that knows no sandbox is not ours: its own
    /// files are not known.
    async fn hide(&mut self, hidden: &[PathBuf]) -> Result<(), ServeError> {
        let client = self.client().await.map_err(ServeError::Executor)?;
        if !client.server().capabilities.sandbox {
            return Ok(());
        }
        let not_hidden = |missing: String| ServeError::NotHidden { address: client.address(), missing };
        let walls = Walls::hiding(hidden).map_err(|error| not_hidden(error.to_string()))?;
        let within = Remote::new(client.clone()).sandboxed(walls.files.clone());
        within.metadata(&self.base, Links::Follow).await.map_err(|error| not_hidden(error.reason))?;
        self.walls = Some(walls);
        Ok(())
    }

    /// Starts the shell within the walls and lets it do nothing.
    async fn try_process(&self, client: &Client) -> Result<(), String> {
        let start = self.start(vec![self.shell.clone(), "-c".to_owned(), ":".to_owned()], None);
        let trial = async { client.start(start).await?.wait().await };
        match time::timeout(TRIAL, trial).await {
            Ok(Ok(exit)) if exit.code == 0 => Ok(()),
            Ok(Ok(exit)) => Err(format!("`{} -c :` ends with {} within it", self.shell, exit.code)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("`{} -c :` does not end within it", self.shell)),
        }
    }
}

/// A policy that grants all files: a server leaves its own out of every policy.
fn everything_but_the_server() -> Option<Box<RawValue>> {
    let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "write"});
    let files = json!({"type": "restricted", "entries": [root]});
    let sandbox = json!({"permissions": {"type": "managed", "network": "enabled", "file_system": files}});
    // A value of texts serializes.
    to_raw_value(&sandbox).ok()
}

impl Walls {
    /// Files: the root alone. Processes: the root, what programs need to run, and what was named; the network stays as it is.
    fn new(root: &Path, readable: &[PathBuf], bounds: &Bounds) -> Result<Self, serde_json::Error> {
        let access = if bounds.read_only { "read" } else { "write" };
        let mut own = vec![entry(root, access)];
        if !bounds.read_only && bounds.writable_git {
            // A policy keeps it read-only unless it is named.
            own.push(entry(&root.join(".git"), "write"));
        }
        let mut wide = own.clone();
        wide.push(json!({"path": {"type": "special", "value": {"kind": "minimal"}}, "access": "read"}));
        wide.extend(readable.iter().map(|dir| entry(dir, "read")));
        Ok(Self { files: to_raw_value(&policy(&own))?, processes: serde_json::from_value(policy(&wide))? })
    }

    /// Everything may be read but these.
    fn hiding(hidden: &[PathBuf]) -> Result<Self, serde_json::Error> {
        let mut entries = vec![json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"})];
        entries.extend(hidden.iter().map(|path| {
            let mut entry = entry(path, "deny");
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

fn policy(entries: &[serde_json::Value]) -> serde_json::Value {
    let files = json!({"type": "restricted", "entries": entries});
    json!({"permissions": {"type": "managed", "network": "enabled", "file_system": files}})
}
