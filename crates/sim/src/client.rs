//! The model client: one session and any number of connections to it, one of which is attached.
//!
//! It records its requests and their results. After a cut it resumes and sends again only what was not answered: starts, writes under their
//! ids, and closes of stdin. It trusts nothing: every event goes through the checks of a view.

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

/// The capabilities that a client announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `ack` and `gap`. The client acknowledges what it has processed.
    Acknowledges,
    /// No `ack`, like the reference client. The server pushes events, and the client reads what it missed.
    Reference,
}

/// How a connection gets its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Creates a session.
    New,
    /// Resumes the session if no other connection is attached.
    Resume,
    /// Resumes the session even if another connection is attached.
    TakeOver,
}

/// A pending call of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Initialize(Arrival),
    Start(String),
    Write(String, usize),
    CloseStdin(String),
    /// With its maximum wait in milliseconds.
    Read(String, u64),
    /// Signal, terminate and others for which only the fact of an answer matters.
    Command(String),
    List,
    EndSession,
    Subscribe(String),
    /// A file request.
    File(File),
    /// A call on a connection that has lost its session. The server must refuse it.
    Stale,
    /// An invalid call, with the error kind that the server must answer.
    Nonsense(&'static str),
}

impl Call {
    /// Whether this is a command on the given process.
    pub(crate) fn is_about(&self, name: &str) -> bool {
        matches!(self, Self::Command(of) if of == name)
    }
}

/// One connection of a client.
pub(crate) struct Connection {
    pub(crate) link: Link,
    pub(crate) wire: Wire,
    pub(crate) calls: BTreeMap<u64, Call>,
    /// The server has attached the session to this connection.
    pub(crate) is_initialized: bool,
    /// A later connection has the session. Set only if that connection was opened while this one was attached, so the order is certain.
    pub(crate) superseded: bool,
    /// The connection that was attached when this one was opened.
    over: Option<u32>,
    /// The highest sequence number seen per process. On one connection the numbers only grow.
    pub(crate) seen: BTreeMap<String, u64>,
    /// Processes of other sessions that this connection subscribes to: name to session and view.
    pub(crate) watched: BTreeMap<String, (String, View)>,
    /// The kinds of expected errors without an id, in order.
    pub(crate) strays: VecDeque<&'static str>,
}

/// A client and its state.
pub struct Client {
    /// The name in the trace. Also the prefix of its process names.
    pub name: String,
    pub kind: Kind,
    /// Announces the `gap` capability. Always true for `Kind::Acknowledges`.
    pub tells_gaps: bool,
    /// The time-to-live of its session while detached.
    pub ttl_ms: u64,
    /// Acknowledges as it processes events. Otherwise only when the world tells it to.
    pub acks_promptly: bool,
    /// The maximum number of bytes that a log of this client may retain.
    pub retained_max: Option<u64>,
    pub(crate) session: Option<String>,
    pub(crate) attached: Option<u32>,
    pub(crate) connections: BTreeMap<u32, Connection>,
    /// Its processes, by name.
    pub views: BTreeMap<String, View>,
    /// Its file requests.
    pub(crate) desk: Desk,
    /// The error kind of a resume that was refused permanently.
    pub(crate) refused: Option<String>,
    pub(crate) ended: bool,
    /// It has sent `session/end`.
    pub(crate) asked_to_end: bool,
    /// The world killed its holder.
    pub(crate) holder_killed: bool,
    /// When the session was last known to be attached.
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

    /// The server has sent something on a connection. If the connection has the session, the session is known to be attached now.
    fn hear(&mut self, connection: u32) {
        let is_attached = self.connections.get(&connection).is_some_and(|known| known.is_initialized);
        // If the client resumed after its time-to-live, the server may have accepted it at the last moment. Its session still ends.
        let is_doomed = self.heard.elapsed().as_millis() >= u128::from(self.ttl_ms);
        if is_attached && !is_doomed {
            self.heard = Instant::now();
        }
    }

    /// Opens a connection and sends `initialize`.
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

    /// Sends a request on a connection.
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

    /// A pending call on an open connection that has not lost the session, if there is one.
    pub fn waits_for(&self) -> Option<String> {
        let open = self.connections.iter().filter(|(_, connection)| !connection.superseded);
        open.flat_map(|(number, connection)| connection.calls.values().map(move |call| format!("{call:?} on {number}")))
            .next()
    }

    /// Drops all connections, or all except the attached one.
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
            // If two connections raced, their answers may have arrived in another order than the server handled them. The connection that
            // is left has the session.
            let mut left = self.connections.iter().filter(|(_, known)| known.is_initialized && !known.superseded);
            self.attached = left.next_back().map(|(number, _)| *number);
        }
    }

    /// Handles a successful `initialize`: this connection has the session now. Sends again what was not answered.
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
        // The last acknowledgement may have been lost with the link, so acknowledge again.
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
            // The name may be free again: after a day, or for a reference client after half a minute. A repeated start would create a
            // second process.
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
