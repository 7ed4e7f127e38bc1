//! The events of a process: output, gaps, exit and close.

use bytes::Bytes;
use exec_server_protocol::process as wire;

use crate::error::Error;

/// An event of a process.
#[derive(Debug, Clone)]
pub enum Event {
    /// The process wrote output.
    Output {
        /// The sequence number.
        seq: u64,
        /// The stream to which the process wrote.
        stream: wire::Stream,
        /// The output itself.
        bytes: Bytes,
        /// Output bytes of the process before this event, if the server reports offsets.
        offset: Option<u64>,
    },
    /// These events are no longer available. Either the overflow policy dropped them, or they exceeded what the server and the client keep.
    Gap {
        /// The first missing sequence number.
        from_seq: u64,
        /// The last missing sequence number.
        to_seq: u64,
        /// Output bytes in the missing events, if the server counts them.
        bytes: Option<u64>,
    },
    /// The process exited. Output of children that it left behind may follow.
    Exited {
        /// The sequence number.
        seq: u64,
        /// How the process ended.
        exit: Exit,
    },
    /// The process exited and all of its output was reported. This is the last event.
    Closed {
        /// The sequence number.
        seq: u64,
        /// The totals of the process's output.
        totals: Totals,
    },
    /// No further events can be received. Contains the reason. This is the last event.
    Failed(Error),
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit status, or 128 + n after signal n, or -1 if the status is lost.
    pub code: i32,
    /// The name of the signal that ended the process, if the server reports it.
    pub signal: Option<String>,
    /// Why the process ended, if the server reports it.
    pub cause: Option<wire::Cause>,
    /// Resource usage of the process, if the server reports it.
    pub usage: Option<wire::Usage>,
    /// The server's limits that the process, or a process that it started, has reached.
    pub limits_hit: Vec<wire::Limit>,
    /// Whether the sandbox is the likely reason why the process failed, if the server reports it.
    pub sandbox_denied: Option<bool>,
}

/// The totals of a closed process's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// All output bytes, if the server counts them.
    pub output_bytes: Option<u64>,
    /// The output bytes that were dropped, if the server counts them.
    pub dropped_bytes: Option<u64>,
}

impl Event {
    /// Output bytes that the event contains or reports as missing; `None` for a gap without a byte count.
    pub(crate) fn output_bytes(&self) -> Option<u64> {
        match self {
            Self::Output { bytes, .. } => Some(bytes.len() as u64),
            Self::Gap { bytes, .. } => *bytes,
            Self::Exited { .. } | Self::Closed { .. } | Self::Failed(_) => Some(0),
        }
    }

    /// The first and the last sequence number of the event; `None` for a failure.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        match self {
            Self::Output { seq, .. } | Self::Exited { seq, .. } | Self::Closed { seq, .. } => Some((*seq, *seq)),
            Self::Gap { from_seq, to_seq, .. } => Some((*from_seq, *to_seq)),
            Self::Failed(_) => None,
        }
    }

    /// Output bytes that the event holds in memory.
    pub(crate) fn weight(&self) -> u64 {
        if let Self::Output { bytes, .. } = self { bytes.len() as u64 } else { 0 }
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
