//! Maps the name of a process to its log. Does not depend on connections or on the meaning of events.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exec_server_protocol::{ProcessId, SessionId, process::AckParams};

use crate::{
    process::log::{Discipline, Log},
    session::Key,
};

/// How the events of a process reach its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feed {
    /// By notifications. The start was requested and is not answered yet, so the server may not know the process.
    Starting,
    /// By notifications. The server keeps output until it is acknowledged.
    Pushed,
    /// By notifications that the process does not wait for. Output that is not consumed in time becomes a gap.
    Observed,
    /// By `process/read`. Notifications are ignored.
    Polled,
}

/// All logs of a session.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Set after the first handshake.
    expected: Option<Discipline>,
    /// The id of the client's own session.
    own: Option<SessionId>,
    /// Sorted, so that operations on all logs run in the same order every time.
    routes: BTreeMap<Key, (Arc<Log>, Feed)>,
}

impl Routes {
    /// Sets the rules that the server's events follow, and the id of the client's own session.
    pub(crate) fn set_discipline(&self, discipline: Discipline, own: Option<SessionId>) {
        let mut state = self.lock();
        state.expected = Some(discipline);
        state.own = own;
    }

    /// Creates the log of a process before any request about it is sent; `None` if the process has a log already.
    pub(crate) fn add(&self, key: Key, feed: Feed, after: u64) -> Option<Arc<Log>> {
        let mut state = self.lock();
        let discipline = match feed {
            Feed::Starting | Feed::Pushed => state.expected.unwrap_or(Discipline::Reference),
            Feed::Observed => Discipline::Observed,
            Feed::Polled => Discipline::Polled {
                window: match state.expected {
                    Some(Discipline::Acked { window }) => Some(window),
                    _ => None,
                },
            },
        };
        match state.routes.entry(key) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                let log = Arc::new(Log::new(discipline, after));
                entry.insert((Arc::clone(&log), feed));
                Some(log)
            }
        }
    }

    /// Records that the server has started a process.
    pub(crate) fn confirm(&self, key: &Key) {
        if let Some((_, feed)) = self.lock().routes.get_mut(key) {
            *feed = Feed::Pushed;
        }
    }

    /// Removes a process if `log` is still its log. A newer handle of the same process may have replaced the log.
    pub(crate) fn remove(&self, key: &Key, log: &Arc<Log>) {
        let mut state = self.lock();
        if state.routes.get(key).is_some_and(|(current, _)| Arc::ptr_eq(current, log)) {
            state.routes.remove(key);
        }
    }

    /// The key of the process that an event names.
    pub(crate) fn key(&self, session_id: Option<SessionId>, process_id: ProcessId) -> Key {
        let session_id = session_id.filter(|id| Some(id) != self.lock().own.as_ref());
        Key { session_id, process_id }
    }

    /// The log that a notification is for; `None` if the process has no log or its log is polled.
    pub(crate) fn pushed(&self, key: &Key) -> Option<Arc<Log>> {
        match self.lock().routes.get(key) {
            Some((log, Feed::Starting | Feed::Pushed | Feed::Observed)) => Some(Arc::clone(log)),
            Some((_, Feed::Polled)) | None => None,
        }
    }

    pub(crate) fn logs(&self) -> Vec<Arc<Log>> {
        self.lock().routes.values().map(|(log, _)| Arc::clone(log)).collect()
    }

    pub(crate) fn all(&self) -> Vec<(Key, Arc<Log>, Feed)> {
        let state = self.lock();
        state.routes.iter().map(|(key, (log, feed))| (key.clone(), Arc::clone(log), *feed)).collect()
    }

    /// The acknowledgements that are due now.
    pub(crate) fn due_acks(&self) -> Vec<AckParams> {
        let state = self.lock();
        let due = state.routes.iter().filter_map(|(key, (log, _))| log.due_ack().map(|seq| (key, seq)));
        due.map(|(key, seq)| AckParams { process_id: key.process_id.clone(), session_id: key.session_id.clone(), seq })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Poisoning is harmless: no code under the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
