//! What a process says: output, gaps, its exit and its close, each in its place.
//! It must not know how events travel or who keeps them.

use bytes::Bytes;
use exec_server_protocol::process as wire;

use crate::error::Error;

/// One thing that happened to a process.
#[derive(Debug, Clone)]
pub enum Event {
    /// The process wrote something.
    Output {
        /// Its number.
        seq: u64,
        /// Where it wrote.
        stream: wire::Stream,
        /// What it wrote.
        bytes: Bytes,
        /// Output bytes of the process before these, where the server says so.
        offset: Option<u64>,
    },
    /// These numbers can no longer be told: dropped by choice, or by a server that keeps little.
    Gap {
        /// The first number that is gone.
        from_seq: u64,
        /// The last number that is gone.
        to_seq: u64,
        /// Output bytes that went with them, where the server counts them.
        bytes: Option<u64>,
    },
    /// The process ended. Output of what it left behind may follow.
    Exited {
        /// Its number.
        seq: u64,
        /// How it ended.
        exit: Exit,
    },
    /// The process ended and everything it wrote was told. Nothing follows.
    Closed {
        /// Its number.
        seq: u64,
        /// What it wrote in all.
        totals: Totals,
    },
    /// Nothing more can be learned of the process, and why. Nothing follows.
    Failed(Error),
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit status, or 128 + n after signal n.
    pub code: i32,
    /// The name of the signal that ended it, where the server says so.
    pub signal: Option<String>,
    /// Why it ended, where the server says so.
    pub cause: Option<wire::Cause>,
    /// What it used, where the server says so.
    pub usage: Option<wire::Usage>,
    /// Limits of the server that it, or something that it started, has reached.
    pub limits_hit: Vec<wire::Limit>,
    /// Whether a sandbox was the reason, where the server says so.
    pub sandbox_denied: Option<bool>,
}

/// What a closed process wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Output bytes in all, where the server counts them.
    pub output_bytes: Option<u64>,
    /// Of these, bytes that were dropped.
    pub dropped_bytes: Option<u64>,
}

impl Event {
    /// Output bytes that it tells or tells to be gone; none for a gap that was not counted.
    pub(crate) fn output_bytes(&self) -> Option<u64> {
        match self {
            Self::Output { bytes, .. } => Some(bytes.len() as u64),
            Self::Gap { bytes, .. } => *bytes,
            Self::Exited { .. } | Self::Closed { .. } | Self::Failed(_) => Some(0),
        }
    }

    /// The numbers it covers, both ends included; none for a failure.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        match self {
            Self::Output { seq, .. } | Self::Exited { seq, .. } | Self::Closed { seq, .. } => Some((*seq, *seq)),
            Self::Gap { from_seq, to_seq, .. } => Some((*from_seq, *to_seq)),
            Self::Failed(_) => None,
        }
    }

    /// Output bytes that it holds in memory.
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Self::Output { bytes, .. } => bytes.len() as u64,
            Self::Gap { .. } | Self::Exited { .. } | Self::Closed { .. } | Self::Failed(_) => 0,
        }
    }
}

impl Exit {
    /// An exit of which only the code is known.
    pub(crate) fn of_code(code: i32) -> Self {
        Self { code, signal: None, cause: None, usage: None, limits_hit: Vec::new(), sandbox_denied: None }
    }
}

impl From<wire::Exit> for Exit {
    fn from(exit: wire::Exit) -> Self {
        Self {
            code: exit.exit_code,
            signal: exit.signal.map(std::borrow::Cow::into_owned),
            cause: Some(exit.cause),
            usage: Some(exit.usage),
            limits_hit: exit.limits_hit,
            sandbox_denied: None,
        }
    }
}

impl From<wire::ExitedParams> for Exit {
    fn from(exited: wire::ExitedParams) -> Self {
        Self {
            code: exited.exit_code,
            signal: exited.signal.map(std::borrow::Cow::into_owned),
            cause: exited.cause,
            usage: exited.usage,
            limits_hit: exited.limits_hit,
            sandbox_denied: exited.sandbox_denied,
        }
    }
}
