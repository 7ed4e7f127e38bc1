//! The end of a world: everything is mended, everything must arrive, and nothing may be left.

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

/// How long anything may take once all is mended: longer than every script, timeout and grace period.
const PATIENCE: Duration = Duration::from_secs(120);

impl World {
    /// Mends everything, and holds the world to its promises.
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
        // A program may learn only from what it does last that its session is lost; it begins again then.
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

    /// Every client comes back over a good link and takes everything.
    async fn mend(&mut self) {
        for client in &self.clients {
            client.borrow_mut().drop_connections(false);
        }
        // A connection that wanted the session may still be served, and given it, until it is found to be gone.
        tokio::time::sleep(Duration::from_secs(4)).await;
        for index in 0..self.clients.len() {
            // One whose session was over comes a second time, with a new one.
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

    /// Every program has its session, or begins again until it has; then it closes what it writes to.
    async fn mend_users(&mut self) {
        let mended = self
            .until(PATIENCE, |world| {
                world.tend();
                let down = world.users.iter_mut().filter(|user| user.client.is_none() || user.is_lost());
                down.for_each(User::begin_again);
                // What is being taken up or started is not in its hands yet, and could not be closed.
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

    /// Waits until every process has closed in its client's eyes and nothing is unanswered, or a program has lost its session.
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
                    // What was sent counts as taken for a reference client: it reads what cuts have swallowed.
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

    /// Sessions end by command or by their clock, and leave nothing.
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
        // Longer than any session waits, those of clients that were never told of theirs included.
        let longest = leaving.iter().map(|index| self.clients[*index].borrow().ttl_ms).max().unwrap_or(120_000);
        // A session of the first generation whose server crashed waits as long as that of a client that announced nothing.
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
