//! The streamed response bodies of a session: the pieces that were not read yet, how each body ends, and the acknowledgements that are due.
//!
//! The reader task of the link fills them, and [`Body`](super::Body) empties them. Neither waits here.

use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
};

use bytes::Bytes;
use exec_server_protocol::{
    base64,
    failure::{self, Kind},
    http as wire,
    limits::{self, HTTP_BYTES_KEPT, HTTP_PIECES_KEPT},
};
use exec_server_rpc::CloseReason;
use parking_lot::Mutex;

use crate::error::Error;

/// The streamed bodies of a session.
#[derive(Debug, Default)]
pub(crate) struct BodyStreams {
    table: Mutex<BodyTable>,
}

#[derive(Debug, Default)]
struct BodyTable {
    /// The number of the last streamed request, and of the last buffered one.
    last_streamed: u64,
    last_buffered: u64,
    streams: BTreeMap<String, BodyStream>,
    /// Bytes that are buffered for streams without a window.
    buffered: usize,
}

/// One stream, from its request until its reader is dropped.
#[derive(Debug, Default)]
struct BodyStream {
    /// The link of the stream.
    epoch: u64,
    window: Option<u64>,
    /// The last piece received, the last one consumed, and the last one acknowledged.
    received: u64,
    taken: u64,
    acked: u64,
    pieces: VecDeque<Bytes>,
    /// How the stream ends; reported after the pieces.
    end: Option<Result<(), Error>>,
    reader: Option<Waker>,
}

/// The result of a read.
pub(super) enum BodyRead {
    Nothing,
    Piece { bytes: Bytes, is_ack_due: bool },
    End(Result<(), Error>),
}

impl BodyStreams {
    /// A new id for a request with a streamed response.
    pub(super) fn next_streamed_id(&self) -> String {
        let mut table = self.table.lock();
        table.last_streamed += 1;
        format!("http-{}", table.last_streamed)
    }

    /// A new id for a request with a buffered response.
    pub(super) fn next_buffered_id(&self) -> String {
        let mut table = self.table.lock();
        table.last_buffered += 1;
        format!("buffered-{}", table.last_buffered)
    }

    pub(super) fn add(&self, request_id: String, epoch: u64, window: Option<u64>) {
        let entry = BodyStream { epoch, window, ..BodyStream::default() };
        self.table.lock().streams.insert(request_id, entry);
    }

    /// Removes a stream. Returns whether the server is still sending it.
    pub(super) fn remove(&self, request_id: &str, epoch: u64) -> bool {
        let mut table = self.table.lock();
        if table.streams.get(request_id).is_none_or(|entry| entry.epoch != epoch) {
            return false;
        }
        let Some(entry) = table.streams.remove(request_id) else { return false };
        table.buffered -= entry.buffered();
        entry.end.is_none()
    }

    /// Handles a piece. A piece without a stream, or after the end of its stream, is ignored. A piece that breaks a rule fails its stream.
    /// An oversized piece, which no correct server sends, closes the link.
    pub(crate) fn receive(&self, delta: wire::BodyDeltaParams<'_>) -> Result<(), CloseReason> {
        const TOO_LARGE: CloseReason = CloseReason::Protocol("a piece of an HTTP body is larger than 1 MiB");
        // Check the length before decoding. The text can stand for up to two bytes more than the limit, so the bytes are checked again.
        if delta.delta_base64.len() > base64::encoded_len(limits::HTTP_DELTA_BYTES) {
            return Err(TOO_LARGE);
        }
        let bytes = base64::decode(&delta.delta_base64);
        if bytes.as_ref().is_ok_and(|bytes| bytes.len() > limits::HTTP_DELTA_BYTES) {
            return Err(TOO_LARGE);
        }
        let mut table = self.table.lock();
        let BodyTable { streams, buffered, .. } = &mut *table;
        let Some(entry) = streams.get_mut(&delta.request_id).filter(|entry| entry.end.is_none()) else { return Ok(()) };
        let verdict = match bytes {
            Ok(bytes) => entry.check(delta.seq, &bytes, *buffered).map(|()| Bytes::from(bytes)),
            Err(_) => Err(Error::Protocol("a piece of an HTTP body is not base64".to_owned())),
        };
        match verdict {
            Ok(bytes) => {
                entry.received = delta.seq;
                if !bytes.is_empty() {
                    *buffered += if entry.window.is_none() { bytes.len() } else { 0 };
                    entry.pieces.push_back(bytes);
                } else {
                    // An empty piece counts as consumed at once. If pieces are queued, it counts with the last of them; see `take`.
                    entry.taken += u64::from(entry.pieces.is_empty());
                }
                if let Some(text) = delta.error {
                    entry.end = Some(Err(failed(&text)));
                } else if delta.done {
                    entry.end = Some(Ok(()));
                }
            }
            Err(error) => entry.end = Some(Err(error)),
        }
        let reader = entry.reader.take();
        drop(table);
        reader.into_iter().for_each(Waker::wake);
        Ok(())
    }

    pub(super) fn take(&self, request_id: &str, epoch: u64, waker: &Waker) -> BodyRead {
        let mut table = self.table.lock();
        let BodyTable { streams, buffered, .. } = &mut *table;
        let Some(entry) = streams.get_mut(request_id).filter(|entry| entry.epoch == epoch) else {
            return BodyRead::End(Err(Error::Disconnected { reason: None }));
        };
        if let Some(bytes) = entry.pieces.pop_front() {
            *buffered -= if entry.window.is_none() { bytes.len() } else { 0 };
            // Empty pieces have numbers, too: after the last piece in the queue, everything received is consumed.
            entry.taken = if entry.pieces.is_empty() { entry.received } else { entry.taken + 1 };
            return BodyRead::Piece { bytes, is_ack_due: entry.is_ack_due() };
        }
        match entry.end.clone() {
            Some(end) => BodyRead::End(end),
            None => {
                entry.reader = Some(waker.clone());
                BodyRead::Nothing
            }
        }
    }

    /// The acknowledgements that are due on this link.
    pub(crate) fn due_acks(&self, epoch: u64) -> Vec<wire::AckParams> {
        let mut table = self.table.lock();
        let due = table.streams.iter_mut().filter(|(_, entry)| entry.epoch == epoch && entry.is_ack_due());
        let acks = due.map(|(request_id, entry)| {
            entry.acked = entry.taken;
            wire::AckParams { request_id: request_id.clone(), seq: entry.taken }
        });
        acks.collect()
    }

    /// Fails every stream of this link and of earlier ones. Readers get the error after the pieces that had arrived.
    pub(crate) fn fail(&self, epoch: u64, error: &Error) {
        let mut readers = Vec::new();
        for entry in self.table.lock().streams.values_mut().filter(|entry| entry.epoch <= epoch) {
            entry.end.get_or_insert_with(|| Err(error.clone()));
            readers.extend(entry.reader.take());
        }
        readers.into_iter().for_each(Waker::wake);
    }
}

impl BodyStream {
    /// Bytes that count against the limit for all streams.
    fn buffered(&self) -> usize {
        if self.window.is_some() { 0 } else { self.pieces.iter().map(Bytes::len).sum() }
    }

    fn is_ack_due(&self) -> bool {
        self.window.is_some_and(|window| self.end.is_none() && self.taken - self.acked >= window.div_ceil(4))
    }

    /// Checks that this piece is in order and within the limits.
    fn check(&self, seq: u64, bytes: &[u8], buffered: usize) -> Result<(), Error> {
        if seq != self.received + 1 {
            let text = format!("HTTP body: piece {seq} came after piece {}", self.received);
            return Err(Error::Protocol(text));
        }
        // An empty piece, such as the last one, needs no room.
        if bytes.is_empty() {
            return Ok(());
        }
        let text = match self.window {
            Some(window) if seq > self.acked + window || bytes.len() > limits::CHUNK_BYTES => {
                "HTTP body: the server sends more than the window allows".to_owned()
            }
            None if self.pieces.len() >= HTTP_PIECES_KEPT => {
                format!("HTTP body: more than {HTTP_PIECES_KEPT} pieces were not read in time, the rest is lost")
            }
            None if buffered + bytes.len() > HTTP_BYTES_KEPT => {
                format!("HTTP body: more than {HTTP_BYTES_KEPT} bytes were not read in time, the rest is lost")
            }
            Some(_) | None => return Ok(()),
        };
        Err(Error::Protocol(text))
    }
}

/// The error for a body that the server could not complete.
fn failed(text: &str) -> Error {
    Error::Server { code: failure::INTERNAL, kind: Some(Kind::HttpFailed), message: format!("HTTP body: {text}") }
}
