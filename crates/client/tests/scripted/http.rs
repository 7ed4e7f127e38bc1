//! HTTP bodies streamed by a scripted server: names, order, late pieces, too many pieces, missing pieces, and cuts (spec 5.6).

use crate::prelude::*;
use exec_server_client::{
    http::{Body, RedirectPolicy, Request, Response},
    protocol::limits,
};

fn get() -> Request {
    Request::new("GET", "http://target.example/")
}

/// Servers that have neither a window nor a cancel.
const REFERENCE: [Kind; 2] = [Kind::S, Kind::H];

fn head() -> Value {
    json!({"status": 200, "headers": [{"name": "content-type", "value": "text/plain"}], "bodyBase64": ""})
}

/// Requests a stream, and plays the server's side of it. Also returns its name.
async fn open(client: &Client, peer: &mut Peer) -> (Body, String) {
    let (response, params) = both(client.http_stream(&get()), peer.serve("http/request", head())).await;
    let Response { status, body, .. } = response.unwrap();
    assert_eq!((status, &params["streamResponse"]), (200, &json!(true)));
    (body, params["requestId"].as_str().unwrap().to_owned())
}

async fn delta(peer: &mut Peer, name: &str, seq: u64, bytes: impl AsRef<[u8]>) {
    let delta = base64::encode(bytes.as_ref());
    peer.notify("http/request/bodyDelta", json!({"requestId": name, "seq": seq, "deltaBase64": delta})).await;
}

async fn done(peer: &mut Peer, name: &str, seq: u64, error: Option<&str>) {
    let end = json!({"requestId": name, "seq": seq, "deltaBase64": "", "done": true, "error": error});
    peer.notify("http/request/bodyDelta", end).await;
}

/// The remaining pieces of a body, and how it ended.
async fn rest(body: &mut Body) -> (Vec<String>, Option<String>) {
    let mut pieces = Vec::new();
    loop {
        match within(body.chunk()).await {
            Ok(Some(piece)) => pieces.push(String::from_utf8_lossy(&piece).into_owned()),
            Ok(None) => return (pieces, None),
            Err(error) => {
                assert!(within(body.chunk()).await.unwrap().is_none(), "nothing follows an error");
                return (pieces, Some(error.to_string()));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http_request_forces_buffered_request_params() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let request = Request::new("POST", "http://target.example/")
        .header("x-n", "1")
        .header("x-n", "2")
        .header_from_server("authorization", "Bearer ", "API_KEY")
        .body("hi")
        .timeout(std::time::Duration::from_millis(1500))
        .redirect(RedirectPolicy::Stop);
    let headers = json!([{"name": "x-n", "value": "a"}, {"name": "X-N", "value": "b"}]);
    let result = json!({"status": 302, "headers": headers, "bodyBase64": "aGk="});
    let (response, params) = both(client.http_request(&request), peer.serve("http/request", result)).await;
    let response = response.unwrap();
    assert_eq!((response.status, response.header("X-n"), &*response.body), (302, Some("a"), b"hi".as_slice()));
    assert_eq!(response.headers.len(), 2);
    // `streamResponse` is left out, which means false.
    let mut params = params;
    let id = params["requestId"].take();
    assert!(id.as_str().is_some_and(|id| !id.is_empty()), "{id}");
    let headers = json!([
        {"name": "x-n", "value": "1"},
        {"name": "x-n", "value": "2"},
        {"name": "authorization", "value": "Bearer ", "valueEnvVar": "API_KEY"},
    ]);
    assert_eq!(
        params,
        json!({
            "method": "POST", "url": "http://target.example/", "headers": headers, "bodyBase64": "aGk=",
            "timeoutMs": 1500, "redirectPolicy": "stop", "requestId": null,
        })
    );
    assert!(peer.is_silent().await, "what was answered is not called off");
}

#[tokio::test(start_paused = true)]
async fn http_response_body_stream_uses_generated_ids_and_receives_ordered_deltas() {
    for kind in [CURRENT, Kind::H, Kind::S] {
        let (client, mut peer, _door) = connect(kind).await;
        let (mut first, one) = open(&client, &mut peer).await;
        let (mut second, two) = open(&client, &mut peer).await;
        assert_eq!((one.as_str(), two.as_str()), ("http-1", "http-2"));
        delta(&mut peer, &two, 1, "b1").await;
        delta(&mut peer, &one, 1, "a1").await;
        delta(&mut peer, &one, 2, "a2").await;
        done(&mut peer, &one, 3, None).await;
        done(&mut peer, &two, 2, None).await;
        assert_eq!(rest(&mut first).await, (vec!["a1".to_owned(), "a2".to_owned()], None));
        assert_eq!(rest(&mut second).await, (vec!["b1".to_owned()], None));
        drop((first, second));
        assert!(peer.is_silent().await, "{kind:?}: nothing is left to call off");
    }
}

#[tokio::test(start_paused = true)]
async fn http_response_body_stream_drops_queued_terminal_before_next_generated_id() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let (body, old) = open(&client, &mut peer).await;
    done(&mut peer, &old, 1, None).await;
    settle().await;
    drop(body);
    let (mut body, name) = open(&client, &mut peer).await;
    assert_ne!(name, old);
    done(&mut peer, &old, 1, None).await;
    delta(&mut peer, &name, 1, "new").await;
    done(&mut peer, &name, 2, None).await;
    assert_eq!(rest(&mut body).await, (vec!["new".to_owned()], None));
}

#[tokio::test(start_paused = true)]
async fn http_response_body_stream_ignores_late_deltas_after_cancelled_request() {
    for kind in REFERENCE {
        let (client, mut peer, _door) = connect(kind).await;
        let request = get();
        let mut asking = Box::pin(client.http_stream(&request));
        assert!(is_pending(&mut asking).await);
        let asked = peer.request("http/request").await;
        drop(asking);
        peer.answer(&asked, head()).await;
        delta(&mut peer, "http-1", 1, "late").await;
        done(&mut peer, "http-1", 2, None).await;
        let (mut body, name) = open(&client, &mut peer).await;
        assert_eq!(name, "http-2");
        done(&mut peer, &name, 1, None).await;
        assert_eq!(rest(&mut body).await, (Vec::new(), None));
    }
}

#[tokio::test(start_paused = true)]
async fn http_response_body_stream_ignores_late_deltas_after_drop() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let (body, name) = open(&client, &mut peer).await;
    delta(&mut peer, &name, 1, "taken by nobody").await;
    settle().await;
    drop(body);
    delta(&mut peer, &name, 2, "late").await;
    done(&mut peer, &name, 3, None).await;
    settle().await;
    assert!(matches!(client.state(), ConnectionState::Connected));
    let (mut body, name) = open(&client, &mut peer).await;
    done(&mut peer, &name, 1, None).await;
    assert_eq!(rest(&mut body).await, (Vec::new(), None));
}

#[tokio::test(start_paused = true)]
async fn whoever_goes_calls_off_what_the_server_still_does() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let cancelled = json!({"cancelled": true});
    // Drop a stream before its head, and a buffered request before its answer.
    for is_stream in [true, false] {
        let request = get();
        let asking: std::pin::Pin<Box<dyn Future<Output = ()>>> = match is_stream {
            true => Box::pin(async { drop(client.http_stream(&request).await) }),
            false => Box::pin(async { drop(client.http_request(&request).await) }),
        };
        let mut asking = asking;
        assert!(is_pending(&mut asking).await);
        let asked = peer.request("http/request").await;
        drop(asking);
        let params = peer.serve("http/cancel", cancelled.clone()).await;
        assert_eq!(params["requestId"], asked.params["requestId"]);
    }
    // Drop a stream before its end.
    let (body, name) = open(&client, &mut peer).await;
    delta(&mut peer, &name, 1, "first").await;
    settle().await;
    drop(body);
    assert_eq!(peer.serve("http/cancel", cancelled).await, json!({"requestId": name}));
    // After a refusal there is nothing to cancel.
    let refusing = async {
        peer.refuse_next("http/request", -32603, Some("httpFailed"), "no route").await;
    };
    let (refused, ()) = both(client.http_stream(&get()), refusing).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Server);
    assert!(peer.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn http_response_body_stream_fails_when_transport_disconnects() {
    for kind in [CURRENT, Kind::H] {
        let (client, mut peer, mut door) = connect(kind).await;
        let (mut body, name) = open(&client, &mut peer).await;
        delta(&mut peer, &name, 1, "before").await;
        settle().await;
        peer.cut();
        let (pieces, error) = rest(&mut body).await;
        assert_eq!(pieces, ["before"]);
        let error = error.unwrap();
        assert!(error.starts_with("exec-server transport disconnected"), "{error}");
        // The session continues, and a new stream works. The old name means nothing on the new link.
        let (mut peer, _) = door.welcome(kind).await;
        is_connected(&client).await;
        let (mut body, name) = open(&client, &mut peer).await;
        assert_eq!(name, "http-2");
        done(&mut peer, "http-1", 2, None).await;
        done(&mut peer, &name, 1, None).await;
        assert_eq!(rest(&mut body).await, (Vec::new(), None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_a_cut_interrupts_is_not_made_twice() {
    let (client, mut peer, mut door) = connect(CURRENT).await;
    let request = get();
    let (mut streamed, mut whole) = (Box::pin(client.http_stream(&request)), Box::pin(client.http_request(&request)));
    assert!(is_pending(&mut streamed).await && is_pending(&mut whole).await);
    peer.request("http/request").await;
    peer.request("http/request").await;
    peer.cut();
    assert_eq!(within(streamed).await.unwrap_err().kind(), ErrorKind::UnknownOutcome);
    assert_eq!(within(whole).await.unwrap_err().kind(), ErrorKind::UnknownOutcome);
    let (mut peer, _) = door.welcome(CURRENT).await;
    is_connected(&client).await;
    // A request that was not sent goes out on the next link.
    open(&client, &mut peer).await;
}

#[tokio::test(start_paused = true)]
async fn http_response_body_stream_reports_disconnect_when_queue_is_full() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let (mut body, name) = open(&client, &mut peer).await;
    for seq in 1..=limits::HTTP_PIECES_KEPT as u64 {
        delta(&mut peer, &name, seq, seq.to_string()).await;
    }
    settle().await;
    peer.cut();
    settle().await;
    let (pieces, error) = rest(&mut body).await;
    assert_eq!(pieces.len(), limits::HTTP_PIECES_KEPT);
    assert!(error.unwrap().starts_with("exec-server transport disconnected"));
}

#[tokio::test(start_paused = true)]
async fn http_response_body_stream_reports_backpressure_truncation() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let (mut body, name) = open(&client, &mut peer).await;
    let (mut other, quiet) = open(&client, &mut peer).await;
    for seq in 1..=limits::HTTP_PIECES_KEPT as u64 + 1 {
        delta(&mut peer, &name, seq, seq.to_string()).await;
    }
    done(&mut peer, &name, limits::HTTP_PIECES_KEPT as u64 + 2, None).await;
    delta(&mut peer, &quiet, 1, "fine").await;
    done(&mut peer, &quiet, 2, None).await;
    settle().await;
    let (pieces, error) = rest(&mut body).await;
    assert_eq!(pieces.len(), limits::HTTP_PIECES_KEPT, "what was kept is still there");
    let error = error.expect("it does not end as if it were complete");
    assert!(error.contains("not read in time"), "{error}");
    assert_eq!(rest(&mut other).await, (vec!["fine".to_owned()], None), "no other stream is the worse for it");
}

#[tokio::test(start_paused = true)]
async fn http_response_body_stream_rejects_oversized_delta() {
    let (client, mut peer, mut door) = connect(Kind::H).await;
    let (mut body, name) = open(&client, &mut peer).await;
    delta(&mut peer, &name, 1, vec![b'x'; limits::HTTP_DELTA_BYTES]).await;
    assert_eq!(within(body.chunk()).await.unwrap().unwrap().len(), limits::HTTP_DELTA_BYTES, "one that just fits");
    delta(&mut peer, &name, 2, vec![b'x'; limits::HTTP_DELTA_BYTES + 1]).await;
    assert!(peer.is_left().await, "the link is dropped");
    let (pieces, error) = rest(&mut body).await;
    assert_eq!(pieces, Vec::<String>::new());
    assert!(error.unwrap().starts_with("exec-server transport disconnected"));
    door.welcome(Kind::H).await;
    is_connected(&client).await;
}

/// Sends `mib` pieces of 1 MiB. Returns the next sequence number.
async fn flood(peer: &mut Peer, name: &str, first: u64, mib: usize) -> u64 {
    let piece = vec![b'x'; limits::HTTP_DELTA_BYTES];
    for n in 0..mib as u64 {
        delta(peer, name, first + n, &piece).await;
    }
    first + mib as u64
}

const BUDGET_MIB: usize = limits::HTTP_BYTES_KEPT >> 20;

#[tokio::test(start_paused = true)]
async fn http_response_body_stream_enforces_queued_byte_budget() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let (mut body, name) = open(&client, &mut peer).await;
    let next = flood(&mut peer, &name, 1, BUDGET_MIB).await;
    delta(&mut peer, &name, next, "one too many").await;
    settle().await;
    let (pieces, error) = rest(&mut body).await;
    assert_eq!(pieces.len(), BUDGET_MIB);
    assert!(error.unwrap().contains("not read in time"));
    // Consumed pieces free their room.
    let (mut body, name) = open(&client, &mut peer).await;
    let next = flood(&mut peer, &name, 1, BUDGET_MIB).await;
    settle().await;
    assert!(within(body.chunk()).await.unwrap().is_some());
    delta(&mut peer, &name, next, "fits").await;
    done(&mut peer, &name, next + 1, None).await;
    let (pieces, error) = rest(&mut body).await;
    assert_eq!((pieces.len(), error), (BUDGET_MIB, None));
}

#[tokio::test(start_paused = true)]
async fn http_response_body_streams_share_queued_byte_budget() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let (first, one) = open(&client, &mut peer).await;
    let (mut second, two) = open(&client, &mut peer).await;
    flood(&mut peer, &one, 1, BUDGET_MIB / 2).await;
    let next = flood(&mut peer, &two, 1, BUDGET_MIB / 2).await;
    delta(&mut peer, &two, next, "one too many").await;
    settle().await;
    let (pieces, error) = rest(&mut second).await;
    assert_eq!(pieces.len(), BUDGET_MIB / 2);
    assert!(error.unwrap().contains("not read in time"));
    // A dropped body frees the room of its pieces.
    drop((first, second));
    let (mut third, three) = open(&client, &mut peer).await;
    let next = flood(&mut peer, &three, 1, BUDGET_MIB).await;
    done(&mut peer, &three, next, None).await;
    let (pieces, error) = rest(&mut third).await;
    assert_eq!((pieces.len(), error), (BUDGET_MIB, None));
}

#[tokio::test(start_paused = true)]
async fn a_window_is_kept_open_by_reading_and_held_against_the_server() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let (response, params) = both(client.http_stream(&get()), peer.serve("http/request", head())).await;
    let mut body = response.unwrap().body;
    let window = params["window"].as_u64().unwrap();
    for seq in 1..=window {
        delta(&mut peer, "http-1", seq, "x").await;
    }
    settle().await;
    assert!(peer.is_silent().await, "nothing was taken, nothing is acknowledged");
    for _ in 0..window / 4 {
        within(body.chunk()).await.unwrap();
    }
    let ack = json!({"method": "http/request/ack", "params": {"requestId": "http-1", "seq": window / 4}});
    assert_eq!(peer.recv().await, Some(ack));
    for seq in window + 1..=window + window / 4 {
        delta(&mut peer, "http-1", seq, "x").await;
    }
    delta(&mut peer, "http-1", window + window / 4 + 1, "beyond").await;
    settle().await;
    let (pieces, error) = rest(&mut body).await;
    assert_eq!(pieces.len() as u64, window);
    assert!(error.unwrap().contains("window"));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_the_rules_or_breaks_off_fails_alone() {
    for (seq, bytes) in [(2, "c2tpcHBlZA=="), (0, "eA=="), (1, "no base64")] {
        let (client, mut peer, _door) = connect(Kind::H).await;
        let (mut bad, name) = open(&client, &mut peer).await;
        let (mut good, other) = open(&client, &mut peer).await;
        let params = json!({"requestId": name, "seq": seq, "deltaBase64": bytes});
        peer.notify("http/request/bodyDelta", params).await;
        done(&mut peer, &other, 1, None).await;
        let (pieces, error) = rest(&mut bad).await;
        assert_eq!(pieces, Vec::<String>::new());
        assert!(error.unwrap().contains("piece"), "{seq} {bytes}");
        assert_eq!(rest(&mut good).await, (Vec::new(), None));
    }
    let (client, mut peer, _door) = connect(Kind::H).await;
    let (mut body, name) = open(&client, &mut peer).await;
    delta(&mut peer, &name, 1, "half").await;
    done(&mut peer, &name, 2, Some("connection reset")).await;
    let (pieces, error) = rest(&mut body).await;
    assert_eq!(pieces, ["half"]);
    assert!(error.unwrap().contains("connection reset"));
}

#[tokio::test(start_paused = true)]
async fn what_an_older_server_would_ignore_is_refused() {
    let (client, mut peer, _door) = connect(Kind::S).await;
    let (stopping, secret) = (get().redirect(RedirectPolicy::Stop), get().header_from_server("x", "", "Y"));
    // The client asks the server once what it supports.
    let answering = async {
        let asked = peer.any_request().await;
        peer.answer_info(&asked).await;
    };
    let (refused, ()) = both(client.http_request(&stopping), answering).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Protocol);
    assert_eq!(within(client.http_stream(&secret)).await.unwrap_err().kind(), ErrorKind::Protocol);
    assert!(peer.is_silent().await);
}
