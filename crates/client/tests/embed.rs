//! Tests `Local` with the `embed` hook in `main`. This is a separate program without a test harness, because the hook requires a single
//! thread. With an argument, it acts as the program under test: the parent checks what it leaves behind.

#![allow(clippy::disallowed_methods, reason = "the test starts itself again and waits with a deadline of its own")]
#![allow(clippy::print_stdout, reason = "a test without a harness reports by itself")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use exec_server_client::{
    Attach, ConnectionState, ErrorKind, Event, Process, Start,
    environment::{Choice, Environment, EnvironmentState},
    local::{Local, LocalConfig, embed},
    protocol::initialize::Ttl,
};
use tokio::{io::AsyncReadExt as _, runtime::Runtime};

use testkit::{is_alive, wait_pid_gone};

/// How the restarted program ends.
const KILLED: &str = "killed";
const ENDING: &str = "ending";
const DROPPING: &str = "dropping";

type Check = fn(&Runtime);

fn main() -> ExitCode {
    embed().expect("no thread exists yet");
    let runtime = Runtime::new().expect("a runtime");
    if let Some(how) = std::env::args().nth(1).filter(|arg| [KILLED, ENDING, DROPPING].contains(&arg.as_str())) {
        runtime.block_on(live(&how));
        return ExitCode::SUCCESS;
    }
    // The hook was called already, so calling it again does nothing, even with threads.
    embed().expect("the second call is no error");
    let checks: [(&str, Check); 9] = [
        ("streams_stay_apart_and_the_exit_is_told", streams_stay_apart),
        ("stdin_reaches_the_process_to_its_end", stdin_reaches_the_process),
        ("children_run_where_and_as_this_program_does", children_run_as_this_program),
        ("locals_beside_each_other_share_the_spawner", locals_beside_each_other),
        ("end_leaves_no_process_and_no_directory", end_leaves_nothing),
        ("drop_leaves_processes_to_their_time_to_live", drop_leaves_processes),
        ("a_program_that_ends_leaves_nothing", a_program_that_ends_leaves_nothing),
        ("a_killed_program_leaves_no_process", a_killed_program_leaves_no_process),
        ("a_state_dir_brings_a_session_back", a_state_dir_brings_a_session_back),
    ];
    let mut failures = 0;
    for (name, check) in checks {
        let is_ok = catch_unwind(AssertUnwindSafe(|| check(&runtime))).is_ok();
        println!("test {name} ... {}", if is_ok { "ok" } else { "FAILED" });
        failures += u8::from(!is_ok);
    }
    ExitCode::from(failures)
}

/// Sessions in the test's directory, with a short time-to-live.
fn config(dir: &Path) -> LocalConfig {
    LocalConfig { state_dir: Some(dir.join("state")), ttl: Some(Ttl::Ms(1000)), ..LocalConfig::default() }
}

async fn start() -> Local {
    Local::start(LocalConfig::default()).await.expect("a local server")
}

fn sh(script: &str) -> Start {
    Start::new(["sh", "-c", script])
}

/// All output of a process on stdout or its terminal.
async fn stdout_of(process: &Process) -> String {
    let (mut events, mut all) = (process.events_after(0), Vec::new());
    while let Some(event) = events.next().await {
        match event {
            Event::Output { bytes, stream, .. } if stream != exec_server_client::protocol::process::Stream::Stderr => {
                all.extend_from_slice(&bytes);
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    String::from_utf8(all).expect("text")
}

fn streams_stay_apart(runtime: &Runtime) {
    runtime.block_on(async {
        let local = start().await;
        let process = local.client().start(sh("echo out; echo err >&2; exit 3")).await.expect("started");
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let (mut out, mut err) = (process.stdout(), process.stderr());
        let (read_out, read_err) = tokio::join!(out.read_to_end(&mut stdout), err.read_to_end(&mut stderr));
        assert_eq!((read_out.expect("read"), read_err.expect("read")), (4, 4));
        assert_eq!((&stdout[..], &stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(process.wait().await.expect("an exit").code, 3);
        local.end().await;
    });
}

fn stdin_reaches_the_process(runtime: &Runtime) {
    runtime.block_on(async {
        let local = start().await;
        let process = local.client().start(Start::new(["wc", "-c"]).pipe_stdin(true)).await.expect("started");
        for _ in 0..64 {
            process.write(vec![b'x'; 1 << 15]).await.expect("written");
        }
        process.close_stdin().await.expect("closed");
        assert_eq!(stdout_of(&process).await.trim(), (64 << 15).to_string());
        local.end().await;
    });
}

fn children_run_as_this_program(runtime: &Runtime) {
    runtime.block_on(async {
        let environment = Environment::new(Choice::Local, None).expect("a place");
        assert!(!environment.is_remote());
        assert!(matches!(environment.status(), EnvironmentState::Pending));
        let place = environment.backend().await.expect("a place");
        assert!(matches!(environment.status(), EnvironmentState::Ready));
        assert!(!place.is_remote());
        let process = place.client().start(Start::new(["pwd"])).await.expect("started");
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(Path::new(stdout_of(&process).await.trim_end()), here);
        let again = environment.backend().await.expect("the same place");
        assert_eq!(place.client().session_id(), again.client().session_id());
        place.client().end_session().await.expect("ended");
        // The next use replaces a lost session with a new one.
        assert!(matches!(environment.status(), EnvironmentState::Disconnected { .. }));
        let fresh = environment.backend().await.expect("another place");
        assert_ne!(fresh.client().session_id(), place.client().session_id());
        fresh.client().end_session().await.expect("ended");
    });
}

fn locals_beside_each_other(runtime: &Runtime) {
    runtime.block_on(async {
        let (one, two) = tokio::join!(start(), start());
        let mut parents = Vec::new();
        for local in [&one, &two] {
            let process =
                local.client().start(sh("sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status")).await.expect("started");
            parents.push(stdout_of(&process).await.trim().to_owned());
        }
        // The holders of both are children of the same spawner.
        assert!(!parents[0].is_empty());
        assert_eq!(parents[0], parents[1]);
        one.end().await;
        let process = two.client().start(sh("echo still here")).await.expect("started");
        assert_eq!(stdout_of(&process).await, "still here\n");
        two.end().await;
    });
}

fn end_leaves_nothing(runtime: &Runtime) {
    let dir = tempfile::tempdir().expect("a directory");
    runtime.block_on(async {
        let local = Local::start(config(dir.path())).await.expect("a local server");
        let client = local.client().clone();
        let process = client.start(sh("sleep 1000 & exec sleep 1000")).await.expect("started");
        let pid = process.pid().expect("a process id");
        local.end().await;
        assert!(!is_alive(pid));
        let left = std::fs::read_dir(dir.path().join("state/sessions")).expect("the directory").count();
        assert_eq!(left, 0, "sessions are left");
        // A remaining client gets an error at once.
        let error = client.start(sh("true")).await.expect_err("it has ended");
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
        assert!(matches!(client.state(), ConnectionState::Lost { .. }));
    });
}

fn drop_leaves_processes(runtime: &Runtime) {
    let dir = tempfile::tempdir().expect("a directory");
    let pid = runtime.block_on(async {
        let local = Local::start(config(dir.path())).await.expect("a local server");
        let process = local.client().start(sh("exec sleep 1000")).await.expect("started");
        drop(local);
        process.pid().expect("a process id")
    });
    wait_pid_gone(pid);
}

fn a_program_that_ends_leaves_nothing(_: &Runtime) {
    for how in [ENDING, DROPPING] {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut child, pid) = start_again(how, dir.path());
        assert!(child.wait().expect("reaped").success(), "{how}");
        wait_pid_gone(pid);
        let left = || std::fs::read_dir(dir.path()).expect("the directory").count();
        assert_eq!(left(), 0, "{how}: private directories are left");
    }
}

fn a_killed_program_leaves_no_process(_: &Runtime) {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut child, pid) = start_again(KILLED, dir.path());
    assert!(is_alive(pid));
    child.kill().expect("killed");
    child.wait().expect("reaped");
    wait_pid_gone(pid);
}

/// Starts this program again, and returns the pid of the process that it started.
fn start_again(how: &str, dir: &Path) -> (Child, u32) {
    let us = std::env::current_exe().expect("our own path");
    let mut command = Command::new(us);
    command.arg(how).env("XDG_RUNTIME_DIR", dir).stdout(Stdio::piped());
    let mut child = command.spawn().expect("started again");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    (child, line.trim().parse().expect("a process id"))
}

/// Runs the restarted program.
async fn live(how: &str) {
    let local = start().await;
    let process = local.client().start(sh("exec sleep 1000")).await.expect("started");
    writeln!(std::io::stdout(), "{}", process.pid().expect("a process id")).expect("said");
    match how {
        ENDING => local.end().await,
        DROPPING => drop(local),
        _ => std::future::pending().await,
    }
}

fn a_state_dir_brings_a_session_back(runtime: &Runtime) {
    let dir = tempfile::tempdir().expect("a directory");
    runtime.block_on(async {
        let patient = || LocalConfig { ttl: Some(Ttl::Ms(60_000)), ..config(dir.path()) };
        let local = Local::start(patient()).await.expect("a local server");
        let session_id = local.client().session_id().expect("a session");
        let process = local.client().start(sh("echo one; read x; echo two").id("p").pipe_stdin(true)).await;
        let id = process.expect("started").id().clone();
        drop(local);
        let resume = || LocalConfig { resume: Some(session_id.clone()), ..patient() };
        // The lock of the first server is released with its last task, so retry.
        let end = Instant::now() + Duration::from_secs(20);
        let local = loop {
            match Local::start(resume()).await {
                Ok(local) => break local,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            tokio::task::yield_now().await;
        };
        let process = local.client().attach(&id, Attach::default()).await.expect("it is still there");
        process.write(&b"\n"[..]).await.expect("written");
        assert_eq!(stdout_of(&process).await, "one\ntwo\n");
        local.end().await;
    });
}
