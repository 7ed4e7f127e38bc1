//! A WebSocket connection written by hand, byte by byte, for frames that no library would send.

use crate::prelude::*;

/// A connection after the upgrade.
pub(crate) struct Raw {
    pub(crate) socket: TcpStream,
    /// The head of the answer.
    pub(crate) head: String,
}

impl Raw {
    pub(crate) fn open(server: &TestServer, more: &str) -> Self {
        let mut socket = TcpStream::connect(server.address()).expect("connect");
        socket.set_read_timeout(Some(DEADLINE)).expect("set a deadline");
        socket.set_write_timeout(Some(DEADLINE)).expect("set a deadline");
        let target = format!("/?token={}", server.token());
        socket.write_all(upgrade(&target, server.address(), more).as_bytes()).expect("send");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        Self { socket, head }
    }

    /// Sends a frame header that announces `len` bytes, with a zero mask. `first` has FIN, reserved bits and opcode.
    pub(crate) fn header(&mut self, first: u8, len: u64) -> bool {
        self.socket.write_all(&header(first, len)).is_ok()
    }

    /// Sends a whole frame; returns false if the server has closed the connection.
    pub(crate) fn frame(&mut self, first: u8, payload: &[u8]) -> bool {
        let mut bytes = header(first, payload.len() as u64);
        bytes.extend_from_slice(payload);
        self.socket.write_all(&bytes).is_ok()
    }

    /// Reads frames until the next text or close, and skips all others.
    pub(crate) fn next(&mut self) -> Said {
        // Pings keep arriving, so the read timeout alone would not end this loop.
        let end = Instant::now() + DEADLINE;
        loop {
            assert!(Instant::now() < end, "nothing but pings");
            let mut two = [0; 2];
            if self.socket.read_exact(&mut two).is_err() {
                return Said::Gone;
            }
            let len = match two[1] & 0x7f {
                126 => {
                    let mut bytes = [0; 2];
                    self.socket.read_exact(&mut bytes).expect("a length");
                    usize::from(u16::from_be_bytes(bytes))
                }
                127 => panic!("no answer here is so long"),
                short => usize::from(short),
            };
            let mut payload = vec![0; len];
            if self.socket.read_exact(&mut payload).is_err() {
                return Said::Gone;
            }
            match two[0] & 0x0f {
                1 => return Said::Text(String::from_utf8_lossy(&payload).into_owned()),
                8 => return Said::Close(u16::from_be_bytes([payload[0], payload[1]])),
                _ => {}
            }
        }
    }
}

/// A message from the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Text(String),
    Close(u16),
    /// The server closed or reset the connection without a message.
    Gone,
}

/// A masked frame header. With a zero mask the payload is unchanged.
pub(crate) fn header(first: u8, len: u64) -> Vec<u8> {
    let mut bytes = vec![first];
    match len {
        0..=125 => bytes.push(0x80 | len as u8),
        126..=0xffff => {
            bytes.push(0x80 | 126);
            bytes.extend((len as u16).to_be_bytes());
        }
        _ => {
            bytes.push(0x80 | 127);
            bytes.extend(len.to_be_bytes());
        }
    }
    bytes.extend([0; 4]);
    bytes
}
