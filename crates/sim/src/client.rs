//! The model client: one session and any number of connections to it, one of which is attached.
//!
//! It records its requests and their results. After a cut it resumes and sends again only what was not answered: starts, writes under their
//! ids, and closes of stdin. It trusts nothing: every event goes through the checks of a view.

use crate::{
    client_files::{ClientFiles, FileCall},
    prelude::*,
    wire::{Arrival, WireConnection},
};

/// The capabilities that a client announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// `ack` and `gap`. The client acknowledges what it has processed.
    Acknowledges,
    /// No `ack`, like the reference client. The server pushes events, and the client reads what it missed.
    Reference,
}

/// How a connection gets its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// Creates a session.
    New,
    /// Resumes the session if no other connection is attached.
    Resume,
    /// Resumes the session even if another connection is attached.
    TakeOver,
}

/// A pending call of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PendingCall {
    Initialize(AttachMode),
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
    File(FileCall),
    /// A call on a connection that has lost its session. The server must refuse it.
    Stale,
    /// An invalid call, with the error kind that the server must answer.
    Nonsense(&'static str),
}

impl PendingCall {
    /// Whether this is a command on the given process.
    pub(crate) fn is_about(&self, name: &str) -> bool {
        matches!(self, Self::Command(of) if of == name)
    }
}

/// One connection of a client.
pub(crate) struct ModelConnection {
    pub(crate) link: SimLink,
    pub(crate) wire: WireConnection,
    pub(crate) calls: BTreeMap<u64, PendingCall>,
    /// The server has attached the session to this connection.
    pub(crate) is_initialized: bool,
    /// A later connection has the session. Set only if that connection was opened while this one was attached, so the order is certain.
    pub(crate) superseded: bool,
    /// The connection that was attached when this one was opened.
    over: Option<u32>,
    /// The highest sequence number seen per process. On one connection the numbers only grow.
    pub(crate) seen: BTreeMap<String, u64>,
    /// Processes of other sessions that this connection subscribes to: name to session and view.
    pub(crate) watched: BTreeMap<String, (String, ProcessView)>,
    /// The kinds of expected errors without an id, in order.
    pub(crate) strays: VecDeque<&'static str>,
}

/// A client and its state.
pub struct ModelClient {
    /// The name in the trace. Also the prefix of its process names.
    pub name: String,
    pub kind: ClientKind,
    /// Announces the `gap` capability. Always true for `ClientKind::Acknowledges`.
    pub announces_gaps: bool,
    /// Acknowledges as it processes events. Otherwise only when the world tells it to.
    pub acks_promptly: bool,
    /// The maximum number of bytes that a log of this client may retain.
    pub retained_max: Option<u64>,
    pub(crate) session: Option<String>,
    pub(crate) attached: Option<u32>,
    pub(crate) connections: BTreeMap<u32, ModelConnection>,
    /// Its processes, by name.
    pub views: BTreeMap<String, ProcessView>,
    /// Its file requests.
    pub(crate) files: ClientFiles,
    /// The error kind of a resume that was refused permanently.
    pub(crate) refused: Option<String>,
    pub(crate) ended: bool,
    /// It has sent `session/end`.
    pub(crate) end_requested: bool,
    /// The world killed its holder.
    pub(crate) holder_killed: bool,
    /// When the session was last known to be attached.
    pub(crate) last_attached: Instant,
    pub(crate) server: Arc<Server>,
    pub(crate) context: WorldContext,
    rng: Rng,
    next_connection: u32,
    next_call: u64,
}

impl ModelClient {
    pub fn new(
        name: String,
        kind: ClientKind,
        server: Arc<Server>,
        context: WorldContext,
        rng: Rng,
    ) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            name,
            kind,
            announces_gaps: kind == ClientKind::Acknowledges,
            acks_promptly: true,
            retained_max: Some(u64::MAX),
            session: None,
            attached: None,
            connections: BTreeMap::new(),
            views: BTreeMap::new(),
            files: ClientFiles::default(),
            refused: None,
            ended: false,
            end_requested: false,
            holder_killed: false,
            last_attached: Instant::now(),
            server,
            context,
            rng,
            next_connection: 0,
            next_call: 0,
        }))
    }

    /// The server has sent something on a connection. If the connection has the session, the session is known to be attached now.
    fn note_attached(&mut self, connection: u32) {
        let is_attached = self.connections.get(&connection).is_some_and(|known| known.is_initialized);
        // If the client resumed after its time-to-live, the server may have accepted it at the last moment. Its session still ends.
        let is_doomed = self.last_attached.elapsed() >= SESSION_TTL;
        if is_attached && !is_doomed {
            self.last_attached = Instant::now();
        }
    }

    /// Opens a connection and sends `initialize`.
    pub fn connect(this: &Rc<RefCell<Self>>, link: SimLink, stream: ByteStream, arrival: AttachMode) -> u32 {
        let mut client = this.borrow_mut();
        client.next_connection += 1;
        let number = client.next_connection;
        let listener = Rc::downgrade(this);
        let wire = WireConnection::new(stream, move |arrival| {
            let Some(client) = listener.upgrade() else { return };
            let mut client = client.borrow_mut();
            match &arrival {
                Arrival::Message(message) => client.handle(number, message),
                Arrival::Ping => {}
                Arrival::End(why) => return client.handle_end(number, why),
            }
            client.note_attached(number);
        });
        let connection = ModelConnection {
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
        let mut params = json!({"clientName": client.name, "ttlMs": SESSION_TTL_MS});
        if client.kind == ClientKind::Acknowledges {
            params["capabilities"] = json!({"ack": true, "gap": true});
        } else if client.announces_gaps {
            params["capabilities"] = json!({"gap": true});
        }
        if arrival != AttachMode::New {
            params["resumeSessionId"] = json!(client.session);
            params["takeover"] = json!(arrival == AttachMode::TakeOver);
        }
        client.call(number, PendingCall::Initialize(arrival), "initialize", params);
        number
    }

    pub(crate) fn trace(&self, what: std::fmt::Arguments<'_>) {
        self.context.trace.line(format_args!("{} {what}", self.name));
    }

    pub(crate) fn report_violation(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.context.trace.report_violation(invariant, format_args!("{}: {what}", self.name));
    }

    /// Sends a request on a connection.
    pub(crate) fn call(&mut self, connection: u32, call: PendingCall, method: &str, params: Value) {
        self.next_call += 1;
        let id = self.next_call;
        self.context.trace.sent(method);
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.wire.send(&json!({"id": id, "method": method, "params": params}));
            connection.calls.insert(id, call);
        }
    }

    pub(crate) fn notify(&self, connection: u32, method: &str, params: Value) {
        self.context.trace.sent(method);
        if let Some(connection) = self.connections.get(&connection) {
            connection.wire.send(&json!({"method": method, "params": params}));
        }
    }

    /// A pending call on an open connection that has not lost the session, if there is one.
    pub fn first_pending_call(&self) -> Option<String> {
        let open = self.connections.iter().filter(|(_, connection)| !connection.superseded);
        open.flat_map(|(number, connection)| connection.calls.values().map(move |call| format!("{call:?} on {number}")))
            .next()
    }

    /// Drops all connections, or all except the attached one.
    pub fn drop_connections(&mut self, keep_attached: bool) {
        let keep = self.attached.filter(|_| keep_attached);
        self.views.values_mut().for_each(ProcessView::give_up_keyless);
        self.connections.retain(|number, _| Some(*number) == keep);
        self.attached = keep;
    }

    fn handle_end(&mut self, connection: u32, why: &str) {
        let Some(ended) = self.connections.remove(&connection) else { return };
        let open = ended.calls.len();
        self.views.values_mut().for_each(ProcessView::give_up_keyless);
        self.trace(format_args!("connection {connection} ended ({why}), {open} calls open"));
        if self.attached == Some(connection) {
            // If two connections raced, their answers may have arrived in another order than the server handled them. The connection that
            // is left has the session.
            let mut left = self.connections.iter().filter(|(_, known)| known.is_initialized && !known.superseded);
            self.attached = left.next_back().map(|(number, _)| *number);
        }
    }

    /// Handles a successful `initialize`: this connection has the session now. Sends again what was not answered.
    pub(crate) fn handle_attached(&mut self, number: u32, arrival: AttachMode) {
        if let Some(known) = self.connections.get_mut(&number) {
            known.is_initialized = true;
            if let Some(over) = known.over
                && let Some(old) = self.connections.get_mut(&over)
            {
                old.superseded = true;
                let branch = if arrival == AttachMode::TakeOver { Branch::Takeover } else { Branch::HandedOver };
                self.context.trace.count(branch);
                if self.rng.chance(50) {
                    self.send_stale_request();
                }
            }
        }
        self.attached = Some(number);
        self.notify(number, "initialized", json!({}));
        if arrival != AttachMode::New {
            self.context.trace.count(Branch::Resume);
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
        if replayed && self.context.records.lives(name) {
            self.context.trace.count(Branch::ReplayWhileLive);
        }
        view.give_up_keyless();
        let unanswered = (0..view.writes.len()).filter(|index| view.writes[*index].status.is_none());
        let (unanswered, close) = (unanswered.collect::<Vec<_>>(), view.close_stdin == Some(None));
        let (asked, reads) = (
            matches!(view.start, StartState::Asked(_)),
            view.start == StartState::Done && !view.closed && self.kind == ClientKind::Reference,
        );
        let has_run = self.context.records.with(name, |record| record.exit.is_some());
        if asked && (view.may_be_gone || self.kind == ClientKind::Reference && has_run) {
            // The name may be free again: after a day, or for a reference client after half a minute. A repeated start would create a
            // second process.
            view.cancel();
        } else if asked {
            self.send_start(name);
        }
        for index in unanswered {
            self.context.trace.count(Branch::WriteRetry);
            self.trace(format_args!("write {name} {index} again"));
            self.send_write(name, index);
        }
        if close {
            self.send_close_stdin(name);
        }
        if reads && !asked && self.rng.chance(80) {
            self.read(name, 0);
        }
    }
}
