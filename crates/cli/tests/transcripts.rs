//! Replays the recorded sessions of a reference server (generation H) against ours.
//!
//! What must agree: shapes, codes, statuses, sequence numbers, and the order of each process's events. What is free: error texts but
//! the literals of spec 0.1, session ids, ports, further keys, and how two writes of a child are cut into chunks. Where ours differs by
//! decision the test says so, with its reason; `files.jsonl` belongs to the issue of the file methods.

mod common;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use common::{Client, DEADLINE, TestServer, decode_base64, wait_for};
use serde_json::{Value, json};

/// Beginnings of the texts that peers compare; the rest of such a text is compared too, except where it names a socket.
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

/// A process's event with neighbouring chunks of one stream joined; the number is that of the first.
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
        let events = self.0.entry(params["processId"].as_str().expect("an event has a process").to_owned()).or_default();
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

    /// Numbers made equal where both sides cut the same bytes differently: each event then counts one.
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

    /// Whether everything recorded so far has come.
    fn covers(&self, recorded: &Self) -> bool {
        recorded.normal().iter().all(|(id, expected)| {
            let Some(actual) = self.normal().remove(id) else { return false };
            expected.len() <= actual.len()
                && expected.iter().zip(&actual).all(|pair| match pair {
                    (Event::Output { bytes: expected, .. }, Event::Output { bytes: actual, .. }) => actual.starts_with(expected),
                    (expected, actual) => expected == actual,
                })
        })
    }
}

/// What ours does otherwise in one transcript: a message that is sent, or expected, in place of the recorded one.
type Difference = fn(&Value) -> Option<Value>;

/// A replay of one transcript.
struct Replay<'a> {
    server: &'a TestServer,
    client: Client,
    sent: Difference,
    expected: Difference,
    /// Recorded session ids and ours.
    sessions: BTreeMap<String, String>,
    answers: Vec<Value>,
    events: Events,
    recorded: Events,
    awaited: Vec<Value>,
    has_begun: bool,
    /// The process that was started last.
    pid: Option<u64>,
    background: Vec<(Arc<AtomicBool>, thread::JoinHandle<()>)>,
}

impl<'a> Replay<'a> {
    fn run(server: &'a TestServer, name: &str, sent: Difference, expected: Difference) -> Client {
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

    /// The recording's server was slow enough for its child to set a trap before the signal came.
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

    /// A further connection. The one that is resumed from is gone by then; before that it listens, and so answers pings.
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

    /// Waits until everything recorded before the next message was seen.
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
                self.awaited, self.events, self.recorded, self.answers
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
            if let (Some(theirs), Some(ours)) = (expected["result"]["sessionId"].as_str(), actual["result"]["sessionId"].as_str()) {
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

/// Everything expected is there, and lists are as long; further keys are free, and so are most error texts.
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
            if expected.starts_with(wire::MALFORMED_PREFIX) {
                assert!(actual.starts_with(wire::MALFORMED_PREFIX), "{actual}");
            } else if LITERALS.iter().any(|literal| expected.starts_with(literal)) {
                assert_eq!(expected, actual);
            }
        }
        (expected, actual) => assert_eq!(expected, actual, "{path:?}"),
    }
}

fn same(_: &Value) -> Option<Value> {
    None
}

fn replay(name: &str, sent: Difference, expected: Difference) {
    let server = TestServer::start();
    Replay::run(&server, name, sent, expected).assert_alive();
}

#[test]
fn every_transcript_is_replayed_or_left_to_another_issue() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let found: BTreeSet<String> = fs::read_dir(dir)
        .expect("the folder is there")
        .map(|entry| entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    let replayed = [
        "env-policy", "handshake", "late-output", "malformed", "pipe", "resume", "signals", "start-errors", "stdin", "tty",
        "unknown-notification",
    ];
    assert_eq!(found, replayed.map(str::to_owned).into());
}

#[test]
fn env_policy() {
    replay("env-policy", same, same);
}

#[test]
fn late_output() {
    replay("late-output", same, same);
}

#[test]
fn pipe() {
    replay("pipe", same, same);
}

#[test]
fn stdin() {
    replay("stdin", same, same);
}

#[test]
fn tty() {
    replay("tty", same, same);
}

#[test]
fn malformed() {
    replay("malformed", same, same);
}

#[test]
fn handshake() {
    // Its exact `environment/info` is the reference's host and product; ours says what this host is, and claims none of the
    // capabilities that belong to that product (design section 4, last row).
    replay("handshake", same, |message| {
        (message["id"] == 6).then(|| {
            let capabilities = json!({
                "capabilityDiscoverySandbox": false, "environmentConfigRead": false, "httpHeaderEnvVars": false,
                "networkProxyLaunch": false, "sandboxedFileStreaming": false, "shellSnapshotV2": false,
            });
            json!({"id": 6, "result": {"capabilities": capabilities, "temporaryDirectories": [], "shell": {}}})
        })
    });
}

#[test]
fn signals() {
    // The reference knows `interrupt` only; ours takes every POSIX name (design section 4: every signal). The process has exited, so
    // that nothing happens, as for `interrupt`.
    replay("signals", same, |message| (message["id"] == 5).then(|| json!({"id": 5, "result": {}})));
}

#[test]
fn resume() {
    // The recording waited before it read; we wait in the read.
    replay(
        "resume",
        |message| {
            let mut message = message.clone();
            (message["method"] == "process/read").then(|| {
                message["params"]["waitMs"] = json!(20_000);
                message
            })
        },
        same,
    );
}

#[test]
fn unknown_notification() {
    // The reference closes the connection without a word, which is where the recording ends; ours answers with an error that has
    // id -1, and goes on (design section 4).
    let server = TestServer::start();
    let mut client = Replay::run(&server, "unknown-notification", same, same);
    client.expect_orphan_error("unknownNotification");
    client.assert_alive();
}

/// Where the script of `start_errors` stands.
fn script_path() -> PathBuf {
    PathBuf::from(format!("/tmp/exec-server-transcript-{}", std::process::id()))
}

#[test]
fn start_errors() {
    // The file that the recording executes stands at another place here, and says something else. The reference told the exit before
    // the output of it; ours appends what the pipe holds before the exit, always (spec 11.1.1, design section 5).
    let server = TestServer::start();
    let name = script_path();
    let name = name.file_name().and_then(|name| name.to_str()).expect("a plain name");
    let file = tempfile::Builder::new().prefix(name).rand_bytes(0).tempfile_in("/tmp").expect("make a script");
    // Closed before it is executed, removed at the end of the test.
    let script = file.into_temp_path();
    fs::write(&script, "echo by the shell >&2; exit 127\n").expect("write a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("make it executable");
    Replay::run(
        &server,
        "start-errors",
        |message| {
            let mut message = message.clone();
            (message["params"]["argv"][0] == "/etc/hostname").then(|| {
                message["params"]["argv"] = json!([script_path()]);
                message
            })
        },
        |message| {
            let params = &message["params"];
            let chunk = common::encode_base64(b"by the shell\n");
            let output = json!({"processId": "e", "seq": 1, "stream": "stderr", "chunk": chunk});
            let exited = json!({"processId": "e", "seq": 2, "exitCode": 127, "sandboxDenied": false});
            match (params["processId"].as_str(), message["method"].as_str()) {
                (Some("e"), Some("process/exited")) => Some(json!({"method": "process/output", "params": output})),
                (Some("e"), Some("process/output")) => Some(json!({"method": "process/exited", "params": exited})),
                _ => None,
            }
        },
    )
    .assert_alive();
}
