//! Input that the receiver must reject, with exact limits.

use exec_server_rpc::{CloseReason, Framing, InboundFrame, WebSocketRole};

use crate::slices;

fn lines(bytes: &[u8], max: usize) -> (Vec<String>, CloseReason) {
    let (received, closed) = slices::read_all(bytes, &[3], Framing::Lines { max });
    let text = |inbound| match inbound {
        InboundFrame::Message(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        InboundFrame::Ping(_) | InboundFrame::Pong(_) => panic!("lines have no control frames"),
    };
    (received.into_iter().map(text).collect(), closed)
}

#[test]
fn line_ends_are_stripped_and_blank_lines_skipped() {
    let (received, closed) = lines(b"\n \t\r\n{\"a\":1}\r\n\r\n{}\nlast", 100);
    assert_eq!(received, ["{\"a\":1}", "{}", "last"]);
    assert!(matches!(closed, CloseReason::Eof));
}

#[test]
fn stdio_connection_reports_clean_disconnect() {
    let (received, closed) = lines(b"{}\n", 100);
    assert_eq!(received, ["{}"]);
    assert!(matches!(closed, CloseReason::Eof));
}

#[test]
fn stdio_connection_accepts_message_at_size_limit() {
    for end in ["", "\n", "\r\n"] {
        let (received, closed) = lines(format!("12345678{end}").as_bytes(), 8);
        assert_eq!(received, ["12345678"], "{end:?}");
        assert!(matches!(closed, CloseReason::Eof));
    }
}

#[test]
fn a_line_one_byte_over_the_limit_is_refused() {
    for end in ["", "\n", "\r\n", "\r"] {
        let (received, closed) = lines(format!("ok\n123456789{end}").as_bytes(), 8);
        assert_eq!(received, ["ok"], "{end:?}");
        assert!(matches!(closed, CloseReason::TooLarge { limit: 8 }), "{closed:?}");
    }
}

#[test]
fn stdio_connection_rejects_overlong_unterminated_message() {
    // The input is endless, so the receiver must stop by itself.
    let reader = Box::new(tokio::io::repeat(b'x'));
    let mut receiver = exec_server_rpc::Receiver::new(Framing::Lines { max: 1 << 20 }, reader, Default::default());
    assert!(matches!(slices::recv(&mut receiver), Err(CloseReason::TooLarge { limit }) if limit == 1 << 20));
}

#[test]
fn a_line_that_is_not_utf8_ends_the_connection() {
    let (received, closed) = lines(b"{}\n\"\xff\"\n{}\n", 100);
    assert_eq!(received, ["{}"]);
    assert!(matches!(closed, CloseReason::InvalidUtf8));
}

fn frames(bytes: &[u8], role: WebSocketRole) -> (Vec<InboundFrame>, CloseReason) {
    slices::read_all(bytes, &[2], Framing::WebSocket { role, max: 300 })
}

fn message(text: &'static str) -> InboundFrame {
    InboundFrame::Message(text.as_bytes().into())
}

#[test]
fn fragments_are_joined_around_control_frames() {
    let bytes = b"\x01\x02ab\x00\x00\x89\x01p\x8a\x00\x80\x02cd\x82\x01e\x81\x00";
    let (received, closed) = frames(bytes, WebSocketRole::Client);
    let (ping, pong) = (InboundFrame::Ping("p".into()), InboundFrame::Pong("".into()));
    assert_eq!(received, [ping, pong, message("abcd"), message("e"), message("")]);
    assert!(matches!(closed, CloseReason::Eof));
}

#[test]
fn broken_framing_is_named() {
    for (bytes, role) in [
        (&b"\xc1\x01a"[..], WebSocketRole::Client),
        (b"\xa1\x01a", WebSocketRole::Client),
        (b"\x91\x01a", WebSocketRole::Client),
        (b"\x83\x00", WebSocketRole::Client),
        (b"\x8b\x00", WebSocketRole::Client),
        (b"\x81\x01a", WebSocketRole::Server),
        (b"\x81\x81\0\0\0\0a", WebSocketRole::Client),
        (b"\x80\x01a", WebSocketRole::Client),
        (b"\x01\x01a\x81\x01b", WebSocketRole::Client),
        (b"\x09\x00", WebSocketRole::Client),
        (b"\x89\x7e\x00\x7e", WebSocketRole::Client),
        (b"\x88\x01\x03", WebSocketRole::Client),
        (b"\x88\x02\x03\xed", WebSocketRole::Client),
        (b"\x88\x02\x00\x00", WebSocketRole::Client),
        (b"\x88\x03\x03\xe8\xff", WebSocketRole::Client),
    ] {
        let (received, closed) = frames(bytes, role);
        assert!(received.is_empty() && matches!(closed, CloseReason::Protocol(_)), "{bytes:x?}: {closed:?}");
    }
}

#[test]
fn a_close_frame_gives_its_code_and_reason() {
    let (_, closed) = frames(b"\x88\x05\x03\xe9bye", WebSocketRole::Client);
    assert!(matches!(&closed, CloseReason::Peer { code: 1001, reason } if reason == "bye"), "{closed:?}");
    let (_, closed) = frames(b"\x88\x00", WebSocketRole::Client);
    assert!(matches!(&closed, CloseReason::Peer { code: 1005, reason } if reason.is_empty()), "{closed:?}");
}

#[test]
fn an_end_inside_a_frame_is_not_a_clean_one() {
    for bytes in [&b"\x81"[..], b"\x81\x02a", b"\x01\x01a"] {
        let (_, closed) = frames(bytes, WebSocketRole::Client);
        let is_cut = matches!(&closed, CloseReason::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof);
        assert!(is_cut, "{closed:?}");
    }
}

#[test]
fn the_message_limit_counts_fragments_and_applies_before_the_payload_arrives() {
    let mut whole = b"\x81\x7e\x01\x2c".to_vec();
    whole.extend([b'x'; 300]);
    assert!(matches!(frames(&whole, WebSocketRole::Client), (received, CloseReason::Eof) if received.len() == 1));
    for refused in [
        &b"\x81\x7e\x01\x2d"[..],
        b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x01\x02ab\x80\x7e\x01\x2b",
        b"\x01\x02ab\x80\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let (_, closed) = frames(refused, WebSocketRole::Client);
        assert!(matches!(closed, CloseReason::TooLarge { limit: 300 }), "{refused:x?}: {closed:?}");
    }
}
