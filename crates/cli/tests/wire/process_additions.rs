//! Our additions to processes: terminal size, TERM, timeouts, EOF on stdin, resize, the overflow policy. Other sessions and readers are
//! tested in `several_readers.rs`.

use crate::prelude::*;

#[test]
fn a_terminal_starts_with_the_size_and_the_term_that_were_asked_for() {
    let (_server, mut client) = TestServer::with_client();
    let params =
        with(tty("p", "stty size; echo $TERM"), json!({"size": {"rows": 50, "cols": 132}, "term": "xterm-256color"}));
    assert_eq!(client.run_params(params).stdout, b"50 132\r\nxterm-256color\r\n");
    // `env` overrides `term`, and without a terminal `term` has no effect.
    let params =
        with(tty("q", "echo $TERM"), json!({"term": "vt100", "env": {"TERM": "dumb", "PATH": "/usr/bin:/bin"}}));
    assert_eq!(client.run_params(params).stdout, b"dumb\r\n");
    let params = with(sh("r", "echo [$TERM]"), json!({"term": "vt100", "size": {"rows": 1, "cols": 1}}));
    assert_eq!(client.run_params(params).stdout, b"[]\n");
}

#[test]
fn a_terminal_can_be_resized_and_its_child_hears_of_it() {
    let (_server, mut client) = TestServer::with_client();
    client.start(tty("p", "trap 'stty size' WINCH; echo up; while :; do sleep 0.01; done"));
    client.wait_output("p", "up");
    assert_eq!(client.ok("process/resize", json!({"processId": "p", "rows": 33, "cols": 99})), json!({}));
    client.wait_output("p", "33 99");
    client.ok("process/resize", json!({"processId": "p", "rows": 1, "cols": 65_535}));
    client.wait_output("p", "1 65535");
}

#[test]
fn only_a_terminal_can_be_resized() {
    let (_server, mut client) = TestServer::with_process(cat("p"));
    let size = |id: &str| json!({"processId": id, "rows": 10, "cols": 10});
    client.refuses("process/resize", size("p"), -32600, "notATerminal");
    client.refuses("process/resize", size("none"), -32600, "unknownProcess");
    client.run_params(tty("gone", "exit 0"));
    assert_eq!(client.ok("process/resize", size("gone")), json!({}), "too late is no error");
}

#[test]
fn the_end_of_input_is_seen_by_the_child() {
    let (_server, mut client) = TestServer::with_process(piped("p", "wc -c"));
    client.write("p", b"12345");
    assert_eq!(client.close_stdin("p"), json!({"status": "accepted"}));
    assert_eq!(client.collect("p").stdout, b"5\n");
    assert_eq!(client.close_stdin("p")["status"], "stdinClosed");
    assert_eq!(client.close_stdin("none")["status"], "unknownProcess");
    client.start(sh("null", "exec sleep 1000"));
    assert_eq!(client.close_stdin("null")["status"], "stdinClosed");
}

#[test]
fn the_end_of_input_waits_behind_writes_that_came_before_it() {
    let (_server, mut client) = TestServer::with_client();
    client.start(piped("p", "cat >/dev/null; echo all"));
    let bytes = vec![b'x'; 1 << 20];
    let requests: Vec<i64> = (0..4).map(|_| client.send_write("p", &bytes)).collect();
    let close = client.send_request("process/closeStdin", process("p"));
    let late = client.send_write("p", b"x");
    assert!(client.answers(requests).iter().all(|answer| answer["status"] == "accepted"));
    assert_eq!(client.answer(close).expect("close")["status"], "accepted");
    assert_eq!(client.answer(late).expect("write")["status"], "stdinClosed");
    assert_eq!(client.collect("p").stdout, b"all\n");
}

#[test]
fn the_end_of_input_on_a_terminal_is_its_character() {
    let (_server, mut client) = TestServer::with_client();
    client.start(tty("p", "echo up; cat; echo ended; cat; echo twice"));
    client.wait_output("p", "up");
    assert_eq!(client.close_stdin("p")["status"], "accepted");
    client.wait_output("p", "ended");
    // A terminal stays open: each reader gets its own EOF character.
    assert_eq!(client.write("p", b"line\n")["status"], "accepted");
    assert_eq!(client.close_stdin("p")["status"], "accepted");
    assert!(String::from_utf8_lossy(&client.collect("p").stdout).contains("twice"));
}

#[test]
fn the_end_of_input_cannot_be_told_to_a_terminal_in_raw_mode() {
    let (_server, mut client) = TestServer::with_client();
    client.start(tty("p", "stty raw -echo; echo up; exec sleep 1000"));
    client.wait_output("p", "up");
    assert_eq!(client.close_stdin("p")["status"], "rawMode");
    assert_eq!(client.write("p", b"x")["status"], "accepted");
}

#[test]
fn a_timeout_ends_the_tree_and_keeps_what_was_written() {
    let (_server, mut client) = TestServer::with_client();
    for tty in [false, true] {
        let params =
            with(sh(&format!("p{tty}"), "echo before; sleep 1000 & wait"), json!({"timeoutMs": 200, "tty": tty}));
        let begun = Instant::now();
        let ended = client.run_params(params);
        assert!(begun.elapsed() >= Duration::from_millis(200));
        assert!(String::from_utf8_lossy(&ended.stdout).starts_with("before"));
        assert_eq!(ended.exited["cause"], "timeout", "tty {tty}");
        assert!(ended.code() > 128, "tty {tty}");
    }
    let quick = client.run_params(with(sh("quick", "exit 3"), json!({"timeoutMs": 60_000, "idleTimeoutMs": 60_000})));
    assert_eq!((quick.code(), &quick.exited["cause"]), (3, &json!("exit")));
}

#[test]
fn an_idle_timeout_counts_from_the_last_output() {
    let (_server, mut client) = TestServer::with_client();
    // Never silent for as long as the idle timeout, though the total time is longer.
    let chatty = "i=0; while [ $i -lt 12 ]; do echo $i; sleep 0.05; i=$((i+1)); done; echo done; exec sleep 1000";
    let ended = client.run_params(with(sh("p", chatty), json!({"idleTimeoutMs": 400})));
    assert!(ended.stdout.ends_with(b"11\ndone\n"), "{}", String::from_utf8_lossy(&ended.stdout));
    assert_eq!(ended.exited["cause"], "idleTimeout");
    let ended = client.run_params(with(sh("silent", "exec sleep 1000"), json!({"idleTimeoutMs": 50})));
    assert_eq!((&ended.exited["cause"], ended.stdout.len()), (&json!("idleTimeout"), 0));
}

/// Starts a process whose output is not taken: its client announces acknowledgements and sends none.
fn flood(client: &mut Client, id: &str, more: Value) {
    client.start(with(sh(id, "head -c 48000000 /dev/zero; echo >&2 end; exit 5"), more));
}

#[test]
fn drop_oldest_keeps_the_child_going_and_tells_what_is_gone() {
    let (_server, mut client, _) = TestServer::with_modern_client();
    flood(&mut client, "p", json!({"overflow": "dropOldest"}));
    // The child ends although nothing is acknowledged.
    testkit::wait_for("end of the child", || client.processes()[0]["closed"] == true);
    let info = client.processes()[0].clone();
    let dropped = info["droppedBytes"].as_u64().expect("a number");
    assert!(dropped > 0, "{info}");
    assert_eq!(info["outputBytes"], 48_000_004);
    let read = client.ok("process/read", process("p"));
    let gap = &read["gap"];
    assert_eq!((&gap["fromSeq"], gap["bytes"].as_u64()), (&json!(1), Some(dropped)), "{gap}");
    assert_eq!(read["firstSeq"].as_u64(), gap["toSeq"].as_u64().map(|seq| seq + 1));

    // First the output that was sent before the drop, then the gap, then the rest; together they are complete.
    let (mut bytes, mut gaps, mut next) = (0, 0, 1);
    loop {
        let message = client.next_notification();
        let params = &message["params"];
        match message["method"].as_str() {
            Some("process/output") => {
                assert_eq!((params["seq"].as_u64(), params["offset"].as_u64()), (Some(next), Some(bytes + gaps)));
                bytes += decode_base64(params["chunk"].as_str().expect("a chunk")).len() as u64;
                client.ack("p", next);
                next += 1;
            }
            Some("process/gap") => {
                assert_eq!(params["fromSeq"], next);
                gaps += params["bytes"].as_u64().expect("a number");
                next = params["toSeq"].as_u64().expect("a number") + 1;
            }
            Some("process/exited") => next += 1,
            _ => {
                assert_members(params, json!({"outputBytes": 48_000_004, "seq": next, "droppedBytes": dropped}));
                break;
            }
        }
    }
    assert_eq!(bytes + gaps, 48_000_004);
    assert!(gaps > 0);
}

#[test]
fn a_gap_is_filled_number_by_number_for_a_client_that_cannot_hear_of_it() {
    let (_server, mut client) = TestServer::with_connection();
    // The client acknowledges, so output can be dropped, but it did not announce `gap`.
    client.initialize_with(json!({"clientName": "test", "capabilities": {"ack": true}}));
    flood(&mut client, "p", json!({"overflow": "dropOldest"}));
    testkit::wait_for("end of the child", || client.processes()[0]["closed"] == true);
    let (mut bytes, mut missing, mut next) = (0, 0, 1);
    loop {
        let message = client.next_notification();
        let params = &message["params"];
        assert_eq!(params["seq"], next, "no number is left out: {}", message["method"]);
        next += 1;
        client.ack("p", params["seq"].clone());
        match message["method"].as_str() {
            Some("process/output") => {
                bytes += decode_base64(params["chunk"].as_str().expect("a chunk")).len() as u64;
                missing += params["gap"]["bytes"].as_u64().unwrap_or(0);
            }
            Some("process/closed") => break,
            other => assert_eq!(other, Some("process/exited")),
        }
    }
    assert_eq!(bytes + missing, 48_000_004);
    assert!(missing > 0, "the first of the empty chunks says what is gone");
}

#[test]
fn a_client_that_acknowledges_nothing_is_sent_a_window_and_holds_the_child() {
    let (_server, mut client) = TestServer::with_connection();
    let window = client.initialize_with(modern())["capabilities"]["ackWindowBytes"].as_u64().expect("a window");
    flood(&mut client, "p", json!({}));
    testkit::wait_for("the child to be held", || client.processes()[0]["blocked"] == "memoryCap");
    let (mut bytes, mut last) = (0, 0);
    while let Some(message) = client.next_notification_within(Duration::from_millis(200)) {
        let params = &message["params"];
        bytes += decode_base64(params["chunk"].as_str().expect("a chunk")).len() as u64;
        last = params["seq"].as_u64().expect("a number");
    }
    assert!(bytes >= window && bytes < window + (128 << 10), "{bytes} of a window of {window}");
    // The output continues where it stopped as soon as something is acknowledged.
    client.ack("p", last);
    loop {
        let message = client.next_notification();
        let params = &message["params"];
        let seq = params["seq"].as_u64().expect("a number");
        assert_eq!(seq, last + 1);
        last = seq;
        client.ack("p", seq);
        match message["method"].as_str() {
            Some("process/output") => bytes += decode_base64(params["chunk"].as_str().expect("a chunk")).len() as u64,
            Some("process/exited") => assert_eq!(params["exitCode"], 5),
            _ => break,
        }
    }
    assert_eq!(bytes, 48_000_004);
}
