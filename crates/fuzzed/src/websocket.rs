//! Fuzz target: WebSocket frames. For any slicing of the bytes, and in both roles, the receiver must return the same messages as a naive
//! parser of RFC 6455. Messages that we send, fragmented and masked, must be read back unchanged.

use bytes::Bytes;
use exec_server_rpc::{CloseReason, Framing, InboundFrame, Outbox, WebSocketRole};
use futures_util::FutureExt as _;

use crate::{sliced, weight};

/// The first byte selects the role and the size of the slices, the second the maximum message size.
pub fn check(data: &[u8]) {
    let [choice, max, bytes @ ..] = data else { return };
    let role = if choice & 1 == 0 { WebSocketRole::Server } else { WebSocketRole::Client };
    let (slice, max) = (usize::from(choice >> 1) + 1, 4 * usize::from(*max));
    let limit = 256 * 1024 + 8 * bytes.len();
    let (received, closed) = weight::within(limit, || sliced::receive(Framing::WebSocket { role, max }, bytes, slice));
    let (expected, end) = parse(bytes, role, max);
    assert_eq!(received, expected);
    match (&end, &closed) {
        (WebSocketEnd::Eof, CloseReason::Eof)
        | (WebSocketEnd::Protocol, CloseReason::Protocol(_))
        | (WebSocketEnd::TooLarge, CloseReason::TooLarge { .. }) => {}
        (WebSocketEnd::Cut, CloseReason::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        (WebSocketEnd::Closed(code), CloseReason::Peer { code: found, .. }) if code == found => {}
        (end, closed) => panic!("ended with {closed:?}, expected {end:?}"),
    }
    send_again(&expected);
}

#[derive(Debug)]
enum WebSocketEnd {
    Eof,
    Cut,
    Protocol,
    TooLarge,
    Closed(u16),
}

struct Frame {
    fin: bool,
    opcode: u8,
    payload: Vec<u8>,
}

/// The naive model: parses frame by frame over all bytes at once.
fn parse(mut rest: &[u8], role: WebSocketRole, max: usize) -> (Vec<InboundFrame>, WebSocketEnd) {
    let mut received = Vec::new();
    let mut message: Option<Vec<u8>> = None;
    loop {
        let frame = match take_frame(&mut rest, role, message.as_ref().map(Vec::len), max) {
            Ok(Some(frame)) => frame,
            Ok(None) if rest.is_empty() && message.is_none() => return (received, WebSocketEnd::Eof),
            Ok(None) => return (received, WebSocketEnd::Cut),
            Err(end) => return (received, end),
        };
        let payload = Bytes::from(frame.payload.clone());
        match frame.opcode {
            0x8 => return (received, closed(&frame.payload)),
            0x9 => received.push(InboundFrame::Ping(payload)),
            0xa => received.push(InboundFrame::Pong(payload)),
            _ => {
                message.get_or_insert_default().extend(frame.payload);
                if frame.fin {
                    received.push(InboundFrame::Message(message.take().unwrap().into()));
                }
            }
        }
    }
}

/// Takes a complete frame off the front. A header that breaks a rule is an error even before its payload has arrived.
fn take_frame(
    rest: &mut &[u8],
    role: WebSocketRole,
    before: Option<usize>,
    max: usize,
) -> Result<Option<Frame>, WebSocketEnd> {
    let [first, second, ..] = **rest else { return Ok(None) };
    let (fin, opcode, masked, short) = (first & 0x80 != 0, first & 0x0f, second & 0x80 != 0, second & 0x7f);
    let is_control = matches!(opcode, 0x8..=0xa);
    if first & 0x70 != 0 || !(is_control || opcode <= 2) || masked != (role == WebSocketRole::Server) {
        return Err(WebSocketEnd::Protocol);
    }
    if is_control && (!fin || short > 125) {
        return Err(WebSocketEnd::Protocol);
    }
    let len_bytes = match short {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mask_bytes = if masked { 4 } else { 0 };
    let Some(header) = rest.get(2..2 + len_bytes + mask_bytes) else { return Ok(None) };
    let (len, mask) = header.split_at(len_bytes);
    let len =
        if len.is_empty() { u64::from(short) } else { len.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)) };
    match (opcode, before) {
        (0, None) | (1 | 2, Some(_)) => return Err(WebSocketEnd::Protocol),
        (0..=2, before) if len > (max - before.unwrap_or(0)) as u64 => return Err(WebSocketEnd::TooLarge),
        _ => {}
    }
    let start = 2 + len_bytes + mask_bytes;
    let Some(payload) = usize::try_from(len).ok().and_then(|len| rest[start..].get(..len)) else { return Ok(None) };
    let key = |at: usize| if mask.is_empty() { 0 } else { mask[at % 4] };
    let unmasked = payload.iter().enumerate().map(|(at, byte)| byte ^ key(at)).collect();
    *rest = &rest[start + payload.len()..];
    Ok(Some(Frame { fin, opcode, payload: unmasked }))
}

fn closed(payload: &[u8]) -> WebSocketEnd {
    match payload {
        [] => WebSocketEnd::Closed(1005),
        [high, low, reason @ ..] => match u16::from_be_bytes([*high, *low]) {
            code @ (1000..=1003 | 1007..=1014 | 3000..=4999) if std::str::from_utf8(reason).is_ok() => {
                WebSocketEnd::Closed(code)
            }
            _ => WebSocketEnd::Protocol,
        },
        [_] => WebSocketEnd::Protocol,
    }
}

/// Sends the received messages again in both roles and checks that they arrive unchanged.
fn send_again(inbounds: &[InboundFrame]) {
    for (ours, theirs) in
        [(WebSocketRole::Server, WebSocketRole::Client), (WebSocketRole::Client, WebSocketRole::Server)]
    {
        let mut outbox = Outbox::new(Framing::WebSocket { role: ours, max: 1 << 20 });
        for inbound in inbounds {
            match inbound {
                InboundFrame::Message(message) => outbox.message(0, |buf| buf.extend_from_slice(message)),
                InboundFrame::Ping(payload) => outbox.ping(payload),
                InboundFrame::Pong(payload) => outbox.pong(payload),
            }
        }
        let mut sent = Vec::new();
        outbox.flush_to(&mut sent).now_or_never().unwrap().unwrap();
        let (received, closed) = sliced::receive(Framing::WebSocket { role: theirs, max: 1 << 20 }, &sent, 1 << 16);
        assert_eq!(received, inbounds);
        assert!(matches!(closed, CloseReason::Eof));
    }
}
