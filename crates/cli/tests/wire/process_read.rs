//! `process/read`: the selection of output, the time of the answer, and the report of the end (spec 3.4, 3.8). Pushes are covered only as
//! far as they must not disturb a reader.

use crate::{prelude::*, wire::GENERATIONS};

/// A process with three chunks `a`, `bb`, `ccc` (events 1 to 3), an exit with 7 (event 4) and the close (event 5).
fn three_chunks(client: &mut Client, id: &str) {
    let script = "printf a; read x; printf bb >&2; read x; printf ccc; read x; exit 7";
    client.start(piped(id, script));
    for _ in 0..3 {
        client.expect("process/output");
        client.write(id, b"\n");
    }
    client.expect("process/exited");
    client.expect("process/closed");
}

fn read(client: &mut Client, id: &str, more: Value) -> Value {
    client.ok("process/read", with(process(id), more))
}

fn seqs(result: &Value) -> Vec<u64> {
    let chunks = result["chunks"].as_array().expect("chunks");
    chunks.iter().map(|chunk| chunk["seq"].as_u64().expect("a number")).collect()
}

#[test]
fn a_read_without_options_returns_everything_and_the_next_number() {
    let (_server, mut client) = TestServer::with_client();
    three_chunks(&mut client, "p");
    let expected = json!({
        "chunks": [
            {"seq": 1, "stream": "stdout", "chunk": "YQ=="},
            {"seq": 2, "stream": "stderr", "chunk": "YmI="},
            {"seq": 3, "stream": "stdout", "chunk": "Y2Nj"},
        ],
        "nextSeq": 6, "exited": true, "exitCode": 7, "closed": true, "failure": null, "sandboxDenied": false,
        "firstSeq": 1, "gap": null,
    });
    assert_eq!(read(&mut client, "p", json!({})), expected);
    // Reading consumes nothing.
    let nulls = json!({"afterSeq": null, "maxBytes": null, "waitMs": null, "sessionId": null});
    assert_eq!(read(&mut client, "p", nulls), expected);
}

#[test]
fn max_bytes_cuts_between_chunks_and_returns_one_at_least() {
    let (_server, mut client) = TestServer::with_client();
    three_chunks(&mut client, "p");
    // (afterSeq, maxBytes) -> numbers, nextSeq. As in H, the flags show the state of the process, not of the selection.
    for (after, max, expected, next) in [
        (0, 0, vec![1], 2),
        (0, 1, vec![1], 2),
        (0, 2, vec![1], 2),
        (0, 3, vec![1, 2], 3),
        (0, 5, vec![1, 2], 3),
        (0, 6, vec![1, 2, 3], 4),
        (0, 1000, vec![1, 2, 3], 4),
        (1, 0, vec![2], 3),
        (2, 1, vec![3], 4),
        (3, 0, vec![], 6),
        (4, 9, vec![], 6),
        (5, 9, vec![], 6),
    ] {
        let result = read(&mut client, "p", json!({"afterSeq": after, "maxBytes": max}));
        assert_eq!((seqs(&result), &result["nextSeq"]), (expected, &json!(next)), "after {after} max {max}");
        assert_eq!((&result["exited"], &result["closed"]), (&json!(true), &json!(true)), "after {after} max {max}");
    }
}

#[test]
fn after_seq_selects_what_follows() {
    let (_server, mut client) = TestServer::with_client();
    three_chunks(&mut client, "p");
    for (after, expected) in [(0, vec![1, 2, 3]), (1, vec![2, 3]), (2, vec![3]), (3, vec![]), (5, vec![])] {
        let result = read(&mut client, "p", json!({"afterSeq": after}));
        assert_eq!((seqs(&result), &result["nextSeq"]), (expected, &json!(6)), "after {after}");
    }
    for after in [6, 1 << 40, u64::MAX - 1, u64::MAX] {
        let result = read(&mut client, "p", json!({"afterSeq": after}));
        assert_eq!((&result["chunks"], &result["closed"]), (&json!([]), &json!(true)), "after {after}");
    }
}

#[test]
fn an_unknown_process_cannot_be_read() {
    let (_server, mut client) = TestServer::with_client();
    let error = client.refuses("process/read", process("none"), -32600, "unknownProcess");
    assert_eq!(error.message, "unknown process id none");
}

#[test]
fn exec_process_streams_output() {
    let (_server, mut client) = TestServer::with_client();
    for generation in GENERATIONS {
        let id = format!("{generation:?}");
        let script = "read x; echo delayed; read x";
        client.start(with(generation.start(&id, &["/bin/sh", "-c", script]), json!({"pipeStdin": true})));
        let pending = client.send_request("process/read", json!({"processId": id, "waitMs": 20_000}));
        client.ok("process/write", generation.write(&id, b"\n", 1));
        let result = client.answer(pending).expect("read");
        assert_eq!(chunk_bytes(&result), b"delayed\n");
        assert_eq!((&result["exited"], &result["nextSeq"]), (&json!(false), &json!(2)));
        // The cursor of the next poll.
        let pending = client.send_request("process/read", json!({"processId": id, "afterSeq": 1, "waitMs": 20_000}));
        client.ok("process/write", generation.write(&id, b"\n", 2));
        let result = client.answer(pending).expect("read");
        assert_eq!((&result["chunks"], &result["exited"]), (&json!([]), &json!(true)));
    }
}

#[test]
fn a_waiting_read_answers_when_its_time_is_over_and_not_before() {
    let (_server, mut client) = TestServer::with_process(piped("p", "read x"));
    let begun = Instant::now();
    let result = read(&mut client, "p", json!({"waitMs": 150}));
    assert!(begun.elapsed() >= Duration::from_millis(150));
    assert_eq!((&result["chunks"], &result["nextSeq"], &result["exited"]), (&json!([]), &json!(1), &json!(false)));
    let begun = Instant::now();
    read(&mut client, "p", json!({"waitMs": 0}));
    assert!(begun.elapsed() < Duration::from_secs(5), "no wait was asked for");
}

#[test]
fn the_exit_wakes_a_reader_once_and_then_only_the_close_does() {
    let (server, mut client) = TestServer::with_client();
    let gate = fifo(server.dir(), "gate");
    client.start(piped("p", &format!("(read x <{gate}) & read x; exit 5")));
    let pending = client.send_request("process/read", json!({"processId": "p", "waitMs": 20_000}));
    client.write("p", b"\n");
    let result = client.answer(pending).expect("read");
    assert_members(&result, json!({"exited": true, "closed": false, "nextSeq": 2}));
    // The exit was already reported, so this read waits for more output or the close.
    let result = read(&mut client, "p", json!({"afterSeq": 1, "waitMs": 100}));
    assert_eq!((&result["closed"], &result["nextSeq"]), (&json!(false), &json!(2)));
    let pending = client.send_request("process/read", json!({"processId": "p", "afterSeq": 1, "waitMs": 20_000}));
    release(&gate);
    let result = client.answer(pending).expect("read");
    assert_eq!((&result["closed"], &result["nextSeq"]), (&json!(true), &json!(3)));
    // A read of a closed process returns at once, with any `waitMs`.
    assert_eq!(read(&mut client, "p", json!({"afterSeq": 2, "waitMs": u64::MAX}))["closed"], true);
}

#[test]
fn several_readers_wait_on_one_process() {
    let (_server, mut client) = TestServer::with_client();
    client.start(piped("p", "read x; echo all"));
    let wait = json!({"processId": "p", "waitMs": 20_000});
    let pending: Vec<i64> = (0..10).map(|_| client.send_request("process/read", wait.clone())).collect();
    client.write("p", b"\n");
    for id in pending {
        assert_eq!(chunk_bytes(&client.answer(id).expect("read")), b"all\n");
    }
}

#[test]
fn exec_process_preserves_queued_events_before_subscribe() {
    let (_server, mut client) = TestServer::with_client();
    client.start(sh("p", "echo one; echo two >&2"));
    client.collect("p");
    let result = read(&mut client, "p", json!({}));
    assert_eq!(chunk_bytes(&result).len(), 8);
    assert_eq!(result["closed"], true);
}

#[test]
fn exec_process_replays_events_after_close() {
    let (_server, mut client) = TestServer::with_client();
    assert_eq!(client.run_params(sh("p", "echo out; exit 3")).code(), 3);
    for _ in 0..3 {
        let result = read(&mut client, "p", json!({"afterSeq": 0, "waitMs": 1000}));
        assert_eq!(chunk_bytes(&result), b"out\n");
        assert_eq!((&result["exitCode"], &result["closed"]), (&json!(3), &json!(true)));
    }
}

#[test]
fn an_answer_is_capped_at_8_mib_and_says_that_there_is_more() {
    let (_server, mut client) = TestServer::with_process(sh("p", "head -c 12000000 /dev/zero"));
    assert_eq!(client.collect("p").stdout.len(), 12_000_000);
    let result = read(&mut client, "p", json!({}));
    let first = chunk_bytes(&result).len();
    assert!(first <= 8 << 20 && first > 7 << 20, "{first}");
    assert_members(&result, json!({"exited": false, "closed": false, "exitCode": null}));
    assert_eq!(result["nextSeq"].as_u64(), seqs(&result).last().map(|last| last + 1));
    let after = result["nextSeq"].as_u64().expect("a number") - 1;
    let result = read(&mut client, "p", json!({"afterSeq": after}));
    assert_eq!(first + chunk_bytes(&result).len(), 12_000_000);
    assert_eq!(result["closed"], true);
}

#[test]
fn a_client_that_only_polls_gets_every_byte() {
    let (_server, mut client) = TestServer::with_client();
    // More than a server may keep in memory for one process.
    client.start(sh("p", "seq 1 4000000"));
    let (bytes, last) = client.poll("p", None);
    let expected: usize = (1..=4_000_000u32).map(|n| n.ilog10() as usize + 2).sum();
    assert_eq!(bytes.len(), expected);
    assert!(bytes.ends_with(b"\n3999999\n4000000\n"));
    assert_eq!((&last["exitCode"], &last["closed"]), (&json!(0), &json!(true)));
}

#[test]
fn polling_with_a_small_max_bytes_gets_every_byte() {
    let (_server, mut client) = TestServer::with_client();
    client.start(sh("p", "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); done"));
    let (bytes, _) = client.poll("p", Some(1));
    assert_eq!(String::from_utf8_lossy(&bytes), (0..200).map(|i| format!("{i}\n")).collect::<String>());
}

#[test]
fn output_and_exit_are_retained_after_notification_receiver_closes() {
    let (server, mut client, session) = TestServer::with_session();
    let gate = fifo(server.dir(), "gate");
    client.start(sh("p", &format!("read x <{gate}; echo away; exit 6")));
    drop(client);
    release(&gate);
    let mut client = server.resume(&session, json!({}));
    let (bytes, last) = client.poll("p", None);
    assert_eq!((bytes.as_slice(), &last["exitCode"]), (b"away\n".as_slice(), &json!(6)));
}

// Output before a read did not count as read: after 16 MiB of output a client that polled without a break got no more pushes.
#[test]
fn a_poller_is_pushed_to_behind_much_output() {
    let (_server, mut client) = TestServer::with_client();
    client.start(piped("p", "head -c 20000000 /dev/zero; while read x; do echo $x; done; exit 3"));
    let mut bytes = 0;
    let mut last = 0;
    let output = |client: &mut Client| {
        let params = client.expect("process/output");
        let chunk = params["chunk"].as_str().expect("a chunk");
        (params["seq"].as_u64().expect("a number"), decode_base64(chunk).len())
    };
    // Decoded: the padding of base64 differs from chunk to chunk, so the length of the text does not say when all is here.
    while bytes < 20_000_000 {
        let (seq, len) = output(&mut client);
        (last, bytes) = (seq, bytes + len);
    }
    let poll = |client: &mut Client, after: u64| {
        client.send_request("process/read", json!({"processId": "p", "afterSeq": after, "waitMs": 600_000}))
    };
    // There is always a read in flight, so that the server keeps treating the client as a poller.
    let mut read = poll(&mut client, last);
    for line in 0..5 {
        client.write("p", format!("{line}\n"));
        let answer = client.answer(read).expect("there is something new");
        last = answer["nextSeq"].as_u64().expect("a number") - 1;
        read = poll(&mut client, last);
        assert_eq!(output(&mut client).0, last, "it is pushed, too");
    }
    client.close_stdin("p");
    client.answer(read).expect("the end");
    assert_eq!(client.expect("process/exited")["exitCode"], 3);
}

#[test]
fn d11_1_2_what_a_reference_client_reads_late_is_all_there_or_reported() {
    let (_server, mut client) = TestServer::with_client();
    // The reference kept 1 MiB and reported nothing about the rest.
    client.start(sh("p", "head -c 6000000 /dev/zero"));
    client.collect("p");
    let read = client.ok("process/read", process("p"));
    assert_eq!((chunk_bytes(&read).len(), &read["firstSeq"], &read["gap"]), (6_000_000, &json!(1), &Value::Null));
}

#[test]
fn d11_2_3_no_wake_up_of_a_long_poll_is_lost() {
    let (_server, mut client) = TestServer::with_process(cat("p"));
    let begun = Instant::now();
    for round in 0..500_u64 {
        // The write races with the read that waits for its echo.
        let write = client.send_write("p", b"x");
        let read = client.send_request("process/read", json!({"processId": "p", "afterSeq": round, "waitMs": 20_000}));
        let result = client.answer(read).expect("read");
        assert_eq!(result["nextSeq"], round + 2, "{result}");
        client.answer(write).expect("write");
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "no read slept its time out");
}
