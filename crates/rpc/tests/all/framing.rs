//! A receiver gets exactly what an outbox sends, for all slice sizes, cancellations and partial writes.

use bytes::Bytes;
use exec_server_rpc::{CloseReason, EncodedMessage, Framing, InboundFrame, Outbox, WebSocketRole};
use proptest::prelude::*;

use crate::slices::{self, SlicedReader, SlicedWriter};

const MAX: usize = 96 * 1024 * 1024;

fn ws(role: WebSocketRole) -> Framing {
    Framing::WebSocket { role, max: MAX }
}

/// An operation. `Encoded`: a message that was encoded before. `Attached`: a message whose bytes from `head` on are
/// attached. `Flush`: polls the flush this many times, then cancels it.
#[derive(Debug, Clone)]
enum OutboxOp {
    Message { payload: Vec<u8>, hint: usize },
    Encoded(Vec<u8>),
    Attached { payload: Vec<u8>, head: usize },
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Flush(usize),
}

fn op() -> impl Strategy<Value = OutboxOp> {
    // Sizes around those at which the header grows.
    let size = prop_oneof![0usize..8, 120usize..132, 65_530usize..65_542, 0usize..5000];
    let payload =
        |size: usize, seed: u8| (0..size).map(move |i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
    let message = (size.clone(), any::<u8>(), prop_oneof![size.clone(), Just(0)])
        .prop_map(move |(size, seed, hint)| OutboxOp::Message { payload: payload(size, seed), hint });
    let encoded = (size.clone(), any::<u8>()).prop_map(move |(size, seed)| OutboxOp::Encoded(payload(size, seed)));
    let attached = (size, any::<u8>(), 0usize..20)
        .prop_map(move |(size, seed, head)| OutboxOp::Attached { payload: payload(size, seed), head: head.min(size) });
    let control = prop::collection::vec(any::<u8>(), 0..126);
    prop_oneof![
        6 => message,
        3 => encoded,
        4 => attached,
        1 => control.clone().prop_map(OutboxOp::Ping),
        1 => control.prop_map(OutboxOp::Pong),
        3 => (1usize..6).prop_map(OutboxOp::Flush),
    ]
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1usize..4, 1usize..200, 1usize..40_000], 1..6)
}

/// Sends `ops` through an outbox and reads the written bytes with a receiver.
fn carry(
    mut outbox: Outbox,
    receive: Framing,
    ops: &[OutboxOp],
    written: &[usize],
    read: &[usize],
) -> (Vec<InboundFrame>, CloseReason) {
    let mut sink = SlicedWriter::new(written);
    for op in ops {
        match op {
            OutboxOp::Message { payload, hint } => outbox.message(*hint, |buf| buf.extend_from_slice(payload)),
            OutboxOp::Encoded(payload) => outbox.encoded(EncodedMessage::text(payload.clone())),
            OutboxOp::Attached { payload, head } => {
                let (head, attached) = payload.split_at(*head);
                let attached = Some(Bytes::copy_from_slice(attached));
                outbox.encoded(EncodedMessage { head: head.to_vec(), attached });
            }
            OutboxOp::Ping(payload) => outbox.ping(payload),
            OutboxOp::Pong(payload) => outbox.pong(payload),
            OutboxOp::Flush(polls) => slices::flush_some(&mut outbox, &mut sink, *polls),
        }
    }
    let (before, waiting) = (sink.bytes.len(), outbox.len());
    slices::flush(&mut outbox, &mut sink);
    assert_eq!(sink.bytes.len(), before + waiting, "the length says what is left to write");
    assert!(outbox.is_empty());
    slices::read_all(sink.bytes, read, receive)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn websocket_messages_survive_any_slicing(
        ops in prop::collection::vec(op(), 1..12), written in sizes(), read in sizes(), to_server in any::<bool>(),
        is_private in any::<bool>(),
    ) {
        let (send, receive) = if to_server { (WebSocketRole::Client, WebSocketRole::Server) } else { (WebSocketRole::Server, WebSocketRole::Client) };
        let outbox = if is_private { Outbox::unmasked(ws(send)) } else { Outbox::new(ws(send)) };
        let (received, closed) = carry(outbox, ws(receive), &ops, &written, &read);
        let expected: Vec<InboundFrame> = ops.into_iter().filter_map(|op| match op {
            OutboxOp::Message { payload, .. } | OutboxOp::Encoded(payload) | OutboxOp::Attached { payload, .. } => Some(InboundFrame::Message(payload.into())),
            OutboxOp::Ping(payload) => Some(InboundFrame::Ping(payload.into())),
            OutboxOp::Pong(payload) => Some(InboundFrame::Pong(payload.into())),
            OutboxOp::Flush(_) => None,
        }).collect();
        prop_assert_eq!(received, expected);
        prop_assert!(matches!(closed, CloseReason::Eof));
    }

    #[test]
    fn lines_survive_any_slicing(
        lines in prop::collection::vec("[ a-zé{}\r]{0,300}", 1..12), written in sizes(), read in sizes(),
    ) {
        let framing = Framing::Lines { max: 4096 };
        let ops: Vec<OutboxOp> =
            lines.iter().map(|line| OutboxOp::Message { payload: line.clone().into_bytes(), hint: 0 }).collect();
        let (received, closed) = carry(Outbox::new(framing), framing, &ops, &written, &read);
        let expected: Vec<InboundFrame> = lines
            .iter()
            .filter(|line| !line.trim().is_empty())
            .map(|line| InboundFrame::Message(line.strip_suffix('\r').unwrap_or(line).to_owned().into()))
            .collect();
        prop_assert_eq!(received, expected);
        prop_assert!(matches!(closed, CloseReason::Eof));
    }

    #[test]
    fn bytes_among_lines_survive_any_slicing(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..12), written in sizes(), read in sizes(),
    ) {
        let framing = Framing::Lines { max: 300 };
        let ops: Vec<OutboxOp> = messages
            .iter()
            .flat_map(|bytes| {
                let attached = OutboxOp::Attached { payload: bytes.clone(), head: bytes.len() / 2 };
                [attached, OutboxOp::Message { payload: b"{}".to_vec(), hint: 0 }]
            })
            .collect();
        let (received, closed) = carry(Outbox::new(framing), framing, &ops, &written, &read);
        let expected: Vec<InboundFrame> = messages
            .iter()
            .flat_map(|bytes| [InboundFrame::Message(bytes.clone().into()), InboundFrame::Message("{}".into())])
            .collect();
        prop_assert_eq!(received, expected);
        prop_assert!(matches!(closed, CloseReason::Eof));
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_receiver(bytes in prop::collection::vec(any::<u8>(), 0..400), read in sizes()) {
        for framing in [ws(WebSocketRole::Server), ws(WebSocketRole::Client), Framing::Lines { max: 64 }] {
            let mut receiver = SlicedReader::new(bytes.clone(), &read).receiver(framing);
            slices::recv_all(&mut receiver);
            prop_assert!(matches!(slices::recv(&mut receiver), Err(CloseReason::Eof)), "after the end there is only the end");
        }
    }
}

#[test]
fn a_masking_key_is_zero_only_on_a_private_link() {
    let client = ws(WebSocketRole::Client);
    for (mut outbox, is_zero) in [(Outbox::new(client), false), (Outbox::unmasked(client), true)] {
        let mut sink = SlicedWriter::new(&[1000]);
        for _ in 0..3 {
            outbox.message(2, |buf| buf.extend_from_slice(b"{}"));
        }
        slices::flush(&mut outbox, &mut sink);
        let keys: Vec<&[u8]> = sink.bytes.chunks(8).map(|frame| &frame[2..6]).collect();
        assert_eq!(keys.iter().all(|key| *key == [0; 4]), is_zero, "{keys:?}");
        assert!(sink.bytes[1] & 0x80 != 0, "a client's frame has a key");
    }
}

#[test]
fn a_large_message_is_sent_in_frames_of_8_mib_and_received_as_one() {
    let payload: Vec<u8> = (0..20 * 1024 * 1024).map(|i| (i % 253) as u8).collect();
    use WebSocketRole::{Client, Server};
    for (send, receive) in [(Server, Client), (Client, Server)] {
        let mut outbox = Outbox::new(ws(send));
        outbox.message(10, |buf| buf.extend_from_slice(b"before"));
        outbox.message(payload.len(), |buf| buf.extend_from_slice(&payload));
        outbox.ping(b"after");
        let mut sink = SlicedWriter::new(&[7, 3_000_000]);
        slices::flush(&mut outbox, &mut sink);
        assert!(outbox.capacity() <= 1024 * 1024, "a large message leaves no large buffer");
        outbox.message(5, |buf| buf.extend_from_slice(b"small"));
        slices::flush(&mut outbox, &mut SlicedWriter::new(&[1000]));
        assert!(outbox.capacity() <= 256 * 1024, "and behind a small one a small buffer");

        let mask = if send == Client { 4 } else { 0 };
        let overhead = (2 + mask) + 3 * (10 + mask) + (2 + mask);
        assert_eq!(sink.bytes.len(), 6 + payload.len() + 5 + overhead);
        let (received, closed) = slices::read_all(sink.bytes, &[1_000_003], ws(receive));
        assert!(matches!(closed, CloseReason::Eof));
        let [before, large, after] = &received[..] else { panic!("{} messages", received.len()) };
        assert_eq!(*before, InboundFrame::Message(Bytes::from_static(b"before")));
        assert!(*large == InboundFrame::Message(payload.clone().into()));
        assert_eq!(*after, InboundFrame::Ping(Bytes::from_static(b"after")));
    }
}

#[test]
fn a_message_keeps_no_more_memory_than_its_neighbours_need() {
    let mut outbox = Outbox::new(ws(WebSocketRole::Server));
    let large = vec![b'x'; 2 * 1024 * 1024];
    outbox.message(large.len(), |buf| buf.extend_from_slice(&large));
    outbox.message(5, |buf| buf.extend_from_slice(b"small"));
    let mut sink = SlicedWriter::new(&[usize::MAX]);
    slices::flush(&mut outbox, &mut sink);
    let mut receiver = SlicedReader::new(sink.bytes, &[usize::MAX]).receiver(ws(WebSocketRole::Client));
    let Ok(InboundFrame::Message(first)) = slices::recv(&mut receiver) else { panic!("the large message comes first") };
    assert!(first == large);
    assert!(first.is_unique(), "the receiver does not share the large buffer");
    assert_eq!(slices::recv(&mut receiver).unwrap(), InboundFrame::Message(Bytes::from_static(b"small")));
}

#[test]
fn nothing_follows_a_close_frame() {
    let mut outbox = Outbox::new(ws(WebSocketRole::Server));
    outbox.close(1001, &"é".repeat(100));
    outbox.message(1, |_| panic!("not encoded"));
    outbox.ping(b"");
    outbox.close(1000, "");
    let mut sink = SlicedWriter::new(&[5]);
    slices::flush(&mut outbox, &mut sink);
    let (received, closed) = slices::read_all(sink.bytes, &[3], ws(WebSocketRole::Client));
    assert!(received.is_empty());
    let CloseReason::Peer { code: 1001, reason } = closed else { panic!("{closed:?}") };
    assert_eq!(reason, "é".repeat(61), "a long reason is cut between characters");
}

#[test]
fn an_outbox_that_never_runs_empty_stays_bounded() {
    let mut outbox = Outbox::new(ws(WebSocketRole::Client));
    let mut sink = SlicedWriter::new(&[64 * 1024]);
    let payload = vec![b'y'; 64 * 1024];
    for _ in 0..8 {
        outbox.message(payload.len(), |buf| buf.extend_from_slice(&payload));
    }
    for _ in 0..200 {
        outbox.message(payload.len(), |buf| buf.extend_from_slice(&payload));
        // One poll writes one slice, so as much leaves as arrives and the backlog stays constant.
        slices::flush_some(&mut outbox, &mut sink, 1);
        assert!(!outbox.is_empty());
    }
    assert!(outbox.capacity() <= 4 * 1024 * 1024, "{}", outbox.capacity());
    slices::flush(&mut outbox, &mut sink);
    let (received, _) = slices::read_all(sink.bytes, &[100_000], ws(WebSocketRole::Server));
    assert_eq!(received.len(), 208);
    assert!(received.iter().all(|inbound| *inbound == InboundFrame::Message(payload.clone().into())));
}
