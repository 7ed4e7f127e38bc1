//! The state directory of a real server: lock, token, location, what is left behind, and closed standard streams.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::json;

use testkit::{Client, TestServer, refused, wait_for, wait_gone};

#[test]
fn a_second_server_on_the_same_directory_is_refused() {
    let server = TestServer::start();
    let output = TestServer::builder().refusal(server.dir(), "second.test");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(255), 0));
    let dir = server.state_dir().display().to_string();
    assert!(said.contains(&dir) && said.contains(&format!("pid {}", server.pid())), "{said}");
    server.client();
}

#[test]
fn a_server_started_again_prints_the_same_url() {
    let mut server = TestServer::start();
    let url = server.url().to_owned();
    server.restart();
    assert_eq!(server.url(), url);
    server.client();
    let token = server.state_dir().join("token");
    let mode = |path: PathBuf| fs::metadata(path).expect("it exists").permissions().mode() & 0o7777;
    assert_eq!((mode(token.clone()), mode(server.state_dir())), (0o600, 0o700));
    assert_eq!(fs::read_to_string(token).expect("read the token").trim(), server.token());
}

#[test]
fn each_socket_listener_has_its_line_in_order() {
    let server = TestServer::builder()
        .listen("ws://127.0.0.1:0")
        .listen("unix://{dir}/a.sock")
        .listen("ws://127.0.0.1:0")
        .listen("unix://{dir}/b.sock")
        .start();
    let starts: Vec<&str> = server.urls().iter().map(|url| &url[..7]).collect();
    assert_eq!(starts, ["ws://12", "unix://", "ws://12", "unix://"]);
    for url in server.urls() {
        Client::connect(url).expect("connect").initialize();
    }
}

#[test]
fn a_fixed_address_has_its_own_directory_and_a_free_port_a_private_one() {
    let port = TcpListener::bind("127.0.0.1:0").expect("find a port").local_addr().expect("an address").port();
    let listen = format!("ws://127.0.0.1:{port}");
    let server = TestServer::builder().default_state_dir().listen(&listen).start();
    let kept = server.dir().join("xdg-state/exec-server").join(format!("ws-127.0.0.1-{port}"));
    assert!(kept.join("lock").exists());
    let line = format!("state: {}\n", kept.display());
    wait_for("the line", || server.stderr().contains(&line));

    let mut server = TestServer::builder().default_state_dir().keep_holders().start();
    wait_for("the line", || server.stderr().contains("state: "));
    let said = server.stderr();
    let line = said.lines().find_map(|line| line.strip_prefix("state: ")).expect("the line");
    let private = PathBuf::from(line);
    assert!(private.starts_with(server.dir()) && private.join("lock").exists());
    let mut client = server.client();
    client.start(testkit::start_params("p", &["sleep", "1000"]));
    let children = testkit::descendants(&testkit::marked(server.mark()));
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(!private.exists(), "a private directory goes with its server");
    wait_gone("its processes, as with --kill-on-exit", &children);
}

#[test]
fn processes_stay_without_kill_on_exit_and_go_with_it() {
    for stay in [true, false] {
        let builder = TestServer::builder();
        let mut server = if stay { builder.keep_holders().start() } else { builder.start() };
        let mut client = server.client();
        let pid = client.start(testkit::start_params("p", &["sleep", "1000"]))["pid"]
            .as_u64()
            .and_then(|pid| u32::try_from(pid).ok())
            .expect("a pid");
        server.signal(rustix::process::Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
        let is_alive = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok();
        assert_eq!(is_alive, stay);
    }
}

#[test]
fn closed_standard_streams_never_end_a_server() {
    let dir = tempfile::tempdir().expect("make a directory");
    let builder = TestServer::builder().listen("unix://{dir}/x.sock").arg("--log").arg("trace");
    let mut child = builder.command(dir.path(), "closed.test").spawn().expect("start exec-server");
    // Both pipes are closed before the server prints anything.
    drop((child.stdout.take(), child.stderr.take()));
    let url = format!("unix://{}/x.sock", dir.path().display());
    wait_for("the server", || Client::connect(&url).is_ok());
    let mut client = Client::connect(&url).expect("connect");
    client.initialize();
    assert_eq!(client.run("p", &["echo", "hi"]).stdout, b"hi\n");
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).expect("a process id is not zero");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal the server");
    assert_eq!(child.wait().expect("wait for the server").code(), Some(0));
    assert!(!dir.path().join("x.sock").exists());
    wait_gone("everything of it", &testkit::marked("closed.test"));
}

#[test]
fn plain_stdio_ends_everything_at_end_of_file() {
    let dir = tempfile::tempdir().expect("make a directory");
    let builder = TestServer::builder().default_state_dir().listen("stdio");
    let mut command = builder.command(dir.path(), "stdio.test");
    let mut child = command.stdin(Stdio::piped()).spawn().expect("start exec-server");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    let mut stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
    let mut next = || {
        let mut line = String::new();
        stdout.read_line(&mut line).expect("read a line");
        serde_json::from_str::<serde_json::Value>(&line).expect("a message")
    };
    writeln!(stdin, "{}", json!({"id": 1, "method": "initialize", "params": {"clientName": "x"}})).expect("write");
    assert_eq!(next()["id"], 1);
    writeln!(stdin, "{}", json!({"method": "initialized"})).expect("write");
    let start = json!({"id": 2, "method": "process/start", "params": testkit::start_params("p", &["sleep", "1000"])});
    writeln!(stdin, "{start}").expect("write");
    assert_eq!(next()["id"], 2);
    let all = testkit::descendants(&testkit::marked("stdio.test"));
    drop(stdin);
    assert_eq!(child.wait().expect("wait for the server").code(), Some(0));
    wait_gone("the process of the session", &all);
    let mut said = String::new();
    child.stderr.take().expect("stderr is a pipe").read_to_string(&mut said).expect("read stderr");
    let private = said.lines().find_map(|line| line.strip_prefix("state: ")).expect("the line");
    assert!(!PathBuf::from(private).exists());
}

/// A running `dial-stdio`.
struct Dial {
    child: std::process::Child,
    stdin: Option<std::process::ChildStdin>,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Dial {
    fn start(dir: &std::path::Path) -> Self {
        let mut child = Command::new(testkit::binary())
            .args(["dial-stdio", "--state-dir"])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start dial-stdio");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Self { child, stdin, stdout }
    }

    fn send(&mut self, message: &serde_json::Value) {
        writeln!(self.stdin.as_mut().expect("not ended"), "{message}").expect("write");
    }

    fn answer(&mut self, id: i64) -> serde_json::Value {
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).expect("read a line") > 0, "ended");
            let message: serde_json::Value = serde_json::from_str(&line).expect("a message");
            if message["id"] == id {
                return message["result"].clone();
            }
        }
    }

    fn end(mut self) {
        drop(self.stdin.take());
        assert_eq!(self.child.wait().expect("wait for dial-stdio").code(), Some(0));
    }
}

#[test]
fn dial_stdio_starts_a_server_and_its_end_only_detaches() {
    let base = tempfile::tempdir().expect("make a directory");
    let dir = base.path().join("state");
    let mut first = Dial::start(&dir);
    let hello = json!({"id": 1, "method": "initialize", "params": {"clientName": "x"}});
    first.send(&hello);
    let session = first.answer(1)["sessionId"].clone();
    first.send(&json!({"method": "initialized"}));
    first.send(&json!({"id": 2, "method": "process/start", "params": testkit::start_params("p", &["sleep", "1000"])}));
    let pid = first.answer(2)["pid"].clone();
    let started = testkit::marked(&dir.display().to_string());
    first.end();

    let mut second = Dial::start(&dir);
    second.send(&json!({"id": 1, "method": "initialize", "params": {"clientName": "x", "resumeSessionId": session}}));
    assert_eq!(second.answer(1)["sessionId"], session);
    second.send(&json!({"method": "initialized"}));
    second.send(&json!({"id": 2, "method": "process/list", "params": {}}));
    assert_eq!(second.answer(2)["processes"][0]["pid"], pid);
    second.send(&json!({"id": 3, "method": "session/end", "params": {}}));
    second.answer(3);
    second.end();

    let server: u32 = fs::read_to_string(dir.join("lock")).expect("read the lock").trim().parse().expect("a pid");
    assert!(started.contains(&server), "the first call started it, the second found it");
    let raw = rustix::process::Pid::from_raw(server.cast_signed()).expect("a process id is not zero");
    assert_eq!(rustix::process::getsid(Some(raw)).expect("it lives"), raw, "a session of its own");
    rustix::process::kill_process(raw, rustix::process::Signal::TERM).expect("signal the server");
    wait_gone("the server and its holders", &testkit::marked(&dir.display().to_string()));
}

#[test]
fn dial_stdio_says_why_when_no_server_can_be_started() {
    let dir = tempfile::tempdir().expect("make a directory");
    fs::write(dir.path().join("file"), "x").expect("write");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("open the directory");
    let output = Command::new(testkit::binary())
        .args(["dial-stdio", "--state-dir"])
        .arg(dir.path())
        .stdin(Stdio::null())
        .output()
        .expect("run dial-stdio");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(255) && said.contains("exec-server serve --state-dir"), "{said}");
}

#[test]
fn a_token_below_128_bits_is_refused_wherever_it_comes_from() {
    let dir = tempfile::tempdir().expect("make a directory");
    let file = dir.path().join("short");
    for short in ["x", "0123456789abcdef", "a-token-of-21-letters"] {
        fs::write(&file, short).expect("write a token");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("close it");
        let by_file = TestServer::builder().arg("--token-file").arg(&file.display().to_string());
        let by_variable = TestServer::builder().env("EXEC_SERVER_TOKEN", short);
        let by_descriptor = TestServer::builder().arg("--token-fd").arg("0");
        for (builder, stdin) in [(by_file, false), (by_variable, false), (by_descriptor, true)] {
            let mut command = builder.command(dir.path(), "short-token.test");
            if stdin {
                command.stdin(fs::File::open(&file).expect("open the token"));
            }
            let output = refused(command.spawn().expect("run exec-server"));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(255) && said.contains("the token is too short"), "{said}");
            assert!(said.contains(&format!("has {} characters", short.len())), "{said}");
            assert!(short.len() == 1 || !said.contains(short), "{said}");
        }
    }
}

#[test]
fn a_token_file_that_is_a_fifo_is_refused_at_once_and_a_pipe_of_the_shell_is_read() {
    let dir = tempfile::tempdir().expect("make a directory");
    let fifo = dir.path().join("fifo");
    let made = Command::new("mkfifo").args(["-m", "600"]).arg(&fifo).status().expect("run mkfifo");
    assert!(made.success());
    let builder = TestServer::builder().arg("--token-file").arg(&fifo.display().to_string());
    let output = builder.refusal(dir.path(), "fifo.test");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(255) && said.contains("is not a regular file"), "{said}");
    // The client reads its token file in the same way.
    let mut run = Command::new(testkit::binary());
    run.args(["run", "--connect", "ws://127.0.0.1:1", "--token-file"]).arg(&fifo).args(["--", "true"]);
    let output = refused(run.env("HOME", dir.path()).stderr(Stdio::piped()).spawn().expect("run exec-server"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a regular file"), "{output:?}");
    let token = "a-token-that-is-long-enough";
    let server = TestServer::builder().arg("--token-file").arg("/dev/fd/9");
    let server = server.after(&format!("exec 9<<END\n{token}\nEND\n:")).start();
    assert_eq!(server.token(), token);
    server.client();
}
