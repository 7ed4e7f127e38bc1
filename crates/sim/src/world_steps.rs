//! Operations that affect a whole world: users with the real client, rivals, crashes, killed holders, clock jumps, ended sessions.

use crate::{legacy_client::LegacyClient, link::CutKind, plans, prelude::*, rival::Rival, world::World};

/// The maximum number of first-generation clients in one world. If none is connected, another one is added in any case.
const LEGACY_CLIENTS_MAX: usize = 4;

/// How long the server keeps a closed process.
const KEPT: Duration = Duration::from_secs(24 * 3600);

impl World {
    /// A program with the real client does something, or its link gets a fault.
    pub(crate) fn step_user(&mut self) {
        let index = self.rng.index(self.users.len());
        if self.users.len() > 1 && self.rng.chance(6) {
            let other = (index + 1) % self.users.len();
            let picked =
                self.users[other].pick(|user_process| user_process.has_handle() && !user_process.is_forgotten.get());
            if let Some((user_process, session)) = picked.zip(self.users[other].session.clone()) {
                return self.users[index].follow(user_process, session);
            }
        }
        self.users[index].act(&mut self.next_process, self.is_heavy);
    }

    /// A random operation that affects the whole world.
    pub(crate) async fn step_world(&mut self) -> io::Result<()> {
        match self.rng.within(0..100) {
            0..26 => self.crash().await?,
            26..45 => self.legacy_client(),
            45..55 => self.rival(),
            55..60 => self.kill_holder(),
            60..65 => self.jump_clock().await,
            65..71 => self.end_session(),
            71..75 => self.let_session_expire().await,
            _ => sleep(Duration::from_millis(self.rng.within(500..8000))).await,
        }
        Ok(())
    }

    /// The server crashes, and the next one starts after a while. The clients' connections are gone.
    pub(crate) async fn crash(&mut self) -> io::Result<()> {
        if self.rng.chance(30) {
            self.context.trace.line(format_args!("server drains"));
            self.server.drain().await;
        }
        self.context.trace.line(format_args!("server crashes"));
        self.server.crash().await;
        let down = *self.rng.pick(&[0, 5, 300, 3000]);
        self.context.pause(down).await;
        self.server.start().await?;
        self.context.trace.count(Branch::Adoption);
        self.context.trace.line(format_args!("server begins again, {} holders", self.holders.alive()));
        Ok(())
    }

    /// A first-generation client connects, does something, or disconnects.
    fn legacy_client(&mut self) {
        let open = self.legacy_clients.iter().filter(|legacy_client| legacy_client.borrow().is_open()).count();
        if open == 0 || open < 2 && self.legacy_clients.len() < LEGACY_CLIENTS_MAX && self.rng.chance(30) {
            let (link, ours, theirs) = SimLink::new(LinkQuality::draw(&mut self.rng));
            self.server.accept(theirs);
            let name = format!("v{}", self.legacy_clients.len());
            self.legacy_clients.push(LegacyClient::new(name, link, ours, self.context.clone()));
        }
        let open: Vec<_> =
            self.legacy_clients.iter().filter(|legacy_client| legacy_client.borrow().is_open()).cloned().collect();
        let mut legacy_client = open[self.rng.index(open.len())].borrow_mut();
        match self.rng.within(0..10) {
            // Only a running process can be written to or terminated.
            drawn if drawn < 3 || !legacy_client.has_running() => {
                self.next_process += 1;
                let mut plan = plans::draw(&mut self.rng, false);
                (plan.drops, plan.timeout_ms, plan.idle_ms) = (false, None, None);
                let name = format!("{}p{}", legacy_client.name, self.next_process);
                legacy_client.exec(name, plan);
            }
            3..6 => legacy_client.write(),
            6..8 => legacy_client.terminate(),
            8 => legacy_client.disconnect(),
            _ => legacy_client.link.cut(CutKind::AtOnce),
        }
    }

    /// A rival takes the session of a user, disconnects, or sends requests before its handshake.
    fn rival(&mut self) {
        match self.rng.within(0..3) {
            0 => drop(self.rivals.pop()),
            1 => self.rivals.push(Rival::send_early(&self.context, &self.server)),
            _ => {
                let Some(user) = self.users.iter().find(|user| user.session.is_some()) else { return };
                let Some(session) = user.session.clone() else { return };
                user.history.taken.set(true);
                self.rivals.push(Rival::take(session.as_str(), &self.context, &self.server));
            }
        }
    }

    /// Kills a holder and its children.
    fn kill_holder(&mut self) {
        if self.rng.chance(50) && !self.users.is_empty() {
            let user = &self.users[self.rng.index(self.users.len())];
            let Some(session) = user.session.clone() else { return };
            if self.holders.kill(session.as_str()) {
                self.context.trace.line(format_args!("the holder of {} dies", user.name));
                user.history.holder_killed.set(true);
            }
            return;
        }
        let client = self.rng.index(self.clients.len());
        let mut client = self.clients[client].borrow_mut();
        if client.session.as_ref().is_some_and(|session| self.holders.kill(session)) {
            self.context.trace.line(format_args!("the holder of {} dies", client.name));
            client.holder_killed = true;
        }
    }

    /// The clock jumps, as on a machine that was suspended while its clock continued.
    async fn jump_clock(&mut self) {
        let hours = *self.rng.pick(&[1, 5, 25]);
        let by = Duration::from_secs(hours * 3600);
        self.context.trace.line(format_args!("the clock jumps by {hours} hours"));
        self.context.trace.count(Branch::ClockJump);
        tokio::time::advance(by).await;
        if by > KEPT {
            for client in &self.clients {
                client.borrow_mut().views.values_mut().for_each(ProcessView::age);
            }
            self.users.iter().flat_map(|user| user.processes.values()).for_each(|user_process| user_process.age());
        }
    }

    /// Ends a session while its processes run.
    fn end_session(&mut self) {
        if self.rng.chance(40) && !self.users.is_empty() {
            let index = self.rng.index(self.users.len());
            return self.users[index].end_session();
        }
        let client = self.rng.index(self.clients.len());
        let mut client = self.clients[client].borrow_mut();
        client.views.values_mut().for_each(|view| view.kill_requested = true);
        client.end_session();
    }

    /// A client stays away longer than its session's time-to-live.
    async fn let_session_expire(&mut self) {
        let client = self.rng.index(self.clients.len());
        {
            let mut client = self.clients[client].borrow_mut();
            client.trace(format_args!("stays away for too long"));
            client.views.values_mut().for_each(|view| view.kill_requested = true);
            client.drop_connections(false);
        }
        sleep(SESSION_TTL + Duration::from_secs(5)).await;
        self.connect(client, AttachMode::Resume);
    }
}
