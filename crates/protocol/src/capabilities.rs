//! Capabilities that client and server announce to each other in `initialize`.

use serde::{Deserialize, Serialize};

use crate::{frame, limits, message, tolerant::null_default};

/// Capabilities that the client announces in `initialize`. A client that announces none is treated like a client of the
/// reference implementation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientCapabilities {
    /// The client acknowledges output with `process/ack`. Of each process, the server sends at most `ackWindowBytes` beyond the last
    /// acknowledgement.
    #[serde(default, deserialize_with = "null_default")]
    pub ack: bool,
    /// The client understands the notification `process/gap`.
    #[serde(default, deserialize_with = "null_default")]
    pub gap: bool,
    /// The server may execute the client's requests in any order. If false, the effects of requests begin in the order of arrival.
    #[serde(default, deserialize_with = "null_default")]
    pub concurrent: bool,
    /// Binary dialects that the client speaks (`binary`, `attached`). Their order has no meaning.
    #[serde(default, deserialize_with = "null_default")]
    pub dialects: Vec<String>,
}

impl ClientCapabilities {
    /// Returns whether the client announced no capability.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.ack && !self.gap && !self.concurrent && self.dialects.is_empty()
    }
}

/// Capability flags of the reference, as sent in `environment/info`. Most of them name features that this server does
/// not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EnvironmentCapabilities {
    /// `process/start` accepts `networkProxy`.
    pub network_proxy_launch: bool,
    /// `capabilityRoots/discoverV1` accepts a sandbox.
    pub capability_discovery_sandbox: bool,
    /// The server implements `environmentConfig/read`.
    pub environment_config_read: bool,
    /// Headers of `http/request` accept `valueEnvVar`.
    pub http_header_env_vars: bool,
    /// `fs/open` works inside a sandbox.
    pub sandboxed_file_streaming: bool,
    /// `process/start` applies `shellSnapshot`.
    pub shell_snapshot_v2: bool,
}

/// Features of this server beyond the reference protocol, announced in the result of `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ServerCapabilities {
    /// The server handles `process/ack`.
    pub ack: bool,
    /// The server reports dropped output: as `gap` in the result of `process/read`, and as the notification `process/gap` to clients that
    /// announced `gap`.
    pub gap: bool,
    /// The server runs requests concurrently for clients that announced `concurrent`.
    pub concurrent: bool,
    /// The server implements `process/closeStdin`.
    pub close_stdin: bool,
    /// The server implements `process/resize`, and `process/start` accepts `size` and `term`.
    pub resize: bool,
    /// `process/signal` accepts every POSIX signal name.
    pub signals: bool,
    /// `process/terminate` accepts `graceMs`.
    pub grace: bool,
    /// `process/start` accepts `timeoutMs` and `idleTimeoutMs`.
    pub timeouts: bool,
    /// `process/start` accepts `overflow`.
    pub overflow: bool,
    /// The server implements `process/list`, and process methods accept `sessionId`.
    pub list: bool,
    /// `process/list` accepts `cursor` and `limit` and returns `nextCursor`.
    pub list_pages: bool,
    /// The server implements `process/subscribe` and `process/unsubscribe`.
    pub subscribe: bool,
    /// A reader can follow a process of another session: it subscribes with `hold`, or reads with `fromSeq`. Both methods accept
    /// `fromSeq`. If the process would block and no client is attached to its session, output that all such readers have taken is freed.
    /// `process/read` reports in `blocked` why a process is blocked.
    pub follow: bool,
    /// `initialize` accepts `ttlMs` and returns the granted value.
    pub ttl: bool,
    /// `initialize` accepts `takeover`.
    pub takeover: bool,
    /// `initialize` accepts `sessionKey` and `attempt`.
    pub session_key: bool,
    /// A resume can fail with the error kind `sessionAdopting`, and `process/list` reports the sessions that are being adopted.
    pub adopting: bool,
    /// The server implements `session/end`.
    pub session_end: bool,
    /// The server implements `process/forget`.
    pub forget: bool,
    /// `process/start` accepts `autoForget`. A detached session whose last process was forgotten expires within 30 seconds.
    pub auto_forget: bool,
    /// The exit of a process reports `limitsHit`.
    pub limits_hit: bool,
    /// The server implements `fs/create`, `fs/writeBlock`, `fs/commit`, `fs/setMetadata` and `fs/createSymlink`. The file methods of the
    /// reference accept and return the members that PROTOCOL.md marks as additions.
    pub files: bool,
    /// `fs/getMetadata` and `fs/readDirectory` accept `owners`.
    pub owners: bool,
    /// The server implements `fs/search`, `fs/searchNext` and `fs/glob`.
    pub search: bool,
    /// The server implements `fs/watch` and `fs/watchNext`.
    pub watch: bool,
    /// The server enforces `sandbox` of requests. A sandbox that this host cannot enforce is refused.
    pub sandbox: bool,
    /// The server implements `http/request`.
    pub http: bool,
    /// The server implements `http/cancel`.
    pub http_cancel: bool,
    /// `http/request` accepts `window`, and the server handles `http/request/ack`.
    pub http_window: bool,
    /// Binary dialects that the server speaks.
    pub dialects: Vec<String>,
    /// Flow-control window per process, in bytes: a client with `ack` is sent at most this much beyond its last acknowledgement. It should
    /// acknowledge at least every quarter of the window.
    pub ack_window_bytes: u64,
    /// The capability flags of the reference, flattened into this object.
    #[serde(flatten)]
    pub environment: EnvironmentCapabilities,
}

impl EnvironmentCapabilities {
    /// The flags of the features that this release implements.
    #[must_use]
    pub fn served() -> Self {
        Self { http_header_env_vars: true, sandboxed_file_streaming: true, ..Self::default() }
    }
}

impl ServerCapabilities {
    /// The capabilities of this release.
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
            session_key: true,
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
