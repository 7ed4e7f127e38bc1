//! The receiving half of a connection: turns bytes into messages.
//!
//! It owns the receive buffer and the state of a partially received frame or line. It never sends: it reports pings and
//! closes, and the owner of the outbox answers them.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::{
    CloseReason, Framing, LINES_HEAD, LINES_MARK, WebSocketRole,
    frame::{self, FrameHeader, Opcode},
    pool::{BUFFER_BYTES, PooledBuffer},
};

/// Room for a read while the peer is quiet: 16 KiB. This is the memory that an idle connection holds.
const READ_MIN: usize = 16 * 1024;

/// Room for a read while reads return full: 256 KiB. A larger buffer would not fit the CPU cache.
const READ_MAX: usize = 256 * 1024;

/// Room reserved at once for a frame with a large announced length: 8 MiB. A header alone cannot make us allocate more.
const RESERVE_MAX: usize = 8 * 1024 * 1024;

/// If the buffer has at least 4 KiB of spare room, the next read uses it. So small messages share one allocation: with
/// one buffer per message, every message that is still held would keep [`READ_MIN`] bytes alive. If the buffer has
/// less, `BytesMut::reserve` makes room: in a new buffer if a message still shares the old one.
const SPARE_MIN: usize = 4 * 1024;

/// Binary messages from this size on, 128 KiB, are read into a pooled buffer if they fit: blocks of files and large writes to
/// stdin. Pushed output comes in smaller messages, and one read takes several of them.
const POOLED_MIN: u64 = 128 * 1024;

/// Capacity of the read buffers of a busy connection: a full read behind the beginning of a message with a piece of output.
const BUSY_BYTES: usize = READ_MAX + 68 * 1024;

/// Maximum number of read buffers that are kept to be used again: 2.6 MiB. A client's log keeps the last megabyte of output, and with it
/// the buffers of four reads. A new buffer instead would cost a page fault and the zeroing of a page for each 4 KiB.
const RETIRED_MAX: usize = 8;

/// A message or control frame from the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InboundFrame {
    /// One complete message, text or binary.
    Message(Bytes),
    /// A ping. The caller must answer it with a pong of the same payload.
    Ping(Bytes),
    Pong(Bytes),
}

/// Reads messages off a stream.
pub struct Receiver {
    framing: Framing,
    reader: Box<dyn AsyncRead + Send + Unpin>,
    /// Bytes that were read but not yet returned. A message is split off without a copy.
    buf: BytesMut,
    /// Earlier read buffers of a busy connection, oldest first, all empty. One is used again when its messages are dropped.
    retired: VecDeque<BytesMut>,
    /// Lines: number of bytes at the front of `buf` without an LF. Frames: number of payload bytes already unmasked.
    scanned: usize,
    /// Header of the frame that is being received. Its payload is at the front of `buf`, or in `pooled`.
    frame: Option<FrameHeader>,
    /// The payload of that frame, if it goes into a pooled buffer. Then `buf` is empty.
    pooled: Option<PooledBuffer>,
    /// Payload of the fragmented message so far.
    partial: Option<BytesMut>,
    /// Room for the next read. Doubles after a full read, halves after a small one.
    room: usize,
    /// Number of reads that returned. Shows that the peer is alive before a large message is complete.
    progress: Arc<AtomicU64>,
    /// The stream has ended or failed. Only the contents of `buf` may still be returned.
    ended: bool,
}

impl Receiver {
    /// Creates a receiver. `leftover` holds bytes that the handshake has read past its end.
    pub fn new(framing: Framing, reader: Box<dyn AsyncRead + Send + Unpin>, leftover: BytesMut) -> Self {
        Self {
            framing,
            reader,
            buf: leftover,
            retired: VecDeque::new(),
            scanned: 0,
            frame: None,
            pooled: None,
            partial: None,
            room: READ_MIN,
            progress: Arc::default(),
            ended: false,
        }
    }

    /// A counter that grows with every read that returned.
    pub fn progress(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.progress)
    }

    /// Returns the next message or control frame, or the reason why there is none. After a reason, always returns
    /// [`CloseReason::Eof`].
    ///
    /// Cancel safe: the only await is a read into the receiver's own buffer.
    pub async fn recv(&mut self) -> Result<InboundFrame, CloseReason> {
        let result = self.next().await;
        if result.is_err() {
            self.ended = true;
            self.discard();
        }
        result
    }

    /// Drops everything that was read but not yet returned.
    fn discard(&mut self) {
        self.buf = BytesMut::new();
        self.retired.clear();
        self.pooled = None;
        self.partial = None;
        self.frame = None;
        self.scanned = 0;
    }

    /// Returns the number of bytes that were read but not yet returned.
    pub fn buffered(&self) -> usize {
        let pooled = self.pooled.as_ref().map_or(0, |pooled| pooled.filled().len());
        self.buf.len() + pooled + self.partial.as_ref().map_or(0, BytesMut::len)
    }

    /// Drops everything that was read, then reads and discards until the peer has closed its side.
    pub async fn drain(&mut self) {
        self.discard();
        let mut sink = vec![0; READ_MIN];
        while !self.ended {
            self.ended = !matches!(self.reader.read(&mut sink).await, Ok(1..));
        }
    }

    async fn next(&mut self) -> Result<InboundFrame, CloseReason> {
        loop {
            let decoded = match self.framing {
                Framing::Lines { max } => self.line(max)?,
                Framing::WebSocket { role, max } => self.frame(role, max)?,
            };
            if let Some(inbound) = decoded {
                return Ok(inbound);
            }
            if self.ended {
                return Err(self.end());
            }
            match self.read().await {
                Ok(count) => {
                    self.progress.fetch_add(1, Ordering::Relaxed);
                    self.ended = count == 0;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {} // EINTR: read again.
                Err(error) => return Err(CloseReason::Io(error)),
            }
        }
    }

    /// Reads once. Called when no message is complete. Returns the number of bytes, zero at the end of the stream.
    async fn read(&mut self) -> io::Result<usize> {
        if let (Some(pooled), Some(header)) = (&mut self.pooled, &self.frame) {
            // Read only up to the end of the frame, so that the pooled buffer holds nothing else.
            let missing = header.len as usize - pooled.filled().len();
            let count = self.reader.read(&mut pooled.unfilled()[..missing]).await?;
            pooled.fill(count);
            return Ok(count);
        }
        let wanted = match (&self.framing, &self.frame) {
            // Buffer at most `LINES_HEAD` bytes more than `max`: a whole binary message needs that many. A line needs only two
            // more, because a CR after `max` bytes is allowed: the byte after it shows whether the line is too long.
            (Framing::Lines { max }, _) => (max.saturating_add(LINES_HEAD) - self.buf.len()).min(self.room),
            // If more than `room` bytes of the frame are missing, do not read beyond its end. Then the buffer of a large
            // frame holds little else, and `take` gives the buffer away with the message. The length fits a `usize`, because
            // `check_header` has compared it with `max`. Beyond `RESERVE_MAX`, reserve at most as much as has arrived: the
            // buffer then doubles, instead of being copied for each further 8 MiB.
            (Framing::WebSocket { .. }, Some(header)) => {
                (header.len as usize - self.buf.len()).clamp(self.room, RESERVE_MAX.max(self.buf.len()))
            }
            (Framing::WebSocket { .. }, None) => self.room,
        };
        let spare = self.buf.capacity() - self.buf.len();
        // Use the spare room of the buffer if that is enough for a read. Otherwise `make_room` makes room.
        let spare_min = if self.room == READ_MAX { READ_MAX / 2 } else { SPARE_MIN };
        let wanted = if spare >= wanted.min(spare_min) { spare.min(wanted) } else { wanted };
        self.make_room(wanted);
        let count = self.reader.read_buf(&mut (&mut self.buf).limit(wanted)).await?;
        if count >= self.room {
            self.room = (self.room * 2).min(READ_MAX);
        } else if wanted >= self.room && count < self.room / 4 {
            // Only a read that had this much room can show that less is enough.
            self.room = (self.room / 2).max(READ_MIN);
            self.retired.clear();
        }
        Ok(count)
    }

    /// Makes room for this many more bytes in `buf`.
    fn make_room(&mut self, wanted: usize) {
        let needed = self.buf.len() + wanted;
        let has_room = self.buf.capacity() >= needed;
        if has_room || wanted < READ_MAX || needed > BUSY_BYTES {
            return self.buf.reserve(wanted);
        }
        let oldest_is_free = self.retired.front_mut().is_some_and(|oldest| oldest.try_reclaim(needed));
        // If the messages of the oldest buffer still exist, so do those of the others, which were read later.
        let reused = if oldest_is_free || self.retired.len() >= RETIRED_MAX { self.retired.pop_front() } else { None };
        let mut next = reused.filter(|_| oldest_is_free).unwrap_or_else(|| BytesMut::with_capacity(BUSY_BYTES));
        next.extend_from_slice(&self.buf);
        let mut used = std::mem::replace(&mut self.buf, next);
        used.clear();
        self.retired.push_back(used);
    }

    fn end(&self) -> CloseReason {
        if self.frame.is_some() || self.partial.is_some() || !self.buf.is_empty() {
            return CloseReason::Io(io::ErrorKind::UnexpectedEof.into());
        }
        CloseReason::Eof
    }

    /// Returns the first `len` bytes. A large message takes its whole buffer with it.
    fn take(&mut self, len: usize) -> BytesMut {
        let taken = self.buf.split_to(len);
        self.scanned = 0;
        if len > READ_MAX {
            // The rest is less than one read. Copy it into a buffer of its own: in place it would keep the large allocation
            // alive, and later reads would go on using that one.
            self.buf = BytesMut::from(&self.buf[..]);
        }
        taken
    }

    /// Decodes a binary message of the `Lines` framing: `LINES_MARK`, its length in four bytes, and the message.
    fn binary_line(&mut self, max: usize) -> Result<Option<InboundFrame>, CloseReason> {
        let len = match *self.buf {
            [_, a, b, c, d, ..] => usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX),
            _ => return Ok(None),
        };
        if len > max {
            return Err(CloseReason::TooLarge { limit: max });
        }
        if self.buf.len() - LINES_HEAD < len {
            return Ok(None);
        }
        let mut message = self.take(LINES_HEAD + len);
        message.advance(LINES_HEAD);
        Ok(Some(InboundFrame::Message(message.freeze())))
    }

    fn line(&mut self, max: usize) -> Result<Option<InboundFrame>, CloseReason> {
        loop {
            if self.buf.first() == Some(&LINES_MARK) {
                return self.binary_line(max);
            }
            let line = match memchr::memchr(b'\n', &self.buf[self.scanned..]) {
                Some(at) => {
                    let mut line = self.take(self.scanned + at + 1);
                    line.truncate(line.len() - 1);
                    if line.last() == Some(&b'\r') {
                        line.truncate(line.len() - 1);
                    }
                    line
                }
                None if self.ended && !self.buf.is_empty() => self.take(self.buf.len()),
                None => {
                    self.scanned = self.buf.len();
                    let payload = self.buf.strip_suffix(b"\r").unwrap_or(&self.buf);
                    return if payload.len() > max { Err(CloseReason::TooLarge { limit: max }) } else { Ok(None) };
                }
            };
            if line.len() > max {
                return Err(CloseReason::TooLarge { limit: max });
            }
            let text = std::str::from_utf8(&line).map_err(|_| CloseReason::InvalidUtf8)?;
            if !text.trim().is_empty() {
                return Ok(Some(InboundFrame::Message(line.freeze())));
            }
        }
    }

    fn frame(&mut self, role: WebSocketRole, max: usize) -> Result<Option<InboundFrame>, CloseReason> {
        loop {
            let header = match self.frame {
                Some(header) => header,
                None => {
                    let Some((header, size)) = FrameHeader::decode(&self.buf, role).map_err(CloseReason::Protocol)?
                    else {
                        return Ok(None);
                    };
                    self.check_header(&header, max)?;
                    self.buf.advance(size);
                    if is_pooled(&header) && (self.buf.len() as u64) < header.len {
                        let mut pooled = PooledBuffer::with_room(BUFFER_BYTES);
                        pooled.unfilled()[..self.buf.len()].copy_from_slice(&self.buf);
                        pooled.fill(self.buf.len());
                        self.buf.clear();
                        self.pooled = Some(pooled);
                    }
                    *self.frame.insert(header)
                }
            };
            // The length fits: `check_header` has compared it with `max`; `decode` limits control frames to 125 bytes.
            let len = header.len as usize;
            if let Some(pooled) = &mut self.pooled {
                if let Some(mask) = header.mask {
                    frame::apply_mask(&mut pooled.filled_mut()[self.scanned..], mask, self.scanned);
                }
                self.scanned = pooled.filled().len();
                if self.scanned < len {
                    return Ok(None);
                }
                self.frame = None;
                self.scanned = 0;
                return Ok(self.pooled.take().map(|pooled| InboundFrame::Message(pooled.freeze())));
            }
            let arrived = self.buf.len().min(len);
            if let Some(mask) = header.mask {
                // Unmask bytes as they arrive, while they are in the CPU cache.
                frame::apply_mask(&mut self.buf[self.scanned..arrived], mask, self.scanned);
                self.scanned = arrived;
            }
            if arrived < len {
                return Ok(None);
            }
            self.frame = None;
            let payload = self.take(len);
            if let Some(inbound) = self.finish(&header, payload)? {
                return Ok(Some(inbound));
            }
        }
    }

    /// Checks a header against the message in progress, before memory for the payload is reserved.
    fn check_header(&self, header: &FrameHeader, max: usize) -> Result<(), CloseReason> {
        let before = match (header.opcode, &self.partial) {
            (Opcode::Continuation, None) => return Err(CloseReason::Protocol("continuation without a message")),
            (Opcode::Text | Opcode::Binary, Some(_)) => return Err(CloseReason::Protocol("message inside a message")),
            (Opcode::Continuation, Some(partial)) => partial.len(),
            (Opcode::Text | Opcode::Binary, None) => 0,
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => return Ok(()),
        };
        if header.len > (max - before) as u64 {
            return Err(CloseReason::TooLarge { limit: max });
        }
        Ok(())
    }

    fn finish(&mut self, header: &FrameHeader, payload: BytesMut) -> Result<Option<InboundFrame>, CloseReason> {
        match header.opcode {
            Opcode::Text | Opcode::Binary if header.fin => Ok(Some(InboundFrame::Message(payload.freeze()))),
            Opcode::Text | Opcode::Binary => {
                self.partial = Some(payload);
                Ok(None)
            }
            Opcode::Continuation => {
                let mut partial = self.partial.take().expect("a continuation was checked against the message");
                partial.extend_from_slice(&payload);
                if header.fin {
                    return Ok(Some(InboundFrame::Message(partial.freeze())));
                }
                self.partial = Some(partial);
                Ok(None)
            }
            Opcode::Ping => Ok(Some(InboundFrame::Ping(payload.freeze()))),
            Opcode::Pong => Ok(Some(InboundFrame::Pong(payload.freeze()))),
            Opcode::Close => Err(closed_by_peer(&payload)),
        }
    }
}

/// Whether a frame is a whole message that goes into a pooled buffer.
fn is_pooled(header: &FrameHeader) -> bool {
    header.opcode == Opcode::Binary && header.fin && (POOLED_MIN..=BUFFER_BYTES as u64).contains(&header.len)
}

fn closed_by_peer(payload: &[u8]) -> CloseReason {
    let (code, reason) = match payload {
        [] => return CloseReason::Peer { code: 1005, reason: String::new() },
        [_] => return CloseReason::Protocol("close frame of one byte"),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
    };
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return CloseReason::Protocol("close frame with a reserved code");
    }
    match std::str::from_utf8(reason) {
        Ok(reason) => CloseReason::Peer { code, reason: reason.to_owned() },
        Err(_) => CloseReason::Protocol("close reason is not UTF-8"),
    }
}
