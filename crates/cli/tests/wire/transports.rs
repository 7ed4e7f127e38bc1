//! The same core scenarios over WebSocket, Unix socket and standard streams, and the special cases of newline framing (spec 1.3, 2.2). The
//! other files test scenarios in depth, over WebSocket.

use std::io::Write;

use crate::{
    prelude::*,
    wire::lines::{Lines, Wire},
};

/// The scenarios that every transport must support.
fn core_scenarios(wire: &mut dyn Wire) {
    let early = wire.call("process/read", process("p"));
    assert_eq!(early["error"]["message"], "client must call initialize before using exec methods");
    wire.initialize();
    assert_eq!(wire.call("environment/status", json!({}))["result"], json!({"status": "ready"}));
    assert_eq!(wire.call("no/such", json!({}))["error"]["code"], -32601);

    for bad in ["not-json", "[]", r#"{"id":1}"#] {
        wire.send(bad);
        let answer = wire.receive();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(-1), &json!(-32600)), "{bad}");
    }
    wire.send(r#"{"method":"unknown/note"}"#);
    assert_eq!(wire.receive()["error"]["data"]["kind"], "unknownNotification");

    let (bytes, code, seqs) = wire.run(sh("pipe", "echo hello; exit 7"));
    assert_eq!((bytes.as_slice(), code, seqs), (b"hello\n".as_slice(), json!(7), vec![1, 2, 3]));
    let (bytes, code, _) = wire.run(tty("tty", "stty size; exit 3"));
    assert_eq!((bytes.as_slice(), code), (b"24 80\r\n".as_slice(), json!(3)));
    let (bytes, _, _) = wire.run(sh("large", "head -c 3000000 /dev/zero"));
    assert_eq!(bytes.len(), 3_000_000);

    wire.call("process/start", piped("cat", "read x; echo got $x"));
    assert_eq!(wire.call("process/write", write_params("cat", b"it\n"))["result"]["status"], "accepted");
    let mut after = 0;
    let read = loop {
        let params = json!({"processId": "cat", "afterSeq": after, "waitMs": 20_000});
        let read = wire.call("process/read", params)["result"].take();
        if read["closed"] == true {
            break wire.call("process/read", process("cat"))["result"].clone();
        }
        after = read["nextSeq"].as_u64().expect("a number") - 1;
    };
    assert_eq!(read["chunks"][0]["chunk"], encode_base64(b"got it\n"));

    wire.call("process/start", sh("sleep", "exec sleep 1000"));
    assert_eq!(wire.call("process/terminate", process("sleep"))["result"]["running"], true);
    assert_eq!(wire.call("command/exec", sh("v0", "exit 0"))["result"]["running"], true);
}

#[test]
fn the_core_scenarios_hold_over_websocket() {
    let server = TestServer::start();
    core_scenarios(&mut server.connect());
}

#[test]
fn the_core_scenarios_hold_over_a_unix_socket() {
    let server = TestServer::builder().listen("unix://{dir}/sock").start();
    assert!(server.url().starts_with("unix:///"), "{}", server.url());
    core_scenarios(&mut Client::connect(server.url()).expect("connect to the socket"));
}

#[test]
fn the_core_scenarios_hold_over_standard_streams() {
    core_scenarios(&mut Lines::start("core"));
}

#[test]
fn a_session_begun_on_one_transport_is_resumed_on_another() {
    let server = TestServer::builder().listen("ws://127.0.0.1:0").listen("unix://{dir}/sock").start();
    let mut client = Client::connect(&server.urls()[0]).expect("connect");
    let session = Client::initialize(&mut client);
    client.start(piped("p", "read x; echo back"));
    drop(client);
    let mut client = Client::connect(&server.urls()[1]).expect("connect");
    client.initialize_with(json!({"clientName": "test", "resumeSessionId": session}));
    client.write("p", b"\n");
    assert_eq!(client.collect("p").stdout, b"back\n");
}

fn greeted(mut lines: Lines) -> Lines {
    lines.send(r#"{"id":1,"method":"initialize","params":{"clientName":"test"}}"#);
    let answer = lines.receive();
    assert_eq!((&answer["id"], &answer["result"]["protocolVersion"]), (&json!(1), &json!("exec-server.v0")));
    lines.send(r#"{"method":"initialized","params":{}}"#);
    lines
}

#[test]
fn exec_server_accepts_initialize_over_stdio() {
    let mut lines = greeted(Lines::start("initialize"));
    assert_eq!(lines.call("environment/status", json!({}))["result"]["status"], "ready");
}

#[test]
fn without_arguments_and_with_two_pipes_it_serves_on_its_standard_streams() {
    let mut lines = greeted(Lines::start_without_arguments());
    let started = lines.call("command/exec", sh("c", "exec sleep 1000"));
    assert_eq!(started["result"]["running"], true);
    drop(lines.stdin.take());
    wait_pid_gone(pid_of(&started["result"]));
}

#[test]
fn without_arguments_and_without_two_pipes_it_prints_help() {
    use rustix::{fs::OFlags, pty};
    let terminal = pty::openpt(pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY).expect("open a terminal");
    pty::grantpt(&terminal).and_then(|()| pty::unlockpt(&terminal)).expect("unlock the terminal");
    let name = pty::ptsname(&terminal, Vec::new()).expect("the terminal has a name");
    let side = || -> Stdio {
        let opened = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, rustix::fs::Mode::empty());
        opened.expect("open the other side of the terminal").into()
    };
    for (what, stdin, stdout) in [
        ("a terminal", side(), side()),
        ("a terminal and a pipe", side(), Stdio::piped()),
        ("a pipe and a terminal", Stdio::piped(), side()),
        ("nothing and a pipe", Stdio::null(), Stdio::piped()),
    ] {
        let child = Command::new(binary()).stdin(stdin).stdout(stdout).stderr(Stdio::piped()).spawn();
        let ended = child.and_then(Child::wait_with_output).expect("run exec-server");
        assert_eq!(ended.status.code(), Some(2), "{what}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("Usage: exec-server"), "{what}");
    }
}

#[test]
fn a_line_that_does_not_parse_is_not_blamed_on_a_websocket() {
    let mut lines = Lines::start("parse");
    lines.send("not-json");
    let error = lines.receive()["error"].clone();
    let text = error["message"].as_str().expect("a text");
    assert!(text.starts_with("failed to parse JSON-RPC message from stdio: "), "{text}");
    assert!(!text.contains("websocket"), "{text}");
}

#[test]
fn blank_lines_are_skipped_and_a_carriage_return_is_stripped() {
    let mut lines = Lines::start("blank");
    lines.write(b"\n  \n\r\n\t\n");
    lines.write(b"{\"id\":1,\"method\":\"initialize\",\"params\":{\"clientName\":\"x\"}}\r\n\n");
    assert_eq!(lines.receive()["id"], 1);
    // A message in several pieces, and several lines in one piece.
    lines.write(b"{\"method\":\"initialized\"}\n{\"id\":2,\"method\":\"environ");
    lines.write(b"ment/status\"}\n{\"id\":3,\"method\":\"environment/status\"}\n");
    assert_eq!((&lines.receive()["id"], &lines.receive()["id"]), (&json!(2), &json!(3)));
}

#[test]
fn the_last_line_counts_without_its_newline() {
    let mut lines = Lines::start("last");
    lines.write(b"{\"id\":1,\"method\":\"initialize\",\"params\":{\"clientName\":\"x\"}}");
    drop(lines.stdin.take());
    assert_eq!(lines.receive()["id"], 1);
    lines.wait_ended();
}

#[test]
fn stdio_connection_reports_clean_disconnect() {
    let mut lines = Lines::start("eof");
    drop(lines.stdin.take());
    lines.wait_ended();
    assert!(lines.child.wait().expect("wait").success(), "the end of standard input is no failure");
}

#[test]
fn the_end_of_standard_input_ends_the_processes() {
    let mut lines = Lines::start("ends");
    lines.initialize();
    let started = lines.call("process/start", sh("p", "trap '' TERM HUP; while :; do sleep 0.01; done"));
    drop(lines.stdin.take());
    wait_pid_gone(pid_of(&started["result"]));
    wait_for("end of the server", || matches!(lines.child.try_wait(), Ok(Some(_))));
}

#[test]
fn a_line_that_is_not_utf8_ends_the_connection() {
    let mut lines = Lines::start("utf8");
    lines.write(b"\xff\xfe\n");
    lines.wait_ended();
}

#[test]
fn stdio_connection_rejects_overlong_unterminated_message() {
    let mut lines = Lines::start("long");
    let megabyte = vec![b'x'; 1 << 20];
    // No newline ever comes; the server gives up by itself.
    let stdin = lines.stdin.as_mut().expect("stdin is open");
    let refused = (0..200).any(|_| stdin.write_all(&megabyte).is_err());
    assert!(refused, "the server stopped reading within 200 MiB");
    lines.wait_ended();
}

#[test]
fn websocket_connection_answers_pings_and_a_close() {
    use tungstenite::Message;
    let (_server, mut client) = TestServer::with_client();
    client.send_message(Message::Ping(b"are you there".to_vec().into())).expect("send");
    client.send_message(Message::Pong(b"unasked".to_vec().into())).expect("send");
    client.assert_alive();
    client.send_message(Message::Close(None)).expect("send");
    client.wait_closed();
}
