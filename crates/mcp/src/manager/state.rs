//! How servers are, as others see it. Must not change anything.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio::sync::broadcast;

/// Updates that may wait for a subscriber; one that is slower than that is told how many it missed.
pub(super) const UPDATES: usize = 256;

/// How one server is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum Status {
    /// Nobody has asked for it yet.
    NotStarted,
    /// It is being started, for the first time or again.
    Starting {
        /// How often it was started again in a row; 0 at first.
        restarts: u32,
    },
    /// It can be used.
    Ready,
    /// It wants somebody to prove who they are.
    AuthenticationRequired {
        /// What it said, and the way out.
        reason: String,
    },
    /// It cannot be used.
    Failed {
        /// Why, with what it wrote last.
        reason: String,
    },
    /// It was called off before it was ready, or ended with its manager.
    Cancelled,
    /// The configuration says `enabled = false`.
    Disabled,
}

impl Status {
    /// The word for it: `notStarted`, `starting`, `ready`, `authenticationRequired`, `failed`, `cancelled`, `disabled`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotStarted => "notStarted",
            Self::Starting { .. } => "starting",
            Self::Ready => "ready",
            Self::AuthenticationRequired { .. } => "authenticationRequired",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
            Self::Disabled => "disabled",
        }
    }

    /// Why it cannot be used, where there is more to say than the word.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::AuthenticationRequired { reason } | Self::Failed { reason } => Some(reason),
            Self::NotStarted | Self::Starting { .. } | Self::Ready | Self::Cancelled | Self::Disabled => None,
        }
    }

    /// Whether nothing changes it but a crash or the end.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !matches!(self, Self::NotStarted | Self::Starting { .. })
    }
}

/// How the start of all servers went.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Those that can be used.
    pub ready: Vec<String>,
    /// Those that cannot, and why; also those that want authentication.
    pub failed: BTreeMap<String, String>,
    /// Those that were called off.
    pub cancelled: Vec<String>,
}

/// One piece of news.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// A server is in another state.
    Server {
        /// Its name.
        name: String,
        /// Its state.
        status: Status,
    },
    /// A server crashed, and is being started again.
    Crashed {
        /// Its name.
        name: String,
        /// Why, with what it wrote last.
        reason: String,
    },
    /// Every server that was to be started is settled; once for each start of all.
    Summary(Summary),
    /// So many updates came faster than they were taken: ask for the status.
    Missed(u64),
}

/// News of a manager, from the moment of the subscription on.
#[derive(Debug)]
pub struct Updates(pub(super) broadcast::Receiver<Update>);

impl Updates {
    /// The next one; `None` when the manager is gone. Cancel safe.
    pub async fn next(&mut self) -> Option<Update> {
        match self.0.recv().await {
            Ok(update) => Some(update),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Update::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
