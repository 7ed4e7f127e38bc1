//! `mcp serve --http`: authentication, sessions and their end, with requests written by hand.

use crate::{
    commands::mcp_serve::{initialize, pid_in},
    prelude::*,
};

/// A running server with its address and token. Dropping it shuts the server down; then no descendant may be left.
struct Served {
    child: Running,
    address: String,
    token: String,
}

/// One MCP session.
struct Session<'a> {
    served: &'a Served,
    id: String,
}

impl Served {
    /// A user, and a server that the user runs.
    fn at_home(args: &[&str]) -> (Home, Self) {
        let home = Home::new();
        let served = Self::start(&home, args);
        (home, served)
    }

    fn start(home: &Home, args: &[&str]) -> Self {
        let mut command = home.command(&[&["mcp", "serve", "--http", "127.0.0.1:0"][..], args].concat());
        command.current_dir(home.path()).stderr(Stdio::inherit());
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = spawn(&mut command);
        let line = read_until(child.stdout.as_mut().expect("stdout is a pipe"), "\n");
        let parts = line.trim_end().strip_prefix("http://").and_then(|rest| rest.split_once("/mcp?token="));
        let (address, token) = parts.unwrap_or_else(|| panic!("not a URL with a token: {line}"));
        Self { child, address: address.to_owned(), token: token.to_owned() }
    }

    /// Sends a request with exactly these headers, plus those that every request needs.
    fn raw(&self, method: &str, headers: &str, body: &str) -> Reply {
        let head =
            format!("{method} /mcp HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        http(&self.address, &format!("{head}{body}"))
    }

    fn host(&self) -> String {
        format!("Host: {}\r\n", self.address)
    }

    /// The headers that a correct client sends with each request.
    fn good(&self) -> String {
        let json = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
        format!("{}{json}Authorization: Bearer {}\r\n", self.host(), self.token)
    }

    fn post(&self, more: &str, message: &Value) -> Reply {
        self.raw("POST", &format!("{}{more}", self.good()), &message.to_string())
    }

    fn begin(&self) -> Session<'_> {
        let reply = self.post("", &request(0, "initialize", initialize()));
        assert_eq!(reply.status, 200, "{reply:?}");
        let line = reply.head.lines().find(|line| line.to_ascii_lowercase().starts_with("mcp-session-id:"));
        let id = line.and_then(|line| line.split_once(": ")).expect("a session").1.trim().to_owned();
        let session = Session { served: self, id };
        let notified = session.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert_eq!(notified.status, 202, "{notified:?}");
        session
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let has_ended = self.child.try_wait().expect("check the server process").is_some();
        if has_ended || thread::panicking() {
            return;
        }
        let family = descendants(&BTreeSet::from([self.child.id()]));
        signal(self.child.id(), Signal::TERM);
        let status = end_of(&mut self.child);
        assert!(status.success(), "{status}");
        wait_gone("what `mcp serve` has started", &family);
    }
}

impl Session<'_> {
    fn header(&self) -> String {
        format!("Mcp-Session-Id: {}\r\nMCP-Protocol-Version: 2025-06-18\r\n", self.id)
    }

    fn post(&self, message: &Value) -> Reply {
        self.served.post(&self.header(), message)
    }

    /// The structured content of a tool that must succeed.
    fn ok(&self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        result["structuredContent"].clone()
    }

    fn call(&self, tool: &str, arguments: Value) -> Value {
        let reply = self.post(&request(7, "tools/call", json!({"name": tool, "arguments": arguments})));
        assert_eq!(reply.status, 200, "{reply:?}");
        answer(&reply)["result"].clone()
    }

    fn delete(&self) -> Reply {
        self.served.raw("DELETE", &format!("{}{}", self.served.good(), self.header()), "")
    }
}

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// The answer in an SSE stream, with its HTTP chunks joined.
fn answer(reply: &Reply) -> Value {
    let mut whole = String::new();
    let mut rest = reply.body.as_str();
    while let Some((size, behind)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
        whole.push_str(&behind[..size]);
        rest = behind[size..].trim_start_matches("\r\n");
    }
    let data =
        whole.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).filter(|data| !data.is_empty());
    let messages: Vec<Value> = data.map(|data| serde_json::from_str(data).expect("JSON")).collect();
    messages.into_iter().find(|message| !message["id"].is_null()).expect("an answer")
}

#[test]
fn only_clients_with_the_token_are_accepted_by_our_name_and_no_page_is() {
    let (_home, served) = Served::at_home(&["--allow-host", "box.example"]);
    assert_eq!(served.token.len(), 64);
    let hello = request(1, "initialize", initialize()).to_string();
    let (host, token) = (served.host(), format!("Authorization: Bearer {}\r\n", served.token));
    let json = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    let wrong = format!("Authorization: Bearer {}\r\n", "0".repeat(64));
    for (headers, status) in [
        (format!("{host}{json}"), 401),
        (format!("{host}{json}{wrong}"), 401),
        (format!("{host}{json}{token}{wrong}"), 401),
        (format!("{host}{json}Authorization: Basic {}\r\n", served.token), 401),
        (format!("{host}{json}{token}Origin: http://evil.example\r\n"), 403),
        (format!("{host}{json}{token}Origin: http://{}\r\n", served.address), 403),
        (format!("{host}{json}{token}Origin: null\r\n"), 403),
        (format!("{host}{json}{token}Sec-Fetch-Site: cross-site\r\n"), 403),
        (format!("Host: evil.example\r\n{json}{token}"), 403),
        (format!("{json}{token}"), 403),
        (format!("Host: 127.0.0.1:1\r\n{json}{token}"), 200),
        (format!("{host}{json}{token}"), 200),
        (format!("Host: box.example\r\n{json}{token}"), 200),
        (format!("Host: localhost:{}\r\n{json}{token}", served.address.rsplit_once(':').expect("a port").1), 200),
    ] {
        let reply = served.raw("POST", &headers, &hello);
        assert_eq!(reply.status, status, "{headers}{reply:?}");
        let head = reply.head.to_ascii_lowercase();
        assert_eq!(head.contains("www-authenticate: bearer"), status == 401, "{head}");
        if status != 200 {
            assert!(!reply.body.contains("jsonrpc"), "{reply:?}");
        }
    }
    // The token is also accepted in the URL, as it was printed. Other paths do not exist.
    let length = hello.len();
    let with = |target: String| {
        let head = format!("POST {target} HTTP/1.1\r\n{host}{json}Connection: close\r\nContent-Length: {length}");
        http(&served.address, &format!("{head}\r\n\r\n{hello}"))
    };
    assert_eq!(with(format!("/mcp?token={}", served.token)).status, 200);
    assert_eq!(with("/mcp?token=x".to_owned()).status, 401);
    assert_eq!(with(format!("/?token={}", served.token)).status, 404);
    assert_eq!(with("/healthz".to_owned()).status, 401);
}

#[test]
fn tools_work_over_http_and_sessions_know_nothing_of_each_other() {
    let (home, served) = Served::at_home(&[]);
    let (one, other) = (served.begin(), served.begin());
    assert_ne!(one.id, other.id);
    let tools = answer(&one.post(&request(2, "tools/list", json!({}))));
    assert_eq!(tools["result"]["tools"].as_array().map(Vec::len), Some(11));
    assert_eq!(one.ok("run_command", json!({"command": "echo over http"}))["stdout"], "over http\n");
    one.ok("start_process", json!({"command": "echo $$ >one; echo mine; exec sleep 1000"}));
    other.ok("start_process", json!({"command": "echo $$ >other; exec sleep 1000"}));
    let pids = ["one", "other"].map(|name| pid_in(&home.path().join(name)));
    assert_eq!(one.ok("list_processes", json!({}))["processes"].as_array().map(Vec::len), Some(1));
    let heard = one.ok("read_output", json!({"process_id": "p1", "wait_ms": 10_000}));
    assert_eq!(heard["output"], json!([{"stream": "stdout", "text": "mine\n"}]));
    // Calls in two sessions run at the same time; neither waits for the other.
    let wait = "until test -e go; do sleep 0.02; done; echo went";
    thread::scope(|scope| {
        let waits = scope.spawn(|| one.ok("run_command", json!({"command": wait})));
        other.ok("run_command", json!({"command": "touch go"}));
        assert_eq!(waits.join().expect("it does not panic")["stdout"], "went\n");
    });
    assert_eq!(one.delete().status, 204);
    wait_pid_gone(pids[0]);
    assert_eq!(one.post(&request(3, "tools/list", json!({}))).status, 404);
    assert_eq!(other.ok("list_processes", json!({}))["processes"][0]["exited"], false);
    drop(served);
    wait_pid_gone(pids[1]);
}

#[test]
fn an_unused_session_is_ended_with_its_processes_and_one_with_a_call_in_progress_is_not() {
    let (home, served) = Served::at_home(&["--session-idle", "300ms"]);
    let session = served.begin();
    session.ok("start_process", json!({"command": "echo $$ >pid; exec sleep 1000"}));
    let pid = pid_in(&home.path().join("pid"));
    // One call that takes much longer than the idle limit.
    session.ok("run_command", json!({"command": "sleep 1.2"}));
    assert_eq!(session.ok("list_processes", json!({}))["processes"][0]["exited"], false);
    wait_pid_gone(pid);
    wait_for("the session is gone", || session.post(&request(3, "tools/list", json!({}))).status == 404);
}

#[test]
fn descendants_of_commands_end_with_their_session_and_no_other_does() {
    let (home, served) = Served::at_home(&[]);
    let (one, other) = (served.begin(), served.begin());
    // The descendant is detached in every way: no shared streams, process group or parent.
    let leave = |session: &Session<'_>, name: &str| {
        let command = format!(
            "setsid sh -c 'echo $$ >{name}; exec sleep 1000' </dev/null >/dev/null 2>&1 & \
             until test -s {name}; do sleep 0.02; done; echo done"
        );
        let ran = session.ok("run_command", json!({"command": command}));
        assert_eq!((&ran["stdout"], &ran["note"]), (&json!("done\n"), &Value::Null), "{ran}");
        pid_in(&home.path().join(name))
    };
    let (left, others) = (leave(&one, "left"), leave(&other, "others"));
    assert!(state(left).is_some(), "it is not sought while the session lasts");
    assert_eq!(one.delete().status, 204);
    wait_pid_gone(left);
    assert!(state(others).is_some(), "that of the other session runs on");
    drop(served);
    wait_pid_gone(others);
}

#[test]
fn silent_connections_do_not_keep_new_clients_out() {
    let (_home, served) = Served::at_home(&[]);
    let begun = Instant::now();
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&served.address).expect("a connection")).collect();
    let session = served.begin();
    assert_eq!(session.ok("run_command", json!({"command": "echo fine"}))["stdout"], "fine\n");
    // Each silent connection would be closed after ten seconds anyway, so the test must be faster.
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    // The oldest connection was closed to make room.
    let mut oldest = &silent[0];
    assert!(matches!(oldest.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn wrong_requests_are_answered_and_affect_no_other_client() {
    let (_home, served) = Served::at_home(&[]);
    let session = served.begin();
    let good = served.good();
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let cases = [
        ("POST", format!("{good}{}", session.header()), "no JSON", 400..=422),
        ("POST", format!("{good}Mcp-Session-Id: nobody\r\n"), list, 404..=404),
        ("POST", good.clone(), list, 400..=422),
        ("PUT", good.clone(), "", 405..=405),
        ("GET", good.replace("application/json, text/event-stream", "text/html"), "", 406..=406),
        ("POST", good.replace("Content-Type: application/json", "Content-Type: text/plain"), "{}", 415..=415),
    ];
    for (method, headers, body, expected) in cases {
        let reply = served.raw(method, &headers, body);
        assert!(expected.contains(&reply.status), "{method} {headers}{reply:?}");
    }
    // Half a head, and a body that never arrives: neither delays other requests.
    let mut half = TcpStream::connect(&served.address).expect("connect");
    std::io::Write::write_all(&mut half, b"POST /mcp HTTP/1.1\r\nHo").expect("write");
    let head = "POST /mcp HTTP/1.1\r\n".to_owned() + &good + "Content-Length: 999999999\r\nConnection: close\r\n\r\n";
    let huge = http(&served.address, &(head + &"x".repeat(17 << 20)));
    assert!(matches!(huge.status, 413 | 0), "{huge:?}");
    assert_eq!(session.ok("run_command", json!({"command": "echo fine"}))["stdout"], "fine\n");
    drop(half);
}

#[test]
fn a_client_without_a_session_is_told_what_it_lacks() {
    let (_home, served) = Served::at_home(&[]);
    let meta = |version: &str| {
        let client = json!({"name": "by-hand", "version": "1"});
        json!({
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientInfo": client,
            "io.modelcontextprotocol/clientCapabilities": {},
        })
    };
    let discover = request(1, "server/discover", json!({"_meta": meta("2026-07-28")}));
    let reply = served.post("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: server/discover\r\n", &discover);
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.body.contains("2025-11-25"), "{reply:?}");
    let start = json!({"name": "start_process", "arguments": {"command": "sleep 1000"}, "_meta": meta("2025-11-25")});
    let reply = served.post("MCP-Protocol-Version: 2025-11-25\r\n", &request(2, "tools/call", start));
    assert_eq!(reply.status, 200, "{reply:?}");
    let result = &answer(&reply)["result"];
    assert_eq!(result["isError"], true, "{result}");
    assert!(result.to_string().contains("start_process needs a session"), "{result}");
}

#[test]
fn sessions_are_limited_in_number_and_one_that_ends_makes_room() {
    let (_home, served) = Served::at_home(&[]);
    let sessions: Vec<Session<'_>> = (0..64).map(|_| served.begin()).collect();
    let hello = request(0, "initialize", initialize());
    let reply = served.post("", &hello);
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(reply.head.to_ascii_lowercase().contains("retry-after:"), "{reply:?}");
    assert_eq!(sessions[7].ok("run_command", json!({"command": "echo fine"}))["stdout"], "fine\n");
    assert_eq!(sessions[7].delete().status, 204);
    served.begin();
}

#[test]
fn calls_in_progress_are_answered_when_the_server_ends() {
    let (home, mut served) = Served::at_home(&[]);
    let child = served.child.id();
    let session = served.begin();
    let result = thread::scope(|scope| {
        let waits = scope.spawn(|| session.call("run_command", json!({"command": "echo $$ >pid; exec sleep 1000"})));
        let pid = pid_in(&home.path().join("pid"));
        signal(child, Signal::INT);
        wait_pid_gone(pid);
        waits.join().expect("it does not panic")
    });
    assert_eq!(result["isError"], true, "{result}");
    assert!(result.to_string().contains("shutting down"), "{result}");
    assert!(end_of(&mut served.child).success());
}

#[test]
fn the_token_comes_from_its_configured_source_and_reaches_no_child() {
    let home = Home::new();
    let file = home.path().join("token");
    fs::write(&file, "from-a-file-of-this-test\n").expect("write a file");
    set_mode(&file, 0o600);
    for flag in ["--http-token-file", "--token-file"] {
        let served = Served::start(&home, &[flag, &file.display().to_string()]);
        assert_eq!(served.token, "from-a-file-of-this-test");
        served.begin();
    }
    let log = home.path().join("log");
    let mut command = home.command(&["mcp", "serve", "--http", "127.0.0.1:0", "--log", "trace"]);
    command.env("EXEC_SERVER_TOKEN", "from-the-environment-of-this-test").current_dir(home.path());
    command.stderr(fs::File::create(&log).expect("make a file"));
    let served = Served::of(command);
    assert_eq!(served.token, "from-the-environment-of-this-test");
    let ran = served.begin().ok("run_command", json!({"command": "env; cat /proc/$PPID/environ | tr '\\0' '\\n'"}));
    assert!(!ran["stdout"].as_str().expect("a text").contains("from-the-environment-of-this-test"));
    let shown = fs::read(format!("/proc/{}/environ", served.child.id())).unwrap_or_default();
    assert!(!text(&shown).contains("from-the-environment-of-this-test"));
    drop(served);
    let logged = text(&fs::read(&log).expect("the log"));
    assert!(logged.contains("tools/call") || logged.contains("run_command"), "{logged}");
    assert!(!logged.contains("from-the-environment-of-this-test"));
}

#[test]
fn it_is_not_served_beyond_loopback_by_accident() {
    let home = Home::new();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let (_, said, code) = outcome(home.command(&["mcp", "serve", "--http", address]));
        assert_eq!(code, Some(255));
        assert!(said.contains("--insecure-plaintext"), "{said}");
    }
    let (_, said, code) = outcome(home.command(&["mcp", "serve", "--http-token-file", "x"]));
    assert_eq!(code, Some(2), "{said}");
    let mut served = home.command(&["mcp", "serve", "--http", "0.0.0.0:0", "--insecure-plaintext"]);
    let mut child = spawn(served.stderr(Stdio::inherit()));
    let line = read_until(child.stdout.as_mut().expect("stdout is a pipe"), "\n");
    assert!(line.starts_with("http://0.0.0.0:"), "{line}");
    signal(child.id(), Signal::TERM);
    assert!(end_of(&mut child).success());
    let mut rest = String::new();
    child.stdout.as_mut().expect("stdout is a pipe").read_to_string(&mut rest).expect("read the rest");
    assert_eq!(rest, "");
}
