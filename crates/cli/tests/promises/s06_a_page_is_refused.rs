//! S6: any `Origin` is refused with 403 before the token is checked, and so is `Sec-Fetch-Site` other than `same-origin` and `none`. No
//! answer has a CORS header or a cookie.

use crate::prelude::*;

fn origins(host: &str, port: &str) -> Vec<String> {
    let others = "\
        null * file:// data:text/html,x blob:null/x chrome-extension://abc moz-extension://abc http://localhost \
        http://localhost:1 http://127.0.0.1 http://127.0.0.1:1 https://localhost HTTP://LOCALHOST \
        https://evil.example http://evil.example:80 http://192.0.2.1 http://[::1] about:blank http://0.0.0.0";
    let mut origins: Vec<String> = others.split(' ').chain(["", " "]).map(str::to_owned).collect();
    origins.extend([
        format!("http://{host}"),
        format!("https://{host}"),
        format!("ws://{host}"),
        format!("http://{host}/"),
        format!("http://{host}."),
        format!("http://localhost:{port}"),
        format!("http://[::1]:{port}"),
        format!("http://[::ffff:127.0.0.1]:{port}"),
        format!("http://{host}.evil.example"),
        format!("http://{host}@evil.example"),
        format!("http://evil.example/{host}"),
        format!("http://localhost.evil.example:{port}"),
        format!("http://evillocalhost:{port}"),
        format!("http://{host}, https://evil.example"),
    ]);
    origins
}

fn is_bare(reply: &Reply) {
    let head = reply.head.to_lowercase();
    for header in ["access-control", "set-cookie", "cross-origin"] {
        assert!(!head.contains(header), "{reply:?}");
    }
}

#[test]
fn a_page_is_forbidden_whatever_its_origin_and_whatever_it_knows() {
    let server = TestServer::builder().listen("ws://127.0.0.1:0").listen("unix://{dir}/x.sock").start();
    let host = server.address();
    let port = host.rsplit(':').next().expect("an address has a port");
    let (target, unix) = (format!("/?token={}", server.token()), server.dir().join("x.sock"));
    let origins = origins(host, port);
    assert!(origins.len() >= 20);
    for origin in &origins {
        let request = upgrade(&target, host, &format!("Origin: {origin}\r\n"));
        for reply in [http(host, &request), http_unix(&unix, &request)] {
            assert_eq!((reply.status, reply.body.as_str()), (403, ""), "{origin}");
            is_bare(&reply);
        }
    }
    assert_eq!(http(host, &upgrade(&target, host, "")).status, 101, "the same without the page");
}

#[test]
fn sec_fetch_site_of_the_browser_counts_as_well() {
    let server = TestServer::start();
    let (host, target) = (server.address(), format!("/?token={}", server.token()));
    for (site, status) in [
        ("cross-site", 403),
        ("same-site", 403),
        ("CROSS-SITE", 403),
        ("", 403),
        ("none, cross-site", 403),
        ("none", 101),
        ("same-origin", 101),
    ] {
        let reply = http(host, &upgrade(&target, host, &format!("Sec-Fetch-Site: {site}\r\n")));
        assert_eq!(reply.status, status, "{site}");
        is_bare(&reply);
    }
    let twice = "Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n";
    assert_eq!(http(host, &upgrade(&target, host, twice)).status, 403);
}

#[test]
fn no_answer_allows_a_page_to_read_it() {
    let server = TestServer::start();
    let (host, target) = (server.address(), format!("/?token={}", server.token()));
    let preflight = "Origin: http://localhost\r\nAccess-Control-Request-Method: GET\r\n        Access-Control-Request-Headers: authorization\r\nAccess-Control-Request-Private-Network: true\r\n";
    for request in [
        format!("OPTIONS {target} HTTP/1.1\r\nHost: {host}\r\n{preflight}\r\n"),
        format!("OPTIONS * HTTP/1.1\r\nHost: {host}\r\n{preflight}\r\n"),
        format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nOrigin: http://localhost\r\n\r\n"),
        format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        upgrade(&target, host, ""),
        upgrade("/", host, ""),
        upgrade("/x", host, "Cookie: a=b\r\n"),
    ] {
        is_bare(&http(host, &request));
    }
}
