//! Tests all verdicts of admission, first as a pure function, then over a real socket.

use std::{net::SocketAddr, str, sync::Arc};

use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{
    Admission, AdmissionConfig, AllowedHost, TcpEndpoint,
    check::{self, ListenerRequirements, RequestVerdict, RequiredProof},
    host::ListenerHosts,
    http,
    pending::PENDING_MAX,
};
use crate::{
    access::{Access, Grant},
    audit::Audit,
    state_dir::Token,
};

const TOKEN: &str = "0123456789abcdef%+&=ghijkl";
const ESCAPED: &str = "0123456789abcdef%25%2B%26%3dghijkl";
const UPGRADE: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn access() -> Access {
    Access::new(Token::parse(TOKEN.as_bytes()).unwrap().digest())
}

/// The HTTP status of the response; 101 for an upgrade. `local` is the address of the listener.
fn status_at(local: &str, request: &str) -> u16 {
    let local: SocketAddr = local.parse().unwrap();
    let allowed: Vec<AllowedHost> = ["box.example", "proxy.example:8443"].map(|name| name.parse().unwrap()).into();
    let access = access();
    let hosts = Some(ListenerHosts { local, allowed: &allowed, certified: None });
    let requirements =
        ListenerRequirements { hosts, proof: RequiredProof::Token(&access), draining: false, is_ready: true };
    judge(request, &requirements)
}

fn judge(request: &str, requirements: &ListenerRequirements<'_>) -> u16 {
    match http::with_request(request.as_bytes(), |request| check::check(request, requirements)) {
        RequestVerdict::Upgrade { accept, .. } => {
            assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
            101
        }
        RequestVerdict::Metrics { .. } => 200,
        RequestVerdict::Answer(response) => response.status(),
    }
}

fn status(request: &str) -> u16 {
    status_at("127.0.0.1:4000", request)
}

/// A valid upgrade request with this target and these additional header lines.
fn upgrade(target: &str, host: &str, more: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}{more}\r\n")
}

fn bearer() -> String {
    format!("Authorization: Bearer {TOKEN}\r\n")
}

#[test]
fn a_token_is_accepted_in_the_header_and_in_the_query() {
    let host = "127.0.0.1:4000";
    assert_eq!(status(&upgrade("/", host, &bearer())), 101);
    assert_eq!(status(&upgrade(&format!("/?token={ESCAPED}"), host, "")), 101);
    assert_eq!(status(&upgrade(&format!("/?a=b&token={ESCAPED}&c"), host, &bearer())), 101);
    assert_eq!(status(&upgrade("/", host, &bearer().replace("Bearer", "bEARER"))), 101);
}

#[test]
fn without_a_valid_token_every_path_but_health_answers_401() {
    let host = "127.0.0.1:4000";
    let near = &TOKEN[..TOKEN.len() - 1];
    for more in [
        String::new(),
        "Authorization: Bearer\r\n".to_owned(),
        "Authorization: Bearer \r\n".to_owned(),
        format!("Authorization: Bearer {near}\r\n"),
        format!("Authorization: Bearer {TOKEN}x\r\n"),
        format!("Authorization: Basic {TOKEN}\r\n"),
        format!("Authorization: Bearer{TOKEN}\r\n"),
        format!("Authorization: {TOKEN}\r\n"),
        format!("Cookie: token={TOKEN}\r\n"),
        format!("X-Token: {TOKEN}\r\n"),
        format!("{}Authorization: Bearer wrong\r\n", bearer()),
        format!("Authorization: Bearer wrong\r\n{}", bearer()),
    ] {
        for target in ["/", "/?token=", "/?Token=x", "/rpc", "/metrics", "/healthz/", "//healthz", "/%68ealthz", "*"] {
            assert_eq!(status(&upgrade(target, host, &more)), 401, "{target} {more}");
            let plain = format!("POST {target} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
            assert_eq!(status(&plain), 401, "{target} {more}");
        }
    }
    for target in ["/?token=wrong", "/?token=%", "/?token=%2", "/?token=%zz", "/?token"] {
        assert_eq!(status(&upgrade(target, host, "")), 401, "{target}");
    }
    // A valid token beside an invalid one does not help.
    assert_eq!(status(&upgrade("/?token=wrong", host, &bearer())), 401);
    assert_eq!(status(&upgrade(&format!("/?token={ESCAPED}&token=wrong"), host, "")), 401);
}

#[test]
fn any_origin_is_forbidden_even_with_the_token() {
    for origin in [
        "null",
        "",
        "http://127.0.0.1:4000",
        "https://127.0.0.1:4000",
        "http://localhost:4000",
        "http://localhost:4001",
        "http://127.0.0.1",
        "http://[::1]:4000",
        "https://evil.example",
        "https://127.0.0.1.evil.example",
        "https://localhost.evil.example:4000",
        "https://evil.example/127.0.0.1:4000",
        "http://127.0.0.1:4000@evil.example",
        "http://127.0.0.1:4000.evil.example",
        "http://evil-localhost:4000",
        "http://box.example",
        "https://box.example.evil.example",
        "file://",
        "chrome-extension://abcdefghijklmnop",
        "moz-extension://0000",
        "HTTP://LOCALHOST:4000",
        "http://0.0.0.0:4000",
    ] {
        let request = upgrade("/", "127.0.0.1:4000", &format!("{}Origin: {origin}\r\n", bearer()));
        assert_eq!(status(&request), 403, "{origin}");
    }
}

#[test]
fn a_fetch_from_another_site_is_forbidden() {
    for (site, expected) in [
        ("none", 101),
        ("same-origin", 101),
        ("same-site", 403),
        ("cross-site", 403),
        ("", 403),
        ("Same-Origin, none", 403),
        ("none, cross-site", 403),
    ] {
        let request = upgrade("/", "localhost:4000", &format!("{}Sec-Fetch-Site: {site}\r\n", bearer()));
        assert_eq!(status(&request), expected, "{site}");
    }
}

#[test]
fn a_foreign_host_is_forbidden_on_every_route_before_the_token_is_checked() {
    for (host, ours) in [
        ("127.0.0.1:4000", true),
        ("127.8.8.8:4000", true),
        ("localhost:4000", true),
        ("LocalHost:4000", true),
        ("[::1]:4000", true),
        ("[::ffff:127.0.0.1]:4000", true),
        ("box.example", true),
        ("BOX.example:99", true),
        ("proxy.example:8443", true),
        ("localhost", true),
        ("127.0.0.1", true),
        ("127.0.0.1:4001", true),
        ("[::1]", true),
        ("", false),
        ("localhost:", false),
        ("localhost:65536", false),
        ("127.0.0.1:04000x", false),
        ("localhost:4000:4000", false),
        ("localhost.:4000", false),
        ("localhost.evil.example:4000", false),
        ("evil.example:4000", false),
        ("127.0.0.1.nip.io:4000", false),
        ("0x7f.0.0.1:4000", false),
        ("127.1:4000", false),
        ("2130706433:4000", false),
        ("0.0.0.0:4000", false),
        ("10.0.0.1:4000", false),
        ("[::]:4000", false),
        ("::1:4000", false),
        ("[::1:4000", false),
        ("[localhost]:4000", false),
        ("xbox.example", false),
        ("box.example.evil.example", false),
        ("proxy.example", false),
        ("proxy.example:8444", false),
        ("user@localhost:4000", false),
        ("localhost:4000, evil.example", false),
        ("localhost:4000/", false),
    ] {
        let passed = if ours { 101 } else { 403 };
        assert_eq!(status(&upgrade("/", host, &bearer())), passed, "{host}");
        let without = if ours { 401 } else { 403 };
        for target in ["/", "/other", "http://localhost:4000/"] {
            assert_eq!(status(&upgrade(target, host, "")), without, "{host} {target}");
        }
    }
    assert_eq!(status(&format!("GET / HTTP/1.1\r\n{UPGRADE}{}\r\n", bearer())), 403);
    assert_eq!(status(&upgrade("/", "localhost:4000", &format!("{}Host: localhost:4000\r\n", bearer()))), 403);
}

#[test]
fn the_bound_address_is_a_valid_host_unless_it_is_unspecified() {
    let at = |local: &str, host: &str| status_at(local, &upgrade("/", host, &bearer()));
    assert_eq!(at("10.0.0.7:4000", "10.0.0.7:4000"), 101);
    assert_eq!(at("10.0.0.7:4000", "10.0.0.7:8443"), 101);
    assert_eq!(at("10.0.0.7:4000", "10.0.0.8:4000"), 403);
    assert_eq!(at("0.0.0.0:4000", "0.0.0.0:4000"), 403);
    assert_eq!(at("0.0.0.0:4000", "127.0.0.1:4000"), 101);
    assert_eq!(at("[fe80::1]:4000", "[fe80::1]:4000"), 101);
    assert_eq!(at("127.0.0.1:80", "localhost"), 101);
}

#[test]
fn health_needs_neither_host_nor_token() {
    let access = access();
    for (draining, ready) in [(false, 200), (true, 503)] {
        let hosts = Some(ListenerHosts { local: "127.0.0.1:1".parse().unwrap(), allowed: &[], certified: None });
        let requirements =
            ListenerRequirements { hosts, proof: RequiredProof::Token(&access), draining, is_ready: true };
        for (request, expected) in [
            ("GET /healthz HTTP/1.0\r\n\r\n", 200),
            ("HEAD /healthz HTTP/1.1\r\nHost: evil\r\n\r\n", 200),
            ("GET /readyz?x=y HTTP/1.1\r\nHost: evil\r\n\r\n", ready),
            ("POST /readyz HTTP/1.1\r\n\r\n", 405),
            ("GET /healthz/x HTTP/1.1\r\n\r\n", 403),
        ] {
            assert_eq!(judge(request, &requirements), expected, "{request}");
        }
    }
}

#[test]
fn an_authenticated_client_learns_what_is_wrong_with_its_upgrade() {
    let host = "localhost:4000";
    let good = upgrade("/", host, &bearer());
    assert_eq!(status(&upgrade("/other", host, &bearer())), 404);
    assert_eq!(status(&upgrade("/metrics", host, &bearer())), 200);
    assert_eq!(status(&upgrade("/metrics", host, "")), 401);
    assert_eq!(status(&upgrade("/metrics", "evil.example", &bearer())), 403);
    assert_eq!(status(&upgrade("http://localhost:4000/", host, &bearer())), 404);
    assert_eq!(status(&good.replace("GET", "POST")), 405);
    assert_eq!(status(&good.replace("WebSocket\r\n", "h2c\r\n")), 426);
    assert_eq!(status(&good.replace("keep-alive, Upgrade", "keep-alive")), 426);
    assert_eq!(status(&good.replace("Version: 13", "Version: 8")), 426);
    assert_eq!(status(&good.replace("HTTP/1.1", "HTTP/1.0")), 426);
    assert_eq!(status(&good.replace("Sec-WebSocket-Key", "X-Key")), 400);
    assert_eq!(status(&good.replace("jZQ==", "!")), 400);
    assert_eq!(status(&good.replace("dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ=")), 400);
    assert_eq!(status(&upgrade("/", host, &format!("{}Content-Length: 5\r\n", bearer()))), 400);
    assert_eq!(status(&upgrade("/", host, &format!("{}Transfer-Encoding: chunked\r\n", bearer()))), 400);
    assert_eq!(status("not http at all\r\n\r\n"), 400);
}

#[test]
fn a_unix_socket_needs_no_host_and_no_token_but_refuses_an_origin() {
    let requirements = ListenerRequirements {
        hosts: None,
        proof: RequiredProof::Given(Grant::owner()),
        draining: false,
        is_ready: true,
    };
    assert_eq!(judge(&upgrade("/", "whatever", ""), &requirements), 101);
    assert_eq!(judge(&upgrade("/", "whatever", "Origin: null\r\n"), &requirements), 403);
    let requirements = ListenerRequirements { draining: true, ..requirements };
    assert_eq!(judge(&upgrade("/", "whatever", ""), &requirements), 503);
}

#[test]
fn an_allowed_host_must_be_a_host_name() {
    for bad in ["", ":80", "a b", "http://a", "a/b", "a:b", "a:", "a:99999", "[::1", "ü", "*"] {
        assert!(bad.parse::<AllowedHost>().is_err(), "{bad}");
    }
    for good in ["a", "a.b:80", "10.0.0.1", "[::1]", "[::1]:80"] {
        assert!(good.parse::<AllowedHost>().is_ok(), "{good}");
    }
}

/// Admission on a real port.
struct Rig {
    listener: TcpListener,
    local: SocketAddr,
    admission: Admission,
}

impl Rig {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let local = listener.local_addr().unwrap();
        let access = Arc::new(access());
        Self {
            listener,
            local,
            admission: Admission::new(AdmissionConfig {
                access,
                audit: Audit::default(),
                ..AdmissionConfig::default()
            }),
        }
    }

    /// Sends bytes in parts. Returns the response and whether the connection was admitted.
    async fn exchange(&self, parts: &[&[u8]]) -> (String, bool) {
        let client = async {
            let mut socket = TcpStream::connect(self.local).await.unwrap();
            for part in parts {
                // After a refusal, the server may close before everything is sent.
                socket.write_all(part).await.ok();
            }
            let mut answer = vec![0; 4096];
            let mut size = 0;
            while !answer[..size].windows(4).any(|end| end == b"\r\n\r\n") {
                match socket.read(&mut answer[size..]).await {
                    Ok(read @ 1..) => size += read,
                    Ok(0) | Err(_) => break,
                }
            }
            str::from_utf8(&answer[..size]).unwrap().to_owned()
        };
        let server = async {
            let (socket, peer) = self.listener.accept().await.unwrap();
            self.admission
                .admit_tcp(
                    socket,
                    &TcpEndpoint { local: self.local, tls: None },
                    peer,
                    self.admission.reserve_slot(Some(peer)),
                )
                .await
                .is_some()
        };
        tokio::join!(client, server)
    }
}

#[tokio::test]
async fn a_refusal_reveals_neither_token_nor_reason() {
    let rig = Rig::new().await;
    let request = upgrade("/?token=wrong-but-secret", &rig.local.to_string(), "");
    let (answer, admitted) = rig.exchange(&[request.as_bytes()]).await;
    assert!(!admitted);
    assert_eq!(
        answer,
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"
    );
}

#[tokio::test]
async fn a_request_in_single_bytes_followed_by_a_frame_is_admitted() {
    let rig = Rig::new().await;
    let mut request = upgrade("/", &rig.local.to_string(), &bearer()).into_bytes();
    request.extend_from_slice(b"\x81\x80\0\0\0\0");
    let parts: Vec<&[u8]> = request.chunks(1).collect();
    let (answer, admitted) = rig.exchange(&parts).await;
    assert!(admitted && answer.starts_with("HTTP/1.1 101 "), "{answer}");
}

#[tokio::test]
async fn an_oversized_or_invalid_head_is_refused() {
    let rig = Rig::new().await;
    let large = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(9000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(65));
    for (request, expected) in [(large.as_str(), "431"), (&many, "431"), ("\u{1}\u{2}\r\n\r\n", "400")] {
        let (answer, admitted) = rig.exchange(&[request.as_bytes()]).await;
        assert!(!admitted && answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_request_is_dropped_after_ten_seconds() {
    let (mut near, mut far) = tokio::io::duplex(64);
    near.write_all(b"GET / HT").await.unwrap();
    let requirements = ListenerRequirements {
        hosts: None,
        proof: RequiredProof::Given(Grant::owner()),
        draining: false,
        is_ready: true,
    };
    let started = tokio::time::Instant::now();
    let admission = Admission::new(AdmissionConfig::default());
    let slot = admission.reserve_slot(None);
    let judging = admission.check_and_answer(&mut far, &requirements, &slot, &"test");
    assert!(super::in_time(&slot, judging).await.is_ok_and(|judged| judged.is_none()));
    assert_eq!(admission.counts().stalled, 1);
    assert_eq!(started.elapsed(), super::HEAD_DEADLINE);
}

#[tokio::test]
async fn the_65th_pending_connection_evicts_the_first() {
    let rig = Rig::new().await;
    let slots: Vec<_> = (0..PENDING_MAX).map(|_| rig.admission.reserve_slot(Some(rig.local))).collect();
    assert!(rig.admission.is_crowded());
    let request = upgrade("/", &rig.local.to_string(), &bearer());
    assert!(rig.exchange(&[request.as_bytes()]).await.1);
    assert!(slots[0].evicted().now_or_never().is_some() && slots[1].evicted().now_or_never().is_none());
    assert_eq!(rig.admission.counts().evicted, 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_failures_are_delayed_but_a_valid_token_is_not() {
    let rig = Rig::new().await;
    let host = rig.local.to_string();
    let (wrong, right) = (upgrade("/?token=wrong", &host, ""), upgrade("/", &host, &bearer()));
    let mut seen = Vec::new();
    for _ in 0..140 {
        let (answer, admitted) = rig.exchange(&[wrong.as_bytes()]).await;
        assert!(!admitted);
        seen.push(answer[9..12].to_owned());
    }
    assert!(seen[..99].iter().all(|status| status == "401") && seen[99..].iter().all(|status| status == "429"));
    assert_eq!((rig.admission.counts().refused, rig.admission.counts().slowed), (140, 41));
    let started = tokio::time::Instant::now();
    assert!(rig.exchange(&[right.as_bytes()]).await.1);
    assert_eq!(started.elapsed(), std::time::Duration::ZERO);
}

#[test]
fn a_server_that_lost_its_state_is_healthy_but_not_ready() {
    let requirements = ListenerRequirements {
        hosts: None,
        proof: RequiredProof::Given(Grant::owner()),
        draining: false,
        is_ready: false,
    };
    for (path, status) in [("/readyz", 503), ("/healthz", 200)] {
        let head = format!("GET {path} HTTP/1.1\r\n\r\n");
        let verdict = http::with_request(head.as_bytes(), |request| check::check(request, &requirements));
        assert!(
            matches!(&verdict, RequestVerdict::Answer(response) if response.status() == status),
            "{path}: {verdict:?}"
        );
    }
}
