//! `process/write`: its answers, the order of the bytes, and that a write id makes a write happen once (spec 3.5). EOF on stdin is tested
//! in `process_additions.rs`.

use crate::{prelude::*, wire::GENERATIONS};

fn write(client: &mut Client, id: &str, bytes: &[u8]) -> Value {
    client.write(id, bytes)["status"].clone()
}

#[test]
fn exec_process_write_then_read() {
    let (_server, mut client) = TestServer::with_client();
    for generation in GENERATIONS {
        let id = format!("{generation:?}");
        client.start(with(generation.start(&id, &["/bin/sh", "-c", "read x; echo from:$x"]), json!({"tty": true})));
        assert_eq!(client.ok("process/write", generation.write(&id, b"hello\n", 1)), json!({"status": "accepted"}));
        let ended = client.collect(&id);
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "hello\r\nfrom:hello\r\n");
    }
}

#[test]
fn exec_process_write_then_read_without_tty() {
    let (_server, mut client) = TestServer::with_client();
    for generation in GENERATIONS {
        let id = format!("{generation:?}");
        let params =
            with(generation.start(&id, &["/bin/sh", "-c", "read x; echo from:$x"]), json!({"pipeStdin": true}));
        client.start(params);
        assert_eq!(client.ok("process/write", generation.write(&id, b"hello\n", 1)), json!({"status": "accepted"}));
        let ended = client.collect(&id);
        assert_eq!((String::from_utf8_lossy(&ended.stdout).as_ref(), ended.code()), ("from:hello\n", 0));
    }
}

#[test]
fn exec_process_rejects_write_without_pipe_stdin() {
    let (_server, mut client) = TestServer::with_client();
    client.start(with(sh("p", "cat; echo eof; exec sleep 1000"), json!({"pipeStdin": false})));
    client.wait_output("p", "eof\n");
    assert_eq!(write(&mut client, "p", b"x"), "stdinClosed");
    assert_eq!(client.terminate("p")["running"], true);
}

#[test]
fn exec_server_defaults_omitted_pipe_stdin_to_closed_stdin() {
    let (_server, mut client) = TestServer::with_process(sh("p", "exec sleep 1000"));
    for generation in GENERATIONS {
        assert_eq!(client.ok("process/write", generation.write("p", b"x", 1))["status"], "stdinClosed");
    }
}

#[test]
fn a_write_to_nobody_is_a_status_and_no_error() {
    let (_server, mut client) = TestServer::with_client();
    assert_eq!(write(&mut client, "none", b"x"), "unknownProcess");
    client.run("gone", &["true"]);
    assert_eq!(write(&mut client, "gone", b"x"), "stdinClosed");
    client.run_params(piped("piped", "exit 0"));
    assert_eq!(write(&mut client, "piped", b"x"), "stdinClosed");
    client.run_params(tty("tty", "exit 0"));
    assert_eq!(write(&mut client, "tty", b"x"), "stdinClosed");
}

#[test]
fn exec_server_dedupes_retried_process_write_ids() {
    let (_server, mut client) = TestServer::with_process(cat("p"));
    let once = json!({"processId": "p", "chunk": encode_base64(b"once\n"), "writeId": "w1"});
    for _ in 0..5 {
        assert_eq!(client.ok("process/write", once.clone())["status"], "accepted");
    }
    // Without an id every write counts, and different ids are different writes.
    client.write("p", b"a\n");
    client.write("p", b"a\n");
    client.ok("process/write", json!({"processId": "p", "chunk": encode_base64(b"end\n"), "writeId": "w2"}));
    assert_eq!(client.wait_output("p", "end\n"), "once\na\na\nend\n");
}

#[test]
fn a_write_id_is_remembered_over_4095_others() {
    let (_server, mut client) = TestServer::with_process(cat("p"));
    let chunk = encode_base64(b"x");
    let params = |id: usize| json!({"processId": "p", "chunk": chunk, "writeId": format!("w{id}")});
    let requests: Vec<i64> = (0..4096).map(|id| client.send_request("process/write", params(id))).collect();
    assert!(client.answers(requests).iter().all(|answer| answer["status"] == "accepted"));
    for id in [0, 1, 4095] {
        assert_eq!(client.ok("process/write", params(id))["status"], "accepted");
    }
    write(&mut client, "p", b"end");
    assert_eq!(client.wait_output("p", "end").len(), 4096 + 3);
}

#[test]
fn a_write_id_used_for_other_bytes_is_refused() {
    let (_server, mut client) = TestServer::with_process(cat("p"));
    client.ok("process/write", json!({"processId": "p", "chunk": encode_base64(b"one"), "writeId": "w"}));
    let other = json!({"processId": "p", "chunk": encode_base64(b"longer"), "writeId": "w"});
    client.refuses("process/write", other, -32600, "writeIdReused");
    // Write ids belong to one process.
    client.start(cat("q"));
    client.ok("process/write", json!({"processId": "q", "chunk": encode_base64(b"mine\n"), "writeId": "w"}));
    client.wait_output("q", "mine\n");
}

#[test]
fn bad_chunks_and_ids_are_refused_before_anything_else() {
    let (_server, mut client) = TestServer::with_process(cat("p"));
    for chunk in ["***", "a", "ab", "abc", "YQ", "YQ=", "YR==", "YQ==\n", "Y Q==", "YQ==YQ==", "_-8=", "=", "===="] {
        let error = client.fails("process/write", json!({"processId": "p", "chunk": chunk, "writeId": "w"}));
        assert_eq!((error.code, error.kind()), (-32602, "invalidBase64"), "{chunk:?}");
    }
    // The refused writes did not use up the id, and an empty id is refused even for an unknown process.
    client.ok("process/write", json!({"processId": "p", "chunk": encode_base64(b"ok\n"), "writeId": "w"}));
    client.wait_output("p", "ok\n");
    for id in ["p", "none"] {
        client.refuses("process/write", json!({"processId": id, "chunk": "", "writeId": ""}), -32602, "emptyWriteId");
    }
    for id in ["p", "none"] {
        assert_eq!(client.fails("process/write", json!({"processId": id, "chunk": "*"})).code, -32602);
    }
}

#[test]
fn an_empty_chunk_is_accepted_and_does_nothing() {
    let (_server, mut client) = TestServer::with_process(cat("p"));
    assert_eq!(write(&mut client, "p", b""), "accepted");
    let params = json!({"processId": "p", "chunk": "", "writeId": "w"});
    assert_eq!(client.ok("process/write", params)["status"], "accepted");
    assert_eq!(write(&mut client, "p", b"x\n"), "accepted");
    assert_eq!(client.wait_output("p", "x\n"), "x\n");
}

#[test]
fn writes_go_in_in_the_order_of_arrival() {
    let (server, mut client) = TestServer::with_client();
    for modern in [false, true] {
        let mut other = server.connect();
        let client = if modern {
            other.initialize_with(testkit::modern());
            &mut other
        } else {
            &mut client
        };
        client.start(cat("p"));
        let lines: Vec<String> = (0..500).map(|i| format!("{i}\n")).collect();
        let requests: Vec<i64> = lines.iter().map(|line| client.send_write("p", line)).collect();
        assert!(client.answers(requests).iter().all(|answer| answer["status"] == "accepted"));
        assert_eq!(client.wait_output("p", "\n499\n"), lines.concat());
    }
}

#[test]
fn writes_pipelined_behind_a_start_reach_the_process() {
    let (_server, mut client) = TestServer::with_client();
    let start = client.send_request("process/start", piped("p", "read x; read y; echo $x$y"));
    let one = client.send_write("p", b"one\n");
    let two = client.send_write("p", b"two\n");
    client.answer(start).expect("start");
    assert!(client.answers([one, two]).iter().all(|answer| answer["status"] == "accepted"));
    assert_eq!(client.collect("p").stdout, b"onetwo\n");
}

#[test]
fn a_large_write_goes_in_whole_and_once() {
    let (server, mut client) = TestServer::with_client();
    let bytes: Vec<u8> = (0..6_000_000u32).map(|i| (i % 251) as u8).collect();
    client.start(piped("p", "head -c 6000000 | md5sum"));
    let params = json!({"processId": "p", "chunk": encode_base64(&bytes), "writeId": "big"});
    let (first, again) =
        (client.send_request("process/write", params.clone()), client.send_request("process/write", params));
    assert_eq!(client.answer(first).expect("write")["status"], "accepted");
    assert_eq!(client.answer(again).expect("write")["status"], "accepted");
    let file = server.dir().join("same");
    std::fs::write(&file, &bytes).expect("write a file");
    let sum = client.run_params(sh("sum", &format!("md5sum <{}", file.display())));
    assert_eq!(client.collect("p").stdout, sum.stdout);
}

// More writes than the runtime polls in one pass: a postponed write must not be overtaken by a later one.
#[test]
fn many_writes_to_a_process_that_is_being_started_keep_their_order() {
    let (_server, mut client) = TestServer::with_client();
    let expected: String = (0..600).map(|i| format!("{i}\n")).collect();
    for round in 0..5 {
        let id = format!("p{round}");
        let start = client.send_request("process/start", with(start_params(&id, &["cat"]), json!({"pipeStdin": true})));
        let writes: Vec<i64> = (0..600)
            .map(|i| {
                let chunk = encode_base64(format!("{i}\n").as_bytes());
                client.send_request("process/write", json!({"processId": id, "chunk": chunk}))
            })
            .collect();
        let close = client.send_request("process/closeStdin", process(&id));
        client.answers([start].into_iter().chain(writes).chain([close]));
        assert_eq!(String::from_utf8_lossy(&client.collect(&id).stdout), expected);
    }
}

#[test]
fn a_write_id_used_for_other_bytes_of_the_same_length_is_refused_also_by_the_next_server() {
    let mut server = TestServer::builder().keep_holders().start();
    let hello = |session: Value| json!({"clientName": "test", "resumeSessionId": session, "capabilities": {"ack": true, "gap": true}});
    let mut client = server.connect();
    let session = client.initialize_with(hello(Value::Null))["sessionId"].clone();
    client.start(piped("p", "cat"));
    let write = |bytes: &[u8]| json!({"processId": "p", "writeId": "w", "chunk": encode_base64(bytes)});
    assert_eq!(client.ok("process/write", write(b"one\n")), json!({"status": "accepted"}));
    for round in 0..2 {
        client.refuses("process/write", write(b"two\n"), -32600, "writeIdReused");
        assert_eq!(client.ok("process/write", write(b"one\n")), json!({"status": "accepted"}), "round {round}");
        if round == 0 {
            server.restart();
            client = server.connect();
            client.initialize_with(hello(session.clone()));
        }
    }
    client.close_stdin("p");
    assert_eq!(client.collect("p").stdout, b"one\n");
}

#[test]
fn a_line_that_a_terminal_cuts_is_reported() {
    let (_server, mut client) = TestServer::with_client();
    let write = |client: &mut Client, id: &str, bytes: usize, end: &str| {
        let chunk = encode_base64(("x".repeat(bytes) + end).as_bytes());
        client.ok("process/write", json!({"processId": id, "chunk": chunk}))
    };
    let (whole, cut) = (json!({"status": "accepted"}), json!({"status": "accepted", "lineCut": true}));
    client.start(tty("lines", "stty -echo; echo up; exec wc -L"));
    client.wait_output("lines", "up\r\n");
    assert_eq!(write(&mut client, "lines", 4095, "\n"), whole);
    assert_eq!(write(&mut client, "lines", 2000, "\n"), whole);
    assert_eq!(write(&mut client, "lines", 4096, "\n"), cut);
    // A line may consist of several writes; the write that makes it too long is reported.
    assert_eq!(write(&mut client, "lines", 3000, ""), whole);
    assert_eq!(write(&mut client, "lines", 3000, "\n"), cut);
    assert_eq!(write(&mut client, "lines", 1, "\n"), whole);
    client.close_stdin("lines");
    assert!(String::from_utf8_lossy(&client.collect("lines").stdout).contains("4095"), "the kernel kept 4095 bytes");
    // In raw mode the terminal does not collect lines, so nothing is cut.
    client.start(tty("raw", "stty raw -echo; echo up; exec head -c 10000 >/dev/null"));
    client.wait_output("raw", "up\n");
    assert_eq!(write(&mut client, "raw", 10_000, ""), whole);
    assert_eq!(client.collect("raw").code(), 0);
}

// Input was sent to the holder by slot even after `Forget`: bytes written to one process reached the next process in that slot.
#[test]
fn what_was_written_to_a_forgotten_process_never_enters_its_successor() {
    let (_server, mut client) = TestServer::with_client();
    for round in 0..20 {
        let is_closed = round % 2 == 0;
        let mut writes = Vec::new();
        if is_closed {
            client.start(piped("old", "read x"));
            client.write("old", b"\n");
        } else {
            // More than its stdin buffers: the last three writes are waiting when it ends.
            client.start(piped("old", "exec sleep 1000"));
            writes.extend((0..4).map(|_| client.send_write("old", [b'x'; 100_000])));
            client.terminate("old");
        }
        client.collect("old");
        writes.extend((0..4).map(|_| client.send_write("old", b"for the old one\n")));
        let forget = client.send_request("process/forget", process("old"));
        let start =
            client.send_request("process/start", with(start_params("new", &["cat"]), json!({"pipeStdin": true})));
        for id in writes {
            let status = client.answer(id).expect("a status")["status"].clone();
            assert!(status == "stdinClosed" || status == "unknownProcess", "{status}");
        }
        client.answer(forget).expect("a closed process can be forgotten");
        client.answer(start).expect("the new one starts");
        client.close_stdin("new");
        assert_eq!(String::from_utf8_lossy(&client.collect("new").stdout), "", "round {round}");
        client.ok("process/forget", process("new"));
    }
}

#[test]
fn d11_1_6_a_write_after_the_child_closed_its_input_is_not_accepted() {
    let (_server, mut client) = TestServer::with_client();
    client.start(piped("p", "exec 0<&-; echo closed; exec sleep 1000"));
    client.wait_output("p", "closed");
    let write = json!({"processId": "p", "chunk": "eA=="});
    assert_eq!(client.ok("process/write", write.clone())["status"], "stdinClosed");
    assert_eq!(client.ok("process/write", write)["status"], "stdinClosed");
}

#[test]
fn d11_1_6_a_write_is_accepted_when_it_is_in_and_not_when_the_child_dies_before() {
    let (_server, mut client) = TestServer::with_client();
    for is_tty in [false, true] {
        let id = format!("p{is_tty}");
        let params = if is_tty {
            tty(&id, "stty raw -echo; echo up; exec sleep 1000")
        } else {
            piped(&id, "echo up; exec sleep 1000")
        };
        client.start(params);
        client.wait_output(&id, "up");
        // More than a pipe or terminal buffers without a reader.
        let big = client.send_write(&id, vec![b'x'; 1 << 20]);
        client.assert_alive();
        client.terminate(&id);
        assert_eq!(client.answer(big).expect("write")["status"], "stdinClosed", "tty {is_tty}");
        client.collect(&id);
    }
}
