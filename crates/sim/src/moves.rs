//! The operations of a program with the real client, one per step.

use std::{rc::Rc, time::Duration};

use exec_server_client::{
    Attach, Error,
    protocol::{failure::Kind, process as wire},
};

use crate::{
    branch::Branch,
    held::{self, Held},
    plans,
    trace::Invariant,
    user::User,
};

/// The maximum number of processes that one program starts.
const PROCESSES_MAX: usize = 6;

/// Allowed errors: the process may be gone between the decision to call and the call.
const GONE: &[Kind] = &[Kind::UnknownProcess];

impl User {
    /// Performs one random operation.
    pub fn act(&mut self, next_process: &mut u32, heavy: bool) {
        if self.client.is_none() || self.is_lost() {
            return self.begin_again();
        }
        match self.rng.within(0..100) {
            0..22 if self.held.len() < PROCESSES_MAX => {
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
            53..60 => self.steer(),
            60..64 => self.change_pace(),
            64..68 => self.pick(|held| held.process.borrow().is_some()).into_iter().for_each(|held| held.read_again()),
            68..72 => self.read_at_random(),
            72..76 => self.ask_around(),
            76..78 => self.forget(),
            78..82 => self.restart(),
            _ => {
                let dialer = self.dialer.clone();
                dialer.disturb(&mut self.rng);
            }
        }
    }

    /// Opens a session, or a new one if the session was lost.
    pub fn begin_again(&mut self) {
        if self.is_lost() {
            self.let_go();
            if self.fate.ended.get() {
                self.session = None;
                self.held.clear();
            }
        }
        self.open();
    }

    /// Drops everything except its records, like a killed program.
    fn let_go(&mut self) {
        self.fate.left.set(true);
        self.held.values().for_each(|held| held.let_go());
        self.client = None;
        self.kill();
    }

    /// Restarts the program, with or without closing the client first. Its records stay.
    fn restart(&mut self) {
        let Some(client) = self.client.clone() else { return };
        self.trace(format_args!("begins again"));
        self.let_go();
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
    pub(crate) fn take_up(&mut self) {
        let Some(client) = self.client.clone() else { return };
        for held in self.held.values() {
            held.enter(self);
            if held.is_settled() || held.process.borrow().is_some() {
                continue;
            }
            // The start may have been requested by the killed program, so it is unknown whether the process exists.
            let after = held.ledger.borrow().position;
            let (id, options) = (held.name.clone().into(), Attach { session_id: None, after, hold: true });
            let (client, held, fate) = (client.clone(), held.clone(), self.fate.clone());
            let trace = self.stage.trace.clone();
            let spawned = self.stage.records.with(&held.name, |record| record.spawns > 0);
            let what = format!("takes {} up after {after}", held.name);
            self.call(what.clone(), async move { client.attach(&id, options).await }, move |result| match result {
                Ok(process) => {
                    trace.count(Branch::TakenUp);
                    held.ledger.borrow_mut().is_taken_up = true;
                    held.begin(process);
                }
                Err(Error::Server { kind: Some(Kind::UnknownProcess), .. }) => {
                    held.is_cancelled.set(true);
                    if spawned && !held.asked_to_die.get() && !fate.holder_killed.get() {
                        trace.fail(Invariant::End, format_args!("{what}: the server does not know it"));
                    }
                }
                Err(error) => fate.judge(&what, &error),
            });
        }
    }

    /// A random process of those that fit.
    pub(crate) fn pick(&mut self, fits: impl Fn(&Held) -> bool) -> Option<Rc<Held>> {
        let fitting: Vec<Rc<Held>> = self.held.values().filter(|held| fits(held)).cloned().collect();
        (!fitting.is_empty()).then(|| fitting[self.rng.index(fitting.len())].clone())
    }

    fn write(&mut self) {
        if let Some(held) = self.pick(Held::takes_writes) {
            let len = *self.rng.pick(&[1, 10, 500, 5000, 60_000, 200_000]);
            held.write(self, len);
        }
    }

    fn close_stdin(&mut self) {
        if let Some(held) = self.pick(Held::takes_writes) {
            held.close_stdin(self);
        }
    }

    fn terminate(&mut self, name: &str) {
        let Some((client, held)) = self.client.clone().zip(self.held.get(name)) else { return };
        held.asked_to_die.set(true);
        self.stage.trace.count(Branch::TerminateWhileStarting);
        let params = wire::TerminateParams { process_id: name.into(), session_id: None, grace_ms: None };
        let calling = async move { client.request::<exec_server_client::requests::ProcessTerminate>(&params).await };
        self.expect(format!("terminate {name} while it starts"), GONE, calling);
    }

    fn steer(&mut self) {
        let grace = Duration::from_millis(self.rng.within(0..3000));
        let Some(held) = self.pick(|held| held.process.borrow().is_some() && !held.is_over()) else { return };
        let Some(process) = held.process.borrow().clone() else { return };
        let name = held.name.clone();
        match self.rng.within(0..5) {
            0 if held.plan.tty => {
                let size = wire::Size { rows: 30, cols: 90 };
                self.expect(format!("resize {name}"), GONE, async move { process.resize(size).await });
            }
            1 | 2 => {
                held.asked_to_die.set(true);
                self.expect(format!("signal {name}"), GONE, async move { process.signal("SIGINT").await });
            }
            _ => {
                held.asked_to_die.set(true);
                let grace = Some(grace).filter(|grace| grace.as_millis() % 3 > 0);
                self.expect(format!("terminate {name} {grace:?}"), GONE, async move { process.terminate(grace).await });
            }
        }
    }

    fn change_pace(&mut self) {
        let pause_ms = *self.rng.pick(&[0, 0, 1, 20, 500]);
        if let Some(held) = self.pick(|held| !held.is_over()) {
            self.trace(format_args!("takes {} with pauses of {pause_ms} ms", held.name));
            held.pause_ms.set(pause_ms);
        }
    }

    fn read_at_random(&mut self) {
        let wait = Duration::from_millis(*self.rng.pick(&[0, 0, 200, 3000]));
        let Some(held) = self.pick(|held| held.process.borrow().is_some() && !held.is_forgotten.get()) else { return };
        let Some(process) = held.process.borrow().clone() else { return };
        let after = held.ledger.borrow().position;
        self.expect(format!("read {} after {after}", held.name), GONE, async move {
            process.read(after, Some(10_000), wait).await
        });
    }

    fn ask_around(&mut self) {
        let Some(client) = self.client.clone() else { return };
        match self.rng.within(0..3) {
            0 => self.expect("list".to_owned(), &[], async move { client.list(wire::Scope::All).await }),
            1 => self.expect("environment info".to_owned(), &[], async move { client.environment_info().await }),
            _ => self.expect("environment status".to_owned(), &[], async move { client.environment_status().await }),
        }
    }

    fn forget(&mut self) {
        let is_due = |held: &Held| held.ledger.borrow().closed && !held.is_forgotten.get();
        let picked = self.pick(is_due);
        if let Some((held, process)) = picked.and_then(|held| Some((held.clone(), held.process.borrow().clone()?))) {
            held.is_forgotten.set(true);
            self.expect(format!("forget {}", held.name), GONE, async move { process.forget().await });
        }
    }

    /// Follows a process of another program.
    pub fn follow(&mut self, other: &Rc<Held>, session: exec_server_client::protocol::SessionId) {
        let hold = self.rng.chance(50);
        if let Some(client) = self.client.clone()
            && other.plan.is_single()
        {
            held::follow(self, client, other, session, hold);
        }
    }

    /// Ends the session and everything in it.
    pub fn end_session(&mut self) {
        let Some(client) = self.client.clone() else { return };
        self.fate.ended.set(true);
        self.held.values().for_each(|held| held.asked_to_die.set(true));
        let (held, records, trace) = (self.held.clone(), self.stage.records.clone(), self.stage.trace.clone());
        let (fate, name) = (self.fate.clone(), self.name.clone());
        self.call(
            "ends its session".to_owned(),
            async move { client.end_session().await },
            move |result| match result {
                Ok(()) => {
                    trace.count(Branch::Ended);
                    let lives =
                        |name: &&String| records.with(name, |record| record.spawns > 0 && record.exit.is_none());
                    if let Some(child) = held.keys().find(lives) {
                        trace.fail(
                            Invariant::Expiry,
                            format_args!("{name}: {child} lives although its session was ended"),
                        );
                    }
                }
                Err(error) => fate.judge("ends its session", &error),
            },
        );
    }
}
