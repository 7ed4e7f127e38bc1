//! S22: the client sends its token only over verified TLS, on loopback, or on a Unix socket, and follows no redirect of a server. That its
//! memory is bounded for all data that a server may send is tested in the client crate, with servers that lie, flood, skip and repeat:
//! `crates/client/tests/scripted/hostile.rs`, `hostile_numbers.rs` and `flood.rs`.

use std::{net::SocketAddr, thread::JoinHandle};

use crate::prelude::*;
use exec_server_client::{Builder, Client, Token, transport::Tls};

const SECRET: &str = "tok-5a1d0c93e7b24f68";

/// A listener that records all bytes it receives and sends a fixed answer.
struct Recorder {
    address: SocketAddr,
    thread: JoinHandle<Vec<u8>>,
}

impl Recorder {
    /// Accepts connections until one sends `over`.
    fn start(bind: &str, answer: String) -> Self {
        let listener = TcpListener::bind(bind).expect("listen");
        let address = listener.local_addr().expect("an address");
        let thread = thread::spawn(move || {
            let mut heard = Vec::new();
            loop {
                let (mut socket, _) = listener.accept().expect("accept");
                socket.set_read_timeout(Some(DEADLINE)).expect("set a deadline");
                let mut chunk = [0; 4096];
                let begun = heard.len();
                while !heard[begun..].ends_with(b"\r\n\r\n") {
                    match socket.read(&mut chunk) {
                        Ok(read @ 1..) => heard.extend_from_slice(&chunk[..read]),
                        Ok(0) | Err(_) => break,
                    }
                    if heard[begun..] == *b"over" {
                        heard.truncate(begun);
                        return heard;
                    }
                }
                socket.write_all(answer.as_bytes()).ok(); // The client may have gone already.
            }
        });
        Self { address, thread }
    }

    /// Stops the recorder and returns all it received.
    fn heard(self) -> String {
        let loopback = format!("127.0.0.1:{}", self.address.port());
        let mut socket = std::net::TcpStream::connect(loopback).expect("connect");
        socket.write_all(b"over").expect("say so");
        let heard = self.thread.join().expect("the recorder does not panic");
        String::from_utf8_lossy(&heard).into_owned()
    }
}

/// The error of a client that has the token and tries to connect once.
fn dial(url: &str, set: impl FnOnce(Builder) -> Builder) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("make a runtime");
    let builder = Client::builder().token(Token::new(SECRET).expect("a token")).connect_retry_for(Duration::ZERO);
    let refused = runtime.block_on(set(builder).connect(url)).expect_err("nobody serves this");
    let mut said = format!("{refused} {refused:?}");
    let mut source = std::error::Error::source(&refused);
    while let Some(reason) = source {
        said.push_str(&reason.to_string());
        source = reason.source();
    }
    assert!(!said.contains(SECRET), "{said}");
    said
}

#[test]
fn a_token_in_plain_text_stays_on_this_machine() {
    let home = tempfile::tempdir().expect("make a directory");
    // 0.0.0.0 leads to this host but is not a loopback address. The recorder would receive a token that is sent.
    let recorder = Recorder::start("0.0.0.0:0", "HTTP/1.1 401 Unauthorized\r\n\r\n".to_owned());
    let port = recorder.address.port();
    for url in
        [format!("ws://0.0.0.0:{port}"), format!("ws://0.0.0.0:{port}/?token={SECRET}"), "ws://192.0.2.1:1".to_owned()]
    {
        let said = dial(&url, |builder| builder);
        assert!(said.contains("--insecure-plaintext") && said.contains("wss://"), "{said}");
    }
    let mut command = Command::new(binary());
    command.args(["run", "--connect", &format!("ws://0.0.0.0:{port}"), "--", "true"]);
    let output = command.env("HOME", home.path()).env("EXEC_SERVER_TOKEN", SECRET).output().expect("run exec-server");
    let stderr = text(&output.stderr);
    assert!(output.status.code() == Some(255) && !stderr.contains(SECRET), "{output:?}");
    // The token is sent on loopback, and elsewhere only with `insecure_plaintext`; now the same listener receives it.
    dial(&format!("ws://127.0.0.1:{port}"), |builder| builder);
    dial(&format!("ws://0.0.0.0:{port}"), |builder| builder.insecure_plaintext(true));
    let heard = recorder.heard();
    assert_eq!(heard.matches(SECRET).count(), 2, "{heard}");
    assert_eq!(heard.matches("GET / HTTP/1.1").count(), 2, "{heard}");
}

#[test]
fn a_client_follows_no_redirect() {
    let elsewhere = Recorder::start("127.0.0.1:0", String::new());
    for status in [301, 302, 303, 307, 308] {
        let to = elsewhere.address;
        let answer = format!("HTTP/1.1 {status} Moved\r\nLocation: ws://{to}/\r\nContent-Length: 0\r\n\r\n");
        let here = Recorder::start("127.0.0.1:0", answer);
        let said = dial(&format!("ws://{}", here.address), |builder| builder);
        assert!(said.contains("points elsewhere"), "{said}");
        assert!(here.heard().contains(SECRET));
    }
    assert_eq!(elsewhere.heard(), "");
}

#[test]
fn an_unverified_server_receives_nothing_inside_tls() {
    let home = tempfile::tempdir().expect("make a directory");
    let (ours, others) = (Authority::new(home.path(), "ours"), Authority::new(home.path(), "others"));
    let identity = ours.server("server");
    let server = TestServer::builder().listen_tls(&identity).args(["--log", "debug"]).start();
    let url = format!("wss://{}", server.address());
    let untrusted = dial(&url, |builder| builder.tls(Tls::default().ca_file(others.ca())));
    assert!(untrusted.contains("authority"), "{untrusted}");
    wait_for("a broken handshake", || server.stderr().contains("no TLS handshake"));
    assert!(!server.stderr().contains("answered before authentication"), "no request came: {}", server.stderr());
    // With the right authority the (wrong) token is sent, and refused.
    dial(&url, |builder| builder.tls(Tls::default().ca_file(ours.ca())));
    wait_for("the answer", || server.stderr().contains("answered before authentication"));
}
