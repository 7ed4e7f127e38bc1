//! The hand-written encoders produce the same bytes as serde, and the base64 codec agrees with the `base64` crate.

use base64::{Engine, engine::general_purpose::STANDARD};
use exec_server_protocol::{
    ProcessId, RequestId, SessionId, base64 as ours, command,
    message::{begin_result, encode_notification, encode_result, end_result},
    output::{EscapedId, Output, ReadEncoder, encode_output, encode_output_delta, output_len},
    process::{self, Gap, OutputParams, ReadChunk, ReadEnd, ReadResult, Stream},
};
use proptest::prelude::*;

fn stream() -> impl Strategy<Value = Stream> {
    prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr), Just(Stream::Pty)]
}

fn gap() -> impl Strategy<Value = Option<Gap>> {
    prop::option::of(any::<(u64, u64, u64)>().prop_map(|(from_seq, to_seq, bytes)| Gap { from_seq, to_seq, bytes }))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..300)
}

proptest! {
    #[test]
    fn output_is_encoded_as_serde_encodes_it(
        id in any::<String>(), session in prop::option::of(any::<String>()),
        seq in any::<u64>(), stream in stream(), offset in any::<Option<u64>>(), gap in gap(), bytes in bytes(),
    ) {
        let process_id = ProcessId::from(id);
        let session_id = session.map(SessionId::from);
        let escaped = session_id.as_ref().map_or_else(
            || EscapedId::new(&process_id),
            |session| EscapedId::with_session(&process_id, session),
        );
        let output = Output { seq, stream, offset, gap, bytes: &bytes };
        let mut by_hand = Vec::new();
        encode_output(&mut by_hand, &escaped, &output);
        prop_assert!(by_hand.len() <= output_len(&escaped, &output));
        let mut by_serde = Vec::new();
        let chunk = STANDARD.encode(&bytes);
        let params = OutputParams { process_id, session_id, seq, stream, chunk, offset, gap };
        encode_notification(&mut by_serde, "process/output", &params);
        prop_assert_eq!(String::from_utf8(by_hand), String::from_utf8(by_serde));
    }

    #[test]
    fn v0_output_is_encoded_as_serde_encodes_it(id in any::<String>(), is_error in any::<bool>(), bytes in bytes()) {
        let process_id = ProcessId::from(id);
        let stream = if is_error { command::Stream::Stderr } else { command::Stream::Stdout };
        let mut by_hand = Vec::new();
        encode_output_delta(&mut by_hand, &EscapedId::new(&process_id), stream, &bytes);
        let mut by_serde = Vec::new();
        let params = command::OutputDeltaParams { process_id, stream, chunk: STANDARD.encode(&bytes) };
        encode_notification(&mut by_serde, "command/exec/outputDelta", &params);
        prop_assert_eq!(String::from_utf8(by_hand), String::from_utf8(by_serde));
    }

    #[test]
    fn the_result_of_a_read_is_encoded_as_serde_encodes_it(
        chunks in prop::collection::vec((any::<u64>(), stream(), bytes()), 0..4),
        next_seq in any::<u64>(), exit_code in any::<Option<i32>>(), closed in any::<bool>(), gap in gap(),
    ) {
        let id = RequestId::Number(7);
        let end = ReadEnd {
            next_seq, exited: exit_code.is_some(), exit_code, closed, failure: None, sandbox_denied: false,
            first_seq: 1, gap, blocked: None,
        };
        let mut by_hand = Vec::new();
        begin_result(&mut by_hand, &id);
        let mut encoder = ReadEncoder::begin(&mut by_hand);
        for (seq, stream, bytes) in &chunks {
            encoder.push(&mut by_hand, *seq, *stream, bytes);
        }
        encoder.finish(&mut by_hand, &end);
        end_result(&mut by_hand);
        let chunks = chunks.into_iter().map(|(seq, stream, bytes)| ReadChunk { seq, stream, chunk: STANDARD.encode(bytes) });
        let mut by_serde = Vec::new();
        encode_result(&mut by_serde, &id, &ReadResult { chunks: chunks.collect(), end });
        prop_assert_eq!(String::from_utf8(by_hand), String::from_utf8(by_serde));
    }

    #[test]
    fn base64_agrees_with_the_base64_crate(bytes in bytes(), prefix in bytes()) {
        let text = STANDARD.encode(&bytes);
        prop_assert_eq!(ours::encode(&bytes), text.clone());
        prop_assert_eq!(ours::encoded_len(bytes.len()), text.len());
        prop_assert_eq!(ours::decode(&text), Ok(bytes.clone()));
        let mut out = prefix.clone();
        ours::encode_into(&mut out, &bytes);
        prop_assert_eq!(out, [prefix, text.into_bytes()].concat());
    }

    #[test]
    fn base64_refuses_what_the_base64_crate_refuses(text in "[A-Za-z0-9+/=_ \n-]{0,12}|[AQgw]{1,3}={0,3}|([A-D]{4}){0,3}[A-F]{0,4}={0,2}") {
        prop_assert_eq!(ours::decode(&text).ok(), STANDARD.decode(&text).ok(), "{}", text);
    }
}

#[test]
fn an_encoded_output_has_this_exact_text() {
    let mut out = Vec::new();
    let output = Output { seq: 1, stream: process::Stream::Stdout, offset: Some(0), gap: None, bytes: b"hi\n" };
    encode_output(&mut out, &EscapedId::new(&ProcessId::from("p1")), &output);
    let expected = r#"{"method":"process/output","params":{"processId":"p1","seq":1,"stream":"stdout","chunk":"aGkK","offset":0}}"#;
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}
