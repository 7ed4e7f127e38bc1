//! The handshake: params and result of `initialize`.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

use crate::{
    SessionId,
    capabilities::{ClientCapabilities, ServerCapabilities},
    tolerant::{is_false, is_zero, null_default},
};

/// Value of `protocolVersion`. V0 defined it, and it is the same for all generations.
pub const PROTOCOL_VERSION: &str = "exec-server.v0";

/// Params of `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// Name of the client. It appears in the server's log.
    pub client_name: String,
    /// The session to resume. Absent: the server creates a new session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_session_id: Option<SessionId>,
    /// Capabilities of the client. Absent: the client is treated like a client of the reference implementation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<ClientCapabilities>,
    /// How long the session stays alive while no connection is attached and nothing uses it. Default: 10 minutes for a client without
    /// capabilities, 24 hours for one with capabilities. The server limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<Ttl>,
    /// Take the session over immediately if another connection is attached to it.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub takeover: bool,
    /// A random text that the client chose: 16 to 128 letters, digits, `-` and `_`. The first `initialize` with it creates a session. Every
    /// later one of the same principal resumes that session, so a client can send requests behind `initialize` without waiting for the answer,
    /// and send all of them again after a cut. Such a client also sends the key as `resumeSessionId`: a server without the capability
    /// `sessionKey` then refuses the handshake, and with it the requests behind it. With a key, the server ignores `resumeSessionId`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_key: Option<String>,
    /// The number of this attempt to connect with `sessionKey`, from 1. The server refuses an attempt unless its number is the highest so far,
    /// so an earlier attempt that arrives late cannot take the session, or start a process a second time.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub attempt: u64,
}

/// Result of `initialize`. Servers of older generations send only some of its members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InitializeResult {
    /// The session that this connection is attached to. Absent from a V0 server, which has no sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Always `exec-server.v0`. Servers of generations S and H omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    /// Name and version of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerInfo>,
    /// Features of the server beyond the reference protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<ServerCapabilities>,
    /// The granted time-to-live of the session. Absent if the client neither asked for `ttlMs` nor announced capabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<Ttl>,
}

impl InitializeResult {
    /// The result that this server sends to a client that neither asked for `ttlMs` nor announced capabilities.
    #[must_use]
    pub fn new(session_id: SessionId, server: ServerInfo) -> Self {
        Self {
            session_id: Some(session_id),
            protocol_version: Some(PROTOCOL_VERSION.to_owned()),
            server: Some(server),
            capabilities: Some(ServerCapabilities::served()),
            ttl_ms: None,
        }
    }
}

/// Name and version of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServerInfo {
    /// Name of the program: `exec-server`.
    pub name: Cow<'static, str>,
    /// Version of the program.
    pub version: Cow<'static, str>,
}

/// How long a detached session stays alive: a number of milliseconds, or the string `none` for as long as the server allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    /// Expires after this many milliseconds.
    Ms(u64),
    /// As long as the server allows. On the wire: `none`.
    Unlimited,
}

impl Serialize for Ttl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Ms(ms) => serializer.serialize_u64(*ms),
            Self::Unlimited => serializer.serialize_str("none"),
        }
    }
}

impl<'de> Deserialize<'de> for Ttl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TtlVisitor;

        impl Visitor<'_> for TtlVisitor {
            type Value = Ttl;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of milliseconds or \"none\"")
            }

            fn visit_u64<E: de::Error>(self, ms: u64) -> Result<Ttl, E> {
                Ok(Ttl::Ms(ms))
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Ttl, E> {
                if word == "none" {
                    Ok(Ttl::Unlimited)
                } else {
                    Err(E::invalid_value(de::Unexpected::Str(word), &self))
                }
            }
        }

        deserializer.deserialize_any(TtlVisitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Ttl {
    fn schema_name() -> Cow<'static, str> {
        "Ttl".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "How long a detached session stays alive: a number of milliseconds, or the string `none` for as long as the server allows.",
            "oneOf": [
                { "type": "integer", "format": "uint64", "minimum": 0 },
                { "type": "string", "const": "none" }
            ]
        })
    }
}
