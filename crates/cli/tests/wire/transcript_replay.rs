//! Replays a transcript: sends what was sent, waits for what was received, and compares. Each test passes in the differences that are
//! intended.
#![allow(clippy::disallowed_methods, reason = "a test waits on the real clock")]

use crate::prelude::*;

/// Prefixes of the error texts that peers compare. The rest of such a text is compared too, unless it names a socket.
const LITERALS: [&str; 6] =
    ["client must ", "process ", "session ", "unknown session id ", "unknown process id ", "argv must not be empty"];

/// One recorded line.
enum Line {
    Send(Value),
    SendRaw(String),
    Receive(Value),
}

fn recorded(name: &str) -> Vec<Line> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts").join(format!("{name}.jsonl"));
    let text = fs::read_to_string(path).expect("the transcript is there");
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).expect("a transcript is JSON lines");
        match (line["to"].as_str(), line["raw"].as_str()) {
            (_, Some(raw)) => Line::SendRaw(raw.to_owned()),
            (Some("server"), None) => Line::Send(line["msg"].take()),
            _ => Line::Receive(line["msg"].take()),
        }
    };
    text.lines().map(line).collect()
}

/// A process event. Neighbouring chunks of one stream are joined and keep the numbers of all of them.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Output { stream: String, bytes: Vec<u8>, seqs: Vec<u64> },
    Exited { seq: u64, code: i64, sandbox_denied: Value },
    Closed { seq: u64 },
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Events(BTreeMap<String, Vec<Event>>);

impl Events {
    fn push(&mut self, message: &Value) {
        let params = &message["params"];
        let seq = params["seq"].as_u64().expect("an event has a number");
        let events =
            self.0.entry(params["processId"].as_str().expect("an event has a process").to_owned()).or_default();
        match message["method"].as_str() {
            Some("process/output") => {
                let chunk = decode_base64(params["chunk"].as_str().expect("a chunk"));
                let name = params["stream"].as_str().expect("a stream");
                if let Some(Event::Output { stream, bytes, seqs }) = events.last_mut()
                    && stream == name
                {
                    bytes.extend(chunk);
                    seqs.push(seq);
                } else {
                    events.push(Event::Output { stream: name.to_owned(), bytes: chunk, seqs: vec![seq] });
                }
            }
            Some("process/exited") => events.push(Event::Exited {
                seq,
                code: params["exitCode"].as_i64().expect("an exit code"),
                sandbox_denied: params["sandboxDenied"].clone(),
            }),
            Some("process/closed") => events.push(Event::Closed { seq }),
            other => panic!("the recording has no {other:?}"),
        }
    }

    /// Renumbers events so that different chunk boundaries of the same bytes do not matter: each event counts as one.
    fn normal(&self) -> BTreeMap<String, Vec<Event>> {
        let renumber = |events: &Vec<Event>| {
            (1..)
                .zip(events)
                .map(|(n, event)| match event.clone() {
                    Event::Output { stream, bytes, .. } => Event::Output { stream, bytes, seqs: vec![n] },
                    Event::Exited { code, sandbox_denied, .. } => Event::Exited { seq: n, code, sandbox_denied },
                    Event::Closed { .. } => Event::Closed { seq: n },
                })
                .collect()
        };
        self.0.iter().map(|(id, events)| (id.clone(), renumber(events))).collect()
    }

    fn chunks(&self) -> usize {
        let len = |event: &Event| if let Event::Output { seqs, .. } = event { seqs.len() } else { 1 };
        self.0.values().flatten().map(len).sum()
    }

    /// Whether everything recorded so far has arrived.
    fn covers(&self, recorded: &Self) -> bool {
        recorded.normal().iter().all(|(id, expected)| {
            let Some(actual) = self.normal().remove(id) else { return false };
            expected.len() <= actual.len()
                && expected.iter().zip(&actual).all(|pair| match pair {
                    (Event::Output { bytes: expected, .. }, Event::Output { bytes: actual, .. }) => {
                        actual.starts_with(expected)
                    }
                    (expected, actual) => expected == actual,
                })
        })
    }
}

/// An intended difference: the message to send or expect in place of the recorded one.
pub(crate) type Difference = fn(&Value) -> Option<Value>;

/// A replay of one transcript.
pub(crate) struct Replay<'a> {
    server: &'a TestServer,
    client: Client,
    sent: Difference,
    expected: Difference,
    /// Maps recorded session ids to ours.
    sessions: BTreeMap<String, String>,
    answers: Vec<Value>,
    events: Events,
    recorded: Events,
    awaited: Vec<Value>,
    has_begun: bool,
    /// The pid of the process that was started last.
    pid: Option<u64>,
    background: Vec<(Arc<AtomicBool>, thread::JoinHandle<()>)>,
}

impl<'a> Replay<'a> {
    /// Replays a whole transcript; returns the last connection.
    pub(crate) fn run(server: &'a TestServer, name: &str, sent: Difference, expected: Difference) -> Client {
        let mut replay = Self {
            server,
            client: server.connect(),
            sent,
            expected,
            sessions: BTreeMap::new(),
            answers: Vec::new(),
            events: Events::default(),
            recorded: Events::default(),
            awaited: Vec::new(),
            has_begun: false,
            pid: None,
            background: Vec::new(),
        };
        for line in recorded(name) {
            replay.step(line);
        }
        replay.settle();
        assert_eq!(replay.events.normal(), replay.recorded.normal(), "{name}");
        if replay.events.chunks() == replay.recorded.chunks() {
            assert_eq!(replay.events, replay.recorded, "{name}: numbers");
        }
        assert!(replay.answers.is_empty(), "{name}: not in the recording: {:?}", replay.answers);
        for (stop, listener) in replay.background {
            stop.store(true, Ordering::Release);
            listener.join().expect("the listener does not panic");
        }
        replay.client
    }

    fn step(&mut self, line: Line) {
        match line {
            Line::Send(message) => {
                self.settle();
                if message["method"] == "initialize" && message["id"] == 1 && self.has_begun {
                    self.reconnect(&message);
                }
                self.has_begun = true;
                if message["method"] == "process/signal" {
                    self.wait_for_trap();
                }
                let message = (self.sent)(&message).unwrap_or(message);
                self.client.send_text(&self.with_our_sessions(&message.to_string()));
            }
            Line::SendRaw(text) => {
                self.settle();
                self.client.send_text(&text);
            }
            Line::Receive(message) if message.get("method").is_some() => {
                if let Some(event) = (self.expected)(&message).unwrap_or(message).as_object() {
                    self.recorded.push(&Value::Object(event.clone()));
                }
            }
            Line::Receive(message) => self.awaited.push((self.expected)(&message).unwrap_or(message)),
        }
    }

    /// Waits for the child's signal handler. The recorded server was slow enough for the child to set its trap before the signal.
    fn wait_for_trap(&self) {
        let caught = |status: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        };
        let path = format!("/proc/{}/status", self.pid.expect("a process was started"));
        wait_for("the trap of the child, or its end", || {
            fs::read_to_string(&path).map_or(true, |status| caught(&status).is_none_or(|mask| mask & 2 != 0))
        });
    }

    /// Opens another connection. The connection whose session is resumed is dropped first, except for the `thief`: there it keeps reading,
    /// and so answers pings.
    fn reconnect(&mut self, initialize: &Value) {
        let mut old = std::mem::replace(&mut self.client, self.server.connect());
        if initialize["params"]["clientName"] == "thief" {
            let stop = Arc::new(AtomicBool::new(false));
            let told = stop.clone();
            let listener = thread::spawn(move || {
                while !told.load(Ordering::Acquire) {
                    old.next_notification_within(Duration::from_millis(20));
                }
            });
            self.background.push((stop, listener));
            return;
        }
        drop(old);
        for (stop, listener) in self.background.drain(..) {
            stop.store(true, Ordering::Release);
            listener.join().expect("the listener does not panic");
        }
    }

    /// Waits until everything recorded before the next message has arrived.
    fn settle(&mut self) {
        let end = Instant::now() + DEADLINE;
        loop {
            self.match_answers();
            if self.awaited.is_empty() && self.events.covers(&self.recorded) {
                return;
            }
            assert!(
                Instant::now() < end,
                "awaited {:?}\nevents {:?}\nrecorded {:?}\nother answers {:?}",
                self.awaited,
                self.events,
                self.recorded,
                self.answers
            );
            let message = self.client.next();
            if message.get("method").is_some() {
                self.events.push(&message);
            } else {
                self.answers.push(message);
            }
        }
    }

    fn match_answers(&mut self) {
        while let Some(expected) = self.awaited.first().cloned() {
            let Some(at) = self.answers.iter().position(|answer| answer["id"] == expected["id"]) else { return };
            let actual = self.answers.remove(at);
            if let (Some(theirs), Some(ours)) =
                (expected["result"]["sessionId"].as_str(), actual["result"]["sessionId"].as_str())
            {
                self.sessions.insert(theirs.to_owned(), ours.to_owned());
            }
            let expected = serde_json::from_str(&self.with_our_sessions(&expected.to_string())).expect("still JSON");
            assert_agrees(&expected, &actual, &mut Vec::new());
            self.pid = actual["result"]["pid"].as_u64().or(self.pid);
            self.awaited.remove(0);
        }
    }

    fn with_our_sessions(&self, text: &str) -> String {
        self.sessions.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
    }
}

/// Checks that everything expected is there and that lists have the same length. Additional keys and most error texts are free.
fn assert_agrees(expected: &Value, actual: &Value, path: &mut Vec<String>) {
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => {
            for (key, value) in expected {
                path.push(key.clone());
                let found = actual.get(key).unwrap_or_else(|| panic!("{path:?} is missing in {actual:?}"));
                assert_agrees(value, found, path);
                path.pop();
            }
        }
        (Value::Array(expected), Value::Array(actual)) => {
            assert_eq!(expected.len(), actual.len(), "{path:?}");
            for (expected, actual) in expected.iter().zip(actual) {
                assert_agrees(expected, actual, path);
            }
        }
        (Value::String(expected), Value::String(actual)) if path.last().is_some_and(|key| key == "message") => {
            if expected.starts_with(crate::wire::MALFORMED_PREFIX) {
                assert!(actual.starts_with(crate::wire::MALFORMED_PREFIX), "{actual}");
            } else if LITERALS.iter().any(|literal| expected.starts_with(literal)) {
                assert_eq!(expected, actual);
            }
        }
        (expected, actual) => assert_eq!(expected, actual, "{path:?}"),
    }
}
