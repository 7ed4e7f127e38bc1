//! Notifications about processes, both ways. It must not know when they are sent.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Cause, Gap, Limit, Stream, Usage};
use crate::{ProcessId, SessionId};

/// Params of the notification `process/output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputParams {
    /// The process.
    pub process_id: ProcessId,
    /// Its session, where the event comes from a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The event's number.
    pub seq: u64,
    /// Where the bytes came from.
    pub stream: Stream,
    /// Base64 of the bytes.
    pub chunk: String,
    /// Output bytes before these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// What is gone, on the first of the empty chunks that stand for it; clients that announced `gap` get
    /// `process/gap` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
}

/// Params of the notification `process/exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExitedParams {
    /// The process.
    pub process_id: ProcessId,
    /// Its session, where the event comes from a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The event's number.
    pub seq: u64,
    /// The exit status, or 128 + n after signal n.
    pub exit_code: i32,
    /// Always false from this server; older peers leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_denied: Option<bool>,
    /// The name of the signal that ended it, for example `SIGKILL`.
    pub signal: Option<Cow<'static, str>>,
    /// Why it ended; older peers leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What it used; older peers leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Limits that it, or something that it started, has reached; left out where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits_hit: Vec<Limit>,
}

/// Params of the notification `process/closed`, the last one of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClosedParams {
    /// The process.
    pub process_id: ProcessId,
    /// Its session, where the event comes from a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The event's number.
    pub seq: u64,
    /// Output bytes in all; older peers leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Output bytes dropped by `dropOldest`; older peers leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_bytes: Option<u64>,
}

/// Params of the notification `process/gap`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GapParams {
    /// The process.
    pub process_id: ProcessId,
    /// Its session, where the event comes from a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// What is gone.
    #[serde(flatten)]
    pub gap: Gap,
}

/// Params of the notification `process/channel`: the number of a process in the frames of the dialect `binary`, on this connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ChannelParams {
    /// The process.
    pub process_id: ProcessId,
    /// Its session, where its events come from a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The number.
    pub channel: u32,
}

/// Params of the notification `process/ack` from a client: everything up to `seq` is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AckParams {
    /// The process.
    pub process_id: ProcessId,
    /// Its session, where the event came from a subscription; only the owner's word counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The highest number that is taken, with all below it.
    pub seq: u64,
}
