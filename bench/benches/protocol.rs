//! Cost of decoding and encoding one message.
//!
//! Each function runs once before it is measured, so buffers have their final size and one-time work is done. Results are dropped after
//! the measurement. So only the message is counted.

use std::hint::black_box;

use exec_server_protocol::{
    Incoming, ProcessId, base64,
    frame::OutputFrame,
    message,
    output::{self, EscapedId, Output},
    process::{AckParams, OutputParams, StartParams, Stream},
};
use gungraun::prelude::*;

/// A request with what a usual one has.
const START: &[u8] = br#"{"id":7,"method":"process/start","params":{"processId":"build-1","argv":["cargo","test","--workspace"],"cwd":"/home/dev/project","env":{"PATH":"/usr/bin:/bin","HOME":"/home/dev","LANG":"C.UTF-8"},"tty":false,"pipeStdin":true}}"#;

/// The request that our client sends most often.
const ACK: &[u8] = br#"{"method":"process/ack","params":{"processId":"build-1","seq":123456}}"#;

/// Bytes of every value, as a program writes them.
fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

/// Output, and where it is encoded to. A second dialect is a second method here.
struct Encoding {
    out: Vec<u8>,
    id: EscapedId,
    bytes: Vec<u8>,
}

fn encoding(len: usize) -> Encoding {
    let (out, id) = (Vec::with_capacity(256 * 1024), EscapedId::new(&ProcessId::from("build-1")));
    let mut encoding = Encoding { out, id, bytes: payload(len) };
    encoding.write();
    encoding.out.clear();
    encoding
}

impl Encoding {
    fn write(&mut self) {
        let Self { out, id, bytes } = self;
        let (seq, stream, offset) = (123_456, Stream::Stdout, Some(987_654_321));
        output::encode_output(out, id, &Output { seq, stream, offset, gap: None, bytes });
    }
}

fn read_request(json: &[u8]) -> StartParams {
    match message::decode(json) {
        Ok(Incoming::Request { params, .. }) => message::params(params).expect("its params are those of a start"),
        other => panic!("not a request: {other:?}"),
    }
}

fn read_ack(json: &[u8]) -> AckParams {
    match message::decode(json) {
        Ok(Incoming::Notification { params, .. }) => message::params(params).expect("its params are those of an ack"),
        other => panic!("not a notification: {other:?}"),
    }
}

fn read_output(json: &[u8]) -> Vec<u8> {
    let output: OutputParams = match message::decode(json) {
        Ok(Incoming::Notification { params, .. }) => message::params(params).expect("its params are those of output"),
        other => panic!("not a notification: {other:?}"),
    };
    base64::decode(&output.chunk).expect("it was encoded by us")
}

/// A message like one that was read before.
fn known_request(json: &'static [u8]) -> &'static [u8] {
    read_request(json);
    json
}

fn known_ack(json: &'static [u8]) -> &'static [u8] {
    read_ack(json);
    json
}

fn known_output(len: usize) -> Vec<u8> {
    let mut encoding = encoding(len);
    encoding.write();
    let json = encoding.out;
    read_output(&json);
    json
}

fn known_text(len: usize) -> String {
    let text = base64::encode(&payload(len));
    assert_eq!(base64::decode(&text).map(|bytes| bytes.len()), Ok(len));
    text
}

#[library_benchmark]
#[bench::start(args = (START), setup = known_request)]
fn decode_request(json: &[u8]) -> StartParams {
    read_request(black_box(json))
}

#[library_benchmark]
#[bench::ack(args = (ACK), setup = known_ack)]
fn decode_notification(json: &[u8]) -> AckParams {
    read_ack(black_box(json))
}

#[library_benchmark]
#[bench::bytes_100(args = (100), setup = known_output)]
#[bench::kib_64(args = (64 * 1024), setup = known_output)]
fn decode_output(json: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    (read_output(black_box(&json)), json)
}

/// Output as a frame of the dialect `binary`.
fn known_frame(len: usize) -> Vec<u8> {
    let frame = OutputFrame { channel: 7, stream: Stream::Stdout, seq: 123_456, offset: 987_654_321 };
    let frame = [&frame.encode()[..], &payload(len)].concat();
    assert!(OutputFrame::decode(&frame).is_ok());
    frame
}

#[library_benchmark]
#[bench::kib_64(args = (64 * 1024), setup = known_frame)]
fn decode_output_frame(frame: Vec<u8>) -> (u64, usize, Vec<u8>) {
    let (head, bytes) = OutputFrame::decode(black_box(&frame)).expect("it was encoded by us");
    (head.seq, bytes.len(), frame)
}

#[library_benchmark]
#[bench::kib_64(args = (64 * 1024), setup = known_text)]
fn base64_decode(text: String) -> (Vec<u8>, String) {
    (base64::decode(black_box(&text)).expect("it was encoded by us"), text)
}

#[library_benchmark]
#[bench::bytes_100(args = (100), setup = encoding)]
#[bench::kib_64(args = (64 * 1024), setup = encoding)]
fn encode_output(mut encoding: Encoding) -> Encoding {
    black_box(&mut encoding).write();
    encoding
}

#[library_benchmark]
#[bench::kib_64(args = (64 * 1024), setup = encoding)]
fn base64_encode(mut encoding: Encoding) -> Encoding {
    base64::encode_into(&mut encoding.out, black_box(&encoding.bytes));
    encoding
}

library_benchmark_group!(
    name = decode,
    benchmarks = [decode_request, decode_notification, decode_output, decode_output_frame, base64_decode]
);
library_benchmark_group!(name = encode, benchmarks = [encode_output, base64_encode]);
main!(library_benchmark_groups = [decode, encode]);
