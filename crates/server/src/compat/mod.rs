//! Everything that the server does only for clients of older protocol generations.
//!
//! The reference implementation defined three generations: V0 (`command/*`, no handshake, no sessions), S and H
//! (`process/*`, sessions, no acknowledgements). Such clients announce no capabilities, and some compare error texts
//! and codes. The rest of the server knows only [`ClientRules`], [`Dialect`] and the flow policy of a feed; it does not
//! know which generation a rule is for.
//!
//! Texts that clients of the reference compare, and which therefore must not change: the `#[error]` texts of
//! [`Failure`] for a request before `initialize` or `initialized`, for a malformed message, for unknown and attached
//! sessions, unknown, duplicate and stdin-less processes, too many open files and the limits of `fs/walk`; the ending
//! `Operation not permitted` of a sandbox denial; and the beginning `http/request failed: ` of an HTTP failure, by
//! which the reference's MCP client recognizes a request that it may repeat.

pub(crate) mod command;
mod dialect;
mod unacked_flow;

use std::time::Duration;

use exec_server_protocol::{capabilities::ClientCapabilities, failure::INVALID_REQUEST, limits, method::Family};
use serde::{Deserialize, Serialize};

pub(crate) use self::{
    dialect::Dialect,
    unacked_flow::{ReadEffect, UnackedFlow},
};
use crate::{error::Failure, session::Attachment};

/// How long the answer to a resume is held back while the session is being adopted. Less than the 10 s that clients of
/// generation H wait for the answer to `initialize`.
const ADOPTION_WAIT: Duration = Duration::from_secs(8);

/// The rules of a session that depend on the generation of its client. Stored in the session's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientRules {
    /// The client speaks a generation of the reference: it announced no capabilities.
    #[serde(default)]
    reference: bool,
}

impl ClientRules {
    pub(crate) fn of(capabilities: &ClientCapabilities) -> Self {
        Self { reference: capabilities.is_empty() }
    }

    /// The time-to-live of a session whose client asked for none.
    pub(crate) fn default_ttl(self) -> Duration {
        if self.reference { limits::REFERENCE_TTL } else { limits::SESSION_TTL }
    }

    /// How long a resume waits for a session that is being adopted. `None`: the client gets a retryable error at once.
    /// A client of the reference waits: only those of generation H would retry.
    pub(crate) fn adoption_wait(self) -> Option<Duration> {
        self.reference.then_some(ADOPTION_WAIT)
    }

    /// How long after `closed` the id of a process becomes free, if its output was taken. `None`: a start cannot reuse
    /// it. Only a client of the reference needs this, because it cannot call `process/forget`.
    pub(crate) fn closed_id_free_after(self) -> Option<Duration> {
        self.reference.then_some(limits::CLOSED_ID_TAKEN)
    }
}

/// The settings of the implicit session of a V0 connection, which has not asked for a session.
pub(crate) fn implicit_attachment() -> Attachment {
    let rules = ClientRules { reference: true };
    Attachment { ttl: Some(rules.default_ttl()), is_ttl_asked: false, rules }
}

/// The family whose gate an unknown method must pass before it is reported as unknown. The reference checks the gates
/// of these families first, and its clients compare their texts.
pub(crate) fn family_of_unknown(method: &str) -> Option<&'static str> {
    match method.split_once('/') {
        Some(("fs", _)) => Family::Filesystem.gate_word(),
        Some(("http", _)) => Family::Http.gate_word(),
        Some(_) | None => None,
    }
}

/// The error code of a failure, where the reference has another code than [`Kind::code`].
///
/// [`Kind::code`]: exec_server_protocol::failure::Kind::code
pub(crate) fn error_code(failure: &Failure) -> Option<i64> {
    match failure {
        // V0 answers every error of its family with this code.
        Failure::UnknownMethod { method } if method.starts_with("command/") => Some(INVALID_REQUEST),
        // The reference distinguishes a permission error from a bad request only by text. Our `kind` distinguishes
        // them.
        Failure::File(error) if error.category() == exec_server_fs::ErrorCategory::PermissionDenied => {
            Some(INVALID_REQUEST)
        }
        _ => None,
    }
}
