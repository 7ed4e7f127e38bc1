//! Table tests of the configuration rules: accepted files, warnings, and errors with their messages.

use super::*;

fn toml(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("mcp.toml"), Format::Toml)
}

fn json(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("mcp.json"), Format::Json)
}

/// Returns the only server of a configuration, which must be valid and cause no warning.
fn only(config: Result<Config, ConfigError>) -> ServerConfig {
    let config = config.expect("a good file");
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(config.servers.len(), 1);
    config.servers.into_values().next().expect("counted")
}

/// Parses a server `s` that consists of these lines.
fn server(lines: &str) -> ServerConfig {
    only(toml(&format!("[mcp_servers.s]\n{lines}")))
}

fn refused(config: Result<Config, ConfigError>) -> String {
    config.expect_err("a bad file").to_string()
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_stdio_server_is_read_with_every_key() {
    let read = server(
        r#"
        command = "docs-server"
        args = ["--port", "0"]
        env = { A = "1", B = "" }
        env_vars = ["HERE", { name = "ALSO_HERE" }, { name = "HERE_TOO", source = "local" }, { name = "THERE", source = "remote" }]
        cwd = "/src"
        environment = "build"
        enabled = false
        required = true
        startup_timeout_sec = 2.5
        startup_timeout_ms = 99
        tool_timeout_sec = 7
        supports_parallel_tool_calls = true
        enabled_tools = ["a", "b"]
        disabled_tools = ["b"]
        "#,
    );
    let variable = |name: &str, source| EnvVar { name: name.to_owned(), source };
    let expected = ServerConfig {
        transport: ServerTransport::Stdio(StdioConfig {
            command: "docs-server".to_owned(),
            args: vec!["--port".to_owned(), "0".to_owned()],
            env: texts(&[("A", "1"), ("B", "")]),
            env_vars: vec![
                variable("HERE", EnvSource::Local),
                variable("ALSO_HERE", EnvSource::Local),
                variable("HERE_TOO", EnvSource::Local),
                variable("THERE", EnvSource::Remote),
            ],
            cwd: Some("/src".into()),
        }),
        placement: Placement::Named("build".to_owned()),
        enabled: false,
        required: true,
        startup_timeout: Duration::from_millis(2500),
        tool_timeout: Duration::from_secs(7),
        supports_parallel_tool_calls: true,
        tools: ToolFilter { enabled: Some(set(&["a", "b"])), disabled: set(&["b"]) },
    };
    assert_eq!(read, expected);
}

#[test]
fn an_http_server_is_read_and_absent_keys_have_defaults() {
    let read = server(
        r#"
        url = "https://docs.example/mcp?x=1"
        bearer_token_env_var = "DOCS_TOKEN"
        http_headers = { X-Team = "blue" }
        env_http_headers = { X-Key = "DOCS_KEY" }
        "#,
    );
    let expected = ServerConfig {
        transport: ServerTransport::Http(HttpConfig {
            url: "https://docs.example/mcp?x=1".to_owned(),
            bearer_token_env_var: Some("DOCS_TOKEN".to_owned()),
            http_headers: texts(&[("X-Team", "blue")]),
            env_http_headers: texts(&[("X-Key", "DOCS_KEY")]),
        }),
        placement: Placement::Local,
        enabled: true,
        required: false,
        startup_timeout: Duration::from_secs(30),
        tool_timeout: Duration::from_secs(300),
        supports_parallel_tool_calls: false,
        tools: ToolFilter::default(),
    };
    assert_eq!(read, expected);
}

#[test]
fn the_environment_is_read_from_any_of_three_keys() {
    for (says, place) in [
        ("local", Placement::Local),
        ("remote", Placement::Remote),
        ("build box", Placement::Named("build box".to_owned())),
        ("ws://10.0.0.1:4000", Placement::Url("ws://10.0.0.1:4000".to_owned())),
        ("wss://h.example", Placement::Url("wss://h.example".to_owned())),
        ("unix:///run/x.sock", Placement::Url("unix:///run/x.sock".to_owned())),
        ("ssh://me@h", Placement::Url("ssh://me@h".to_owned())),
        ("stdio:exec-server serve --listen stdio", Placement::Url("stdio:exec-server serve --listen stdio".to_owned())),
    ] {
        for key in ["environment", "experimental_environment", "environment_id"] {
            assert_eq!(server(&format!("command = 'x'\n{key} = '{says}'")).placement, place, "{key} = {says}");
        }
    }
    assert_eq!(
        server("command = 'x'\nenvironment = 'a'\nenvironment_id = 'a'").placement,
        Placement::Named("a".into())
    );
}

#[test]
fn timeouts_are_limited_and_seconds_take_precedence_over_milliseconds() {
    assert_eq!(server("command = 'x'\nstartup_timeout_ms = 1500").startup_timeout, Duration::from_millis(1500));
    assert_eq!(server("command = 'x'\nstartup_timeout_sec = 0").startup_timeout, Duration::ZERO);
    assert_eq!(server("command = 'x'\ntool_timeout_sec = 0.25").tool_timeout, Duration::from_millis(250));
    for much in ["99999999", "1e300", "9223372036854775807"] {
        let config = toml(&format!("[mcp_servers.s]\ncommand = 'x'\ntool_timeout_sec = {much}")).expect("a good file");
        assert_eq!(config.servers["s"].tool_timeout, TIMEOUT_MAX);
        assert!(config.warnings[0].contains("server `s`: key `tool_timeout_sec`: reduced to 30 days"), "{config:?}");
    }
}

#[test]
fn a_configuration_of_the_reference_loads_unchanged() {
    let config = toml(
        r#"
        model = "some-model"
        sandbox_mode = "read-only"
        notify = [["a"], { b = 1979-05-27 }]
        [profiles.x]
        y = inf
        [mcp_servers.docs]
        command = "docs"
        experimental_environment = "remote"
        default_tools_approval_mode = "prompt"
        [mcp_servers.docs.tools.search]
        approval_mode = "approve"
        [mcp_servers.web]
        url = "https://web.example/mcp"
        scopes = ["read"]
        oauth_resource = "https://web.example"
        default_tools_approval_mode = "auto"
        something_of_tomorrow = 1
        [mcp_servers.web.oauth]
        client_id = "x"
        "#,
    )
    .expect("a good file");
    assert_eq!(config.servers["docs"].placement, Placement::Remote);
    let expected = [
        "`mcp.toml`: key `default_tools_approval_mode` is ignored (servers `docs`, `web`)",
        "`mcp.toml`: key `oauth` is ignored (server `web`)",
        "`mcp.toml`: key `oauth_resource` is ignored (server `web`)",
        "`mcp.toml`: key `scopes` is ignored (server `web`)",
        "`mcp.toml`: key `something_of_tomorrow` is ignored (server `web`)",
        "`mcp.toml`: key `tools` is ignored (server `docs`)",
    ];
    assert_eq!(config.warnings, expected);
}

#[test]
fn json_files_of_other_programs_are_accepted() {
    let config = json(
        r#"{
          "history": [{ "x": null }],
          "mcpServers": {
            "files": { "type": "stdio", "command": "npx", "args": ["-y", "files"], "disabled": false, "autoApprove": [], "timeout": 60 },
            "off": { "command": "x", "env": null, "disabled": true },
            "web": { "type": "streamable-http", "url": "http://localhost:1/mcp", "headers": { "Authorization": "Basic eA==" }, "args": [] },
            "some": { "httpUrl": "http://localhost:1/mcp", "includeTools": ["a"], "excludeTools": ["b"], "trust": true }
          }
        }"#,
    )
    .expect("a good file");
    assert!(config.servers["files"].enabled && !config.servers["off"].enabled);
    let ServerTransport::Http(web) = &config.servers["web"].transport else { panic!("{config:?}") };
    assert_eq!(web.http_headers, texts(&[("Authorization", "Basic eA==")]));
    let tools = ToolFilter { enabled: Some(set(&["a"])), disabled: set(&["b"]) };
    assert_eq!(config.servers["some"].tools, tools);
    let expected = [
        "`mcp.json`: key `autoApprove` is ignored (server `files`)",
        "`mcp.json`: key `timeout` is ignored (server `files`)",
        "`mcp.json`: key `trust` is ignored (server `some`)",
    ];
    assert_eq!(config.warnings, expected);
    // The same table under its other names.
    for (name, format) in [("mcpServers", Format::Toml), ("mcp_servers", Format::Json), ("servers", Format::Json)] {
        let text = match format {
            Format::Toml => format!("[{name}.s]\ncommand = 'x'"),
            Format::Json => format!("{{\"{name}\": {{\"s\": {{\"command\": \"x\"}}}}}}"),
        };
        only(Config::parse(&text, Path::new("f"), format));
    }
}

#[test]
fn settings_without_effect_cause_a_warning() {
    let warned = |config: Result<Config, ConfigError>| config.expect("a good file").warnings.join("\n");
    assert!(
        warned(toml("model = 'x'"))
            .contains("`mcp.toml`: no servers found; they must be in a table `[mcp_servers.NAME]`")
    );
    assert!(warned(json("{}")).contains("an object `mcpServers`"));
    assert_eq!(warned(toml("[mcp_servers]")), "");
    let template = r#"{"mcpServers": {"s": {"command": "x", "env": {"KEY": "${KEY}"}}}}"#;
    let said = warned(json(template));
    assert!(said.contains("server `s`: key `env`: `${…}` is not expanded") && !said.contains("KEY"), "{said}");
    let token = "[mcp_servers.s]\ncommand = 'x'\nenv_vars = ['exec_server_token']";
    assert!(warned(toml(token)).contains("`EXEC_SERVER_TOKEN` is never passed to a server"));
}

#[test]
fn an_error_names_the_file_the_server_and_the_key_but_no_value() {
    for (lines, said) in [
        ("", "key `command`: missing; set `command`"),
        ("args = []", "key `command`: missing"),
        ("command = ''", "key `command`: must be text"),
        ("command = ['x']", "key `command`: must be text"),
        ("command = 'x'\nurl = 'http://h/'", "key `command`: cannot be combined with `url`"),
        ("command = 'x'\nhttp_headers = { a = 'b' }", "key `http_headers`: cannot be combined with `command`"),
        ("command = 'x'\nbearer_token_env_var = 'A'", "key `bearer_token_env_var`: cannot be combined with `command`"),
        ("url = 'http://h/'\ncwd = '/'", "key `cwd`: cannot be combined with `url`"),
        ("url = 'http://h/'\nenv_vars = ['A']", "key `env_vars`: cannot be combined with `url`"),
        ("url = 'http://h/'\nbearer_token = 'secret'", "key `bearer_token`: a token must not be in this file"),
        ("command = 'x'\nbearer_token = 'secret'", "key `bearer_token`: a token must not be in this file"),
        ("url = 'ftp://secret/'", "key `url`: must be an http:// or https:// URL"),
        ("url = '/secret'", "key `url`: must be an http:// or https:// URL"),
        ("url = 'http://h/'\nhttp_headers = { 'a b' = 'secret' }", "key `http_headers`: must be a table of headers"),
        ("url = 'http://h/'\nhttp_headers = { a = \"secret\\n\" }", "key `http_headers`: must be a table of headers"),
        ("url = 'http://h/'\nenv_http_headers = { a = '' }", "key `env_http_headers`: must be a table of headers"),
        (
            "url = 'http://h/'\nbearer_token_env_var = 'A=B'",
            "key `bearer_token_env_var`: must be the name of a variable",
        ),
        ("command = 'x'\nargs = 'secret'", "key `args`: must be a list of texts"),
        ("command = 'x'\nargs = ['a', 1]", "key `args`: must be a list of texts"),
        ("command = 'x'\nenv = { A = 1 }", "key `env`: must be a table of texts"),
        ("command = 'x'\nenv = { 'A=B' = 'secret' }", "key `env`: must be a table of texts"),
        ("command = 'x'\nenv_vars = [{ name = 'A', source = 'secret' }]", "key `env_vars`: must be a list of names"),
        ("command = 'x'\nenv_vars = [{ source = 'local' }]", "key `env_vars`: must be a list of names"),
        ("command = 'x'\nenv_vars = [{ name = 'A', from = 'x' }]", "key `env_vars`: must be a list of names"),
        ("command = 'x'\nenv_vars = [{ name = 'A*', source = 'remote' }]", "key `env_vars`: must be a list of names"),
        ("command = 'x'\nenv_vars = ['']", "key `env_vars`: must be a list of names"),
        ("command = \"x\\u0000\"", "key `command`: must be text"),
        ("command = 'x'\nenvironment = ''", "key `environment`: must be text"),
        ("command = 'x'\nenvironment = 'None'", "key `environment`: `none` cannot run a server"),
        ("command = 'x'\nenvironment = 'http://secret'", "key `environment`: "),
        (
            "command = 'x'\nenvironment = 'a'\nenvironment_id = 'b'",
            "key `environment_id`: has another value than `environment`",
        ),
        ("command = 'x'\nenvironment = 'a'\ncwd = 'src'", "key `cwd`: must be absolute"),
        ("command = 'x'\nstartup_timeout_sec = -1", "key `startup_timeout_sec`: must be a number of seconds"),
        ("command = 'x'\nstartup_timeout_sec = nan", "key `startup_timeout_sec`: must be a number of seconds"),
        ("command = 'x'\nstartup_timeout_ms = 1.5", "key `startup_timeout_ms`: must be a whole number"),
        (
            "command = 'x'\nstartup_timeout_ms = -5\nstartup_timeout_sec = 1",
            "key `startup_timeout_ms`: must be a whole number",
        ),
        ("command = 'x'\ntool_timeout_sec = '5'", "key `tool_timeout_sec`: must be a number of seconds"),
        ("command = 'x'\nenabled = 'yes'", "key `enabled`: must be true or false"),
        ("command = 'x'\nenabled_tools = 'a'", "key `enabled_tools`: must be a list of texts"),
        ("command = 'x'\ndisable_tools = ['a']", "key `disable_tools`: unknown; did you mean `disabled_tools`?"),
        ("command = 'x'\nenabledTools = ['a']", "key `enabledTools`: unknown; did you mean `enabled_tools`?"),
        ("comand = 'x'", "key `comand`: unknown; did you mean `command`?"),
        ("command = 'x'\narg = []", "key `arg`: unknown; did you mean `args`?"),
        ("url = 'http://h/'\ntype = 'sse'", "key `type`: the `sse` transport is not supported; if the server"),
        (
            "url = 'http://h/'\ntransport = 'sse'",
            "key `transport`: the `sse` transport is not supported; if the server",
        ),
        ("url = 'http://h/'\ntype = 'stdio'", "key `type`: `stdio` needs `command`"),
        ("command = 'x'\ntype = 'http'", "key `type`: `http` needs `url`"),
        ("command = 'x'\ntype = 'pigeon'", "key `type`: must be `stdio` or `http`"),
    ] {
        let error = refused(toml(&format!("[mcp_servers.s]\n{lines}")));
        assert!(error.starts_with("`mcp.toml`: server `s`: ") && error.contains(said), "{lines}: {error}");
        assert!(!error.contains("secret"), "{lines}: {error}");
    }
}

#[test]
fn a_remote_directory_is_absolute_by_the_rules_of_any_system() {
    for cwd in ["/src", "C:\\\\src", "c:/src", "\\\\\\\\host\\\\share", "file:///C:/src"] {
        server(&format!("command = 'x'\nenvironment = 'remote'\ncwd = \"{cwd}\""));
    }
    server("command = 'x'\ncwd = 'src'");
}

#[test]
fn malformed_files_are_refused() {
    assert!(refused(toml("a = 1\n[mcp_servers")).starts_with("`mcp.toml` is not TOML, line 2: "));
    assert!(refused(json("{\n  'a'")).starts_with("`mcp.json` is not JSON: "));
    assert!(refused(json("[]")).contains("the top level must be an object"));
    assert!(
        refused(json(r#"{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}"#))
            .contains("`a` is defined twice")
    );
    let twice = r#"{"mcpServers": {"a": {"command": "x"}}, "servers": {"a": {"command": "y"}}}"#;
    assert!(refused(json(twice)).contains("server `a` is defined twice"));
    assert!(refused(json(&"[".repeat(100_000))).contains("is not JSON"));
    assert!(refused(toml(&format!("a = {}", "[".repeat(100_000)))).contains("is not TOML"));
    assert!(refused(toml("mcp_servers = 1")).contains("`mcp.toml`: key `mcp_servers`: must be a table"));
    assert!(refused(toml("mcp_servers.s = 1")).contains("server `s`: key `mcp_servers`: must be a table"));
    let said = refused(json(r#"{"mcpServers": {"My \u001b[2J Server": {"command": "x"}}}"#));
    assert!(
        said.contains("server `My \\u{1b}[2J Server`: a name may contain only letters")
            && said.contains("for example `My___2J_Server`"),
        "{said}"
    );
    assert!(refused(toml("[mcp_servers.'']\ncommand = 'x'")).contains("for example `server`"));
    only(json("\u{feff}{\"mcpServers\": {\"s\": {\"command\": \"x\"}}}"));
}

#[test]
fn the_file_name_decides_the_format_and_the_size_is_limited() {
    let dir = tempfile::tempdir().expect("make a directory");
    let path = dir.path().join("a.JSON");
    let missing = Config::load(&path).expect_err("not there");
    assert!(matches!(missing, ConfigError::Read { .. }), "{missing}");
    std::fs::write(&path, r#"{"mcpServers": {"s": {"command": "x"}}}"#).expect("write");
    only(Config::load(&path));
    std::fs::write(&path, b"{\"\xff\": 1}").expect("write");
    assert!(refused(Config::load(&path)).contains("is not UTF-8"));
    let large = dir.path().join("large.toml");
    File::create(&large).and_then(|file| file.set_len(FILE_MAX_BYTES + 1)).expect("make it large");
    assert!(refused(Config::load(&large)).contains("too much for a list of MCP servers"));
}

fn filter(enabled: Option<&[&str]>, disabled: &[&str]) -> ToolFilter {
    ToolFilter { enabled: enabled.map(set), disabled: set(disabled) }
}

#[test]
fn tool_filter_allows_by_default() {
    assert!(filter(None, &[]).allows("any"));
}

#[test]
fn tool_filter_applies_enabled_list() {
    let filter = filter(Some(&["a"]), &[]);
    assert!(filter.allows("a") && !filter.allows("b") && !filter.allows("A"));
}

#[test]
fn tool_filter_applies_disabled_list() {
    let filter = filter(None, &["a"]);
    assert!(!filter.allows("a") && filter.allows("b"));
}

#[test]
fn tool_filter_applies_enabled_then_disabled() {
    let filter = filter(Some(&["a", "b"]), &["b"]);
    assert_eq!(["a", "b", "c"].map(|tool| filter.allows(tool)), [true, false, false]);
}

#[test]
fn tool_filter_with_an_empty_list_allows_nothing() {
    assert!(!filter(Some(&[]), &[]).allows("a"));
}

#[test]
fn values_of_variables_and_headers_are_not_shown() {
    let text = "[mcp_servers.a]\ncommand = 'x'\nenv = { NAME = 's3cret' }\n\
                [mcp_servers.b]\nurl = 'https://x/mcp'\nhttp_headers = { X-Key = 's3cret' }\n";
    let config = Config::parse(text, Path::new("c.toml"), Format::Toml).expect("a configuration");
    let shown = format!("{config:?}");
    assert!(shown.contains("NAME") && shown.contains("X-Key") && !shown.contains("s3cret"), "{shown}");
}
