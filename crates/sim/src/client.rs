//! The model client: one session, any number of connections to it, of which one is attached.
//!
//! Owns what it has asked for and what became of it. After a cut it resumes, sends again what was not answered (starts, writes under
//! their ids, a close) and nothing else. It trusts nothing: every event goes through the views' checks.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::{Rc, Weak},
};

use exec_server_protocol::base64;
use exec_server_rpc::Stream;
use serde_json::{Value, json};

use crate::{
    child,
    link::Link,
    rng::Rng,
    stage::Stage,
    trace::Branch,
    view::{Plan, Start, View},
    wire::{Ear, Wire},
};

/// What a client announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `ack` and `gap`: it acknowledges what it has taken.
    Acknowledges,
    /// Nothing: it is pushed to, and reads what it missed.
    Reference,
}

/// How a connection comes to its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Makes it.
    New,
    /// Returns to it if nobody else is there.
    Resume,
    /// Returns to it whoever is there.
    TakeOver,
}

/// What a connection waits to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Initialize(Arrival),
    Start(String),
    Write(String, usize),
    CloseStdin(String),
    Read(String),
    /// Signal, terminate: only that it is answered counts.
    Command(String),
    List,
    EndSession,
    /// Said by a connection that has lost its session: must be refused.
    Stale,
}

/// One connection of a client.
pub(crate) struct Connection {
    pub(crate) link: Link,
    wire: Wire,
    pub(crate) calls: BTreeMap<u64, Call>,
    /// The session was given to it.
    pub(crate) is_initialized: bool,
    /// Another connection was given the session, one that was opened when this one had it: there is no doubt who came later.
    pub(crate) superseded: bool,
    /// Who had the session when this connection was opened.
    over: Option<u32>,
    /// The highest number seen per process: on one connection numbers only grow.
    pub(crate) seen: BTreeMap<String, u64>,
}

/// A client and everything it knows.
pub struct Client {
    /// Its name, in the trace and in the names of its processes.
    pub name: String,
    /// What it announces.
    pub kind: Kind,
    /// How long its session may be alone.
    pub ttl_ms: u64,
    /// Acknowledges as it takes; otherwise only when it is told to.
    pub acks_promptly: bool,
    /// What a log of this client may hold at most.
    pub retained_max: Option<u64>,
    pub(crate) session: Option<String>,
    pub(crate) attached: Option<u32>,
    pub(crate) connections: BTreeMap<u32, Connection>,
    /// Its processes, by name.
    pub views: BTreeMap<String, View>,
    /// The error kind of a resume that was refused for good.
    pub(crate) refused: Option<String>,
    pub(crate) ended: bool,
    pub(crate) stage: Stage,
    rng: Rng,
    next_connection: u32,
    next_call: u64,
}

struct Listener(Weak<RefCell<Client>>);

impl Ear for Listener {
    fn heard(&self, connection: u32, message: Value) {
        if let Some(client) = self.0.upgrade() {
            client.borrow_mut().handle(connection, &message);
        }
    }

    fn ended(&self, connection: u32, why: &str) {
        if let Some(client) = self.0.upgrade() {
            client.borrow_mut().handle_end(connection, why);
        }
    }
}

impl Client {
    /// A client that has not connected yet.
    pub fn new(name: String, kind: Kind, stage: Stage, rng: Rng) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            name,
            kind,
            ttl_ms: 120_000,
            acks_promptly: true,
            retained_max: Some(u64::MAX),
            session: None,
            attached: None,
            connections: BTreeMap::new(),
            views: BTreeMap::new(),
            refused: None,
            ended: false,
            stage,
            rng,
            next_connection: 0,
            next_call: 0,
        }))
    }

    /// Opens a connection and asks for the session.
    pub fn connect(this: &Rc<RefCell<Self>>, link: Link, stream: Stream, arrival: Arrival) -> u32 {
        let mut client = this.borrow_mut();
        client.next_connection += 1;
        let number = client.next_connection;
        let wire = Wire::new(number, stream, Listener(Rc::downgrade(this)));
        let connection = Connection {
            link,
            wire,
            calls: BTreeMap::new(),
            is_initialized: false,
            superseded: false,
            over: client.attached,
            seen: BTreeMap::new(),
        };
        client.connections.insert(number, connection);
        client.trace(format_args!("connection {number}: {arrival:?}"));
        let mut params = json!({"clientName": client.name, "ttlMs": client.ttl_ms});
        if client.kind == Kind::Acknowledges {
            params["capabilities"] = json!({"ack": true, "gap": true});
        }
        if arrival != Arrival::New {
            params["resumeSessionId"] = json!(client.session);
            params["takeover"] = json!(arrival == Arrival::TakeOver);
        }
        client.call(number, Call::Initialize(arrival), "initialize", params);
        number
    }

    pub(crate) fn trace(&self, what: std::fmt::Arguments<'_>) {
        self.stage.trace.line(format_args!("{} {what}", self.name));
    }

    pub(crate) fn wrong(&self, what: std::fmt::Arguments<'_>) {
        self.stage.trace.fail(format_args!("{}: {what}", self.name));
    }

    /// Asks something on a connection.
    pub(crate) fn call(&mut self, connection: u32, call: Call, method: &str, params: Value) {
        self.next_call += 1;
        let id = self.next_call;
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.wire.send(&json!({"id": id, "method": method, "params": params}));
            connection.calls.insert(id, call);
        }
    }

    fn notify(&self, connection: u32, method: &str, params: Value) {
        if let Some(connection) = self.connections.get(&connection) {
            connection.wire.send(&json!({"method": method, "params": params}));
        }
    }

    /// Whether anything is waited for on connections that are open and have not lost the session.
    pub fn waits_for(&self) -> Option<String> {
        let open = self.connections.iter().filter(|(_, connection)| !connection.superseded);
        open.flat_map(|(number, connection)| connection.calls.values().map(move |call| format!("{call:?} on {number}")))
            .next()
    }

    /// Starts a process.
    pub fn start(&mut self, name: &str, plan: Plan) {
        self.trace(format_args!("start {name}: {}", child::argv(name, &plan.steps)[2..].join(" ")));
        let view = View::new(name.to_owned(), plan, self.stage.trace.clone(), self.stage.records.clone());
        self.views.insert(name.to_owned(), view);
        self.ask_start(name);
    }

    fn ask_start(&mut self, name: &str) {
        let (Some(attached), Some(view)) = (self.attached, self.views.get_mut(name)) else { return };
        if let Start::Asked(times) = &mut view.start {
            *times += 1;
        }
        let mut params = json!({
            "processId": name,
            "argv": child::argv(name, &view.plan.steps),
            "cwd": "/",
            "env": {},
            "tty": view.plan.tty,
            "pipeStdin": view.plan.stdin,
        });
        if view.plan.drops {
            params["overflow"] = json!("dropOldest");
        }
        self.call(attached, Call::Start(name.to_owned()), "process/start", params);
    }

    /// Writes to a process's stdin, under an id.
    pub fn write(&mut self, name: &str, len: u64) {
        let Some(view) = self.views.get_mut(name) else { return };
        let index = view.next_write(len);
        self.trace(format_args!("write {name} {index}: {len} bytes"));
        self.ask_write(name, index);
    }

    fn ask_write(&mut self, name: &str, index: usize) {
        let (Some(attached), Some(view)) = (self.attached, self.views.get(name)) else { return };
        let chunk = base64::encode(&view.write_bytes(index));
        let params = json!({"processId": name, "chunk": chunk, "writeId": format!("{name}/{index}")});
        self.call(attached, Call::Write(name.to_owned(), index), "process/write", params);
    }

    /// Closes a process's stdin, behind its writes.
    pub fn close_stdin(&mut self, name: &str) {
        self.trace(format_args!("close stdin of {name}"));
        let Some(view) = self.views.get_mut(name) else { return };
        view.close_stdin = Some(None);
        self.ask_close(name);
    }

    fn ask_close(&mut self, name: &str) {
        if let Some(attached) = self.attached {
            let params = json!({"processId": name});
            self.call(attached, Call::CloseStdin(name.to_owned()), "process/closeStdin", params);
        }
    }

    /// Reads what was not taken yet.
    pub fn read(&mut self, name: &str, wait_ms: u64) {
        let (Some(attached), Some(view)) = (self.attached, self.views.get(name)) else { return };
        let params = json!({"processId": name, "afterSeq": view.last, "waitMs": wait_ms});
        self.call(attached, Call::Read(name.to_owned()), "process/read", params);
    }

    /// Signals, terminates, or anything else of which only the answer counts.
    pub fn command(&mut self, name: &str, method: &str, params: Value) {
        let Some(attached) = self.attached else { return };
        self.trace(format_args!("{method} {params}"));
        if let Some(view) = self.views.get_mut(name) {
            view.asked_to_die = true;
        }
        self.call(attached, Call::Command(name.to_owned()), method, params);
    }

    /// Drops a closed process.
    pub fn forget(&mut self, name: &str) {
        let (Some(attached), Some(view)) = (self.attached, self.views.get_mut(name)) else { return };
        view.forgotten = true;
        self.trace(format_args!("forget {name}"));
        self.call(attached, Call::Command(name.to_owned()), "process/forget", json!({"processId": name}));
    }

    /// Asks for the list of processes.
    pub fn list(&mut self) {
        if let Some(attached) = self.attached {
            self.call(attached, Call::List, "process/list", json!({}));
        }
    }

    /// Ends the session.
    pub fn end_session(&mut self) {
        if let Some(attached) = self.attached {
            self.trace(format_args!("ends its session"));
            self.call(attached, Call::EndSession, "session/end", json!({}));
        }
    }

    /// Acknowledges what was taken of a process.
    pub fn ack(&mut self, name: &str) {
        let (Some(attached), Some(view)) = (self.attached, self.views.get_mut(name)) else { return };
        if self.kind == Kind::Acknowledges && view.last > view.acked {
            (view.acked, view.unacked) = (view.last, 0);
            let params = json!({"processId": name, "seq": view.last});
            self.notify(attached, "process/ack", params);
        }
    }

    /// The old connection goes on speaking after another has the session: a write and a terminate that must not act.
    pub fn speak_stale(&mut self) {
        let stale = self.connections.iter().find(|(_, connection)| connection.superseded).map(|(number, _)| *number);
        let (Some(stale), Some(name)) = (stale, self.views.keys().next().cloned()) else { return };
        self.stage.trace.count(Branch::StaleSpoke);
        self.trace(format_args!("superseded connection {stale} speaks of {name}"));
        let params = json!({"processId": name, "chunk": base64::encode(b"from the past"), "writeId": "stale"});
        self.call(stale, Call::Stale, "process/write", params);
        self.call(stale, Call::Stale, "process/terminate", json!({"processId": name}));
        self.notify(stale, "process/ack", json!({"processId": name, "seq": 1_000_000}));
    }

    /// Lets go of all connections but the attached one, or of all.
    pub fn drop_connections(&mut self, keep_attached: bool) {
        let keep = self.attached.filter(|_| keep_attached);
        self.connections.retain(|number, _| Some(*number) == keep);
        self.attached = keep;
    }

    fn handle_end(&mut self, connection: u32, why: &str) {
        let Some(ended) = self.connections.remove(&connection) else { return };
        let open = ended.calls.len();
        self.trace(format_args!("connection {connection} ended ({why}), {open} calls open"));
        if self.attached == Some(connection) {
            // Two that raced may have been told in another order than they were served: the one that is left has the session.
            let mut left = self.connections.iter().filter(|(_, known)| known.is_initialized && !known.superseded);
            self.attached = left.next_back().map(|(number, _)| *number);
        }
    }

    /// The session is ours, on this connection: say what was left unsaid.
    pub(crate) fn settle_in(&mut self, number: u32, arrival: Arrival) {
        if let Some(known) = self.connections.get_mut(&number) {
            known.is_initialized = true;
            if let Some(over) = known.over
                && let Some(old) = self.connections.get_mut(&over)
            {
                old.superseded = true;
                let branch = if arrival == Arrival::TakeOver { Branch::Takeover } else { Branch::HandedOver };
                self.stage.trace.count(branch);
                if self.rng.chance(50) {
                    self.speak_stale();
                }
            }
        }
        self.attached = Some(number);
        self.notify(number, "initialized", json!({}));
        if arrival == Arrival::New {
            return;
        }
        self.stage.trace.count(Branch::Resume);
        for name in self.views.keys().cloned().collect::<Vec<_>>() {
            self.catch_up(&name);
        }
    }

    fn catch_up(&mut self, name: &str) {
        let Some(view) = self.views.get_mut(name) else { return };
        let replayed = view.last > view.acked;
        // What was acknowledged last may have been lost with the link.
        view.acked = 0;
        let live = self.stage.records.with(name, |record| record.spawns > 0 && record.exit.is_none());
        if live && replayed {
            self.stage.trace.count(Branch::ReplayWhileLive);
        }
        let unanswered = (0..view.writes.len()).filter(|index| view.writes[*index].status.is_none());
        let (unanswered, close) = (unanswered.collect::<Vec<_>>(), view.close_stdin == Some(None));
        let (asked, reads) = (matches!(view.start, Start::Asked(_)), !view.closed && self.kind == Kind::Reference);
        if asked {
            self.ask_start(name);
        }
        for index in unanswered {
            self.stage.trace.count(Branch::WriteRetry);
            self.trace(format_args!("write {name} {index} again"));
            self.ask_write(name, index);
        }
        if close {
            self.ask_close(name);
        }
        if reads && !asked && self.rng.chance(80) {
            self.read(name, 0);
        }
    }
}
