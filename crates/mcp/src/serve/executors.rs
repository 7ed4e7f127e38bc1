//! Sessions with the executor in which processes run: one for each MCP session, from its first process on.
//!
//! ```text
//!  MCP session ── Owned ── client() ──▶ its session ──lost──▶ the next one
//!                   └──dropped──▶ Executors: ends it, with everything that was ever started in it
//! ```
//!
//! What a command leaves behind cannot be told from others when the command is gone, but it never leaves the session: its end reaches
//! everything. [`Executors`] owns all of them and the tasks that end them.
//!
//! Must not know MCP, nor start anything by itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_server_client::{Client, Error, ErrorKind, Process, Start};
use tokio::{runtime::Handle, task::JoinSet};

use super::{
    Server,
    place::{Opened, is_lost},
};

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Executors(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    /// Counts those that were ever opened.
    last: u64,
    open: BTreeMap<u64, Opened>,
    ending: JoinSet<()>,
}

impl Executors {
    fn lock(&self) -> MutexGuard<'_, All> {
        // No code under the lock can panic half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, opened: Opened) -> u64 {
        let mut all = self.lock();
        all.last += 1;
        let number = all.last;
        all.open.insert(number, opened);
        number
    }

    /// Begins to end one.
    fn leave(&self, number: u64) {
        let mut all = self.lock();
        let all = &mut *all;
        // Those that have ended are let go here, so that the set does not grow.
        while all.ending.try_join_next().is_some() {}
        // Without a runtime the program is at its end, and the executor hears that it is.
        if let (Some(opened), Ok(runtime)) = (all.open.remove(&number), Handle::try_current()) {
            all.ending.spawn_on(opened.end(), &runtime);
        }
    }

    /// Ends all of them; returns when they have ended, or had their time.
    pub(super) async fn end_all(&self) {
        let numbers: Vec<u64> = self.lock().open.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.leave(number));
        let mut ending = std::mem::take(&mut self.lock().ending);
        while ending.join_next().await.is_some() {}
    }
}

/// The executor as one MCP session has it for its processes; dropping it ends them.
pub(super) struct Owned {
    server: Arc<Server>,
    current: tokio::sync::Mutex<Option<(u64, Client)>>,
}

impl Owned {
    /// None yet: most sessions of those that only look at files need none.
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self { server, current: tokio::sync::Mutex::default() }
    }

    /// The session of the moment; the first one, or the next one where that is lost.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        let mut current = self.current.lock().await;
        if let Some((_, client)) = current.as_ref().filter(|(_, client)| !is_lost(client)) {
            return Ok(client.clone());
        }
        let opened = self.server.place.open().await?;
        let client = opened.client.clone();
        let number = self.server.executors.keep(opened);
        if let Some((before, _)) = current.replace((number, client.clone())) {
            self.server.executors.leave(before);
        }
        Ok(client)
    }

    /// Starts a process, in the next session where the one before turns out to be lost: then nothing of it runs.
    pub(super) async fn begin(&self, start: Start) -> Result<(Client, Process), Error> {
        let client = self.client().await?;
        match client.start(start.clone()).await {
            Err(error) if error.kind() == ErrorKind::SessionLost => {
                let client = self.client().await?;
                let process = client.start(start).await?;
                Ok((client, process))
            }
            started => Ok((client, started?)),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some((number, _)) = self.current.get_mut().take() {
            self.server.executors.leave(number);
        }
    }
}
