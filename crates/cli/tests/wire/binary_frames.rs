//! The dialect `binary_frames`: output and input of processes as frames, whole files as attached bytes, and invalid frames.

use crate::{prelude::*, wire::attached_bytes::attached};

/// A client with the dialect `binary`.
fn connect(server: &TestServer) -> Client {
    let mut client = server.connect();
    client.initialize_with(speaking());
    client
}

/// Params of its `initialize`.
fn speaking() -> Value {
    let capabilities = json!({"ack": true, "gap": true, "concurrent": true, "dialects": ["binary"]});
    json!({"clientName": "test", "capabilities": capabilities})
}

/// An output frame, parsed by hand.
#[derive(Debug, PartialEq, Eq)]
struct Output {
    stream: u8,
    channel: u32,
    seq: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl Output {
    fn read(frame: &[u8]) -> Self {
        assert_eq!((frame[0], &frame[2..4]), (0x81, &[0, 0][..]));
        let number = |range: std::ops::Range<usize>| {
            frame[range].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        Self {
            stream: frame[1],
            channel: u32::try_from(number(4..8)).expect("four bytes"),
            seq: number(8..16),
            offset: number(16..24),
            bytes: frame[24..].to_vec(),
        }
    }
}

/// An input frame, assembled by hand.
fn write(channel: u32, id: i64, write_id: &str, bytes: &[u8]) -> Message {
    let mut frame = vec![0x82, 0];
    frame.extend(u16::try_from(write_id.len()).expect("a short id").to_le_bytes());
    frame.extend(channel.to_le_bytes());
    frame.extend(id.to_le_bytes());
    frame.extend(write_id.as_bytes());
    frame.extend(bytes);
    Message::Binary(frame.into())
}

/// Everything a process reported until its close: its channel, its frames, and the final notifications.
fn told(client: &mut Client, id: &str) -> (Option<u32>, Vec<Output>, Vec<Value>) {
    let (mut channel, mut frames, mut ends) = (None, Vec::new(), Vec::new());
    loop {
        match client.hear() {
            Heard::Frame(frame) => frames.push(Output::read(&frame)),
            Heard::Json(message) if message["params"]["processId"] == id => match message["method"].as_str() {
                Some("process/channel") => {
                    let number = message["params"]["channel"].as_u64().expect("a number");
                    assert!(channel.replace(u32::try_from(number).expect("a small one")).is_none(), "told once");
                }
                Some("process/closed") => {
                    ends.push(message);
                    return (channel, frames, ends);
                }
                Some("process/exited") => ends.push(message),
                other => panic!("{other:?} is not for one who speaks binary: {message}"),
            },
            Heard::Json(_) => {}
        }
    }
}

#[test]
fn output_comes_as_frames_behind_the_number_of_its_process() {
    let server = TestServer::start();
    let mut client = connect(&server);
    client.send_request("process/start", sh("p", "printf out; sleep 0.2; printf err >&2; exit 3"));
    let (channel, frames, ends) = told(&mut client, "p");
    let channel = channel.expect("the number was told");
    let frame = |stream, seq, offset, bytes: &[u8]| Output { stream, channel, seq, offset, bytes: bytes.to_vec() };
    assert_eq!(frames, [frame(0, 1, 0, b"out"), frame(1, 2, 3, b"err")]);
    assert_eq!((&ends[0]["params"]["seq"], &ends[0]["params"]["exitCode"]), (&json!(3), &json!(3)));
    assert_eq!((&ends[1]["params"]["seq"], &ends[1]["params"]["outputBytes"]), (&json!(4), &json!(6)));

    client.send_request("process/start", with(sh("t", "printf tty"), json!({"tty": true})));
    let (other, frames, _) = told(&mut client, "t");
    assert_ne!(other, Some(channel), "each process has its own");
    assert_eq!(frames.iter().map(|frame| frame.stream).collect::<Vec<_>>(), [2]);

    client.send_request("process/start", start_params("silent", &["/bin/true"]));
    let (none, frames, _) = told(&mut client, "silent");
    assert_eq!((none, frames), (None, vec![]), "who says nothing and hears nothing needs no number");
}

#[test]
fn much_output_is_whole_and_counted() {
    let server = TestServer::start();
    let mut client = connect(&server);
    client.send_request("process/start", sh("p", "head -c 3000000 /dev/zero | tr '\\0' x"));
    let (_, frames, ends) = told(&mut client, "p");
    let mut expected = 0;
    for (index, frame) in frames.iter().enumerate() {
        assert_eq!((frame.seq, frame.offset), (index as u64 + 1, expected));
        assert!(frame.bytes.iter().all(|byte| *byte == b'x'));
        expected += frame.bytes.len() as u64;
    }
    assert_eq!((expected, &ends[1]["params"]["outputBytes"]), (3_000_000, &json!(3_000_000)));
}

#[test]
fn input_as_a_frame_is_answered_and_written_once() {
    let server = TestServer::start();
    let mut client = connect(&server);
    client.start(with(start_params("p", &["cat"]), json!({"pipeStdin": true})));
    // The channel is announced with the start, because otherwise the client could not write before there is output.
    let told_channel = client.expect("process/channel");
    let channel = u32::try_from(told_channel["channel"].as_u64().expect("a number")).expect("a small one");
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for (id, write_id) in [(100, "w1"), (101, "w1"), (102, "")] {
        client.send_message(write(channel, id, write_id, &bytes)).expect("send");
    }
    let mut frames = Vec::new();
    let mut answered = Vec::new();
    while frames.iter().map(|frame: &Output| frame.bytes.len()).sum::<usize>() < 200_000 || answered.len() < 3 {
        match client.hear() {
            Heard::Frame(frame) => frames.push(Output::read(&frame)),
            Heard::Json(message) => {
                assert_eq!(message["result"], json!({"status": "accepted"}), "{message}");
                answered.push(message["id"].clone());
            }
        }
    }
    assert_eq!(answered, [100, 101, 102]);
    client.send_request("process/closeStdin", process("p"));
    let (_, rest, _) = told(&mut client, "p");
    frames.extend(rest);
    let echoed: Vec<u8> = frames.into_iter().flat_map(|frame| frame.bytes).collect();
    assert!(echoed == [&bytes[..], &bytes[..]].concat(), "twice, and not three times");
    // A frame with another write id after the close gets a status as answer.
    client.send_message(write(channel, 103, "w2", b"late")).expect("send");
    let late = client.answer(103).expect("a status");
    assert!(["stdinClosed", "unknownProcess"].contains(&late["status"].as_str().expect("a word")), "{late}");
}

#[test]
fn a_resumed_session_and_a_second_reader_have_numbers_of_their_own() {
    let (server, mut owner) = TestServer::with_connection();
    let session = owner.initialize_with(speaking())["sessionId"].clone();
    owner.start(piped("p", "read line; printf \"$line\"; read line; printf \"$line\""));
    owner.expect("process/channel");

    let mut reader = connect(&server);
    reader.ok("process/subscribe", json!({"processId": "p", "sessionId": session}));
    drop(owner);
    let mut owner = server.connect();
    owner.initialize_with(with(speaking(), json!({"resumeSessionId": session, "takeover": true})));
    let named = owner.expect("process/channel");
    assert_eq!(named["processId"], "p");
    let channel = u32::try_from(named["channel"].as_u64().expect("a number")).expect("a small one");
    owner.send_message(write(channel, 100, "a", b"one\ntwo\n")).expect("send");
    let (_, frames, _) = told(&mut owner, "p");
    assert_eq!(frames.into_iter().flat_map(|frame| frame.bytes).collect::<Vec<_>>(), b"onetwo");
    let (channel, frames, ends) = told(&mut reader, "p");
    assert!(channel.is_some(), "also to one that only reads");
    assert_eq!(frames.into_iter().flat_map(|frame| frame.bytes).collect::<Vec<_>>(), b"onetwo");
    assert!(ends.iter().all(|end| end["params"]["sessionId"] == session));
}

#[test]
fn whole_files_have_their_bytes_attached() {
    let server = TestServer::start();
    let mut client = connect(&server);
    let path = server.dir().join("file");
    let bytes: Vec<u8> = (0..=255).rev().cycle().take(70_000).collect();
    let request = json!({"id": 100, "method": "fs/writeFile", "params": {"path": path, "dataBase64": ""}});
    client.send_message(attached(&request, &bytes)).expect("send");
    client.answer(100).expect("written");
    assert!(fs::read(&path).expect("it is there") == bytes);
    let id = client.send_request("fs/readFile", json!({"path": path, "offset": 1}));
    let (answer, beside) = client.next_attached();
    assert_eq!((&answer["id"], &answer["result"]["dataBase64"]), (&json!(id), &json!("")));
    assert!(beside == bytes[1..]);
    let both = json!({"id": 101, "method": "fs/writeFile", "params": {"path": path, "dataBase64": "eA=="}});
    client.send_message(attached(&both, b"x")).expect("send");
    assert_error(&client.answer(101).expect_err("one place for bytes"), -32600, "invalidInput");
}

#[test]
fn frames_that_are_none_are_refused_and_cost_nothing_else() {
    let server = TestServer::start();
    let mut client = connect(&server);
    client.start(with(start_params("p", &["cat"]), json!({"pipeStdin": true})));
    client.expect("process/channel");
    let Message::Binary(good) = write(1, 7, "w", b"x") else { unreachable!("a frame is bytes") };
    let mut reserved = good.to_vec();
    reserved[1] = 1;
    let mut long_id = good.to_vec();
    long_id[2] = 200;
    let mut no_text = good.to_vec();
    no_text[16] = 0xff;
    let output = vec![0x81; 40];
    for frame in [vec![0x82], good[..15].to_vec(), reserved, long_id, no_text, output, vec![0x83; 30]] {
        client.send_message(Message::Binary(frame.into())).expect("send");
        assert_error(&client.answer(-1).expect_err("it is none"), -32600, "malformed");
    }
    client.send_message(write(4_000_000_000, 8, "w", b"x")).expect("send");
    assert_eq!(client.answer(8).expect("a status"), json!({"status": "unknownProcess"}));

    let mut plain = server.connect();
    plain.initialize_with(testkit::modern());
    plain.send_message(Message::Binary(good)).expect("send");
    assert_error(&plain.answer(-1).expect_err("it did not announce it"), -32600, "malformed");
    for client in [&mut client, &mut plain] {
        client.ok("process/list", json!({}));
    }
}
