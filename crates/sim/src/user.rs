//! A program that uses the real client library over simulated links: sessions, process handles, cursors and stdin.
//!
//! Owns the client and its calls. Every call runs in its own task and must end. Every event goes through a
//! [`Ledger`](crate::ledger::Ledger), every error through the [`Fate`]. The program may restart with only its records.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use exec_server_client::{
    Backoff, Client, ConnectionState, Error, Start,
    protocol::{SessionId, failure::Kind, initialize::Ttl, process as wire},
};

use crate::{
    branch::Branch,
    child,
    dialer::Dialer,
    fate::{Fate, repeatable},
    held::Held,
    rng::Rng,
    server::Server,
    stage::{Stage, Tasks},
    trace::Invariant,
    view::Plan,
};

/// Calls that are not answered yet, by number.
#[derive(Clone, Default)]
pub struct Pending(Rc<RefCell<(u64, BTreeMap<u64, String>)>>);

impl Pending {
    /// Records a call. The returned number ends it.
    pub fn begin(&self, what: String) -> u64 {
        let mut state = self.0.borrow_mut();
        state.0 += 1;
        let number = state.0;
        state.1.insert(number, what);
        number
    }

    /// Removes an answered call.
    pub fn end(&self, number: u64) {
        self.0.borrow_mut().1.remove(&number);
    }

    /// The oldest pending call.
    pub fn first(&self) -> Option<String> {
        self.0.borrow().1.values().next().cloned()
    }
}

/// A program with the real client.
pub struct User {
    /// The name in the trace. Also the prefix of its process names.
    pub name: String,
    pub(crate) stage: Stage,
    pub(crate) rng: Rng,
    pub(crate) dialer: Dialer,
    pub(crate) client: Option<Client>,
    pub(crate) session: Option<SessionId>,
    pub(crate) fate: Rc<Fate>,
    pub(crate) pending: Pending,
    /// Its processes, by name.
    pub(crate) held: BTreeMap<String, Rc<Held>>,
    /// A session is being created or resumed.
    pub(crate) is_opening: Rc<Cell<bool>>,
    pub(crate) opened: Rc<RefCell<Option<Result<Client, Error>>>>,
    ttl: Duration,
    /// The tasks of the current program.
    pub(crate) tasks: Tasks,
}

impl User {
    /// A program that has not connected yet.
    pub fn new(name: String, server: Arc<Server>, stage: Stage, mut rng: Rng) -> Self {
        let dialer = Dialer::new(name.clone(), server, stage.trace.clone(), rng.fork());
        let ttl = Duration::from_secs(120);
        let fate = Rc::new(Fate::new(name.clone(), dialer.clone(), stage.trace.clone(), ttl));
        Self {
            name,
            stage,
            rng,
            dialer,
            client: None,
            session: None,
            fate,
            pending: Pending::default(),
            held: BTreeMap::new(),
            is_opening: Rc::default(),
            opened: Rc::default(),
            ttl,
            tasks: Tasks::default(),
        }
    }

    /// Kills the program: its tasks are aborted, and its pending calls are forgotten.
    pub(crate) fn kill(&mut self) {
        std::mem::take(&mut self.tasks).end();
        self.pending = Pending::default();
        self.opened = Rc::default();
        self.is_opening = Rc::default();
    }

    pub(crate) fn trace(&self, what: std::fmt::Arguments<'_>) {
        self.stage.trace.line(format_args!("{} {what}", self.name));
    }

    pub(crate) fn wrong(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.stage.trace.fail(invariant, format_args!("{}: {what}", self.name));
    }

    /// Starts to connect: creates a session, or resumes the one that it has.
    pub fn open(&mut self) {
        if self.is_opening.replace(true) {
            return;
        }
        self.trace(format_args!("opens{}", if self.session.is_some() { " its session again" } else { "" }));
        let backoff = Backoff::default().seeded(self.rng.draw());
        let mut builder =
            Client::builder().name(&self.name).backoff(backoff).connect_retry_for(Duration::from_secs(60));
        builder = builder.ttl(Ttl::Ms(u64::try_from(self.ttl.as_millis()).expect("short")));
        if let Some(session) = &self.session {
            builder = builder.resume(session.clone()).takeover(true);
        }
        let mut fate = Fate::new(self.name.clone(), self.dialer.clone(), self.stage.trace.clone(), self.ttl);
        if self.session.is_some() {
            fate = fate.continuing(&self.fate);
        } else {
            self.dialer.forget();
        }
        self.fate = Rc::new(fate);
        let (dialer, opened, is_opening) = (self.dialer.clone(), self.opened.clone(), self.is_opening.clone());
        self.tasks.spawn(&self.stage.trace, async move {
            let result = builder.open(dialer).await;
            *opened.borrow_mut() = Some(result);
            is_opening.set(false);
        });
    }

    /// Checks whether `open` has completed. Called at every step.
    pub fn tend(&mut self) {
        let Some(result) = self.opened.borrow_mut().take() else { return };
        match result {
            Ok(client) => {
                self.trace(format_args!("is connected"));
                self.session = client.session_id();
                self.watch(&client);
                self.client = Some(client);
                self.take_up();
            }
            Err(error @ Error::SessionLost { .. }) => {
                self.fate.judge("open", &error);
                self.check_children_dead();
                self.session = None;
                self.held.clear();
            }
            // The server did not answer in time. The program tries again later.
            Err(error) => self.trace(format_args!("cannot connect: {}", repeatable(&error))),
        }
    }

    /// Watches the state of a client: counts reconnects, and checks the reason when the client gives up.
    fn watch(&self, client: &Client) {
        let (mut state, fate) = (client.watch_state(), self.fate.clone());
        let (stage, name) = (self.stage.clone(), self.name.clone());
        self.tasks.spawn(&self.stage.trace, async move {
            let mut was_down = false;
            loop {
                let now = state.borrow_and_update().clone();
                match now {
                    ConnectionState::Connected => {
                        fate.handle_up();
                        if was_down {
                            stage.trace.count(Branch::Mended);
                        }
                    }
                    ConnectionState::Lost { error } => return fate.judge("is lost", &error),
                    ConnectionState::Recovering { reason } => {
                        stage.trace.line(format_args!("{name} recovers: {reason}"))
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
        for name in self.held.keys() {
            if self.stage.records.with(name, |record| record.spawns > 0 && record.exit.is_none()) {
                self.wrong(Invariant::Expiry, format_args!("{name} lives although its session is over"));
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
        let (pending, stage, name) = (self.pending.clone(), self.stage.clone(), self.name.clone());
        stage.trace.line(format_args!("{name} {what}"));
        let number = pending.begin(what.clone());
        self.tasks.spawn(&self.stage.trace, async move {
            let result = calling.await;
            let word = match &result {
                Ok(_) => "done".to_owned(),
                Err(error) => format!("failed: {}", repeatable(error)),
            };
            stage.trace.line(format_args!("{name} {what}: {word}"));
            pending.end(number);
            then(result);
        });
    }

    /// Makes a call for which only the fact of an answer matters. An error must be one of `kinds`, or be explained by the session's fate.
    pub(crate) fn expect<T: 'static>(
        &self,
        what: String,
        kinds: &'static [Kind],
        calling: impl Future<Output = Result<T, Error>> + 'static,
    ) {
        let (fate, trace, name) = (self.fate.clone(), self.stage.trace.clone(), self.name.clone());
        self.call(what.clone(), calling, move |result| match result {
            Ok(_) => {}
            Err(Error::Server { kind: Some(kind), .. }) if kinds.contains(&kind) => {}
            Err(error) if fate.may_refuse(&error) => {}
            Err(Error::UnknownOutcome { .. }) if what.starts_with("signal") => {}
            Err(error @ (Error::Disconnected { .. } | Error::SessionLost { .. })) => fate.judge(&what, &error),
            Err(error) => trace.fail(Invariant::Answered, format_args!("{name} {what}: {error}")),
        });
    }

    pub fn start(&mut self, name: String, plan: Plan) {
        let Some(client) = self.client.clone() else { return };
        let mut start = Start::new(child::argv(&name, &plan.steps)).id(name.clone()).cwd("/").pipe_stdin(plan.stdin);
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
        let held = Rc::new(Held::new(self, name.clone(), plan));
        held.enter(self);
        self.held.insert(name.clone(), held.clone());
        let fate = self.fate.clone();
        let what = format!("start {name}: {}", child::argv(&name, &held.plan.steps)[2..].join(" "));
        self.call(what, async move { client.start(start).await }, move |result| match result {
            Ok(process) => held.begin(process),
            Err(error) => held.handle_unstarted(&fate, &error),
        });
    }
}
