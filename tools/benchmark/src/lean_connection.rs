//! A minimal connection, so that the client's own cost is small: blocking reads into one buffer, frames parsed in place, no copy of a
//! payload.
//!
//! Implements the upgrade, both kinds of framing and the two buffers; `lean_client.rs` interprets the messages. Written from RFC 6455 and
//! PROTOCOL.md without code of our crates, like everything in the tools.

use std::{
    net::TcpStream,
    ops::Range,
    os::{fd::AsFd, unix::net::UnixStream},
    process::{ChildStdin, ChildStdout},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
};

use crate::prelude::*;

/// The size of one read. A larger message grows the buffer.
pub(super) const BUFFER: usize = 256 << 10;

/// Longer than anything the server may take; a longer wait is a hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// Queued bytes beyond this are written at once, even if nothing is awaited.
const GATHER: usize = 256 << 10;

/// The largest message accepted. A block of 1 MiB in base64 is far smaller, so a larger message is a defect of the server.
const MESSAGE_MAX: usize = 100 << 20;

/// The example key of RFC 6455, section 1.3, and its answer.
const KEY: (&str, &str) = ("dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");

/// Any mask will do on loopback; the server has to unmask it in any case.
const MASK: [u8; 4] = [0x5a, 0xa5, 0x3c, 0xc3];

/// First byte of a binary message in newline framing, before its length.
const BYTES_ON_LINES: u8 = 0xc0;

/// How messages are delimited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    WebSocket,
    Lines,
}

/// Text or binary message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MessageKind {
    Text,
    Bytes,
}

/// One connection.
pub(super) struct BenchConnection {
    reader: OwnedFd,
    writer: OwnedFd,
    framing: Framing,
    /// The read buffer: bytes before `start` were consumed, bytes from `end` on are free.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The range of the last message in `buffer`.
    message: Range<usize>,
    /// Framed bytes that are not written yet. They are written before waiting for the next message.
    out: Vec<u8>,
}

impl BenchConnection {
    /// Connects to `ws://HOST:PORT/…` or `unix:///path` and upgrades.
    pub(super) fn connect(url: &str) -> Result<Self> {
        if let Some(rest) = url.strip_prefix("unix://") {
            let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
            let socket = UnixStream::connect(path).with_context(|| format!("connect to `{path}`"))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            let target = query.map_or_else(|| "/".to_owned(), |query| format!("/?{query}"));
            return Self::new(socket.try_clone()?, socket, Framing::WebSocket).upgrade("localhost", &target);
        }
        let rest = url.strip_prefix("ws://").with_context(|| format!("neither ws:// nor unix://: `{url}`"))?;
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, target) = rest.split_at(at);
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let socket = TcpStream::connect(host).with_context(|| format!("connect to `{host}`"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Self::new(socket.try_clone()?, socket, Framing::WebSocket).upgrade(host, &target)
    }

    /// Uses newline framing with a program.
    pub(super) fn piped(stdin: ChildStdin, stdout: ChildStdout) -> Self {
        Self::new(stdout, stdin, Framing::Lines)
    }

    /// Uses newline framing over a socket.
    #[cfg(test)]
    pub(super) fn lines(socket: UnixStream) -> Self {
        Self::new(socket.try_clone().expect("a descriptor is free"), socket, Framing::Lines)
    }

    fn new(reader: impl Into<OwnedFd>, writer: impl Into<OwnedFd>, framing: Framing) -> Self {
        Self {
            reader: reader.into(),
            writer: writer.into(),
            framing,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            message: 0..0,
            out: Vec::with_capacity(GATHER),
        }
    }

    fn upgrade(mut self, host: &str, target: &str) -> Result<Self> {
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n\r\n",
            KEY.0
        );
        self.out.extend_from_slice(request.as_bytes());
        loop {
            let head = &self.buffer[..self.end];
            if let Some(at) = memchr::memmem::find(head, b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&head[..at]);
                ensure!(text.starts_with("HTTP/1.1 101"), "no upgrade: `{}`", text.lines().next().unwrap_or_default());
                ensure!(text.contains(KEY.1), "the upgrade is for another key");
                self.start = at + 4;
                return Ok(self);
            }
            ensure!(self.end < BUFFER, "the head of the answer does not end");
            self.fill(1)?;
        }
    }

    /// Queues a message; it is sent before the next wait, or by `flush`.
    pub(super) fn queue(&mut self, kind: MessageKind, parts: &[&[u8]]) -> Result<()> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        match self.framing {
            Framing::WebSocket => self.frame(kind, length, parts),
            Framing::Lines => {
                if kind == MessageKind::Bytes {
                    self.out.push(BYTES_ON_LINES);
                    self.out.extend_from_slice(&u32::try_from(length)?.to_le_bytes());
                }
                parts.iter().for_each(|part| self.out.extend_from_slice(part));
                if kind == MessageKind::Text {
                    self.out.push(b'\n');
                }
            }
        }
        if self.out.len() >= GATHER { self.flush() } else { Ok(()) }
    }

    fn frame(&mut self, kind: MessageKind, length: usize, parts: &[&[u8]]) {
        self.out.push(if kind == MessageKind::Text { 0x81 } else { 0x82 });
        match length {
            0..126 => self.out.push(0x80 | length as u8),
            126..0x1_0000 => {
                self.out.push(0xfe);
                self.out.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                self.out.push(0xff);
                self.out.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        self.out.extend_from_slice(&MASK);
        let from = self.out.len();
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
        mask(&mut self.out[from..]);
    }

    /// Writes everything that is queued.
    pub(super) fn flush(&mut self) -> Result<()> {
        let mut written = 0;
        while written < self.out.len() {
            match rustix::io::write(&self.writer, &self.out[written..]) {
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("write to the server"),
            }
        }
        self.out.clear();
        Ok(())
    }

    /// Waits for the next message; `message` returns it until the next call.
    pub(super) fn next(&mut self) -> Result<MessageKind> {
        match self.framing {
            Framing::WebSocket => self.next_frame(),
            Framing::Lines => self.next_line(),
        }
    }

    /// The last message.
    pub(super) fn message(&self) -> &[u8] {
        &self.buffer[self.message.clone()]
    }

    fn next_frame(&mut self) -> Result<MessageKind> {
        loop {
            self.at_least(2)?;
            let (first, second) = (self.buffer[self.start], self.buffer[self.start + 1]);
            ensure!(second & 0x80 == 0, "a frame of the server is masked");
            let head = match second {
                127 => 10,
                126 => 4,
                _ => 2,
            };
            self.at_least(head)?;
            let wide = &self.buffer[self.start + 2..self.start + head];
            let length = match wide.len() {
                0 => u64::from(second),
                _ => wide.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
            };
            let length = usize::try_from(length)?;
            ensure!(length <= MESSAGE_MAX, "a frame of {length} bytes");
            self.at_least(head + length)?;
            self.message = self.start + head..self.start + head + length;
            self.start = self.message.end;
            match first {
                0x81 => return Ok(MessageKind::Text),
                0x82 => return Ok(MessageKind::Bytes),
                0x89 => {
                    let ping = self.message().to_vec();
                    self.frame(MessageKind::Bytes, ping.len(), &[&ping]);
                    let at = self.out.len() - ping.len() - 6;
                    self.out[at] = 0x8a;
                }
                0x8a => {}
                0x88 => bail!("closed by the server: {}", String::from_utf8_lossy(self.message())),
                other => bail!("a frame that begins with {other:#x}"),
            }
        }
    }

    fn next_line(&mut self) -> Result<MessageKind> {
        self.at_least(1)?;
        if self.buffer[self.start] == BYTES_ON_LINES {
            self.at_least(5)?;
            let length = self.buffer[self.start + 1..self.start + 5].try_into()?;
            let length = u32::from_le_bytes(length) as usize;
            ensure!(length <= MESSAGE_MAX, "a message of {length} bytes");
            self.at_least(5 + length)?;
            self.message = self.start + 5..self.start + 5 + length;
            self.start = self.message.end;
            return Ok(MessageKind::Bytes);
        }
        let mut scanned = 0;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.start + scanned..self.end]) {
                self.message = self.start..self.start + scanned + at;
                self.start = self.message.end + 1;
                return Ok(MessageKind::Text);
            }
            scanned = self.end - self.start;
            ensure!(scanned <= MESSAGE_MAX, "a line without an end");
            self.at_least(scanned + 1)?;
        }
    }

    /// Reads until `count` bytes are available from `start` on.
    fn at_least(&mut self, count: usize) -> Result<()> {
        while self.end - self.start < count {
            self.fill(count)?;
        }
        Ok(())
    }

    /// Reads once, with room for `count` bytes from `start` on. If necessary, an incomplete message is moved to the front: at most once per
    /// buffer, and less than one message.
    fn fill(&mut self, count: usize) -> Result<()> {
        if !self.out.is_empty() {
            self.flush()?;
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start + count > self.buffer.len() || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.buffer.len() || count > self.buffer.len() {
                self.buffer.resize(count.max(self.buffer.len() * 2), 0);
            }
        }
        if self.framing == Framing::Lines {
            // A pipe has no read timeout, so poll first.
            wait_readable(&self.reader)?;
        }
        let count = match rustix::io::read(&self.reader, &mut self.buffer[self.end..]) {
            Err(Errno::INTR) => return Ok(()),
            Err(Errno::AGAIN) => bail!("nothing heard for {} s", PATIENCE.as_secs()),
            other => other.context("read from the server")?,
        };
        ensure!(count > 0, "the server closed the connection");
        self.end += count;
        Ok(())
    }
}

/// Waits until the fd is readable; fails after a timeout.
pub(super) fn wait_readable(fd: impl AsFd) -> Result<()> {
    let timeout = Timespec { tv_sec: PATIENCE.as_secs().try_into()?, tv_nsec: 0 };
    loop {
        match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => bail!("nothing heard for {} s", PATIENCE.as_secs()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("wait for something to read"),
        }
    }
}

fn mask(bytes: &mut [u8]) {
    let word = u64::from_ne_bytes([MASK, MASK].concat().try_into().expect("twice four bytes"));
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for bytes in words {
        *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(MASK.iter().cycle()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link whose peer writes these bytes in odd-sized pieces and closes.
    fn connection_with(framing: Framing, bytes: &[u8]) -> BenchConnection {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let bytes = bytes.to_vec();
        std::thread::spawn(move || {
            for piece in bytes.chunks(100_003) {
                std::io::Write::write_all(&mut &theirs, piece).unwrap();
            }
        });
        BenchConnection::new(ours.try_clone().unwrap(), ours, framing)
    }

    #[test]
    fn frames_of_every_size_are_read_in_place() {
        let mut wire = Vec::new();
        for size in [5_usize, 200, 70_000, 600_000, 7] {
            wire.push(0x82);
            match size {
                0..126 => wire.push(size as u8),
                126..65_536 => {
                    wire.push(126);
                    wire.extend((size as u16).to_be_bytes());
                }
                _ => {
                    wire.push(127);
                    wire.extend((size as u64).to_be_bytes());
                }
            }
            wire.extend(std::iter::repeat_n(size as u8, size));
        }
        let mut link = connection_with(Framing::WebSocket, &wire);
        for size in [5_usize, 200, 70_000, 600_000, 7] {
            assert_eq!(link.next().unwrap(), MessageKind::Bytes);
            assert_eq!(link.message().len(), size);
            assert!(link.message().iter().all(|byte| *byte == size as u8));
        }
        assert!(link.next().is_err());
    }

    #[test]
    fn lines_and_binary_messages_are_distinguished() {
        let wire = [b"one\n".to_vec(), vec![0xc0, 3, 0, 0, 0, b'\n', 1, 2], b"two\n".to_vec()].concat();
        let mut link = connection_with(Framing::Lines, &wire);
        let expected: [(MessageKind, &[u8]); 3] =
            [(MessageKind::Text, b"one"), (MessageKind::Bytes, b"\n\x01\x02"), (MessageKind::Text, b"two")];
        for (kind, bytes) in expected {
            assert_eq!((link.next().unwrap(), link.message()), (kind, bytes));
        }
    }

    #[test]
    fn masking_twice_restores_the_bytes() {
        let mut bytes: Vec<u8> = (0..=100).collect();
        mask(&mut bytes);
        assert_eq!(bytes[0], 0x5a);
        assert_eq!(bytes[5], 5 ^ 0xa5);
        mask(&mut bytes);
        assert!(bytes.iter().enumerate().all(|(at, byte)| at == usize::from(*byte)));
    }
}
