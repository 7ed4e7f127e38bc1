//! Decides whether a failed first connection is retried, and after which pause. Neither sleeps nor connects itself.
//!
//! A permanent failure is reported at once. This module covers only the first connection. An established session is
//! reconnected by `Session::recover`, which retries after every `ConnectFailure`, even a permanent one.

use std::time::Duration;

use exec_server_protocol::failure::Kind;
use tokio::time::Instant;

use super::{FOREVER, SessionOptions};
use crate::{
    Request as _,
    backoff::Backoff,
    compat::Generation,
    error::{ConnectFailure, Error, chain},
    requests,
    server_link::DialError,
};

/// The longest pause of the backoff, so that a caller that waits for a server connects soon after the server has started.
const PAUSE_MAX: Duration = Duration::from_millis(500);

pub(super) struct FirstConnect {
    backoff: Backoff,
    began: Instant,
    retry_for: Duration,
    /// The pause before the one retry that `startup_grace` allows. Taken when that retry is made.
    grace: Option<Duration>,
    /// Whether `startup_grace` is set, so that an absent server is reported early.
    is_brief: bool,
    /// How long to reconnect once a process may run on the server.
    recover_for: Duration,
    /// Since when a process may run on the server: the connection broke after a start was sent with the handshake. From then on, failures are
    /// retried as for an established session.
    started_since: Option<Instant>,
}

impl FirstConnect {
    pub(super) fn new(options: &SessionOptions) -> Self {
        Self {
            backoff: options.backoff.clone(),
            began: Instant::now(),
            retry_for: options.connect_retry_for.min(FOREVER),
            grace: options.startup_grace,
            is_brief: options.startup_grace.is_some(),
            recover_for: options
                .recover_for
                .unwrap_or_else(|| Generation::Current.session_ttl(options.ttl))
                .min(FOREVER),
            started_since: None,
        }
    }

    /// Whether an earlier attempt may have started the process.
    pub(super) fn may_have_started(&self) -> bool {
        self.started_since.is_some()
    }

    /// Whether the server refused an attempt because it does not know `sessionKey`. It has started nothing then.
    pub(super) fn has_no_session_keys(&self, dial_error: &DialError) -> bool {
        // Servers of the reference send no kind.
        let is_unknown = |kind: Option<Kind>| kind.is_none_or(|kind| kind == Kind::UnknownSession);
        self.started_since.is_none() && matches!(&dial_error.error, Error::Server { kind, .. } if is_unknown(*kind))
    }

    /// The error to report if no further attempt is made.
    pub(super) fn explain(&self, error: Error) -> Error {
        if self.may_have_started() && !matches!(error, Error::UnknownOutcome { .. }) {
            let reason = Some(chain(&error));
            return Error::UnknownOutcome { method: requests::ProcessStart::NAME, reason };
        }
        error
    }

    /// Returns the pause before the next attempt, or `None` if the failure is to be reported. The time for retries is
    /// `connect_retry_for` or `within`, whichever is longer, counted from the first attempt. `within` comes from
    /// `adopting::resume_within`: it is zero unless the server is still adopting the session to resume.
    pub(super) fn pause_after(&mut self, dial_error: &DialError, within: Duration) -> Option<Duration> {
        if dial_error.may_have_started {
            self.started_since.get_or_insert_with(Instant::now);
        }
        if let Some(since) = self.started_since {
            let pause = self.backoff.pause();
            let is_in_time = since.elapsed() + pause < self.recover_for;
            return (dial_error.is_worth_retrying && !dial_error.is_violation && is_in_time).then_some(pause);
        }
        // A peer that violates the protocol is not an exec-server, so a retry does not help.
        if !dial_error.is_worth_retrying || dial_error.is_violation {
            return None;
        }
        let pause = match failure_of(&dial_error.error) {
            ConnectFailure::Permanent => return None,
            ConnectFailure::Unreachable if self.is_brief => return None,
            ConnectFailure::NotListening if self.is_brief => self.grace.take()?,
            ConnectFailure::Unreachable | ConnectFailure::NotListening | ConnectFailure::Busy => {
                self.backoff.pause().min(PAUSE_MAX)
            }
        };
        (self.began.elapsed() + pause < self.retry_for.max(within)).then_some(pause)
    }
}

fn failure_of(error: &Error) -> ConnectFailure {
    match error {
        Error::Connect { failure, .. } => *failure,
        // The program that makes the connection, such as ssh, could not be started, or it ended before the server
        // answered. Waiting does not change that.
        Error::Spawn { .. } => ConnectFailure::Permanent,
        // The connection was closed before the answer to `initialize`. A server that is just starting, or a proxy in
        // front of it, can do this, so it counts as a server that does not listen yet.
        Error::Disconnected { .. } => ConnectFailure::NotListening,
        Error::ConnectTimeout { .. } => ConnectFailure::Unreachable,
        // The server answered that it cannot serve yet, or it did not answer `initialize` in time.
        _ => ConnectFailure::Busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_millis(200);

    fn first_connect(retry_for: Duration, grace: Option<Duration>) -> FirstConnect {
        let backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(5));
        let recover_for = Duration::from_secs(60);
        let (began, is_brief) = (Instant::now(), grace.is_some());
        FirstConnect { backoff, began, retry_for, grace, is_brief, recover_for, started_since: None }
    }

    fn dial_error(failure: ConnectFailure) -> DialError {
        DialError::retryable(Error::Connect { address: "there".to_owned(), failure, reason: "down".to_owned() })
    }

    #[tokio::test(start_paused = true)]
    async fn startup_grace_allows_one_retry_of_a_server_that_does_not_listen() {
        let mut brief = first_connect(Duration::from_secs(10), Some(GRACE));
        assert_eq!(brief.pause_after(&dial_error(ConnectFailure::Permanent), Duration::ZERO), None);
        assert_eq!(brief.pause_after(&dial_error(ConnectFailure::Unreachable), Duration::ZERO), None);
        assert_eq!(brief.pause_after(&dial_error(ConnectFailure::NotListening), Duration::ZERO), Some(GRACE));
        assert_eq!(brief.pause_after(&dial_error(ConnectFailure::NotListening), Duration::ZERO), None);
        assert!(
            brief.pause_after(&dial_error(ConnectFailure::Busy), Duration::ZERO).is_some(),
            "a busy server is retried"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn without_startup_grace_all_but_permanent_failures_are_retried() {
        let mut patient = first_connect(Duration::from_secs(10), None);
        assert_eq!(patient.pause_after(&dial_error(ConnectFailure::Permanent), Duration::ZERO), None);
        for failure in [ConnectFailure::Unreachable, ConnectFailure::NotListening, ConnectFailure::Busy] {
            let pause = patient.pause_after(&dial_error(failure), Duration::ZERO).expect("time is left");
            assert!(pause <= PAUSE_MAX, "{pause:?}");
        }
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(patient.pause_after(&dial_error(ConnectFailure::Busy), Duration::ZERO), None, "no time is left");
        assert!(
            patient.pause_after(&dial_error(ConnectFailure::Busy), Duration::from_secs(30)).is_some(),
            "`within` is longer"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_early_start_failures_are_retried_as_for_a_session() {
        let mut first = first_connect(Duration::from_secs(1), Some(GRACE));
        assert!(!first.may_have_started());
        let cut = || DialError::retryable(Error::Disconnected { reason: None });
        let pause = first.pause_after(&DialError { may_have_started: true, ..cut() }, Duration::ZERO);
        assert!(pause.is_some() && first.may_have_started());
        tokio::time::advance(Duration::from_secs(50)).await;
        assert!(first.pause_after(&dial_error(ConnectFailure::Unreachable), Duration::ZERO).is_some());
        let refused = DialError::permanent(Error::Unauthorized { address: String::new() });
        assert_eq!(first.pause_after(&refused, Duration::ZERO), None, "a permanent refusal ends the attempts");
        assert!(matches!(first.explain(refused.error), Error::UnknownOutcome { method: "process/start", .. }));
        let unknown = Error::Server { code: -32600, kind: Some(Kind::UnknownSession), message: String::new() };
        assert!(
            !first.has_no_session_keys(&DialError::permanent(unknown.clone())),
            "an earlier attempt may have started it"
        );
        let fresh = first_connect(Duration::from_secs(1), None);
        assert!(fresh.has_no_session_keys(&DialError::permanent(unknown)));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(first.pause_after(&cut(), Duration::ZERO), None, "the time to recover is over");
    }
}
