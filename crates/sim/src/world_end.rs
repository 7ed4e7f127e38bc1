//! The end of a world: all faults are repaired, everything must be delivered, and nothing may be left over.

use crate::{prelude::*, user_process::UserProcess, world::World};

/// Time limit for everything after the repair. Longer than every script, timeout and grace period.
const PATIENCE: Duration = Duration::from_secs(120);

impl World {
    /// Repairs everything and makes the final checks.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        self.context.trace.line(format_args!("finale"));
        if !self.server.is_up() {
            self.server.start().await?;
        }
        self.rivals.clear();
        for user in &mut self.users {
            user.dialer.repair();
            user.processes.values().for_each(|user_process| user_process.pause_ms.set(0));
        }
        self.reconnect_clients().await;
        // A program may notice only by its last request that its session is lost. Then it starts again.
        for _ in 0..=self.users.len() {
            self.reconnect_users().await;
            self.await_completion().await;
            if !self.users.iter().any(User::is_lost) {
                break;
            }
        }
        self.check_ends();
        if !self.context.trace.has_failed() {
            self.end_sessions().await;
        }
        Ok(())
    }

    fn check_ends(&mut self) {
        for client in &self.clients {
            client.borrow_mut().views.values_mut().for_each(ProcessView::check_end);
        }
        self.users.iter().flat_map(|user| user.processes.values()).for_each(|user_process| user_process.check_end());
        self.count_records();
    }

    /// Reconnects every model client over a good link and lets it receive everything.
    async fn reconnect_clients(&mut self) {
        for client in &self.clients {
            client.borrow_mut().drop_connections(false);
        }
        // A dropped connection that requested the session may still get it, until the server notices that the connection is gone.
        sleep(Duration::from_secs(4)).await;
        for index in 0..self.clients.len() {
            // A client whose session has ended connects a second time, with a new session.
            for _ in 0..2 {
                let number = self.connect_over(index, AttachMode::TakeOver, LinkQuality::GOOD);
                self.clients[index].borrow_mut().acks_promptly = true;
                self.until(PATIENCE, |world| {
                    let client = world.clients[index].borrow();
                    client.attached == Some(number) || client.refused.is_some()
                })
                .await;
                self.replace_ended_clients();
            }
            if self.clients[index].borrow().attached.is_none() {
                let client = self.clients[index].borrow();
                return violation!(client, Answered, "cannot resume at the end: {:?}", client.refused);
            }
            self.clients[index].borrow_mut().drop_connections(true);
            self.clients[index].borrow_mut().ack_everything();
            self.close_all_stdin(index);
        }
    }

    /// Waits until every user has a session, restarting users that have lost theirs. Then closes the stdin of their processes.
    async fn reconnect_users(&mut self) {
        let reconnected = self
            .until(PATIENCE, |world| {
                world.replace_ended_clients();
                let down = world.users.iter_mut().filter(|user| user.client.is_none() || user.is_lost());
                down.for_each(User::reopen);
                // Processes that are being started or attached have no handle yet, so their stdin could not be closed.
                let is_ready = |user_process: &Rc<UserProcess>| user_process.is_settled() || user_process.has_handle();
                world.users.iter().all(|user| user.is_up() && user.processes.values().all(is_ready))
            })
            .await;
        if !reconnected && let Some(user) = self.users.iter().find(|user| !user.is_up()) {
            return violation!(user, Answered, "is not connected at the end");
        }
        for user in &self.users {
            for user_process in user.processes.values().filter(|process| process.plan.stdin && !process.is_over()) {
                user_process.close_stdin(user);
            }
        }
    }

    fn close_all_stdin(&self, index: usize) {
        let mut client = self.clients[index].borrow_mut();
        let open =
            client.views.values().filter(|view| view.plan.stdin && view.close_stdin.is_none() && !view.forgotten);
        for name in open.map(|view| view.name.clone()).collect::<Vec<_>>() {
            client.close_stdin(&name);
        }
    }

    /// Waits until every process has closed in its client's view and nothing is unanswered, or until a user has lost its session.
    async fn await_completion(&mut self) {
        let mut polls = 0_u32;
        let complete = self
            .until(PATIENCE, |world| {
                polls += 1;
                world.replace_ended_clients();
                world.check();
                let all_received = world.clients.iter().all(|client| {
                    let mut client = client.borrow_mut();
                    let open = client.views.values().filter(|view| view.start != StartState::Cancelled && !view.closed);
                    let open: Vec<String> = open.map(|view| view.name.clone()).collect();
                    // For a reference client, sent output counts as received, so it reads what was lost in cuts.
                    if client.kind == ClientKind::Reference && polls % 50 == 1 {
                        open.iter().for_each(|name| client.read(name, 0));
                    }
                    open.is_empty() && client.first_pending_call().is_none()
                });
                let mut users = world.users.iter();
                let mut legacy_clients = world.legacy_clients.iter();
                let is_lost = world.users.iter().any(User::is_lost);
                is_lost
                    || all_received
                        && users.all(|user| {
                            user.pending.borrow().is_empty()
                                && user.processes.values().all(|user_process| user_process.is_over())
                        })
                        && legacy_clients.all(|legacy_client| legacy_client.borrow().first_pending_call().is_none())
            })
            .await;
        if complete {
            return;
        }
        for client in &self.clients {
            let client = client.borrow();
            if let Some(call) = client.first_pending_call() {
                violation!(client, Answered, "never answered: {call}");
            }
        }
        for user in &self.users {
            if let Some(call) = user.pending.borrow().first() {
                violation!(user, Answered, "never answered: {call}");
            }
        }
        for legacy_client in &self.legacy_clients {
            let legacy_client = legacy_client.borrow();
            if let Some(call) = legacy_client.first_pending_call() {
                violation!(legacy_client, Answered, "never answered: {call}");
            }
        }
    }

    fn count_records(&self) {
        let names = self.clients.iter().flat_map(|client| client.borrow().views.keys().cloned().collect::<Vec<_>>());
        let processes = self.users.iter().flat_map(|user| user.processes.keys().cloned());
        for name in names.chain(processes) {
            let record = self.context.records.get(&name);
            if record.signals.len() > 1 && record.signals.last() == Some(&9) {
                self.context.trace.count(Branch::GraceOver);
            }
        }
        for _ in 0..self.holders.loads() {
            self.context.trace.count(Branch::Spill);
        }
    }

    /// Ends sessions by request or by expiry, and checks that nothing is left.
    async fn end_sessions(&mut self) {
        let mut leaving = Vec::new();
        for index in 0..self.clients.len() {
            if self.rng.chance(60) {
                self.clients[index].borrow_mut().end_session();
            } else {
                leaving.push(index);
                self.clients[index].borrow_mut().drop_connections(false);
            }
        }
        self.legacy_clients.iter().for_each(|legacy_client| legacy_client.borrow_mut().disconnect());
        self.users.iter_mut().for_each(User::end_session);
        let ended = self
            .until(PATIENCE, |world| {
                let mut stay = world.clients.iter().enumerate().filter(|(index, _)| !leaving.contains(index));
                stay.all(|(_, client)| client.borrow().ended)
                    && world.users.iter().all(|user| user.pending.borrow().is_empty())
            })
            .await;
        if !ended {
            return violation!(self.context.trace, Answered, "a session does not end");
        }
        // Wait longer than any session's time-to-live, including sessions whose client never received the id.
        // If the server crashed, the session of a first-generation client has the same time-to-live as that of a client without
        // capabilities.
        let longest = if self.legacy_clients.is_empty() { SESSION_TTL } else { Duration::from_secs(600) };
        sleep(longest + Duration::from_secs(5)).await;
        for index in leaving {
            self.clients[index].borrow_mut().refused = None;
            self.connect_over(index, AttachMode::TakeOver, LinkQuality::GOOD);
            self.until(PATIENCE, |world| world.clients[index].borrow().refused.is_some()).await;
            let client = self.clients[index].borrow();
            match client.refused.as_deref() {
                Some("sessionExpired") => self.context.trace.count(Branch::Expired),
                Some("holderLost" | "unknownSession") if client.holder_killed => {}
                other => violation!(client, Expiry, "its time is over, and a resume says {other:?}"),
            }
        }
        for client in self.retired.iter().chain(&self.clients) {
            client.borrow().check_nobody_lives("all sessions are over");
        }
        self.legacy_clients.iter().for_each(|legacy_client| legacy_client.borrow().check_end());
        if !self.until(PATIENCE, |world| world.holders.alive() == 0).await {
            violation!(self.context.trace, Health, "{} holders are left", self.holders.alive());
        }
    }
}
