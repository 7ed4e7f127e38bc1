//! Which MCP servers there are, where each runs, and how long it may take.
//!
//! ```toml
//! [mcp_servers.git]
//! command = "mcp-server-git"          # a program on its standard streams
//! args = ["--repository", "/src"]
//! environment = "remote"              # `local`, `remote`, a name of environments.toml, or a URL
//! env_vars = ["GIT_AUTHOR_NAME", { name = "SSH_AUTH_SOCK", source = "remote" }]
//!
//! [mcp_servers.search]
//! url = "https://search.example/mcp"  # or streamable HTTP
//! bearer_token_env_var = "SEARCH_TOKEN"
//! ```
//!
//! The same servers in JSON stand in an object `mcpServers`, as other programs write it. `read` owns the rules of one server,
//! `keys` the types of its keys, `tree` the formats, `slip` what is nearly a key, `error` what is said of a mistake. None of them may start anything or read a variable.

mod error;
mod keys;
mod read;
mod slip;
#[cfg(test)]
mod tests;
mod tree;

pub use error::{ConfigError, Fault};

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

/// How long a server may take to be ready where nothing is said.
pub const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);

/// How long one call may take where nothing is said.
pub const TOOL_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest time that can be asked for: 30 days. What is above is taken as that, with a warning.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 86_400);

/// The largest file that is read. Files in which programs keep their history beside their servers have some megabytes.
pub const FILE_MAX_BYTES: u64 = 16 << 20; // 16 MiB

/// Every server of a configuration, by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// The servers.
    pub servers: BTreeMap<String, ServerConfig>,
    /// What was read and is not acted on, one line each.
    pub warnings: Vec<String>,
}

/// How a configuration is written.
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
    /// Reads a file, in the format that its name tells.
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

    /// Reads the text of a file; `path` is its name in errors.
    pub fn parse(text: &str, path: &Path, format: Format) -> Result<Self, ConfigError> {
        // Editors of some systems begin a file with a mark of its encoding.
        read::config(text.trim_start_matches('\u{feff}'), path, format)
    }
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
    /// For reaching the executor, again for starting it and the handshake, and again for the list of its tools.
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

/// A program that speaks MCP on its standard streams. `Debug` shows no value of a variable.
#[derive(Clone, Default, PartialEq, Eq)]
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

/// A server that speaks streamable HTTP. `Debug` shows no value of a header.
#[derive(Clone, Default, PartialEq, Eq)]
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

impl ToolFilter {
    /// Whether a tool is offered, by its own name.
    #[must_use]
    pub fn allows(&self, tool: &str) -> bool {
        self.enabled.as_ref().is_none_or(|enabled| enabled.contains(tool)) && !self.disabled.contains(tool)
    }
}
