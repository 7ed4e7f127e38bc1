//! The errors of a manager, distinguished by what the caller can do next.
//!
//! Every error names its server. Text from a server is quoted, never interpreted.

use std::time::Duration;

use exec_server_client as client;
use serde_json::Value;

use super::hosts::PlacementError;
use crate::{launch::LaunchError, transport::StreamEnd};

/// Why a server cannot be used, or a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration has no server with this name.
    #[error("no MCP server `{server}`; configured: {}", list(known))]
    UnknownServer {
        server: String,
        /// The names of the configured servers.
        known: Vec<String>,
    },
    /// The configuration says `enabled = false`.
    #[error("MCP server `{server}` is disabled: set `enabled = true` to use it")]
    Disabled { server: String },
    /// The server's placement cannot be resolved.
    #[error("MCP server `{server}`: {source}")]
    Place { server: String, source: PlacementError },
    /// The server's executor cannot be reached.
    #[error("MCP server `{server}`: its executor cannot be used: {source}")]
    Host { server: String, source: client::Error },
    /// The executor was not reached, or did not start the server, within the timeout.
    #[error("MCP server `{server}`: its executor {host} did not answer within {within:?} (`startup_timeout_sec`)")]
    HostTimeout { server: String, host: String, within: Duration },
    /// The server's program could not be started.
    #[error("MCP server `{server}`: {source}")]
    Launch { server: String, source: Box<LaunchError> },
    /// The server cannot be reached over HTTP, or its settings are invalid.
    #[error("MCP server `{server}`: {reason}")]
    Http { server: String, reason: String },
    /// The server requires authentication.
    #[error("MCP server `{server}` requires authentication: {reason}")]
    AuthenticationRequired {
        server: String,
        /// The server's message, and how to provide a token.
        reason: String,
    },
    /// The server did not answer within the timeout during its start.
    #[error(
        "MCP server `{server}`: no answer to `{method}` within {within:?}; if it needs longer, raise \
         `startup_timeout_sec` of `[mcp_servers.{server}]`{}",
        on_new_line(talk)
    )]
    StartupTimeout {
        server: String,
        /// The request that was not answered.
        method: &'static str,
        within: Duration,
        /// The server's recent output.
        talk: String,
    },
    /// The server's process ended during its start.
    #[error("MCP server `{server}`: {ended} before it answered `{method}`{}", on_new_line(talk))]
    EndedAtStart {
        server: String,
        /// The request that was not answered.
        method: &'static str,
        ended: Box<StreamEnd>,
        /// The server's recent output.
        talk: String,
    },
    /// The handshake failed in another way.
    #[error("MCP server `{server}`: handshake: {reason}{}", on_new_line(talk))]
    Handshake {
        server: String,
        reason: String,
        /// The server's recent output.
        talk: String,
    },
    /// The server crashed during the call. The call may or may not have had its effect.
    #[error(
        "MCP server `{server}` ended during `{method}`: {reason}; {}",
        if *is_restarted { "it is restarting, and the next call waits for that" } else { "it will not be restarted" }
    )]
    Crashed {
        server: String,
        /// The request in progress.
        method: &'static str,
        /// How the server ended, with its last output.
        reason: String,
        is_restarted: bool,
    },
    /// The server cannot be used; see [`ServerStatus::Failed`](super::ServerStatus::Failed).
    #[error("{}", unusable(server, reason))]
    Failed { server: String, reason: String },
    /// The start was cancelled, or the manager has shut down.
    #[error("MCP server `{server}` was stopped, or its start was cancelled")]
    Cancelled { server: String },
    /// Servers with `required` cannot be used, so the start of the manager failed.
    #[error("required MCP servers cannot be used:{}", reasons(failed))]
    Required {
        /// Each failed server with the reason.
        failed: Vec<(String, String)>,
    },
    /// The configuration filters out this tool.
    #[error("tool `{tool}` of MCP server `{server}` is disabled by `enabled_tools` or `disabled_tools`")]
    ToolDisabled { server: String, tool: String },
    /// The arguments or `_meta` are not an object.
    #[error("call of `{tool}` on MCP server `{server}`: `{part}` must be a JSON object, not {got}")]
    NotAnObject {
        server: String,
        tool: String,
        /// `arguments` or `_meta`.
        part: &'static str,
        /// The type of the value that was given.
        got: &'static str,
    },
    /// The server did not answer within the timeout. The request was cancelled on the server.
    #[error(
        "MCP server `{server}`: no answer to `{method}` within {within:?}; if it needs longer, raise `tool_timeout_sec` of \
         `[mcp_servers.{server}]`; if it never answers, it may have closed its standard output"
    )]
    Timeout { server: String, method: String, within: Duration },
    /// The server answered with an error.
    #[error("MCP server `{server}`: `{method}`: {message} ({code})")]
    Answer {
        server: String,
        method: &'static str,
        code: i32,
        message: String,
        /// Additional data of the error, if any.
        data: Option<Value>,
    },
    /// The server's answer does not have the expected shape, or a list exceeds its limits.
    #[error("MCP server `{server}`: `{method}`: {reason}")]
    Unreadable { server: String, method: &'static str, reason: String },
    /// The message could not be sent.
    #[error("MCP server `{server}`: send `{method}`: {reason}")]
    Send { server: String, method: &'static str, reason: String },
}

impl Error {
    /// Whether the cause is an unreachable executor, not the server itself.
    pub(super) fn is_of_host(&self) -> bool {
        match self {
            Self::HostTimeout { .. } => true,
            Self::Host { source, .. } => is_unreachable(source),
            Self::Launch { source, .. } => {
                matches!(&**source, LaunchError::Start { source, .. } if is_unreachable(source))
            }
            Self::EndedAtStart { ended, .. } => matches!(**ended, StreamEnd::Lost(_)),
            _ => false,
        }
    }
}

/// Whether the executor may be reachable later. False for a wrong token, or a peer that is not an executor.
fn is_unreachable(error: &client::Error) -> bool {
    use client::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::Spawn
            | Kind::Connect
            | Kind::ConnectTimeout
            | Kind::InitializeTimeout
            | Kind::Disconnected
            | Kind::SessionLost
            | Kind::UnknownOutcome
    )
}

/// The text on a new line, or nothing if it is empty.
fn on_new_line(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("\n{text}") }
}

/// Names in backticks, separated by commas.
fn list(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Servers with their reasons, one per line.
fn reasons(failed: &[(String, String)]) -> String {
    failed.iter().map(|(server, reason)| format!("\n{}", unusable(server, reason))).collect()
}

/// A server and why it cannot be used. Most reasons already begin with the server's name; then it is not repeated.
fn unusable(server: &str, reason: &str) -> String {
    if reason.starts_with(&format!("MCP server `{server}`")) {
        return reason.to_owned();
    }
    format!("MCP server `{server}` cannot be used: {reason}")
}
