//! A hand-written HTTP server for tests. It records the requests it gets, and the test decides the answers. The server under test makes
//! requests to it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    pub method: String,
    /// The request target: a path, or a whole URL if the server is used as a proxy.
    pub path: String,
    /// Header names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    /// All values of a header.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }
}

/// A running HTTP server. Dropping it stops the server.
pub struct Target {
    address: String,
    state: Arc<TargetState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct TargetState {
    asked: Mutex<Vec<Asked>>,
    is_over: AtomicBool,
    /// Its connections, so that those still in use can be closed at the end.
    streams: Mutex<Vec<TcpStream>>,
}

impl Target {
    /// Answers each request on a new connection. The connection is closed after the answer.
    pub fn start(answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1", answer)
    }

    /// The same on another address of this host.
    pub fn start_at(host: &str, answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((host, 0)).expect("bind a target");
        let address = listener.local_addr().expect("it has an address").to_string();
        let state = Arc::<TargetState>::default();
        let serving = Arc::clone(&state);
        let thread = thread::spawn(move || serving.serve(&listener, &answer));
        Self { address, state, thread: Some(thread) }
    }

    /// Answers all requests with this body.
    pub fn saying(body: &'static str) -> Self {
        Self::start(move |_, stream| respond(stream, "200 OK", &[], body.as_bytes()))
    }

    /// Its host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl TargetState {
    fn serve(&self, listener: &TcpListener, answer: &(impl Fn(&Asked, &mut TcpStream) + Sync)) {
        thread::scope(|scope| {
            for mut stream in listener.incoming().flatten() {
                if self.is_over.load(Ordering::Acquire) {
                    break;
                }
                if let Ok(twin) = stream.try_clone() {
                    self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(twin);
                }
                scope.spawn(move || {
                    if let Some(request) = read(&mut stream) {
                        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
                        answer(&request, &mut stream);
                    }
                    // A clone of the socket is kept in `streams`, so dropping this one would not close the connection.
                    stream.shutdown(Shutdown::Both).ok();
                });
            }
        });
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Release);
        // Wake the listener up.
        TcpStream::connect(&self.address).ok();
        for stream in self.state.streams.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // It may be closed already.
            stream.shutdown(Shutdown::Both).ok();
        }
        if let Some(thread) = self.thread.take()
            && !thread::panicking()
        {
            thread.join().expect("the target ends");
        }
    }
}

/// Sends a complete answer.
pub fn respond(stream: &mut TcpStream, status: &str, headers: &[(&str, &str)], body: &[u8]) {
    let mut head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    // The client may have gone.
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok();
}

/// Sends the head of an answer whose body is sent in chunks.
pub fn begin(stream: &mut TcpStream, content_type: &str) {
    let head = format!(
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("send a head");
}

/// Sends one chunk; an empty one ends the body. Returns whether the connection still takes data.
pub fn chunk(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    let framed = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    stream.write_all(&framed).is_ok()
}

/// Returns when the client has closed the connection.
pub fn wait_closed(stream: &mut TcpStream) {
    let mut rest = [0; 1024];
    while stream.read(&mut rest).is_ok_and(|read| read > 0) {}
}

fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_owned())
    };
    let first = line()?;
    let mut words = first.split(' ');
    let mut asked = Asked { method: words.next()?.to_owned(), path: words.next()?.to_owned(), ..Asked::default() };
    while let Some(header) = line().filter(|line| !line.is_empty()) {
        let (name, value) = header.split_once(':')?;
        asked.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = asked.all("content-length").first().and_then(|length| length.parse().ok()).unwrap_or(0);
    asked.body.resize(length, 0);
    reader.read_exact(&mut asked.body).ok()?;
    Some(asked)
}
