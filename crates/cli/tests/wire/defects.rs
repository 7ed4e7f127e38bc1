//! The known defects of the reference (spec section 11) in processes and connections: each has a test that shows that our server does not
//! have it. The test names begin with the number of the defect. `COVERAGE.md` lists defects that other files cover.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    os::unix::ffi::OsStrExt,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use testkit::{
    Client, TestServer, assert_error, chunk_bytes, decode_base64, encode_base64, fifo, marked, modern, pid_of, piped,
    process, release, sh, tty, wait_for, wait_gone, with,
};

#[test]
fn d11_1_1_terminate_loses_no_byte_that_was_written_before_it() {
    let server = TestServer::start();
    let mut client = server.client();
    for round in 0..20 {
        let id = format!("p{round}");
        let gate = fifo(server.dir(), &id);
        client.ok("process/start", sh(&id, &format!("head -c 60000 /dev/zero; echo end >{gate}; exec sleep 1000")));
        // The output is written, but may still be in the pipe.
        assert_eq!(fs::read_to_string(&gate).expect("read the FIFO"), "end\n");
        client.ok("process/terminate", process(&id));
        let ended = client.collect(&id);
        assert_eq!((ended.stdout.len(), ended.code()), (60_000, 137), "the real exit code, and every byte");
        assert_eq!(ended.closed["outputBytes"], 60_000);
    }
}

#[test]
fn d11_1_2_what_a_reference_client_reads_late_is_all_there_or_reported() {
    let server = TestServer::start();
    let mut client = server.client();
    // The reference kept 1 MiB and reported nothing about the rest.
    client.ok("process/start", sh("p", "head -c 6000000 /dev/zero"));
    client.collect("p");
    let read = client.ok("process/read", process("p"));
    assert_eq!((chunk_bytes(&read).len(), &read["firstSeq"], &read["gap"]), (6_000_000, &json!(1), &Value::Null));
}

#[test]
fn d11_1_4_numbers_arrive_in_order_and_without_a_hole() {
    let server = TestServer::start();
    let mut client = server.client();
    let script = "for i in 1 2 3 4 5 6 7 8; do (head -c 200000 /dev/zero; echo x >&2) & done; wait";
    let ended = client.run_params(sh("p", script));
    assert_eq!(ended.seqs, (1..=ended.seqs.len() as u64).collect::<Vec<_>>());
    assert_eq!((ended.stdout.len(), ended.stderr.len()), (1_600_000, 16));
}

#[test]
fn d11_1_6_a_write_after_the_child_closed_its_input_is_not_accepted() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", piped("p", "exec 0<&-; echo closed; exec sleep 1000"));
    client.wait_output("p", "closed");
    let write = json!({"processId": "p", "chunk": "eA=="});
    assert_eq!(client.ok("process/write", write.clone())["status"], "stdinClosed");
    assert_eq!(client.ok("process/write", write)["status"], "stdinClosed");
}

#[test]
fn d11_1_6_a_write_is_accepted_when_it_is_in_and_not_when_the_child_dies_before() {
    let server = TestServer::start();
    let mut client = server.client();
    for is_tty in [false, true] {
        let id = format!("p{is_tty}");
        let params = if is_tty {
            tty(&id, "stty raw -echo; echo up; exec sleep 1000")
        } else {
            piped(&id, "echo up; exec sleep 1000")
        };
        client.ok("process/start", params);
        client.wait_output(&id, "up");
        // More than a pipe or terminal buffers without a reader.
        let big = client
            .send_request("process/write", json!({"processId": id, "chunk": encode_base64(&vec![b'x'; 1 << 20])}));
        client.assert_alive();
        client.ok("process/terminate", process(&id));
        assert_eq!(client.answer(big).expect("write")["status"], "stdinClosed", "tty {is_tty}");
        client.collect(&id);
    }
}

#[test]
fn d11_1_7_a_quick_resume_never_ends_up_without_notifications() {
    let server = TestServer::start();
    let mut client = server.connect();
    let session = client.initialize_with(modern())["sessionId"].as_str().expect("an id").to_owned();
    client.start_cat("p");
    for round in 0..30 {
        drop(client);
        client = server.resume(&session, modern());
        let line = format!("{round}\n");
        client.ok("process/write", json!({"processId": "p", "chunk": encode_base64(line.as_bytes())}));
        client.wait_output("p", &line);
        let seq = client.ok("process/read", process("p"))["nextSeq"].as_u64().expect("a number") - 1;
        client.notify("process/ack", json!({"processId": "p", "seq": seq}));
    }
}

#[test]
fn d11_2_1_neither_a_long_poll_nor_a_full_stdin_blocks_terminate() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", piped("p", "exec sleep 1000"));
    let read = client.send_request("process/read", json!({"processId": "p", "waitMs": 600_000}));
    let write =
        client.send_request("process/write", json!({"processId": "p", "chunk": encode_base64(&vec![b'x'; 1 << 20])}));
    let behind = client.send_request("process/write", json!({"processId": "p", "chunk": "eA=="}));
    let begun = Instant::now();
    client.assert_alive();
    assert_eq!(client.run("q", &["true"]).code(), 0);
    assert_eq!(client.ok("process/terminate", process("p"))["running"], true);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(client.answer(read).expect("read")["exitCode"], 137);
    for id in [write, behind] {
        assert_eq!(client.answer(id).expect("write")["status"], "stdinClosed");
    }
}

#[test]
fn d11_2_3_no_wake_up_of_a_long_poll_is_lost() {
    let server = TestServer::start();
    let mut client = server.client();
    client.start_cat("p");
    let begun = Instant::now();
    for round in 0..500_u64 {
        // The write races with the read that waits for its echo.
        let write = client.send_request("process/write", json!({"processId": "p", "chunk": "eA=="}));
        let read = client.send_request("process/read", json!({"processId": "p", "afterSeq": round, "waitMs": 20_000}));
        let result = client.answer(read).expect("read");
        assert_eq!(result["nextSeq"], round + 2, "{result}");
        client.answer(write).expect("write");
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "no read slept its time out");
}

#[test]
fn d11_2_4_a_full_terminal_stalls_nobody() {
    let server = TestServer::start();
    let mut client = server.client();
    let ids: Vec<String> = (0..8).map(|i| format!("t{i}")).collect();
    for id in &ids {
        client.ok("process/start", tty(id, "stty raw -echo; echo up; exec sleep 1000"));
        client.wait_output(id, "up");
        client.send_request("process/write", json!({"processId": id, "chunk": encode_base64(&vec![b'x'; 1 << 18])}));
    }
    let begun = Instant::now();
    client.assert_alive();
    assert_eq!(client.run("p", &["true"]).code(), 0);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn d11_2_6_a_session_is_handed_over_when_its_peer_is_only_half_there() {
    let server = TestServer::start();
    let mut dead = server.connect();
    let session = dead.initialize();
    dead.start_cat("p");
    // The old connection stays open and answers no ping, like a peer behind a dead link.
    let begun = Instant::now();
    let mut client = server.resume(&session, json!({}));
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(1900) && waited < Duration::from_secs(10), "{waited:?}");
    client.ok("process/write", json!({"processId": "p", "chunk": encode_base64(b"mine\n")}));
    client.ok("process/read", json!({"processId": "p", "waitMs": 20_000}));
    // The old connection gets a close frame when it reads again.
    let (code, _) = dead.wait_closed().expect("a close frame");
    assert_eq!(code, 1008);
}

#[test]
fn d11_2_9_a_start_whose_connection_went_away_leaves_no_name_behind() {
    let server = TestServer::start();
    let mut client = server.connect();
    let session = client.initialize();
    for round in 0..20 {
        let id = format!("p{round}");
        client.send_request("process/start", sh(&id, "exec sleep 1000"));
        drop(client);
        client = server.resume(&session, json!({}));
        // The start has either not happened at all, or the process runs.
        match client.call("process/read", process(&id)) {
            Ok(read) => {
                assert_eq!(read["exited"], false);
                assert_eq!(client.ok("process/terminate", process(&id))["running"], true);
            }
            Err(error) => {
                assert_error(&error, -32600, "unknownProcess");
                client.ok("process/start", sh(&id, "exec sleep 1000"));
                client.ok("process/terminate", process(&id));
            }
        }
    }
}

#[test]
fn d11_2_10_running_out_of_descriptors_does_not_end_the_server() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let server = TestServer::start();
    let mut client = server.client();
    client.start_cat("p");
    let pid = Pid::from_raw(server.pid().cast_signed());
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("list descriptors").count() as u64;
    let tight = Rlimit { current: Some(open + 4), maximum: getrlimit(Resource::Nofile).maximum };
    let before = prlimit(pid, Resource::Nofile, tight).expect("lower the limit");
    let crowd: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(server.address()).expect("the kernel queues it")).collect();
    client.assert_alive();
    // The first output needs an fd that is not available: it waits, and nothing is lost.
    client.ok("process/write", json!({"processId": "p", "chunk": encode_base64(b"alive\n")}));
    client.assert_alive();
    drop(crowd);
    prlimit(pid, Resource::Nofile, before).expect("restore the limit");
    client.wait_output("p", "alive\n");
    wait_for("a new connection", || Client::connect(server.url()).is_ok());
    assert_eq!(server.client().run("q", &["true"]).code(), 0);
}

#[test]
fn d11_3_2_background_children_that_let_go_of_the_streams_live_on_until_the_session_ends() {
    let server = TestServer::start();
    let mut client = server.connect();
    client.initialize_with(modern());
    let script = "sleep 1000 </dev/null >/dev/null 2>&1 & echo $!";
    let ended = client.run_params(sh("p", script));
    let child: u32 = String::from_utf8_lossy(&ended.stdout).trim_end().parse().expect("a pid");
    let is_alive = || fs::read(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep"));
    assert_eq!(client.ok("process/terminate", process("p"))["running"], false);
    client.ok("process/forget", process("p"));
    // The reference kills the old process group when it forgets the process. Check after further work that ours does not.
    assert_eq!(client.run("q", &["true"]).code(), 0);
    assert!(is_alive());
    client.ok("session/end", json!({}));
    wait_gone("the background child", &BTreeSet::from([child]));
}

#[test]
fn d11_3_3_a_grandchild_that_holds_the_streams_is_reached_by_terminate() {
    let server = TestServer::start();
    let mut client = server.client();
    for (number, holder) in ["sleep 1000 &", "setsid sleep 1000 &", "(setsid sleep 1000 &);"].into_iter().enumerate() {
        for is_tty in [false, true] {
            let id = format!("p{number}{is_tty}");
            // On a terminal a background child gets SIGHUP when its session leader exits, so it ignores the signal.
            client.ok(
                "process/start",
                with(sh(&id, &format!("trap '' HUP; echo up; {holder} exit 5")), json!({"tty": is_tty})),
            );
            client.wait_output(&id, "up");
            assert_eq!(client.expect("process/exited")["exitCode"], 5);
            let answer = client.ok("process/terminate", process(&id));
            assert_eq!(answer["running"], false);
            if answer["streamsHeld"] != true {
                // The exit of the session leader may have hung the terminal up already.
                assert!(is_tty, "{holder}: {answer}");
            }
            client.expect("process/closed");
        }
    }
}

#[test]
fn d11_3_4_a_terminal_takes_arg0_cwd_and_signals_like_a_pipe() {
    let server = TestServer::start();
    let mut client = server.client();
    let ended = client.run_params(with(tty("arg0", "echo $0"), json!({"arg0": "/no/such/program"})));
    assert_eq!(ended.stdout, b"/no/such/program\r\n");
    let error = client.fails("process/start", with(tty("cwd", "pwd"), json!({"cwd": "/no/such"})));
    assert_error(&error, -32603, "cwdNotFound");
    assert_eq!(client.run_params(tty("signal", "kill -9 $$")).code(), 137);
    assert_error(
        &client.fails("process/start", with(tty("exec", ""), json!({"argv": ["/no/such"]}))),
        -32603,
        "programNotFound",
    );
}

#[test]
fn d11_3_5_variables_that_are_no_text_harm_nobody() {
    let dir = tempfile::tempdir().expect("make a private directory");
    let mark = format!("defect-{}.test", std::process::id());
    let mut child = TestServer::builder()
        .default_state_dir()
        .listen("stdio")
        .command(dir.path(), &mark)
        .env(OsStr::from_bytes(b"NO_\xffTEXT"), "name")
        .env("NO_TEXT", OsStr::from_bytes(b"\xff\xfe"))
        .stdin(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("start exec-server");
    let policy =
        json!({"inherit": "all", "ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": ["NO_*"]});
    let start = with(testkit::start_params("p", &["/usr/bin/env"]), json!({"env": {}, "envPolicy": policy}));
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    for message in [
        json!({"id": 1, "method": "initialize", "params": {"clientName": "test"}}),
        json!({"method": "initialized"}),
        json!({"id": 2, "method": "process/start", "params": start}),
    ] {
        writeln!(stdin, "{message}").expect("write to the server");
    }
    let mut output = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("stdout is a pipe")).lines() {
        let message: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        assert!(message.get("error").is_none(), "{message}");
        if let Some(chunk) = message["params"]["chunk"].as_str() {
            output.extend(decode_base64(chunk));
        }
        if message["method"] == "process/closed" {
            break;
        }
    }
    drop(stdin);
    child.wait().expect("wait for the server");
    wait_gone("holders of the server", &marked(&mark));
    let mut lines: Vec<&[u8]> = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    assert_eq!(lines, [b"NO_TEXT=\xff\xfe".as_slice(), b"NO_\xffTEXT=name"]);
}

// On Linux the parent-death signal refers to the thread that spawned the child, and threads of the server come and go.
#[test]
fn d11_3_5_children_do_not_die_with_a_thread_of_the_server() {
    let server = TestServer::start();
    let mut client = server.client();
    let gate = fifo(server.dir(), "gate");
    client.ok("process/start", sh("p", &format!("echo up; read x <{gate}; echo alive")));
    client.wait_output("p", "up");
    // A burst of blocking work creates and ends threads.
    let clients: Vec<_> = (0..8).map(|_| server.client()).collect();
    let runs: Vec<_> =
        clients.into_iter().map(|mut client| thread::spawn(move || client.run("q", &["true"]).code())).collect();
    for run in runs {
        assert_eq!(run.join().expect("a client does not panic"), 0);
    }
    release(&gate);
    assert_eq!(client.collect("p").stdout, b"alive\n");
}

#[test]
fn d11_3_9_every_generation_is_served_on_one_connection() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(client.run_params(crate::wire::Generation::S.start("s", &["true"])).code(), 0);
    assert_eq!(client.run_params(crate::wire::Generation::H.start("h", &["true"])).code(), 0);
    client.ok("command/exec", sh("v0", "exit 4"));
    assert_eq!(client.expect("command/exec/exited"), json!({"processId": "v0", "exitCode": 4}));
    let pid = pid_of(&client.ok("process/start", sh("again", "exec sleep 1000")));
    assert!(pid > 1);
}
