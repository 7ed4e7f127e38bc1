//! What can go wrong with the servers of a manager, told apart by what to do next.
//!
//! Every error names its server. Texts of servers are quoted, never interpreted.

use std::time::Duration;

use exec_server_client as client;
use serde_json::Value;

use super::hosts::PlaceError;
use crate::{launch::LaunchError, transport::Ended};

/// Why a server cannot be used, or a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration has no server of this name.
    #[error("there is no MCP server `{server}`; there are {}", List(known))]
    UnknownServer {
        /// The name.
        server: String,
        /// Those that exist.
        known: Vec<String>,
    },
    /// The configuration says `enabled = false`.
    #[error("MCP server `{server}` is disabled: set `enabled = true` to use it")]
    Disabled {
        /// The server.
        server: String,
    },
    /// Its placement means nothing.
    #[error("MCP server `{server}`: {source}")]
    Place {
        /// The server.
        server: String,
        /// Why.
        source: PlaceError,
    },
    /// The executor that it is placed on cannot be reached.
    #[error("MCP server `{server}`: its executor cannot be used: {source}")]
    Host {
        /// The server.
        server: String,
        /// Why.
        source: client::Error,
    },
    /// The executor was not reached in time.
    #[error("MCP server `{server}`: its executor {host} was not reached within {within:?} (`startup_timeout_sec`)")]
    HostTimeout {
        /// The server.
        server: String,
        /// The executor.
        host: String,
        /// The time that was given.
        within: Duration,
    },
    /// Its program could not be started.
    #[error("MCP server `{server}`: {source}")]
    Launch {
        /// The server.
        server: String,
        /// Why.
        source: Box<LaunchError>,
    },
    /// It cannot be reached over HTTP, or its settings cannot be used.
    #[error("MCP server `{server}`: {reason}")]
    Http {
        /// The server.
        server: String,
        /// Why.
        reason: String,
    },
    /// It wants authentication.
    #[error("MCP server `{server}` wants authentication: {reason}")]
    AuthenticationRequired {
        /// The server.
        server: String,
        /// What it said, and the way out.
        reason: String,
    },
    /// It did not answer in time while it was started.
    #[error(
        "MCP server `{server}`: no answer to `{method}` within {within:?}; if it needs longer, raise \
         `startup_timeout_sec` of `[mcp_servers.{server}]`{}",
        After(talk)
    )]
    StartupTimeout {
        /// The server.
        server: String,
        /// What was asked.
        method: &'static str,
        /// The time that was given.
        within: Duration,
        /// What it wrote instead.
        talk: String,
    },
    /// It ended while it was started.
    #[error("MCP server `{server}`: {ended} before it answered `{method}`{}", After(talk))]
    EndedAtStart {
        /// The server.
        server: String,
        /// What was asked.
        method: &'static str,
        /// How it ended.
        ended: Box<Ended>,
        /// What it wrote.
        talk: String,
    },
    /// The handshake failed in another way.
    #[error("MCP server `{server}`: handshake: {reason}{}", After(talk))]
    Handshake {
        /// The server.
        server: String,
        /// What is wrong.
        reason: String,
        /// What it wrote.
        talk: String,
    },
    /// It crashed while the call was under way: the call may or may not have had its effect.
    #[error(
        "MCP server `{server}` ended during `{method}`: {reason}; {}",
        if *is_restarted { "it is being started again, and the next call waits for that" } else { "it is not started again" }
    )]
    Crashed {
        /// The server.
        server: String,
        /// What was under way.
        method: &'static str,
        /// How it ended, with what it wrote last.
        reason: String,
        /// Whether it is being started again.
        is_restarted: bool,
    },
    /// It cannot be used; see [`Status::Failed`](super::Status::Failed).
    #[error("{}", Unusable { server, reason })]
    Failed {
        /// The server.
        server: String,
        /// Why.
        reason: String,
    },
    /// It was called off, or its manager has ended.
    #[error("MCP server `{server}` was called off")]
    Cancelled {
        /// The server.
        server: String,
    },
    /// Servers that were `required` cannot be used: the whole is useless.
    #[error("required MCP servers cannot be used:{}", Reasons(failed))]
    Required {
        /// Each of them, and why.
        failed: Vec<(String, String)>,
    },
    /// The configuration does not offer this tool.
    #[error("tool `{tool}` of MCP server `{server}` is disabled by `enabled_tools` or `disabled_tools`")]
    ToolDisabled {
        /// The server.
        server: String,
        /// The tool.
        tool: String,
    },
    /// Arguments or `_meta` that are no object.
    #[error("call of `{tool}` on MCP server `{server}`: `{part}` must be a JSON object, not {got}")]
    NotAnObject {
        /// The server.
        server: String,
        /// The tool.
        tool: String,
        /// Which part.
        part: &'static str,
        /// What was given.
        got: &'static str,
    },
    /// The server did not answer in time. It was told that nobody waits any more.
    #[error(
        "MCP server `{server}`: no answer to `{method}` within {within:?}; if it needs longer, raise `tool_timeout_sec` of \
         `[mcp_servers.{server}]`; if it never answers, it may have closed its standard output"
    )]
    Timeout {
        /// The server.
        server: String,
        /// What was asked.
        method: String,
        /// The time that was given.
        within: Duration,
    },
    /// The server answered with an error.
    #[error("MCP server `{server}`: `{method}`: {message} ({code})")]
    Answer {
        /// The server.
        server: String,
        /// What was asked.
        method: &'static str,
        /// The code.
        code: i32,
        /// The text.
        message: String,
        /// More, where it says more.
        data: Option<Value>,
    },
    /// The server's answer does not have the shape that the method promises, or lists without end.
    #[error("MCP server `{server}`: `{method}`: {reason}")]
    Unreadable {
        /// The server.
        server: String,
        /// What was asked.
        method: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The message could not be sent.
    #[error("MCP server `{server}`: send `{method}`: {reason}")]
    Send {
        /// The server.
        server: String,
        /// What was to be sent.
        method: &'static str,
        /// Why not.
        reason: String,
    },
}

impl Error {
    /// Whether its executor is out of reach, which says nothing of the server.
    pub(super) fn is_of_host(&self) -> bool {
        match self {
            Self::HostTimeout { .. } => true,
            Self::Host { source, .. } => is_out_of_reach(source),
            Self::Launch { source, .. } => {
                matches!(&**source, LaunchError::Start { source, .. } if is_out_of_reach(source))
            }
            Self::EndedAtStart { ended, .. } => matches!(**ended, Ended::Lost(_)),
            _ => false,
        }
    }
}

/// Whether it may be otherwise in a moment: not so for a wrong token, or what is no executor.
fn is_out_of_reach(error: &client::Error) -> bool {
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

/// More to say, on lines of its own.
struct After<'a>(&'a str);

impl std::fmt::Display for After<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "\n{}", self.0) }
    }
}

/// Names in backticks.
struct List<'a>(&'a [String]);

impl std::fmt::Display for List<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (at, name) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}`{name}`")?;
        }
        Ok(())
    }
}

/// Servers and reasons, one line each.
struct Reasons<'a>(&'a [(String, String)]);

impl std::fmt::Display for Reasons<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (server, reason) in self.0 {
            write!(f, "\n{}", Unusable { server, reason })?;
        }
        Ok(())
    }
}

/// A server and why it cannot be used; most reasons begin with its name.
struct Unusable<'a> {
    server: &'a str,
    reason: &'a str,
}

impl std::fmt::Display for Unusable<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { server, reason } = self;
        if reason.starts_with(&format!("MCP server `{server}`")) {
            return f.write_str(reason);
        }
        write!(f, "MCP server `{server}` cannot be used: {reason}")
    }
}
