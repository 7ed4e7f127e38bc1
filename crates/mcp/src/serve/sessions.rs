//! The sessions of streamable HTTP: limits their number and ends idle ones.
//!
//! rmcp's own manager stores the sessions; this module counts their use. A session is idle while it has no open stream and receives no
//! request. A pending answer counts as an open stream. rmcp's own keep-alive timer is disabled, because it would end a session during a
//! long call.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt as _, future::join_all};
use parking_lot::Mutex;
use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::streamable_http_server::session::{
        ServerSseMessage, SessionId, SessionManager,
        local::{LocalSessionManager, LocalSessionManagerError, SessionConfig},
    },
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{self, Instant},
};

/// How long answers are kept for a client that lost its connection before it received them.
const ANSWERS_FOR: Duration = Duration::from_secs(30);

/// Time limit for the start of a session.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);

/// Time limit for the end of a session.
const END_WITHIN: Duration = Duration::from_secs(2);

pub(super) struct HttpSessions {
    kept: LocalSessionManager,
    used: Arc<Mutex<HashMap<SessionId, SessionUse>>>,
    /// How many answers are pending or being sent.
    answers: Arc<watch::Sender<usize>>,
    /// One permit for each session that may still begin.
    slots: Arc<Semaphore>,
    most: usize,
}

/// How a session is used.
struct SessionUse {
    _slot: OwnedSemaphorePermit,
    /// The number of open streams.
    streams: usize,
    /// When the last request or stream message occurred.
    last: Instant,
}

/// Why a session could not be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionsError {
    /// The limit is reached.
    #[error("there are {most} sessions already")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// An error of rmcp.
    #[error("use a session")]
    Kept(#[from] LocalSessionManagerError),
}

/// An open stream of a session. Dropping it ends the count.
struct OpenStream {
    used: Arc<Mutex<HashMap<SessionId, SessionUse>>>,
    id: SessionId,
    /// The counter of answers, if the stream carries one.
    answers: Option<Arc<watch::Sender<usize>>>,
}

impl HttpSessions {
    /// Creates an empty set for at most `most` sessions.
    pub(super) fn new(most: usize) -> Self {
        let mut config = SessionConfig::default();
        // `expire` ends idle sessions instead.
        config.keep_alive = None;
        config.init_timeout = Some(BEGIN_WITHIN);
        config.completed_cache_ttl = ANSWERS_FOR;
        let mut kept = LocalSessionManager::default();
        kept.session_config = config;
        Self {
            kept,
            used: Arc::default(),
            answers: Arc::new(watch::Sender::new(0)),
            slots: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    /// Whether the limit is reached.
    pub(super) fn is_full(&self) -> bool {
        self.slots.available_permits() == 0
    }

    /// Ends the sessions that were idle for at least `idle`.
    pub(super) async fn expire(&self, idle: Duration) {
        let is_idle = |used: &SessionUse| used.streams == 0 && used.last.elapsed() >= idle;
        let ids: Vec<SessionId> =
            self.used.lock().iter().filter(|(_, used)| is_idle(used)).map(|(id, _)| id.clone()).collect();
        if !ids.is_empty() {
            tracing::info!(count = ids.len(), "sessions were idle for too long and are ended");
        }
        join_all(ids.iter().map(|id| self.end(id))).await;
    }

    /// Waits until all answers have been sent.
    pub(super) async fn answered(&self) {
        // Cannot fail: `self` owns the sender.
        self.answers.subscribe().wait_for(|answers| *answers == 0).await.ok();
    }

    /// Ends all sessions.
    pub(super) async fn end_all(&self) {
        let ids: Vec<SessionId> = self.used.lock().keys().cloned().collect();
        join_all(ids.iter().map(|id| self.end(id))).await;
    }

    async fn end(&self, id: &SessionId) {
        match time::timeout(END_WITHIN, self.close_session(id)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a session had ended already"),
            Err(_) => tracing::warn!("a session did not end in time"),
        }
    }

    fn mark_used(&self, id: &SessionId) {
        if let Some(used) = self.used.lock().get_mut(id) {
            used.last = Instant::now();
        }
    }

    /// Counts a stream as open until it is dropped.
    fn counted<S: Stream<Item = ServerSseMessage> + Send + Sync + 'static>(
        &self,
        id: &SessionId,
        stream: S,
        is_answer: bool,
    ) -> impl Stream<Item = ServerSseMessage> + Send + Sync + use<S> + 'static {
        if let Some(used) = self.used.lock().get_mut(id) {
            used.streams += 1;
        }
        let answers = is_answer.then(|| Arc::clone(&self.answers));
        if let Some(answers) = &answers {
            answers.send_modify(|answers| *answers += 1);
        }
        let open = OpenStream { used: Arc::clone(&self.used), id: id.clone(), answers };
        stream.map(move |message| {
            open.used.lock().entry(open.id.clone()).and_modify(|used| used.last = Instant::now());
            message
        })
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if let Some(used) = self.used.lock().get_mut(&self.id) {
            used.streams = used.streams.saturating_sub(1);
            used.last = Instant::now();
        }
        if let Some(answers) = &self.answers {
            answers.send_modify(|answers| *answers = answers.saturating_sub(1));
        }
    }
}

impl SessionManager for HttpSessions {
    type Error = SessionsError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        // The HTTP handler has checked `is_full` before, to give a better error. This check decides between requests that arrive at once.
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        let slot = slot.map_err(|_| SessionsError::TooMany { most: self.most })?;
        let (id, transport) = self.kept.create_session().await?;
        self.used.lock().insert(id.clone(), SessionUse { _slot: slot, streams: 0, last: Instant::now() });
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.mark_used(id);
        Ok(self.kept.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.kept.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.used.lock().remove(id);
        Ok(self.kept.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.mark_used(id);
        let stream = self.kept.create_stream(id, message).await?;
        Ok(self.counted(id, stream, true))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.mark_used(id);
        Ok(self.kept.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.mark_used(id);
        let stream = self.kept.create_standalone_stream(id).await?;
        Ok(self.counted(id, stream, false))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.mark_used(id);
        let stream = self.kept.resume(id, last_event_id).await?;
        Ok(self.counted(id, stream, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sessions_that_begin_at_once_share_the_bound() {
        let sessions = HttpSessions::new(3);
        let begun = join_all((0..10).map(|_| sessions.create_session())).await;
        assert_eq!(begun.iter().filter(|begun| begun.is_ok()).count(), 3);
        assert!(sessions.is_full());
        sessions.end_all().await;
        assert!(!sessions.is_full());
        assert_eq!(sessions.slots.available_permits(), 3);
        // A slot that was reserved for a session that never started is free again.
        drop(sessions.slots.try_acquire());
        let rooms: Vec<_> = std::iter::from_fn(|| sessions.slots.try_acquire().ok()).collect();
        assert_eq!(rooms.len(), 3);
        assert!(sessions.create_session().await.is_err());
    }
}
