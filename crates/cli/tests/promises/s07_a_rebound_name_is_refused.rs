//! S7 (DNS rebinding): the name in `Host` must be a loopback literal, `localhost`, the address we are bound to, or an allowed name, with
//! any port, on every route except the two health routes. A page that makes its own name resolve to us sends that name; a client behind a
//! forwarded port sends our name with another port.

use std::{io, net::Shutdown};

use crate::prelude::*;

#[test]
fn a_rebound_name_is_forbidden_unless_it_is_allowed() {
    let server = TestServer::builder().args(["--allow-host", "box.example"]).start();
    let (host, target) = (server.address(), format!("/?token={}", server.token()));
    let port = host.rsplit(':').next().expect("an address has a port");
    for (name, status) in [
        (host.to_owned(), 101),
        (format!("localhost:{port}"), 101),
        (format!("LocalHost:{port}"), 101),
        (format!("[::1]:{port}"), 101),
        ("box.example".to_owned(), 101),
        ("box.example:1234".to_owned(), 101),
        (format!("evil.example:{port}"), 403),
        ("evil.example".to_owned(), 403),
        (format!("localhost.evil.example:{port}"), 403),
        (format!("127.0.0.1.evil.example:{port}"), 403),
        (format!("evil.example@127.0.0.1:{port}"), 403),
        (format!("127.0.0.1:{port}@evil.example"), 403),
        (format!("localhost.:{port}"), 403),
        (format!("127.0.0.1 :{port}"), 403),
        (format!("127.1:{port}"), 403),
        (format!("2130706433:{port}"), 403),
        (format!("0.0.0.0:{port}"), 403),
        (format!("localhost:{port}, evil.example"), 403),
        ("xbox.example".to_owned(), 403),
        ("box.example.evil.example".to_owned(), 403),
        ("localhost".to_owned(), 101),
        ("localhost:1".to_owned(), 101),
        ("127.0.0.1:1".to_owned(), 101),
        ("localhost:".to_owned(), 403),
        ("localhost:65536".to_owned(), 403),
        ("evil.example:1".to_owned(), 403),
        (String::new(), 403),
    ] {
        assert_eq!(http(host, &upgrade(&target, &name, "")).status, status, "{name}");
        let elsewhere = http(host, &format!("GET /x HTTP/1.1\r\nHost: {name}\r\n\r\n")).status;
        assert_eq!(elsewhere, if status == 101 { 401 } else { 403 }, "{name}");
    }
}

#[test]
fn neither_a_missing_nor_a_second_host_nor_the_target_helps() {
    let server = TestServer::start();
    let (host, token) = (server.address(), server.token());
    let good = upgrade(&format!("/?token={token}"), host, "");
    let line = format!("Host: {host}\r\n");
    assert_eq!(http(host, &good).status, 101);
    for (what, request) in [
        ("none", good.replace(&line, "")),
        ("two", good.replace(&line, &format!("{line}Host: evil.example\r\n"))),
        ("two, the bad one first", good.replace(&line, &format!("Host: evil.example\r\n{line}"))),
        ("twice the same", good.replace(&line, &format!("{line}{line}"))),
        ("forwarded", good.replace(&line, &format!("Host: evil.example\r\nX-Forwarded-Host: {host}\r\n"))),
        (
            "absolute, with a foreign Host",
            good.replace("GET /?", &format!("GET http://{host}/?")).replace(&line, "Host: evil.example\r\n"),
        ),
    ] {
        assert_eq!(http(host, &request).status, 403, "{what}");
    }
    // A target in absolute form is treated as a path that does not exist; it does not replace `Host`.
    for target in ["http://evil.example/", "http://localhost/"] {
        let status = http(host, &good.replace("GET /?", &format!("GET {target}?"))).status;
        assert_eq!(status, 404, "{target}");
    }
    let folded = good.replace(&line, &format!("Host:\r\n {host}\r\n"));
    assert!(matches!(http(host, &folded).status, 400 | 403), "folded over two lines");
}

#[test]
fn without_a_token_a_rebound_name_is_still_refused() {
    let server = TestServer::builder().args(["--auth", "none"]).start();
    let host = server.address();
    assert_eq!(http(host, &upgrade("/", "evil.example", "")).status, 403);
    assert_eq!(http(host, &upgrade("/", host, "Origin: http://localhost\r\n")).status, 403);
    assert_eq!(http(host, &upgrade("/", host, "")).status, 101);
}

#[test]
fn health_is_answered_under_any_name() {
    let server = TestServer::start();
    for path in ["/healthz", "/readyz"] {
        let reply = http(server.address(), &format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n"));
        assert_eq!((reply.status, reply.body.as_str()), (200, "ok"));
    }
}

#[test]
fn a_client_behind_a_forwarded_port_is_let_in() {
    let server = TestServer::start();
    let forward = TcpListener::bind("127.0.0.1:0").expect("bind the forwarded port");
    let local = forward.local_addr().expect("the address of the forwarded port");
    let target = server.address().to_owned();
    let forwarding = thread::spawn(move || {
        let (client, _) = forward.accept().expect("accept the client");
        forward_both_ways(&client, &TcpStream::connect(target).expect("connect to the server"));
    });
    let url = server.url().replace(server.address(), &format!("localhost:{}", local.port()));
    let mut client = Client::connect(&url).expect("connect through the forwarded port");
    client.initialize();
    assert_eq!(client.run("p", &["echo", "hi"]).stdout, b"hi\n");
    drop(client);
    forwarding.join().expect("the forwarding ends with its client");
}

/// Copies bytes like `ssh -L`, until both directions have ended.
fn forward_both_ways(client: &TcpStream, server: &TcpStream) {
    let copy = |mut from: &TcpStream, mut to: &TcpStream| {
        io::copy(&mut from, &mut to).ok();
        to.shutdown(Shutdown::Write).ok();
    };
    thread::scope(|scope| {
        scope.spawn(|| copy(client, server));
        copy(server, client);
    });
}
