//! The model client: one session, any number of connections to it, of which one is attached.
//!
//! Owns what it has asked for and what became of it. After a cut it resumes, sends again what was not answered (starts, writes under
//! their ids, a close) and nothing else. It trusts nothing: every event goes through the views' checks.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::{Rc, Weak},
    sync::Arc,
};

use exec_server_rpc::Stream;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    branch::Branch,
    desk::{Desk, File},
    link::Link,
    rng::Rng,
    server::Server,
    stage::Stage,
    trace::Invariant,
    view::{Start, View},
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
    /// With the time it may wait.
    Read(String, u64),
    /// Signal, terminate: only that it is answered counts.
    Command(String),
    List,
    EndSession,
    Subscribe(String),
    /// Something with files.
    File(File),
    /// Said by a connection that has lost its session: must be refused.
    Stale,
    /// Something senseless, and the kind of the error that it must be answered with.
    Nonsense(&'static str),
}

impl Call {
    /// Whether it is a command on this process.
    pub(crate) fn is_about(&self, name: &str) -> bool {
        matches!(self, Self::Command(of) if of == name)
    }
}

/// One connection of a client.
pub(crate) struct Connection {
    pub(crate) link: Link,
    pub(crate) wire: Wire,
    pub(crate) calls: BTreeMap<u64, Call>,
    /// The session was given to it.
    pub(crate) is_initialized: bool,
    /// Another connection was given the session, one that was opened when this one had it: there is no doubt who came later.
    pub(crate) superseded: bool,
    /// Who had the session when this connection was opened.
    over: Option<u32>,
    /// The highest number seen per process: on one connection numbers only grow.
    pub(crate) seen: BTreeMap<String, u64>,
    /// Processes of other sessions that it follows, and their sessions.
    pub(crate) watched: BTreeMap<String, (String, View)>,
    /// Kinds of the errors without an id that are due.
    pub(crate) strays: VecDeque<&'static str>,
}

/// A client and everything it knows.
pub struct Client {
    /// Its name, in the trace and in the names of its processes.
    pub name: String,
    /// What it announces.
    pub kind: Kind,
    /// Understands `process/gap`, which a client that acknowledges always does.
    pub tells_gaps: bool,
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
    /// Its files.
    pub(crate) desk: Desk,
    /// The error kind of a resume that was refused for good.
    pub(crate) refused: Option<String>,
    pub(crate) ended: bool,
    /// It has asked for the end of its session.
    pub(crate) asked_to_end: bool,
    /// Its holder was killed.
    pub(crate) holder_killed: bool,
    /// When anything was last heard of the server.
    pub(crate) heard: Instant,
    pub(crate) server: Arc<Server>,
    pub(crate) stage: Stage,
    rng: Rng,
    next_connection: u32,
    next_call: u64,
}

struct Listener(Weak<RefCell<Client>>);

impl Ear for Listener {
    fn heard(&self, connection: u32, message: Value) {
        if let Some(client) = self.0.upgrade() {
            let mut client = client.borrow_mut();
            client.handle(connection, &message);
            client.hear(connection);
        }
    }

    fn pinged(&self, connection: u32) {
        if let Some(client) = self.0.upgrade() {
            client.borrow_mut().hear(connection);
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
    pub fn new(name: String, kind: Kind, server: Arc<Server>, stage: Stage, rng: Rng) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            name,
            kind,
            tells_gaps: kind == Kind::Acknowledges,
            ttl_ms: 120_000,
            acks_promptly: true,
            retained_max: Some(u64::MAX),
            session: None,
            attached: None,
            connections: BTreeMap::new(),
            views: BTreeMap::new(),
            desk: Desk::default(),
            refused: None,
            ended: false,
            asked_to_end: false,
            holder_killed: false,
            heard: Instant::now(),
            server,
            stage,
            rng,
            next_connection: 0,
            next_call: 0,
        }))
    }

    /// The server has spoken on a connection: the session is known to be attached if that one has it.
    fn hear(&mut self, connection: u32) {
        let is_attached = self.connections.get(&connection).is_some_and(|known| known.is_initialized);
        // One that came back when its time was over may have been let in in the last moment: its session ends all the same.
        let is_doomed = self.heard.elapsed().as_millis() >= u128::from(self.ttl_ms);
        if is_attached && !is_doomed {
            self.heard = Instant::now();
        }
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
            watched: BTreeMap::new(),
            strays: VecDeque::new(),
        };
        client.connections.insert(number, connection);
        client.trace(format_args!("connection {number}: {arrival:?}"));
        let mut params = json!({"clientName": client.name, "ttlMs": client.ttl_ms});
        if client.kind == Kind::Acknowledges {
            params["capabilities"] = json!({"ack": true, "gap": true});
        } else if client.tells_gaps {
            params["capabilities"] = json!({"gap": true});
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

    pub(crate) fn wrong(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.stage.trace.fail(invariant, format_args!("{}: {what}", self.name));
    }

    /// Asks something on a connection.
    pub(crate) fn call(&mut self, connection: u32, call: Call, method: &str, params: Value) {
        self.next_call += 1;
        let id = self.next_call;
        self.stage.trace.sent(method);
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.wire.send(&json!({"id": id, "method": method, "params": params}));
            connection.calls.insert(id, call);
        }
    }

    pub(crate) fn notify(&self, connection: u32, method: &str, params: Value) {
        self.stage.trace.sent(method);
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

    /// Lets go of all connections but the attached one, or of all.
    pub fn drop_connections(&mut self, keep_attached: bool) {
        let keep = self.attached.filter(|_| keep_attached);
        self.views.values_mut().for_each(View::give_up_keyless);
        self.connections.retain(|number, _| Some(*number) == keep);
        self.attached = keep;
    }

    fn handle_end(&mut self, connection: u32, why: &str) {
        let Some(ended) = self.connections.remove(&connection) else { return };
        let open = ended.calls.len();
        self.views.values_mut().for_each(View::give_up_keyless);
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
        if arrival != Arrival::New {
            self.stage.trace.count(Branch::Resume);
        }
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
        view.give_up_keyless();
        let unanswered = (0..view.writes.len()).filter(|index| view.writes[*index].status.is_none());
        let (unanswered, close) = (unanswered.collect::<Vec<_>>(), view.close_stdin == Some(None));
        let (asked, reads) = (
            matches!(view.start, Start::Asked(_)),
            view.start == Start::Done && !view.closed && self.kind == Kind::Reference,
        );
        let has_run = self.stage.records.with(name, |record| record.exit.is_some());
        if asked && (view.may_be_gone || self.kind == Kind::Reference && has_run) {
            // Its name may be free again, after a day or for a reference client half a minute: whoever asks now asks for another one.
            view.cancel();
        } else if asked {
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
