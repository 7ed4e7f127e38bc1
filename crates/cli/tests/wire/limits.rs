//! Limits and fairness of a connection: sizes, waiting requests, clients that do not read (design sections 1 and 4, spec 1.3, 1.6).
//! Performance is measured by the benchmark.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::json;
use tungstenite::Message;

use testkit::{
    Client, TestServer, assert_error, decode_base64, encode_base64, fifo, piped, process, release, sh, wait_for,
};

/// Resident memory of a process in bytes.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the server lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a VmRSS line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

#[test]
fn sixty_four_mib_without_a_newline_arrive_whole_and_in_order() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("p", "head -c 67108864 /dev/zero"));
    let (mut bytes, mut next) = (0, 1);
    loop {
        let message = client.next_notification();
        let params = &message["params"];
        assert_eq!(params["seq"], next);
        next += 1;
        match params["chunk"].as_str() {
            Some(chunk) => {
                let len = decode_base64(chunk).len() as u64;
                assert!(len <= 64 << 10, "a chunk has at most 64 KiB");
                assert_eq!(params["offset"], bytes);
                bytes += len;
            }
            None if message["method"] == "process/closed" => break,
            None => {}
        }
    }
    assert_eq!(bytes, 64 << 20);
}

#[test]
fn a_message_beyond_96_mib_ends_the_connection_and_nothing_else() {
    let server = TestServer::start();
    let mut client = server.connect();
    let session = client.initialize();
    client.start_cat("p");
    // The server may close the connection before everything is sent.
    let sent = client.send_message(Message::text("x".repeat((96 << 20) + 1)));
    if sent.is_ok() {
        assert_eq!(client.wait_closed().map(|(code, _)| code), Some(1009));
    }
    drop(client);
    let mut client = server.resume(&session, json!({}));
    assert_eq!(client.ok("process/read", process("p"))["exited"], false);
}

#[test]
fn a_message_of_90_mib_is_read() {
    let server = TestServer::start();
    let mut client = server.client();
    client.send_text(&format!(r#"{{"id":1,"method":"no/such","params":"{}"}}"#, "x".repeat(90 << 20)));
    assert_eq!(client.next()["error"]["code"], -32601);
    client.assert_alive();
}

#[test]
fn a_long_poll_holds_up_nobody() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    let begun = Instant::now();
    let reads: Vec<i64> =
        (0..200).map(|_| client.send_request("process/read", json!({"processId": "p", "waitMs": 60_000}))).collect();
    client.assert_alive();
    client.ok("environment/info", json!({}));
    client.ok("process/list", json!({}));
    assert_eq!(client.run("q", &["true"]).code(), 0);
    assert_eq!(client.ok("process/terminate", process("p"))["running"], true);
    for id in reads {
        assert_eq!(client.answer(id).expect("read")["exitCode"], 137);
    }
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[test]
fn exec_server_keeps_control_requests_live_during_long_reads_and_queued_requests() {
    let server = TestServer::builder().arg("--concurrent-requests").arg("1").start();
    let mut client = server.client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    let read = client.send_request("process/read", json!({"processId": "p", "waitMs": 60_000}));
    let starts: Vec<i64> =
        (0..50).map(|i| client.send_request("process/start", sh(&format!("s{i}"), "exit 0"))).collect();
    client.assert_alive();
    assert_eq!(client.ok("process/terminate", process("p"))["running"], true);
    assert_eq!(client.answer(read).expect("read")["exited"], true);
    for id in starts {
        client.answer(id).expect("start");
    }
}

#[test]
fn requests_beyond_the_bound_are_refused_and_control_requests_are_not() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    let reads: Vec<i64> =
        (0..1100).map(|_| client.send_request("process/read", json!({"processId": "p", "waitMs": 60_000}))).collect();
    client.assert_alive();
    assert_eq!(client.ok("process/terminate", process("p"))["running"], true);
    let answers: Vec<_> = reads.into_iter().map(|id| client.answer(id)).collect();
    let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert_eq!(refused.len(), 1100 - 1024);
    assert_error(refused[0], -32600, "overloaded");
    client.assert_alive();
}

#[test]
fn connection_accepts_pipelined_scalar_requests() {
    let server = TestServer::start();
    let mut client = server.client();
    let ids: Vec<i64> = (0..3000).map(|_| client.send_request("environment/status", json!({}))).collect();
    for id in ids {
        assert_eq!(client.next()["id"], id, "control requests are answered in order");
    }
}

// The reference can deadlock here: it does not read while it waits to send, and does not send while it waits to queue.
#[test]
fn many_requests_and_much_output_at_once_do_not_block_each_other() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("noisy", "exec cat /dev/zero"));
    let mut answered = 0;
    for _ in 0..5 {
        // Sent without reading, while output waits in the other direction.
        let ids: Vec<i64> = (0..400).map(|_| client.send_request("process/list", json!({}))).collect();
        for id in ids {
            client.answer(id).expect("list");
            answered += 1;
        }
    }
    assert_eq!(answered, 2000);
    client.ok("process/terminate", process("noisy"));
}

#[test]
fn a_noisy_process_delays_neither_an_answer_nor_a_quiet_process() {
    let server = TestServer::start();
    let mut client = server.client();
    client.start_cat("quiet");
    for i in 0..4 {
        client.ok("process/start", sh(&format!("noisy{i}"), "exec cat /dev/zero"));
    }
    let begun = Instant::now();
    for round in 0..10 {
        client.ok(
            "process/write",
            json!({"processId": "quiet", "chunk": encode_base64(format!("{round}\n").as_bytes())}),
        );
        client.wait_output("quiet", "\n");
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn wake_notifications_do_not_block_other_sessions() {
    let server = TestServer::start();
    let (mut noisy, mut quiet) = (server.client(), server.client());
    // This client never reads.
    noisy.ok("process/start", sh("noisy", "exec cat /dev/zero"));
    quiet.ok("process/start", piped("quiet", "read x; echo heard"));
    let begun = Instant::now();
    quiet.ok("process/write", json!({"processId": "quiet", "chunk": "Cg=="}));
    assert_eq!(quiet.expect("process/output")["seq"], 1);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_client_that_never_reads_costs_a_bounded_amount_of_memory() {
    let server = TestServer::start();
    let mut other = server.client();
    let mut deaf = server.connect();
    let session = deaf.initialize();
    deaf.ok("process/start", sh("flood", "exec cat /dev/zero"));
    let list = json!({"scope": "all"});
    let written = |other: &mut Client| other.ok("process/list", list.clone())["processes"][0].clone();
    wait_for("the child to be held", || written(&mut other)["blocked"] == "memoryCap");
    let before = written(&mut other)["outputBytes"].as_u64().expect("a number");
    assert!(before < 96 << 20, "{before}");
    assert!(resident(server.pid()) < 128 << 20, "{}", resident(server.pid()));
    // Requests whose answers are not read are bounded too.
    for _ in 0..20_000 {
        deaf.send_request("process/list", json!({}));
    }
    assert!(resident(server.pid()) < 256 << 20, "{}", resident(server.pid()));
    other.assert_alive();
    drop(deaf);
    // Output that was not taken is still there after a resume.
    let mut client = server.resume(&session, json!({}));
    assert_eq!(client.ok("process/read", json!({"processId": "flood", "maxBytes": 1}))["firstSeq"], 1);
    assert_eq!(client.ok("process/terminate", process("flood"))["running"], true);
}

#[test]
fn a_polling_client_that_stops_reading_is_pushed_again() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", piped("p", "read x; exec head -c 20000000 /dev/zero"));
    // A waiting read makes the client a poller: pushes stop 16 MiB after the last read.
    client.ok("process/read", json!({"processId": "p", "waitMs": 20}));
    let begun = Instant::now();
    client.ok("process/write", json!({"processId": "p", "chunk": "Cg=="}));
    let ended = client.collect("p");
    assert!(begun.elapsed() >= Duration::from_secs(2), "it was waited for its next read");
    assert_eq!(ended.stdout.len(), 20_000_000);
    assert_eq!(ended.seqs, (1..=ended.seqs.len() as u64).collect::<Vec<_>>());
}

// The only test that waits for real seconds: the reference keeps a closed process for 30 s and then frees its id.
#[test]
fn closed_process_is_evicted_after_retention() {
    let server = TestServer::start();
    let mut client = server.client();
    let gate = fifo(server.dir(), "gate");
    client.ok("process/start", sh("held", &format!("(read x <{gate}; echo late) & exit 5")));
    client.expect("process/exited");
    client.run("p", &["true"]);
    let begun = Instant::now();
    assert_error(&client.fails("process/start", sh("p", "exit 0")), -32600, "duplicateProcess");
    let is_free = |client: &mut Client| {
        // A waiting read paces this loop.
        client.ok("process/read", json!({"processId": "held", "afterSeq": 1, "waitMs": 500}));
        client.call("process/start", sh("p", "echo again; exit 0")).is_ok()
    };
    while !is_free(&mut client) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the name was not given up");
    }
    assert!(begun.elapsed() >= Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(client.collect("p").stdout, b"again\n");
    // An exited process is not closed: its id and its late output stay.
    assert_error(&client.fails("process/start", sh("held", "exit 0")), -32600, "duplicateProcess");
    release(&gate);
    assert_eq!(client.expect("process/output")["seq"], 2);
    client.expect("process/closed");
}
