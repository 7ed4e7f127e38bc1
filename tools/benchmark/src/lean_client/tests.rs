//! Tests that a measurement fails on wrong bytes: a scripted server gets one thing wrong at a time.

use std::{
    io::{BufRead as _, BufReader},
    os::unix::net::UnixStream,
    thread,
};

use super::*;

/// Sends these events over newline framing to a client with `format`. Returns the number of output bytes, or the error.
fn run(format: MessageFormat, events: &[&[u8]]) -> Result<u64> {
    let (ours, theirs) = UnixStream::pair()?;
    let events: Vec<u8> = events.concat();
    let server = thread::spawn(move || {
        let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
        let say = |bytes: &[u8]| (&theirs).write_all(bytes).unwrap();
        lines.next().unwrap().unwrap();
        say(b"{\"id\":1,\"result\":{\"sessionId\":\"s\",\"capabilities\":{\"ack\":true,\"ackWindowBytes\":4194304,\"dialects\":[\"binary\"]}}}\n");
        // Skip `initialized` and the start.
        lines.by_ref().take(2).for_each(drop);
        say(b"{\"id\":2,\"result\":{\"processId\":\"1\"}}\n");
        say(&events);
    });
    let mut session = BenchSession::open(BenchConnection::lines(ours), format)?.context("it is offered")?;
    let process = session.start(StartRequest::new(&["x"]))?;
    let outcome = session.until_closed(process);
    server.join().unwrap();
    outcome
}

fn event(method: &str, params: &str) -> Vec<u8> {
    format!("{{\"method\":\"process/{method}\",\"params\":{{\"processId\":\"1\",{params}}}}}\n").into_bytes()
}

fn frame(channel: u32, seq: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let head = [&[0x81, 0, 0, 0][..], &channel.to_le_bytes(), &seq.to_le_bytes(), &offset.to_le_bytes()].concat();
    let length = u32::try_from(head.len() + bytes.len()).unwrap().to_le_bytes();
    [&[0xc0][..], &length, &head, bytes].concat()
}

#[test]
fn json_output_is_counted_and_every_error_is_reported() {
    let output =
        |seq: u64, offset: u64| event("output", &format!("\"seq\":{seq},\"chunk\":\"YWJj\",\"offset\":{offset}"));
    let exited = |seq: u64| event("exited", &format!("\"seq\":{seq},\"exitCode\":0"));
    let closed =
        |seq: u64, bytes: u64| event("closed", &format!("\"seq\":{seq},\"outputBytes\":{bytes},\"droppedBytes\":0"));
    let all = |events: [Vec<u8>; 4]| run(MessageFormat::Json, &events.each_ref().map(|event| &**event));
    assert_eq!(all([output(1, 0), output(2, 3), exited(3), closed(4, 6)]).unwrap(), 6);
    let wrong = |events| all(events).unwrap_err().to_string();
    assert!(wrong([output(1, 0), output(3, 3), exited(4), closed(5, 6)]).contains("where 2 was due"));
    assert!(wrong([output(1, 0), output(2, 4), exited(3), closed(4, 6)]).contains("where 3 came"));
    assert!(wrong([output(1, 0), output(2, 3), exited(3), closed(4, 7)]).contains("6 bytes of Some(7)"));
    let failed = event("exited", "\"seq\":3,\"exitCode\":1");
    assert!(wrong([output(1, 0), output(2, 3), failed, closed(4, 6)]).contains("a process failed"));
}

#[test]
fn binary_output_is_counted_by_its_channel() {
    let channel = event("channel", "\"channel\":9");
    let end = [event("exited", "\"seq\":3,\"exitCode\":0"), event("closed", "\"seq\":4,\"outputBytes\":5")].concat();
    let run = |frames: &[u8]| run(MessageFormat::Binary, &[&channel, frames, &end]);
    assert_eq!(run(&[frame(9, 1, 0, b"ab"), frame(9, 2, 2, b"cde")].concat()).unwrap(), 5);
    assert!(
        run(&[frame(9, 1, 0, b"ab"), frame(8, 2, 2, b"cde")].concat()).unwrap_err().to_string().contains("channel 8")
    );
    assert!(run(&[frame(9, 1, 0, b"ab"), frame(9, 2, 0, b"cde")].concat()).is_err());
    assert!(run(&[frame(9, 1, 0, b"ab"), frame(9, 2, 2, b"cd")].concat()).is_err());
}
