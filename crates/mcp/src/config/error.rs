//! Errors of a configuration. Each one names the file, and the server and key if there are any, and says what would be correct. Errors do
//! not repeat values of keys, because a value can be a secret.

use std::{io, path::PathBuf};

/// How many characters of a name or key an error repeats.
const SHOWN_MAX: usize = 64;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is too large to be a configuration.
    #[error("`{}` has more than {most} bytes, which is too much for a list of MCP servers", path.display())]
    TooLarge {
        path: PathBuf,
        /// The limit, in bytes.
        most: u64,
    },
    /// The file is not UTF-8.
    #[error("`{}` is not UTF-8", path.display())]
    NotText { path: PathBuf },
    /// The file does not parse as the format that its name implies.
    #[error("`{}` is not {format}{}: {reason}", path.display(), line_suffix(*line))]
    Syntax {
        path: PathBuf,
        /// The expected format: TOML or JSON.
        format: &'static str,
        /// The line number, starting at 1, if known.
        line: Option<usize>,
        /// The parser's message.
        reason: String,
    },
    /// A server has a name that cannot be used in tool names.
    #[error(
        "`{}`: server `{}`: a name may contain only letters, digits, `_` and `-`; for example `{better}`", path.display(), shown(name)
    )]
    Name {
        path: PathBuf,
        name: String,
        /// A suggested valid name.
        better: String,
    },
    /// Two tables of the file define a server with this name.
    #[error("`{}`: server `{}` is defined twice; every server needs its own name", path.display(), shown(name))]
    Twice { path: PathBuf, name: String },
    /// A key of the file breaks a rule.
    #[error("`{}`: {}key `{}`: {fault}", path.display(), server_prefix(server.as_deref()), shown(key))]
    Key {
        path: PathBuf,
        /// The server. Absent for keys of the whole file.
        server: Option<String>,
        key: String,
        fault: KeyFault,
    },
}

/// The error of one key of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFault {
    /// The key does not exist, but a known key is spelt almost the same.
    #[error("unknown; did you mean `{meant}`?")]
    Misspelt {
        /// The known key.
        meant: &'static str,
    },
    /// The value has the wrong type.
    #[error("must be {expected}")]
    Type { expected: &'static str },
    /// The server has neither `command` nor a URL.
    #[error(
        "missing; set `command` for a program that speaks MCP on stdin and stdout, or `url` for a server over HTTP"
    )]
    NoWay,
    /// A key for stdio servers and a key for HTTP servers are both set.
    #[error("cannot be combined with `{other}`; a server is either a program or a URL")]
    Beside { other: &'static str },
    /// Two keys are synonyms but have different values.
    #[error("has another value than `{other}`, which means the same; keep only one of them")]
    Contradicts { other: &'static str },
    /// A token in the file, where everyone who can read the file could read it.
    #[error(
        "a token must not be in this file; put it into an environment variable, and set `bearer_token_env_var` to its name"
    )]
    InlineToken,
    /// The SSE transport, which streamable HTTP has replaced in MCP.
    #[error(
        "the `sse` transport is not supported; if the server also offers streamable HTTP, use `http` with that address (often the \
         same host, with a path that ends in `/mcp`); otherwise use a `command` that translates between stdio and SSE"
    )]
    Sse,
    /// An unknown transport.
    #[error("must be `stdio` or `http`")]
    Transport,
    /// `type` or `transport` does not fit the other keys of the server.
    #[error("`{says}` needs `{key}`, and a server cannot have both `command` and a URL")]
    WrongTransport {
        /// The transport that the file names.
        says: &'static str,
        /// The key that this transport needs.
        key: &'static str,
    },
    /// Not a valid environment.
    #[error("must be `local`, `remote`, a name of environments.toml, or a URL (ws, wss, unix, ssh, stdio)")]
    Environment,
    /// The environment `none`, which cannot run a server.
    #[error("`none` cannot run a server; to disable a server, set `enabled = false`")]
    Nowhere,
    /// The URL of an executor cannot be used.
    #[error("{reason}")]
    Executor { reason: String },
    /// The URL of an HTTP server cannot be used.
    #[error("must be an http:// or https:// URL with a host")]
    Url,
    /// A relative working directory for a server on another machine.
    #[error("must be absolute for a server that runs on another machine")]
    RelativeCwd,
}

/// The position in the file: `, line N`, or nothing if the line is unknown.
fn line_suffix(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}

/// The server that a key belongs to, as a prefix of the message.
fn server_prefix(server: Option<&str>) -> String {
    server.map(|name| format!("server `{}`: ", shown(name))).unwrap_or_default()
}

/// Text from a file that may contain anything. It is truncated, and control characters are escaped so that they cannot affect a terminal.
pub(super) fn shown(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_unicode().to_string() } else { c.to_string() };
    let shown: String = text.chars().take(SHOWN_MAX).map(escape).collect();
    if text.chars().nth(SHOWN_MAX).is_some() { shown + "…" } else { shown }
}
