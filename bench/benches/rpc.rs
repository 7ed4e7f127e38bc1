//! Cost of moving one message: framing it, and reading it from the stream again.
//!
//! The stream is in memory and always ready, so that no runtime is needed and nothing waits.

use std::hint::black_box;

use bytes::Bytes;
use exec_server_rpc::{ByteStream, EncodedMessage, Framing, InboundFrame, Outbox, Receiver, WebSocketRole, memory};
use futures_util::FutureExt as _;
use gungraun::prelude::*;

/// As in a server.
const MAX: usize = 64 << 20;

/// More than any message here.
const ROOM: usize = 1 << 20;

const SERVER: Framing = Framing::WebSocket { role: WebSocketRole::Server, max: MAX };
const CLIENT: Framing = Framing::WebSocket { role: WebSocketRole::Client, max: MAX };
const LINES: Framing = Framing::Lines { max: MAX };

/// A message of ASCII, as all of ours are.
fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + (at % 26) as u8).collect()
}

/// One end that sends, with buffers and mask keys from a message before, and where it goes.
struct Sending {
    outbox: Outbox,
    text: Vec<u8>,
    /// The second end, so that the first can write.
    pair: (ByteStream, ByteStream),
}

fn sending(framing: Framing, len: usize) -> Sending {
    let mut sending = Sending { outbox: Outbox::new(framing), text: text(len), pair: memory(2 * ROOM) };
    sending.send();
    sending
}

impl Sending {
    fn send(&mut self) {
        let text = &self.text;
        self.outbox.message(text.len(), |out| out.extend_from_slice(text));
        self.flush();
    }

    fn flush(&mut self) {
        let flushed = self.outbox.flush_to(&mut self.pair.0.writer).now_or_never();
        flushed.expect("there is room for it").expect("the other end is there");
    }
}

#[library_benchmark]
#[bench::server_bytes_100(args = (SERVER, 100), setup = sending)]
#[bench::server_kib_64(args = (SERVER, 64 * 1024), setup = sending)]
#[bench::client_kib_64(args = (CLIENT, 64 * 1024), setup = sending)]
#[bench::lines_kib_64(args = (LINES, 64 * 1024), setup = sending)]
fn send(mut sending: Sending) -> Sending {
    black_box(&mut sending).send();
    sending
}

fn sending_bytes(framing: Framing, len: usize) -> (Sending, EncodedMessage) {
    let head = text(100);
    (sending(framing, 100), EncodedMessage { head, attached: Some(Bytes::from(text(len))) })
}

#[library_benchmark]
#[bench::server_kib_64(args = (SERVER, 64 * 1024), setup = sending_bytes)]
#[bench::client_kib_64(args = (CLIENT, 64 * 1024), setup = sending_bytes)]
fn send_attached((mut sending, message): (Sending, EncodedMessage)) -> Sending {
    sending.outbox.encoded(black_box(message));
    sending.flush();
    sending
}

// A frame of the dialect `binary`: a head of 24 bytes and the output, copied once.
#[library_benchmark]
#[bench::server_kib_64(args = (SERVER, 64 * 1024), setup = sending_bytes)]
fn send_frame((mut sending, message): (Sending, EncodedMessage)) -> (Sending, EncodedMessage) {
    let bytes = message.attached.as_deref().unwrap_or_default();
    sending.outbox.binary(&message.head[..24], black_box(bytes));
    sending.flush();
    (sending, message)
}

/// An end that has a message before it, after one of the same size.
struct Receiving {
    receiver: Receiver,
    /// Those who sent it, so that the stream has not ended.
    _sending: Sending,
}

fn receiving(from: Framing, to: Framing, len: usize) -> Receiving {
    let mut sending = sending(from, len);
    sending.send();
    let (unused, _) = memory(1);
    let ByteStream { reader, leftover, .. } = std::mem::replace(&mut sending.pair.1, unused);
    let mut receiving = Receiving { receiver: Receiver::new(to, reader, leftover), _sending: sending };
    assert_eq!(receiving.receive().len(), len);
    receiving
}

impl Receiving {
    fn receive(&mut self) -> Bytes {
        match self.receiver.recv().now_or_never() {
            Some(Ok(InboundFrame::Message(message))) => message,
            other => panic!("no message: {other:?}"),
        }
    }
}

#[library_benchmark]
#[bench::masked_bytes_100(args = (CLIENT, SERVER, 100), setup = receiving)]
#[bench::masked_kib_64(args = (CLIENT, SERVER, 64 * 1024), setup = receiving)]
#[bench::plain_kib_64(args = (SERVER, CLIENT, 64 * 1024), setup = receiving)]
#[bench::lines_kib_64(args = (LINES, LINES, 64 * 1024), setup = receiving)]
fn receive(mut receiving: Receiving) -> (Bytes, Receiving) {
    (black_box(&mut receiving).receive(), receiving)
}

library_benchmark_group!(name = outbox, benchmarks = [send, send_attached, send_frame]);
library_benchmark_group!(name = receiver, benchmarks = [receive]);
main!(library_benchmark_groups = [outbox, receiver]);
