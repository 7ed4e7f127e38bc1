//! S1: by default the server listens on loopback, on a free port, and prints a URL with a token. Beyond loopback it requires authentication
//! (a token or client certificates) and TLS. `--insecure-plaintext` replaces TLS (behind a TLS proxy), but never the token. A
//! configuration that is too open fails at once, and the error names the flag. Host names are not accepted as addresses, because they could
//! resolve to another address tomorrow.

use crate::prelude::*;

#[test]
fn by_default_it_listens_on_loopback_with_a_token_of_256_bits() {
    let server = TestServer::start();
    assert!(server.url().starts_with("ws://127.0.0.1:"), "{}", server.url());
    let is_hexadecimal = server.token().bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(server.token().len() == 64 && is_hexadecimal, "{}", server.token());
    server.client();
}

#[test]
fn each_combination_of_address_auth_and_tls_is_open_only_where_it_may_be() {
    let dir = tempfile::tempdir().expect("make a directory");
    let authority = Authority::new(dir.path(), "ours");
    let identity = authority.server("server");
    let ca = authority.ca();
    let tls = |builder: Builder| builder.tls(&identity);
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
            let (code, said) = builder.refusal_text(dir.path());
            assert!(code == Some(255) && said.contains(flag), "{address}, {flag}: {code:?} {said}");
        }
        for builder in [
            plain().arg("--insecure-plaintext"),
            tls(secured()),
            tls(secured()).path_arg("--client-ca", &ca),
            tls(secured()).path_arg("--client-ca", &ca).args(["--auth", "none"]),
        ] {
            if is_bindable {
                builder.start();
            } else {
                let (code, said) = builder.refusal_text(dir.path());
                assert!(code == Some(255) && said.contains("listen on `ws"), "{address}: {said}");
            }
        }
    }
}

#[test]
fn host_names_and_malformed_addresses_are_refused_by_the_grammar() {
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
        let (code, said) = TestServer::builder().listen(listen).refusal_text(dir.path());
        assert!(code == Some(2) && said.contains(named), "{listen}: {said}");
    }
}

#[test]
fn behind_a_proxy_the_token_is_still_required() {
    let open = TestServer::builder().listen("ws://0.0.0.0:0").arg("--insecure-plaintext").start();
    let port = open.address().rsplit(':').next().expect("an address has a port").to_owned();
    let url = format!("ws://127.0.0.1:{port}/?token={}", open.token());
    Client::connect(&url).expect("with the token").initialize();
    assert!(Client::connect(&format!("ws://127.0.0.1:{port}/")).is_err());
}

#[test]
fn auth_none_is_open_on_loopback_and_a_warning_says_so() {
    let server = TestServer::builder().arg("--auth").arg("none").start();
    assert!(!server.url().contains("token"), "{}", server.url());
    server.client();
    wait_for("the warning", || server.stderr().contains("--auth none"));
}
