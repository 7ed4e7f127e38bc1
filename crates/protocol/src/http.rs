//! HTTP requests that the server makes for a client: `http/request`, `http/cancel`, and the notifications that carry and acknowledge a
//! streamed body.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{
    sandbox::SandboxContext,
    tolerant::{is_false, null_default},
};

/// Params of `http/request`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RequestParams {
    /// HTTP method, such as `GET`.
    pub method: String,
    /// Target URL, `http:` or `https:`. The fragment is dropped.
    pub url: String,
    /// Request headers. Repeated names are allowed, and the order is kept.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<Header>,
    /// Base64 of the request body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// Timeout in milliseconds for the whole request, including the response body. Missing or null: no timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How to handle a redirect. Default: `follow`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "RedirectPolicy::is_follow")]
    pub redirect_policy: RedirectPolicy,
    /// Name of the request, chosen by the client. It identifies the stream in the notifications, and the request in
    /// `http/cancel`.
    pub request_id: String,
    /// Stream the response body: it comes in `http/request/bodyDelta` notifications after the result. Default: false.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub stream_response: bool,
    /// How many pieces of a streamed body the server may send ahead of the last `http/request/ack`. Missing: only the connection's
    /// backpressure limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// The sandbox to make the request in. If its network is restricted, the request is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

/// One HTTP header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Header name. In results it is in lower case.
    pub name: String,
    /// Header value.
    pub value: String,
    /// Only in requests: name of an environment variable of the server. Its value is appended to `value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_env_var: Option<String>,
}

/// How to handle a redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RedirectPolicy {
    /// Follow the redirect.
    #[default]
    Follow,
    /// Return the redirect response as the result.
    Stop,
}

impl RedirectPolicy {
    fn is_follow(&self) -> bool {
        *self == Self::Follow
    }
}

/// Result of `http/request`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RequestResult {
    /// HTTP status code of the response.
    pub status: u16,
    /// Response headers. Headers whose value is not UTF-8 are left out.
    pub headers: Vec<Header>,
    /// Base64 of the response body. Empty if the body is streamed.
    pub body_base64: String,
}

/// Params of the notification `http/request/bodyDelta`: one piece of a streamed body, or its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BodyDeltaParams<'a> {
    /// Name of the request.
    pub request_id: String,
    /// Number of this piece: 1, 2, 3 …
    pub seq: u64,
    /// Base64 of at most 1 MiB of the body. Empty in the last notification.
    #[serde(borrow)]
    pub delta_base64: Cow<'a, str>,
    /// This is the last notification of the stream.
    #[serde(default, deserialize_with = "null_default")]
    pub done: bool,
    /// Only in the last notification: why the body is incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Params of the notification `http/request/ack`, sent by a client that set `window`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AckParams {
    /// Name of the request.
    pub request_id: String,
    /// The client has consumed every piece up to and including this number.
    pub seq: u64,
}

/// Params of `http/cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CancelParams {
    /// Name of the request to cancel, which must be one of this connection.
    pub request_id: String,
}

/// Result of `http/cancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CancelResult {
    /// Whether a request with this name was in progress.
    pub cancelled: bool,
}
