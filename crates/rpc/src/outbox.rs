//! The send buffer of a connection: messages are encoded directly into it, framed in place and written from it.
//!
//! It holds the bytes that are encoded but not yet written, and the write position. The caller passes the stream to
//! [`Outbox::flush_to`]. The caller also bounds the size: it checks [`Outbox::len`] before it encodes more.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
};

use bytes::{Buf as _, Bytes};
use exec_server_protocol::limits::FRAME_OUT_BYTES;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::{
    Framing, LINES_HEAD, LINES_MARK, WebSocketRole,
    frame::{self, CONTROL_MAX, FrameHeader, HEADER_MAX, Opcode},
};

/// Capacity kept when everything is written: 256 KiB. Keeping more would hold the memory of one large message forever.
const KEEP_BYTES: usize = 256 * 1024;

/// Capacity kept after more than `KEEP_BYTES` were written, because more may follow: one batch, plus the block that
/// exceeds it.
const KEEP_BUSY_BYTES: usize = 1024 * 1024;

/// From 64 KiB on, an encoded text message of a server is not copied into the buffer.
const LARGE: usize = 64 * 1024;

/// Bytes masked in one step: 16 KiB, which fits into the L1 cache.
const MASK_BYTES: usize = 16 * 1024;

/// Maximum number of slices in one vectored write. Inserts that do not fit are sent by the next write.
const SLICES: usize = 16;

/// Longest reason of a close frame: the largest control payload minus the two bytes of the code.
const REASON_MAX: usize = CONTROL_MAX - 2;

/// Encoded and framed bytes that wait to be written to the stream.
#[derive(Debug)]
pub struct Outbox {
    framing: Framing,
    /// Framed bytes. Those below `sent` are written. Cleared when everything is written.
    buf: Vec<u8>,
    sent: usize,
    /// Bytes to send between the bytes of `buf`, in order, without moving either: headers of second and later
    /// fragments, and bytes attached to a message.
    inserts: VecDeque<OutboxInsert>,
    /// A close frame was queued. Nothing may follow it.
    closing: bool,
    keys: MaskKeys,
}

#[derive(Debug)]
struct OutboxInsert {
    /// Index in `buf` before which the bytes are sent.
    at: usize,
    /// The bytes that are not yet written.
    bytes: Bytes,
}

/// An encoded message.
#[derive(Debug, Default)]
pub struct EncodedMessage {
    /// The whole message, or the part before the attached bytes.
    pub head: Vec<u8>,
    /// The rest of a message that is sent as binary, not as text.
    pub attached: Option<Bytes>,
}

impl EncodedMessage {
    /// A text message without attached bytes.
    #[must_use]
    pub fn text(head: Vec<u8>) -> Self {
        Self { head, attached: None }
    }
}

impl Outbox {
    pub fn new(framing: Framing) -> Self {
        Self { framing, buf: Vec::new(), sent: 0, inserts: VecDeque::new(), closing: false, keys: MaskKeys::default() }
    }

    /// Creates an empty outbox that uses the mask key zero, so that attached bytes are sent without a copy.
    ///
    /// A mask key does not hide anything. It prevents a proxy between the two ends from mistaking payload bytes that an
    /// attacker chose for a request to the proxy. On a private connection there cannot be such a proxy.
    pub fn unmasked(framing: Framing) -> Self {
        Self { keys: MaskKeys { is_zero: true, left: Vec::new() }, ..Self::new(framing) }
    }

    /// Encodes one message in place.
    ///
    /// `hint` is the expected size in bytes. It determines the room reserved for the header. If the header needs
    /// another size, the message is moved once. `write` must only append, and must not write an LF in the `Lines`
    /// framing. A message over 8 MiB is sent as several frames. After [`Outbox::close`], nothing is queued and `write`
    /// is not called.
    pub fn message(&mut self, hint: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.encode(Opcode::Text, hint, write);
    }

    /// Queues an encoded message. A message with attached bytes is sent as binary.
    pub fn encoded(&mut self, message: EncodedMessage) {
        let EncodedMessage { head, attached } = message;
        match (attached, self.framing) {
            (None, Framing::WebSocket { role: WebSocketRole::Server, .. })
                if (LARGE..=FRAME_OUT_BYTES).contains(&head.len()) =>
            {
                let is_masked = false; // A server never masks.
                self.frame_with_bytes(Opcode::Text, is_masked, &[], head.into());
            }
            (None, _) => self.encode(Opcode::Text, head.len(), |buf| buf.extend_from_slice(&head)),
            (Some(attached), Framing::WebSocket { role, .. }) if head.len() + attached.len() <= FRAME_OUT_BYTES => {
                self.frame_with_bytes(Opcode::Binary, role == WebSocketRole::Client, &head, attached);
            }
            (Some(attached), _) => self.binary(&head, &attached),
        }
    }

    /// Queues a binary message from two parts, with one copy of each.
    ///
    /// In the `Lines` framing it is sent after a mark and its length, because it may contain an LF.
    pub fn binary(&mut self, head: &[u8], bytes: &[u8]) {
        let total = head.len() + bytes.len();
        self.encode(Opcode::Binary, total, |buf| {
            buf.extend_from_slice(head);
            buf.extend_from_slice(bytes);
        });
    }

    /// Queues one frame. Attached bytes are sent without a copy if the frame has no mask, or the mask key zero.
    fn frame_with_bytes(&mut self, opcode: Opcode, masked: bool, head: &[u8], attached: Bytes) {
        if self.closing {
            return;
        }
        self.compact();
        let total = head.len() + attached.len();
        let (bytes, size, mask) = self.header(opcode, total, true, masked);
        let mask = mask.filter(|mask| *mask != frame::NO_MASK);
        self.buf.reserve(size + if mask.is_some() { total } else { head.len() });
        self.buf.extend_from_slice(&bytes[..size]);
        let Some(mask) = mask else {
            self.buf.extend_from_slice(head);
            if !attached.is_empty() {
                self.inserts.push_back(OutboxInsert { at: self.buf.len(), bytes: attached });
            }
            return;
        };
        let mut offset = 0;
        for chunk in head.chunks(MASK_BYTES).chain(attached.chunks(MASK_BYTES)) {
            let at = self.buf.len();
            self.buf.extend_from_slice(chunk);
            frame::apply_mask(&mut self.buf[at..], mask, offset);
            offset += chunk.len();
        }
    }

    fn encode(&mut self, opcode: Opcode, hint: usize, write: impl FnOnce(&mut Vec<u8>)) {
        if self.closing {
            return;
        }
        self.compact();
        match self.framing {
            Framing::Lines { .. } if opcode == Opcode::Binary => {
                let start = self.buf.len();
                self.buf.reserve(LINES_HEAD + hint);
                self.buf.extend_from_slice(&[LINES_MARK, 0, 0, 0, 0]);
                write(&mut self.buf);
                let len = u32::try_from(self.buf.len() - start - LINES_HEAD).expect("a message has less than 4 GiB");
                self.buf[start + 1..start + LINES_HEAD].copy_from_slice(&len.to_le_bytes());
            }
            Framing::Lines { .. } => {
                let start = self.buf.len();
                self.buf.reserve(hint + 1);
                write(&mut self.buf);
                debug_assert!(
                    memchr::memchr(b'\n', &self.buf[start..]).is_none(),
                    "a message in the `Lines` framing contains no LF"
                );
                self.buf.push(b'\n');
            }
            Framing::WebSocket { role, .. } => self.frames(opcode, role == WebSocketRole::Client, hint, write),
        }
    }

    /// Queues a ping. Does nothing in the `Lines` framing. At most 125 bytes of `payload` are sent.
    pub fn ping(&mut self, payload: &[u8]) {
        self.control(Opcode::Ping, &payload[..payload.len().min(CONTROL_MAX)]);
    }

    /// Queues a pong. Does nothing in the `Lines` framing. At most 125 bytes of `payload` are sent.
    pub fn pong(&mut self, payload: &[u8]) {
        self.control(Opcode::Pong, &payload[..payload.len().min(CONTROL_MAX)]);
    }

    /// Queues a close frame and ignores everything queued after it. The `Lines` framing has no close frame.
    ///
    /// A reason longer than 123 bytes is truncated at a character boundary.
    pub fn close(&mut self, code: u16, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(REASON_MAX)];
        let mut payload = Vec::with_capacity(CONTROL_MAX);
        payload.extend_from_slice(&code.to_be_bytes());
        payload.extend_from_slice(reason.as_bytes());
        self.control(Opcode::Close, &payload);
        self.closing = true;
    }

    /// Returns the number of bytes that are encoded and not yet written.
    pub fn len(&self) -> usize {
        self.buf.len() - self.sent + self.inserts.iter().map(|insert| insert.bytes.len()).sum::<usize>()
    }

    /// Whether everything is written.
    pub fn is_empty(&self) -> bool {
        self.sent == self.buf.len() && self.inserts.is_empty()
    }

    /// Returns the capacity of the buffer in bytes, for memory accounting.
    pub fn capacity(&self) -> usize {
        self.buf.capacity()
    }

    /// Writes everything that is queued and flushes the stream.
    ///
    /// Cancel safe: the bytes that the stream accepted are recorded before the next await, so a later call continues at
    /// that byte.
    pub async fn flush_to(&mut self, w: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        while !self.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = self.next_slices(&mut slices);
            let count = match w.write_vectored(&slices[..filled]).await {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.advance(count);
        }
        w.flush().await
    }

    /// Collects the next bytes to write as slices. Returns the number of slices, zero only if the outbox is empty.
    fn next_slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let (mut filled, mut at) = (0, self.sent);
        let mut put = |bytes: &'a [u8]| {
            if !bytes.is_empty() && filled < SLICES {
                slices[filled] = IoSlice::new(bytes);
                filled += 1;
            }
        };
        for insert in self.inserts.iter().take(SLICES) {
            put(&self.buf[at..insert.at]);
            put(&insert.bytes);
            at = insert.at;
        }
        // If there are more inserts than slices, the rest of `buf` comes after inserts that are not in this write.
        if self.inserts.len() <= SLICES {
            put(&self.buf[at..]);
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            // Bytes of `buf` before the next insert.
            let plain = self.inserts.front().map_or(self.buf.len(), |insert| insert.at) - self.sent;
            if plain > 0 {
                let step = plain.min(count);
                self.sent += step;
                count -= step;
            } else if let Some(insert) = self.inserts.front_mut() {
                let step = insert.bytes.len().min(count);
                insert.bytes.advance(step);
                count -= step;
                if insert.bytes.is_empty() {
                    self.inserts.pop_front();
                }
            } else {
                debug_assert!(false, "a stream accepts at most the bytes that it was given");
                break;
            }
        }
        if self.is_empty() {
            let kept = if self.buf.len() > KEEP_BYTES { KEEP_BUSY_BYTES } else { KEEP_BYTES };
            self.sent = 0;
            self.buf.clear();
            self.buf.shrink_to(kept);
        }
    }

    /// Reclaims the written part when it is large and at least half of the buffer, so that an outbox that never becomes
    /// empty stays bounded.
    fn compact(&mut self) {
        if self.sent >= KEEP_BYTES && self.sent >= self.buf.len() / 2 {
            self.buf.drain(..self.sent);
            for insert in &mut self.inserts {
                insert.at -= self.sent;
            }
            self.sent = 0;
        }
    }

    fn frames(&mut self, opcode: Opcode, masked: bool, hint: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buf.len();
        let guess = FrameHeader::size_for(hint, masked);
        self.buf.reserve(guess + hint);
        self.buf.resize(start + guess, 0);
        write(&mut self.buf);
        let total = self.buf.len().checked_sub(start + guess).expect("`write` only appends");

        let first = total.min(FRAME_OUT_BYTES);
        let (bytes, size, mask) = self.header(opcode, first, first == total, masked);
        if size > guess {
            self.buf.splice(start..start, std::iter::repeat_n(0, size - guess));
        } else if size < guess {
            self.buf.drain(start..start + guess - size);
        }
        self.buf[start..start + size].copy_from_slice(&bytes[..size]);

        let mut at = start + size;
        self.mask(at, first, mask);
        at += first;
        while at < self.buf.len() {
            let len = (self.buf.len() - at).min(FRAME_OUT_BYTES);
            let (bytes, size, mask) = self.header(Opcode::Continuation, len, at + len == self.buf.len(), masked);
            self.inserts.push_back(OutboxInsert { at, bytes: Bytes::copy_from_slice(&bytes[..size]) });
            self.mask(at, len, mask);
            at += len;
        }
    }

    fn control(&mut self, opcode: Opcode, payload: &[u8]) {
        let Framing::WebSocket { role, .. } = self.framing else { return };
        if self.closing {
            return;
        }
        self.compact();
        let (bytes, size, mask) = self.header(opcode, payload.len(), true, role == WebSocketRole::Client);
        self.buf.extend_from_slice(&bytes[..size]);
        let at = self.buf.len();
        self.buf.extend_from_slice(payload);
        self.mask(at, payload.len(), mask);
    }

    fn header(
        &mut self,
        opcode: Opcode,
        len: usize,
        fin: bool,
        masked: bool,
    ) -> ([u8; HEADER_MAX], usize, Option<[u8; 4]>) {
        let mask = masked.then(|| self.keys.next());
        let (bytes, size) = FrameHeader { fin, opcode, mask, len: len as u64 }.encode();
        (bytes, size, mask)
    }

    fn mask(&mut self, at: usize, len: usize, mask: Option<[u8; 4]>) {
        if let Some(mask) = mask {
            frame::apply_mask(&mut self.buf[at..at + len], mask, 0);
        }
    }
}

/// Unpredictable mask keys, fetched 64 at a time: one system call per frame would cost more than the frame.
#[derive(Debug, Default)]
struct MaskKeys {
    /// All keys are zero.
    is_zero: bool,
    left: Vec<[u8; 4]>,
}

impl MaskKeys {
    fn next(&mut self) -> [u8; 4] {
        if self.is_zero {
            return frame::NO_MASK;
        }
        if let Some(key) = self.left.pop() {
            return key;
        }
        let mut bytes = [0; 256];
        getrandom::fill(&mut bytes).expect("the kernel provides random bytes");
        let (keys, _) = bytes.as_chunks::<4>();
        self.left.extend_from_slice(keys);
        self.left.pop().expect("64 keys were just fetched")
    }
}
