//! HTTP requests that the server makes for a client: `http/request`, `http/cancel`, and the notifications that carry a
//! streamed body and acknowledge it. It must not know how a request is made, nor which targets are allowed.

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
    /// The method, such as `GET`.
    pub method: String,
    /// Where to, `http:` or `https:`. A fragment is dropped.
    pub url: String,
    /// Headers; repeats stay, and stay in order.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<Header>,
    /// Base64 of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
    /// How long all of it may take, the body of the answer included; missing or null: as long as it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// What to do with a redirect, default `follow`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "RedirectPolicy::is_follow")]
    pub redirect_policy: RedirectPolicy,
    /// The caller's name for the request: the key of its stream.
    pub request_id: String,
    /// The body of the answer comes in notifications, behind the answer.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub stream_response: bool,
    /// How many pieces of a streamed body may be under way that the client has not acknowledged; missing: as many as the
    /// connection takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// In whose name it is made: a sandbox without network makes no request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
}

/// One header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// In requests: a variable of the server whose value is appended to `value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_env_var: Option<String>,
}

/// What to do with a redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RedirectPolicy {
    /// Go where it leads.
    #[default]
    Follow,
    /// Answer with the redirect itself.
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
    /// The status of the answer.
    pub status: u16,
    /// Its headers; those whose values are no UTF-8 are left out.
    pub headers: Vec<Header>,
    /// Base64 of its body; empty where the body is streamed.
    pub body_base64: String,
}

/// Params of `http/request/bodyDelta`: a piece of a streamed body, or its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BodyDeltaParams<'a> {
    /// The request.
    pub request_id: String,
    /// 1, 2, 3 …
    pub seq: u64,
    /// Base64 of at most 1 MiB of the body; empty at the end.
    #[serde(borrow)]
    pub delta_base64: Cow<'a, str>,
    /// Nothing follows.
    #[serde(default, deserialize_with = "null_default")]
    pub done: bool,
    /// Why the body is not complete, at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Params of `http/request/ack`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AckParams {
    /// The request.
    pub request_id: String,
    /// Everything up to this piece was taken.
    pub seq: u64,
}

/// Params of `http/cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CancelParams {
    /// The request of this connection that nobody waits for any more.
    pub request_id: String,
}

/// Result of `http/cancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CancelResult {
    /// Whether there was one under way.
    pub cancelled: bool,
}
