//! `http/request` beyond the reference: cancellation, windows, slow readers, the end of the connection, limits, and requests that are
//! refused before anything is sent.

use std::sync::{atomic::AtomicU64, mpsc};

use crate::{prelude::*, wire::http_request::stream};
use exec_server_protocol::limits;

/// A target that sends 64 KiB again and again, and reports when its client has disconnected.
fn endless() -> (Target, Arc<AtomicU64>, mpsc::Receiver<()>) {
    let (gone_tx, gone_rx) = mpsc::channel();
    let (sent, gone_tx) = (Arc::new(AtomicU64::new(0)), Mutex::new(gone_tx));
    let target = Target::start({
        let sent = sent.clone();
        move |asked, stream| {
            target::begin(stream, "application/octet-stream");
            if asked.path == "/quiet" {
                target::chunk(stream, b"first");
                target::wait_closed(stream);
            } else {
                while target::chunk(stream, &[7; 64 << 10]) {
                    sent.fetch_add(64 << 10, Ordering::Relaxed);
                }
            }
            // The test may be over.
            gone_tx.lock().expect("nobody panics").send(()).ok();
        }
    });
    (target, sent, gone_rx)
}

fn is_gone(gone: &mpsc::Receiver<()>) {
    gone.recv_timeout(Duration::from_secs(20)).expect("the target's connection is closed");
}

/// The last delta of a stream.
fn end(client: &mut Client, id: &str) -> Value {
    loop {
        let note = client.next_notification();
        if note["params"]["requestId"] == id && note["params"]["done"] == true {
            return note["params"].clone();
        }
    }
}

#[test]
fn a_stream_that_is_called_off_ends_the_download_and_says_so() {
    let (target, _, gone) = endless();
    let (_server, mut client) = TestServer::with_client();
    client.ok("http/request", stream(&target.url("/quiet"), "s"));
    assert_eq!(client.ok("http/cancel", json!({"requestId": "other"})), json!({"cancelled": false}));
    assert_eq!(client.ok("http/cancel", json!({"requestId": "s"})), json!({"cancelled": true}));
    is_gone(&gone);
    assert_eq!(end(&mut client, "s")["error"], "the HTTP request was cancelled");
    assert_eq!(client.ok("http/cancel", json!({"requestId": "s"})), json!({"cancelled": false}));
    // A buffered request can be cancelled too.
    let whole =
        client.send_request("http/request", json!({"method": "GET", "url": target.url("/quiet"), "requestId": "w"}));
    wait_for("the target to be asked", || target.asked().len() == 2);
    assert_eq!(client.ok("http/cancel", json!({"requestId": "w"})), json!({"cancelled": true}));
    is_gone(&gone);
    assert_error(&client.answer(whole).expect_err("it was cancelled"), -32600, "httpCancelled");
}

#[test]
fn everything_under_way_ends_with_its_connection() {
    let (target, _, gone) = endless();
    let (_server, mut client) = TestServer::with_client();
    client.ok("http/request", stream(&target.url("/quiet"), "s"));
    client.ok("http/request", stream(&target.url("/flood"), "f"));
    client.send_request("http/request", json!({"method": "GET", "url": target.url("/quiet"), "requestId": "w"}));
    wait_for("the target to be asked", || target.asked().len() == 3);
    drop(client);
    (0..3).for_each(|_| is_gone(&gone));
}

#[test]
fn a_body_is_read_no_faster_than_the_peer_takes_it() {
    let (target, sent, gone) = endless();
    let (_server, mut client) = TestServer::with_client();
    client.ok("http/request", stream(&target.url("/flood"), "f"));
    // The client does not read: the buffers fill up, and then the server stops reading from the target.
    let mut last = 0;
    wait_for("the target to stand still", || {
        let before = std::mem::replace(&mut last, sent.load(Ordering::Relaxed));
        std::thread::park_timeout(Duration::from_millis(100));
        before > 0 && before == last
    });
    assert!(last < 32 << 20, "{last} bytes were read for a peer that takes none");
    // Reading continues from there, with answers in between.
    let mut bytes = 0;
    while bytes < 2 * last {
        let note = client.next_notification();
        bytes += decoded(&note["params"]["deltaBase64"]).len() as u64;
    }
    client.ok("http/cancel", json!({"requestId": "f"}));
    is_gone(&gone);
}

#[test]
fn a_window_holds_a_body_and_nothing_else() {
    let (target, _, gone) = endless();
    let (_server, mut client) = TestServer::with_client();
    let mut params = stream(&target.url("/flood"), "f");
    params["window"] = json!(3);
    client.ok("http/request", params);
    let take = |client: &mut Client, seq: u64| assert_eq!(client.next_notification()["params"]["seq"], seq);
    (1..=3).for_each(|seq| take(&mut client, seq));
    // Answers are not held back. Acknowledgements of other streams and outdated or malformed ones do not open the window.
    client.notify("http/request/ack", json!({"requestId": "other", "seq": 9}));
    client.notify("http/request/ack", json!({"requestId": "f", "seq": 0}));
    client.notify("http/request/ack", json!({"nonsense": true}));
    assert_eq!(client.ok("environment/status", json!({})), json!({"status": "ready"}));
    assert_eq!(client.next_notification_within(Duration::from_millis(200)), None, "the window is full");
    client.notify("http/request/ack", json!({"requestId": "f", "seq": 2}));
    (4..=5).for_each(|seq| take(&mut client, seq));
    client.ok("http/cancel", json!({"requestId": "f"}));
    // The final delta needs no room in the window.
    assert_eq!(end(&mut client, "f")["done"], true);
    is_gone(&gone);
}

#[test]
fn requests_have_bounds_that_are_told() {
    let large = Target::start(|asked, stream| {
        let is_told = asked.path == "/told";
        match is_told {
            true => target::respond(stream, "200 OK", &[], &vec![b'x'; limits::HTTP_BODY_BYTES + 1]),
            false => {
                target::begin(stream, "text/plain");
                let mut left = limits::HTTP_BODY_BYTES + 1;
                while left > 0 && target::chunk(stream, &vec![b'x'; left.min(1 << 20)]) {
                    left -= left.min(1 << 20);
                }
                target::chunk(stream, b"");
            }
        }
    });
    let (_server, mut client) = TestServer::with_client();
    for path in ["/told", "/untold"] {
        let params = json!({"method": "GET", "url": large.url(path), "requestId": "r"});
        let error = client.refuses("http/request", params, -32603, "httpTooLarge");
        assert!(error.message.contains("16777216") && error.message.contains("streamResponse"), "{}", error.message);
    }
    let (target, _, gone) = endless();
    for n in 0..limits::HTTP_REQUESTS {
        client.ok("http/request", stream(&target.url("/quiet"), &n.to_string()));
    }
    client.refuses("http/request", stream(&target.url("/quiet"), "more"), -32600, "overloaded");
    client.ok("http/cancel", json!({"requestId": "0"}));
    is_gone(&gone);
    end(&mut client, "0");
    client.ok("http/request", stream(&target.url("/quiet"), "more"));
}

#[test]
fn a_large_body_comes_whole_both_ways() {
    let bytes: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 7) as u8).collect();
    let target = Target::start(|asked, stream| target::respond(stream, "200 OK", &[], &asked.body));
    let (_server, mut client) = TestServer::with_client();
    let mut params =
        json!({"method": "PUT", "url": target.url("/"), "bodyBase64": encode_base64(&bytes), "requestId": "r"});
    let result = client.ok("http/request", params.clone());
    assert!(decoded(&result["bodyBase64"]) == bytes);
    params["streamResponse"] = json!(true);
    client.ok("http/request", params);
    let mut streamed = Vec::new();
    loop {
        let note = client.next_notification();
        streamed.extend(decoded(&note["params"]["deltaBase64"]));
        if note["params"]["done"] == true {
            break;
        }
    }
    assert!(streamed == bytes);
}

#[test]
fn nonsense_is_refused_before_anything_is_sent() {
    let target = Target::saying("hello");
    let (_server, mut client) = TestServer::with_client();
    let good = json!({"method": "GET", "url": target.url("/"), "requestId": "r"});
    let header = |name: &str, value: &str| json!([{"name": name, "value": value}]);
    let many: Vec<Value> = (0..257).map(|n| json!({"name": format!("x-{n}"), "value": ""})).collect();
    for (key, value) in [
        ("method", json!("")),
        ("method", json!("GE T")),
        ("method", json!("CONNECT")),
        ("method", json!(7)),
        ("url", json!("")),
        ("url", json!("/relative")),
        ("url", json!("ftp://host/")),
        ("url", json!("file:///etc/passwd")),
        ("url", json!("http://")),
        ("url", json!("http://[::1/")),
        ("url", json!(format!("http://host/{}", "x".repeat(limits::HTTP_URL_BYTES)))),
        ("headers", header("", "x")),
        ("headers", header("sp ace", "x")),
        ("headers", header("x", "line\nbreak")),
        ("headers", header("x", "nul\0")),
        ("headers", header("Transfer-Encoding", "chunked")),
        ("headers", header("connection", "keep-alive")),
        ("headers", header("upgrade", "websocket")),
        ("headers", header("content-length", "5")),
        ("headers", header("x", &"x".repeat(limits::HTTP_HEADER_BYTES))),
        ("headers", json!(many)),
        ("headers", json!("none")),
        ("bodyBase64", json!("not base64")),
        ("bodyBase64", json!("aGk")),
        ("timeoutMs", json!(-1)),
        ("timeoutMs", json!("soon")),
        ("redirectPolicy", json!("sometimes")),
        ("requestId", json!(null)),
        ("requestId", json!("x".repeat(limits::HTTP_REQUEST_ID_BYTES + 1))),
        ("streamResponse", json!("yes")),
    ] {
        let mut params = good.clone();
        params[key] = value.clone();
        let error = client.refuses("http/request", params, -32602, "invalidParams");
        assert!(error.message.len() <= limits::ERROR_TEXT_BYTES, "{key} {value}");
    }
    assert_eq!(target.asked(), []);
    client.ok("http/request", good);
}

#[test]
fn another_origin_hears_no_credentials() {
    let there = Target::saying("there");
    let place = there.url("/");
    let here = Target::start(move |asked, stream| match asked.path.as_str() {
        "/same" => target::respond(stream, "307 Temporary Redirect", &[("location", "/end")], b""),
        "/other" => target::respond(stream, "307 Temporary Redirect", &[("location", &place)], b""),
        _ => target::respond(stream, "200 OK", &[], b"end"),
    });
    let server = TestServer::builder().env("API_KEY", "k3y").start();
    let mut client = server.client();
    for path in ["/same", "/other"] {
        let headers = json!([
            {"name": "authorization", "value": "Bearer t"},
            {"name": "cookie", "value": "c=1"},
            {"name": "x-api-key", "value": "", "valueEnvVar": "API_KEY"},
            {"name": "accept", "value": "text/plain"},
        ]);
        let params = json!({"method": "POST", "url": here.url(path), "headers": headers, "requestId": "r"});
        client.ok("http/request", params);
    }
    let kept =
        |asked: &testkit::Asked| ["authorization", "cookie", "x-api-key", "accept"].map(|name| asked.all(name).len());
    let asked = here.asked();
    assert_eq!(asked.iter().map(kept).collect::<Vec<_>>(), [[1, 1, 1, 1]; 3], "the same origin hears all");
    assert_eq!(there.asked().iter().map(kept).collect::<Vec<_>>(), [[0, 0, 0, 1]]);
}
