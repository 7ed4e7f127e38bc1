//! `Local` in a program that already has threads, as a test program does: the spawner is the real `exec-server`, started by its path. Also
//! environments that connect to a real server.

use crate::prelude::*;
use exec_server_client::{
    ErrorKind, Event, Process, Start, Token,
    environment::{Environment, EnvironmentState, Environments},
    local::{Local, LocalConfig},
};

/// A private path for the program, so that its processes are distinct from those of other tests.
struct Program {
    dir: TempDir,
}

impl Program {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("exec-server-test-").tempdir().expect("make a private directory");
        std::os::unix::fs::symlink(binary(), dir.path().join("exec-server")).expect("name the program");
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("exec-server")
    }

    async fn local(&self) -> Local {
        let config = LocalConfig {
            program: Some(self.path()),
            state_dir: Some(self.dir.path().join("state")),
            ..LocalConfig::default()
        };
        Local::start(config).await.expect("a local server")
    }

    /// The spawner, the holders and their descendants.
    fn processes(&self) -> BTreeSet<u32> {
        let mut all = marked(&self.path().display().to_string());
        all.extend(descendants(&all));
        all
    }
}

async fn stdout_of(process: &Process) -> String {
    let (mut events, mut all) = (process.events(), Vec::new());
    while let Some(event) = events.next().await {
        match event {
            Event::Output { bytes, .. } => all.extend_from_slice(&bytes),
            Event::Failed(error) => panic!("{error}"),
            Event::Gap { .. } | Event::Exited { .. } | Event::Closed { .. } => {}
        }
    }
    String::from_utf8(all).expect("text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_threaded_program_runs_processes_and_leaves_none() {
    let program = Program::new();
    let local = program.local().await;
    let place = local.client();
    let process = place.start(Start::new(["sh", "-c", "cat; exit 3"]).pipe_stdin(true)).await.expect("started");
    process.write("some words").await.expect("written");
    process.close_stdin().await.expect("closed");
    assert_eq!(stdout_of(&process).await, "some words");
    assert_eq!(process.wait().await.expect("an exit").code, 3);
    let stays = place.start(Start::new(["sh", "-c", "sleep 1000 & exec sleep 1000"])).await.expect("started");
    assert!(stays.exit().is_none());
    let all = program.processes();
    assert!(all.contains(&stays.pid().expect("a process id")), "{all:?}");
    local.end().await;
    wait_gone("spawner, holder and children", &all);
    let left = std::fs::read_dir(program.dir.path().join("state/sessions")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "session directories are left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_show_nothing_of_the_program() {
    let program = Program::new();
    let local = program.local().await;
    let process = local.client().start(Start::new(["sh", "-c", "echo $PPID; exec sleep 1000"])).await.expect("started");
    let mut events = process.events();
    let Some(Event::Output { bytes, .. }) = events.next().await else { panic!("no output") };
    let holder: u32 = String::from_utf8_lossy(&bytes).trim().parse().expect("a process id");
    let processes = marked(&program.path().display().to_string());
    assert!(processes.contains(&holder) && processes.len() == 2, "{processes:?}");
    for pid in &processes {
        // Only root can read these files. A long process title overwrites the beginning of the environment block, so `environ` shows the
        // end of the title.
        let file = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let shown = |name: &str| text(&file(name)).trim_end_matches('\0').to_owned();
        let (title, environ) = (shown("cmdline"), shown("environ"));
        assert!(title.starts_with("exec-server ") && title.ends_with(&environ), "{title:?} {environ:?}");
    }
    let all = program.processes();
    local.end().await;
    wait_gone("spawner, holder and child", &all);
}

#[tokio::test]
async fn a_missing_program_is_named_by_its_path() {
    let config = LocalConfig { program: Some("/no/such/exec-server".into()), ..LocalConfig::default() };
    let error = Local::start(config).await.expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Spawn);
    assert!(error.to_string().contains("/no/such/exec-server"), "{error}");
}

#[test]
fn the_argument_of_a_spawner_is_not_for_people() {
    let output = Command::new(binary()).arg("--spawner").stdin(Stdio::null()).output().expect("run exec-server");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(255), 0));
    let said = text(&output.stderr);
    assert!(said.contains("standard input is not a spawner's socket"), "{said}");
}

const TOKEN: &str = "the-token-of-this-test";

fn environment(url: &str) -> Environment {
    let text = format!("default = 'far'\n[[environments]]\nid = 'far'\nurl = '{url}'");
    let file = Environments::parse(&text, Path::new("environments.toml")).expect("a good file");
    let token = Token::new(TOKEN).expect("a good token");
    Environment::new(file.pick(None).expect("the default"), Some(token)).expect("not none")
}

async fn says(environment: &Environment, word: &str) {
    let place = environment.backend().await.expect("a place");
    let process = place.client().start(Start::new(["echo", word])).await.expect("started");
    assert_eq!(stdout_of(&process).await, format!("{word}\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retryable_startup_failure_does_not_burn_environment() {
    // The port is free again at once. It is unlikely that another process takes it in between.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let url = format!("ws://{address}");
    let environment = environment(&url);
    let error = environment.backend().await.map(drop).expect_err("no server is there yet");
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
    assert!(matches!(environment.status(), EnvironmentState::Disconnected { .. }));
    let server = TestServer::builder().listen(&url).env("EXEC_SERVER_TOKEN", TOKEN).start();
    says(&environment, "hello").await;
    assert!(matches!(environment.status(), EnvironmentState::Ready));
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_session_is_replaced_at_the_next_use() {
    let server = TestServer::builder().env("EXEC_SERVER_TOKEN", TOKEN).start();
    let environment = environment(&format!("ws://{}", server.address()));
    assert_eq!((environment.id(), environment.is_remote()), ("far", true));
    let (one, two) = tokio::join!(environment.backend(), environment.backend());
    let (one, two) = (one.expect("a place"), two.expect("a place"));
    assert_eq!(one.client().session_id(), two.client().session_id(), "all waiting callers share one connection");
    one.client().end_session().await.expect("ended");
    wait_for("the loss to be seen", || matches!(environment.status(), EnvironmentState::Disconnected { .. }));
    says(&environment, "again").await;
    let three = environment.backend().await.expect("a place");
    assert_ne!(three.client().session_id(), one.client().session_id());
}
