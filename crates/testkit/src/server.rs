//! One running `exec-server` of a test: its arguments, its URLs, its end, and the check that nothing of it is left.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use exec_server_workspace::processes::remove_groups;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    Client, DEADLINE, address_of,
    params::{modern, with},
    processes::{self, descendants, marked, resident, send_signal, wait_gone},
    program::{end_of, signal},
    wait_for,
};

/// The uid of `nobody`.
const NOBODY: u32 = 65534;

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// The path of the program under test, which cargo builds next to the programs of the same profile. A test of `crates/cli` has it always;
/// for another crate `cargo test --workspace` or `cargo build` makes it.
pub fn binary() -> &'static str {
    static PATH: LazyLock<String> = LazyLock::new(|| built("exec-server"));
    &PATH
}

/// The test-only MCP server, an example of the package `exec-server`.
pub fn test_mcp_server() -> String {
    built("examples/test_mcp_server")
}

/// A file in the folder of the profile that this program was built with.
fn built(name: &str) -> String {
    let own = std::env::current_exe().expect("our own path");
    let folder = own.parent().expect("a program lies in a folder");
    // Tests lie one level below the programs.
    let profile = if folder.ends_with("deps") { folder.parent().expect("`deps` has a parent") } else { folder };
    let path = profile.join(name);
    assert!(
        path.exists(),
        "`{}` is not there: `cargo test --workspace` builds it, as does `cargo build -p exec-server --bins --examples`",
        path.display()
    );
    path.display().to_string()
}

/// Waits for a server that must refuse to start. If it serves instead, it is killed and the test fails.
pub fn refused(mut server: Child) -> Output {
    let end = Instant::now() + DEADLINE;
    while server.try_wait().expect("check the server process").is_none() {
        if Instant::now() >= end {
            server.kill().expect("end the server");
            panic!("the server did not refuse to start: {:?}", server.wait_with_output());
        }
        thread::park_timeout(Duration::from_millis(5));
    }
    server.wait_with_output().expect("read what it said")
}

/// The options for starting a server.
#[derive(Default)]
pub struct Builder {
    listen: Vec<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    keeps_holders: bool,
    has_default_state_dir: bool,
    is_nobody: bool,
    before: Option<String>,
    directories: Vec<String>,
}

/// A running server. Its state directory is inside `dir` unless the builder changes that. Dropping it ends the server.
pub struct TestServer {
    started: StartedServer,
    builder: Builder,
    mark: String,
    dir: TempDir,
}

impl Builder {
    /// Adds a listener; without any the server gets `ws://127.0.0.1:0`. `{dir}` stands for the test's private directory.
    pub fn listen(mut self, url: &str) -> Self {
        self.listen.push(url.to_owned());
        self
    }

    /// Adds an argument. `{dir}` stands for the test's private directory.
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Accepts the URL of a [`Proxy`](crate::Proxy), which has another port.
    pub fn behind_proxy(self) -> Self {
        self.args(["--allow-host", "127.0.0.1"])
    }

    /// Sets a variable of the server's environment. `{dir}` stands for the test's private directory.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets variables of the server's environment, `NAME=VALUE` separated by blanks.
    pub fn envs(self, variables: &str) -> Self {
        let pairs = variables.split(' ').map(|pair| pair.split_once('=').expect("a variable has a value"));
        pairs.fold(self, |builder, (name, value)| builder.env(name, value))
    }

    /// Keeps holders alive when the server ends; the harness then kills them itself.
    pub fn keep_holders(mut self) -> Self {
        self.keeps_holders = true;
        self
    }

    /// Passes no `--state-dir`. HOME and the XDG directories still point into the test's private directory.
    pub fn default_state_dir(mut self) -> Self {
        self.has_default_state_dir = true;
        self
    }

    /// Runs a shell script first, in the process that then execs the server.
    pub fn after(mut self, script: &str) -> Self {
        self.before = Some(script.to_owned());
        self
    }

    /// Creates a directory in the test's private one before the server starts.
    pub fn after_making(mut self, dir: &str) -> Self {
        self.directories.push(dir.to_owned());
        self
    }

    /// Runs the server as `nobody`. The tests must run as root.
    pub fn run_by_nobody(mut self) -> Self {
        self.is_nobody = true;
        self
    }

    /// Starts the server and waits for its URLs.
    pub fn start(self) -> TestServer {
        let dir = tempfile::Builder::new().prefix("exec-server-test-").tempdir().expect("make a private directory");
        let mark = format!("mark-{}-{}.test", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        for made in &self.directories {
            std::fs::create_dir_all(dir.path().join(made)).expect("make a directory");
        }
        TestServer { started: spawn(&self, dir.path(), &mark), builder: self, mark, dir }
    }

    /// Starts a server that must refuse to start, and returns its output.
    pub fn refusal(&self, dir: &Path, mark: &str) -> Output {
        refused(self.command(dir, mark).spawn().expect("run exec-server"))
    }

    /// The command that starts the server, for tests that start it in their own way.
    pub fn command(&self, dir: &Path, mark: &str) -> Command {
        let place = |text: &str| text.replace("{dir}", &dir.display().to_string());
        let mut command = match &self.before {
            None => Command::new(binary()),
            Some(script) => {
                let mut command = Command::new("sh");
                command.args(["-c", &format!("{script}; exec \"$0\" \"$@\""), binary()]);
                command
            }
        };
        command.arg("serve").args(["--allow-host", mark]);
        for listen in &self.listen {
            command.args(["--listen", &place(listen)]);
        }
        if !self.has_default_state_dir {
            command.arg("--state-dir").arg(dir.join("state"));
        }
        if !self.keeps_holders {
            command.arg("--kill-on-exit");
        }
        command.args(self.args.iter().map(|arg| place(arg)));
        command
            .env_remove("EXEC_SERVER_TOKEN")
            .env("HOME", dir.join("home"))
            .env("XDG_STATE_HOME", dir.join("xdg-state"))
            .env("XDG_RUNTIME_DIR", dir)
            .env("TMPDIR", dir)
            .envs(self.env.iter().map(|(name, value)| (name, place(value))))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if self.is_nobody {
            std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY))
                .expect("hand the directory over; run this as root");
            command.uid(NOBODY).gid(NOBODY).current_dir("/");
        }
        command
    }

    fn socket_listeners(&self) -> usize {
        let stdio = self.listen.iter().filter(|listen| listen.starts_with("stdio")).count();
        self.listen.len().max(1) - stdio
    }
}

/// The parts of a running server that a restart replaces.
struct StartedServer {
    child: Child,
    urls: Vec<String>,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// `None` once it was joined.
    reader: Option<JoinHandle<()>>,
}

fn spawn(builder: &Builder, dir: &Path, mark: &str) -> StartedServer {
    let mut child = builder.command(dir, mark).spawn().expect("start exec-server");
    let mut pipe = child.stderr.take().expect("stderr is a pipe");
    let stderr = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&stderr);
    let reader = thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = pipe.read(&mut chunk) {
            sink.lock().expect("the reader does not panic").extend_from_slice(&chunk[..read]);
        }
    });
    let mut stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
    let mut urls = Vec::new();
    for _ in 0..builder.socket_listeners() {
        let mut line = String::new();
        let read = stdout.read_line(&mut line).expect("read the URL");
        if read == 0 {
            let status = child.wait().expect("wait for the server");
            reader.join().expect("the reader does not panic");
            let said = String::from_utf8_lossy(&stderr.lock().expect("the reader does not panic")).into_owned();
            panic!("exec-server ended at start ({status}): {said}");
        }
        urls.push(line.trim_end().to_owned());
    }
    StartedServer { child, urls, stderr, reader: Some(reader) }
}

impl TestServer {
    /// Starts a server with one loopback listener and a private state directory.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A started server and a client with a session, without announced capabilities.
    pub fn with_client() -> (Self, Client) {
        let server = Self::start();
        let client = server.client();
        (server, client)
    }

    /// Like [`with_client`](Self::with_client), with a process that the client has started.
    pub fn with_process(params: Value) -> (Self, Client) {
        let (server, mut client) = Self::with_client();
        client.start(params);
        (server, client)
    }

    /// A started server and a client that has not called `initialize`.
    pub fn with_connection() -> (Self, Client) {
        let server = Self::start();
        let client = server.connect();
        (server, client)
    }

    /// A started server, a client with a session, and the id of the session.
    pub fn with_session() -> (Self, Client, String) {
        let server = Self::start();
        let (client, session) = server.session();
        (server, client, session)
    }

    /// The same with the `ack`, `gap` and `concurrent` capabilities.
    pub fn with_modern_client() -> (Self, Client, String) {
        let server = Self::start();
        let (client, session) = server.modern_client();
        (server, client, session)
    }

    /// A builder with a private state directory and `--kill-on-exit`.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The first URL, token included.
    pub fn url(&self) -> &str {
        &self.urls()[0]
    }

    /// All URLs in the order of the listeners.
    pub fn urls(&self) -> &[String] {
        &self.started.urls
    }

    /// `IP:PORT` of the first WebSocket listener.
    pub fn address(&self) -> &str {
        address_of(self.url())
    }

    /// The token in the first URL.
    pub fn token(&self) -> &str {
        self.url().split_once("?token=").expect("the URL carries a token").1
    }

    /// The URL of the server with a new token of this name, made with these options. Waits until the server takes the token.
    pub fn url_of(&self, name: &str, options: &[&str]) -> String {
        let mut command = Command::new(binary());
        command.args(["token", "create", name]).args(options).arg("--state-dir").arg(self.state_dir());
        let made = command.output().expect("run exec-server token");
        assert!(made.status.success(), "{made:?}");
        let token = String::from_utf8(made.stdout).expect("a token is text");
        let url = format!("ws://{}/?token={}", self.address(), token.trim_end());
        wait_for("the new token to count", || Client::connect(&url).is_ok());
        url
    }

    /// The number of sessions that have a directory.
    pub fn sessions(&self) -> usize {
        std::fs::read_dir(self.state_dir().join("sessions")).map_or(0, Iterator::count)
    }

    /// A connected client that has not called `initialize`.
    pub fn connect(&self) -> Client {
        Client::connect(self.url()).expect("connect with the printed URL")
    }

    /// A connected client with a session, without announced capabilities.
    pub fn client(&self) -> Client {
        self.session().0
    }

    /// The same with the id of its session.
    pub fn session(&self) -> (Client, String) {
        let mut client = self.connect();
        let session = client.initialize();
        (client, session)
    }

    /// A client with the `ack`, `gap` and `concurrent` capabilities, and its session id.
    pub fn modern_client(&self) -> (Client, String) {
        let mut client = self.connect();
        let session = client.open_session(modern());
        (client, session)
    }

    /// A client that resumes a session, as soon as the server has noticed the disconnect.
    pub fn resume(&self, session: &str, params: Value) -> Client {
        let mut client = self.connect();
        let params = with(with(json!({"clientName": "test"}), params), json!({"resumeSessionId": session}));
        let result = client.initialize_with(params);
        assert_eq!(result["sessionId"], session);
        client
    }

    pub fn pid(&self) -> u32 {
        self.started.child.id()
    }

    /// The test's private directory; the state directory is `state` inside it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Gives other users access to the private directory, so that only the mode of the state directory itself keeps them out.
    pub fn open_dir(&self) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.dir.path(), mode).expect("open the directory");
    }

    /// The server's stderr so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.started.stderr.lock().expect("the reader does not panic")).into_owned()
    }

    /// The argument by which server, spawner and holders of this test are found.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    pub fn signal(&self, signal: Signal) {
        send_signal(self.pid(), signal);
    }

    /// Waits for the end of the server, with a deadline.
    pub fn wait(&mut self) -> ExitStatus {
        end_of(&mut self.started.child)
    }

    /// Kills the server with SIGKILL and waits for it; its holders stay alive.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Kills the server if it runs, and starts it again with the same state directory, arguments and port.
    pub fn restart(&mut self) {
        if self.started.child.try_wait().expect("wait for the server").is_none() {
            self.kill();
        }
        // From now on request the port that the kernel chose, so that the URL stays the same.
        for (listen, url) in self.builder.listen.iter_mut().zip(&self.started.urls) {
            if listen.ends_with(":0") {
                url.split("/?").next().expect("split gives at least one part").clone_into(listen);
            }
        }
        if self.builder.listen.is_empty() {
            self.builder.listen.push(format!("ws://{}", self.address()));
        }
        self.started = spawn(&self.builder, self.dir.path(), &self.mark);
    }

    /// Every live process that belongs to this server, itself included.
    pub fn processes(&self) -> BTreeSet<u32> {
        let mut all = marked(&self.mark);
        all.extend(descendants(&all));
        all
    }

    /// The processes of this server with this `comm`: `exec-spawner` or `exec-holder`.
    pub fn named(&self, name: &str) -> BTreeSet<u32> {
        let comm = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.processes().into_iter().filter(|pid| comm(pid).trim_end() == name).collect()
    }

    /// The holder of the only session with processes.
    pub fn holder(&self) -> u32 {
        let found = self.named("exec-holder");
        assert_eq!(found.len(), 1, "one session has a holder: {found:?}");
        found.into_iter().next().expect("there is one")
    }

    /// The server's own memory (`RssAnon`) in bytes.
    pub fn memory(&self) -> u64 {
        resident(self.pid(), "RssAnon")
    }

    /// The number of open fds of the server.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the server lives").count()
    }

    /// How many open fds of the server lead to the file or directory, or into it.
    pub fn descriptors_of(&self, path: &Path) -> usize {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the server lives");
        fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).filter(|target| target.starts_with(path)).count()
    }

    /// The working directory of the server.
    pub fn cwd(&self) -> PathBuf {
        std::fs::read_link(format!("/proc/{}/cwd", self.pid())).expect("the server lives")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let all = self.processes();
        let running = matches!(self.started.child.try_wait(), Ok(None));
        if running {
            self.signal(Signal::TERM);
        }
        if thread::panicking() {
            end_by_force(&all);
            self.started.child.wait().ok(); // Reap the child; the panic is reported elsewhere.
            remove_groups(&self.state_dir().join("sessions"));
            return;
        }
        if running {
            self.wait();
        }
        let may_leave = self.builder.keeps_holders || !running;
        if may_leave {
            end_by_force(&marked(&self.mark));
        }
        wait_gone("server, spawner, holders and children", &all);
        if let Some(reader) = self.started.reader.take() {
            reader.join().expect("the reader does not panic");
        }
        remove_groups(&self.state_dir().join("sessions"));
        assert!(may_leave || self.sessions() == 0, "session directories are left in {}", self.state_dir().display());
    }
}

/// Kills processes that this test started, each by its pid.
fn end_by_force(pids: &BTreeSet<u32>) {
    for pid in pids.iter().filter(|pid| processes::is_alive(**pid)) {
        signal(*pid, Signal::KILL);
    }
}
