//! Maps the name of a process to its log. Does not depend on connections or on the meaning of events.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use exec_server_protocol::{ProcessId, SessionId, process::AckParams};
use parking_lot::Mutex;

use crate::{
    compat,
    process::log::{EventLog, FlowPolicy},
    session::ProcessKey,
};

/// How the events of a process reach its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventSource {
    /// By notifications. The start was requested and is not answered yet, so the server may not know the process.
    Starting,
    /// By notifications. A server with acknowledgements keeps output until it is acknowledged.
    Pushed,
    /// By notifications. The server does not keep output for this reader, so output that is not consumed in time becomes a gap.
    Observed,
    /// By `process/read`. Notifications are ignored.
    Polled,
}

/// All logs of a session.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    state: Mutex<RouteTable>,
}

#[derive(Debug, Default)]
struct RouteTable {
    /// How the server sends events of the client's own processes. Set after the first handshake.
    flow_policy: FlowPolicy,
    /// The id of the client's own session.
    own: Option<SessionId>,
    /// A sorted map, so that operations on all logs run in the same order every time. The seeded simulation relies on that.
    routes: BTreeMap<ProcessKey, (Arc<EventLog>, EventSource)>,
}

impl Routes {
    /// Routes for a start that is sent before the server has announced how it sends events: as a server with session keys does.
    pub(crate) fn before_handshake() -> Self {
        let state = RouteTable { flow_policy: FlowPolicy::acked(compat::WINDOW_MAX), ..RouteTable::default() };
        Self { state: Mutex::new(state) }
    }

    /// Sets how the server sends events, and the id of the client's own session.
    pub(crate) fn set_flow_policy(&self, flow_policy: FlowPolicy, own: Option<SessionId>) {
        let mut state = self.state.lock();
        state.flow_policy = flow_policy;
        state.own = own;
        // The log of a start that was sent with the handshake.
        for (log, _) in state.routes.values() {
            log.set_flow_policy(flow_policy);
        }
    }

    /// Creates the log of a process before any request about it is sent; `None` if the process has a log already.
    pub(crate) fn add(&self, key: ProcessKey, source: EventSource, after: u64) -> Option<Arc<EventLog>> {
        let mut state = self.state.lock();
        let flow_policy = match source {
            EventSource::Starting | EventSource::Pushed => state.flow_policy,
            EventSource::Observed => FlowPolicy::observed(),
            EventSource::Polled => FlowPolicy::polled(state.flow_policy.ack_window),
        };
        match state.routes.entry(key) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                let log = Arc::new(EventLog::new(flow_policy, after));
                entry.insert((Arc::clone(&log), source));
                Some(log)
            }
        }
    }

    /// Records that the server has started a process.
    pub(crate) fn confirm(&self, key: &ProcessKey) {
        if let Some((_, source)) = self.state.lock().routes.get_mut(key) {
            *source = EventSource::Pushed;
        }
    }

    /// Removes a process if `log` is still its log. A newer handle of the same process may have replaced the log.
    pub(crate) fn remove(&self, key: &ProcessKey, log: &Arc<EventLog>) {
        let mut state = self.state.lock();
        if state.routes.get(key).is_some_and(|(current, _)| Arc::ptr_eq(current, log)) {
            state.routes.remove(key);
        }
    }

    /// The key of the process that an event names. A server may name the client's own session explicitly, which a key leaves out.
    pub(crate) fn key(&self, session_id: Option<SessionId>, process_id: ProcessId) -> ProcessKey {
        let session_id = session_id.filter(|id| Some(id) != self.state.lock().own.as_ref());
        ProcessKey { session_id, process_id }
    }

    /// The log that a notification is for; `None` if the process has no log or its log is polled.
    pub(crate) fn pushed_log(&self, key: &ProcessKey) -> Option<Arc<EventLog>> {
        match self.state.lock().routes.get(key) {
            Some((log, EventSource::Starting | EventSource::Pushed | EventSource::Observed)) => Some(Arc::clone(log)),
            Some((_, EventSource::Polled)) | None => None,
        }
    }

    pub(crate) fn logs(&self) -> Vec<Arc<EventLog>> {
        self.state.lock().routes.values().map(|(log, _)| Arc::clone(log)).collect()
    }

    pub(crate) fn all(&self) -> Vec<(ProcessKey, Arc<EventLog>, EventSource)> {
        let state = self.state.lock();
        state.routes.iter().map(|(key, (log, source))| (key.clone(), Arc::clone(log), *source)).collect()
    }

    /// The acknowledgements that are due now.
    pub(crate) fn due_acks(&self) -> Vec<AckParams> {
        let state = self.state.lock();
        let due = state.routes.iter().filter_map(|(key, (log, _))| {
            let seq = log.due_ack()?;
            let ProcessKey { process_id, session_id } = key.clone();
            Some(AckParams { process_id, session_id, seq })
        });
        due.collect()
    }
}
