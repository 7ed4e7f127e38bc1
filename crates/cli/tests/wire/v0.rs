//! The first generation: `command/exec*` without a handshake (spec 1.4, 2.1, 3.1, 3.3, 3.5, 3.6; design section 4).

use crate::{prelude::*, wire::configuration_and_monitoring::metrics};

/// Everything a V0 process reported, up to `command/exec/exited`.
struct Said {
    stdout: String,
    stderr: String,
    exited: Value,
}

fn collect(client: &mut Client, id: &str) -> Said {
    let mut said = Said { stdout: String::new(), stderr: String::new(), exited: Value::Null };
    loop {
        let message = client.next_notification();
        let params = &message["params"];
        assert_eq!(params["processId"], id, "{message}");
        match message["method"].as_str() {
            Some("command/exec/outputDelta") => {
                assert_eq!(params.as_object().expect("an object").len(), 3, "no number and no offset: {message}");
                let bytes = decode_base64(params["chunk"].as_str().expect("a chunk"));
                let text = String::from_utf8_lossy(&bytes);
                match params["stream"].as_str() {
                    Some("stdout") => said.stdout += &text,
                    Some("stderr") => said.stderr += &text,
                    other => panic!("V0 has no stream {other:?}"),
                }
            }
            Some("command/exec/exited") => {
                said.exited = params.clone();
                return said;
            }
            other => panic!("V0 has no {other:?}"),
        }
    }
}

#[test]
fn a_command_needs_no_handshake_and_answers_in_its_own_words() {
    let (_server, mut client) = TestServer::with_connection();
    let result = client.ok("command/exec", sh("c", "printf out; printf err >&2; exit 3"));
    let pid = pid_of(&result);
    let ended = json!({"exitCode": null, "stdout": null, "stderr": null});
    assert_eq!(result, with(json!({"processId": "c", "pid": pid, "running": true}), ended));
    let said = collect(&mut client, "c");
    assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("out", "err"));
    assert_eq!(said.exited, json!({"processId": "c", "exitCode": 3}));
    // No `closed` follows: the next message is the answer to this request.
    client.send_text(r#"{"id":99,"method":"command/none"}"#);
    assert_eq!(client.next()["id"], 99);
}

#[test]
fn exec_server_client_streams_output_and_accepts_writes() {
    let (_server, mut client) = TestServer::with_connection();
    assert_eq!(client.ok("initialize", json!({"clientName": "v0"}))["protocolVersion"], "exec-server.v0");
    client.notify("initialized", json!({}));
    client.ok("command/exec", tty("t", "echo ready; read x; echo echo:$x"));
    let first = client.expect("command/exec/outputDelta");
    assert_eq!((&first["stream"], &first["chunk"]), (&json!("stdout"), &json!(encode_base64(b"ready\r\n"))));
    let write = json!({"processId": "t", "chunk": encode_base64(b"hello\n")});
    assert_eq!(client.ok("command/exec/write", write), json!({"accepted": true}));
    let said = collect(&mut client, "t");
    assert_eq!(said.stdout, "hello\r\necho:hello\r\n");
    assert_eq!(said.exited["exitCode"], 0);
}

#[test]
fn the_exit_is_told_after_the_last_output() {
    let (server, mut client) = TestServer::with_connection();
    let gate = fifo(server.dir(), "gate");
    client.ok("command/exec", sh("c", &format!("(read x <{gate}; echo late) & exit 5")));
    release(&gate);
    let said = collect(&mut client, "c");
    assert_eq!((said.stdout.as_str(), &said.exited["exitCode"]), ("late\n", &json!(5)));
}

#[test]
fn a_write_to_nobody_or_to_a_pipe_is_an_error() {
    let (_server, mut client) = TestServer::with_connection();
    let error = client.fails("command/exec/write", json!({"processId": "none", "chunk": ""}));
    assert_error(&error, -32600, "unknownProcess");
    assert_eq!(error.message, "unknown process id none");
    client.ok("command/exec", sh("c", "exec sleep 1000"));
    let error = client.refuses("command/exec/write", json!({"processId": "c", "chunk": "eA=="}), -32600, "stdinClosed");
    assert!(error.message.contains('c'));
    client.refuses("command/exec/write", json!({"processId": "c", "chunk": "*"}), -32602, "invalidBase64");
}

#[test]
fn terminate_frees_the_name_at_once_and_the_exit_still_arrives() {
    let (_server, mut client) = TestServer::with_connection();
    client.ok("command/exec", tty("c", "echo up; exec sleep 1000"));
    client.expect("command/exec/outputDelta");
    assert_eq!(client.ok("command/exec/terminate", process("c")), json!({"running": true}));
    client.refuses("command/exec/write", json!({"processId": "c", "chunk": "eA=="}), -32600, "unknownProcess");
    assert_eq!(collect(&mut client, "c").exited, json!({"processId": "c", "exitCode": 137}));
    assert_eq!(client.ok("command/exec/terminate", process("c")), json!({"running": false}));
    assert_eq!(client.ok("command/exec/terminate", process("never")), json!({"running": false}));
    client.ok("command/exec", sh("c", "exit 2"));
    assert_eq!(collect(&mut client, "c").exited["exitCode"], 2);
}

#[test]
fn starts_fail_as_in_the_other_generations() {
    let (_server, mut client) = TestServer::with_connection();
    for (params, code, kind) in [
        (start_params("c", &[]), -32602, "emptyArgv"),
        (start_params("c", &["/no/such"]), -32603, "programNotFound"),
        (with(start_params("c", &["true"]), json!({"cwd": "/no/such"})), -32603, "cwdNotFound"),
        (with(start_params("c", &["true"]), json!({"cwd": "no/such"})), -32603, "cwdNotFound"),
        (with(start_params("c", &["true"]), json!({"env": {"": "x"}})), -32602, "invalidParams"),
    ] {
        client.refuses("command/exec", params, code, kind);
    }
    client.ok("command/exec", with(sh("c", "exec sleep 1000"), json!({"cwd": "file:///", "arg0": null})));
    client.refuses("command/exec", sh("c", "exit 0"), -32600, "duplicateProcess");
    client.refuses("command/unheard", json!({}), -32600, "unknownMethod");
}

#[test]
fn an_output_cap_changes_nothing_that_can_be_seen() {
    let (_server, mut client) = TestServer::with_connection();
    for (id, cap) in [("zero", json!(0)), ("small", json!(10)), ("big", json!(1u64 << 40)), ("null", json!(null))] {
        client.ok("command/exec", with(sh(id, "head -c 300000 /dev/zero"), json!({"outputBytesCap": cap})));
        assert_eq!(collect(&mut client, id).stdout.len(), 300_000, "{id}");
    }
}

// An output cap requested by a client was granted regardless of the operator's limit: a client that does not read could use all memory of
// the host.
#[test]
fn an_output_cap_lifts_no_limit_of_the_operator() {
    let server = TestServer::builder().arg("--memory-per-process").arg("3MiB").start();
    let mut client = server.connect();
    client.ok("command/exec", with(start_params("c", &["cat", "/dev/zero"]), json!({"outputBytesCap": u64::MAX})));
    // The client does not read from here on.
    wait_for("the child to wait", || {
        metrics(&server).get("exec_server_processes_blocked", &[("reason", "memory")]) == 1.0
    });
}

#[test]
fn the_end_of_the_connection_ends_an_implicit_session() {
    let (_server, mut client) = TestServer::with_connection();
    let pid = pid_of(&client.ok("command/exec", sh("c", "trap '' TERM HUP; while :; do sleep 0.01; done")));
    drop(client);
    wait_pid_gone(pid);
}

#[test]
fn a_later_initialize_returns_the_implicit_session() {
    let (server, mut client) = TestServer::with_connection();
    let pid = pid_of(&client.ok("command/exec", tty("c", "read x; echo got $x; exec sleep 1000")));
    client.refuses("process/list", json!({}), -32600, "notInitialized");
    let session = client.initialize();
    let listed = client.processes().clone();
    assert_eq!((&listed[0]["processId"], &listed[0]["sessionId"]), (&json!("c"), &json!(session)));
    // A process started by V0 sends V0 notifications; requests of both generations reach it.
    client.write("c", b"x\n");
    assert_eq!(client.next_notification()["method"], "command/exec/outputDelta");
    // The session now has an id, so it outlives its connection.
    drop(client);
    let mut client = server.resume(&session, json!({}));
    assert_eq!(client.processes()[0]["pid"], pid);
    assert_eq!(client.terminate("c")["running"], true);
}

#[test]
fn a_later_resume_of_another_session_ends_the_implicit_one() {
    let (server, other, session) = TestServer::with_session();
    drop(other);
    let mut client = server.connect();
    let pid = pid_of(&client.ok("command/exec", sh("c", "exec sleep 1000")));
    client.initialize_with(json!({"clientName": "v0", "resumeSessionId": session}));
    wait_pid_gone(pid);
    assert_eq!(client.ok("process/list", json!({"scope": "all"}))["processes"], json!([]));
    client.assert_alive();
}

#[test]
fn a_relative_directory_is_taken_from_the_servers_own() {
    let (_server, mut client) = TestServer::with_connection();
    // The server of a test runs in the test's own working directory.
    let own = std::env::current_dir().expect("the test has a directory");
    for (id, cwd, expected) in [("below", "tests/wire", own.join("tests/wire")), ("dot", ".", own.clone())] {
        client.ok("command/exec", with(start_params(id, &["/bin/pwd", "-P"]), json!({"cwd": cwd})));
        assert_eq!(collect(&mut client, id).stdout.trim_end(), expected.display().to_string());
    }
    // The later generations accept only absolute paths.
    client.initialize();
    let later = with(start_params("p", &["true"]), json!({"cwd": "tests"}));
    client.refuses("process/start", later, -32602, "relativePath");
}

// `command/exec/terminate` released the id, and the next sweep discarded output that the client had not read, including the exit.
#[test]
fn a_terminated_v0_process_still_delivers_all_it_wrote() {
    let server = TestServer::start();
    let (mut client, mut clock) = (server.connect(), server.client());
    let done = server.dir().join("done");
    let script = format!("head -c 15000000 /dev/zero; : >{}; exec sleep 1000", done.display());
    let pid = pid_of(&client.ok("command/exec", sh("v", &script)));
    wait_for("the output to be written", || done.exists());
    let terminate = client.send_request("command/exec/terminate", process("v"));
    wait_pid_gone(pid);
    // Two sweeps happen while nothing is read.
    clock.start(sh("quiet", "exec sleep 1000"));
    clock.ok("process/read", json!({"processId": "quiet", "waitMs": 2300}));
    assert_eq!(client.answer(terminate), Ok(json!({"running": true})));
    let mut bytes = 0;
    loop {
        let message = client.next_notification();
        if message["method"] == "command/exec/exited" {
            assert_eq!(message["params"], json!({"processId": "v", "exitCode": 137}));
            break;
        }
        assert_eq!(message["method"], "command/exec/outputDelta");
        bytes += decode_base64(message["params"]["chunk"].as_str().expect("a chunk")).len();
    }
    assert_eq!(bytes, 15_000_000);
}
