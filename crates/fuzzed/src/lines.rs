//! Fuzz target: line framing. For any slicing of the bytes, the receiver must return the same messages as a naive split, and it must hold
//! no more memory than one line and one read.

use exec_server_rpc::{CloseReason, Framing, InboundFrame, LINES_MARK, Outbox};
use futures_util::FutureExt as _;

use crate::{sliced, weight};

/// The first byte selects the maximum line length, the second the size of the slices.
pub fn check(data: &[u8]) {
    let [max, slice, bytes @ ..] = data else { return };
    let (max, slice) = (usize::from(*max) + 1, usize::from(*slice) + 1);
    compare(max, max, slice, bytes);
}

/// Compares with a model that has another limit. A test uses it to prove that a difference is detected.
pub fn check_against(max: usize, other_max: usize, bytes: &[u8]) {
    compare(max, other_max, 1, bytes);
}

fn compare(max: usize, model_max: usize, slice: usize, bytes: &[u8]) {
    // Two buffers of 16 KiB, a copy of the input for the stream, and the received messages.
    let limit = 128 * 1024 + 8 * bytes.len();
    let (received, closed) = weight::within(limit, || sliced::receive(Framing::Lines { max }, bytes, slice));
    let (expected, end) = split(bytes, model_max);
    let received: Vec<&[u8]> = received
        .iter()
        .map(|inbound| match inbound {
            InboundFrame::Message(message) => &message[..],
            other => panic!("{other:?} on lines"),
        })
        .collect();
    assert_eq!(received, expected.iter().map(|message| message.bytes()).collect::<Vec<_>>());
    match (end, &closed) {
        (LinesEnd::Eof, CloseReason::Eof)
        | (LinesEnd::Utf8, CloseReason::InvalidUtf8)
        | (LinesEnd::Torn, CloseReason::Io(_)) => {}
        (LinesEnd::TooLarge, CloseReason::TooLarge { limit }) => assert_eq!(*limit, max),
        (end, closed) => panic!("ended with {closed:?}, expected {end:?}"),
    }
    send_again(&expected);
}

#[derive(Clone, Copy, Debug)]
enum LinesEnd {
    Eof,
    TooLarge,
    Utf8,
    Torn,
}

/// A received message. The variant decides how it is encoded again.
#[derive(Clone, Copy)]
enum LineMessage<'a> {
    Line(&'a [u8]),
    Counted(&'a [u8]),
}

impl<'a> LineMessage<'a> {
    fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Line(bytes) | Self::Counted(bytes) => bytes,
        }
    }
}

/// The naive model: splits all bytes at once.
fn split(bytes: &[u8], max: usize) -> (Vec<LineMessage<'_>>, LinesEnd) {
    let mut lines = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        if rest[0] == LINES_MARK {
            let [_, a, b, c, d, message @ ..] = rest else { return (lines, LinesEnd::Torn) };
            let len = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            if len > max {
                return (lines, LinesEnd::TooLarge);
            }
            let Some((message, after)) = message.split_at_checked(len) else { return (lines, LinesEnd::Torn) };
            lines.push(LineMessage::Counted(message));
            rest = after;
            continue;
        }
        let end = rest.iter().position(|byte| *byte == b'\n');
        let (line, after) = match end {
            Some(at) => (rest[..at].strip_suffix(b"\r").unwrap_or(&rest[..at]), &rest[at + 1..]),
            None => (rest, &rest[rest.len()..]),
        };
        // A line without an end may be followed by an LF. Its final CR counts only if it is known not to belong to a CR LF.
        let counted =
            if end.is_none() && line.len() == max + 1 { line.strip_suffix(b"\r").unwrap_or(line) } else { line };
        if counted.len() > max || (end.is_none() && line.len() > max) {
            return (lines, LinesEnd::TooLarge);
        }
        let Ok(text) = std::str::from_utf8(line) else { return (lines, LinesEnd::Utf8) };
        if !text.trim().is_empty() {
            lines.push(LineMessage::Line(line));
        }
        rest = after;
    }
    (lines, LinesEnd::Eof)
}

/// Sends the received messages again and checks that they arrive unchanged.
fn send_again(messages: &[LineMessage<'_>]) {
    let mut outbox = Outbox::new(Framing::Lines { max: usize::MAX });
    for message in messages {
        match message {
            LineMessage::Line(line) => outbox.message(line.len(), |buf| buf.extend_from_slice(line)),
            LineMessage::Counted(bytes) => outbox.binary(bytes, &[]),
        }
    }
    let mut sent = Vec::new();
    outbox.flush_to(&mut sent).now_or_never().unwrap().unwrap();
    let (received, _) = sliced::receive(Framing::Lines { max: 1 << 20 }, &sent, 4096);
    let expected: Vec<InboundFrame> =
        messages.iter().map(|message| InboundFrame::Message(message.bytes().to_vec().into())).collect();
    // By the rules of the framing, a line that ends with a CR loses it on the way.
    let is_plain = messages.iter().all(|message| !matches!(message, LineMessage::Line(line) if line.ends_with(b"\r")));
    assert!(!is_plain || received == expected);
}
