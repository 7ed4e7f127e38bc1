//! S2: an unauthenticated client gets 401 before the server keeps any state for it, on every route except the two health routes. The types
//! ensure that no route skips authentication; see the compile-fail example in `server::admission`.

use crate::prelude::*;

const TARGETS: &str = "\
    / /?token= /?token=wrong /rpc /ws /metrics /admin /favicon.ico /healthzz /healthz/ /readyz/x \
    //healthz /.. /../healthz /%68ealthz /console";

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE", "PROPFIND"];

/// Requests every route with every method, with and without upgrade headers: all answers are the same empty 401.
fn scan(host: &str, ask: impl Fn(&str) -> Reply) {
    let mut answers = Vec::new();
    // Fewer requests than the number after which a source is answered late.
    for (n, target) in TARGETS.split(' ').enumerate() {
        for method in METHODS.into_iter().skip(n % 2).step_by(2) {
            answers.push(ask(&upgrade(target, host, "").replacen("GET", method, 1)));
        }
        answers.push(ask(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!((answers[0].status, answers[0].body.as_str()), (401, ""));
}

fn health(ask: impl Fn(&str) -> Reply) {
    for target in ["/healthz", "/readyz"] {
        let reply = ask(&format!("GET {target} HTTP/1.1\r\nHost: anything\r\n\r\n"));
        assert_eq!((reply.status, reply.body.as_str()), (200, "ok"), "{reply:?}");
        assert!(!reply.head.to_lowercase().contains("server:"), "{reply:?}");
    }
}

#[test]
fn without_a_token_every_route_answers_401_and_nothing_else() {
    let server = TestServer::start();
    let host = server.address();
    scan(host, |request| http(host, request));
    health(|request| http(host, request));
    let sessions = server.state_dir().join("sessions");
    assert_eq!(std::fs::read_dir(sessions).map_or(0, Iterator::count), 0, "no state for those who were refused");
}

#[test]
fn inside_tls_authentication_is_the_same() {
    let dir = tempfile::tempdir().expect("make a directory");
    let authority = Authority::new(dir.path(), "ours");
    let identity = authority.server("server");
    let server = TestServer::builder().listen_tls(&identity).start();
    let host = server.address();
    let ask = |request: &str| http_tls(host, &authority, &Shown::default(), request);
    scan(host, ask);
    health(ask);
    assert_eq!(http(host, "GET /healthz HTTP/1.0\r\n\r\n").status, 0, "nothing is said outside of TLS");
}

#[test]
fn on_a_unix_socket_the_owner_needs_no_token_and_finds_no_other_route() {
    let server = TestServer::builder().listen("unix://{dir}/x.sock").start();
    let path = server.dir().join("x.sock");
    health(|request| http_unix(&path, request));
    let others = TARGETS.split(' ').filter(|target| !target.starts_with("/?") && !["/", "/metrics"].contains(target));
    for target in others {
        assert_eq!(http_unix(&path, &upgrade(target, "x", "")).status, 404, "{target}");
    }
    assert_eq!(http_unix(&path, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
    assert_eq!(http_unix(&path, &upgrade("/", "x", "")).status, 101);
}
