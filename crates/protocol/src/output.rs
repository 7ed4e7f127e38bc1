//! Hand-written encoders for process output. They write output from the log into the send buffer as base64, with one copy.
//!
//! They produce exactly what serde produces for the types of [`process`] and [`command`]; tests check this. The module does not depend on
//! logs or connections.

use std::io::Write;

use crate::{
    ProcessId, SessionId, base64, command,
    message::write_json,
    process::{self, Gap, ReadEnd},
};

/// The JSON members that identify a process in an event. They are escaped once and written with every event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscapedId(Box<[u8]>);

impl EscapedId {
    /// For events sent to the connection of the process's own session.
    #[must_use]
    pub fn new(process: &ProcessId) -> Self {
        let mut text = b"\"processId\":".to_vec();
        write_json(&mut text, process);
        Self(text.into_boxed_slice())
    }

    /// For events of a subscription, which is always to a process of another session.
    #[must_use]
    pub fn with_session(process: &ProcessId, session: &SessionId) -> Self {
        let mut text = Self::new(process).0.into_vec();
        text.extend_from_slice(b",\"sessionId\":");
        write_json(&mut text, session);
        Self(text.into_boxed_slice())
    }
}

/// One chunk of output to encode.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// Sequence number of the event.
    pub seq: u64,
    /// The stream that the process wrote to.
    pub stream: process::Stream,
    /// Number of output bytes of this process before this chunk.
    pub offset: Option<u64>,
    /// Which events were lost. A client that did not announce `gap` gets one empty chunk for each lost event, and only
    /// the first of these chunks has this member.
    pub gap: Option<Gap>,
    /// The output bytes.
    pub bytes: &'a [u8],
}

/// Upper limit of the number of bytes that [`encode_output`] appends.
#[must_use]
pub fn output_len(id: &EscapedId, output: &Output<'_>) -> usize {
    // Names, punctuation and five integers of at most 20 digits take less than 256 bytes.
    256 + id.0.len() + base64::encoded_len(output.bytes.len())
}

/// Appends the notification `process/output`.
pub fn encode_output(out: &mut Vec<u8>, id: &EscapedId, output: &Output<'_>) {
    out.reserve(output_len(id, output));
    out.extend_from_slice(b"{\"method\":\"process/output\",\"params\":{");
    out.extend_from_slice(&id.0);
    out.push(b',');
    write_chunk(out, output.seq, output.stream, output.bytes);
    if let Some(offset) = output.offset {
        out.extend_from_slice(b",\"offset\":");
        write_number(out, offset);
    }
    if let Some(gap) = &output.gap {
        out.extend_from_slice(b",\"gap\":");
        write_json(out, gap);
    }
    out.extend_from_slice(b"}}");
}

/// Appends the notification `command/exec/outputDelta` of V0.
pub fn encode_output_delta(out: &mut Vec<u8>, id: &EscapedId, stream: command::Stream, bytes: &[u8]) {
    out.reserve(128 + id.0.len() + base64::encoded_len(bytes.len()));
    out.extend_from_slice(b"{\"method\":\"command/exec/outputDelta\",\"params\":{");
    out.extend_from_slice(&id.0);
    out.extend_from_slice(b",\"stream\":\"");
    out.extend_from_slice(stream.as_str().as_bytes());
    out.extend_from_slice(b"\",\"chunk\":\"");
    base64::encode_into(out, bytes);
    out.extend_from_slice(b"\"}}");
}

/// Writes the result of `process/read` chunk by chunk. Call it between [`crate::message::begin_result`] and [`crate::message::end_result`].
#[derive(Debug)]
pub struct ReadEncoder {
    is_first: bool,
}

impl ReadEncoder {
    /// Writes the beginning of the result.
    pub fn begin(out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(b"{\"chunks\":[");
        Self { is_first: true }
    }

    /// Appends one chunk of output.
    pub fn push(&mut self, out: &mut Vec<u8>, seq: u64, stream: process::Stream, bytes: &[u8]) {
        if !std::mem::take(&mut self.is_first) {
            out.push(b',');
        }
        out.reserve(64 + base64::encoded_len(bytes.len()));
        out.push(b'{');
        write_chunk(out, seq, stream, bytes);
        out.push(b'}');
    }

    /// Appends the members after the chunks and closes the result.
    pub fn finish(self, out: &mut Vec<u8>, end: &ReadEnd) {
        out.extend_from_slice(b"],");
        let start = out.len();
        write_json(out, end);
        // `end` is encoded as an object. Remove its opening brace, so that its members join the object that is already open.
        out.remove(start);
    }
}

fn write_chunk(out: &mut Vec<u8>, seq: u64, stream: process::Stream, bytes: &[u8]) {
    out.extend_from_slice(b"\"seq\":");
    write_number(out, seq);
    out.extend_from_slice(b",\"stream\":\"");
    out.extend_from_slice(stream.as_str().as_bytes());
    out.extend_from_slice(b"\",\"chunk\":\"");
    base64::encode_into(out, bytes);
    out.push(b'"');
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    write!(out, "{number}").expect("a vector takes every byte");
}
