//! Streamable HTTP, written by hand: one thread and one request per connection. All HTTP faults are made here.
//! Must not know what a message means, but for the one that begins a session.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::server::{Out, Server};

/// The largest request: a test that sends more wants to see it refused.
const BODY_MAX: usize = 64 << 20; // 64 MiB

/// The longest line of a head, and how many there may be.
const LINE_MAX: u64 = 64 << 10;
const LINES_MAX: usize = 200;

/// How often a stream that is kept open shows that it lives; also how soon one of an ended session ends.
const BEAT: Duration = Duration::from_millis(200);

struct Http {
    server: Arc<Server>,
    /// Live sessions, and how many requests each has made.
    sessions: Mutex<BTreeMap<String, u64>>,
    next_session: AtomicU64,
    /// Faults that were requested through the control path.
    armed: Mutex<Option<Armed>>,
}

struct Armed {
    status: u16,
    count: u64,
    method: Option<String>,
}

struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Serves until the end of the input.
pub(crate) fn run(server: &Arc<Server>, address: &str) -> ExitCode {
    let listener = match TcpListener::bind(address) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("test_mcp_server: listen on {address}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let address = listener.local_addr().expect("a listener has an address");
    writeln!(io::stdout(), "http://{address}/mcp").expect("print the URL");
    let http = Arc::new(Http {
        server: Arc::clone(server),
        sessions: Mutex::default(),
        next_session: AtomicU64::new(1),
        armed: Mutex::default(),
    });
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let http = Arc::clone(&http);
            // A client that disconnects early is not an error.
            thread::spawn(move || http.serve(stream).ok());
        }
    });
    io::copy(&mut io::stdin(), &mut io::sink()).ok(); // What comes is nothing; the end is what counts.
    server.end_of_input()
}

impl Http {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let Some(request) = read(&stream)? else { return Ok(()) };
        match (request.method.as_str(), request.path.as_str()) {
            ("POST", "/control") => self.control(&stream, &request),
            (method, "/mcp") => {
                let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
                self.note(&request, &message);
                if let Some(status) = self.refuses(&request, &message) {
                    return respond(&stream, status, &[], "refused, as it was asked to");
                }
                match method {
                    "POST" => self.post(&stream, &request, &message),
                    "GET" if !self.server.flags.no_get => self.listen(&stream, &request),
                    "DELETE" => self.delete(&stream, &request),
                    _ => respond(&stream, 405, &[], ""),
                }
            }
            _ => respond(&stream, 404, &[], "nothing is here"),
        }
    }

    fn note(&self, request: &Request, message: &Value) {
        let session = request.headers.get("mcp-session-id");
        let event = json!({"event": "http", "http": request.method, "method": message["method"], "session": session,
            "headers": request.headers});
        self.server.note(&event);
    }

    /// The status with which a request is refused, by a flag or by the control path.
    fn refuses(&self, request: &Request, message: &Value) -> Option<u16> {
        let flags = &self.server.flags;
        if flags.http_status.is_some() {
            return flags.http_status;
        }
        if let Some(token) = &flags.http_token
            && request.headers.get("authorization") != Some(&format!("Bearer {token}"))
        {
            return Some(401);
        }
        if request.method == "POST"
            && let Some(armed) = self.armed.lock().expect("no writer panics").as_mut()
            && armed.count > 0
            && armed.method.as_ref().is_none_or(|method| message["method"] == *method)
        {
            armed.count -= 1;
            return Some(armed.status);
        }
        None
    }

    fn control(&self, stream: &TcpStream, request: &Request) -> io::Result<()> {
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if asked["expire"] == true {
            self.sessions.lock().expect("no writer panics").clear();
        }
        if let Some(status) = asked["status"].as_u64().and_then(|status| u16::try_from(status).ok()) {
            let method = asked["method"].as_str().map(str::to_owned);
            let count = asked["count"].as_u64().unwrap_or(1);
            *self.armed.lock().expect("no writer panics") = Some(Armed { status, count, method });
        }
        respond(stream, 200, &[], "")
    }

    fn post(&self, stream: &TcpStream, request: &Request, message: &Value) -> io::Result<()> {
        if !message.is_object() {
            return respond(stream, 400, &[], "one message, as JSON");
        }
        if message["method"] == "initialize" {
            let session = format!("session-{}", self.next_session.fetch_add(1, Ordering::Relaxed));
            let Some(answer) = self.server.handle(message, &Nowhere) else { return hold(stream) };
            let mut headers = vec![("Content-Type", "application/json")];
            if !self.server.flags.no_session {
                self.sessions.lock().expect("no writer panics").insert(session.clone(), 0);
                headers.push(("Mcp-Session-Id", session.as_str()));
            }
            return respond(stream, 200, &headers, &answer.to_string());
        }
        if let Some(status) = self.lacks_session(request) {
            return respond(stream, status, &[], "no such session");
        }
        if message.get("id").is_none() || message.get("method").is_none() {
            self.server.handle(message, &Nowhere);
            return respond(stream, 202, &[], "");
        }
        if message["method"] != "tools/call" {
            return match self.server.handle(message, &Nowhere) {
                Some(answer) => respond(stream, 200, &[("Content-Type", "application/json")], &answer.to_string()),
                None => hold(stream),
            };
        }
        // A call may ask and tell before it answers: a stream that ends with the answer.
        let events = Events { stream: Mutex::new(stream.try_clone()?) };
        events.begin()?;
        match self.server.handle(message, &events) {
            Some(answer) => events.send(&answer),
            None if self.server.cancelled().contains(&message["id"]) => {}
            None => return hold(stream),
        }
        Ok(())
    }

    /// The status for a request that is of no live session.
    fn lacks_session(&self, request: &Request) -> Option<u16> {
        if self.server.flags.no_session {
            return None;
        }
        let Some(session) = request.headers.get("mcp-session-id") else { return Some(400) };
        let mut sessions = self.sessions.lock().expect("no writer panics");
        let Some(requests) = sessions.get_mut(session) else { return Some(404) };
        *requests += 1;
        if self.server.flags.expire_after.is_some_and(|most| *requests > most) {
            sessions.remove(session);
            return Some(404);
        }
        None
    }

    /// A stream of the server's own, open as long as its session.
    fn listen(&self, stream: &TcpStream, request: &Request) -> io::Result<()> {
        let session = request.headers.get("mcp-session-id").cloned().unwrap_or_default();
        let is_alive =
            || self.server.flags.no_session || self.sessions.lock().expect("no writer panics").contains_key(&session);
        if !is_alive() {
            return respond(stream, 404, &[], "no such session");
        }
        let events = Events { stream: Mutex::new(stream.try_clone()?) };
        events.begin()?;
        while is_alive() {
            events.write(": alive\n\n")?;
            thread::sleep(BEAT);
        }
        Ok(())
    }

    fn delete(&self, stream: &TcpStream, request: &Request) -> io::Result<()> {
        let session = request.headers.get("mcp-session-id").cloned().unwrap_or_default();
        let was_there = self.sessions.lock().expect("no writer panics").remove(&session).is_some();
        respond(stream, if was_there { 200 } else { 404 }, &[], "")
    }
}

/// For messages that are not part of a response stream.
struct Nowhere;

impl Out for Nowhere {
    fn send(&self, _message: &Value) {}
}

/// Server-sent events, until the connection ends.
struct Events {
    stream: Mutex<TcpStream>,
}

impl Events {
    fn begin(&self) -> io::Result<()> {
        self.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n")
    }

    fn write(&self, text: &str) -> io::Result<()> {
        self.stream.lock().expect("no writer panics").write_all(text.as_bytes())
    }
}

impl Out for Events {
    fn send(&self, message: &Value) {
        self.write(&format!("event: message\ndata: {message}\n\n")).ok(); // It left.
    }
}

/// Leaves a request unanswered until the other side goes.
fn hold(mut stream: &TcpStream) -> io::Result<()> {
    io::copy(&mut stream, &mut io::sink()).map(drop)
}

fn respond(mut stream: &TcpStream, status: u16, headers: &[(&str, &str)], body: &str) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
    if status == 401 {
        head += "WWW-Authenticate: Bearer\r\n";
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())
}

/// One request; nothing where the connection ended without one.
fn read(stream: &TcpStream) -> io::Result<Option<Request>> {
    let mut reader = BufReader::new(stream);
    let first = line(&mut reader)?;
    let mut words = first.split(' ');
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let (method, path) = (method.to_owned(), path.to_owned());
    let mut headers = BTreeMap::new();
    for _ in 0..LINES_MAX {
        let line = line(&mut reader)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
    }
    let is_chunked = headers.get("transfer-encoding").is_some_and(|how| how.contains("chunked"));
    let body = if is_chunked {
        chunks(&mut reader)?
    } else {
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        exactly(&mut reader, length)?
    };
    Ok(Some(Request { method, path, headers, body }))
}

fn line(reader: &mut BufReader<&TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    reader.take(LINE_MAX).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

fn exactly(reader: &mut BufReader<&TcpStream>, length: usize) -> io::Result<Vec<u8>> {
    if length > BODY_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(body)
}

fn chunks(reader: &mut BufReader<&TcpStream>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = usize::from_str_radix(&line(reader)?, 16).map_err(|_| io::ErrorKind::InvalidData)?;
        if size == 0 || body.len() + size > BODY_MAX {
            line(reader)?;
            return Ok(body);
        }
        body.extend(exactly(reader, size)?);
        line(reader)?;
    }
}
