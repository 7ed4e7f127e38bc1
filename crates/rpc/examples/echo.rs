//! A WebSocket echo server on the same engine as the real server: the baseline for the cost of a round trip.
//!
//! `cargo xtask bench` starts it and compares with it. It prints its URL, accepts any number of connections on a
//! runtime like that of the server (`crates/cli/src/runtime.rs`), and sends every message back as text. It treats every
//! HTTP request as an upgrade, so use it on loopback only. It runs until it is killed.

#![expect(clippy::print_stdout, reason = "the URL is its result")]

use std::{io, thread};

use bytes::BytesMut;
use exec_server_rpc::{ByteStream, Framing, InboundFrame, Outbox, Receiver, WebSocketRole, handshake};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    runtime::Builder,
    task::JoinSet,
};

/// Largest message and largest request head. Benchmarks send far less.
const MAX: usize = 1 << 20;

fn main() -> io::Result<()> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let runtime = Builder::new_multi_thread().worker_threads((cores / 2).clamp(1, 4)).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("ws://{}/", listener.local_addr()?);
        let mut connections = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await?;
            connections.spawn(serve(socket.into()));
        }
    })
}

/// Serves one connection until it ends.
async fn serve(mut stream: ByteStream) -> io::Result<()> {
    upgrade(&mut stream).await?;
    let framing = Framing::WebSocket { role: WebSocketRole::Server, max: MAX };
    let mut receiver = Receiver::new(framing, stream.reader, stream.leftover);
    let mut outbox = Outbox::new(framing);
    while let Ok(inbound) = receiver.recv().await {
        match inbound {
            InboundFrame::Message(message) => outbox.message(message.len(), |buf| buf.extend_from_slice(&message)),
            InboundFrame::Ping(payload) => outbox.pong(&payload),
            InboundFrame::Pong(_) => {}
        }
        // Flush when all messages of one read are answered. If a part of the next message is buffered, its rest is on
        // its way.
        if receiver.buffered() == 0 || outbox.len() >= MAX {
            outbox.flush_to(&mut stream.writer).await?;
        }
    }
    Ok(())
}

/// Answers the upgrade request. The client sends no frame before it has the answer, so nothing is read past the head.
async fn upgrade(stream: &mut ByteStream) -> io::Result<()> {
    let mut head = BytesMut::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > MAX || stream.reader.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    let text = String::from_utf8_lossy(&head);
    let key = text.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap_or_default();
    let accept = handshake::accept_key(key);
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    stream.writer.write_all(answer.as_bytes()).await?;
    stream.writer.flush().await
}
