//! HTTP through the client library, embedded and on a server, with the same rules. A test's name is the place and the claim. Tests with the
//! names of the reference are its tests of `http/request`.

use crate::prelude::*;
use exec_server_client::{
    http::{RedirectPolicy, Request},
    protocol::{failure::Kind as Failure, limits},
};

at_both_places! {
    http_request_buffers_response_body
    http_request_streams_response_body
    http_request_honors_optional_timeout
    http_request_rejects_protected_environment_headers
    http_request_can_stop_at_and_follow_redirects
    http_request_normalizes_unicode_hostname
    http_request_failures_are_told_apart
    a_slow_reader_of_a_large_body_gets_all_of_it
    a_dropped_body_or_request_ends_the_download
    many_streams_hold_up_neither_each_other_nor_anything_else
}

fn kind(error: &Error) -> Option<Failure> {
    error.server_kind()
}

async fn http_request_buffers_response_body(place: &Place) {
    let target = Target::start(|asked, stream| {
        let headers = [("x-reply", "one"), ("x-reply", "two")];
        target::respond(stream, "201 Created", &headers, &[b"got ", asked.body.as_slice()].concat());
    });
    let request =
        Request::new("POST", target.url("/path?q#fragment")).header("x-n", "1").header("x-n", "2").body("body");
    let response = soon("an answer", place.client().http_request(&request)).await.expect("an answer");
    assert_eq!((response.status, &*response.body), (201, b"got body".as_slice()));
    let replies = response.headers.iter().filter(|header| header.name == "x-reply").map(|header| header.value.as_str());
    assert_eq!(replies.collect::<Vec<_>>(), ["one", "two"]);
    let asked = &target.asked()[0];
    assert_eq!((asked.method.as_str(), asked.path.as_str(), asked.all("x-n")), ("POST", "/path?q", vec!["1", "2"]));
}

async fn http_request_streams_response_body(place: &Place) {
    let target = Target::start(|_, stream| {
        target::begin(stream, "text/plain");
        for piece in ["one ", "two ", "three", ""] {
            target::chunk(stream, piece.as_bytes());
        }
    });
    for _ in 0..2 {
        let request = Request::new("GET", target.url("/"));
        let mut response = soon("a head", place.client().http_stream(&request)).await.expect("a head");
        assert_eq!((response.status, response.header("Content-Type")), (200, Some("text/plain")));
        let mut all = Vec::new();
        while let Some(piece) = soon("a piece", response.body.chunk()).await.expect("a piece") {
            all.extend_from_slice(&piece);
        }
        assert_eq!(all, b"one two three");
        assert!(response.body.chunk().await.expect("it stays at its end").is_none());
    }
}

async fn http_request_honors_optional_timeout(place: &Place) {
    let target = Target::start(|asked, stream| match asked.path.as_str() {
        "/never" => target::wait_closed(stream),
        _ => target::respond(stream, "200 OK", &[], b"in time"),
    });
    let timed = Request::new("GET", target.url("/never")).timeout(Duration::from_millis(50));
    let error = soon("the timeout", place.client().http_request(&timed)).await.expect_err("no answer");
    assert_eq!(kind(&error), Some(Failure::HttpTimeout), "{error}");
    let error = soon("the timeout", place.client().http_stream(&timed)).await.expect_err("no answer");
    assert_eq!(kind(&error), Some(Failure::HttpTimeout), "{error}");
    let request = Request::new("GET", target.url("/"));
    assert_eq!(soon("an answer", place.client().http_request(&request)).await.expect("an answer").status, 200);
}

async fn http_request_rejects_protected_environment_headers(place: &Place) {
    let target = Target::saying("hello");
    for variable in ["EXEC_SERVER_TOKEN", "Codex_Api_Key", "OPENAI_WORKLOAD_IDENTITY_CONTEXT", "NOT_THERE"] {
        let request = Request::new("GET", target.url("/")).header_from_server("authorization", "Bearer ", variable);
        let error = place.client().http_request(&request).await.expect_err("it is refused");
        assert_eq!(kind(&error), Some(Failure::InvalidParams), "{variable}: {error}");
    }
    assert_eq!(target.asked(), []);
    let request = Request::new("GET", target.url("/")).header_from_server("x-there", "is ", "ONLY_THERE");
    place.client().http_request(&request).await.expect("an answer");
    assert_eq!(target.asked()[0].all("x-there"), ["is yes"]);
}

async fn http_request_normalizes_unicode_hostname(place: &Place) {
    let target = Target::saying("hello");
    let (_, port) = target.address().split_once(':').expect("a port");
    // Full-width digits that are normalized to an IP address, so that no DNS lookup is needed.
    let url = format!("http://\u{ff11}\u{ff12}\u{ff17}.0.0.\u{ff11}:{port}/x");
    let response = soon("an answer", place.client().http_request(&Request::new("GET", url))).await.expect("an answer");
    assert_eq!(&*response.body, b"hello");
    let asked = &target.asked()[0];
    assert_eq!((asked.path.as_str(), asked.all("host")), ("/x", vec![target.address()]));
}

async fn http_request_can_stop_at_and_follow_redirects(place: &Place) {
    let target = Target::start(|asked, stream| match asked.path.as_str() {
        "/to" => target::respond(stream, "200 OK", &[], b"there"),
        _ => target::respond(stream, "302 Found", &[("location", "/to")], b"moved"),
    });
    let request = Request::new("GET", target.url("/from"));
    let followed = place.client().http_request(&request).await.expect("an answer");
    assert_eq!((followed.status, &*followed.body), (200, b"there".as_slice()));
    let stopped = place.client().http_request(&request.redirect(RedirectPolicy::Stop)).await.expect("an answer");
    assert_eq!((stopped.status, stopped.header("location"), &*stopped.body), (302, Some("/to"), b"moved".as_slice()));
}

async fn http_request_failures_are_told_apart(place: &Place) {
    let gone = Target::saying("").url("/");
    let large = Target::start(|_, stream| {
        target::respond(stream, "200 OK", &[], &vec![0; limits::HTTP_BODY_BYTES + 1]);
    });
    for (url, expected) in [
        (gone.as_str(), Failure::HttpFailed),
        ("http://no-such-host.invalid/", Failure::HttpFailed),
        ("gopher://host/", Failure::InvalidParams),
        (&large.url("/"), Failure::HttpTooLarge),
    ] {
        let error = place.client().http_request(&Request::new("GET", url)).await.expect_err("no answer");
        assert_eq!(kind(&error), Some(expected), "{url}: {error}");
    }
    // A streamed body may have any size.
    let response = place.client().http_stream(&Request::new("GET", large.url("/"))).await.expect("a head");
    let all = response.body.collect_up_to(usize::MAX).await.expect("all of it");
    assert_eq!(all.len(), limits::HTTP_BODY_BYTES + 1);
}

async fn a_slow_reader_of_a_large_body_gets_all_of_it(place: &Place) {
    // Three times what a client buffers for a server that cannot wait.
    let bytes = Arc::new(pattern(7, 3 * limits::HTTP_BYTES_KEPT));
    let sent = Arc::new(AtomicUsize::new(0));
    let target = Target::start({
        let (bytes, sent) = (bytes.clone(), sent.clone());
        move |_, stream| {
            target::begin(stream, "application/octet-stream");
            for part in bytes.chunks(100_000) {
                target::chunk(stream, part);
                sent.fetch_add(part.len(), Ordering::Relaxed);
            }
            target::chunk(stream, b"");
        }
    });
    let mut body = place.client().http_stream(&Request::new("GET", target.url("/"))).await.expect("a head").body;
    // The body is not read, so the target comes to a standstill long before the end.
    let mut last = 0;
    until("the target stands still", async || {
        let before = std::mem::replace(&mut last, sent.load(Ordering::Relaxed));
        tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.ok();
        before > 0 && before == last
    })
    .await;
    assert!(last < bytes.len() / 2, "{last} bytes were read for nobody");
    let mut all = Vec::new();
    while let Some(piece) = soon("a piece", body.chunk()).await.expect("a piece") {
        all.extend_from_slice(&piece);
    }
    assert_same("the body", &all, &bytes);
}

async fn a_dropped_body_or_request_ends_the_download(place: &Place) {
    let gone = Arc::new(AtomicUsize::new(0));
    let target = Target::start({
        let gone = gone.clone();
        move |asked, stream| {
            if asked.path == "/body" {
                target::begin(stream, "text/event-stream");
                target::chunk(stream, b"first");
            }
            target::wait_closed(stream);
            gone.fetch_add(1, Ordering::Relaxed);
        }
    });
    let client: &Client = place.client();
    let request = Request::new("GET", target.url("/body"));
    let mut body = client.http_stream(&request).await.expect("a head").body;
    assert_eq!(soon("a piece", body.chunk()).await.expect("a piece").as_deref(), Some(b"first".as_slice()));
    drop(body);
    until("the download ends", async || gone.load(Ordering::Relaxed) == 1).await;
    // Cancel before the head has arrived: as a stream and as a whole response.
    let request = Request::new("GET", target.url("/never"));
    for (n, is_stream) in [(2, true), (3, false)] {
        let asking = async {
            match is_stream {
                true => drop(client.http_stream(&request).await),
                false => drop(client.http_request(&request).await),
            }
        };
        tokio::select! {
            () = asking => panic!("nobody answers"),
            () = until("the target is asked", async || target.asked().len() == n) => {}
        }
        until("the request ends", async || gone.load(Ordering::Relaxed) == n).await;
    }
    client.environment_status().await.expect("the session goes on");
}

async fn many_streams_hold_up_neither_each_other_nor_anything_else(place: &Place) {
    let target = Target::start(|asked, stream| {
        target::begin(stream, "text/plain");
        match asked.path.as_str() {
            "/quiet" => target::wait_closed(stream),
            _ => while target::chunk(stream, &[7; 64 << 10]) {},
        }
    });
    let client = place.client();
    // Some streams have much data that is not read; the others have no data.
    let mut open = Vec::new();
    for n in 0..40 {
        let path = if n % 4 == 0 { "/flood" } else { "/quiet" };
        open.push(client.http_stream(&Request::new("GET", target.url(path))).await.expect("a head"));
    }
    let hello = Target::saying("hello");
    let whole = soon("a whole answer", client.http_request(&Request::new("GET", hello.url("/")))).await;
    assert_eq!(&*whole.expect("an answer").body, b"hello");
    let streamed = client.http_stream(&Request::new("GET", hello.url("/"))).await.expect("a head");
    assert_eq!(soon("a short body", streamed.body.collect_up_to(100)).await.expect("a body"), b"hello");
    assert_eq!(place.say("echo fine").await, "fine\n");
}
