//! The configuration of MCP servers: which servers exist, where each one runs, and its timeouts.
//!
//! ```toml
//! [mcp_servers.git]
//! command = "mcp-server-git"          # a program that speaks MCP on stdin and stdout
//! args = ["--repository", "/src"]
//! environment = "remote"              # `local`, `remote`, a name of environments.toml, or a URL
//! env_vars = ["GIT_AUTHOR_NAME", { name = "SSH_AUTH_SOCK", source = "remote" }]
//!
//! [mcp_servers.search]
//! url = "https://search.example/mcp"  # or streamable HTTP
//! bearer_token_env_var = "SEARCH_TOKEN"
//! ```
//!
//! A JSON file has the servers in an object `mcpServers`, as other programs write it.
//!
//! `table` parses both file formats and has the keys of a server with their types. `read` has the rules, and `error` the error messages.
//! None of these modules starts a process or reads an environment variable.

mod error;
mod read;
mod table;
#[cfg(test)]
mod tests;

pub use error::{ConfigError, KeyFault};

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

/// Default time for a server to become ready.
pub const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Default time for one tool call.
pub const TOOL_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest configurable timeout: 30 days. A larger value is reduced to this limit, with a warning.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 86_400);

/// The largest configuration file that is read. Some programs keep their history in the same file, which can then have several megabytes.
pub const FILE_MAX_BYTES: u64 = 16 << 20; // 16 MiB

/// All servers of a configuration, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    pub servers: BTreeMap<String, ServerConfig>,
    /// One line for each thing in the file that has no effect or may surprise the user.
    pub warnings: Vec<String>,
}

/// The file format of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Tables `[mcp_servers.NAME]`.
    Toml,
    /// An object `mcpServers`.
    Json,
}

impl Format {
    /// JSON for a file whose name ends in `.json`, else TOML.
    pub fn of(path: &Path) -> Self {
        let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        if is_json { Self::Json } else { Self::Toml }
    }
}

impl Config {
    /// Reads a file. The extension of its name decides the format.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(failed)?;
        file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > FILE_MAX_BYTES {
            return Err(ConfigError::TooLarge { path: path.to_owned(), most: FILE_MAX_BYTES });
        }
        let text = String::from_utf8(bytes).map_err(|_| ConfigError::NotText { path: path.to_owned() })?;
        Self::parse(&text, path, Format::of(path))
    }

    /// Parses the text of a file. `path` is used only in errors and warnings.
    pub fn parse(text: &str, path: &Path, format: Format) -> Result<Self, ConfigError> {
        // Some editors begin a file with a byte order mark.
        read::config(text.trim_start_matches('\u{feff}'), path, format)
    }
}

/// The configuration of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    pub transport: ServerTransport,
    /// Where a stdio server runs, or from where an HTTP server is reached.
    pub placement: Placement,
    /// If false, the server is not started.
    pub enabled: bool,
    /// If true, the manager fails to start when this server cannot be started.
    pub required: bool,
    /// Applies separately to each of three steps: connecting to the executor, starting the server with its handshake, and listing its
    /// tools.
    pub startup_timeout: Duration,
    /// Limits a tool call, and a list or read of resources or prompts. Except for a list, the clock is paused while the server asks the user.
    pub tool_timeout: Duration,
    /// Whether calls to this server may overlap. Otherwise they run one after another.
    pub supports_parallel_tool_calls: bool,
    /// Which of the server's tools are offered.
    pub tools: ToolFilter,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerTransport {
    /// A program that speaks MCP on its stdin and stdout.
    Stdio(StdioConfig),
    /// A server that speaks streamable HTTP.
    Http(HttpConfig),
}

/// A program that speaks MCP on its stdin and stdout. `Debug` does not print the values of variables.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StdioConfig {
    /// The program. It is looked up in the `PATH` that the server gets.
    pub command: String,
    pub args: Vec<String>,
    /// Variables set to literal values.
    pub env: BTreeMap<String, String>,
    /// Variables whose values are copied from this machine or from the executor.
    pub env_vars: Vec<EnvVar>,
    /// The working directory. A relative one starts at `cwd` of the manager's `Settings`. If absent: that `cwd`, or else the executor's.
    pub cwd: Option<PathBuf>,
}

impl fmt::Debug for StdioConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdioConfig")
            .field("command", &self.command)
            .field("args", &self.args)
            .field("env", &self.env.keys())
            .field("env_vars", &self.env_vars)
            .field("cwd", &self.cwd)
            .finish()
    }
}

/// A variable that is passed on by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    pub name: String,
    pub source: EnvSource,
}

/// Where the value of a variable comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvSource {
    /// From the environment of this program.
    #[default]
    Local,
    /// From the environment of the executor. The value is never sent to this machine.
    Remote,
}

/// A server that speaks streamable HTTP. `Debug` does not print the values of headers.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HttpConfig {
    pub url: String,
    /// The local environment variable that holds the bearer token.
    pub bearer_token_env_var: Option<String>,
    /// Headers with literal values.
    pub http_headers: BTreeMap<String, String>,
    /// Headers whose values come from local environment variables: header name to variable name.
    pub env_http_headers: BTreeMap<String, String>,
}

impl fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpConfig")
            .field("url", &self.url)
            .field("bearer_token_env_var", &self.bearer_token_env_var)
            .field("http_headers", &self.http_headers.keys())
            .field("env_http_headers", &self.env_http_headers)
            .finish()
    }
}

/// Where a server runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Placement {
    /// On this machine.
    #[default]
    Local,
    /// On the remote environment. The start fails if none is configured.
    Remote,
    /// On the environment with this name.
    Named(String),
    /// On the executor at this URL.
    Url(String),
}

/// Which tools are offered: if `enabled` is set, only the tools in it; in any case none of those in `disabled`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolFilter {
    pub enabled: Option<BTreeSet<String>>,
    pub disabled: BTreeSet<String>,
}

impl ToolFilter {
    /// Whether a tool is offered. `tool` is the name that the server gives it, not the name that the model sees.
    #[must_use]
    pub fn allows(&self, tool: &str) -> bool {
        self.enabled.as_ref().is_none_or(|enabled| enabled.contains(tool)) && !self.disabled.contains(tool)
    }
}
