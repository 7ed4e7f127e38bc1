//! The rules of a configuration: where in the file the servers are, what their keys mean together, and what only causes a warning.
//!
//! An unknown key is only a warning, because other programs add their own keys. A key that is similar to a known one is an error: it is
//! probably a typo, and ignoring it would change what runs.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use exec_server_client::environment::{NONE, RemoteSpec, TOKEN_VARIABLE};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    Config, ConfigError, Format, HttpConfig, KeyFault, Placement, STARTUP_TIMEOUT, ServerConfig, ServerTransport,
    StdioConfig, TIMEOUT_MAX, TOOL_TIMEOUT, ToolFilter,
    error::shown,
    table::{self, wrong_type},
};

/// The tables that may contain servers. The last one is that of code editors. It is ignored in TOML files.
const TABLES: [&str; 3] = ["mcp_servers", "mcpServers", "servers"];

/// The longest environment name that environments.toml allows, in characters.
const ENVIRONMENT_MAX: usize = 64;

/// Keys that only a server on stdio may have.
const STDIO_KEYS: [&str; 5] = ["command", "args", "env", "env_vars", "cwd"];

/// Keys that only a server over HTTP may have. Includes the names that other programs use for the same keys.
const HTTP_KEYS: [&str; 7] =
    ["url", "bearer_token_env_var", "http_headers", "env_http_headers", "headers", "serverUrl", "httpUrl"];

/// Keys in which other programs replace `${NAME}`.
const TEMPLATE_KEYS: [&str; 9] =
    ["command", "args", "env", "cwd", "url", "headers", "http_headers", "serverUrl", "httpUrl"];

/// Parses all servers of a file.
pub(super) fn config(text: &str, path: &Path, format: Format) -> Result<Config, ConfigError> {
    let top = table::parse(text, path, format)?;
    let mut warnings = ConfigWarnings::default();
    let mut servers = BTreeMap::new();
    let mut has_table = false;
    // In a TOML file, `servers` may belong to another program.
    let tables = if format == Format::Json { &TABLES[..] } else { &TABLES[..2] };
    for table in tables {
        let Some(value) = top.get(*table).filter(|value| !value.is_null()) else { continue };
        has_table = true;
        let fault = |server| ConfigError::Key {
            path: path.to_owned(),
            server,
            key: (*table).to_owned(),
            fault: KeyFault::Type { expected: "a table with a table for each server" },
        };
        for (name, value) in value.as_object().ok_or_else(|| fault(None))? {
            check_name(path, name)?;
            let table = value.as_object().ok_or_else(|| fault(Some(name.clone())))?;
            let server = ServerReader { path, name, table }.read(format, &mut warnings)?;
            if servers.insert(name.clone(), server).is_some() {
                return Err(ConfigError::Twice { path: path.to_owned(), name: name.clone() });
            }
        }
    }
    if !has_table {
        let table = if format == Format::Json { "an object `mcpServers`" } else { "a table `[mcp_servers.NAME]`" };
        warnings.lines.push(format!("no servers found; they must be in {table}"));
    }
    Ok(Config { servers, warnings: warnings.into_warnings(path) })
}

fn check_name(path: &Path, name: &str) -> Result<(), ConfigError> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(is_good) {
        return Ok(());
    }
    let better: String = name.chars().map(|c| if is_good(c) { c } else { '_' }).collect();
    let better = if better.is_empty() { "server".to_owned() } else { shown(&better) };
    Err(ConfigError::Name { path: path.to_owned(), name: name.to_owned(), better })
}

/// Reads one server. Errors name the file, the server and the key.
struct ServerReader<'a> {
    path: &'a Path,
    name: &'a str,
    table: &'a Map<String, Value>,
}

impl ServerReader<'_> {
    fn fault(&self, key: &str, fault: KeyFault) -> ConfigError {
        let server = Some(self.name.to_owned());
        ConfigError::Key { path: self.path.to_owned(), server, key: key.to_owned(), fault }
    }

    fn read(&self, format: Format, warnings: &mut ConfigWarnings) -> Result<ServerConfig, ConfigError> {
        // Check this before any other key, so that a user with several mistakes learns of the token first.
        if self.has("bearer_token") {
            return Err(self.fault("bearer_token", KeyFault::InlineToken));
        }
        let ignored = table::check(self.table).map_err(|(key, fault)| self.fault(key, fault))?;
        for key in ignored {
            warnings.ignored.entry(key.to_owned()).or_default().push(self.name.to_owned());
        }
        let placement = self.placement()?;
        let transport = self.transport()?;
        if let ServerTransport::Stdio(stdio) = &transport {
            self.check_cwd(stdio, &placement)?;
            warnings.about_variables(self.name, stdio);
        }
        if format == Format::Json {
            warnings.about_templates(self.name, self.table);
        }
        let from_seconds = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let startup = match (self.get("startup_timeout_sec"), self.get("startup_timeout_ms")) {
            (Some(seconds), _) => Some(("startup_timeout_sec", from_seconds(seconds))),
            (None, Some(millis)) => Some(("startup_timeout_ms", Duration::from_millis(millis))),
            (None, None) => None,
        };
        let tool = self.get("tool_timeout_sec").map(|seconds| ("tool_timeout_sec", from_seconds(seconds)));
        for (key, _) in startup.iter().chain(&tool).filter(|(_, timeout)| *timeout > TIMEOUT_MAX) {
            let name = self.name;
            warnings.lines.push(format!("server `{name}`: key `{key}`: reduced to 30 days, the maximum"));
        }
        let enabled = ["enabled_tools", "includeTools"].into_iter().filter_map(|key| Some((key, self.get(key)?)));
        let disabled = ["disabled_tools", "excludeTools", "disabledTools"].into_iter();
        Ok(ServerConfig {
            transport,
            placement,
            enabled: self.get("enabled").unwrap_or(true) && !self.get("disabled").unwrap_or(false),
            required: self.get("required").unwrap_or(false),
            startup_timeout: startup.map_or(STARTUP_TIMEOUT, |(_, timeout)| timeout.min(TIMEOUT_MAX)),
            tool_timeout: tool.map_or(TOOL_TIMEOUT, |(_, timeout)| timeout.min(TIMEOUT_MAX)),
            supports_parallel_tool_calls: self.get("supports_parallel_tool_calls").unwrap_or(false),
            tools: ToolFilter {
                enabled: self.same(enabled)?,
                disabled: disabled.filter_map(|key| self.get::<Vec<String>>(key)).flatten().collect(),
            },
        })
    }

    fn has(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(|value| !value.is_null())
    }

    /// The value of a key. Its type has been checked.
    fn get<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        self.table.get(key).and_then(|value| T::deserialize(value).ok())
    }

    /// The value of synonymous keys, which must have the same value.
    fn same<T: PartialEq>(
        &self,
        values: impl IntoIterator<Item = (&'static str, T)>,
    ) -> Result<Option<T>, ConfigError> {
        let mut values = values.into_iter();
        let Some((other, first)) = values.next() else { return Ok(None) };
        match values.find(|(_, value)| *value != first) {
            Some((key, _)) => Err(self.fault(key, KeyFault::Contradicts { other })),
            None => Ok(Some(first)),
        }
    }

    /// The text of a key. Fails if it is empty.
    fn non_empty(&self, key: &str) -> Result<Option<&str>, ConfigError> {
        match self.table.get(key).and_then(Value::as_str) {
            Some("") => Err(self.fault(key, wrong_type(key))),
            text => Ok(text),
        }
    }

    fn transport(&self) -> Result<ServerTransport, ConfigError> {
        let url_key = ["url", "serverUrl", "httpUrl"].into_iter().find(|key| self.has(key));
        self.check_transport(url_key.is_some())?;
        let Some(url_key) = url_key else {
            let Some(command) = self.non_empty("command")? else {
                return Err(self.fault("command", KeyFault::NoWay));
            };
            self.reject_others(&HTTP_KEYS, "command")?;
            return Ok(ServerTransport::Stdio(StdioConfig {
                command: command.to_owned(),
                args: self.get("args").unwrap_or_default(),
                env: self.get("env").unwrap_or_default(),
                env_vars: self.table.get("env_vars").and_then(table::env_vars).unwrap_or_default(),
                cwd: self.non_empty("cwd")?.map(PathBuf::from),
            }));
        };
        self.reject_others(&STDIO_KEYS, "url")?;
        let url = self.non_empty(url_key)?.unwrap_or_default().trim();
        check_url(url).map_err(|fault| self.fault(url_key, fault))?;
        let bearer_token_env_var: Option<String> = self.get("bearer_token_env_var");
        if bearer_token_env_var.as_deref().is_some_and(|name| !table::is_variable(name)) {
            return Err(self.fault("bearer_token_env_var", wrong_type("bearer_token_env_var")));
        }
        let headers = ["http_headers", "headers"].into_iter();
        let headers = headers.filter_map(|key| Some((key, self.get::<BTreeMap<_, _>>(key)?)));
        Ok(ServerTransport::Http(HttpConfig {
            url: url.to_owned(),
            bearer_token_env_var,
            http_headers: self.same(headers.filter(|(_, all)| !all.is_empty()))?.unwrap_or_default(),
            env_http_headers: self.get("env_http_headers").unwrap_or_default(),
        }))
    }

    /// Rejects the keys `others` of the other kind of server. A key with an empty value is ignored. `own` is the key that decides the kind.
    fn reject_others(&self, others: &[&'static str], own: &'static str) -> Result<(), ConfigError> {
        let is_set = |key: &&&str| match self.table.get(**key) {
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(list)) => !list.is_empty(),
            Some(Value::Object(table)) => !table.is_empty(),
            Some(Value::Bool(_) | Value::Number(_)) => true,
            Some(Value::Null) | None => false,
        };
        match others.iter().find(is_set) {
            Some(key) => Err(self.fault(key, KeyFault::Beside { other: own })),
            None => Ok(()),
        }
    }

    /// Checks that `type` and `transport` agree with the presence of `command` or a URL.
    fn check_transport(&self, has_url: bool) -> Result<(), ConfigError> {
        let has_command = self.has("command");
        for key in ["type", "transport"] {
            let Some(text) = self.non_empty(key)? else { continue };
            // Programs write the name in several ways: `streamable-http`, `streamableHttp`, `streamable_http`.
            let plain: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
            let fault = match plain.to_ascii_lowercase().as_str() {
                "stdio" | "local" if has_url || !has_command => {
                    KeyFault::WrongTransport { says: "stdio", key: "command" }
                }
                "http" | "streamablehttp" if has_command || !has_url => {
                    KeyFault::WrongTransport { says: "http", key: "url" }
                }
                "stdio" | "local" | "http" | "streamablehttp" => continue,
                "sse" => KeyFault::Sse,
                _ => KeyFault::Transport,
            };
            return Err(self.fault(key, fault));
        }
        Ok(())
    }

    fn placement(&self) -> Result<Placement, ConfigError> {
        let mut places = Vec::new();
        for key in ["environment", "experimental_environment", "environment_id"] {
            let Some(text) = self.non_empty(key)? else { continue };
            places.push((key, parse_placement(text.trim()).map_err(|fault| self.fault(key, fault))?));
        }
        Ok(self.same(places)?.unwrap_or_default())
    }

    /// On this machine a relative directory is allowed. On another machine the directory must be absolute. The OS of
    /// that machine is not known here, so an absolute path of Unix or of Windows is accepted.
    fn check_cwd(&self, stdio: &StdioConfig, placement: &Placement) -> Result<(), ConfigError> {
        let Some(cwd) = stdio.cwd.as_ref().and_then(|cwd| cwd.to_str()) else { return Ok(()) };
        let has_drive = matches!(cwd.as_bytes(), [drive, b':', b'/' | b'\\', ..] if drive.is_ascii_alphabetic());
        let is_absolute = cwd.starts_with('/') || cwd.starts_with("\\\\") || cwd.starts_with("file:") || has_drive;
        if *placement == Placement::Local || is_absolute {
            return Ok(());
        }
        Err(self.fault("cwd", KeyFault::RelativeCwd))
    }
}

fn check_url(url: &str) -> Result<(), KeyFault> {
    let uri: http::Uri = url.parse().map_err(|_| KeyFault::Url)?;
    let is_http = uri.scheme_str().is_some_and(|scheme| scheme == "http" || scheme == "https");
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    (is_http && has_host).then_some(()).ok_or(KeyFault::Url)
}

fn parse_placement(text: &str) -> Result<Placement, KeyFault> {
    match text {
        "local" => Ok(Placement::Local),
        "remote" => Ok(Placement::Remote),
        none if none.eq_ignore_ascii_case(NONE) => Err(KeyFault::Nowhere),
        // Every URL contains a colon, and no environment name does.
        url if url.contains(':') => match RemoteSpec::at("", url) {
            Ok(_) => Ok(Placement::Url(url.to_owned())),
            Err(error) => Err(KeyFault::Executor { reason: error.to_string() }),
        },
        name if (1..=ENVIRONMENT_MAX).contains(&name.chars().count()) && !name.contains(char::is_control) => {
            Ok(Placement::Named(name.to_owned()))
        }
        _ => Err(KeyFault::Environment),
    }
}

/// Collects the warnings while the servers are read.
#[derive(Default)]
struct ConfigWarnings {
    lines: Vec<String>,
    /// Ignored keys, each with the servers that have it.
    ignored: BTreeMap<String, Vec<String>>,
}

impl ConfigWarnings {
    /// Warns if the configuration names our token, which no server gets.
    fn about_variables(&mut self, server: &str, stdio: &StdioConfig) {
        let names = stdio.env.keys().chain(stdio.env_vars.iter().map(|variable| &variable.name));
        if names.into_iter().any(|name| name.eq_ignore_ascii_case(TOKEN_VARIABLE)) {
            self.lines.push(format!("server `{server}`: `{TOKEN_VARIABLE}` is never passed to a server"));
        }
    }

    /// Warns about `${...}`. Some programs replace such templates with the values of variables, this one does not.
    fn about_templates(&mut self, server: &str, table: &Map<String, Value>) {
        for key in TEMPLATE_KEYS.into_iter().filter(|key| table.get(*key).is_some_and(has_template)) {
            self.lines.push(format!(
                "server `{server}`: key `{key}`: `${{…}}` is not expanded; name variables in `env_vars`, `env_http_headers` or \
                 `bearer_token_env_var`"
            ));
        }
    }

    fn into_warnings(self, path: &Path) -> Vec<String> {
        let ignored = self.ignored.into_iter().map(|(key, servers)| {
            let of = if servers.len() == 1 { "server" } else { "servers" };
            let servers: Vec<String> = servers.iter().map(|server| format!("`{server}`")).collect();
            format!("key `{}` is ignored ({of} {})", shown(&key), servers.join(", "))
        });
        let lines = self.lines.into_iter().chain(ignored);
        lines.map(|line| format!("`{}`: {line}", path.display())).collect()
    }
}

fn has_template(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("${"),
        Value::Array(list) => list.iter().any(has_template),
        Value::Object(table) => table.values().any(has_template),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}
