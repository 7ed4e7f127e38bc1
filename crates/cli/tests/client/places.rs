//! The places where the suite runs: this program itself, a server behind a TCP or a Unix socket, a server that the client starts, and a
//! server on another machine. Starts a place, and at the end checks that nothing is left of it.

use std::{collections::BTreeSet, ffi::OsString};

use tokio::sync::Mutex;

use super::{Elsewhere, bounded};
use crate::prelude::*;
use exec_server_client::{
    Backoff, Builder,
    environment::Backend,
    local::{Local, LocalConfig},
};

/// Only one `Local` is created at a time, so that its directory can be identified.
static MAKING: Mutex<()> = Mutex::const_new(());

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Embedded in this program.
    Local,
    /// A server on a TCP port.
    Ws,
    /// A server on a Unix socket.
    Unix,
    /// A server that the client starts and talks to over its standard streams.
    Stdio,
    /// A server that shares nothing with us but the network.
    Elsewhere,
}

/// A place that is ready.
pub(crate) struct Place {
    kind: Kind,
    backend: Backend,
    home: Home,
    /// A directory at the place that only this test uses.
    scratch: String,
}

enum Home {
    Local { dir: TempDir, private: PathBuf },
    Server { server: TestServer },
    Launched { dir: TempDir },
    Elsewhere { host: Elsewhere },
}

/// Runs one behaviour at one place, and checks that nothing is left of the place.
pub(crate) fn run(kind: Kind, behaviour: impl AsyncFnOnce(&Place)) {
    bounded(async {
        let place = Place::open(kind).await;
        behaviour(&place).await;
        place.end().await;
    });
}

/// A client with a short reconnect backoff.
pub(crate) fn client_of() -> Builder {
    let quick = Backoff::new(std::time::Duration::from_millis(5), std::time::Duration::from_millis(50));
    Client::builder().name("test").backoff(quick)
}

impl Place {
    async fn open(kind: Kind) -> Self {
        let (backend, home) = match kind {
            Kind::Local => local().await,
            Kind::Ws => served(TestServer::builder()).await,
            Kind::Unix => served(TestServer::builder().listen("unix://{dir}/x.sock")).await,
            Kind::Stdio => launched().await,
            Kind::Elsewhere => {
                let host = Elsewhere::start();
                (connect(host.url()).await, Home::Elsewhere { host })
            }
        };
        let scratch = match &home {
            Home::Local { dir, .. } | Home::Launched { dir, .. } => dir.path().display().to_string(),
            Home::Server { server, .. } => server.dir().display().to_string(),
            Home::Elsewhere { .. } => Elsewhere::CWD.to_owned(),
        };
        Self { kind, backend, home, scratch }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// The client with the session at the place.
    pub(crate) fn client(&self) -> &Client {
        self.backend.client()
    }

    /// Starts a process; the start must succeed.
    pub(crate) async fn start(&self, start: Start) -> Process {
        self.client().start(start).await.expect("start a process")
    }

    /// Runs a script at the place to its end and returns its stdout.
    pub(crate) async fn say(&self, script: &str) -> String {
        let told = super::tell(&self.start(super::sh(script)).await).await;
        assert_eq!((told.exit.code, String::from_utf8_lossy(&told.stderr).as_ref()), (0, ""), "`{script}` goes well");
        String::from_utf8(told.stdout).expect("text")
    }

    /// A path in the scratch directory.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.scratch)
    }

    pub(crate) fn scratch(&self) -> &str {
        &self.scratch
    }

    /// The HOME of the server.
    pub(crate) fn home(&self) -> String {
        self.path("home")
    }

    /// All live processes that belong to the place.
    pub(crate) fn processes(&self) -> BTreeSet<u32> {
        let all = match &self.home {
            Home::Local { dir, .. } | Home::Launched { dir, .. } => marked(&dir.path().display().to_string()),
            Home::Server { server, .. } => marked(server.mark()),
            Home::Elsewhere { host, .. } => marked(host.mark()),
        };
        all.iter().copied().chain(descendants(&all)).collect()
    }

    /// Shuts the place down and checks that nothing is left.
    async fn end(self) {
        let all = self.processes();
        let Self { kind, backend, home, .. } = self;
        match &backend {
            Backend::Local(_) => {}
            Backend::Remote(client) => client.clone().close().await,
        }
        match home {
            Home::Local { dir, private } => {
                assert!(private.is_dir(), "a private directory while it runs");
                let Backend::Local(local) = backend else { panic!("a local place") };
                Arc::into_inner(local).expect("the only owner").end().await;
                assert!(!private.exists(), "`{}` goes with its server", private.display());
                wait_gone("spawner, holders and children", &all);
                drop(dir);
            }
            Home::Server { server } => {
                let socket = server.dir().join("x.sock");
                assert_eq!(socket.exists(), kind == Kind::Unix);
                // `TestServer` checks for leftover processes and sessions itself, and removes its directory.
                drop(server);
                assert!(!socket.exists());
            }
            Home::Launched { dir } => {
                wait_gone("the server, its holders and their children", &all);
                assert_eq!(states(dir.path()), Vec::<PathBuf>::new(), "no state is left");
            }
            Home::Elsewhere { host } => drop(host),
        }
    }
}

async fn connect(url: &str) -> Backend {
    Backend::Remote(client_of().connect(url).await.expect("connect with the printed URL"))
}

async fn served(builder: testkit::Builder) -> (Backend, Home) {
    let builder = builder.env("ONLY_THERE", "yes").env("DEEP_SECRET", "hidden");
    let server = builder.start();
    (connect(server.url()).await, Home::Server { server })
}

/// A private path for the server's program, by which all its processes can be found.
fn program(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("exec-server");
    symlink(binary(), &path).expect("link the program");
    path
}

fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("exec-server-client-").tempdir().expect("make a private directory")
}

fn variables(dir: &Path) -> Vec<(OsString, OsString)> {
    let variables = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin".into()),
        ("HOME", dir.join("home").into()),
        ("TMPDIR", dir.as_os_str().to_owned()),
        ("ONLY_THERE", "yes".into()),
        ("DEEP_SECRET", "hidden".into()),
    ];
    variables.map(|(name, value)| (name.into(), value)).to_vec()
}

async fn local() -> (Backend, Home) {
    let dir = scratch();
    let config = LocalConfig {
        program: Some(program(&dir)),
        environment: variables(dir.path()),
        cwd: Some(dir.path().to_owned()),
        ..LocalConfig::default()
    };
    let making = MAKING.lock().await;
    let before = locks();
    let local = Local::start(config).await.expect("start a server in this program");
    let mut made = locks().into_iter().filter(|path| !before.contains(path));
    let private = made.next().expect("its directory is locked").parent().expect("the lock is in it").to_owned();
    drop(making);
    (Backend::Local(Arc::new(local)), Home::Local { dir, private })
}

/// The locks of state directories that this process holds.
fn locks() -> BTreeSet<PathBuf> {
    let open = fs::read_dir("/proc/self/fd").expect("list our descriptors");
    let paths = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let is_ours = |path: &PathBuf| {
        path.ends_with("lock") && path.parent().is_some_and(|dir| dir.display().to_string().contains("/exec-server-"))
    };
    paths.filter(is_ours).collect()
}

/// The private state directories that servers have created in `dir`.
fn states(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("list the directory").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.join("lock").exists()).collect()
}

async fn launched() -> (Backend, Home) {
    let dir = scratch();
    let mut command = vec!["stdio:env".to_owned(), "-i".to_owned(), "-C".to_owned(), dir.path().display().to_string()];
    for (name, value) in variables(dir.path()) {
        command.push(format!("{}={}", name.display(), value.display()));
    }
    command.push(program(&dir).display().to_string());
    command.extend(["serve", "--listen", "stdio"].map(str::to_owned));
    let remote = connect(&command.join(" ")).await;
    assert_eq!(states(dir.path()).len(), 1, "a state directory of its own while it runs");
    (remote, Home::Launched { dir })
}
