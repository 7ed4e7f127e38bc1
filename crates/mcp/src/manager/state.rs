//! The status of servers and the updates about it, as a manager publishes them.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio::sync::broadcast;

/// How many updates are queued for a subscriber. A slower subscriber gets the number of updates that it missed.
pub(super) const UPDATES: usize = 256;

/// The status of one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum ServerStatus {
    /// Neither `Manager::start` nor a request has started the server yet.
    NotStarted,
    /// The server is starting. This is its first start or a restart after a crash.
    Starting {
        /// How many restarts in a row there were; 0 for the first start.
        restarts: u32,
    },
    /// The server can be used.
    Ready,
    /// The server requires authentication.
    AuthenticationRequired {
        /// The server's message, and how to provide a token.
        reason: String,
    },
    /// The server cannot be used.
    Failed {
        /// Why, with the server's last output.
        reason: String,
    },
    /// The start was cancelled, or the server ended with its manager.
    Cancelled,
    /// The configuration says `enabled = false`.
    Disabled,
}

impl ServerStatus {
    /// The name of the state: `notStarted`, `starting`, `ready`, `authenticationRequired`, `failed`, `cancelled`, `disabled`.
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

    /// Why the server cannot be used, if the state alone does not say it.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::AuthenticationRequired { reason } | Self::Failed { reason } => Some(reason),
            Self::NotStarted | Self::Starting { .. } | Self::Ready | Self::Cancelled | Self::Disabled => None,
        }
    }

    /// Whether no start is pending: only a crash, a restart or the shutdown can still change this status.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !matches!(self, Self::NotStarted | Self::Starting { .. })
    }
}

/// The result of starting all servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The servers that can be used.
    pub ready: Vec<String>,
    /// The servers that cannot be used, with the reason. Includes those that require authentication.
    pub failed: BTreeMap<String, String>,
    /// The servers whose start was cancelled.
    pub cancelled: Vec<String>,
}

/// A change that a manager reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerUpdate {
    /// The status of a server changed.
    Server { name: String, status: ServerStatus },
    /// A ready server crashed. The next `Server` update says whether it is restarted.
    Crashed {
        name: String,
        /// Why, with the server's last output.
        reason: String,
    },
    /// No server is starting any longer. Sent once for each call of [`Manager::start`](super::Manager::start).
    Summary(Summary),
    /// The subscriber was too slow and missed this many updates. It should query the status.
    Missed(u64),
}

/// The updates of a manager since the subscription.
#[derive(Debug)]
pub struct Updates(pub(super) broadcast::Receiver<ServerUpdate>);

impl Updates {
    /// The next update; `None` when the manager is gone. Cancel safe.
    pub async fn next(&mut self) -> Option<ServerUpdate> {
        match self.0.recv().await {
            Ok(update) => Some(update),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(ServerUpdate::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
