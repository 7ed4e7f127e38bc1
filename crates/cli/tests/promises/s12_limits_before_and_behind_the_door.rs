//! S12: before authentication a request is limited to 8 KiB and 10 s, and at most 64 connections may wait. A source that opens too many
//! connections or fails too often loses only its own places and is answered late. After authentication messages are limited in size, depth,
//! values and keys, requests in number, and all incoming bytes by one budget of the server.

use crate::{
    prelude::*,
    promises::hand_written_websocket::{Raw, Said, header},
};

const MIB: u64 = 1 << 20;

/// How long a new client may wait on a busy machine. If silent peers could block every place, it would be 10 s.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn five_hundred_slow_peers_neither_disturb_clients_nor_keep_new_ones_out() {
    let server = TestServer::start();
    let mut inside = server.client();
    assert_eq!(inside.run("p", &["echo", "hi"]).stdout, b"hi\n");
    let before = server.descriptors();
    let slow: Vec<TcpStream> = (0..500)
        .map(|n| {
            let mut socket = TcpStream::connect(server.address()).expect("connect");
            // Some send nothing, some send a partial request.
            let part = ["", "G", "GET / HTTP/1.1\r\nHost: ", "GET / HTTP/1.1\r\nX-A: b\r\n"][n % 4];
            socket.write_all(part.as_bytes()).ok(); // The server may have closed it already.
            socket
        })
        .collect();
    for n in 0..5 {
        let begun = Instant::now();
        let mut newcomer = server.client();
        assert_eq!(newcomer.run("p", &["echo", "hi"]).stdout, b"hi\n");
        newcomer.ok("session/end", json!({}));
        assert!(begun.elapsed() < SOON, "newcomer {n} waited {:?}", begun.elapsed());
        assert_eq!(http(server.address(), "GET /healthz HTTP/1.0\r\n\r\n").status, 200);
    }
    assert_eq!(inside.run("q", &["echo", "hi"]).stdout, b"hi\n");
    wait_for("no more than 64 of them", || server.descriptors() <= before + 64 + 16);
    assert!(server.stderr().contains("dropped to make room"), "{}", server.stderr());
    drop(slow);
    wait_for("their descriptors back", || server.descriptors() <= before + 16);
}

#[test]
fn a_source_that_fails_too_often_is_answered_late_and_the_right_token_at_once() {
    let server = TestServer::start();
    let host = server.address();
    let wrong = upgrade("/?token=wrong", host, "");
    let statuses: Vec<u16> = (0..120).map(|_| http(host, &wrong).status).collect();
    assert!(statuses[..99].iter().all(|status| *status == 401), "{statuses:?}");
    assert!(statuses[99..].iter().all(|status| *status == 429), "{statuses:?}");
    let begun = Instant::now();
    let reply = http(host, &wrong);
    assert!(reply.status == 429 && reply.head.contains("\r\nRetry-After: "), "{reply:?}");
    assert!(begun.elapsed() >= Duration::from_millis(50));
    let begun = Instant::now();
    server.client().ok("environment/status", json!({}));
    assert!(begun.elapsed() < SOON);
}

#[test]
fn a_request_head_is_bounded() {
    let server = TestServer::start();
    for head in [
        format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(9000)),
        format!("GET /{} HTTP/1.1\r\n", "x".repeat(9000)),
        format!("GET / HTTP/1.1\r\n{}", "X: y\r\n".repeat(100) + "\r\n"),
    ] {
        let mut large = TcpStream::connect(server.address()).expect("connect");
        large.write_all(head.as_bytes()).expect("send");
        let mut answer = String::new();
        large.read_to_string(&mut answer).ok(); // A reset after the answer is fine.
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
}

#[test]
fn a_request_head_that_does_not_end_is_cut_after_ten_seconds() {
    let server = TestServer::start();
    let mut slow = TcpStream::connect(server.address()).expect("connect");
    slow.set_read_timeout(Some(DEADLINE)).expect("set a deadline");
    slow.write_all(b"GET / HTTP/1.1\r\nX: ").expect("send");
    let begun = Instant::now();
    slow.read_to_end(&mut Vec::new()).expect("it hangs up");
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
}

/// The texts of the refusals. They show that a message was refused because of this rule and not for another reason.
const DEEP: &str = "nests deeper than 128 levels";

const MANY: &str = "more than 262144 values";

const TWICE: &str = "duplicate key";

/// For each message: a description, the expected text of the refusal, and the message. The connection stays usable.
fn bombs() -> Vec<(&'static str, &'static str, String)> {
    let call = |params: String| format!(r#"{{"id":1,"method":"environment/status","params":{params}}}"#);
    let deep = |open: &str, close: &str, depth: usize| call(open.repeat(depth) + "1" + &close.repeat(depth));
    vec![
        ("128 arrays in the params", DEEP, deep("[", "]", 128)),
        ("a million arrays", DEEP, deep("[", "]", 1_000_000)),
        ("a million open arrays", "not a JSON object", "[".repeat(1_000_000)),
        ("200 objects", DEEP, deep(r#"{"a":"#, "}", 200)),
        ("more values than 2^18", MANY, call(format!("[{}0]", "0,".repeat(1 << 18)))),
        ("more empty objects than 2^18", MANY, call(format!("[{}{{}}]", "{},".repeat(1 << 18)))),
        ("a key twice", TWICE, r#"{"id":1,"id":2,"method":"environment/status","params":{}}"#.to_owned()),
        ("a key twice in the params", TWICE, call(r#"{"a":1,"a":2}"#.to_owned())),
        ("a key twice, once escaped", TWICE, call(r#"{"a":1,"\u0061":2}"#.to_owned())),
        ("a number of a million digits", "", format!(r#"{{"id":{},"method":"x"}}"#, "9".repeat(1_000_000))),
        ("an exponent", "", r#"{"id":1e999999999,"method":"x"}"#.to_owned()),
        ("a method of 8 MiB", "", format!(r#"{{"id":1,"method":"{}"}}"#, "m".repeat(8 << 20))),
        ("half a pair of surrogates", "", r#"{"id":1,"method":"\ud800"}"#.to_owned()),
        ("nothing", "", String::new()),
        ("not JSON", "", "\u{0}".to_owned()),
    ]
}

#[test]
fn no_message_brings_the_server_down_or_makes_it_grow() {
    let server = TestServer::start();
    let mut inside = server.client();
    let before = server.memory();
    for (what, refusal, bomb) in bombs() {
        let mut raw = Raw::open(&server, "");
        for _ in 0..3 {
            assert!(raw.frame(0x81, bomb.as_bytes()), "{what}");
            let Said::Text(answer) = raw.next() else { panic!("{what}: no answer") };
            assert!(answer.contains("\"error\"") && answer.contains(refusal), "{what}: {answer}");
            assert!(answer.len() < 2048, "{what}: {answer}");
        }
        let now = server.memory();
        assert!(now < before + 96 * MIB, "{what}: from {before} to {now}");
    }
    assert_eq!(inside.run("p", &["echo", "hi"]).stdout, b"hi\n");
}

#[test]
fn no_frame_brings_the_server_down_or_makes_it_grow() {
    let server = TestServer::start();
    let before = server.memory();
    for (what, first, len, code) in [
        ("a frame of 2^63", 0x82, 1 << 63, 1009),
        ("a frame of 2^64", 0x81, u64::MAX, 1009),
        ("one byte more than allowed", 0x81, 96 * MIB + 1, 1009),
        ("an unknown opcode", 0x83, 1, 1002),
        ("a fragmented ping", 0x09, 1, 1002),
        ("a long ping", 0x89, 126, 1002),
        ("a continuation of nothing", 0x80, 1, 1002),
        ("a reserved bit", 0xc1, 1, 1002),
        ("another", 0xa1, 1, 1002),
        ("the third", 0x91, 1, 1002),
    ] {
        let mut raw = Raw::open(&server, "");
        raw.header(first, len);
        assert_eq!(raw.next(), Said::Close(code), "{what}");
    }
    // A frame that is announced but never sent: the header alone must not allocate memory.
    let mut silent: Vec<Raw> = (0..50).map(|_| Raw::open(&server, "")).collect();
    assert!(silent.iter_mut().all(|raw| raw.header(0x82, 96 * MIB)));
    assert!(server.memory() < before + 64 * MIB);
    drop(silent);
    // For fragments, the size of the whole message counts.
    let mut raw = Raw::open(&server, "");
    let part = vec![b' '; MIB as usize];
    raw.frame(0x01, &part);
    let sent = (0..96).take_while(|_| raw.frame(0x00, &part)).count();
    assert!(sent >= 90, "{sent}");
    assert!(matches!(raw.next(), Said::Close(1009) | Said::Gone));
    server.client();
}

#[test]
fn floods_of_pings_and_of_empty_fragments_cost_no_memory() {
    let server = TestServer::start();
    let before = server.memory();
    // Send pings and never read the pongs, then send a request: it is answered once we read.
    let mut raw = Raw::open(&server, "");
    let mut writer = raw.socket.try_clone().expect("a second handle");
    let flood = thread::spawn(move || {
        let ping = [header(0x89, 100), vec![b'x'; 100]].concat().repeat(100);
        (0..1000).take_while(|_| writer.write_all(&ping).is_ok()).count()
    });
    assert_eq!(flood.join().expect("the flood ends"), 1000, "pings are taken, also where nobody reads the pongs");
    let request = br#"{"id":7,"method":"environment/status"}"#;
    assert!(raw.frame(0x81, request));
    assert!(matches!(raw.next(), Said::Text(answer) if answer.contains("\"id\":7")));
    // A message that starts and continues with empty fragments.
    let mut raw = Raw::open(&server, "");
    raw.frame(0x01, b"");
    let empty = header(0x00, 0).repeat(10_000);
    for _ in 0..100 {
        raw.socket.write_all(&empty).expect("fragments are taken");
    }
    raw.frame(0x80, request);
    assert!(matches!(raw.next(), Said::Text(answer) if answer.contains("\"id\":7")));
    assert!(server.memory() < before + 64 * MIB, "from {before} to {}", server.memory());
}

#[test]
fn all_connections_together_hold_no_more_than_the_budget_and_small_requests_pass() {
    let budget = 256 * MIB;
    let server = TestServer::builder().arg("--incoming-memory").arg("256MiB").start();
    let mut inside = server.client();
    let before = server.memory();
    let begun: Vec<_> = (0..8)
        .map(|_| {
            let mut raw = Raw::open(&server, "");
            // Most of a large message that is never finished.
            thread::spawn(move || {
                raw.header(0x81, 90 * MIB);
                let part = vec![b' '; MIB as usize];
                let sent = (0..64).take_while(|_| raw.socket.write_all(&part).is_ok()).count();
                (raw, sent)
            })
        })
        .collect();
    let mut most = 0;
    while begun.iter().any(|thread| !thread.is_finished()) {
        most = most.max(server.memory());
        // Small requests are still served.
        inside.ok("environment/status", json!({}));
    }
    assert!(most < before + budget + 128 * MIB, "from {before} to {most}");
    let ended: Vec<_> = begun.into_iter().map(|thread| thread.join().expect("it ends")).collect();
    let whole = ended.iter().filter(|(_, sent)| *sent == 64).count();
    assert!(whole >= 1, "not everybody is sent away");
    assert!(server.stderr().contains("received messages exceed the memory budget"), "{}", server.stderr());
    drop(ended);
    wait_for("the memory back", || server.memory() < before + 64 * MIB);
    // A message of the maximum size is accepted when there is room.
    let mut raw = Raw::open(&server, "");
    raw.frame(0x81, &[&b" ".repeat(90 << 20)[..], br#"{"id":7,"method":"environment/status"}"#].concat());
    assert!(matches!(raw.next(), Said::Text(answer) if answer.contains("\"id\":7")));
}

// In an earlier version only writes and starts were counted, so requests with names as long as messages could make the server keep
// thousands of them.
#[test]
fn waiting_requests_are_counted_whatever_they_ask_for() {
    let server = TestServer::start();
    let (mut client, _) = server.modern_client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    let before = server.memory();
    let name = "x".repeat(MIB as usize);
    for i in 0..80 {
        let params = r#"{"processId":"p","waitMs":600000}"#;
        client.send_text(&format!(r#"{{"id":"{i}-{name}","method":"process/read","params":{params}}}"#));
    }
    for i in 63..80 {
        let answer = client.next();
        let id = answer["id"].as_str().expect("an id");
        assert!(id.starts_with(&format!("{i}-")), "{}", &id[..8]);
        assert_eq!(answer["error"]["data"]["kind"], "overloaded");
    }
    assert!(server.memory() < before + 160 * MIB, "from {before} to {}", server.memory());
    client.send_text(r#"{"id":"end","method":"process/terminate","params":{"processId":"p"}}"#);
    let answer = |client: &mut Client| loop {
        let message = client.next();
        if message["id"].is_string() {
            return message["result"].clone();
        }
    };
    let (reads, ended): (Vec<_>, Vec<_>) =
        (0..64).map(|_| answer(&mut client)).partition(|result| result["exited"] == true);
    assert_eq!((reads.len(), &ended[0]["running"]), (63, &json!(true)));
    // Once answered, requests no longer count.
    client.send_text(&format!(r#"{{"id":"{name}","method":"process/read","params":{{"processId":"p"}}}}"#));
    assert_eq!(answer(&mut client)["exited"], true);
}

#[test]
fn a_client_with_all_slots_taken_can_still_steer_and_is_refused_more() {
    let server = TestServer::start();
    let (mut client, _) = server.modern_client();
    client.ok("process/start", sh("own", "exec sleep 1000"));
    let holder = server.holder();
    let (mut other, there) = server.modern_client();
    other.ok("process/start", sh("theirs", "trap '' USR1; exec sleep 1000"));
    // A start is in flight until its holder answers, and this holder is stopped.
    stop(holder);
    let mut begin = |n: usize| client.send_request("process/start", sh(&format!("s{n}"), "true"));
    let taken: Vec<i64> = (0..64 + 1024).map(&mut begin).collect();
    let one_more = begin(64 + 1024);
    let refused = client.answer(one_more).expect_err("no slot and no place to wait");
    assert_error(&refused, -32600, "overloaded");
    let begun = Instant::now();
    client.ok("environment/status", json!({}));
    client.ok("environment/info", json!({}));
    client.ok("process/signal", json!({"processId": "theirs", "sessionId": there, "signal": "USR1"}));
    let ended = client.ok("process/terminate", json!({"processId": "theirs", "sessionId": there}));
    assert_eq!(ended["running"], true);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(client.answers_so_far() <= 1, "none of those that wait has overtaken: {}", client.answers_so_far());
    // No accepted start is refused later.
    kill(holder);
    for id in taken {
        let outcome = client.answer(id).expect_err("its holder is dead");
        assert_ne!(outcome.kind(), "overloaded", "{}", outcome.message);
    }
    client.ok("session/end", json!({}));
}

#[test]
fn a_hundred_clients_at_once_are_all_let_in() {
    let server = TestServer::start();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    Client::connect(server.url()).expect("connect").initialize();
                }
            });
        }
    });
}
