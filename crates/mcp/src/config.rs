//! Which MCP servers there are, where each runs, and how long it may take.
//! Must not start anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

/// How long a server may take to be ready where nothing is said.
pub const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);

/// How long one call may take where nothing is said.
pub const TOOL_TIMEOUT: Duration = Duration::from_secs(300);

/// Every server of a configuration, by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// The servers.
    pub servers: BTreeMap<String, ServerConfig>,
    /// What was read and is not acted on, one line each.
    pub warnings: Vec<String>,
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// How it is reached.
    pub way: Way,
    /// Where it runs, or from where it is reached.
    pub placement: Placement,
    /// Whether it is started at all.
    pub enabled: bool,
    /// Whether the whole is useless without it.
    pub required: bool,
    /// For the handshake, and again for the list of its tools.
    pub startup_timeout: Duration,
    /// For one call; the clock stands still while the server asks the user.
    pub tool_timeout: Duration,
    /// Whether its calls may overlap. Else they run one after another.
    pub supports_parallel_tool_calls: bool,
    /// Which of its tools are offered.
    pub tools: ToolFilter,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// A program on its standard streams.
    Stdio(StdioConfig),
    /// A server that speaks streamable HTTP.
    Http(HttpConfig),
}

/// A program that speaks MCP on its standard streams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StdioConfig {
    /// The program, looked up in the `PATH` that it will get.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables with their values.
    pub env: BTreeMap<String, String>,
    /// Variables whose values are taken from somewhere.
    pub env_vars: Vec<EnvVar>,
    /// Its directory. Without one: the manager's, else the executor's.
    pub cwd: Option<PathBuf>,
}

/// A variable that is passed on by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// The name.
    pub name: String,
    /// Whose value.
    pub source: EnvSource,
}

/// Whose variable is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EnvSource {
    /// Ours.
    #[default]
    Local,
    /// The executor's; it never comes here.
    Remote,
}

/// A server that speaks streamable HTTP.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpConfig {
    /// Its endpoint.
    pub url: String,
    /// The variable here that has the bearer token.
    pub bearer_token_env_var: Option<String>,
    /// Headers with their values.
    pub http_headers: BTreeMap<String, String>,
    /// Headers whose values are variables here.
    pub env_http_headers: BTreeMap<String, String>,
}

/// Where a server runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Placement {
    /// On this machine.
    #[default]
    Local,
    /// On the remote environment, of which there must be one.
    Remote,
    /// On the environment of this name.
    Named(String),
    /// On the executor at this URL.
    Url(String),
}

/// Which tools are offered: those of the first list, where there is one, without those of the second.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolFilter {
    /// Only these.
    pub enabled: Option<BTreeSet<String>>,
    /// Never these.
    pub disabled: BTreeSet<String>,
}
