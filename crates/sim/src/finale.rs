//! The end of a world: everything is mended, everything must arrive, and nothing may be left.

use std::{io, time::Duration};

use crate::{
    client::{Arrival, Kind},
    link::Quality,
    trace::Branch,
    view::Start,
    world::World,
};

/// A link without faults.
const GOOD: Quality = Quality { delay: Duration::ZERO, slice: 1 << 20, pace: None, capacity: 256 << 10 };

/// How long anything may take once all is mended: longer than every script, timeout and grace period.
const PATIENCE: Duration = Duration::from_secs(120);

impl World {
    /// Mends everything, and holds the world to its promises.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        self.stage.trace.line(format_args!("finale"));
        if !self.server.is_up() {
            self.server.begin(&self.stage).await?;
        }
        self.mend().await;
        self.complete().await;
        for client in &self.clients {
            let mut client = client.borrow_mut();
            client.views.values_mut().for_each(crate::view::View::check_end);
        }
        self.count_records();
        if !self.stage.trace.has_failed() {
            self.end_sessions().await;
        }
        Ok(())
    }

    /// Every client comes back over a good link and takes everything.
    async fn mend(&mut self) {
        for client in &self.clients {
            client.borrow_mut().drop_connections(false);
        }
        // A connection that wanted the session may still be served, and given it, until it is found to be gone.
        tokio::time::sleep(Duration::from_secs(4)).await;
        for index in 0..self.clients.len() {
            let number = self.connect_over(index, Arrival::TakeOver, GOOD);
            self.clients[index].borrow_mut().acks_promptly = true;
            let back = self.until(PATIENCE, |world| world.clients[index].borrow().attached == Some(number)).await;
            if !back {
                let client = self.clients[index].borrow();
                return client.wrong(format_args!("cannot resume at the end: {:?}", client.refused));
            }
            self.clients[index].borrow_mut().drop_connections(true);
            self.clients[index].borrow_mut().behave();
            self.close_all_stdin(index);
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

    /// Waits until every process has closed in its client's eyes and nothing is unanswered.
    async fn complete(&mut self) {
        let mut looks = 0_u32;
        let complete = self
            .until(PATIENCE, |world| {
                looks += 1;
                world.check();
                world.clients.iter().all(|client| {
                    let mut client = client.borrow_mut();
                    let open = client.views.values().filter(|view| view.start != Start::Cancelled && !view.closed);
                    let open: Vec<String> = open.map(|view| view.name.clone()).collect();
                    // What was sent counts as taken for a reference client: it reads what cuts have swallowed.
                    if client.kind == Kind::Reference && looks % 50 == 1 {
                        open.iter().for_each(|name| client.read(name, 0));
                    }
                    open.is_empty() && client.waits_for().is_none()
                })
            })
            .await;
        if !complete {
            for client in &self.clients {
                let client = client.borrow();
                if let Some(call) = client.waits_for() {
                    client.wrong(format_args!("never answered: {call}"));
                }
            }
        }
    }

    fn count_records(&self) {
        for client in &self.clients {
            for view in client.borrow().views.values() {
                let record = self.stage.records.get(&view.name);
                if record.signals.len() > 1 && record.signals.last() == Some(&9) {
                    self.stage.trace.count(Branch::GraceOver);
                }
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
        let ended = self
            .until(PATIENCE, |world| {
                let mut stay = world.clients.iter().enumerate().filter(|(index, _)| !leaving.contains(index));
                stay.all(|(_, client)| client.borrow().ended)
            })
            .await;
        if !ended {
            return self.stage.trace.fail(format_args!("a session does not end"));
        }
        let longest = leaving.iter().map(|index| self.clients[*index].borrow().ttl_ms).max();
        if let Some(ttl_ms) = longest {
            tokio::time::sleep(Duration::from_millis(ttl_ms + 5000)).await;
        }
        for index in leaving {
            self.clients[index].borrow_mut().refused = None;
            self.connect_over(index, Arrival::TakeOver, GOOD);
            self.until(PATIENCE, |world| world.clients[index].borrow().refused.is_some()).await;
            let client = self.clients[index].borrow();
            match client.refused.as_deref() {
                Some("sessionExpired") => self.stage.trace.count(Branch::Expired),
                other => client.wrong(format_args!("its time is over, and a resume says {other:?}")),
            }
        }
        if !self.until(PATIENCE, |world| world.holders.alive() == 0).await {
            self.stage.trace.fail(format_args!("{} holders are left", self.holders.alive()));
        }
    }
}
