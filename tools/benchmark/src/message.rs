//! Parses messages as far as a measurement needs it: the params of a start, the head in JSON or binary form, the position of bytes.
//!
//! Written from PROTOCOL.md. Borrows from the message and copies nothing; `lean_client.rs` interprets the result.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::prelude::*;

/// First byte of a message with attached bytes, with output, and with input.
pub(super) const ATTACHED: u8 = 0x80;
pub(super) const OUTPUT: u8 = 0x81;
pub(super) const INPUT: u8 = 0x82;

/// Bytes of an output message before the output.
pub(super) const OUTPUT_HEAD: usize = 24;

/// The form in which bytes are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MessageFormat {
    Json,
    Binary,
}

impl MessageFormat {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::Binary => "binary",
        }
    }
}

/// The params of a start.
#[derive(Clone, Copy, Default)]
pub(super) struct StartRequest<'a> {
    pub(super) argv: &'a [&'a str],
    pub(super) tty: bool,
    pub(super) stdin: bool,
    /// Further members of the params.
    pub(super) more: Option<&'a Value>,
}

impl<'a> StartRequest<'a> {
    pub(super) fn new(argv: &'a [&'a str]) -> Self {
        Self { argv, ..Self::default() }
    }
}

/// A message of any kind; other keys are ignored.
#[derive(Deserialize)]
pub(super) struct BorrowedEnvelope<'a> {
    pub(super) id: Option<i64>,
    pub(super) method: Option<&'a str>,
    #[serde(borrow)]
    pub(super) params: Option<EventFields<'a>>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
}

/// The params of process events.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct EventFields<'a> {
    pub(super) process_id: Option<&'a str>,
    pub(super) seq: Option<u64>,
    pub(super) exit_code: Option<i64>,
    pub(super) channel: Option<u32>,
    pub(super) offset: Option<u64>,
    pub(super) output_bytes: Option<u64>,
    pub(super) dropped_bytes: Option<u64>,
}

/// An answer, or something else.
pub(super) fn answer(envelope: &BorrowedEnvelope<'_>) -> SessionMessage {
    envelope.id.map_or(SessionMessage::Other, |id| SessionMessage::Answer { id, refused: envelope.error.is_some() })
}

/// Whether the message is the answer to this request.
pub(super) fn is_answer(message: &[u8], id: i64) -> bool {
    serde_json::from_slice::<BorrowedEnvelope<'_>>(message).is_ok_and(|envelope| envelope.id == Some(id))
}

/// The process id, which is a number here.
pub(super) fn process(params: &EventFields<'_>) -> Result<u64> {
    params.process_id.and_then(|process| process.parse().ok()).context("an event of a process with no name of ours")
}

/// The JSON and the bytes of a message after its first byte.
pub(super) fn attached(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = message.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// Splits a message around its base64 bytes: before, bytes, after. `None` for a message without them.
pub(super) fn chunk(message: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    /// Keys come in any order, but no key of ours is far from the beginning.
    const WITHIN: usize = 400;
    let head = &message[..message.len().min(WITHIN)];
    let key = ["\"chunk\":\"", "\"dataBase64\":\""].into_iter().find_map(|key| {
        let at = memchr::memmem::find(head, key.as_bytes())?;
        Some(at + key.len())
    })?;
    let length = memchr::memchr(b'"', &message[key..])?;
    Some((&message[..key], &message[key..key + length], &message[key + length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_found_whatever_the_order_of_keys() {
        let text = br#"{"params":{"chunk":"eA==","seq":3,"processId":"7"},"method":"process/output"}"#;
        let (before, base64, after) = chunk(text).unwrap();
        assert_eq!(base64, b"eA==");
        let rest = [before, after].concat();
        let envelope: BorrowedEnvelope<'_> = serde_json::from_slice(&rest).unwrap();
        let params = envelope.params.unwrap();
        assert_eq!((envelope.method, params.seq, process(&params).unwrap()), (Some("process/output"), Some(3), 7));
        assert!(chunk(br#"{"id":1,"result":{}}"#).is_none());
    }

    #[test]
    fn attached_bytes_are_separated_from_the_json() {
        assert_eq!(attached(b"\x02\0\0\0{}abc"), Some((&b"{}"[..], &b"abc"[..])));
        assert_eq!(attached(b"\x09\0\0\0{}abc"), None);
    }
}
