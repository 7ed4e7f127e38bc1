//! The operations of a program with the real client, one per step.

use exec_server_client::{Attach, Event, Process, protocol::SessionId};

use crate::{ledger::Ledger, plans, prelude::*, user_process::UserProcess};

/// The maximum number of processes that one program starts.
const PROCESSES_MAX: usize = 6;

/// Allowed errors: the process may be gone between the decision to call and the call.
const GONE: &[Kind] = &[Kind::UnknownProcess];

impl User {
    /// Performs one random operation.
    pub fn act(&mut self, next_process: &mut u32, heavy: bool) {
        if self.client.is_none() || self.is_lost() {
            return self.reopen();
        }
        match self.rng.within(0..100) {
            0..22 if self.processes.len() < PROCESSES_MAX => {
                *next_process += 1;
                let name = format!("{}p{next_process}", self.name);
                let plan = plans::draw(&mut self.rng, heavy);
                self.start(name.clone(), plan);
                if self.rng.chance(8) {
                    self.terminate(&name);
                }
            }
            0..50 => self.write(),
            50..53 => self.close_stdin(),
            53..60 => self.terminate_or_signal(),
            60..64 => self.change_pace(),
            64..68 => self.pick(UserProcess::has_handle).iter().for_each(UserProcess::read_again),
            68..72 => self.read_at_random(),
            72..76 => self.query_server(),
            76..78 => self.forget(),
            78..82 => self.restart(),
            _ => {
                let dialer = self.dialer.clone();
                dialer.apply_fault(&mut self.rng);
            }
        }
    }

    /// Opens a session, or a new one if the session was lost.
    pub fn reopen(&mut self) {
        if self.is_lost() {
            self.release();
            if self.history.ended.get() {
                self.session = None;
                self.processes.clear();
            }
        }
        self.open();
    }

    /// Drops everything except its records, like a killed program.
    fn release(&mut self) {
        self.history.left.set(true);
        self.processes.values().for_each(|user_process| user_process.release());
        self.client = None;
        self.kill();
    }

    /// Restarts the program, with or without closing the client first. Its records stay.
    fn restart(&mut self) {
        let Some(client) = self.client.clone() else { return };
        self.trace(format_args!("begins again"));
        self.release();
        if self.rng.chance(50) {
            let leaving = async move {
                client.close().await;
                Ok(())
            };
            self.call("leaves".to_owned(), leaving, |_| ());
        }
        self.open();
    }

    /// Attaches to the processes of a resumed session, each at its last position.
    pub(crate) fn reattach_all(&mut self) {
        let Some(client) = self.client.clone() else { return };
        for user_process in self.processes.values() {
            user_process.enter(self);
            if user_process.is_settled() || user_process.has_handle() {
                continue;
            }
            // The start may have been requested by the killed program, so it is unknown whether the process exists.
            let after = user_process.ledger.borrow().position;
            let (id, options) = (user_process.name.clone().into(), Attach { session_id: None, after, hold: true });
            let (client, user_process, history) = (client.clone(), user_process.clone(), self.history.clone());
            let trace = self.context.trace.clone();
            let spawned = self.context.records.with(&user_process.name, |record| record.spawns > 0);
            let what = format!("takes {} up after {after}", user_process.name);
            self.call(what.clone(), async move { client.attach(&id, options).await }, move |result| match result {
                Ok(process) => {
                    trace.count(Branch::TakenUp);
                    user_process.ledger.borrow_mut().is_reattached = true;
                    user_process.set_process(process);
                }
                Err(Error::Server { kind: Some(Kind::UnknownProcess), .. }) => {
                    user_process.is_cancelled.set(true);
                    if spawned && !user_process.kill_requested.get() && !history.holder_killed.get() {
                        violation!(trace, End, "{what}: the server does not know it");
                    }
                }
                Err(error) => history.check_error(&what, &error),
            });
        }
    }

    /// A random process of those that fit.
    pub(crate) fn pick(&mut self, fits: impl Fn(&UserProcess) -> bool) -> Option<Rc<UserProcess>> {
        let fitting: Vec<Rc<UserProcess>> =
            self.processes.values().filter(|user_process| fits(user_process)).cloned().collect();
        (!fitting.is_empty()).then(|| fitting[self.rng.index(fitting.len())].clone())
    }

    /// A random process of those that fit and have a handle.
    fn pick_running(&mut self, fits: impl Fn(&UserProcess) -> bool) -> Option<(Rc<UserProcess>, Process)> {
        let picked = self.pick(|user_process| user_process.has_handle() && fits(user_process))?;
        let process = picked.process.borrow().clone()?;
        Some((picked, process))
    }

    fn write(&mut self) {
        if let Some(user_process) = self.pick(UserProcess::takes_writes) {
            let len = *self.rng.pick(&[1, 10, 500, 5000, 60_000, 200_000]);
            user_process.write(self, len);
        }
    }

    fn close_stdin(&mut self) {
        if let Some(user_process) = self.pick(UserProcess::takes_writes) {
            user_process.close_stdin(self);
        }
    }

    fn terminate(&mut self, name: &str) {
        let Some((client, user_process)) = self.client.clone().zip(self.processes.get(name)) else { return };
        user_process.kill_requested.set(true);
        self.context.trace.count(Branch::TerminateWhileStarting);
        let params = wire::TerminateParams { process_id: name.into(), session_id: None, grace_ms: None };
        let calling = async move { client.request::<exec_server_client::requests::ProcessTerminate>(&params).await };
        self.expect(format!("terminate {name} while it starts"), GONE, calling);
    }

    fn terminate_or_signal(&mut self) {
        let grace = Duration::from_millis(self.rng.within(0..3000));
        let Some((user_process, process)) = self.pick_running(|user_process| !user_process.is_over()) else { return };
        let name = user_process.name.clone();
        match self.rng.within(0..5) {
            0 if user_process.plan.tty => {
                let size = wire::Size { rows: 30, cols: 90 };
                self.expect(format!("resize {name}"), GONE, async move { process.resize(size).await });
            }
            1 | 2 => {
                user_process.kill_requested.set(true);
                self.expect(format!("signal {name}"), GONE, async move { process.signal("SIGINT").await });
            }
            _ => {
                user_process.kill_requested.set(true);
                let grace = Some(grace).filter(|grace| grace.as_millis() % 3 > 0);
                self.expect(format!("terminate {name} {grace:?}"), GONE, async move { process.terminate(grace).await });
            }
        }
    }

    fn change_pace(&mut self) {
        let pause_ms = *self.rng.pick(&[0, 0, 1, 20, 500]);
        if let Some(user_process) = self.pick(|user_process| !user_process.is_over()) {
            self.trace(format_args!("takes {} with pauses of {pause_ms} ms", user_process.name));
            user_process.pause_ms.set(pause_ms);
        }
    }

    fn read_at_random(&mut self) {
        let wait = Duration::from_millis(*self.rng.pick(&[0, 0, 200, 3000]));
        let picked = self.pick_running(|user_process| !user_process.is_forgotten.get());
        let Some((user_process, process)) = picked else { return };
        let after = user_process.ledger.borrow().position;
        self.expect(format!("read {} after {after}", user_process.name), GONE, async move {
            process.read(after, Some(10_000), wait).await
        });
    }

    fn query_server(&mut self) {
        let Some(client) = self.client.clone() else { return };
        match self.rng.within(0..3) {
            0 => self.expect("list".to_owned(), &[], async move { client.list(wire::Scope::All).await }),
            1 => self.expect("environment info".to_owned(), &[], async move { client.environment_info().await }),
            _ => self.expect("environment status".to_owned(), &[], async move { client.environment_status().await }),
        }
    }

    fn forget(&mut self) {
        let is_due =
            |user_process: &UserProcess| user_process.ledger.borrow().closed && !user_process.is_forgotten.get();
        let Some(user_process) = self.pick(is_due) else { return };
        let Some(process) = user_process.process.borrow().clone() else { return };
        user_process.is_forgotten.set(true);
        self.expect(format!("forget {}", user_process.name), GONE, async move { process.forget().await });
    }

    /// Follows a process of another program.
    pub fn follow(&mut self, other: Rc<UserProcess>, session: SessionId) {
        let hold = self.rng.chance(50);
        let Some(client) = self.client.clone().filter(|_| other.plan.is_single()) else { return };
        let who = format!("{} {}", self.name, if hold { "holds" } else { "observes" });
        let mut ledger = Ledger::new(who, &other.name, &other.plan, &self.context);
        ledger.is_late = true;
        if hold {
            self.context.records.with(&other.name, |record| record.followers += 1);
        } else {
            ledger = ledger.observing();
        }
        let options = Attach { session_id: Some(session), after: 0, hold };
        let (id, what) = (other.name.clone().into(), format!("attaches to {} (hold: {hold})", other.name));
        let (trace, tasks, history) = (self.context.trace.clone(), self.tasks.clone(), self.history.clone());
        let (dialer, mut rng) = (self.dialer.clone(), self.rng.clone());
        let link = dialer.dialled();
        self.call(what, async move { client.attach(&id, options).await }, move |result| {
            let Ok(process) = result else { return };
            let mut events = process.events();
            let lasts = Duration::from_millis(rng.within(100..20_000));
            tasks.spawn(&trace.clone(), async move {
                let reading = async {
                    while let Some(event) = events.next().await {
                        match event {
                            Event::Failed(Error::Server { .. }) => return,
                            Event::Failed(error) => return history.check_error("follows", &error),
                            event => {
                                ledger.may_miss |= dialer.dialled() > link; // A hold ends with its connection.
                                ledger.take(&event, other.kill_requested.get());
                            }
                        }
                    }
                    trace.count(if hold { Branch::Held } else { Branch::Observed });
                };
                // Stop after a while: output must not be held forever.
                tokio::time::timeout(lasts, reading).await.ok();
                drop(process);
            });
        });
    }

    /// Ends the session and everything in it.
    pub fn end_session(&mut self) {
        let Some(client) = self.client.clone() else { return };
        self.history.ended.set(true);
        self.processes.values().for_each(|user_process| user_process.kill_requested.set(true));
        let (processes, records, trace) =
            (self.processes.clone(), self.context.records.clone(), self.context.trace.clone());
        let (history, name) = (self.history.clone(), self.name.clone());
        self.call(
            "ends its session".to_owned(),
            async move { client.end_session().await },
            move |result| match result {
                Ok(()) => {
                    trace.count(Branch::Ended);
                    if let Some(child) = processes.keys().find(|name| records.lives(name)) {
                        violation!(trace, Expiry, "{name}: {child} lives although its session was ended");
                    }
                }
                Err(error) => history.check_error("ends its session", &error),
            },
        );
    }
}
