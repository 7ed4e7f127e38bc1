//! A raw HTTP exchange over TCP or a Unix socket: sends exactly the bytes of the test and splits the answer into head and body. It adds no
//! header, because the tests imitate browsers and attackers with it.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
};

use crate::DEADLINE;

/// The server's answer, up to the close or the upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status code; 0 when the connection was closed without an answer.
    pub status: u16,
    pub head: String,
    /// The bytes after the head.
    pub body: String,
}

/// Sends `request` to `address` and reads the answer to its end.
pub fn http(address: &str, request: &str) -> Reply {
    let stream = TcpStream::connect(address).expect("connect to the server");
    stream.set_read_timeout(Some(DEADLINE)).expect("set a read timeout");
    exchange(stream, request)
}

/// The same over a Unix socket.
pub fn http_unix(path: &Path, request: &str) -> Reply {
    let stream = UnixStream::connect(path).expect("connect to the server");
    stream.set_read_timeout(Some(DEADLINE)).expect("set a read timeout");
    exchange(stream, request)
}

/// The same over any stream, which must have a read timeout.
pub fn exchange(mut stream: impl Read + Write, request: &str) -> Reply {
    // The server may refuse and reset the connection before everything is sent; its answer still counts.
    stream.write_all(request.as_bytes()).ok();
    let mut raw = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => break,
            Ok(read) => raw.extend_from_slice(&chunk[..read]),
        }
        // After the upgrade the connection stays open.
        if raw.starts_with(b"HTTP/1.1 101") && raw.windows(4).any(|part| part == b"\r\n\r\n") {
            break;
        }
    }
    let text = String::from_utf8_lossy(&raw).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Reply { status, head: head.to_owned(), body: body.to_owned() }
}
