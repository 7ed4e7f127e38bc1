//! `mcp list`, `mcp status` and `mcp call` with a real MCP server written for tests: locally and on an executor, its questions on a
//! terminal, its misbehaviour, and that no server is left behind.

use crate::prelude::*;

const TOKEN: &str = "the-token-of-this-test";

/// A user with a configuration of MCP servers, each of which writes a journal.
struct User {
    home: Home,
}

impl User {
    /// Each server is a name, flags and further configuration lines. Its command is the test server unless the lines set another one.
    fn new(servers: &[(&str, &[&str], &str)]) -> Self {
        let user = Self { home: Home::new() };
        let mut config = String::new();
        for (name, flags, more) in servers {
            let mut args: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
            args.extend(["--journal".to_owned(), user.journal_path(name).display().to_string()]);
            config += &format!("[mcp_servers.{name}]\n{more}\n");
            if !more.contains("url =") && !more.contains("command =") {
                config += &format!("command = {:?}\nargs = {}\n", test_mcp_server(), json!(args));
            }
        }
        user.write("mcp.toml", &config);
        user
    }

    fn write(&self, name: &str, text: &str) {
        let dir = self.home.path().join("config/exec-server");
        std::fs::create_dir_all(&dir).expect("make a directory");
        std::fs::write(dir.join(name), text).expect("write the configuration");
    }

    fn journal_path(&self, server: &str) -> PathBuf {
        self.home.path().join(format!("{server}.journal"))
    }

    /// The journal of a server, in order.
    fn journal(&self, server: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.journal_path(server)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// How often the journal of a server has this value.
    fn noted(&self, server: &str, key: &str, value: &str) -> usize {
        self.journal(server).iter().filter(|event| event[key] == value).count()
    }

    /// Returns stdout, stderr and exit code of a command.
    fn run(&self, args: &[&str]) -> (String, String, Option<i32>) {
        outcome(self.home.command(&[&["mcp"], args].concat()))
    }

    /// The same with a variable of the environment.
    fn run_with(&self, variable: (&str, &str), args: &[&str]) -> (String, String, Option<i32>) {
        let mut command = self.home.command(&[&["mcp"], args].concat());
        command.env(variable.0, variable.1);
        outcome(command)
    }

    /// Calls a tool, which must succeed.
    fn call(&self, args: &[&str]) -> String {
        let (stdout, stderr, code) = self.run(&[&["call"], args].concat());
        assert_eq!((stderr.as_str(), code), ("", Some(0)), "{args:?}");
        stdout
    }
}

impl Drop for User {
    /// Waits for the end of all servers. Every server has the path of this home in its arguments.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let mark = format!("{}/", self.home.path().display());
            wait_for("the end of all servers", || servers(&mark).is_empty());
        }
    }
}

/// The pids of live test servers with this mark.
fn servers(mark: &str) -> BTreeSet<u32> {
    let is_server = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(test_mcp_server().as_bytes())
    };
    marked(mark).into_iter().filter(is_server).collect()
}

/// A server writes colours and a line end into its stderr, to hide and imitate log lines.
#[test]
fn a_log_line_shows_what_a_server_wrote_escaped() {
    let user = User::new(&[("loud", &["--stderr", "\u{1b}[8mhidden\u{1b}[0m"], "")]);
    for level in ["info", "debug"] {
        let (_, stderr, code) = user.run(&["list", "--log", level]);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stderr.contains("hidden") && !stderr.contains('\u{1b}'), "{stderr:?}");
    }
}

#[test]
fn a_list_has_the_tools_of_all_servers_and_the_reason_for_each_failed_one() {
    let user = User::new(&[
        ("one", &[], "enabled_tools = ['echo', 'sleep']\ndisabled_tools = ['sleep']"),
        ("two-b", &[], "enabled_tools = ['cwd', 'echo']"),
        ("off", &[], "enabled = false"),
        ("gone", &["--exit-at-once", "3", "--stderr", "no licence"], ""),
        ("missing", &[], "command = 'no-such-mcp-server'"),
    ]);
    let (stdout, stderr, code) = user.run(&["list"]);
    let expected = "\
SERVER   TOOL  DESCRIPTION
gone     -     (failed)
missing  -     (failed)
off      -     (disabled)
one      echo  Says it again.
two-b    echo  Says it again.
two-b    cwd   The directory of the process.
";

    assert_eq!((code, stdout.as_str()), (Some(1), expected), "{stderr}");
    assert!(stderr.contains("`gone`") && stderr.contains("no licence"), "{stderr}");
    assert!(stderr.contains("`missing`") && stderr.contains("no-such-mcp-server"), "{stderr}");
    assert!(user.journal("off").is_empty(), "a disabled one is not started");
    assert_eq!(user.noted("one", "event", "eof"), 1, "it was ended in order");

    let (stdout, stderr, code) = user.run(&["list", "--json", "one", "two-b"]);
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    let all: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(all.as_array().map(Vec::len), Some(2));
    assert_eq!([&all[0]["name"], &all[0]["state"], &all[0]["transport"]], ["one", "ready", "stdio"]);
    assert_eq!(all[0]["tools"][0]["name"], "echo");
    assert_eq!(all[0]["tools"][0]["inputSchema"]["required"], json!(["message"]));
    let qualified: Vec<&Value> = [0, 1].iter().map(|at| &all[1]["tools"][at]["qualifiedName"]).collect();
    assert_eq!(qualified, ["mcp__two_b__echo", "mcp__two_b__cwd"]);
    // All pages were fetched; each page has two entries.
    let count = |key: &str| all[0][key].as_array().map(Vec::len);
    assert_eq!((count("resources"), count("resourceTemplates"), count("prompts")), (Some(5), Some(3), Some(2)));

    let (stdout, stderr, code) = user.run(&["list", "nobody"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("no MCP server `nobody`") && stderr.contains("`two-b`"), "{stderr}");
}

#[test]
fn a_status_starts_nothing() {
    let user = User::new(&[
        ("here", &[], ""),
        ("off", &[], "enabled = false"),
        ("far", &[], "environment = 'remote'"),
        ("named", &[], "environment = 'nowhere'"),
        ("web", &[], "url = 'https://me:secret@web.example/mcp?key=secret'\nrequired = true"),
    ]);
    let (stdout, stderr, code) = user.run(&["status"]);
    assert_eq!(code, Some(1));
    let states: Vec<Vec<&str>> = stdout.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    let expected = [
        ["SERVER", "STATE", "ENVIRONMENT"],
        ["far", "failed", "remote"],
        ["here", "notStarted", "local"],
        ["named", "failed", "nowhere"],
        ["off", "disabled", "local"],
        ["web", "notStarted", "local"],
    ];
    assert_eq!(states, expected);
    assert!(stderr.contains("`far`") && stderr.contains("--connect"), "{stderr}");
    assert!(stderr.contains("`named`") && stderr.contains("no environment is named `nowhere`"), "{stderr}");
    assert!(!stderr.contains("`none`"), "a value that the configuration refuses is not suggested: {stderr}");
    let (stdout, _, _) = user.run(&["status", "--json"]);
    let all: Value = serde_json::from_str(&stdout).expect("JSON");
    let web = json!({"name": "web", "state": "notStarted", "environment": "local", "transport": "http",
        "url": "https://web.example/mcp", "required": true});
    assert_eq!(all[4], web);
    assert!(!stdout.contains("secret"));
    assert!(user.journal("here").is_empty() && user.journal("far").is_empty());
}

#[test]
fn local_servers_need_no_remote_environment_but_permission_to_run_here() {
    let user = User::new(&[("here", &[], ""), ("far", &[], "environment = 'remote'")]);
    let status = |url: &str| user.run_with(("EXEC_SERVER_URL", url), &["status"]);
    let (stdout, stderr, code) = status("no-such-name");
    assert_eq!(code, Some(1));
    assert!(stdout.lines().any(|line| line.starts_with("here") && line.contains("notStarted")), "{stdout}");
    assert!(stderr.contains("`far`") && stderr.contains("no-such-name"), "{stderr}");

    user.write("environments.toml", "include_local = false\n");
    let (stdout, stderr, code) = status("ws://127.0.0.1:1");
    assert_eq!(code, Some(1));
    assert!(stdout.lines().any(|line| line.starts_with("here") && line.contains("failed")), "{stdout}");
    assert!(stderr.contains("`here`") && stderr.contains("include_local = false"), "{stderr}");
}

#[test]
fn a_call_prints_the_answer_of_the_tool_and_its_exit_code_tells_the_outcome() {
    let user = User::new(&[("s", &[], "env = { MCP_TEST_VALUE = 'from the file' }\ntool_timeout_sec = 300")]);
    assert_eq!(user.call(&["s", "echo", r#"{"message": "hällo"}"#]), "ECHOING: hällo\n");
    let stdout = user.call(&["--json", "s", "echo", r#"{"message": "x"}"#]);
    let result: Value = serde_json::from_str(&stdout).expect("JSON");
    let said = &result["structuredContent"];
    assert_eq!((&said["echo"], &said["env"]), (&json!("ECHOING: x"), &json!("from the file")));
    assert_eq!((&result["isError"], stdout.lines().count()), (&json!(false), 1));
    // Without arguments. The tool reports our working directory.
    let here = std::env::current_dir().expect("our directory").display().to_string();
    assert_eq!(user.call(&["s", "cwd"]), format!("{here}\n"));

    let (stdout, stderr, code) = user.run(&["call", "s", "image"]);
    assert_eq!((code, stdout.as_str()), (Some(0), ""));
    assert!(stderr.contains("`image` (image/png) is not shown; see --json"), "{stderr}");
    let stdout = user.call(&["--json", "s", "image", r#"{"detail": "original"}"#]);
    let result: Value = serde_json::from_str(&stdout).expect("JSON");
    let content = &result["content"][0];
    assert_eq!([&content["type"], &content["_meta"]["codex/imageDetail"]], ["image", "original"]);

    let (stdout, stderr, code) = user.run(&["call", "s", "fail", r#"{"message": "it is broken"}"#]);
    assert_eq!((stdout.as_str(), stderr.as_str(), code), ("it is broken\n", "", Some(1)));
    let (stdout, stderr, code) = user.run(&["call", "s", "error", r#"{"message": "no way \u001b[2J"}"#]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("no way \\u{1b}[2J"), "{stderr}");
    let (_, stderr, code) = user.run(&["call", "s", "no_such_tool"]);
    assert_eq!(code, Some(1), "{stderr}");
    let (_, stderr, code) = user.run(&["call", "nobody", "echo"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("no MCP server `nobody`; configured: `s`"), "{stderr}");
}

#[test]
fn arguments_are_read_from_standard_input_too_and_must_be_an_object() {
    let user = User::new(&[("s", &[], "")]);
    let from_stdin = |input: &str| {
        let output = finish_with_input(user.home.command(&["mcp", "call", "s", "echo", "-"]), input.as_bytes());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(from_stdin("{\"message\":\n \"piped\"}\n"), (Some(0), "ECHOING: piped\n".to_owned(), String::new()));
    let starts = user.noted("s", "event", "start");
    for (input, said) in [("[1]", "this is JSON of another type"), ("{", "EOF"), ("", "EOF")] {
        let (code, stdout, stderr) = from_stdin(input);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{input}");
        assert!(stderr.contains("must be a JSON object") && stderr.contains(said), "{stderr}");
    }
    assert_eq!(user.run(&["call", "s", "echo", "{message}"]).2, Some(2));
    assert_eq!(user.noted("s", "event", "start"), starts, "nothing is started for them");
}

#[test]
fn a_call_without_an_answer_ends_with_its_own_exit_code() {
    let user = User::new(&[
        ("slow", &[], "tool_timeout_sec = 0.2"),
        ("mute", &["--never-answer", "initialize"], "startup_timeout_sec = 0.2"),
        ("crashes", &[], ""),
    ]);
    let (_, stderr, code) = user.run(&["call", "slow", "sleep", r#"{"ms": 60000}"#]);
    assert_eq!(code, Some(124), "{stderr}");
    assert!(stderr.contains("tool_timeout_sec"), "{stderr}");
    assert_eq!(user.noted("slow", "method", "notifications/cancelled"), 1, "the server was told");
    let (_, stderr, code) = user.run(&["call", "mute", "echo"]);
    assert_eq!(code, Some(255));
    assert!(stderr.contains("`mute`") && stderr.contains("startup_timeout_sec"), "{stderr}");
    let (_, stderr, code) = user.run(&["call", "crashes", "crash", r#"{"code": 7}"#]);
    assert_eq!(code, Some(255));
    assert!(stderr.contains("`crashes`"), "{stderr}");
}

#[test]
fn a_remote_server_runs_on_the_executor_with_its_variables() {
    let server = TestServer::builder().env("EXEC_SERVER_TOKEN", TOKEN).env("FAR", "of the executor").start();
    let far = "environment = 'remote'\nenv_vars = ['NEAR', { name = 'FAR', source = 'remote' }]";
    let user = User::new(&[("far", &[], far)]);
    let url = format!("ws://{}", server.address());
    let call = |tool: &str, arguments: &str, by_variable: bool| {
        let mut args = vec!["mcp", "call", "--json", "far", tool, arguments];
        if !by_variable {
            args.extend(["--connect", &url]);
        }
        let mut command = user.home.command(&args);
        command.env("EXEC_SERVER_TOKEN", TOKEN).env("NEAR", "of the caller").env("OTHER", "of the caller");
        if by_variable {
            command.env("EXEC_SERVER_URL", &url);
        }
        let output = finish(command);
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["structuredContent"].clone()
    };
    for by_variable in [false, true] {
        let env = call("env", "{}", by_variable);
        assert_eq!((&env["NEAR"], &env["FAR"]), (&json!("of the caller"), &json!("of the executor")));
        assert!(env["OTHER"].is_null() && env["EXEC_SERVER_TOKEN"].is_null(), "{env}");
        assert_ne!(env["HOME"], user.home.path().display().to_string());
    }
    // Without an executor the error names the server.
    let (_, stderr, code) = user.run(&["call", "far", "env"]);
    assert_eq!(code, Some(255));
    assert!(stderr.contains("`far`") && stderr.contains("there is no remote environment"), "{stderr}");
}

#[test]
fn an_interrupt_cancels_the_call_and_ends_the_server() {
    let user = User::new(&[("s", &["--ignore-eof"], "")]);
    for (number, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let before = user.noted("s", "tool", "sleep");
        let mut child = spawn(&mut user.home.command(&["mcp", "call", "s", "sleep", r#"{"ms": 600000}"#]));
        wait_for("the call", || user.noted("s", "tool", "sleep") > before);
        let pids: BTreeSet<u32> =
            user.journal("s").iter().filter_map(|event| event["pid"].as_u64()?.try_into().ok()).collect();
        // `env` has exec'ed the program, so this pid is the program itself.
        signal(child.id(), number);
        assert_eq!(end_of(&mut child).code(), Some(code));
        wait_gone("the server", &pids);
    }
    assert_eq!(user.noted("s", "method", "notifications/cancelled"), 2);
}

#[test]
fn a_question_is_asked_on_a_terminal_and_declined_elsewhere() {
    let user = User::new(&[("s", &[], "")]);
    let args = ["mcp", "call", "s", "elicit", r#"{"message": "Who is it?\u001b[2J"}"#];
    let declined = text(&finish(user.home.command(&args)).stdout);
    assert_eq!(declined, "{\"action\":\"decline\"}\n");

    let (mut terminal, mut child) = Terminal::with(24, 200, user.home.command(&args));
    let seen = terminal.see("name, text:");
    assert!(seen.contains("`s` asks") && seen.contains("Who is it?\\u{1b}[2J"), "{seen}");
    terminal.keys(b"Ada\r");
    let seen = terminal.see("}}");
    assert!(seen.contains(r#"{"action":"accept","content":{"name":"Ada"}}"#), "{seen}");
    assert_eq!(end_of(&mut child).code(), Some(0));

    let mut child = terminal.start(user.home.command(&args));
    terminal.see("name, text:");
    terminal.exchange(b"\x04", "{\"action\":\"decline\"}");
    assert_eq!(end_of(&mut child).code(), Some(0));
}

#[test]
fn progress_is_shown_only_on_a_terminal() {
    let user = User::new(&[("s", &[], "")]);
    let args = ["mcp", "call", "s", "sleep", r#"{"ms": 3, "steps": 3}"#];
    let (stdout, stderr, _) = outcome(user.home.command(&args));
    assert_eq!((stdout.as_str(), stderr.as_str()), ("slept\n", ""));
    let (mut terminal, mut child) = Terminal::with(24, 80, user.home.command(&args));
    let seen = terminal.see("slept");
    assert!(seen.contains("1/3: step 1") && seen.contains("3/3: step 3"), "{seen}");
    assert_eq!(end_of(&mut child).code(), Some(0));
}

#[test]
fn the_configuration_is_found_and_its_errors_are_reported() {
    let user = User::new(&[]);
    std::fs::remove_file(user.home.path().join("config/exec-server/mcp.toml")).expect("remove it");
    let (stdout, stderr, code) = user.run(&["list"]);
    assert_eq!((code, stdout.as_str()), (Some(255), ""));
    assert!(stderr.contains("exec-server/mcp.toml") && stderr.contains("EXEC_SERVER_MCP_CONFIG"), "{stderr}");

    let json = r#"{"mcpServers": {"json": {"type": "stdio", "command": "x", "disabled": true, "alwaysAllow": []}}}"#;
    user.write("mcp.json", json);
    let (stdout, stderr, code) = user.run(&["status"]);
    assert!(code == Some(0) && stdout.contains("json") && stdout.contains("disabled"), "{stdout}");
    assert!(stderr.contains("mcp.json`: key `alwaysAllow` is ignored (server `json`)"), "{stderr}");

    let other = user.home.path().join("other.toml");
    std::fs::write(&other, "[mcp_servers.toml]\ncommand = 'x'").expect("write");
    let path = other.display().to_string();
    assert!(user.run_with(("EXEC_SERVER_MCP_CONFIG", &path), &["status"]).0.contains("toml"));
    assert!(user.run(&["status", "--config", &path]).0.contains("toml"));
    let bearer = "[mcp_servers.s]\ncommand = 'x'\nbearer_token = 'secret'";
    for (config, said) in [
        (bearer, "server `s`: key `bearer_token`: a token must not be"),
        (
            "[mcp_servers.s]\nurl = 'http://h/'\ntype = 'sse'",
            "server `s`: key `type`: the `sse` transport is not supported",
        ),
        ("[mcp_servers", "is not TOML, line 1"),
    ] {
        std::fs::write(&other, config).expect("write");
        let (stdout, stderr, code) = user.run(&["list", "--config", &path]);
        assert_eq!((code, stdout.as_str()), (Some(255), ""), "{config}");
        assert!(stderr.contains("other.toml") && stderr.contains(said) && !stderr.contains("secret"), "{stderr}");
    }
    assert_eq!(user.run(&["list", "--config", "/no/such/file"]).2, Some(255));
}

#[test]
fn a_call_ends_quietly_with_its_reader() {
    let user = User::new(&[("s", &[], "")]);
    assert_ends_with_its_reader(user.home.command(&["mcp", "call", "s", "large", r#"{"bytes": 1000000}"#]), "xxxx");
}

#[test]
fn a_server_over_http_is_used_with_the_token_of_a_variable() {
    let mut web = Command::new(test_mcp_server());
    web.args(["--http", "127.0.0.1:0", "--http-token", "the-web-token"]);
    // The server ends at EOF on its stdin.
    let mut web = spawn(web.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let url = read_until(web.stdout.as_mut().expect("stdout is a pipe"), "\n");
    let lines = format!("url = '{}'\nbearer_token_env_var = 'WEB_TOKEN'", url.trim());
    let user = User::new(&[("web", &[], &lines), ("here", &[], "enabled_tools = ['echo']")]);
    let with_token = |args: &[&str]| user.run_with(("WEB_TOKEN", "the-web-token"), args);
    let echo = ["call", "web", "echo", r#"{"message": "over http"}"#];
    assert_eq!(with_token(&echo), ("ECHOING: over http\n".to_owned(), String::new(), Some(0)));
    let (stdout, stderr, code) = with_token(&["list"]);
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
    assert!(stdout.contains("web     large") && stdout.contains("here    echo"), "{stdout}");

    // Without the variable: the error names it, the other server still works, and no output contains the token.
    let (_, stderr, code) = user.run(&["call", "web", "echo", r#"{"message": "x"}"#]);
    assert_eq!(code, Some(255));
    assert!(stderr.contains("`web`") && stderr.contains("WEB_TOKEN"), "{stderr}");
    let (stdout, stderr, code) = user.run_with(("WEB_TOKEN", "another-secret"), &["list", "--json"]);
    assert_eq!(code, Some(1));
    let all: Value = serde_json::from_str(&stdout).expect("JSON");
    let states: Vec<&Value> = all.as_array().expect("a list").iter().map(|server| &server["state"]).collect();
    assert_eq!(states, ["ready", "authenticationRequired"]);
    assert!(!stderr.contains("another-secret") && !stdout.contains("another-secret"));
}
