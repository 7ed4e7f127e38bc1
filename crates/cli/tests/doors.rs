//! The doors of a real server: who gets in, and what is said to the others (promises S1 to S8).
#![allow(clippy::disallowed_methods, reason = "a test starts the real program and waits on the real clock")]

mod common;

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    thread,
};

use common::{Client, TestServer, http, wait_for};
use serde_json::json;

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn upgrade(target: &str, host: &str, more: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}{more}\r\n")
}

#[test]
fn a_token_from_the_environment_reaches_no_process_and_no_log() {
    let secret = "tok-3f1d2c7b9a8e4d6f";
    let server = TestServer::builder()
        .env("EXEC_SERVER_TOKEN", secret)
        .env("exec_server_token", secret)
        .arg("--log")
        .arg("trace")
        .start();
    assert_eq!(server.token(), secret);
    assert!(!server.state_dir().join("token").exists());
    let mut client = server.client();
    let policy = json!({"inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": []});
    for n in 0..20 {
        let mut params = common::start_params(&format!("p{n}"), &["sh", "-c", "env; sleep 1000"]);
        params["envPolicy"] = policy.clone();
        client.ok("process/start", params);
    }
    // Some that fail, so that errors are looked at as well.
    http(server.address(), &upgrade(&format!("/?token={secret}x"), server.address(), ""));
    http(server.address(), &upgrade(&format!("/?token={secret}"), "evil.example", ""));
    let all = server.processes();
    assert!(all.len() > 20, "{all:?}");
    for pid in &all {
        for file in ["environ", "cmdline"] {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).to_lowercase();
            assert!(!text.contains(secret), "{file} of {pid}");
        }
    }
    for n in 0..20 {
        let id = format!("p{n}");
        let read = client.ok("process/read", json!({"processId": id, "afterSeq": 0, "waitMs": 5000}));
        assert!(!read.to_string().is_empty());
        let text = common::decode_base64(read["chunks"][0]["chunk"].as_str().expect("a chunk"));
        let text = String::from_utf8_lossy(&text).to_lowercase();
        assert!(!text.contains(secret) && !text.contains("exec_server_token"), "{text}");
    }
    assert!(!server.stderr().contains(secret), "{}", server.stderr());
}

#[test]
fn the_generated_token_is_in_no_log_and_no_answer() {
    let server = TestServer::builder().arg("--log").arg("trace").start();
    let mut client = server.client();
    client.run("p", &["true"]);
    let bad = http(server.address(), &upgrade(&format!("/other?token={}", server.token()), server.address(), ""));
    assert_eq!(bad.status, 404);
    assert!(!format!("{bad:?}").contains(server.token()));
    assert!(!server.stderr().contains(server.token()));
}

#[test]
fn a_token_file_must_be_closed_to_others() {
    let dir = tempfile::tempdir().expect("make a directory");
    let path = dir.path().join("token");
    fs::write(&path, "from-a-file\n").expect("write the token");
    let file = path.display().to_string();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("open the file");
    let builder = TestServer::builder().arg("--token-file").arg(&file);
    let output = builder.command(dir.path(), "x.test").output().expect("run exec-server");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(255) && said.contains("0644") && !said.contains("from-a-file"), "{said}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("close the file");
    let server = TestServer::builder().arg("--token-file").arg(&file).env("EXEC_SERVER_TOKEN", "other").start();
    assert_eq!(server.token(), "from-a-file");
    server.client();
}

#[test]
fn a_lack_of_descriptors_does_not_end_the_server() {
    let server = TestServer::builder().start();
    let mut client = server.client();
    // Lowered under what it has open, so that the next accept fails.
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit { current: Some(12), maximum: hard };
    let pid = rustix::process::Pid::from_raw(server.pid().cast_signed());
    let before = rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).expect("lower the limit");
    let starved: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(server.address()).expect("connect")).collect();
    assert_eq!(client.ok("environment/status", json!({}))["status"], "ready");
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, before).expect("raise the limit");
    drop(starved);
    wait_for("health again", || http(server.address(), "GET /healthz HTTP/1.0\r\n\r\n").status == 200);
    assert_eq!(client.run("p", &["echo", "hi"]).stdout, b"hi\n");
}

#[test]
fn a_drained_server_says_goodbye_and_ends_with_0() {
    let mut server = TestServer::start();
    let mut client = server.client();
    server.signal(rustix::process::Signal::TERM);
    let (code, _reason) = client.wait_closed().expect("a close frame");
    assert_eq!(code, 1001);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn both_old_ways_to_start_a_server_work() {
    let dir = tempfile::tempdir().expect("make a directory");
    for (n, words) in [&["--listen"][..], &["exec-server", "--listen"]].iter().enumerate() {
        let mut child = Command::new(common::binary())
            .args(*words)
            .args(["ws://127.0.0.1:0", "--kill-on-exit", "--state-dir"])
            .arg(dir.path().join(n.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start exec-server");
        let mut stdout = std::io::BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let mut url = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut url).expect("read the URL");
        Client::connect(url.trim_end()).expect("connect").initialize();
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).expect("a process id is not zero");
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signal the server");
        assert_eq!(child.wait().expect("wait for the server").code(), Some(0));
    }
}

#[test]
fn a_hundred_clients_at_once_are_all_let_in() {
    let server = TestServer::start();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    server.client();
                }
            });
        }
    });
}
