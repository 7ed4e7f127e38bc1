//! Limits and fairness of a connection: sizes, waiting requests, clients that do not read (design sections 1 and 4, spec 1.3, 1.6).
//! Performance is measured by the benchmark.

use crate::prelude::*;

/// Requests of reads of the process `p` that wait.
fn long_polls(client: &mut Client, count: usize) -> Vec<i64> {
    let params = json!({"processId": "p", "waitMs": 60_000});
    (0..count).map(|_| client.send_request("process/read", params.clone())).collect()
}

/// Requests of starts of processes that end at once.
fn short_starts(client: &mut Client, count: usize) -> Vec<i64> {
    (0..count).map(|i| client.send_request("process/start", sh(&format!("s{i}"), "exit 0"))).collect()
}

#[test]
fn sixty_four_mib_without_a_newline_arrive_whole_and_in_order() {
    let (_server, mut client) = TestServer::with_process(sh("p", "head -c 67108864 /dev/zero"));
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
    let (server, mut client, session) = TestServer::with_session();
    client.start(cat("p"));
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
    let (_server, mut client) = TestServer::with_client();
    client.send_text(&format!(r#"{{"id":1,"method":"no/such","params":"{}"}}"#, "x".repeat(90 << 20)));
    assert_eq!(client.next()["error"]["code"], -32601);
    client.assert_alive();
}

#[test]
fn a_long_poll_holds_up_nobody() {
    let (_server, mut client) = TestServer::with_process(sh("p", "exec sleep 1000"));
    let begun = Instant::now();
    let reads = long_polls(&mut client, 200);
    client.assert_alive();
    client.ok("environment/info", json!({}));
    client.ok("process/list", json!({}));
    assert_eq!(client.run("q", &["true"]).code(), 0);
    assert_eq!(client.terminate("p")["running"], true);
    assert!(client.answers(reads).iter().all(|answer| answer["exitCode"] == 137));
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[test]
fn exec_server_keeps_control_requests_live_during_long_reads_and_queued_requests() {
    let server = TestServer::builder().args(["--concurrent-requests", "1"]).start();
    let mut client = server.client();
    client.start(sh("p", "exec sleep 1000"));
    let read = client.send_request("process/read", json!({"processId": "p", "waitMs": 60_000}));
    let starts = short_starts(&mut client, 50);
    client.assert_alive();
    assert_eq!(client.terminate("p")["running"], true);
    assert_eq!(client.answer(read).expect("read")["exited"], true);
    client.answers(starts);
}

#[test]
fn requests_beyond_the_bound_are_refused_and_control_requests_are_not() {
    let (_server, mut client) = TestServer::with_process(sh("p", "exec sleep 1000"));
    let reads = long_polls(&mut client, 1100);
    client.assert_alive();
    assert_eq!(client.terminate("p")["running"], true);
    let answers: Vec<_> = reads.into_iter().map(|id| client.answer(id)).collect();
    let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert_eq!(refused.len(), 1100 - 1024);
    assert_error(refused[0], -32600, "overloaded");
    client.assert_alive();
}

#[test]
fn connection_accepts_pipelined_scalar_requests() {
    let (_server, mut client) = TestServer::with_client();
    let ids: Vec<i64> = (0..3000).map(|_| client.send_request("environment/status", json!({}))).collect();
    for id in ids {
        assert_eq!(client.next()["id"], id, "control requests are answered in order");
    }
}

// The reference can deadlock here: it does not read while it waits to send, and does not send while it waits to queue.
#[test]
fn many_requests_and_much_output_at_once_do_not_block_each_other() {
    let (_server, mut client) = TestServer::with_process(sh("noisy", "exec cat /dev/zero"));
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
    client.terminate("noisy");
}

#[test]
fn a_noisy_process_delays_neither_an_answer_nor_a_quiet_process() {
    let (_server, mut client) = TestServer::with_process(cat("quiet"));
    for i in 0..4 {
        client.start(sh(&format!("noisy{i}"), "exec cat /dev/zero"));
    }
    let begun = Instant::now();
    for round in 0..10 {
        client.write("quiet", format!("{round}\n"));
        client.wait_output("quiet", "\n");
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn wake_notifications_do_not_block_other_sessions() {
    let server = TestServer::start();
    let (mut noisy, mut quiet) = (server.client(), server.client());
    // This client never reads.
    noisy.start(sh("noisy", "exec cat /dev/zero"));
    quiet.start(piped("quiet", "read x; echo heard"));
    let begun = Instant::now();
    quiet.write("quiet", b"\n");
    assert_eq!(quiet.expect("process/output")["seq"], 1);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_client_that_never_reads_costs_a_bounded_amount_of_memory() {
    let (server, mut other) = TestServer::with_client();
    let (mut deaf, session) = server.session();
    deaf.start(sh("flood", "exec cat /dev/zero"));
    let list = json!({"scope": "all"});
    let written = |other: &mut Client| other.ok("process/list", list.clone())["processes"][0].clone();
    wait_for("the child to be held", || written(&mut other)["blocked"] == "memoryCap");
    let before = written(&mut other)["outputBytes"].as_u64().expect("a number");
    assert!(before < 96 << 20, "{before}");
    assert!(resident(server.pid(), "VmRSS") < 128 << 20, "{}", resident(server.pid(), "VmRSS"));
    // Requests whose answers are not read are bounded too.
    for _ in 0..20_000 {
        deaf.send_request("process/list", json!({}));
    }
    assert!(resident(server.pid(), "VmRSS") < 256 << 20, "{}", resident(server.pid(), "VmRSS"));
    other.assert_alive();
    drop(deaf);
    // Output that was not taken is still there after a resume.
    let mut client = server.resume(&session, json!({}));
    assert_eq!(client.ok("process/read", json!({"processId": "flood", "maxBytes": 1}))["firstSeq"], 1);
    assert_eq!(client.terminate("flood")["running"], true);
}

#[test]
fn a_polling_client_that_stops_reading_is_pushed_again() {
    let (_server, mut client) = TestServer::with_client();
    client.start(piped("p", "read x; exec head -c 20000000 /dev/zero"));
    // A waiting read makes the client a poller: pushes stop 16 MiB after the last read.
    client.ok("process/read", json!({"processId": "p", "waitMs": 20}));
    let begun = Instant::now();
    client.write("p", b"\n");
    let ended = client.collect("p");
    assert!(begun.elapsed() >= Duration::from_secs(2), "it was waited for its next read");
    assert_eq!(ended.stdout.len(), 20_000_000);
    assert_eq!(ended.seqs, (1..=ended.seqs.len() as u64).collect::<Vec<_>>());
}

// The only test that waits for real seconds: the reference keeps a closed process for 30 s and then frees its id.
#[test]
fn closed_process_is_evicted_after_retention() {
    let (server, mut client) = TestServer::with_client();
    let gate = fifo(server.dir(), "gate");
    client.start(sh("held", &format!("(read x <{gate}; echo late) & exit 5")));
    client.expect("process/exited");
    client.run("p", &["true"]);
    let begun = Instant::now();
    client.refuses("process/start", sh("p", "exit 0"), -32600, "duplicateProcess");
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
    client.refuses("process/start", sh("held", "exit 0"), -32600, "duplicateProcess");
    release(&gate);
    assert_eq!(client.expect("process/output")["seq"], 2);
    client.expect("process/closed");
}

// If a request completed at its first poll, no waiting request was admitted after it: most were never answered, and later ones overtook
// them.
#[test]
fn requests_that_wait_for_the_only_slot_are_all_answered_in_order() {
    let server = TestServer::builder().args(["--concurrent-requests", "1"]).start();
    let mut client = server.client();
    let (mut starts, mut others, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..50 {
        let id = format!("p{i}");
        starts.push(client.send_request("process/start", start_params(&id, &["true"])));
        // This request waits for the start and needs no slot.
        others.push(client.send_request("process/forget", process(&id)));
        lists.push(client.send_request("process/list", json!({})));
        lists.push(client.send_request("process/list", json!({})));
    }
    let (mut started, mut answered, mut listed) = (Vec::new(), Vec::new(), Vec::new());
    while started.len() + answered.len() + listed.len() < 200 {
        let message = client.next();
        if let Some(id) = message["id"].as_i64() {
            let kind = if starts.contains(&id) {
                &mut started
            } else if lists.contains(&id) {
                &mut listed
            } else {
                &mut answered
            };
            kind.push(id);
        }
    }
    assert_eq!((started, answered, listed), (starts, others, lists));
}

// All answers were built at once, whether the client read them or not: 120 reads cost 1.28 GiB.
#[test]
fn many_large_reads_are_answered_one_after_the_other() {
    let (server, mut client) = TestServer::with_process(sh("p", "head -c 8388608 /dev/zero"));
    assert_eq!(client.collect("p").stdout.len(), 8 << 20);
    let before = server.memory();
    for _ in 0..60 {
        client.send_request("process/read", process("p"));
    }
    for _ in 0..5 {
        let answer = client.next();
        assert!(answer["result"]["chunks"].as_array().is_some_and(|chunks| chunks.len() > 100));
        let grown = server.memory().saturating_sub(before);
        assert!(grown < 64 << 20, "the server grew by {} MiB", grown >> 20);
    }
}

// A message of more than 64 MiB was always refused as `overloaded`, even if nothing else was waiting.
#[test]
fn one_large_write_alone_is_no_overload() {
    let (_server, mut client) = TestServer::with_process(piped("p", "exec cat >/dev/null"));
    let chunk = "AAAA".repeat(20 << 20);
    client.send_text(&format!(
        r#"{{"id":"large","method":"process/write","params":{{"processId":"p","chunk":"{chunk}"}}}}"#
    ));
    let answer = client.next();
    assert_eq!((&answer["id"], &answer["result"]), (&json!("large"), &json!({"status": "accepted"})), "{answer}");
    client.close_stdin("p");
    assert_eq!(client.collect("p").code(), 0);
}

// Requests to close a full stdin were unbounded: 60,000 cost 128 MiB, and none was refused.
#[test]
fn requests_that_wait_for_a_full_stdin_are_refused_in_the_end_and_control_is_not() {
    let (_server, mut client) = TestServer::with_process(piped("p", "exec sleep 1000"));
    let write = client.send_write("p", [b'x'; 200_000]);
    for _ in 0..9000 {
        client.send_request("process/closeStdin", process("p"));
    }
    let terminate = client.send_request("process/terminate", process("p"));
    let (mut answered, mut refused) = (0, 0);
    while answered + refused < 9002 {
        let message = client.next();
        match message["id"].as_i64() {
            Some(id) if id == write => assert_eq!(message["result"]["status"], "stdinClosed"),
            Some(id) if id == terminate => assert_eq!(message["result"]["running"], true, "{message}"),
            Some(_) if message["error"]["data"]["kind"] == "overloaded" => {
                refused += 1;
                continue;
            }
            Some(_) => assert!(message["result"]["status"].is_string(), "{message}"),
            None => continue,
        }
        answered += 1;
    }
    assert!(answered > 8000 && refused > 700, "{answered} answered, {refused} refused");
    client.assert_alive();
}

/// A server that was stopped could not read in that time. It must not take its own pause for silence of its clients.
#[test]
fn a_server_that_was_stopped_does_not_take_quiet_clients_for_dead() {
    let server = TestServer::builder().arg("--ping-every=200ms").arg("--dead-after=400ms").start();
    let mut client = server.client();
    client.run("before", &["/bin/true"]);
    server.signal(Signal::STOP);
    assert_eq!(client.next_notification_within(Duration::from_secs(1)), None);
    server.signal(Signal::CONT);
    // The server checks its peers twice in this time.
    assert_eq!(client.next_notification_within(Duration::from_millis(300)), None);
    client.run("after", &["/bin/true"]);
}

// A start that waited for a slot had no id yet: other requests for that process got `unknownProcess`.
#[test]
fn a_start_that_waits_for_others_is_waited_for_by_what_names_it() {
    let server = TestServer::builder().args(["--concurrent-requests", "1"]).start();
    let mut client = server.client();
    let starts = short_starts(&mut client, 20);
    let cat = client.send_request("process/start", with(start_params("cat", &["cat"]), json!({"pipeStdin": true})));
    let write = client.send_write("cat", b"in order");
    let close = client.send_request("process/closeStdin", process("cat"));
    let sleep = client.send_request("process/start", sh("sleep", "exec sleep 1000"));
    let terminate = client.send_request("process/terminate", process("sleep"));
    let again = client.send_request("process/start", sh("cat", "exit 0"));
    client.answers(starts.into_iter().chain([cat, sleep]));
    assert_eq!(client.answer(write).expect("written")["status"], "accepted");
    assert_eq!(client.answer(close).expect("closed")["status"], "accepted");
    assert_eq!(client.answer(terminate).expect("terminated")["running"], true);
    assert_error(&client.answer(again).expect_err("its name is taken"), -32600, "duplicateProcess");
    assert_eq!(client.collect("cat").stdout, b"in order");
    assert_eq!(client.collect("sleep").code(), 137);
}

// A waiting start has no effect yet: it counts towards no limit, and it is cancelled when its connection ends.
#[test]
fn a_start_that_waits_for_others_takes_nothing_and_goes_with_its_connection() {
    let server = TestServer::builder().arg("--concurrent-requests").arg("1").arg("--max-processes").arg("3").start();
    let (mut client, session) = server.modern_client();
    client.start(sh("runs", "exec sleep 1000"));
    let stopped = Stopped::new(server.holder());
    for name in ["begins", "waits", "waits-too", "waits-longer"] {
        client.send_request("process/start", sh(name, "exec sleep 1000"));
    }
    let status = client.send_request("environment/status", json!({}));
    assert_eq!(client.next()["id"], status, "nothing is refused");
    client.leave();
    drop(stopped);
    let mut client = server.resume(&session, modern());
    let names = |client: &mut Client| {
        let listed = client.processes().clone();
        let names = listed.as_array().into_iter().flatten().map(|process| process["processId"].clone());
        names.collect::<Vec<_>>()
    };
    wait_for("the start that had begun", || names(&mut client).contains(&json!("begins")));
    // Its id is free, and there is room for it.
    client.start(sh("waits", "exec sleep 1000"));
    assert_eq!(names(&mut client), ["runs", "begins", "waits"]);
    client.refuses("process/start", sh("one-more", "exit 0"), -32603, "resourcesExhausted");
}

#[test]
fn d11_2_1_neither_a_long_poll_nor_a_full_stdin_blocks_terminate() {
    let (_server, mut client) = TestServer::with_process(piped("p", "exec sleep 1000"));
    let read = client.send_request("process/read", json!({"processId": "p", "waitMs": 600_000}));
    let write = client.send_write("p", vec![b'x'; 1 << 20]);
    let behind = client.send_write("p", b"x");
    let begun = Instant::now();
    client.assert_alive();
    assert_eq!(client.run("q", &["true"]).code(), 0);
    assert_eq!(client.terminate("p")["running"], true);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(client.answer(read).expect("read")["exitCode"], 137);
    assert!(client.answers([write, behind]).iter().all(|answer| answer["status"] == "stdinClosed"));
}

#[test]
fn d11_2_4_a_full_terminal_stalls_nobody() {
    let (_server, mut client) = TestServer::with_client();
    let ids: Vec<String> = (0..8).map(|i| format!("t{i}")).collect();
    for id in &ids {
        client.start(tty(id, "stty raw -echo; echo up; exec sleep 1000"));
        client.wait_output(id, "up");
        client.send_write(id, vec![b'x'; 1 << 18]);
    }
    let begun = Instant::now();
    client.assert_alive();
    assert_eq!(client.run("p", &["true"]).code(), 0);
    assert!(begun.elapsed() < Duration::from_secs(5));
}
