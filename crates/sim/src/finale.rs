//! The end of a world: all faults are repaired, everything must be delivered, and nothing may be left over.

use std::{io, time::Duration};

use crate::{
    branch::Branch,
    client::{Arrival, Kind},
    link::Quality,
    trace::Invariant,
    user::User,
    view::Start,
    world::World,
};

/// Time limit for everything after the repair. Longer than every script, timeout and grace period.
const PATIENCE: Duration = Duration::from_secs(120);

impl World {
    /// Repairs everything and makes the final checks.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        self.stage.trace.line(format_args!("finale"));
        if !self.server.is_up() {
            self.server.begin().await?;
        }
        self.rivals.clear();
        for user in &mut self.users {
            user.dialer.mend();
            user.held.values().for_each(|held| held.pause_ms.set(0));
        }
        self.mend().await;
        // A program may notice only by its last request that its session is lost. Then it starts again.
        for _ in 0..=self.users.len() {
            self.mend_users().await;
            self.complete().await;
            if !self.users.iter().any(User::is_lost) {
                break;
            }
        }
        self.check_ends();
        if !self.stage.trace.has_failed() {
            self.end_sessions().await;
        }
        Ok(())
    }

    fn check_ends(&mut self) {
        for client in &self.clients {
            client.borrow_mut().views.values_mut().for_each(crate::view::View::check_end);
        }
        self.users.iter().flat_map(|user| user.held.values()).for_each(|held| held.check_end());
        self.count_records();
    }

    /// Reconnects every model client over a good link and lets it receive everything.
    async fn mend(&mut self) {
        for client in &self.clients {
            client.borrow_mut().drop_connections(false);
        }
        // A dropped connection that requested the session may still get it, until the server notices that the connection is gone.
        tokio::time::sleep(Duration::from_secs(4)).await;
        for index in 0..self.clients.len() {
            // A client whose session has ended connects a second time, with a new session.
            for _ in 0..2 {
                let number = self.connect_over(index, Arrival::TakeOver, Quality::GOOD);
                self.clients[index].borrow_mut().acks_promptly = true;
                self.until(PATIENCE, |world| {
                    let client = world.clients[index].borrow();
                    client.attached == Some(number) || client.refused.is_some()
                })
                .await;
                self.tend();
            }
            if self.clients[index].borrow().attached.is_none() {
                let client = self.clients[index].borrow();
                return client
                    .wrong(Invariant::Answered, format_args!("cannot resume at the end: {:?}", client.refused));
            }
            self.clients[index].borrow_mut().drop_connections(true);
            self.clients[index].borrow_mut().behave();
            self.close_all_stdin(index);
        }
    }

    /// Waits until every user has a session, restarting users that have lost theirs. Then closes the stdin of their processes.
    async fn mend_users(&mut self) {
        let mended = self
            .until(PATIENCE, |world| {
                world.tend();
                let down = world.users.iter_mut().filter(|user| user.client.is_none() || user.is_lost());
                down.for_each(User::begin_again);
                // Processes that are being started or attached have no handle yet, so their stdin could not be closed.
                let has_all =
                    |user: &User| user.held.values().all(|held| held.is_settled() || held.process.borrow().is_some());
                world.users.iter().all(|user| user.is_up() && has_all(user))
            })
            .await;
        if !mended && let Some(user) = self.users.iter().find(|user| !user.is_up()) {
            return user.wrong(Invariant::Answered, format_args!("is not connected at the end"));
        }
        for user in &self.users {
            let open: Vec<_> = user.held.values().filter(|held| held.plan.stdin && !held.is_over()).cloned().collect();
            open.iter().for_each(|held| held.close_stdin(user));
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
    async fn complete(&mut self) {
        let mut looks = 0_u32;
        let complete = self
            .until(PATIENCE, |world| {
                looks += 1;
                world.tend();
                world.check();
                let told = world.clients.iter().all(|client| {
                    let mut client = client.borrow_mut();
                    let open = client.views.values().filter(|view| view.start != Start::Cancelled && !view.closed);
                    let open: Vec<String> = open.map(|view| view.name.clone()).collect();
                    // For a reference client, sent output counts as received, so it reads what was lost in cuts.
                    if client.kind == Kind::Reference && looks % 50 == 1 {
                        open.iter().for_each(|name| client.read(name, 0));
                    }
                    open.is_empty() && client.waits_for().is_none()
                });
                let mut users = world.users.iter();
                let mut relics = world.relics.iter();
                let is_lost = world.users.iter().any(User::is_lost);
                is_lost
                    || told
                        && users
                            .all(|user| user.pending.first().is_none() && user.held.values().all(|held| held.is_over()))
                        && relics.all(|relic| relic.borrow().waits_for().is_none())
            })
            .await;
        if complete {
            return;
        }
        for client in &self.clients {
            let client = client.borrow();
            if let Some(call) = client.waits_for() {
                client.wrong(Invariant::Answered, format_args!("never answered: {call}"));
            }
        }
        for user in &self.users {
            if let Some(call) = user.pending.first() {
                user.wrong(Invariant::Answered, format_args!("never answered: {call}"));
            }
        }
        if let Some(call) = self.relics.iter().find_map(|relic| relic.borrow().waits_for()) {
            self.stage.trace.fail(Invariant::Answered, format_args!("never answered: {call}"));
        }
    }

    fn count_records(&self) {
        let names = self.clients.iter().flat_map(|client| client.borrow().views.keys().cloned().collect::<Vec<_>>());
        let held = self.users.iter().flat_map(|user| user.held.keys().cloned());
        for name in names.chain(held) {
            let record = self.stage.records.get(&name);
            if record.signals.len() > 1 && record.signals.last() == Some(&9) {
                self.stage.trace.count(Branch::GraceOver);
            }
        }
        for _ in 0..self.holders.loads() {
            self.stage.trace.count(Branch::Spill);
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
        self.relics.iter().for_each(|relic| relic.borrow_mut().leave());
        self.users.iter_mut().for_each(User::end_session);
        let ended = self
            .until(PATIENCE, |world| {
                let mut stay = world.clients.iter().enumerate().filter(|(index, _)| !leaving.contains(index));
                stay.all(|(_, client)| client.borrow().ended)
                    && world.users.iter().all(|user| user.pending.first().is_none())
            })
            .await;
        if !ended {
            return self.stage.trace.fail(Invariant::Answered, format_args!("a session does not end"));
        }
        // Wait longer than any session's time-to-live, including sessions whose client never received the id.
        let longest = leaving.iter().map(|index| self.clients[*index].borrow().ttl_ms).max().unwrap_or(120_000);
        // If the server crashed, the session of a first-generation client has the same time-to-live as that of a client without
        // capabilities.
        let of_relics = if self.relics.is_empty() { 0 } else { 600_000 };
        tokio::time::sleep(Duration::from_millis(longest.max(of_relics) + 5000)).await;
        for index in leaving {
            self.clients[index].borrow_mut().refused = None;
            self.connect_over(index, Arrival::TakeOver, Quality::GOOD);
            self.until(PATIENCE, |world| world.clients[index].borrow().refused.is_some()).await;
            let client = self.clients[index].borrow();
            match client.refused.as_deref() {
                Some("sessionExpired") => self.stage.trace.count(Branch::Expired),
                Some("holderLost" | "unknownSession") if client.holder_killed => {}
                other => {
                    client.wrong(Invariant::Expiry, format_args!("its time is over, and a resume says {other:?}"));
                }
            }
        }
        for client in self.retired.iter().chain(&self.clients) {
            client.borrow().check_nobody_lives("all sessions are over");
        }
        self.relics.iter().for_each(|relic| relic.borrow().check_end());
        if !self.until(PATIENCE, |world| world.holders.alive() == 0).await {
            self.stage.trace.fail(Invariant::Health, format_args!("{} holders are left", self.holders.alive()));
        }
    }
}
