//! Waiting for a session that its server is still adopting: a restarted server knows it, but its holder process has not answered yet.
//!
//! Owns how long and how often such a session is asked for again. An answer of this kind means that nothing was done, so every method
//! may be repeated.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use exec_server_protocol::failure::Kind;
use tokio::{
    sync::Notify,
    time::{self, Instant},
};

use super::{FOREVER, Key, Options, Session};
use crate::{
    error::Error,
    links::Links,
    process::{log::Log, recovery},
    requests::Method,
};

/// How long the first connection waits for the session that it resumes, where no time for recovery is set.
const RESUME_WITHIN: Duration = Duration::from_secs(30);

/// How long to wait before such a session is asked for again.
const PAUSE: Duration = Duration::from_millis(500);

/// Whether the server says that it is still adopting the session.
pub(crate) fn is_adopting(error: &Error) -> bool {
    error.server_kind() == Some(Kind::SessionAdopting)
}

/// How long a first connection waits after this refusal, beside the time that it gives to connecting.
pub(super) fn resume_within(options: &Options, refused: &Error) -> Duration {
    if is_adopting(refused) { options.recover_for.unwrap_or(RESUME_WITHIN).min(FOREVER) } else { Duration::ZERO }
}

impl Session {
    /// As [`call`](Self::call), but waits while the session that the call is about is being adopted, as long as a cut may last.
    pub(crate) async fn call_adopted<M: Method>(&self, params: &M::Params) -> Result<M::Result, Error> {
        let until = Instant::now() + self.recover_for().min(FOREVER);
        loop {
            match self.call::<M>(params).await {
                Err(error) if is_adopting(&error) && Instant::now() + PAUSE < until => time::sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    /// Subscribes to a process of another session, on the link with this epoch, as soon as that session is adopted.
    pub(crate) fn subscribe_adopted(&self, key: Key, log: Weak<Log>, hold: bool, epoch: u64) {
        tracing::info!(session = ?key.session_id, "its server is still adopting it; waiting");
        let later = Later { links: self.standing.links(false), key, log, hold, epoch, acks: Arc::clone(&self.acks) };
        self.spawn(later.subscribe(self.recover_for().min(FOREVER)));
    }
}

/// A subscription to be made.
struct Later {
    links: Links,
    key: Key,
    log: Weak<Log>,
    hold: bool,
    epoch: u64,
    acks: Arc<Notify>,
}

impl Later {
    async fn subscribe(self, within: Duration) {
        let until = Instant::now() + within;
        loop {
            time::sleep(PAUSE).await;
            // The next link subscribes to everything again, and a lost session has failed its logs.
            let Some(link) = self.links.after(self.epoch - 1).await.ok().filter(|link| link.epoch == self.epoch) else {
                return;
            };
            let Some(log) = self.log.upgrade().filter(|log| log.closed().is_none() && log.failed().is_none()) else {
                return;
            };
            match recovery::subscribe(&link, &self.key, &log, self.hold).await {
                Ok(()) => {
                    // What was acknowledged on this link before was for nobody.
                    log.renew_ack();
                    return self.acks.notify_one();
                }
                Err(Error::Disconnected { .. }) => return,
                Err(error) if is_adopting(&error) && Instant::now() + PAUSE < until => {}
                Err(error) => return log.fail(error),
            }
        }
    }
}
