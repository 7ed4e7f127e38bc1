//! WebSocket over TCP and Unix sockets: the request that is sent, and the result for every kind of answer.

use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use exec_server_client::{
    Error, ErrorKind,
    transport::{Connect as _, Connection, Dialer, Token},
};
use exec_server_rpc::{Framing, InboundFrame, Outbox, Receiver, WebSocketRole, handshake};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, UnixListener},
};

use crate::within;

const SECRET: &str = "s3cret";

/// Reads the head of a request.
pub(crate) async fn read_head(socket: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert_ne!(socket.read_buf(&mut head).await.unwrap(), 0, "a whole head");
    }
    String::from_utf8(head).unwrap()
}

/// Accepts an upgrade and sends one message. Returns the head of the request and the message received.
pub(crate) async fn serve(mut socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> (String, String) {
    let head = read_head(&mut socket).await;
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).expect("a key");
    let accept = handshake::accept_key(key);
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    let framing = Framing::WebSocket { role: WebSocketRole::Server, max: 1 << 20 };
    let mut outbox = Outbox::new(framing);
    outbox.message(5, |buf| buf.extend_from_slice(b"hello"));
    socket.write_all(answer.as_bytes()).await.unwrap();
    outbox.flush_to(&mut socket).await.unwrap();
    let mut receiver = Receiver::new(framing, Box::new(socket), Default::default());
    let Ok(InboundFrame::Message(message)) = receiver.recv().await else { panic!("a message") };
    (head, String::from_utf8(message.to_vec()).unwrap())
}

/// Receives the server's message and sends one.
pub(crate) async fn greet(connection: Connection) {
    let Connection { stream, framing, carrier } = connection;
    assert!(carrier.is_none());
    let mut receiver = Receiver::new(framing, stream.reader, stream.leftover);
    assert_eq!(receiver.recv().await.unwrap(), InboundFrame::Message("hello".into()));
    let mut writer = stream.writer;
    let mut outbox = Outbox::new(framing);
    outbox.message(2, |buf| buf.extend_from_slice(b"hi"));
    outbox.flush_to(&mut writer).await.unwrap();
}

/// Dials a TCP server that answers with these bytes, and then closes the connection or not.
async fn against(answer: Vec<u8>, hangs_up: bool) -> Error {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let dialer = Dialer::new(format!("ws://{address}/?token={SECRET}").parse().unwrap());
    let serving = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        read_head(&mut socket).await;
        socket.write_all(&answer).await.unwrap();
        (!hangs_up).then_some(socket)
    };
    let (connected, _held) = within(async { tokio::join!(dialer.connect(), serving) }).await;
    let error = connected.unwrap_err();
    assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
    assert!(format!("{error}").contains(&address.to_string()), "{error}");
    error
}

fn check_reason(error: &Error, words: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Connect, "{error:?}");
    for word in words {
        assert!(error.to_string().contains(word), "`{word}` in: {error}");
    }
}

#[tokio::test]
async fn the_token_travels_in_a_header_and_nowhere_else() {
    for (path, given, sent) in [
        ("/?token=from-url", None, Some("from-url")),
        ("/?token=from-url", Some("given"), Some("given")),
        ("/?token=a%2Bb", None, Some("a+b")),
        ("/", Some("given"), Some("given")),
        ("/", None, None),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut dialer = Dialer::new(format!("ws://{address}{path}").parse().unwrap());
        dialer.token = given.map(|token| Token::new(token).unwrap());
        let serving = async { serve(listener.accept().await.unwrap().0).await };
        let dialing = async { greet(dialer.connect().await.unwrap()).await };
        let ((head, message), ()) = within(async { tokio::join!(serving, dialing) }).await;
        assert_eq!(message, "hi");
        assert!(head.starts_with("GET / HTTP/1.1\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nHost: {address}\r\n")), "{head}");
        assert!(!head.to_lowercase().contains("origin:"), "{head}");
        let bearer = head.lines().find_map(|line| line.strip_prefix("Authorization: Bearer "));
        assert_eq!(bearer, sent, "{path}");
    }
}

#[tokio::test]
async fn the_rest_of_a_query_is_sent_as_it_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let dialer = Dialer::new(format!("ws://localhost:{port}/p?a=1&token=t&b=%20").parse().unwrap());
    let serving = async { serve(listener.accept().await.unwrap().0).await };
    let dialing = async { greet(dialer.connect().await.unwrap()).await };
    let ((head, _), ()) = within(async { tokio::join!(serving, dialing) }).await;
    assert!(head.starts_with("GET /p?a=1&b=%20 HTTP/1.1\r\n"), "{head}");
}

#[tokio::test]
async fn a_unix_socket_is_upgraded_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("a?b")).unwrap();
    let url = format!("unix://{}/a%3Fb?token={SECRET}", dir.path().display());
    let dialer = Dialer::new(url.parse().unwrap());
    let serving = async { serve(listener.accept().await.unwrap().0).await };
    let dialing = async { greet(dialer.connect().await.unwrap()).await };
    let ((head, message), ()) = within(async { tokio::join!(serving, dialing) }).await;
    assert_eq!(message, "hi");
    assert!(head.starts_with("GET / HTTP/1.1\r\nHost: localhost\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nAuthorization: Bearer {SECRET}\r\n")), "{head}");
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let answer = |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes();
    let error = against(answer("401 Unauthorized"), true).await;
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    for (status, words) in [
        ("403 Forbidden", ["403", "--allow-host"]),
        ("404 Not Found", ["404", "is it an exec-server?"]),
        ("200 OK", ["200", "is it an exec-server?"]),
        ("302 Found", ["302", "final address"]),
        ("502 Bad Gateway", ["502", "proxy"]),
        ("503 Busy", ["503", "shutting down"]),
    ] {
        check_reason(&against(answer(status), true).await, &words);
    }
}

#[tokio::test]
async fn answers_that_are_no_upgrade_end_in_a_typed_error_at_once() {
    check_reason(&against(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), false).await, &["not HTTP", "wss://"]);
    check_reason(&against(b"\x15\x03\x01\x00\x02\x02\x16".to_vec(), false).await, &["not HTTP"]);
    check_reason(&against(b"".to_vec(), true).await, &["hung up", "is it an exec-server?"]);
    check_reason(&against(b"HTTP/1.1 101 Sw".to_vec(), true).await, &["hung up"]);
    let unproven = b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
    check_reason(&against(unproven.to_vec(), false).await, &["Sec-WebSocket-Accept"]);
    let endless = [b"HTTP/1.1 101 X\r\nA: ".to_vec(), vec![b'x'; 60_000]].concat();
    check_reason(&against(endless, false).await, &["not HTTP"]);
}

#[tokio::test]
async fn a_server_that_never_answers_costs_the_caller_its_own_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dialer = Dialer::new(format!("ws://{}", listener.local_addr().unwrap()).parse().unwrap());
    assert!(tokio::time::timeout(Duration::from_millis(200), dialer.connect()).await.is_err());
    // Dropping the future closed the connection.
    let (mut socket, _) = within(listener.accept()).await.unwrap();
    let mut rest = Vec::new();
    within(socket.read_to_end(&mut rest)).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_reached_comes_with_a_hint() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let dir = tempfile::tempdir().unwrap();
    let dead = dir.path().join("dead");
    drop(UnixListener::bind(&dead).unwrap());
    std::fs::set_permissions(&dead, std::fs::Permissions::from_mode(0o600)).unwrap();
    for (url, words) in [
        (format!("ws://{address}/?token={SECRET}"), ["connection refused", "is the server running"]),
        (format!("wss://{address}/?token={SECRET}"), ["connection refused", "is the server running"]),
        (
            format!("unix://{}?token={SECRET}", dead.display()),
            ["nothing is listening on this socket", "is the server running"],
        ),
        (format!("unix://{}/none?token={SECRET}", dir.path().display()), ["no socket", "is the server running"]),
    ] {
        let error = within(Dialer::new(url.parse().unwrap()).connect()).await.unwrap_err();
        check_reason(&error, &words);
        assert!(!format!("{error} {error:?}").contains(SECRET));
    }
}
