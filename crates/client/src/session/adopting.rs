//! Waits for a session that a restarted server is still adopting: the server knows the session, but its holder process has not answered
//! yet.
//!
//! This module defines how long and how often the client asks again. The error `sessionAdopting` means that the server did nothing, so
//! every method may be repeated.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use exec_server_protocol::failure::Kind;
use tokio::time::{self, Instant};

use super::{FOREVER, ProcessKey, Session, SessionOptions};
use crate::{
    Request,
    error::Error,
    process::{log::EventLog, recovery},
};

/// How long the first connection waits for the session that it resumes, if `recover_for` is not set.
const RESUME_WITHIN: Duration = Duration::from_secs(30);

/// Pause before the client asks again about a session that is being adopted.
const PAUSE: Duration = Duration::from_millis(500);

/// Whether the server reports that it is still adopting the session.
pub(crate) fn is_adopting(error: &Error) -> bool {
    error.server_kind() == Some(Kind::SessionAdopting)
}

/// How long a first connection retries after this refusal, independently of `connect_retry_for`.
pub(super) fn resume_within(options: &SessionOptions, refusal: &Error) -> Duration {
    if is_adopting(refusal) { options.recover_for.unwrap_or(RESUME_WITHIN).min(FOREVER) } else { Duration::ZERO }
}

impl Session {
    /// Like [`call`](Self::call), but retries while the server is adopting the session that the call is about. Waits at most as long as for
    /// a reconnect.
    pub(crate) async fn call_adopted<M: Request>(&self, params: &M::Params<'_>) -> Result<M::Result, Error> {
        let until = Instant::now() + self.recover_for().min(FOREVER);
        loop {
            match self.call::<M>(params).await {
                Err(error) if is_adopting(&error) && Instant::now() + PAUSE < until => time::sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    /// Subscribes to a process of another session as soon as the server has adopted that session. Applies only to the link with this epoch.
    pub(crate) fn subscribe_adopted(&self, key: ProcessKey, log: Weak<EventLog>, hold: bool, epoch: u64) {
        tracing::info!(session = ?key.session_id, "the server is still adopting the session; waiting to subscribe");
        let links = self.link_state.waiter(false);
        let acks = Arc::clone(&self.acks);
        let within = self.recover_for().min(FOREVER);
        self.spawn(async move {
            let until = Instant::now() + within;
            loop {
                time::sleep(PAUSE).await;
                // This waits until the keeper has set the link to `Up`. If the link has been replaced, stop: the resume has subscribed to
                // every process again. A lost session has already failed its logs.
                let Some(link) = links.after(epoch - 1).await.ok().filter(|link| link.epoch == epoch) else { return };
                let Some(log) = log.upgrade().filter(|log| !log.is_over()) else { return };
                match recovery::subscribe(&link, &key, &log, hold).await {
                    Ok(()) => {
                        // The server ignored acknowledgements that were sent on this link before the subscription existed.
                        log.renew_ack();
                        return acks.notify_one();
                    }
                    Err(Error::Disconnected { .. }) => return,
                    Err(error) if is_adopting(&error) && Instant::now() + PAUSE < until => {}
                    Err(error) => return log.fail(error),
                }
            }
        });
    }
}
