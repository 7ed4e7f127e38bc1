//! The rules of a configuration: where in the file the servers are, what each key means, and which keys only cause a warning.
//!
//! Both formats are parsed into the same tree of values, so that each rule is written once. An unknown key is only a warning, because other
//! programs add their own keys. A key that is almost a known one is an error, because it is a typo that would change what runs.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use exec_server_client::environment::{NONE, RemoteSpec, TOKEN_VARIABLE};
use serde_json::Value;

use super::{
    Config, ConfigError, Format, HttpConfig, KeyFault, Placement, STARTUP_TIMEOUT, ServerConfig, ServerTransport,
    StdioConfig, TOOL_TIMEOUT, ToolFilter, error::ShownText, keys::ServerKeys, similar_key::is_nearly, tree::tree,
};

/// The tables that may contain servers, in either format. Code editors use the last one.
const TABLES: [&str; 3] = ["mcp_servers", "mcpServers", "servers"];

/// The longest environment name that environments.toml allows.
const ENVIRONMENT_MAX: usize = 64;

const STDIO_KEYS: [&str; 5] = ["command", "args", "env", "env_vars", "cwd"];

/// Includes the names that other programs use for the same keys.
const HTTP_KEYS: [&str; 7] =
    ["url", "bearer_token_env_var", "http_headers", "env_http_headers", "headers", "serverUrl", "httpUrl"];

/// Three synonyms for the key that says where a server runs.
const PLACE_KEYS: [&str; 3] = ["environment", "experimental_environment", "environment_id"];

const COMMON_KEYS: [&str; 15] = [
    "type",
    "transport",
    "enabled",
    "disabled",
    "required",
    "startup_timeout_sec",
    "startup_timeout_ms",
    "tool_timeout_sec",
    "supports_parallel_tool_calls",
    "enabled_tools",
    "disabled_tools",
    "includeTools",
    "excludeTools",
    "disabledTools",
    "bearer_token",
];

/// Keys that other programs use and this one ignores: tool approval, logins, and descriptions for people.
const PASSED_OVER: [&str; 18] = [
    "default_tools_approval_mode",
    "tools",
    "scopes",
    "oauth_resource",
    "oauth",
    "auth",
    "http_headers_helper",
    "authProviderType",
    "autoApprove",
    "alwaysAllow",
    "trust",
    // Some programs mean seconds, others milliseconds.
    "timeout",
    "envFile",
    "name",
    "description",
    "icon",
    "dev",
    "version",
];

/// Parses all servers of a file.
pub(super) fn config(text: &str, path: &Path, format: Format) -> Result<Config, ConfigError> {
    let top = tree(text, path, format)?;
    let mut warnings = ConfigWarnings::default();
    let mut servers = BTreeMap::new();
    let mut has_table = false;
    // In a TOML file, `servers` may belong to another program.
    let tables = if format == Format::Json { &TABLES[..] } else { &TABLES[..2] };
    for table in tables {
        let Some(value) = top.get(*table).filter(|value| !value.is_null()) else { continue };
        has_table = true;
        let expected = "a table with a table for each server";
        let fault = |server| ConfigError::Key {
            path: path.to_owned(),
            server,
            key: (*table).to_owned(),
            fault: KeyFault::Type { expected },
        };
        for (name, value) in value.as_object().ok_or_else(|| fault(None))? {
            check_name(path, name)?;
            let table = value.as_object().ok_or_else(|| fault(Some(name.clone())))?;
            let server = server(&ServerKeys { path, server: name, table }, format, &mut warnings)?;
            if servers.insert(name.clone(), server).is_some() {
                return Err(ConfigError::Twice { path: path.to_owned(), name: name.clone() });
            }
        }
    }
    if !has_table {
        let table = if format == Format::Json { "an object `mcpServers`" } else { "a table `[mcp_servers.NAME]`" };
        warnings.lines.push(format!("there is no server in it: each stands in {table}"));
    }
    Ok(Config { servers, warnings: warnings.into_warnings(path) })
}

fn check_name(path: &Path, name: &str) -> Result<(), ConfigError> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(is_good) {
        return Ok(());
    }
    let better: String = name.chars().map(|c| if is_good(c) { c } else { '_' }).collect();
    let better = if better.is_empty() { "server".to_owned() } else { ShownText(&better).to_string() };
    Err(ConfigError::Name { path: path.to_owned(), name: name.to_owned(), better })
}

fn server(keys: &ServerKeys<'_>, format: Format, warnings: &mut ConfigWarnings) -> Result<ServerConfig, ConfigError> {
    check_keys(keys, warnings)?;
    let placement = placement(keys)?;
    let transport = transport(keys)?;
    if let ServerTransport::Stdio(stdio) = &transport {
        check_cwd(keys, stdio, &placement)?;
        warnings.about_variables(keys.server, stdio);
    }
    if format == Format::Json {
        warnings.about_templates(keys);
    }
    let startup = match keys.seconds("startup_timeout_sec")? {
        Some(seconds) => {
            keys.millis("startup_timeout_ms")?; // Ignored, but it must still be valid.
            Some(("startup_timeout_sec", seconds))
        }
        None => keys.millis("startup_timeout_ms")?.map(|millis| ("startup_timeout_ms", millis)),
    };
    let tool = keys.seconds("tool_timeout_sec")?.map(|seconds| ("tool_timeout_sec", seconds));
    for (key, (_, is_cut)) in startup.iter().chain(&tool) {
        if *is_cut {
            warnings
                .lines
                .push(format!("server `{}`: key `{key}`: taken as 30 days, the longest there is", keys.server));
        }
    }
    Ok(ServerConfig {
        transport,
        placement,
        enabled: keys.flag("enabled")?.unwrap_or(true) && !keys.flag("disabled")?.unwrap_or(false),
        required: keys.flag("required")?.unwrap_or(false),
        startup_timeout: startup.map_or(STARTUP_TIMEOUT, |(_, (time, _))| time),
        tool_timeout: tool.map_or(TOOL_TIMEOUT, |(_, (time, _))| time),
        supports_parallel_tool_calls: keys.flag("supports_parallel_tool_calls")?.unwrap_or(false),
        tools: tools(keys)?,
    })
}

/// Rejects misspelt keys and inline tokens, and records a warning for each key that is ignored.
fn check_keys(keys: &ServerKeys<'_>, warnings: &mut ConfigWarnings) -> Result<(), ConfigError> {
    // Check this first. A user who sees another error first might fix only that one and leave the token in the file.
    if keys.value("bearer_token").is_some() {
        return Err(keys.fault("bearer_token", KeyFault::InlineToken));
    }
    for key in keys.table.keys() {
        if known().any(|known| known == key) {
            continue;
        }
        if !PASSED_OVER.contains(&key.as_str())
            && let Some(meant) = known().find(|known| is_nearly(key, known))
        {
            return Err(keys.fault(key, KeyFault::Misspelt { meant }));
        }
        warnings.passed_over.entry(key.clone()).or_default().push(keys.server.to_owned());
    }
    Ok(())
}

fn known() -> impl Iterator<Item = &'static str> {
    STDIO_KEYS.into_iter().chain(HTTP_KEYS).chain(PLACE_KEYS).chain(COMMON_KEYS)
}

fn transport(keys: &ServerKeys<'_>) -> Result<ServerTransport, ConfigError> {
    let url_key = ["url", "serverUrl", "httpUrl"].into_iter().find(|key| keys.value(key).is_some());
    let has_command = keys.value("command").is_some();
    check_transport(keys, has_command, url_key.is_some())?;
    match url_key {
        None if !has_command => Err(keys.fault("command", KeyFault::NoWay)),
        None => {
            refuse(keys, &HTTP_KEYS, "command")?;
            Ok(ServerTransport::Stdio(StdioConfig {
                command: keys.text("command")?.unwrap_or_default().to_owned(),
                args: keys.texts("args")?.unwrap_or_default(),
                env: keys.variables("env")?,
                env_vars: keys.env_vars("env_vars")?,
                cwd: keys.text("cwd")?.map(PathBuf::from),
            }))
        }
        Some(url_key) => {
            refuse(keys, &STDIO_KEYS, "url")?;
            let url = keys.text(url_key)?.unwrap_or_default().trim();
            check_url(url).map_err(|fault| keys.fault(url_key, fault))?;
            let (mut http_headers, headers) = (keys.headers("http_headers")?, keys.headers("headers")?);
            if !http_headers.is_empty() && !headers.is_empty() && http_headers != headers {
                return Err(keys.fault("headers", KeyFault::Contradicts { other: "http_headers" }));
            }
            http_headers.extend(headers);
            Ok(ServerTransport::Http(HttpConfig {
                url: url.to_owned(),
                bearer_token_env_var: keys.variable("bearer_token_env_var")?,
                http_headers,
                env_http_headers: keys.header_variables("env_http_headers")?,
            }))
        }
    }
}

/// Rejects keys of the other kind of server. A key with an empty value is ignored.
fn refuse(keys: &ServerKeys<'_>, others: &[&'static str], other: &'static str) -> Result<(), ConfigError> {
    let is_empty = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(table) => table.is_empty(),
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) => false,
    };
    match others.iter().find(|key| keys.value(key).is_some_and(|value| !is_empty(value))) {
        Some(key) => Err(keys.fault(key, KeyFault::Beside { other })),
        None => Ok(()),
    }
}

/// Checks that `type` and `transport` agree with the presence of `command` or a URL.
fn check_transport(keys: &ServerKeys<'_>, has_command: bool, has_url: bool) -> Result<(), ConfigError> {
    for key in ["type", "transport"] {
        let Some(text) = keys.text(key)? else { continue };
        // Programs spell it in several ways: `streamable-http`, `streamableHttp`, `streamable_http`.
        let plain: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
        let fault = match plain.to_ascii_lowercase().as_str() {
            "stdio" | "local" if has_url || !has_command => KeyFault::WrongTransport { says: "stdio", key: "command" },
            "http" | "streamablehttp" if has_command || !has_url => {
                KeyFault::WrongTransport { says: "http", key: "url" }
            }
            "stdio" | "local" | "http" | "streamablehttp" => continue,
            "sse" => KeyFault::Sse,
            _ => KeyFault::Transport,
        };
        return Err(keys.fault(key, fault));
    }
    Ok(())
}

fn check_url(url: &str) -> Result<(), KeyFault> {
    let uri: http::Uri = url.parse().map_err(|_| KeyFault::Url)?;
    let is_http = uri.scheme_str().is_some_and(|scheme| scheme == "http" || scheme == "https");
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    (is_http && has_host).then_some(()).ok_or(KeyFault::Url)
}

fn placement(keys: &ServerKeys<'_>) -> Result<Placement, ConfigError> {
    let mut found: Option<(&'static str, Placement)> = None;
    for key in PLACE_KEYS {
        let Some(text) = keys.text(key)? else { continue };
        let place = parse_placement(text.trim()).map_err(|fault| keys.fault(key, fault))?;
        match &found {
            Some((other, before)) if *before != place => {
                return Err(keys.fault(key, KeyFault::Contradicts { other }));
            }
            Some(_) => {}
            None => found = Some((key, place)),
        }
    }
    Ok(found.map(|(_, place)| place).unwrap_or_default())
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

/// On this machine a relative directory is allowed. On another machine the directory must be absolute by the rules of that machine's OS,
/// which may differ from ours.
fn check_cwd(keys: &ServerKeys<'_>, stdio: &StdioConfig, placement: &Placement) -> Result<(), ConfigError> {
    let Some(cwd) = stdio.cwd.as_ref().and_then(|cwd| cwd.to_str()) else { return Ok(()) };
    let has_drive = matches!(cwd.as_bytes(), [drive, b':', b'/' | b'\\', ..] if drive.is_ascii_alphabetic());
    let is_absolute = cwd.starts_with('/') || cwd.starts_with("\\\\") || cwd.starts_with("file:") || has_drive;
    if *placement == Placement::Local || is_absolute {
        return Ok(());
    }
    Err(keys.fault("cwd", KeyFault::RelativeCwd))
}

fn tools(keys: &ServerKeys<'_>) -> Result<ToolFilter, ConfigError> {
    let mut filter = ToolFilter { enabled: keys.names("enabled_tools")?, disabled: Default::default() };
    if let Some(also) = keys.names("includeTools")? {
        if filter.enabled.as_ref().is_some_and(|enabled| *enabled != also) {
            return Err(keys.fault("includeTools", KeyFault::Contradicts { other: "enabled_tools" }));
        }
        filter.enabled = Some(also);
    }
    for key in ["disabled_tools", "excludeTools", "disabledTools"] {
        filter.disabled.extend(keys.names(key)?.unwrap_or_default());
    }
    Ok(filter)
}

/// Collects the warnings while the servers are read.
#[derive(Default)]
struct ConfigWarnings {
    lines: Vec<String>,
    /// Ignored keys, each with the servers that have it.
    passed_over: BTreeMap<String, Vec<String>>,
}

impl ConfigWarnings {
    fn about_variables(&mut self, server: &str, stdio: &StdioConfig) {
        let names = stdio.env.keys().chain(stdio.env_vars.iter().map(|variable| &variable.name));
        if names.into_iter().any(|name| name.eq_ignore_ascii_case(TOKEN_VARIABLE)) {
            self.lines.push(format!("server `{server}`: `{TOKEN_VARIABLE}` is never passed on"));
        }
    }

    /// Warns about `${...}`. Some programs replace such templates with variables. This one does not, and without a warning the user would
    /// expect a value.
    fn about_templates(&mut self, keys: &ServerKeys<'_>) {
        let taken = ["command", "args", "env", "cwd", "url", "headers", "http_headers", "serverUrl", "httpUrl"];
        for key in taken {
            if keys.value(key).is_some_and(has_template) {
                self.lines.push(format!(
                    "server `{}`: key `{key}`: `${{…}}` is not replaced; name variables in `env_vars`, `env_http_headers` or \
                     `bearer_token_env_var`",
                    keys.server
                ));
            }
        }
    }

    fn into_warnings(self, path: &Path) -> Vec<String> {
        let passed_over = self.passed_over.into_iter().map(|(key, servers)| {
            let of = if servers.len() == 1 { "server" } else { "servers" };
            let servers: Vec<String> = servers.iter().map(|server| format!("`{server}`")).collect();
            format!("key `{}` is not acted on ({of} {})", ShownText(&key), servers.join(", "))
        });
        let lines = self.lines.into_iter().chain(passed_over);
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
