//! Both roles against tokio-tungstenite over loopback.

use std::sync::Arc;

use bytes::Bytes;
use exec_server_rpc::{
    ByteStream, CloseReason, Framing, InboundFrame, Outbox, Receiver, WebSocketRole, client::RawClient, handshake,
};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_tungstenite::{
    WebSocketStream, accept_async,
    tungstenite::{
        Message,
        protocol::{CloseFrame, WebSocketConfig, frame::coding::CloseCode},
    },
};

use crate::{client::listener, upgrade};

const MAX: usize = 96 * 1024 * 1024;
const LARGE: usize = 20 * 1024 * 1024;
const CLIENT: Framing = Framing::WebSocket { role: WebSocketRole::Client, max: MAX };
const SERVER: Framing = Framing::WebSocket { role: WebSocketRole::Server, max: MAX };

/// Our end of a connection.
struct OurEnd {
    receiver: Receiver,
    outbox: Outbox,
    writer: Box<dyn tokio::io::AsyncWrite + Send + Unpin>,
}

impl OurEnd {
    fn new(stream: ByteStream, framing: Framing) -> Self {
        let receiver = Receiver::new(framing, stream.reader, stream.leftover);
        Self { receiver, outbox: Outbox::new(framing), writer: stream.writer }
    }

    async fn flush(&mut self) {
        self.outbox.flush_to(&mut self.writer).await.unwrap();
    }

    async fn send(&mut self, text: &str) {
        self.outbox.message(text.len(), |buf| buf.extend_from_slice(text.as_bytes()));
        self.flush().await;
    }
}

/// Accepts frames of at most 8 MiB and messages of at most 20 MiB.
fn strict() -> WebSocketConfig {
    WebSocketConfig::default().max_frame_size(Some(8 * 1024 * 1024)).max_message_size(Some(LARGE))
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}

/// Our client with a tungstenite server.
async fn our_client() -> (OurEnd, WebSocketStream<TcpStream>) {
    let (ours, theirs) = sockets().await;
    let (ours, theirs) = tokio::join!(
        handshake::connect(ours.into(), "h", "/?token=t", &[]),
        tokio_tungstenite::accept_async_with_config(theirs, Some(strict()))
    );
    (OurEnd::new(ours.unwrap(), CLIENT), theirs.unwrap())
}

/// Our server with a tungstenite client.
async fn our_server() -> (OurEnd, WebSocketStream<TcpStream>) {
    let (theirs, ours) = sockets().await;
    let mut stream = ByteStream::from(ours);
    let connecting = tokio_tungstenite::client_async_with_config("ws://h/", theirs, Some(strict()));
    let (theirs, _) = tokio::join!(connecting, upgrade::accept(&mut stream));
    (OurEnd::new(stream, SERVER), theirs.unwrap().0)
}

/// Runs every exchange in one role.
async fn check(mut ours: OurEnd, mut theirs: WebSocketStream<TcpStream>) {
    ours.send("hällo").await;
    assert_eq!(theirs.next().await.unwrap().unwrap(), Message::text("hällo"));
    theirs.send(Message::text("text")).await.unwrap();
    assert_eq!(ours.receiver.recv().await.unwrap(), InboundFrame::Message("text".into()));

    theirs.send(Message::Ping("p".into())).await.unwrap();
    assert_eq!(ours.receiver.recv().await.unwrap(), InboundFrame::Ping("p".into()));
    ours.outbox.pong(b"p");
    ours.flush().await;
    assert_eq!(theirs.next().await.unwrap().unwrap(), Message::Pong("p".into()));

    let large = "x".repeat(LARGE);
    let (received, ()) = tokio::join!(theirs.next(), ours.send(&large));
    assert!(received.unwrap().unwrap() == Message::text(large.clone()), "20 MiB went out in frames of 8 MiB");
    let (sent, received) = tokio::join!(theirs.send(Message::text(large.clone())), ours.receiver.recv());
    sent.unwrap();
    assert!(received.unwrap() == InboundFrame::Message(large.into()), "20 MiB came in as one frame");

    ours.outbox.close(1001, "going");
    ours.flush().await;
    let Message::Close(Some(close)) = theirs.next().await.unwrap().unwrap() else { panic!("a close frame") };
    assert_eq!((close.code, close.reason.as_str()), (CloseCode::Away, "going"));
    theirs.flush().await.ok(); // Fails if the answer to the close was already sent.
    assert!(matches!(ours.receiver.recv().await, Err(CloseReason::Peer { code: 1001, .. })));
}

#[tokio::test]
async fn our_client_and_another_server_understand_each_other() {
    let (ours, theirs) = our_client().await;
    check(ours, theirs).await;
}

#[tokio::test]
async fn our_server_and_another_client_understand_each_other() {
    let (ours, theirs) = our_server().await;
    check(ours, theirs).await;
}

#[tokio::test]
async fn websocket_connection_accepts_binary_jsonrpc_message() {
    for (mut ours, mut theirs) in [our_client().await, our_server().await] {
        theirs.send(Message::binary(&b"{}"[..])).await.unwrap();
        assert_eq!(ours.receiver.recv().await.unwrap(), InboundFrame::Message("{}".into()));
    }
}

#[tokio::test]
async fn websocket_connection_sends_configured_ping() {
    for (mut ours, mut theirs) in [our_client().await, our_server().await] {
        ours.outbox.ping(b"");
        ours.flush().await;
        assert_eq!(theirs.next().await.unwrap().unwrap(), Message::Ping(Bytes::new()));
        theirs.flush().await.unwrap();
        assert_eq!(ours.receiver.recv().await.unwrap(), InboundFrame::Pong(Bytes::new()));
    }
}

#[tokio::test]
async fn websocket_connection_reports_server_close() {
    let (mut ours, mut theirs) = our_client().await;
    let frame = CloseFrame { code: CloseCode::Policy, reason: "no".into() };
    theirs.send(Message::Close(Some(frame))).await.unwrap();
    let closed = ours.receiver.recv().await.unwrap_err();
    assert!(matches!(&closed, CloseReason::Peer { code: 1008, reason } if reason == "no"), "{closed:?}");
}

#[tokio::test]
async fn websocket_connection_keeps_outbound_message_while_send_is_backpressured() {
    let (mut ours, mut theirs) = our_server().await;
    let payload = "z".repeat(4 * 1024 * 1024);
    for _ in 0..4 {
        ours.outbox.message(payload.len(), |buf| buf.extend_from_slice(payload.as_bytes()));
    }
    // The peer does not read, so the flush stalls and each pong cancels it.
    for _ in 0..3 {
        theirs.send(Message::Pong(Bytes::new())).await.unwrap();
        tokio::select! {
            biased;
            inbound = ours.receiver.recv() => assert_eq!(inbound.unwrap(), InboundFrame::Pong(Bytes::new())),
            result = ours.outbox.flush_to(&mut ours.writer) => panic!("16 MiB do not fit: {result:?}"),
        }
    }
    let expected = Message::text(payload);
    let receive = async {
        for _ in 0..4 {
            assert!(theirs.next().await.unwrap().unwrap() == expected);
        }
    };
    tokio::join!(ours.flush(), receive);
    assert!(ours.outbox.is_empty());
}

#[tokio::test]
async fn the_raw_client_answers_pings_and_closes_and_ignores_pongs() {
    let (ours, theirs) = sockets().await;
    let (ours, theirs) = tokio::join!(handshake::connect(ours.into(), "h", "/", &[]), accept_async(theirs));
    let mut theirs = theirs.unwrap();
    let client = Arc::new(RawClient::new(ours.unwrap(), CLIENT, listener().0));
    theirs.send(Message::Pong("unasked".into())).await.unwrap();
    theirs.send(Message::Ping("asked".into())).await.unwrap();
    assert_eq!(theirs.next().await.unwrap().unwrap(), Message::Pong("asked".into()));
    theirs.send(Message::Close(Some(CloseFrame { code: CloseCode::Restart, reason: "".into() }))).await.unwrap();
    assert!(matches!(*client.closed().await, CloseReason::Peer { code: 1012, .. }));
    let Message::Close(Some(answer)) = theirs.next().await.unwrap().unwrap() else { panic!("a close frame") };
    assert_eq!(answer.code, CloseCode::Restart);
}

#[tokio::test]
async fn the_raw_client_connects_over_a_unix_socket_and_passes_the_token() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut stream = ByteStream::from(theirs);
    let connecting = handshake::connect(ours.into(), "localhost", "/?token=abc", &[]);
    let (ours, head) = tokio::join!(connecting, upgrade::accept(&mut stream));
    assert!(head.starts_with("GET /?token=abc HTTP/1.1\r\n"), "{head}");
    let client = RawClient::new(ours.unwrap(), CLIENT, listener().0);
    client.notify("hello", &()).await.unwrap();
    let mut receiver = Receiver::new(SERVER, stream.reader, stream.leftover);
    let writer = stream.writer;
    let serve = async {
        assert_eq!(receiver.recv().await.unwrap(), InboundFrame::Message(r#"{"method":"hello","params":null}"#.into()));
        assert!(matches!(receiver.recv().await, Err(CloseReason::Peer { code: 1000, .. })));
        // The client ends when the server closes its side.
        drop(writer);
    };
    tokio::join!(client.finish(), serve);
}
