//! The executor sessions in which processes run. Each MCP session gets its own when it starts its first process.
//!
//! ```text
//!  MCP session ── ProcessSession ── client() ──▶ its session ──lost──▶ the next one
//!                   └──dropped──▶ ProcessSessions: ends it, with everything that was ever started in it
//! ```
//!
//! After a command has exited, nothing here knows which processes it left running. They cannot leave the executor session, so ending that
//! session kills all of them. [`ProcessSessions`] owns all these sessions and the tasks that end them.

use std::{collections::BTreeMap, sync::Arc};

use exec_server_client::{Client, Error, ErrorKind, Process, Start};
use parking_lot::Mutex;
use tokio::{runtime::Handle, task::JoinSet};

use super::{
    McpServer,
    executor::{ExecutorSession, is_lost},
};

/// The executor sessions of all MCP sessions.
#[derive(Debug, Default)]
pub(super) struct ProcessSessions(Mutex<ProcessSessionTable>);

#[derive(Debug, Default)]
struct ProcessSessionTable {
    /// The number of the session that was added last.
    last: u64,
    open: BTreeMap<u64, ExecutorSession>,
    ending: JoinSet<()>,
}

impl ProcessSessions {
    fn add(&self, opened: ExecutorSession) -> u64 {
        let mut all = self.0.lock();
        all.last += 1;
        let number = all.last;
        all.open.insert(number, opened);
        number
    }

    /// Starts a task that ends a session.
    fn end_in_background(&self, number: u64) {
        let mut guard = self.0.lock();
        let all = &mut *guard;
        // Remove finished tasks here, so that the set does not grow.
        while all.ending.try_join_next().is_some() {}
        // Without a runtime the program is exiting. Then the closed connection ends the session, after its time-to-live.
        if let (Some(opened), Ok(runtime)) = (all.open.remove(&number), Handle::try_current()) {
            all.ending.spawn_on(opened.end(), &runtime);
        }
    }

    /// Ends all sessions. Returns when each one has ended or its time limit has passed.
    pub(super) async fn end_all(&self) {
        let numbers: Vec<u64> = self.0.lock().open.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.end_in_background(number));
        let mut ending = std::mem::take(&mut self.0.lock().ending);
        while ending.join_next().await.is_some() {}
    }
}

/// The executor session of one MCP session. Dropping it ends the processes in it.
pub(super) struct ProcessSession {
    server: Arc<McpServer>,
    /// The number and the client of the current session. Locked while a session is opened, so that concurrent calls open only one.
    current: tokio::sync::Mutex<Option<(u64, Client)>>,
}

impl ProcessSession {
    /// Opens nothing yet: MCP sessions that only use files need no executor session for processes.
    pub(super) fn new(server: Arc<McpServer>) -> Self {
        Self { server, current: tokio::sync::Mutex::default() }
    }

    /// The current session. Opens one if there is none or if it is lost.
    pub(super) async fn client(&self) -> Result<Client, Error> {
        let mut current = self.current.lock().await;
        if let Some((_, client)) = current.as_ref().filter(|(_, client)| !is_lost(client)) {
            return Ok(client.clone());
        }
        let opened = self.server.executor.open().await?;
        let client = opened.client.clone();
        let number = self.server.process_sessions.add(opened);
        if let Some((before, _)) = current.replace((number, client.clone())) {
            self.server.process_sessions.end_in_background(before);
        }
        Ok(client)
    }

    /// Starts a process. If the session turns out to be lost, starts the process in a new one. This is safe: a lost session runs nothing.
    pub(super) async fn start(&self, start: Start) -> Result<(Client, Process), Error> {
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

impl Drop for ProcessSession {
    fn drop(&mut self) {
        if let Some((number, _)) = self.current.get_mut().take() {
            self.server.process_sessions.end_in_background(number);
        }
    }
}
