//! The client's half of the upgrade against correct and incorrect servers, and the features of a TCP stream.

use bytes::BytesMut;
use exec_server_rpc::{
    ByteStream, Framing, InboundFrame, Receiver, WebSocketRole,
    handshake::{self, HandshakeError},
    memory,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

pub(crate) async fn read_head(stream: &mut ByteStream) -> String {
    let mut head = BytesMut::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.reader.read_buf(&mut head).await.unwrap(), 0, "the request is complete");
    }
    String::from_utf8(head.to_vec()).unwrap()
}

fn key_of(head: &str) -> &str {
    head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).expect("a key")
}

/// Answers an upgrade request like a server. Returns the request head.
pub(crate) async fn accept(stream: &mut ByteStream) -> String {
    let head = read_head(stream).await;
    stream.writer.write_all(response(key_of(&head)).as_bytes()).await.unwrap();
    head
}

fn response(key: &str) -> String {
    let accept = handshake::accept_key(key);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: WebSocket\r\nconnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// Connects to a server that sends the result of `answer`, which gets the key.
async fn against(answer: impl FnOnce(&str) -> Vec<u8>) -> Result<ByteStream, HandshakeError> {
    let (client, mut server) = memory(64 * 1024);
    let serve = async {
        let head = read_head(&mut server).await;
        server.writer.write_all(&answer(key_of(&head))).await.unwrap();
        drop(server);
    };
    tokio::join!(handshake::connect(client, "h", "/", &[]), serve).0
}

#[test]
fn the_key_of_the_rfc_gives_the_answer_of_the_rfc() {
    assert_eq!(handshake::accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

#[tokio::test]
async fn frames_that_come_with_the_response_are_not_lost() {
    let answer = |key: &str| [response(key).replace("n: U", "n: keep-alive, U").as_bytes(), b"\x81\x02hi"].concat();
    let stream = against(answer).await.unwrap();
    let framing = Framing::WebSocket { role: WebSocketRole::Client, max: 100 };
    let mut receiver = Receiver::new(framing, stream.reader, stream.leftover);
    assert_eq!(receiver.recv().await.unwrap(), InboundFrame::Message("hi".into()));
}

#[tokio::test]
async fn a_refusal_reports_its_status() {
    let error = against(|_| b"HTTP/1.1 401 Unauthorized\r\n\r\n".to_vec()).await.unwrap_err();
    assert!(matches!(error, HandshakeError::Refused { status: 401 }));
}

#[tokio::test]
async fn responses_that_do_not_prove_the_upgrade_are_refused() {
    let wrong_key = against(|_| response("another").into_bytes()).await.unwrap_err();
    assert!(matches!(wrong_key, HandshakeError::NotUpgraded { header: "Sec-WebSocket-Accept" }));
    let no_upgrade = against(|key| response(key).replace("upgrade: WebSocket\r\n", "").into_bytes()).await;
    assert!(matches!(no_upgrade, Err(HandshakeError::NotUpgraded { header: "Upgrade" })));
    let endless = against(|_| [b"HTTP/1.1 101 OK\r\na: ".to_vec(), vec![b'x'; 20_000]].concat()).await;
    assert!(matches!(endless, Err(HandshakeError::InvalidResponse)));
    let other = against(|_| b"SSH-2.0-OpenSSH\r\n".to_vec()).await;
    assert!(matches!(other, Err(HandshakeError::InvalidResponse)));
    let cut = against(|_| b"HTTP/1.1 101".to_vec()).await;
    assert!(matches!(cut, Err(HandshakeError::Io(_))));
}

#[tokio::test]
async fn a_request_cannot_be_split_by_its_parts() {
    for (host, path, header) in [
        ("h\r\nx: y", "/", ("a", "b")),
        ("h", "/ HTTP/1.1\r\nx: y", ("a", "b")),
        ("h", "no-slash", ("a", "b")),
        ("h", "/", ("a", "secret\r\nx: y")),
        ("h", "/", ("a\n", "b")),
    ] {
        let (client, _server) = memory(1024);
        let error = handshake::connect(client, host, path, &[header]).await.unwrap_err();
        assert!(matches!(error, HandshakeError::InvalidRequest { .. }));
        assert!(!format!("{error:?}").contains("secret"));
    }
}

#[tokio::test]
async fn a_tcp_probe_reports_the_last_acknowledgement_and_does_not_keep_the_socket_open() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (client, accepted) = tokio::join!(connecting, async { listener.accept().await.unwrap().0 });
    let (near, mut far) = (ByteStream::from(client.unwrap()), ByteStream::from(accepted));
    let probe = near.probe.clone().expect("TCP has a probe");
    assert!(probe.last_ack_ms().is_some_and(|ms| ms < 60_000));

    // Dropping the write half ends only its direction. Dropping the last half closes the socket.
    drop(near.writer);
    assert_eq!(far.reader.read(&mut [0; 1]).await.unwrap(), 0);
    assert!(probe.last_ack_ms().is_some());
    drop(near.reader);
    assert_eq!(probe.last_ack_ms(), None);
}
