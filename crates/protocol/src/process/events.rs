//! Notifications about processes, in both directions.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Cause, Gap, Limit, Stream, Usage};
use crate::{ProcessId, SessionId};

/// Params of the notification `process/output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// Session of the process. Only present if the event comes from a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Sequence number of the event.
    pub seq: u64,
    /// The stream that the process wrote to.
    pub stream: Stream,
    /// Base64 of at most 64 KiB of output.
    pub chunk: String,
    /// Number of output bytes of this process before this chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Which events were lost. A client that did not announce `gap` gets one empty chunk for each lost event, and only
    /// the first of these chunks has this member. Clients that announced `gap` get `process/gap` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
}

/// Params of the notification `process/exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExitedParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// Session of the process. Only present if the event comes from a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Sequence number of the event.
    pub seq: u64,
    /// Exit status, or 128 + n if signal n ended the process.
    pub exit_code: i32,
    /// Whether the sandbox is the likely reason for the failure of the process. It is a hint, not a proof. Older servers omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_denied: Option<bool>,
    /// Name of the signal that ended the process, for example `SIGKILL`. Null if the process exited, and with the cause
    /// `lost`.
    pub signal: Option<Cow<'static, str>>,
    /// Why the process ended. Older servers omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Resources that the process used. Absent with the cause `lost`. Older servers omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Limits of the server that the process, or something that it started, has reached. Omitted if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits_hit: Vec<Limit>,
}

/// Params of the notification `process/closed`, which is the last event of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClosedParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// Session of the process. Only present if the event comes from a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Sequence number of the event.
    pub seq: u64,
    /// Total output bytes that the process wrote. Older servers omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Output bytes that were freed although the session's own client had not taken them; see `droppedBytes` of `process/list`. Older
    /// servers omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_bytes: Option<u64>,
}

/// Params of the notification `process/gap`, sent in place of events that can no longer be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GapParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// Session of the process. Only present if the event comes from a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The lost events.
    #[serde(flatten)]
    pub gap: Gap,
}

/// Params of the notification `process/channel`: the channel number of a process in the frames of the dialect `binary`, on this connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ChannelParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// Session of the process. Only present if its events come from a subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The channel number.
    pub channel: u32,
}

/// Params of the notification `process/ack` from a client: the client has consumed every event up to `seq`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AckParams {
    /// Name of the process.
    pub process_id: ProcessId,
    /// Session of the process, if the events come from a subscription. Only the acknowledgements of the session's own client and of
    /// subscribers with `hold` decide which output is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The highest sequence number that the client has consumed. It includes all lower ones.
    pub seq: u64,
}
