//! The sessions of streamable HTTP: limits their number and ends idle ones.
//!
//! rmcp's own manager stores the sessions. This module counts their open streams and notes their last use. A session is idle while it has
//! no open stream and receives no request. A pending answer counts as an open stream. rmcp's own keep-alive timer is disabled, because it
//! would end a session during a long call.

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

/// All sessions over HTTP. rmcp uses them through [`SessionManager`].
pub(super) struct HttpSessions {
    inner: LocalSessionManager,
    uses: Arc<Mutex<HashMap<SessionId, SessionUse>>>,
    /// How many answers are pending or being sent. Answers on a resumed stream do not count.
    answers: Arc<watch::Sender<usize>>,
    /// One permit for each session that may still be created.
    permits: Arc<Semaphore>,
    most: usize,
}

/// How a session is used.
struct SessionUse {
    _permit: OwnedSemaphorePermit,
    /// The number of open streams.
    streams: usize,
    /// When the last request arrived, or a stream last sent a message or was closed.
    last: Instant,
}

/// Why a session could not be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionsError {
    /// The limit is reached.
    #[error("limit reached: {most} sessions")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// An error of rmcp.
    #[error("the MCP session manager failed")]
    Inner(#[from] LocalSessionManagerError),
}

/// Counts a stream of a session as open until it is dropped.
struct OpenStream {
    uses: Arc<Mutex<HashMap<SessionId, SessionUse>>>,
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
        let mut inner = LocalSessionManager::default();
        inner.session_config = config;
        Self {
            inner,
            uses: Arc::default(),
            answers: Arc::new(watch::Sender::new(0)),
            permits: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    /// Whether the limit is reached.
    pub(super) fn is_full(&self) -> bool {
        self.permits.available_permits() == 0
    }

    /// Ends the sessions that were idle for at least `idle`.
    pub(super) async fn expire(&self, idle: Duration) {
        let is_idle = |session: &SessionUse| session.streams == 0 && session.last.elapsed() >= idle;
        let ids: Vec<SessionId> =
            self.uses.lock().iter().filter(|(_, session)| is_idle(session)).map(|(id, _)| id.clone()).collect();
        if !ids.is_empty() {
            tracing::info!(count = ids.len(), "ending sessions that were idle for too long");
        }
        join_all(ids.iter().map(|id| self.end(id))).await;
    }

    /// Waits until all answers have been sent.
    pub(super) async fn wait_until_answered(&self) {
        // Cannot fail: `self` owns the sender.
        self.answers.subscribe().wait_for(|answers| *answers == 0).await.ok();
    }

    /// Ends all sessions.
    pub(super) async fn end_all(&self) {
        let ids: Vec<SessionId> = self.uses.lock().keys().cloned().collect();
        join_all(ids.iter().map(|id| self.end(id))).await;
    }

    async fn end(&self, id: &SessionId) {
        match time::timeout(END_WITHIN, self.close_session(id)).await {
            Ok(Ok(())) => {}
            // The client may have ended it in the meantime.
            Ok(Err(error)) => tracing::debug!(%error, "a session had already ended"),
            Err(_) => tracing::warn!("a session did not end in time"),
        }
    }

    fn mark_used(&self, id: &SessionId) {
        if let Some(session) = self.uses.lock().get_mut(id) {
            session.last = Instant::now();
        }
    }

    /// Counts a stream as open until it is dropped.
    fn counted<S: Stream<Item = ServerSseMessage> + Send + Sync + 'static>(
        &self,
        id: &SessionId,
        stream: S,
        is_answer: bool,
    ) -> impl Stream<Item = ServerSseMessage> + Send + Sync + use<S> + 'static {
        if let Some(session) = self.uses.lock().get_mut(id) {
            session.streams += 1;
        }
        let answers = is_answer.then(|| Arc::clone(&self.answers));
        if let Some(answers) = &answers {
            answers.send_modify(|answers| *answers += 1);
        }
        let open = OpenStream { uses: Arc::clone(&self.uses), id: id.clone(), answers };
        stream.map(move |message| {
            if let Some(session) = open.uses.lock().get_mut(&open.id) {
                session.last = Instant::now();
            }
            message
        })
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        // `close_session` may have removed the session.
        if let Some(session) = self.uses.lock().get_mut(&self.id) {
            session.streams = session.streams.saturating_sub(1);
            session.last = Instant::now();
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
        // The HTTP handler has already checked `is_full`, to answer with a better error. Only this check is safe against concurrent
        // requests.
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| SessionsError::TooMany { most: self.most })?;
        let (id, transport) = self.inner.create_session().await?;
        self.uses.lock().insert(id.clone(), SessionUse { _permit: permit, streams: 0, last: Instant::now() });
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.mark_used(id);
        Ok(self.inner.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.inner.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.uses.lock().remove(id);
        Ok(self.inner.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.mark_used(id);
        let stream = self.inner.create_stream(id, message).await?;
        Ok(self.counted(id, stream, true))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.mark_used(id);
        Ok(self.inner.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.mark_used(id);
        let stream = self.inner.create_standalone_stream(id).await?;
        Ok(self.counted(id, stream, false))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.mark_used(id);
        let stream = self.inner.resume(id, last_event_id).await?;
        Ok(self.counted(id, stream, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn concurrent_requests_cannot_exceed_the_limit_of_sessions() {
        let sessions = HttpSessions::new(3);
        let begun = join_all((0..10).map(|_| sessions.create_session())).await;
        assert_eq!(begun.iter().filter(|begun| begun.is_ok()).count(), 3);
        assert!(sessions.is_full());
        sessions.end_all().await;
        assert!(!sessions.is_full());
        assert_eq!(sessions.permits.available_permits(), 3);
        let taken: Vec<_> = std::iter::from_fn(|| sessions.permits.try_acquire().ok()).collect();
        assert_eq!(taken.len(), 3);
        assert!(sessions.create_session().await.is_err());
    }
}
