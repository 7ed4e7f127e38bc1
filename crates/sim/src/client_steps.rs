//! The operations of a world, one per step: actions of model clients, link faults, and events that affect everything.

use crate::{
    child::ScriptStep,
    link::{CutKind, Direction},
    plans,
    prelude::*,
    world::World,
};

/// The maximum number of processes that one client starts.
const PROCESSES_MAX: usize = 5;

impl World {
    /// Performs one random operation, then lets some time pass.
    pub(crate) async fn step(&mut self) -> io::Result<()> {
        match self.rng.within(0..100) {
            0..60 => self.step_client().await,
            60..88 if !self.users.is_empty() => self.step_user(),
            60..88 => self.step_client().await,
            _ => self.step_world().await?,
        }
        let wait = *self.rng.pick(&[0, 0, 1, 3, 10, 50, 200, 1000]);
        self.context.pause(wait).await;
        Ok(())
    }

    /// A model client does something, or its link gets a fault.
    async fn step_client(&mut self) {
        let client = self.rng.index(self.clients.len());
        match self.rng.within(0..100) {
            0..15 => self.start(client),
            15..32 => self.write(client),
            32..34 => self.close_stdin(client),
            34..36 => self.forget(client),
            36..42 => self.terminate_or_signal(client),
            42..49 => self.read(client),
            49..54 => self.change_habits(client),
            54..59 => {
                let mut rng = self.rng.fork();
                self.clients[client].borrow_mut().use_files(&mut rng);
            }
            59..68 => self.apply_link_fault(client),
            68..82 => self.reconnect(client),
            82..84 => self.race(client).await,
            84..85 => self.clients[client].borrow_mut().send_stale_request(),
            85..87 => self.clients[client].borrow_mut().list("session"),
            87..91 => self.subscribe(client),
            91..92 => self.withhold_acks(client).await,
            92..95 => self.disconnect_for_a_while(client).await,
            95..96 => self.clients[client].borrow_mut().request_environment("environment/info"),
            96..97 => self.clients[client].borrow_mut().request_environment("environment/status"),
            _ => self.clients[client].borrow_mut().send_invalid_message(&mut self.rng),
        }
    }

    fn start(&mut self, client: usize) {
        if self.clients[client].borrow().views.len() >= PROCESSES_MAX {
            return;
        }
        self.next_process += 1;
        let name = format!("{}p{}", self.clients[client].borrow().name, self.next_process);
        let plan = plans::draw(&mut self.rng, self.is_heavy);
        let is_ended_at_once = self.rng.chance(6);
        let mut client = self.clients[client].borrow_mut();
        client.start(&name, plan);
        if is_ended_at_once {
            self.context.trace.count(Branch::TerminateWhileStarting);
            client.command(&name, "process/terminate", json!({"processId": name}));
        }
    }

    /// A random process of the client, of those that fit.
    fn pick_process(&mut self, client: usize, fits: impl Fn(&ProcessView) -> bool) -> Option<String> {
        let client = self.clients[client].borrow();
        let names: Vec<&String> = client.views.iter().filter(|(_, view)| fits(view)).map(|(name, _)| name).collect();
        (!names.is_empty()).then(|| names[self.rng.index(names.len())].clone())
    }

    fn write(&mut self, client: usize) {
        if let Some(name) = self.pick_process(client, ProcessView::takes_writes) {
            let len = *self.rng.pick(&[1, 10, 500, 5000, 60_000, 200_000]);
            let is_keyless = self.rng.chance(5);
            self.clients[client].borrow_mut().write(&name, len, is_keyless);
        }
    }

    fn close_stdin(&mut self, client: usize) {
        let picked = self.pick_process(client, |view| view.plan.stdin && view.close_stdin.is_none() && !view.forgotten);
        if let Some(name) = picked {
            self.clients[client].borrow_mut().close_stdin(&name);
        }
    }

    /// Terminates or signals a running process. Only one whose start was answered: if the start were sent again after the terminate, the
    /// process would be started twice.
    fn terminate_or_signal(&mut self, client: usize) {
        let is_running = |view: &ProcessView| view.start == StartState::Done && !view.closed;
        let ignores_term = |view: &ProcessView| is_running(view) && view.plan.steps.contains(&ScriptStep::IgnoreTerm);
        let ignoring = self.pick_process(client, ignores_term);
        let is_known_to_ignore_term = ignoring.is_some();
        let Some(name) = ignoring.or_else(|| self.pick_process(client, is_running)) else { return };
        let (method, params) = match self.rng.within(0..4) {
            // A child that ignores SIGTERM gets a terminate with a grace period first, so that the grace period expires.
            _ if is_known_to_ignore_term => {
                ("process/terminate", json!({"processId": name, "graceMs": self.rng.within(0..3000)}))
            }
            // Few processes have a terminal, and this is the only place where one is resized.
            1..4 if self.clients[client].borrow().views[&name].plan.tty => {
                ("process/resize", json!({"processId": name, "rows": 30, "cols": 100}))
            }
            0 => ("process/terminate", json!({"processId": name})),
            1 => ("process/terminate", json!({"processId": name, "graceMs": self.rng.within(0..3000)})),
            2 => ("process/signal", json!({"processId": name, "signal": "interrupt"})),
            _ => ("process/signal", json!({"processId": name, "signal": "SIGTERM"})),
        };
        self.clients[client].borrow_mut().command(&name, method, params);
    }

    /// Forgets a closed process that has no unanswered requests.
    fn forget(&mut self, client: usize) {
        if let Some(name) = self.pick_process(client, |view| view.closed && !view.forgotten && !view.has_unanswered()) {
            self.clients[client].borrow_mut().forget(&name);
        }
    }

    fn read(&mut self, client: usize) {
        if let Some(name) =
            self.pick_process(client, |view| view.start == StartState::Done && !view.plan.drops && !view.forgotten)
        {
            let wait_ms = *self.rng.pick(&[0, 0, 100, 3000]);
            self.clients[client].borrow_mut().read(&name, wait_ms);
        }
    }

    /// Changes whether a client acknowledges promptly, and how fast it reads.
    fn change_habits(&mut self, client: usize) {
        let promptly = self.rng.chance(40);
        let pace = self.rng.chance(50).then(|| *self.rng.pick(&[50_u64, 500, 5000]));
        let mut client = self.clients[client].borrow_mut();
        client.acks_promptly = promptly;
        client.trace(format_args!("acks promptly: {promptly}, pace {pace:?}"));
        if let Some(attached) = client.attached.and_then(|number| client.connections.get(&number)) {
            attached.link.pace(Direction::Down, pace);
        }
        if promptly {
            client.ack_everything();
        }
    }

    /// Applies a random fault to the attached link.
    fn apply_link_fault(&mut self, client: usize) {
        let fault = self.rng.within(0..6);
        let (bytes, direction) = (self.rng.within(1..5000), *self.rng.pick(&[Direction::Up, Direction::Down]));
        let rest = Duration::from_millis(self.rng.within(10..4000));
        let mut client = self.clients[client].borrow_mut();
        let Some(number) = client.attached else { return };
        let link = client.connections[&number].link.clone();
        let what = match fault {
            0 => {
                client.context.trace.count(Branch::CutBetween);
                link.cut(CutKind::AfterDelivery);
                "cut between frames".to_owned()
            }
            1 => {
                link.cut(CutKind::AtOnce);
                // After a reset the client knows at once that it is disconnected. After the other faults it does not.
                client.attached = None;
                "cut at once".to_owned()
            }
            2 | 3 => {
                client.context.trace.count(Branch::CutInside);
                link.cut_after(direction, bytes);
                format!("cut after {bytes} bytes {direction:?}")
            }
            4 => {
                client.context.trace.count(Branch::HalfOpen);
                link.half_open();
                "half-open".to_owned()
            }
            _ => {
                client.context.trace.count(Branch::Stall);
                link.stall(direction, Instant::now() + rest);
                format!("{direction:?} stalls for {rest:?}")
            }
        };
        client.trace(format_args!("{what}"));
    }

    fn reconnect(&mut self, client: usize) {
        let arrival = if self.rng.chance(50) { AttachMode::TakeOver } else { AttachMode::Resume };
        // A client that is still attached opens a second connection only now and then.
        if self.clients[client].borrow().attached.is_none() || self.rng.chance(40) {
            self.connect(client, arrival);
        }
    }

    /// Two connections request the same session at the same time.
    async fn race(&mut self, client: usize) {
        self.context.trace.count(Branch::Race);
        for _ in 0..2 {
            let arrival = if self.rng.chance(40) { AttachMode::TakeOver } else { AttachMode::Resume };
            self.connect(client, arrival);
        }
        self.context.pause(self.rng.clone().within(0..50)).await;
    }

    /// A client acknowledges nothing for a while, while its process writes more than the log may hold. The child must block, and nothing
    /// else.
    async fn withhold_acks(&mut self, client: usize) {
        self.clients[client].borrow_mut().acks_promptly = false;
        self.start_heavy(client);
        sleep(Duration::from_millis(self.rng.within(200..3000))).await;
        self.clients[client].borrow_mut().list("session");
    }

    /// A client disconnects while its process writes more than the log may hold, and resumes later. If there is a disk, it may be full in
    /// between.
    async fn disconnect_for_a_while(&mut self, client: usize) {
        self.start_heavy(client);
        sleep(Duration::from_millis(self.rng.within(1..300))).await;
        let session = self.clients[client].borrow().session.clone().filter(|_| self.has_disk && self.rng.chance(60));
        if let Some(session) = &session {
            self.context.trace.line(format_args!("the disk of {session} is full"));
            self.holders.fill_disk(session, true);
        }
        self.clients[client].borrow_mut().drop_connections(false);
        sleep(Duration::from_millis(self.rng.within(200..8000))).await;
        for other in &self.clients {
            other.borrow_mut().list("all");
        }
        self.context.pause(50).await;
        if let Some(session) = &session {
            self.holders.fill_disk(session, false);
        }
        self.connect(client, AttachMode::Resume);
    }

    fn start_heavy(&mut self, client: usize) {
        let before = std::mem::replace(&mut self.is_heavy, true);
        self.start(client);
        self.is_heavy = before;
    }

    /// A client subscribes to a process of another client, or ends a subscription.
    fn subscribe(&mut self, client: usize) {
        let watched = self.clients[client].borrow().watched();
        if !watched.is_empty() && self.rng.chance(50) {
            let name = &watched[self.rng.index(watched.len())];
            return self.clients[client].borrow_mut().unsubscribe(name);
        }
        if self.clients.len() < 2 {
            return;
        }
        let other = (client + 1 + self.rng.index(self.clients.len() - 1)) % self.clients.len();
        let picked =
            self.pick_process(other, |view| view.start == StartState::Done && view.plan.is_single() && !view.forgotten);
        let (Some(name), Some(session)) = (picked, self.clients[other].borrow().session.clone()) else { return };
        let mut plan = self.clients[other].borrow().views[&name].plan.clone();
        plan.drops = true;
        let is_fickle = self.rng.chance(40);
        let mut client = self.clients[client].borrow_mut();
        client.subscribe(&session, &name, plan);
        if is_fickle {
            client.unsubscribe(&name);
        }
    }
}

impl ModelClient {
    /// Makes the client acknowledge everything promptly.
    pub(crate) fn ack_everything(&mut self) {
        self.acks_promptly = true;
        for name in self.views.keys().cloned().collect::<Vec<_>>() {
            self.ack(&name);
        }
    }
}
