//! A process in the hands of a program with the real client: its handle, its cursors, its input.
//!
//! Owns one ledger for each cursor and the list of writes, and holds both against what the child did. Outlives the client: a program that
//! begins again goes on with the same ledgers.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use crate::{
    branch::Branch,
    child::{STDIN_TEXT, text},
    fate::Fate,
    ledger::Ledger,
    rng::Rng,
    stage::{Stage, Tasks},
    stdin::PIPE_BYTES,
    trace::Invariant,
    user::User,
    view::Plan,
};
use exec_server_client::{
    Client, Error, Event, Process,
    protocol::{failure::Kind, process as wire},
};

/// One process and all that is known of it.
pub struct Held {
    pub(crate) name: String,
    pub(crate) plan: Plan,
    who: String,
    stage: Stage,
    pub(crate) fate: RefCell<Rc<Fate>>,
    pub(crate) process: RefCell<Option<Process>>,
    /// The start was refused or called off.
    pub(crate) is_cancelled: Cell<bool>,
    /// Somebody may end it by force.
    pub(crate) asked_to_die: Cell<bool>,
    /// Dropped from the server.
    pub(crate) is_forgotten: Cell<bool>,
    /// The main cursor's place.
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    /// Pause of the main cursor after each event.
    pub(crate) pause_ms: Cell<u64>,
    /// What runs in the program of the moment.
    tasks: RefCell<Tasks>,
    /// Bytes given to the input line, and how far they were accepted.
    written: Cell<u64>,
    accepted: Cell<u64>,
    /// Nobody knows any more what became of what was written last.
    pub(crate) is_input_over: Cell<bool>,
    checked: Cell<usize>,
}

impl Held {
    /// A process that is about to be asked for.
    pub fn new(user: &User, name: String, plan: Plan) -> Self {
        let (trace, records) = (user.stage.trace.clone(), user.stage.records.clone());
        Self {
            ledger: Rc::new(RefCell::new(Ledger::new(user.name.clone(), name.clone(), plan.clone(), trace, records))),
            name,
            plan,
            who: user.name.clone(),
            stage: user.stage.clone(),
            fate: RefCell::new(user.fate.clone()),
            process: RefCell::default(),
            is_cancelled: Cell::default(),
            asked_to_die: Cell::default(),
            is_forgotten: Cell::default(),
            pause_ms: Cell::default(),
            tasks: RefCell::new(user.tasks.clone()),
            written: Cell::default(),
            accepted: Cell::default(),
            is_input_over: Cell::default(),
            checked: Cell::default(),
        }
    }

    fn wrong(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.stage.trace.fail(invariant, format_args!("{} {}: {what}", self.who, self.name));
    }

    /// It is in the hands of the program of the moment.
    pub fn enter(&self, user: &User) {
        *self.fate.borrow_mut() = user.fate.clone();
        *self.tasks.borrow_mut() = user.tasks.clone();
    }

    /// It runs: the main cursor begins, or goes on, behind what it was told.
    pub fn begin(self: &Rc<Self>, process: Process) {
        let after = self.ledger.borrow().position;
        *self.process.borrow_mut() = Some(process.clone());
        if !self.ledger.borrow().closed {
            self.read(&process, after, self.ledger.clone(), true);
        }
    }

    /// Follows a cursor to its end.
    fn read(self: &Rc<Self>, process: &Process, after: u64, ledger: Rc<RefCell<Ledger>>, is_main: bool) {
        let mut events = process.events_after(after);
        let (held, stage, fate) = (self.clone(), self.stage.clone(), self.fate.borrow().clone());
        self.tasks.borrow().spawn(&self.stage.trace, async move {
            loop {
                match events.next().await {
                    None => return,
                    Some(Event::Failed(error)) => return fate.judge(&format!("reads {}", held.name), &error),
                    Some(event) => ledger.borrow_mut().take(&event, held.asked_to_die.get()),
                }
                let pause_ms = if is_main { held.pause_ms.get() } else { 0 };
                if pause_ms > 0 {
                    stage.pause(pause_ms).await;
                }
            }
        });
    }

    /// A second cursor reads everything from the beginning, what was let go included.
    pub fn read_again(self: &Rc<Self>) {
        let Some(process) = self.process.borrow().clone() else { return };
        // What nobody holds any more is a gap for it, without a count where the client itself cannot know it.
        if self.ledger.borrow().position < 3 || !self.plan.is_single() || self.plan.drops {
            return;
        }
        let (trace, records) = (self.stage.trace.clone(), self.stage.records.clone());
        let who = format!("{} again", self.who);
        trace.line(format_args!("{} reads {} again from the beginning", self.who, self.name));
        trace.count(Branch::LateCursor);
        let ledger = Ledger::new(who, self.name.clone(), self.plan.clone(), trace, records).observing();
        self.read(&process, 0, Rc::new(RefCell::new(ledger)), false);
    }

    /// The program ends: its cursors and its handle are gone, its notes stay.
    pub fn let_go(&self) {
        if self.process.borrow_mut().take().is_none() && !self.is_settled() {
            // Its start was under way, and a client that goes calls it off where it still can.
            self.asked_to_die.set(true);
        }
        if self.written.get() > self.accepted.get() {
            // Writes that were under way are lost with the client that knew their ids.
            self.is_input_over.set(true);
        }
    }

    /// A start that came to nothing.
    pub fn handle_unstarted(&self, fate: &Fate, error: &Error) {
        self.is_cancelled.set(true);
        match error {
            error if fate.may_refuse(error) => {}
            // A server that ends starts nothing; the client does not ask the next one by itself.
            Error::Server { kind: Some(Kind::Draining), .. } => {}
            Error::Disconnected { .. } | Error::SessionLost { .. } => {
                fate.judge(&format!("start {}", self.name), error)
            }
            _ => self.wrong(Invariant::Answered, format_args!("start failed: {error}")),
        }
    }

    /// Writes so many bytes to its input.
    pub fn write(self: &Rc<Self>, user: &User, len: u64) {
        let Some(process) = self.process.borrow().clone() else { return };
        let at = self.written.get();
        self.written.set(at + len);
        let bytes = text(&self.name, STDIN_TEXT, at, usize::try_from(len).expect("writes are small"));
        let (held, fate, dialer) = (self.clone(), self.fate.borrow().clone(), user.dialer.clone());
        let link = dialer.dialled();
        let what = format!("write {} {at}..{}", self.name, at + len);
        user.call(what.clone(), async move { process.write(bytes).await }, move |result| match result {
            Ok(wire::WriteStatus::Accepted) => {
                if held.accepted.get() != at && !held.is_input_over.get() {
                    held.wrong(Invariant::Stdin, format_args!("{at} was accepted after {}", held.accepted.get()));
                }
                held.accepted.set(at + len);
                if dialer.dialled() > link {
                    held.stage.trace.count(Branch::WriteAcrossCut);
                }
            }
            Ok(_) => held.is_input_over.set(true),
            Err(error) => {
                held.is_input_over.set(true);
                held.judge_input(&fate, &what, &error);
            }
        });
    }

    /// Closes its input behind everything written.
    pub fn close_stdin(self: &Rc<Self>, user: &User) {
        let Some(process) = self.process.borrow().clone() else { return };
        self.is_input_over.set(true);
        let (held, fate, what) = (self.clone(), self.fate.borrow().clone(), format!("close stdin of {}", self.name));
        user.call(what.clone(), async move { process.close_stdin().await }, move |result| {
            if let Err(error) = result {
                held.judge_input(&fate, &what, &error);
            }
        });
    }

    fn judge_input(&self, fate: &Fate, what: &str, error: &Error) {
        match error {
            error if fate.may_refuse(error) => {}
            Error::Disconnected { .. } | Error::SessionLost { .. } => fate.judge(what, error),
            _ => self.wrong(Invariant::Answered, format_args!("{what}: {error}")),
        }
    }

    /// Whether its input can be written.
    pub fn takes_writes(&self) -> bool {
        self.plan.stdin && !self.is_input_over.get() && !self.is_forgotten.get() && self.process.borrow().is_some()
    }

    /// Holds what the child has read against what was written to it, after every step.
    pub fn check(&self) {
        let from = self.checked.get();
        let (len, matches, is_dead) = self.stage.records.with(&self.name, |record| {
            let new = &record.stdin[from..];
            let matches = text(&self.name, STDIN_TEXT, from as u64, new.len()) == new;
            (record.stdin.len(), matches, record.exit.is_some())
        });
        self.checked.set(len);
        if !matches || len as u64 > self.written.get() {
            self.wrong(Invariant::Stdin, format_args!("stdin {from}..{len} is not what was written"));
        }
        if self.accepted.get() > len as u64 + PIPE_BYTES && !is_dead {
            self.wrong(Invariant::Stdin, format_args!("{} bytes accepted, {len} read", self.accepted.get()));
        }
        let spawns = self.stage.records.with(&self.name, |record| record.spawns);
        if spawns > 1 {
            self.wrong(Invariant::Start, format_args!("spawned {spawns} times"));
        }
    }

    /// Whether everything of it was told that ever will be.
    pub fn is_over(&self) -> bool {
        self.is_cancelled.get() || self.ledger.borrow().closed
    }

    /// Whether no program will take it up again.
    pub fn is_settled(&self) -> bool {
        self.is_over() || self.is_forgotten.get()
    }

    /// The last word on a process that was followed to its end.
    pub fn check_end(&self) {
        self.check();
        let record = self.stage.records.get(&self.name);
        if !self.is_over() {
            self.wrong(Invariant::End, format_args!("never closed: {}", self.ledger.borrow().standing()));
        }
        if record.saw_eof && !record.lost && (record.stdin.len() as u64) < self.accepted.get() {
            let (accepted, read) = (self.accepted.get(), record.stdin.len());
            self.wrong(Invariant::Stdin, format_args!("{accepted} bytes were accepted, stdin ended at {read}"));
        }
        let is_timed = self.plan.timeout_ms.or(self.plan.idle_ms).is_some();
        if record.exit.is_some_and(|code| code > 128) && !self.asked_to_die.get() && !is_timed && !record.lost {
            self.wrong(Invariant::Start, format_args!("was killed ({:?}) and nobody asked for it", record.signals));
        }
    }
}

/// A process of another session, followed with the real client.
pub fn follow(
    user: &User,
    client: Client,
    other: &Rc<Held>,
    session: exec_server_client::protocol::SessionId,
    hold: bool,
) {
    let (trace, records) = (user.stage.trace.clone(), user.stage.records.clone());
    let who = format!("{} {}", user.name, if hold { "holds" } else { "observes" });
    let mut ledger = Ledger::new(who, other.name.clone(), other.plan.clone(), trace.clone(), records).late();
    if hold {
        user.stage.records.with(&other.name, |record| record.followers += 1);
    } else {
        ledger = ledger.observing();
    }
    let options = exec_server_client::Attach { session_id: Some(session), after: 0, hold };
    let (id, other, tasks) = (other.name.clone().into(), other.clone(), user.tasks.clone());
    let dialer = user.dialer.clone();
    let link = dialer.dialled();
    let fate = user.fate.clone();
    let mut rng: Rng = user.rng.clone();
    user.call(
        format!("attaches to {} (hold: {hold})", other.name),
        async move { client.attach(&id, options).await },
        move |result| {
            let Ok(process) = result else { return };
            let mut events = process.events();
            let lasts = Duration::from_millis(rng.within(100..20_000));
            tasks.spawn(&trace.clone(), async move {
                let reading = async {
                    while let Some(event) = events.next().await {
                        match event {
                            Event::Failed(Error::Server { .. }) => return,
                            Event::Failed(error) => return fate.judge("follows", &error),
                            event => {
                                ledger.may_miss |= dialer.dialled() > link; // A hold ends with its connection.
                                ledger.take(&event, other.asked_to_die.get());
                            }
                        }
                    }
                    trace.count(if hold { Branch::Held } else { Branch::Observed });
                };
                // It lets go after a while: what is held must not be held for ever.
                tokio::time::timeout(lasts, reading).await.ok();
                drop(process);
            });
        },
    );
}
