//! The send buffer of a connection: messages are encoded straight into it, framed in place and written from it.
//!
//! Owns what was encoded and not yet written, and how far the writing came. Knows no stream: the caller passes one to
//! [`Outbox::flush_to`]. The bound on its size is the caller's, who looks at [`Outbox::len`] before encoding more.

use std::{collections::VecDeque, io};

use exec_server_protocol::message;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::{
    Framing, Role,
    frame::{self, CONTROL_MAX, HEADER_MAX, Header, Opcode},
};

/// Largest frame sent: 8 MiB, since a reference peer drops the connection at a frame above 16 MiB.
const FRAME_MAX: usize = 8 * 1024 * 1024;

/// Capacity kept when everything is written: 256 KiB. More would hold the memory of one large message for ever.
const KEEP_BYTES: usize = 256 * 1024;

/// Longest reason of a close frame: a control payload less the two bytes of the code.
const REASON_MAX: usize = CONTROL_MAX - 2;

/// Encoded and framed bytes that wait for the stream.
#[derive(Debug)]
pub struct Outbox {
    framing: Framing,
    /// Framed bytes; those below `sent` are written. Grows by encoding, is emptied when all is written.
    buf: Vec<u8>,
    sent: usize,
    /// Headers of second and later fragments, in order: they leave before the byte of `buf` they point at, so that a
    /// large message is fragmented without being moved.
    cuts: VecDeque<Cut>,
    /// A close frame was queued: nothing may follow it.
    closing: bool,
    keys: MaskKeys,
}

#[derive(Debug)]
struct Cut {
    /// Index into `buf` before which the header leaves.
    at: usize,
    bytes: [u8; HEADER_MAX],
    size: usize,
    sent: usize,
}

impl Outbox {
    /// Makes an empty outbox.
    pub fn new(framing: Framing) -> Self {
        Self { framing, buf: Vec::new(), sent: 0, cuts: VecDeque::new(), closing: false, keys: MaskKeys::default() }
    }

    /// Encodes one message in place.
    ///
    /// `hint` is the expected size in bytes: it decides the room left for the header, and a wrong guess of its size
    /// class costs one move of the message. `write` must only append, and on lines must write no LF. A message over
    /// 8 MiB leaves as several frames. After [`Outbox::close`] nothing is queued and `write` is not called.
    pub fn message(&mut self, hint: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.encode(Opcode::Text, hint, write);
    }

    /// Queues a message that is encoded already, as bytes where it has some attached.
    pub fn encoded(&mut self, message: &[u8]) {
        let opcode = if message::is_attached(message) { Opcode::Binary } else { Opcode::Text };
        self.encode(opcode, message.len(), |buf| buf.extend_from_slice(message));
    }

    fn encode(&mut self, opcode: Opcode, hint: usize, write: impl FnOnce(&mut Vec<u8>)) {
        if self.closing {
            return;
        }
        self.compact();
        match self.framing {
            Framing::Lines { .. } => {
                let start = self.buf.len();
                self.buf.reserve(hint + 1);
                write(&mut self.buf);
                debug_assert!(memchr::memchr(b'\n', &self.buf[start..]).is_none(), "a message on lines holds no LF");
                self.buf.push(b'\n');
            }
            Framing::WebSocket { role, .. } => self.frames(opcode, role == Role::Client, hint, write),
        }
    }

    /// Queues a ping; does nothing on lines. At most 125 bytes of `payload` are sent.
    pub fn ping(&mut self, payload: &[u8]) {
        self.control(Opcode::Ping, &payload[..payload.len().min(CONTROL_MAX)]);
    }

    /// Queues a pong; does nothing on lines. At most 125 bytes of `payload` are sent.
    pub fn pong(&mut self, payload: &[u8]) {
        self.control(Opcode::Pong, &payload[..payload.len().min(CONTROL_MAX)]);
    }

    /// Queues a close frame, after which nothing more is queued; on lines only the latter.
    ///
    /// A reason longer than 123 bytes is cut at a character boundary.
    pub fn close(&mut self, code: u16, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(REASON_MAX)];
        let mut payload = Vec::with_capacity(CONTROL_MAX);
        payload.extend_from_slice(&code.to_be_bytes());
        payload.extend_from_slice(reason.as_bytes());
        self.control(Opcode::Close, &payload);
        self.closing = true;
    }

    /// Returns the bytes that are encoded and not yet written.
    pub fn len(&self) -> usize {
        self.buf.len() - self.sent + self.cuts.iter().map(|cut| cut.size - cut.sent).sum::<usize>()
    }

    /// Tells whether everything is written.
    pub fn is_empty(&self) -> bool {
        self.sent == self.buf.len() && self.cuts.is_empty()
    }

    /// Returns the capacity of the buffer in bytes, for memory accounting.
    pub fn capacity(&self) -> usize {
        self.buf.capacity()
    }

    /// Writes everything queued and flushes the stream.
    ///
    /// Cancel safe: what the stream took is recorded before the next await, so a later call goes on at that byte.
    pub async fn flush_to(&mut self, w: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        while !self.is_empty() {
            let count = match w.write(self.next_slice()).await {
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

    /// Returns the bytes that leave next, never empty unless the outbox is.
    fn next_slice(&self) -> &[u8] {
        match self.cuts.front() {
            Some(cut) if cut.at == self.sent => &cut.bytes[cut.sent..cut.size],
            Some(cut) => &self.buf[self.sent..cut.at],
            None => &self.buf[self.sent..],
        }
    }

    fn advance(&mut self, count: usize) {
        match self.cuts.front_mut() {
            Some(cut) if cut.at == self.sent => {
                cut.sent += count;
                if cut.sent == cut.size {
                    self.cuts.pop_front();
                }
            }
            Some(_) | None => self.sent += count,
        }
        if self.is_empty() {
            self.sent = 0;
            self.buf.clear();
            self.buf.shrink_to(KEEP_BYTES);
        }
    }

    /// Reclaims the written part once it is the larger one, so that an outbox that never runs empty stays bounded.
    fn compact(&mut self) {
        if self.sent >= KEEP_BYTES && self.sent >= self.buf.len() / 2 {
            self.buf.drain(..self.sent);
            for cut in &mut self.cuts {
                cut.at -= self.sent;
            }
            self.sent = 0;
        }
    }

    fn frames(&mut self, opcode: Opcode, masked: bool, hint: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buf.len();
        let guess = Header::size_for(hint, masked);
        self.buf.reserve(guess + hint);
        self.buf.resize(start + guess, 0);
        write(&mut self.buf);
        let total = self.buf.len().checked_sub(start + guess).expect("`write` only appends");

        let first = total.min(FRAME_MAX);
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
            let len = (self.buf.len() - at).min(FRAME_MAX);
            let (bytes, size, mask) = self.header(Opcode::Continuation, len, at + len == self.buf.len(), masked);
            self.cuts.push_back(Cut { at, bytes, size, sent: 0 });
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
        let (bytes, size, mask) = self.header(opcode, payload.len(), true, role == Role::Client);
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
        let (bytes, size) = Header { fin, opcode, mask, len: len as u64 }.encode();
        (bytes, size, mask)
    }

    fn mask(&mut self, at: usize, len: usize, mask: Option<[u8; 4]>) {
        if let Some(mask) = mask {
            frame::apply_mask(&mut self.buf[at..at + len], mask, 0);
        }
    }
}

/// Unpredictable mask keys, fetched 64 at a time: a system call for each frame would cost more than the frame.
#[derive(Debug, Default)]
struct MaskKeys {
    left: Vec<[u8; 4]>,
}

impl MaskKeys {
    fn next(&mut self) -> [u8; 4] {
        if let Some(key) = self.left.pop() {
            return key;
        }
        let mut bytes = [0; 256];
        getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
        let (keys, _) = bytes.as_chunks::<4>();
        self.left.extend_from_slice(keys);
        self.left.pop().expect("64 keys were just fetched")
    }
}
