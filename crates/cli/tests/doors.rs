//! The doors of a real server: who gets in, and what is said to the others (promises S1 to S8).
#![allow(clippy::disallowed_methods, reason = "a test starts the real program and waits on the real clock")]

mod common;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    thread,
};

use common::{Builder, Client, TestServer, http, http_unix, wait_for};
use serde_json::json;

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn upgrade(target: &str, host: &str, more: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}{more}\r\n")
}

#[test]
fn the_token_opens_by_url_and_by_header() {
    let server = TestServer::start();
    Client::connect(server.url()).expect("by URL").initialize();
    let bearer = format!("Bearer {}", server.token());
    let plain = format!("ws://{}/", server.address());
    Client::connect_with(&plain, &[("Authorization", &bearer)]).expect("by header").initialize();
    assert!(Client::connect(&plain).is_err());
}

#[test]
fn a_page_is_forbidden_whatever_it_says() {
    let server = TestServer::start();
    let (host, token) = (server.address(), server.token());
    let port = host.rsplit(':').next().expect("an address has a port");
    let target = format!("/?token={token}");
    for origin in [
        "null".to_owned(),
        String::new(),
        format!("http://{host}"),
        format!("https://{host}"),
        format!("http://localhost:{port}"),
        "http://localhost".to_owned(),
        "http://localhost:1".to_owned(),
        "http://127.0.0.1".to_owned(),
        format!("http://[::1]:{port}"),
        format!("http://{host}.evil.example"),
        format!("http://{host}@evil.example"),
        format!("http://evil.example/{host}"),
        format!("http://localhost.evil.example:{port}"),
        format!("http://evillocalhost:{port}"),
        "https://evil.example".to_owned(),
        "file://".to_owned(),
        "data:text/html,x".to_owned(),
        "chrome-extension://abc".to_owned(),
        "moz-extension://abc".to_owned(),
        "HTTP://LOCALHOST".to_owned(),
    ] {
        let reply = http(host, &upgrade(&target, host, &format!("Origin: {origin}\r\n")));
        assert_eq!((reply.status, reply.body.as_str()), (403, ""), "{origin}");
    }
    let reply = http(host, &upgrade(&target, host, "Sec-Fetch-Site: cross-site\r\n"));
    assert_eq!(reply.status, 403);
    assert_eq!(http(host, &upgrade(&target, host, "")).status, 101);
}

#[test]
fn a_rebound_name_is_forbidden_unless_it_is_allowed() {
    let server = TestServer::builder().arg("--allow-host").arg("box.example").start();
    let (host, target) = (server.address(), format!("/?token={}", server.token()));
    let port = host.rsplit(':').next().expect("an address has a port");
    for (name, status) in [
        (host.to_owned(), 101),
        (format!("localhost:{port}"), 101),
        (format!("[::1]:{port}"), 101),
        ("box.example".to_owned(), 101),
        ("box.example:1234".to_owned(), 101),
        (format!("evil.example:{port}"), 403),
        ("evil.example".to_owned(), 403),
        ("localhost".to_owned(), 403),
        ("localhost:1".to_owned(), 403),
        (String::new(), 403),
    ] {
        assert_eq!(http(host, &upgrade(&target, &name, "")).status, status, "{name}");
        let elsewhere = http(host, &format!("GET /x HTTP/1.1\r\nHost: {name}\r\n\r\n")).status;
        assert_eq!(elsewhere, if status == 101 { 401 } else { 403 }, "{name}");
    }
}

#[test]
fn no_listener_beyond_loopback_without_token_and_word() {
    let dir = tempfile::tempdir().expect("make a directory");
    let refused = |builder: Builder| {
        let output = builder.command(dir.path(), "refused.test").output().expect("run exec-server");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(255), 0));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for address in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        let listen = format!("ws://{address}");
        let said = refused(TestServer::builder().listen(&listen));
        assert!(said.contains("--insecure-plaintext"), "{said}");
        let said = refused(TestServer::builder().listen(&listen).arg("--auth").arg("none"));
        assert!(said.contains("--auth none"), "{said}");
        let none = TestServer::builder().listen(&listen).arg("--auth").arg("none").arg("--insecure-plaintext");
        assert!(refused(none).contains("--auth none"));
    }
    for (listen, named) in [("ws://localhost:0", "host names"), ("tcp://1", "unix://")] {
        let output =
            TestServer::builder().listen(listen).command(dir.path(), "x.test").output().expect("run exec-server");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(named), "{listen}: {said}");
    }
    let open = TestServer::builder().listen("ws://0.0.0.0:0").arg("--insecure-plaintext").start();
    let port = open.address().rsplit(':').next().expect("an address has a port").to_owned();
    let url = format!("ws://127.0.0.1:{port}/?token={}", open.token());
    Client::connect(&url).expect("with the token").initialize();
    assert!(Client::connect(&format!("ws://127.0.0.1:{port}/")).is_err());
}

#[test]
fn auth_none_is_open_on_loopback_and_says_so() {
    let server = TestServer::builder().arg("--auth").arg("none").start();
    assert!(!server.url().contains("token"), "{}", server.url());
    server.client();
    wait_for("the warning", || server.stderr().contains("--auth none"));
    let host = server.address();
    assert_eq!(http(host, &upgrade("/", host, "Origin: http://localhost\r\n")).status, 403);
    assert_eq!(http(host, &upgrade("/", "evil.example", "")).status, 403);
}

#[test]
fn a_unix_socket_is_closed_to_others_and_needs_no_token() {
    let server = TestServer::builder().listen("unix://{dir}/run/x.sock").start();
    let path = server.dir().join("run/x.sock");
    let mode = |path| fs::metadata(path).expect("it exists").permissions().mode() & 0o7777;
    assert_eq!((mode(path.clone()), mode(server.dir().join("run"))), (0o600, 0o700));
    assert_eq!(server.url(), format!("unix://{}", path.display()));
    server.client();
    assert_eq!(http_unix(&path, &upgrade("/", "anything", "")).status, 101);
    assert_eq!(http_unix(&path, &upgrade("/", "anything", "Origin: null\r\n")).status, 403);
    assert_eq!(http_unix(&path, "GET /healthz HTTP/1.0\r\n\r\n").body, "ok");
}

#[test]
fn another_user_is_refused_on_a_unix_socket_even_where_the_mode_would_let_it() {
    if !rustix::process::geteuid().is_root() {
        // Only root can become somebody else; the mode 0600 is tested above for everyone.
        return;
    }
    let server = TestServer::builder().listen("unix://{dir}/x.sock").start();
    let path = server.dir().join("x.sock");
    let as_nobody = || {
        // A page of perl is on every Debian and needs no module of ours; what it prints is the first line of the answer.
        let script = "use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0); \
            connect($s, sockaddr_un($ARGV[0])) or do { print 'denied'; exit }; \
            syswrite($s, \"GET /healthz HTTP/1.0\\r\\n\\r\\n\"); my $line = <$s>; print $line";
        let output = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "perl", "-e", script])
            .arg(&path)
            .output()
            .expect("run setpriv");
        String::from_utf8_lossy(&output.stdout).trim().to_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    assert_eq!(as_nobody(), "denied");
    fs::set_permissions(server.dir(), fs::Permissions::from_mode(0o755)).expect("open the directory");
    assert_eq!(as_nobody(), "denied");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("open the socket");
    assert_eq!(as_nobody(), "HTTP/1.1 403 Forbidden");
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
fn slow_and_silent_peers_do_not_keep_others_out_for_long() {
    let server = TestServer::start();
    let mut client = server.client();
    let silent: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(server.address()).expect("connect")).collect();
    wait_for("503 beyond 64", || http(server.address(), "GET /healthz HTTP/1.0\r\n\r\n").status == 503);
    // Those who are in are not disturbed.
    assert_eq!(client.run("p", &["echo", "hi"]).stdout, b"hi\n");
    drop(silent);
    wait_for("room again", || http(server.address(), "GET /healthz HTTP/1.0\r\n\r\n").status == 200);
    let mut large = TcpStream::connect(server.address()).expect("connect");
    large.write_all(format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(9000)).as_bytes()).expect("send");
    let mut answer = String::new();
    large.read_to_string(&mut answer).ok(); // A reset after the answer is fine.
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
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
