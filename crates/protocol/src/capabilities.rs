//! What either side announces in `initialize`. It must not know what an announcement changes.

use serde::{Deserialize, Serialize};

use crate::{frame, limits, message, tolerant::null_default};

/// What a client can take; a client that sends nothing is a reference client.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientCapabilities {
    /// The client acknowledges output with `process/ack`.
    #[serde(default, deserialize_with = "null_default")]
    pub ack: bool,
    /// The client understands `process/gap`.
    #[serde(default, deserialize_with = "null_default")]
    pub gap: bool,
    /// Effects of the client's requests may begin in any order.
    #[serde(default, deserialize_with = "null_default")]
    pub concurrent: bool,
    /// Binary dialects the client speaks, the preferred one first.
    #[serde(default, deserialize_with = "null_default")]
    pub dialects: Vec<String>,
}

impl ClientCapabilities {
    /// Whether the client announced anything at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.ack && !self.gap && !self.concurrent && self.dialects.is_empty()
    }
}

/// The reference's own capability flags, as in `environment/info`; most belong to another product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EnvironmentCapabilities {
    /// `process/start` takes `networkProxy`.
    pub network_proxy_launch: bool,
    /// `capabilityRoots/discoverV1` takes a sandbox.
    pub capability_discovery_sandbox: bool,
    /// `environmentConfig/read` is served.
    pub environment_config_read: bool,
    /// `http/request` headers take `valueEnvVar`.
    pub http_header_env_vars: bool,
    /// `fs/open` works inside a sandbox.
    pub sandboxed_file_streaming: bool,
    /// `process/start` applies `shellSnapshot`.
    pub shell_snapshot_v2: bool,
}

/// What this server adds to the reference, as announced in the result of `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ServerCapabilities {
    /// `process/ack` is heard.
    pub ack: bool,
    /// Dropped output is told: `gap` in `process/read`, `process/gap` to clients that announced it.
    pub gap: bool,
    /// Requests run concurrently for clients that announced it.
    pub concurrent: bool,
    /// `process/closeStdin` is served.
    pub close_stdin: bool,
    /// `process/resize` is served, and `process/start` takes `size` and `term`.
    pub resize: bool,
    /// `process/signal` takes every POSIX name.
    pub signals: bool,
    /// `process/terminate` takes `graceMs`.
    pub grace: bool,
    /// `process/start` takes `timeoutMs` and `idleTimeoutMs`.
    pub timeouts: bool,
    /// `process/start` takes `overflow`.
    pub overflow: bool,
    /// `process/list` is served, and process methods take `sessionId`.
    pub list: bool,
    /// `process/list` takes `cursor` and `limit`, and answers `nextCursor`.
    pub list_pages: bool,
    /// `process/subscribe` and `process/unsubscribe` are served.
    pub subscribe: bool,
    /// `process/subscribe` and `process/read` take `fromSeq`, a reader that follows frees the output of a blocked process, and
    /// `process/read` says why a process is blocked.
    pub follow: bool,
    /// `initialize` takes `ttlMs`, and answers with what was granted.
    pub ttl: bool,
    /// `initialize` takes `takeover`.
    pub takeover: bool,
    /// A resume may be answered with `sessionAdopting`, and `process/list` names the sessions that are being adopted.
    pub adopting: bool,
    /// `session/end` is served.
    pub session_end: bool,
    /// `process/forget` is served.
    pub forget: bool,
    /// `process/start` takes `autoForget`, and a detached session that was emptied by forgetting ends soon.
    pub auto_forget: bool,
    /// Exits tell `limitsHit`.
    pub limits_hit: bool,
    /// `fs/create`, `fs/writeBlock`, `fs/commit`, `fs/setMetadata` and `fs/createSymlink` are served, and the members that PROTOCOL.md
    /// marks as additions in the reference's file methods.
    pub files: bool,
    /// `fs/getMetadata` and `fs/readDirectory` take `owners`.
    pub owners: bool,
    /// `fs/search`, `fs/searchNext` and `fs/glob` are served.
    pub search: bool,
    /// `fs/watch` and `fs/watchNext` are served.
    pub watch: bool,
    /// `sandbox` of requests is enforced, or refused where this host cannot.
    pub sandbox: bool,
    /// `http/request` is served.
    pub http: bool,
    /// `http/cancel` is served.
    pub http_cancel: bool,
    /// `http/request` takes `window`, and `http/request/ack` is heard.
    pub http_window: bool,
    /// Binary dialects the server speaks.
    pub dialects: Vec<String>,
    /// Unacknowledged bytes after which a client should acknowledge.
    pub ack_window_bytes: u64,
    /// The reference's flags, in the same object.
    #[serde(flatten)]
    pub environment: EnvironmentCapabilities,
}

impl EnvironmentCapabilities {
    /// What this release serves of them.
    #[must_use]
    pub fn served() -> Self {
        Self { http_header_env_vars: true, sandboxed_file_streaming: true, ..Self::default() }
    }
}

impl ServerCapabilities {
    /// What this release serves.
    #[must_use]
    pub fn served() -> Self {
        Self {
            ack: true,
            gap: true,
            concurrent: true,
            close_stdin: true,
            resize: true,
            signals: true,
            grace: true,
            timeouts: true,
            overflow: true,
            list: true,
            list_pages: true,
            subscribe: true,
            follow: true,
            ttl: true,
            takeover: true,
            adopting: true,
            session_end: true,
            forget: true,
            auto_forget: true,
            limits_hit: true,
            files: true,
            owners: true,
            search: true,
            watch: true,
            sandbox: true,
            http: true,
            http_cancel: true,
            http_window: true,
            dialects: vec![frame::BINARY.to_owned(), message::ATTACHED.to_owned()],
            ack_window_bytes: limits::ACK_WINDOW_BYTES,
            environment: EnvironmentCapabilities::served(),
        }
    }
}
