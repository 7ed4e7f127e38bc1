//! The state directory of a real server: lock, token, location, what is left behind, and closed standard streams.

use std::{io::Read, os::unix::fs::PermissionsExt};

use crate::{
    prelude::*,
    wire::lines::{Lines, Wire},
};

#[test]
fn a_second_server_on_the_same_directory_is_refused() {
    let server = TestServer::start();
    let output = TestServer::builder().refusal(server.dir(), "second.test");
    let said = text(&output.stderr);
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
    client.start(start_params("p", &["sleep", "1000"]));
    let children = descendants(&marked(server.mark()));
    server.signal(Signal::TERM);
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
        let pid = pid_of(&client.start(start_params("p", &["sleep", "1000"])));
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
        assert_eq!(fs::exists(format!("/proc/{pid}/stat")).expect("look for it"), stay);
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
    send_signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().expect("wait for the server").code(), Some(0));
    assert!(!dir.path().join("x.sock").exists());
    wait_gone("everything of it", &marked("closed.test"));
}

#[test]
fn plain_stdio_ends_everything_at_end_of_file() {
    let dir = tempfile::tempdir().expect("make a directory");
    let builder = TestServer::builder().default_state_dir().listen("stdio");
    let mut lines = Lines::spawn(&mut builder.command(dir.path(), "stdio.test"), None);
    lines.initialize();
    assert!(lines.call("process/start", start_params("p", &["sleep", "1000"]))["result"].is_object());
    let all = descendants(&marked("stdio.test"));
    lines.end();
    wait_gone("the process of the session", &all);
    let mut said = String::new();
    lines.child.stderr.take().expect("stderr is a pipe").read_to_string(&mut said).expect("read stderr");
    let private = said.lines().find_map(|line| line.strip_prefix("state: ")).expect("the line");
    assert!(!PathBuf::from(private).exists());
}

/// A running `dial-stdio`.
fn dial(dir: &Path) -> Lines {
    Lines::spawn(Command::new(testkit::binary()).args(["dial-stdio", "--state-dir"]).arg(dir), None)
}

#[test]
fn dial_stdio_starts_a_server_and_its_end_only_detaches() {
    let base = tempfile::tempdir().expect("make a directory");
    let dir = base.path().join("state");
    let mut first = dial(&dir);
    let session = first.initialize();
    let pid = first.call("process/start", start_params("p", &["sleep", "1000"]))["result"]["pid"].take();
    let started = marked(&dir.display().to_string());
    first.end();

    let mut second = dial(&dir);
    let resumed = second.call("initialize", json!({"clientName": "x", "resumeSessionId": session}));
    assert_eq!(resumed["result"]["sessionId"], session);
    second.send(r#"{"method":"initialized"}"#);
    assert_eq!(second.call("process/list", json!({}))["result"]["processes"][0]["pid"], pid);
    second.call("session/end", json!({}));
    second.end();

    let server: u32 = fs::read_to_string(dir.join("lock")).expect("read the lock").trim().parse().expect("a pid");
    assert!(started.contains(&server), "the first call started it, the second found it");
    let raw = rustix::process::Pid::from_raw(server.cast_signed()).expect("a process id is not zero");
    assert_eq!(rustix::process::getsid(Some(raw)).expect("it lives"), raw, "a session of its own");
    send_signal(server, Signal::TERM);
    wait_gone("the server and its holders", &marked(&dir.display().to_string()));
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
    let said = text(&output.stderr);
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
            let said = text(&output.stderr);
            assert!(output.status.code() == Some(255) && said.contains("the token is too short"), "{said}");
            assert!(said.contains(&format!("has {} characters", short.len())), "{said}");
            assert!(short.len() == 1 || !said.contains(short), "{said}");
        }
    }
}

#[test]
fn a_token_file_that_is_a_fifo_is_refused_at_once_and_a_pipe_of_the_shell_is_read() {
    let dir = tempfile::tempdir().expect("make a directory");
    let fifo = fifo(dir.path(), "fifo");
    let builder = TestServer::builder().arg("--token-file").arg(&fifo);
    let output = builder.refusal(dir.path(), "fifo.test");
    let said = text(&output.stderr);
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
