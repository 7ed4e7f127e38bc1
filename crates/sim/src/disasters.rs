//! What befalls a whole world: programs with the real client, rivals, crashes, deaths of holders, jumps of the clock, ends of sessions.

use std::{io, time::Duration};

use tokio::time::sleep;

use crate::{
    branch::Branch,
    link::{Cut, Link, Quality},
    plans,
    relic::Relic,
    rival::Rival,
    view::View,
    world::World,
};

/// Clients of the first generation that come to one world at most, unless none is there.
const RELICS_MAX: usize = 4;

/// After so long a closed process is no longer kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);

impl World {
    /// A program with the real client does something, or something is done to its link.
    pub(crate) fn step_user(&mut self) {
        let index = self.rng.index(self.users.len());
        if self.users.len() > 1 && self.rng.chance(6) {
            let other = (index + 1) % self.users.len();
            let picked = self.users[other].pick(|held| held.process.borrow().is_some() && !held.is_forgotten.get());
            if let Some((held, session)) = picked.zip(self.users[other].session.clone()) {
                return self.users[index].follow(&held, session);
            }
        }
        self.users[index].act(&mut self.next_process, self.is_heavy);
    }

    /// Something that everybody feels.
    pub(crate) async fn step_world(&mut self) -> io::Result<()> {
        match self.rng.within(0..100) {
            0..26 => self.crash().await?,
            26..45 => self.relic(),
            45..55 => self.rival(),
            55..60 => self.kill_holder(),
            60..65 => self.jump().await,
            65..71 => self.end_session(),
            71..75 => self.abandon().await,
            _ => sleep(Duration::from_millis(self.rng.within(500..8000))).await,
        }
        Ok(())
    }

    /// The server ends without a word; another begins after a while. Clients find their connections gone.
    pub(crate) async fn crash(&mut self) -> io::Result<()> {
        if self.rng.chance(30) {
            self.stage.trace.line(format_args!("server drains"));
            self.server.drain().await;
        }
        self.stage.trace.line(format_args!("server crashes"));
        self.server.crash().await;
        let down = *self.rng.pick(&[0, 5, 300, 3000]);
        self.stage.pause(down).await;
        self.server.begin().await?;
        self.stage.trace.count(Branch::Adoption);
        self.stage.trace.line(format_args!("server begins again, {} holders", self.holders.alive()));
        Ok(())
    }

    /// A client of the first generation comes, or does something, or goes.
    fn relic(&mut self) {
        let open = self.relics.iter().filter(|relic| relic.borrow().is_open()).count();
        if open == 0 || open < 2 && self.relics.len() < RELICS_MAX && self.rng.chance(30) {
            let (link, ours, theirs) = Link::new(Quality::draw(&mut self.rng));
            self.server.accept(theirs);
            let name = format!("v{}", self.relics.len());
            self.relics.push(Relic::new(name, link, ours, self.stage.clone()));
        }
        let open: Vec<_> = self.relics.iter().filter(|relic| relic.borrow().is_open()).cloned().collect();
        let mut relic = open[self.rng.index(open.len())].borrow_mut();
        match self.rng.within(0..10) {
            // Only what runs can be written to or ended.
            drawn if drawn < 3 || !relic.has_running() => {
                self.next_process += 1;
                let mut plan = plans::draw(&mut self.rng, false);
                (plan.drops, plan.timeout_ms, plan.idle_ms) = (false, None, None);
                let name = format!("{}p{}", relic.name, self.next_process);
                relic.exec(name, plan);
            }
            3..6 => relic.write(),
            6..8 => relic.terminate(),
            8 => relic.leave(),
            _ => relic.link.cut(Cut::AtOnce),
        }
    }

    /// Somebody else takes a program's session, or goes away again, or speaks out of turn.
    fn rival(&mut self) {
        let server = self.server.clone();
        match self.rng.within(0..3) {
            0 => drop(self.rivals.pop()),
            1 => self.rivals.push(Rival::blunder(&self.stage, |stream| server.accept(stream))),
            _ => {
                let Some(user) = self.users.iter().find(|user| user.session.is_some()) else { return };
                let Some(session) = user.session.clone() else { return };
                user.fate.taken.set(true);
                self.rivals.push(Rival::take(session.as_str(), &self.stage, |stream| server.accept(stream)));
            }
        }
    }

    /// A holder is killed, and its children with it.
    fn kill_holder(&mut self) {
        if self.rng.chance(50) && !self.users.is_empty() {
            let user = &self.users[self.rng.index(self.users.len())];
            let Some(session) = user.session.clone() else { return };
            if self.holders.kill(session.as_str()) {
                self.stage.trace.line(format_args!("the holder of {} dies", user.name));
                user.fate.holder_killed.set(true);
            }
            return;
        }
        let client = self.rng.index(self.clients.len());
        let mut client = self.clients[client].borrow_mut();
        if client.session.as_ref().is_some_and(|session| self.holders.kill(session)) {
            self.stage.trace.line(format_args!("the holder of {} dies", client.name));
            client.holder_killed = true;
        }
    }

    /// The clock jumps, as on a machine that was suspended with a clock that counts on.
    async fn jump(&mut self) {
        let hours = *self.rng.pick(&[1, 5, 25]);
        let by = Duration::from_secs(hours * 3600);
        self.stage.trace.line(format_args!("the clock jumps by {hours} hours"));
        self.stage.trace.count(Branch::ClockJump);
        tokio::time::advance(by).await;
        if by > KEPT {
            let closed = self.clients.iter().map(|client| client.borrow_mut());
            for mut client in closed {
                client.views.values_mut().for_each(View::age);
            }
            let held = self.users.iter().flat_map(|user| user.held.values());
            held.filter(|held| held.ledger.borrow().closed).for_each(|held| held.is_forgotten.set(true));
        }
    }

    /// A session is ended in the middle of its work.
    fn end_session(&mut self) {
        if self.rng.chance(40) && !self.users.is_empty() {
            let index = self.rng.index(self.users.len());
            return self.users[index].end_session();
        }
        let client = self.rng.index(self.clients.len());
        let mut client = self.clients[client].borrow_mut();
        client.views.values_mut().for_each(|view| view.asked_to_die = true);
        client.end_session();
    }

    /// A client stays away for longer than its session waits.
    async fn abandon(&mut self) {
        let client = self.rng.index(self.clients.len());
        let ttl_ms = {
            let mut client = self.clients[client].borrow_mut();
            client.trace(format_args!("stays away for too long"));
            client.views.values_mut().for_each(|view| view.asked_to_die = true);
            client.drop_connections(false);
            client.ttl_ms
        };
        sleep(Duration::from_millis(ttl_ms + 5000)).await;
        self.connect(client, crate::client::Arrival::Resume);
    }
}
