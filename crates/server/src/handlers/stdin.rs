//! stdin of a process: writes and `process/closeStdin`. A write is answered when its bytes have been written to the
//! child's stdin.

use std::sync::Arc;

use bytes::Bytes;
use exec_server_protocol::{SessionId, base64, process as wire};
use sha2::{Digest, Sha256};

use super::RequestContext;
use crate::{
    error::Failure,
    process::{Process, StdinOperation},
    pump::Reply,
};

pub(crate) struct StdinWrite {
    process_id: String,
    session_id: Option<SessionId>,
    data: Bytes,
    /// The hash of the write id, if the client sent one.
    key: Option<[u8; 16]>,
}

pub(crate) fn decode_write(params: wire::WriteParams<'_>) -> Result<StdinWrite, Failure> {
    if params.write_id.as_deref() == Some("") {
        return Err(Failure::EmptyWriteId);
    }
    StdinWrite::decode(params.process_id.as_str(), params.session_id, &params.chunk, params.write_id.as_deref())
}

impl StdinWrite {
    pub(crate) fn decode(
        process_id: &str,
        session_id: Option<SessionId>,
        chunk: &str,
        write_id: Option<&str>,
    ) -> Result<Self, Failure> {
        let data = base64::decode(chunk).map_err(|error| Failure::InvalidBase64 { reason: error.to_string() })?;
        Ok(Self { process_id: process_id.to_owned(), session_id, data: Bytes::from(data), key: write_id.map(key) })
    }
}

/// Hashes a write id. Ids can have any length, and the holder remembers thousands of them, so it stores a truncated
/// hash.
fn key(write_id: &str) -> [u8; 16] {
    let digest = Sha256::digest(write_id.as_bytes());
    let mut key = [0; 16];
    key.copy_from_slice(&digest[..16]);
    key
}

pub(crate) async fn write(context: RequestContext, params: StdinWrite, reply: Reply) {
    let process = match context.process(params.session_id.as_ref(), &params.process_id).await {
        Ok(Some(process)) => process,
        Ok(None) => return reply.write(&params.process_id, wire::WriteStatus::UnknownProcess, false),
        Err(failure) => return reply.fail(&failure),
    };
    enqueue(&process, params.data, params.key, reply);
}

/// Queues a write to a process.
fn enqueue(process: &Arc<Process>, data: Bytes, key: Option<[u8; 16]>, reply: Reply) {
    if !reply.dialect.takes_stdin(&process.meta) {
        return reply.write(process.id(), wire::WriteStatus::StdinClosed, false);
    }
    // The digest shows whether a repeated write id comes with the same data. A write without an id needs none. A CRC is
    // enough: a client that creates a collision harms only itself.
    let digest = key.map_or(0, |_| crc32fast::hash(&data));
    process.enqueue_stdin(StdinOperation::Write { key, digest, data, done: 0, is_cut: false, reply });
}

/// A write that came as a binary frame, to a process that this connection follows.
pub(crate) struct WriteFrame {
    pub(crate) process: Arc<Process>,
    pub(crate) data: Bytes,
    key: Option<[u8; 16]>,
}

impl WriteFrame {
    pub(crate) fn new(process: Arc<Process>, write_id: &str, data: Bytes) -> Self {
        Self { process, data, key: (!write_id.is_empty()).then(|| key(write_id)) }
    }
}

/// `process/write` as a binary frame.
pub(crate) async fn write_frame(frame: WriteFrame, reply: Reply) {
    enqueue(&frame.process, frame.data, frame.key, reply);
}

/// `process/closeStdin`: closes stdin after all earlier writes.
pub(crate) async fn close(context: RequestContext, params: wire::CloseStdinParams, reply: Reply) {
    match context.process(params.session_id.as_ref(), params.process_id.as_str()).await {
        Ok(Some(process)) if process.meta.stdin => process.enqueue_stdin(StdinOperation::Close { reply }),
        Ok(Some(_)) => reply.result(&wire::CloseStdinResult { status: wire::CloseStdinStatus::StdinClosed }),
        Ok(None) => reply.result(&wire::CloseStdinResult { status: wire::CloseStdinStatus::UnknownProcess }),
        Err(failure) => reply.fail(&failure),
    }
}
