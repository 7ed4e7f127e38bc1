//! A program that uses the real client library over simulated links: sessions, process handles, cursors and stdin.
//!
//! Owns the client and its calls. Every call runs in its own task and must end. Every event goes through a
//! [`Ledger`](crate::ledger::Ledger), every error through the [`SessionHistory`]. The program may restart with only its records.

use exec_server_client::{
    Backoff, Client, ConnectionState, Process, Start,
    protocol::{SessionId, initialize::Ttl},
};
use tokio::sync::oneshot;

use crate::{
    child,
    context::Tasks,
    dialer::Dialer,
    plans,
    prelude::*,
    session_history::{SessionHistory, repeatable},
    user_process::UserProcess,
};

/// A client that was just opened, and the process that it started together with the handshake.
struct OpenedClient {
    client: Client,
    early: Option<(Rc<UserProcess>, Result<Process, Error>)>,
}

/// A program with the real client.
pub struct User {
    /// The name in the trace. Also the prefix of its process names.
    pub name: String,
    pub(crate) context: WorldContext,
    pub(crate) rng: Rng,
    pub(crate) dialer: Dialer,
    pub(crate) client: Option<Client>,
    pub(crate) session: Option<SessionId>,
    pub(crate) history: Rc<SessionHistory>,
    /// Calls that are not answered yet, oldest first.
    pub(crate) pending: Rc<RefCell<Vec<String>>>,
    /// Its processes, by name.
    pub(crate) processes: BTreeMap<String, Rc<UserProcess>>,
    /// A session is being created or resumed.
    opening: Option<oneshot::Receiver<Result<OpenedClient, Error>>>,
    /// How many starts were sent together with a handshake.
    early_starts: u32,
    /// The tasks of the current program.
    pub(crate) tasks: Tasks,
}

impl User {
    /// A program that has not connected yet.
    pub fn new(name: String, server: Arc<Server>, context: WorldContext, mut rng: Rng) -> Self {
        let dialer = Dialer::new(name.clone(), server, context.trace.clone(), rng.fork());
        let history = Rc::new(SessionHistory::new(name.clone(), dialer.clone(), context.trace.clone()));
        Self {
            name,
            context,
            rng,
            dialer,
            client: None,
            session: None,
            history,
            pending: Rc::default(),
            processes: BTreeMap::new(),
            opening: None,
            early_starts: 0,
            tasks: Tasks::default(),
        }
    }

    /// Kills the program: its tasks are aborted, and its pending calls are forgotten.
    pub(crate) fn kill(&mut self) {
        std::mem::take(&mut self.tasks).end();
        self.pending = Rc::default();
        self.opening = None;
    }

    pub(crate) fn trace(&self, what: std::fmt::Arguments<'_>) {
        self.context.trace.line(format_args!("{} {what}", self.name));
    }

    pub(crate) fn report_violation(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.context.trace.report_violation(invariant, format_args!("{}: {what}", self.name));
    }

    /// Starts to connect: creates a session, or resumes the one that it has.
    pub fn open(&mut self) {
        if self.opening.is_some() {
            return;
        }
        self.trace(format_args!("opens{}", if self.session.is_some() { " its session again" } else { "" }));
        let backoff = Backoff::default().seeded(self.rng.draw());
        let mut builder = Client::builder().name(&self.name).backoff(backoff).ttl(Ttl::Ms(SESSION_TTL_MS));
        builder = builder.connect_retry_for(Duration::from_secs(60));
        if let Some(session) = &self.session {
            builder = builder.resume(session.clone()).takeover(true);
        }
        self.history = Rc::new(if self.session.is_some() {
            self.history.continued()
        } else {
            self.dialer.reset_session();
            SessionHistory::new(self.name.clone(), self.dialer.clone(), self.context.trace.clone())
        });
        let (opened_tx, opened_rx) = oneshot::channel();
        self.opening = Some(opened_rx);
        let dialer = self.dialer.clone();
        if self.session.is_some() || !self.rng.chance(40) {
            let opening = async move {
                let opened = builder.open(dialer).await;
                drop(opened_tx.send(opened.map(|client| OpenedClient { client, early: None })));
            };
            return self.tasks.spawn(&self.context.trace, opening);
        }
        self.early_starts += 1;
        let name = format!("{}e{}", self.name, self.early_starts);
        let plan = plans::draw(&mut self.rng, false);
        let start = start_request(&name, &plan);
        let builder = builder.session_key(format!("{:016x}{:016x}", self.rng.draw(), self.rng.draw()));
        self.trace(format_args!("starts {name} with the handshake"));
        let (user_process, trace) = (Rc::new(UserProcess::new(self, name, plan)), self.context.trace.clone());
        self.tasks.spawn(&self.context.trace, async move {
            let opened = builder.open_and_start(dialer, start, Arc::default()).await;
            let spawns = user_process.check_spawns();
            if opened.is_ok() && spawns > 0 {
                trace.count(Branch::EarlyStart);
            }
            let opened = opened.map(|(client, process)| OpenedClient { client, early: Some((user_process, process)) });
            drop(opened_tx.send(opened));
        });
    }

    /// Checks whether `open` has completed. Called at every step.
    pub fn poll_open(&mut self) {
        let Some(Ok(result)) = self.opening.as_mut().map(oneshot::Receiver::try_recv) else { return };
        self.opening = None;
        match result {
            Ok(OpenedClient { client, early }) => {
                self.trace(format_args!("is connected"));
                self.session = client.session_id();
                self.watch(&client);
                self.client = Some(client);
                if let Some((user_process, started)) = early {
                    self.processes.insert(user_process.name.clone(), user_process.clone());
                    match started {
                        Ok(process) => user_process.set_process(process),
                        Err(error) => user_process.handle_unstarted(&self.history, &error),
                    }
                }
                self.reattach_all();
            }
            Err(error @ Error::SessionLost { .. }) => {
                self.history.check_error("open", &error);
                self.check_children_dead();
                self.session = None;
                self.processes.clear();
            }
            // The server did not answer in time. The program tries again later.
            Err(error) => self.trace(format_args!("cannot connect: {}", repeatable(&error))),
        }
    }

    /// Watches the state of a client: counts reconnects, and checks the reason when the client gives up.
    fn watch(&self, client: &Client) {
        let (mut state, history) = (client.watch_state(), self.history.clone());
        let (context, name) = (self.context.clone(), self.name.clone());
        self.tasks.spawn(&self.context.trace, async move {
            let mut was_down = false;
            loop {
                let now = state.borrow_and_update().clone();
                match now {
                    ConnectionState::Connected => {
                        history.handle_up();
                        if was_down {
                            context.trace.count(Branch::Mended);
                        }
                    }
                    ConnectionState::Lost { error } => return history.check_error("is lost", &error),
                    ConnectionState::Recovering { reason } => {
                        context.trace.line(format_args!("{name} recovers: {reason}"))
                    }
                    _ => {}
                }
                was_down = matches!(*state.borrow(), ConnectionState::Recovering { .. });
                if state.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    /// Whether the client is connected with its session, as far as it knows.
    pub fn is_up(&self) -> bool {
        self.client.as_ref().is_some_and(|client| matches!(client.state(), ConnectionState::Connected))
    }

    /// Whether the client has given up.
    pub fn is_lost(&self) -> bool {
        self.client.as_ref().is_some_and(|client| matches!(client.state(), ConnectionState::Lost { .. }))
    }

    /// Checks that the children of an ended session are dead.
    pub(crate) fn check_children_dead(&self) {
        for name in self.processes.keys() {
            if self.context.records.lives(name) {
                violation!(self, Expiry, "{name} lives although its session is over");
            }
        }
    }

    /// Makes a call in its own task, and passes the result to `then`.
    pub(crate) fn call<T: 'static>(
        &self,
        what: String,
        calling: impl Future<Output = Result<T, Error>> + 'static,
        then: impl FnOnce(Result<T, Error>) + 'static,
    ) {
        let (pending, context, name) = (self.pending.clone(), self.context.clone(), self.name.clone());
        context.trace.line(format_args!("{name} {what}"));
        pending.borrow_mut().push(what.clone());
        self.tasks.spawn(&self.context.trace, async move {
            let result = calling.await;
            let word = match &result {
                Ok(_) => "done".to_owned(),
                Err(error) => format!("failed: {}", repeatable(error)),
            };
            context.trace.line(format_args!("{name} {what}: {word}"));
            let answered = pending.borrow().iter().position(|call| *call == what).expect("the call was pending");
            pending.borrow_mut().remove(answered);
            then(result);
        });
    }

    /// Makes a call for which only the fact of an answer matters. An error must be one of `kinds`, or be explained by the session's history.
    pub(crate) fn expect<T: 'static>(
        &self,
        what: String,
        kinds: &'static [Kind],
        calling: impl Future<Output = Result<T, Error>> + 'static,
    ) {
        let history = self.history.clone();
        self.call(what.clone(), calling, move |result| match result {
            Ok(_) => {}
            Err(Error::Server { kind: Some(kind), .. }) if kinds.contains(&kind) => {}
            Err(Error::UnknownOutcome { .. }) if what.starts_with("signal") => {}
            Err(error) => history.check_refusal(&what, &error),
        });
    }

    pub fn start(&mut self, name: String, plan: Plan) {
        let Some(client) = self.client.clone() else { return };
        let start = start_request(&name, &plan);
        let user_process = Rc::new(UserProcess::new(self, name.clone(), plan));
        self.processes.insert(name.clone(), user_process.clone());
        let history = self.history.clone();
        let what = format!("start {name}: {}", child::argv(&name, &user_process.plan.steps)[2..].join(" "));
        self.call(what, async move { client.start(start).await }, move |result| match result {
            Ok(process) => user_process.set_process(process),
            Err(error) => user_process.handle_unstarted(&history, &error),
        });
    }
}

/// The start request of a plan.
fn start_request(name: &str, plan: &Plan) -> Start {
    let mut start = Start::new(child::argv(name, &plan.steps)).id(name).cwd("/").pipe_stdin(plan.stdin);
    if plan.tty {
        start = start.tty(Some(wire::Size { rows: 50, cols: 100 })).term("xterm");
    }
    if plan.drops {
        start = start.overflow(wire::Overflow::DropOldest);
    }
    if let Some(ms) = plan.timeout_ms {
        start = start.timeout(Duration::from_millis(ms));
    }
    if let Some(ms) = plan.idle_ms {
        start = start.idle_timeout(Duration::from_millis(ms));
    }
    start
}
