//! `http/request` as in the reference: whole and streamed answers, host names, timeouts, redirects, proxies and headers from variables
//! (spec 5.6).

use std::sync::mpsc;

use crate::prelude::*;

fn get(url: &str) -> Value {
    json!({"method": "GET", "url": url, "requestId": "r"})
}

pub(crate) fn stream(url: &str, id: &str) -> Value {
    json!({"method": "GET", "url": url, "requestId": id, "streamResponse": true})
}

fn body_of(result: &Value) -> String {
    String::from_utf8(decoded(&result["bodyBase64"])).expect("text")
}

/// The values of a header of an answer.
fn header<'a>(result: &'a Value, name: &str) -> Vec<&'a str> {
    let headers = result["headers"].as_array().expect("headers");
    headers.iter().filter(|header| header["name"] == name).filter_map(|header| header["value"].as_str()).collect()
}

/// Reads a streamed body; returns all of it and its final error.
fn read_stream(client: &mut Client, id: &str) -> (Vec<u8>, Value) {
    let (mut all, mut seq) = (Vec::new(), 0);
    loop {
        let note = client.next_notification();
        assert_eq!((&note["method"], &note["params"]["requestId"]), (&json!("http/request/bodyDelta"), &json!(id)));
        seq += 1;
        assert_eq!(note["params"]["seq"], seq, "{note}");
        let bytes = decoded(&note["params"]["deltaBase64"]);
        assert!(bytes.len() <= 1 << 20);
        all.extend_from_slice(&bytes);
        if note["params"]["done"] == true {
            assert!(bytes.is_empty());
            return (all, note["params"]["error"].clone());
        }
        assert!(!bytes.is_empty());
    }
}

#[test]
fn exec_server_http_request_buffers_response_body() {
    let target = Target::start(|_, stream| {
        let head = b"HTTP/1.1 201 Created\r\nconnection: close\r\nx-reply: one\r\nX-Reply: two\r\nx-odd: caf\xe9\r\nx-last: end\r\n\r\n";
        stream.write_all(&[head.as_slice(), b"hello \x00\xff"].concat()).expect("answer");
    });
    let (_server, mut client) = TestServer::with_client();
    let result = client.ok(
        "http/request",
        json!({
            "method": "POST",
            "url": target.url("/path?query=1"),
            "headers": [
                {"name": "X-First", "value": "a"},
                {"name": "x-many", "value": "1"},
                {"name": "x-many", "value": "2"},
            ],
            "bodyBase64": encode_base64(b"request body"),
            "requestId": "buffered",
            // A null member is the same as a missing one.
            "timeoutMs": null,
            "streamResponse": null,
            "redirectPolicy": null,
        }),
    );
    let received = decoded(&result["bodyBase64"]);
    assert_eq!((result["status"].as_u64(), received.as_slice()), (Some(201), b"hello \x00\xff".as_slice()));
    assert_eq!((header(&result, "x-reply"), header(&result, "x-last")), (vec!["one", "two"], vec!["end"]));
    assert_eq!(header(&result, "x-odd"), Vec::<&str>::new(), "a value that is no UTF-8 is left out");
    let asked = target.asked();
    assert_eq!((asked.len(), asked[0].method.as_str(), asked[0].path.as_str()), (1, "POST", "/path?query=1"));
    assert_eq!((asked[0].all("x-first"), asked[0].all("x-many")), (vec!["a"], vec!["1", "2"]));
    assert_eq!(asked[0].body, b"request body");
    let at = |name: &str| asked[0].headers.iter().position(|(known, _)| known == name);
    assert!(at("x-first") < at("x-many"), "{:?}", asked[0].headers);
}

#[test]
fn exec_server_http_request_streams_response_body_notifications() {
    let (next_tx, next_rx) = mpsc::channel::<()>();
    let next_rx = Mutex::new(next_rx);
    let target = Target::start(move |_, stream| {
        target::begin(stream, "text/plain");
        for piece in ["one ", "two ", "three"] {
            next_rx.lock().expect("nobody panics").recv().expect("the test goes on");
            target::chunk(stream, piece.as_bytes());
        }
        target::chunk(stream, b"");
    });
    let (_server, mut client) = TestServer::with_client();
    let result = client.ok("http/request", stream(&target.url("/"), "s"));
    assert_members(&result, json!({"status": 200, "bodyBase64": ""}));
    assert_eq!(header(&result, "content-type"), ["text/plain"]);
    for (seq, piece) in ["one ", "two ", "three"].iter().enumerate() {
        next_tx.send(()).expect("the target waits");
        let note = client.next_notification();
        let params =
            json!({"requestId": "s", "seq": seq + 1, "deltaBase64": encode_base64(piece.as_bytes()), "done": false});
        assert_eq!(note, json!({"method": "http/request/bodyDelta", "params": params}));
    }
    let end = client.next_notification();
    assert_eq!(end["params"], json!({"requestId": "s", "seq": 4, "deltaBase64": "", "done": true}));
    // An empty body also has an end, and the request id is free again.
    let empty = Target::saying("");
    client.ok("http/request", stream(&empty.url("/"), "s"));
    assert_eq!(read_stream(&mut client, "s"), (Vec::new(), Value::Null));
}

#[test]
fn a_streamed_body_that_breaks_off_ends_with_an_error() {
    let target = Target::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nnot all").expect("answer");
    });
    let (_server, mut client) = TestServer::with_client();
    client.ok("http/request", stream(&target.url("/"), "s"));
    let (body, error) = read_stream(&mut client, "s");
    assert_eq!(body, b"not all");
    assert!(error.as_str().is_some_and(|text| text.contains("127.0.0.1")), "{error}");
    client.refuses("http/request", get(&target.url("/")), -32603, "httpFailed");
}

#[test]
fn exec_server_http_request_rejects_duplicate_stream_request_ids() {
    let target = Target::start(|asked, stream| {
        target::begin(stream, "text/plain");
        if asked.path == "/open" {
            target::wait_closed(stream);
        }
        target::chunk(stream, b"");
    });
    let (server, mut client) = TestServer::with_client();
    client.ok("http/request", stream(&target.url("/open"), "same"));
    client.refuses("http/request", stream(&target.url("/"), "same"), -32602, "duplicateRequest");
    assert_eq!(target.asked().len(), 1, "nothing was sent");
    // Another id, another connection, and a buffered request with the same id are not affected.
    client.ok("http/request", stream(&target.url("/"), "other"));
    read_stream(&mut client, "other");
    client.ok("http/request", json!({"method": "GET", "url": target.url("/"), "requestId": "same"}));
    let mut second = server.client();
    second.ok("http/request", stream(&target.url("/"), "same"));
    assert_eq!(read_stream(&mut second, "same"), (Vec::new(), Value::Null));
}

#[test]
fn exec_server_http_request_honors_optional_timeout() {
    let (go_tx, go_rx) = mpsc::channel::<()>();
    let go_rx = Mutex::new(go_rx);
    let target = Target::start(move |asked, stream| match asked.path.as_str() {
        "/never" => target::wait_closed(stream),
        "/half" => {
            target::begin(stream, "text/plain");
            target::chunk(stream, b"half");
            target::wait_closed(stream);
        }
        _ => {
            go_rx.lock().expect("nobody panics").recv().expect("the test goes on");
            target::respond(stream, "200 OK", &[], b"late");
        }
    });
    let (_server, mut client) = TestServer::with_client();
    let timed =
        |path: &str, ms: u64| json!({"method": "GET", "url": target.url(path), "requestId": path, "timeoutMs": ms});
    client.refuses("http/request", timed("/never", 50), -32603, "httpTimeout");
    client.refuses("http/request", timed("/half", 50), -32603, "httpTimeout");
    // The timeout covers the whole request: the head arrived in time, the body did not.
    let mut params = timed("/half", 1500);
    params["streamResponse"] = json!(true);
    client.ok("http/request", params);
    let (body, error) = read_stream(&mut client, "/half");
    assert_eq!(body, b"half");
    assert!(error.as_str().is_some_and(|text| text.contains("1500 ms")), "{error}");
    // Without a timeout the request takes as long as needed and delays no other.
    for timeout in [None, Some(Value::Null)] {
        let mut params = get(&target.url("/late"));
        if let Some(timeout) = timeout {
            params["timeoutMs"] = timeout;
        }
        let late = client.send_request("http/request", params);
        assert_eq!(client.ok("environment/status", json!({})), json!({"status": "ready"}));
        go_tx.send(()).expect("the target waits");
        assert_eq!(body_of(&client.answer(late).expect("an answer")), "late");
    }
}

#[test]
fn exec_server_http_request_rejects_protected_environment_headers() {
    let target = Target::saying("hello");
    let server = TestServer::builder()
        .env("API_KEY", "k3y")
        .env("NODE_REPL_AUTH_TOKEN", "n0de")
        .env("CODEX_API_KEY", "c0dex")
        .env("EMPTY", "")
        .env("BREAKS", "a\nb")
        .start();
    let mut client = server.client();
    let with = |variable: &str| {
        let header = json!({"name": "authorization", "value": "Bearer ", "valueEnvVar": variable});
        json!({"method": "GET", "url": target.url("/"), "headers": [header], "requestId": "r"})
    };
    for variable in [
        "EXEC_SERVER_TOKEN",
        "exec_server_token",
        "CODEX_API_KEY",
        "codex_api_KEY",
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "OPENAI_IDENTITY_TOKEN_FILE",
        "CREDENTIALS_DIRECTORY",
        "NOT_THERE",
        "EMPTY",
        "BREAKS",
    ] {
        let error = client.refuses("http/request", with(variable), -32602, "invalidParams");
        assert!(!error.message.contains("c0dex"), "{}", error.message);
    }
    assert_eq!(target.asked(), [], "no connection was made");
    client.ok("http/request", with("API_KEY"));
    assert_eq!(target.asked()[0].all("authorization"), ["Bearer k3y"]);
    client.ok("http/request", with("NODE_REPL_AUTH_TOKEN"));
    assert_eq!(target.asked()[1].all("authorization"), ["Bearer n0de"]);
}

#[test]
fn exec_server_http_request_omits_url_fragment() {
    let target = Target::saying("hello");
    let server = TestServer::start();
    let result = server.client().ok("http/request", get(&target.url("/a?b#secret")));
    assert_eq!(body_of(&result), "hello");
    assert_eq!(target.asked()[0].path, "/a?b");
    assert!(!format!("{:?}", target.asked()).contains("secret"));
}

#[test]
fn exec_server_http_request_normalizes_unicode_hostname() {
    let proxy = Target::saying("by proxy");
    let server = TestServer::builder().env("http_proxy", &proxy.url("")).start();
    let result = server.client().ok("http/request", get("http://b\u{fc}cher.EXAMPLE/x"));
    assert_eq!(body_of(&result), "by proxy");
    let asked = &proxy.asked()[0];
    assert_eq!(asked.path, "http://xn--bcher-kva.example/x");
    assert_eq!(asked.all("host"), ["xn--bcher-kva.example"]);
}

#[test]
fn exec_server_http_request_uses_configured_system_proxy() {
    let (proxy, target) = (Target::saying("by proxy"), Target::saying("itself"));
    let server = TestServer::builder()
        .env("HTTP_PROXY", &format!("http://user:pass@{}", proxy.address()))
        .env("NO_PROXY", "127.0.0.1")
        .start();
    let mut client = server.client();
    assert_eq!(body_of(&client.ok("http/request", get("http://somewhere.example/x?y"))), "by proxy");
    let asked = &proxy.asked()[0];
    assert_eq!(asked.path, "http://somewhere.example/x?y");
    assert_eq!(asked.all("proxy-authorization"), [format!("Basic {}", encode_base64(b"user:pass"))]);
    assert_eq!(body_of(&client.ok("http/request", get(&target.url("/")))), "itself");
    assert_eq!(proxy.asked().len(), 1, "what needs no proxy goes without");
    // With TLS the proxy gets a CONNECT request, which it refuses.
    let server = TestServer::builder().env("https_proxy", &proxy.url("")).start();
    let error = server.client().fails("http/request", get("https://secure.example/"));
    assert_error(&error, -32603, "httpFailed");
    let last = proxy.asked().pop().expect("it was asked");
    assert_eq!((last.method.as_str(), last.path.as_str()), ("CONNECT", "secure.example:443"));
}

/// A target that redirects from `/from` to `/to`.
fn leading() -> Target {
    Target::start(|asked, stream| match asked.path.as_str() {
        "/to" => target::respond(stream, "200 OK", &[], b"there"),
        "/round" => target::respond(stream, "302 Found", &[("location", "/round")], b""),
        "/file" => target::respond(stream, "302 Found", &[("location", "file:///etc/passwd")], b""),
        "/same" => target::respond(stream, "307 Temporary Redirect", &[("location", "/to#part")], b""),
        _ => target::respond(stream, "302 Found", &[("location", "/to"), ("x-step", "first")], b"moved"),
    })
}

#[test]
fn exec_server_http_request_can_stop_at_redirects() {
    let target = leading();
    let server = TestServer::start();
    let mut params = get(&target.url("/from"));
    params["redirectPolicy"] = json!("stop");
    let result = server.client().ok("http/request", params);
    assert_eq!((&result["status"], body_of(&result).as_str()), (&json!(302), "moved"));
    assert_eq!((header(&result, "location"), header(&result, "x-step")), (vec!["/to"], vec!["first"]));
    assert_eq!(target.asked().len(), 1);
}

#[test]
fn exec_server_http_request_can_follow_redirects() {
    let target = leading();
    let (_server, mut client) = TestServer::with_client();
    let mut post = get(&target.url("/from"));
    (post["method"], post["bodyBase64"]) = (json!("POST"), json!(encode_base64(b"once")));
    let result = client.ok("http/request", post.clone());
    assert_eq!((&result["status"], body_of(&result).as_str()), (&json!(200), "there"));
    let last = target.asked().pop().expect("it was asked");
    assert_eq!((last.method.as_str(), last.body.as_slice()), ("GET", b"".as_slice()));
    (post["url"], post["redirectPolicy"]) = (json!(target.url("/same")), json!("follow"));
    client.ok("http/request", post);
    let last = target.asked().pop().expect("it was asked");
    assert_eq!((last.method.as_str(), last.path.as_str(), last.body.as_slice()), ("POST", "/to", b"once".as_slice()));
    let before = target.asked().len();
    client.refuses("http/request", get(&target.url("/round")), -32603, "httpFailed");
    assert_eq!(target.asked().len(), before + 11, "ten are followed");
    client.refuses("http/request", get(&target.url("/file")), -32603, "httpFailed");
}

#[test]
fn exec_server_http_request_failures_of_the_transport_begin_with_the_text_that_clients_retry() {
    let target = Target::start(|asked, stream| match asked.path.as_str() {
        "/never" => target::wait_closed(stream),
        _ => drop(stream.shutdown(std::net::Shutdown::Both)),
    });
    // A port that was just released, so nothing listens on it.
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let (_server, mut client) = TestServer::with_client();
    for (url, timeout, kind) in [
        (format!("http://{free}/"), None, "httpFailed"),
        ("http://no-such-host.invalid/".to_owned(), None, "httpFailed"),
        (target.url("/broken"), None, "httpFailed"),
        (target.url("/never"), Some(50), "httpTimeout"),
    ] {
        let params = json!({"method": "GET", "url": url, "requestId": url, "timeoutMs": timeout});
        let error = client.refuses("http/request", params, -32603, kind);
        assert!(error.message.starts_with("http/request failed: "), "{url}: {}", error.message);
    }
    // An invalid request must not look like one that is worth a retry.
    let error = client.fails("http/request", json!({"method": "GET", "url": "ftp://x/", "requestId": "r"}));
    assert_error(&error, -32602, "invalidParams");
    assert!(!error.message.starts_with("http/request failed: "), "{}", error.message);
}

#[test]
fn a_file_of_authorities_in_the_reference_s_variable_counts_like_ssl_cert_file() {
    let dir = tempfile::tempdir().expect("make a directory");
    let authority = Authority::new(dir.path(), "authority");
    let identity = authority.server("server");
    let secure = TestServer::builder()
        .listen("wss://127.0.0.1:0")
        .arg("--tls-cert")
        .arg(&identity.cert.display().to_string())
        .arg("--tls-key")
        .arg(&identity.key.display().to_string())
        .start();
    let url = format!("https://{}/healthz", secure.address());
    let status_with = |variables: &[(&str, &str)]| {
        let builder = variables.iter().fold(TestServer::builder(), |builder, (name, value)| builder.env(name, value));
        let server = builder.start();
        server.client().call("http/request", get(&url)).map(|result| result["status"].as_u64())
    };
    let (ca, other) = (authority.ca().display().to_string(), Authority::new(dir.path(), "other").ca());
    let other = other.display().to_string();
    status_with(&[]).expect_err("nobody vouches for it");
    let by_ssl = status_with(&[("SSL_CERT_FILE", &ca)]).expect("an answer");
    assert!(by_ssl.is_some());
    assert_eq!(status_with(&[("CODEX_CA_CERTIFICATE", &ca)]).expect("an answer"), by_ssl);
    assert_eq!(status_with(&[("CODEX_CA_CERTIFICATE", &ca), ("SSL_CERT_FILE", &other)]).expect("it wins"), by_ssl);
    assert_eq!(status_with(&[("CODEX_CA_CERTIFICATE", ""), ("SSL_CERT_FILE", &ca)]).expect("empty is unset"), by_ssl);
    status_with(&[("CODEX_CA_CERTIFICATE", "/no/such/file")]).expect_err("nobody vouches for it");
}
