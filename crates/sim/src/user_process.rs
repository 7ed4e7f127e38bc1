//! A process as used by a program with the real client: its handle, cursors and stdin.
//!
//! Keeps one ledger per cursor and the position of writes, and compares both with what the child did. Outlives the client: a restarted
//! program continues with the same ledgers.

use std::cell::Cell;

use exec_server_client::{Event, Process};

use crate::{
    child::STDIN_TEXT, context::Tasks, ledger::Ledger, prelude::*, session_history::SessionHistory, stdin::PIPE_BYTES,
};

/// One process and everything known about it.
pub struct UserProcess {
    pub(crate) name: String,
    pub(crate) plan: Plan,
    who: String,
    context: WorldContext,
    pub(crate) history: RefCell<Rc<SessionHistory>>,
    pub(crate) process: RefCell<Option<Process>>,
    /// The start failed or was cancelled.
    pub(crate) is_cancelled: Cell<bool>,
    /// The end of the process was requested, so a death by signal is expected.
    pub(crate) kill_requested: Cell<bool>,
    /// The server no longer keeps the process.
    pub(crate) is_forgotten: Cell<bool>,
    /// The state of the main cursor.
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    /// The pause of the main cursor after each event.
    pub(crate) pause_ms: Cell<u64>,
    /// The tasks of the current program.
    tasks: RefCell<Tasks>,
    /// How many bytes were written, and how many of them were accepted.
    written: Cell<u64>,
    accepted: Cell<u64>,
    /// No more writes are possible: stdin was closed, or the result of the last write is unknown.
    pub(crate) is_input_over: Cell<bool>,
    checked: Cell<usize>,
}

impl UserProcess {
    /// A process whose start is about to be requested.
    pub fn new(user: &User, name: String, plan: Plan) -> Self {
        Self {
            ledger: Rc::new(RefCell::new(Ledger::new(user.name.clone(), &name, &plan, &user.context))),
            name,
            plan,
            who: user.name.clone(),
            context: user.context.clone(),
            history: RefCell::new(user.history.clone()),
            process: RefCell::default(),
            is_cancelled: Cell::default(),
            kill_requested: Cell::default(),
            is_forgotten: Cell::default(),
            pause_ms: Cell::default(),
            tasks: RefCell::new(user.tasks.clone()),
            written: Cell::default(),
            accepted: Cell::default(),
            is_input_over: Cell::default(),
            checked: Cell::default(),
        }
    }

    fn report_violation(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.context.trace.report_violation(invariant, format_args!("{} {}: {what}", self.who, self.name));
    }

    /// Assigns the process to the current program.
    pub fn enter(&self, user: &User) {
        *self.history.borrow_mut() = user.history.clone();
        *self.tasks.borrow_mut() = user.tasks.clone();
    }

    /// The process runs: starts the main cursor after its last event.
    pub fn set_process(self: &Rc<Self>, process: Process) {
        let after = self.ledger.borrow().position;
        *self.process.borrow_mut() = Some(process.clone());
        if !self.ledger.borrow().closed {
            self.read(&process, after, self.ledger.clone(), true);
        }
    }

    /// Reads a cursor to its end.
    fn read(self: &Rc<Self>, process: &Process, after: u64, ledger: Rc<RefCell<Ledger>>, is_main: bool) {
        let mut events = process.events_after(after);
        let (user_process, context, history) = (self.clone(), self.context.clone(), self.history.borrow().clone());
        self.tasks.borrow().spawn(&self.context.trace, async move {
            loop {
                match events.next().await {
                    None => return,
                    Some(Event::Failed(error)) => {
                        return history.check_error(&format!("reads {}", user_process.name), &error);
                    }
                    Some(event) => ledger.borrow_mut().take(&event, user_process.kill_requested.get()),
                }
                let pause_ms = if is_main { user_process.pause_ms.get() } else { 0 };
                if pause_ms > 0 {
                    context.pause(pause_ms).await;
                }
            }
        });
    }

    /// A second cursor reads everything from the beginning, including output that was already freed.
    pub fn read_again(self: &Rc<Self>) {
        let Some(process) = self.process.borrow().clone() else { return };
        // Freed output is a gap for this cursor, without a byte count if the client cannot know it. A ledger can place such a gap only in a
        // single stream.
        if self.ledger.borrow().position < 3 || !self.plan.is_single() || self.plan.drops {
            return;
        }
        self.context.trace.line(format_args!("{} reads {} again from the beginning", self.who, self.name));
        self.context.trace.count(Branch::LateCursor);
        let ledger = Ledger::new(format!("{} again", self.who), &self.name, &self.plan, &self.context).observing();
        self.read(&process, 0, Rc::new(RefCell::new(ledger)), false);
    }

    /// The program ends. Its cursors and its handle are gone, but its records stay.
    pub fn release(&self) {
        if self.process.borrow_mut().take().is_none() && !self.is_settled() {
            // The start was in progress. A client that is dropped cancels the start if it still can.
            self.kill_requested.set(true);
        }
        if self.written.get() > self.accepted.get() {
            // The results of writes in progress are lost, because only the dropped client knew their ids.
            self.is_input_over.set(true);
        }
    }

    /// Handles a failed start.
    pub fn handle_unstarted(&self, history: &SessionHistory, error: &Error) {
        self.is_cancelled.set(true);
        // A draining server starts nothing. The client does not retry on the next server by itself.
        if error.server_kind() != Some(Kind::Draining) {
            history.check_refusal(&format!("start {}", self.name), error);
        }
    }

    /// Writes `len` bytes to stdin.
    pub fn write(self: &Rc<Self>, user: &User, len: u64) {
        let Some(process) = self.process.borrow().clone() else { return };
        let at = self.written.get();
        self.written.set(at + len);
        let bytes = text(&self.name, STDIN_TEXT, at, usize::try_from(len).expect("writes are small"));
        let (user_process, history, dialer) = (self.clone(), self.history.borrow().clone(), user.dialer.clone());
        let link = dialer.dialled();
        let what = format!("write {} {at}..{}", self.name, at + len);
        user.call(what.clone(), async move { process.write(bytes).await }, move |result| match result {
            Ok(wire::WriteStatus::Accepted) => {
                if user_process.accepted.get() != at && !user_process.is_input_over.get() {
                    violation!(user_process, Stdin, "{at} was accepted after {}", user_process.accepted.get());
                }
                user_process.accepted.set(at + len);
                if dialer.dialled() > link {
                    user_process.context.trace.count(Branch::WriteAcrossCut);
                }
            }
            Ok(_) => user_process.is_input_over.set(true),
            Err(error) => {
                user_process.is_input_over.set(true);
                history.check_refusal(&what, &error);
            }
        });
    }

    /// Closes stdin after all writes.
    pub fn close_stdin(self: &Rc<Self>, user: &User) {
        let Some(process) = self.process.borrow().clone() else { return };
        self.is_input_over.set(true);
        let history = self.history.borrow().clone();
        let what = format!("close stdin of {}", self.name);
        user.call(what.clone(), async move { process.close_stdin().await }, move |result| {
            if let Err(error) = result {
                history.check_refusal(&what, &error);
            }
        });
    }

    /// Whether the current program has a handle of the process.
    pub fn has_handle(&self) -> bool {
        self.process.borrow().is_some()
    }

    /// Whether stdin can be written to.
    pub fn takes_writes(&self) -> bool {
        self.plan.stdin && !self.is_input_over.get() && !self.is_forgotten.get() && self.has_handle()
    }

    /// More time has passed than closed processes are kept.
    pub fn age(&self) {
        self.is_forgotten.set(self.is_forgotten.get() || self.ledger.borrow().closed);
    }

    /// Compares what the child has read with what was written. Called after every step.
    pub fn check(&self) {
        let from = self.checked.get();
        let (len, matches, is_dead) = self.context.records.with(&self.name, |record| {
            let new = &record.stdin[from..];
            let matches = text(&self.name, STDIN_TEXT, from as u64, new.len()) == new;
            (record.stdin.len(), matches, record.exit.is_some())
        });
        self.checked.set(len);
        if !matches || len as u64 > self.written.get() {
            violation!(self, Stdin, "stdin {from}..{len} is not what was written");
        }
        if self.accepted.get() > len as u64 + PIPE_BYTES && !is_dead {
            violation!(self, Stdin, "{} bytes accepted, {len} read", self.accepted.get());
        }
        self.check_spawns();
    }

    /// Checks that the process was spawned at most once. Returns how often.
    pub fn check_spawns(&self) -> u32 {
        let spawns = self.context.records.with(&self.name, |record| record.spawns);
        if spawns > 1 {
            violation!(self, Start, "spawned {spawns} times");
        }
        spawns
    }

    /// Whether all events of the process have been received, or there will be none.
    pub fn is_over(&self) -> bool {
        self.is_cancelled.get() || self.ledger.borrow().closed
    }

    /// Whether a restarted program need not attach to it again.
    pub fn is_settled(&self) -> bool {
        self.is_over() || self.is_forgotten.get()
    }

    /// The final checks at the end of a world.
    pub fn check_end(&self) {
        self.check();
        let record = self.context.records.get(&self.name);
        if !self.is_over() {
            violation!(self, End, "never closed: {}", self.ledger.borrow().summary());
        }
        if record.saw_eof && !record.lost && (record.stdin.len() as u64) < self.accepted.get() {
            let (accepted, read) = (self.accepted.get(), record.stdin.len());
            violation!(self, Stdin, "{accepted} bytes were accepted, stdin ended at {read}");
        }
        let is_timed = self.plan.timeout_ms.or(self.plan.idle_ms).is_some();
        if record.exit.is_some_and(|code| code > 128) && !self.kill_requested.get() && !is_timed && !record.lost {
            violation!(self, Start, "was killed ({:?}) and nobody asked for it", record.signals);
        }
    }
}
