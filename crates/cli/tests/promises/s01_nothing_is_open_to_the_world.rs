//! S1: by default the server listens on loopback, on a free port, and prints a URL with a token. Beyond loopback it requires authentication
//! (a token or client certificates) and TLS. `--insecure-plaintext` replaces TLS (behind a TLS proxy), but never the token. A
//! configuration that is too open fails at once, and the error names the flag. Host names are not accepted as addresses, because they could
//! resolve to another address tomorrow.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use testkit::{Authority, Builder, Client, DEADLINE, TestServer, wait_for};

/// Runs a server that must refuse to start; returns its exit code and messages.
fn refused(builder: &Builder, dir: &Path) -> (Option<i32>, String) {
    let mut child = builder.command(dir, "refused.test").spawn().expect("run exec-server");
    let begun = Instant::now();
    while child.try_wait().expect("wait").is_none() {
        if begun.elapsed() > DEADLINE {
            child.kill().expect("end what should not serve");
            panic!("it serves: {:?}", child.wait_with_output());
        }
        thread::park_timeout(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("wait");
    assert!(output.stdout.is_empty(), "{output:?}");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn without_a_word_it_is_loopback_and_a_token_of_256_bits() {
    let server = TestServer::start();
    assert!(server.url().starts_with("ws://127.0.0.1:"), "{}", server.url());
    let is_hexadecimal = server.token().bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(server.token().len() == 64 && is_hexadecimal, "{}", server.token());
    server.client();
}

#[test]
fn address_by_auth_by_tls_is_open_only_where_it_may_be() {
    let dir = tempfile::tempdir().expect("make a directory");
    let authority = Authority::new(dir.path(), "ours");
    let identity = authority.server("server");
    let paths = [&identity.cert, &identity.key, &authority.ca()].map(|path| path.display().to_string());
    let tls = |builder: Builder| builder.arg("--tls-cert").arg(&paths[0]).arg("--tls-key").arg(&paths[1]);
    // The last four addresses do not belong to this host. A server that passes the rule fails to bind there, with an error that says so.
    for (address, is_bindable) in [
        ("0.0.0.0:0", true),
        ("[::]:0", true),
        ("[::ffff:0.0.0.0]:0", true),
        ("192.0.2.1:0", false),
        ("[::ffff:192.0.2.1]:0", false),
        ("[2001:db8::1]:0", false),
        ("[fe80::1]:0", false),
    ] {
        let (ws, wss) = (format!("ws://{address}"), format!("wss://{address}"));
        let plain = || TestServer::builder().listen(&ws);
        let secured = || TestServer::builder().listen(&wss);
        for (builder, flag) in [
            (plain(), "--insecure-plaintext"),
            (plain().arg("--auth").arg("token"), "--insecure-plaintext"),
            (plain().arg("--auth").arg("none"), "--auth none"),
            (plain().arg("--auth").arg("none").arg("--insecure-plaintext"), "--auth none"),
            (secured(), "--tls-cert"),
            (secured().arg("--insecure-plaintext"), "--tls-cert"),
            (tls(secured()).arg("--auth").arg("none"), "--auth none"),
            (tls(secured()).arg("--auth").arg("none").arg("--insecure-plaintext"), "--auth none"),
            (tls(plain()).arg("--insecure-plaintext"), "--tls-cert"),
        ] {
            let (code, said) = refused(&builder, dir.path());
            assert!(code == Some(255) && said.contains(flag), "{address}, {flag}: {code:?} {said}");
        }
        for builder in [
            plain().arg("--insecure-plaintext"),
            tls(secured()),
            tls(secured()).arg("--client-ca").arg(&paths[2]),
            tls(secured()).arg("--client-ca").arg(&paths[2]).arg("--auth").arg("none"),
        ] {
            if is_bindable {
                builder.start();
            } else {
                let (code, said) = refused(&builder, dir.path());
                assert!(code == Some(255) && said.contains("listen on `ws"), "{address}: {said}");
            }
        }
    }
}

#[test]
fn names_of_hosts_and_unknown_places_are_refused_by_the_grammar() {
    let dir = tempfile::tempdir().expect("make a directory");
    for (listen, named) in [
        ("ws://example.test:0", "host names"),
        ("wss://example.test:0", "host names"),
        ("wss://box.example:443", "host names"),
        ("ws://127.1:0", "host names"),
        ("ws://[127.0.0.1]:0", "host names"),
        ("tcp://1", "unix://"),
        ("ws://127.0.0.1", "port"),
    ] {
        let (code, said) = refused(&TestServer::builder().listen(listen), dir.path());
        assert!(code == Some(2) && said.contains(named), "{listen}: {said}");
    }
}

#[test]
fn behind_a_proxy_the_token_is_still_asked_for() {
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
}
