//! Configuration and monitoring by operators: limits, `--print-config`, metrics, service manager, JSON logs and `doctor`. Tested with the
//! real program.

use std::os::{
    linux::net::SocketAddrExt as _,
    unix::net::{SocketAddr, UnixDatagram},
};

use crate::prelude::*;

#[test]
fn a_session_beyond_the_bound_is_refused_and_those_that_are_there_are_resumed() {
    let server = TestServer::builder().arg("--max-sessions").arg("2").start();
    let mut first = server.client();
    let (second, id) = server.session();
    let mut third = server.connect();
    let refused = third.refuses("initialize", json!({"clientName": "test"}), -32603, "resourcesExhausted");
    assert!(refused.message.contains("2 sessions of this server"), "{}", refused.message);
    // Resuming an existing session needs no additional place, even on a connection that was refused a new session.
    drop(second);
    third.initialize_with(json!({"clientName": "test", "resumeSessionId": id, "takeover": true}));
    first.ok("session/end", json!({}));
    wait_for("a free place", || server.connect().call("initialize", json!({"clientName": "test"})).is_ok());
}

#[test]
fn a_process_beyond_the_bound_is_refused_until_one_has_ended() {
    let server = TestServer::builder().arg("--max-processes").arg("2").start();
    let mut client = server.client();
    for id in ["a", "b"] {
        client.start(start_params(id, &["sleep", "1000"]));
    }
    client.refuses("process/start", start_params("c", &["true"]), -32603, "resourcesExhausted");
    client.terminate("a");
    // An ended process is kept for reading and does not count.
    wait_for("a free place", || client.call("process/start", start_params("c", &["sleep", "1000"])).is_ok());
}

#[test]
fn the_default_of_overflow_is_the_servers_and_memory_is_what_was_given() {
    let limits = "--overflow drop-oldest --memory-per-process 3MiB --disk-per-process 0";
    let server = TestServer::builder().args(limits.split(' ')).start();
    let mut client = server.connect();
    client.initialize_with(json!({"clientName": "test", "capabilities": {"ack": true, "gap": true}}));
    client.start(start_params("flood", &["head", "-c", "40000000", "/dev/zero"]));
    // Nothing is acknowledged: a process that had to wait would never end.
    let mut listed = json!(null);
    wait_for("the end of the flood", || {
        listed = client.processes()[0].clone();
        listed["closed"] == json!(true)
    });
    assert_eq!(listed["outputBytes"], json!(40_000_000));
    // The status is shared memory; the drops are messages that the server handles a moment later.
    wait_for("the drops to be counted", || {
        listed = client.processes()[0].clone();
        listed["retainedBytes"].as_u64().expect("a number") <= 4 << 20
    });
    assert!(listed["droppedBytes"].as_u64().expect("a number") >= 40_000_000 - (4 << 20), "{listed}");
}

#[test]
fn print_config_says_where_every_value_comes_from_and_makes_nothing() {
    let dir = tempfile::tempdir().expect("make a directory");
    let run = |args: &str| {
        std::process::Command::new(testkit::binary())
            .args(args.split(' '))
            .env("HOME", dir.path())
            .env("XDG_STATE_HOME", dir.path())
            .env("XDG_RUNTIME_DIR", dir.path())
            .env("EXEC_SERVER_TOKEN", "a-secret-that-nobody-may-see-0123456789")
            .output()
            .expect("run exec-server")
    };
    let state = dir.path().join("state").display().to_string();
    let flags = "--ping-every 1500ms --listen ws://127.0.0.1:4000";
    let output = run(&format!("serve --print-config --state-dir {state} {flags}"));
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let config: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let settings = config["settings"].as_object().expect("an object");
    assert_members(&settings["ping-every"], json!({"value": "1500ms", "origin": "flag"}));
    assert_members(&settings["dead-after"], json!({"value": "30s", "origin": "default"}));
    assert_eq!(settings["listen"]["value"], json!(["ws://127.0.0.1:4000"]));
    assert_eq!(settings["kill-on-exit"]["value"], json!(false));
    // Every flag of the help is listed, including those that are flattened in from other structs.
    let help = String::from_utf8(run("serve --help").stdout).expect("text");
    let flags: Vec<&str> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--")?.split([' ', ',']).next())
        .filter(|flag| *flag != "print-config")
        .collect();
    assert!(flags.len() > 15, "{flags:?}");
    assert!(flags.iter().all(|flag| settings.contains_key(*flag)), "{flags:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("a-secret"));
    assert_eq!(std::fs::read_dir(dir.path()).expect("read the directory").count(), 0);
}

/// A page of metrics, parsed strictly: families with their type, samples below their family.
#[derive(Default)]
pub(crate) struct Page {
    types: BTreeMap<String, String>,
    samples: BTreeMap<(String, Vec<(String, String)>), f64>,
}

impl Page {
    fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line has no end");
        let (mut page, mut family) = (Self::default(), String::new());
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect("a help text");
                assert!(!help.is_empty() && !page.types.contains_key(name), "{line}");
                name.clone_into(&mut family);
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a type");
                assert!(name == family && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(kind != "counter" || name.ends_with("_total"), "{line}");
                page.types.insert(name.to_owned(), kind.to_owned());
            } else {
                page.sample(line, &family);
            }
        }
        page
    }

    fn sample(&mut self, line: &str, family: &str) {
        let (key, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) =
            key.split_once('{').map_or((key, ""), |(name, rest)| (name, rest.strip_suffix('}').expect("a brace")));
        let kind = &self.types[family];
        let is_of = match kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"].iter().any(|end| name.strip_suffix(end) == Some(family)),
            _ => name == family,
        };
        assert!(is_of && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
        let labels = labels.split(',').filter(|label| !label.is_empty()).map(|label| {
            let (name, value) = label.split_once('=').expect("a label");
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).expect("quotes");
            assert!(!value.contains(['"', '\\', '\n']), "{line}");
            (name.to_owned(), value.to_owned())
        });
        let value: f64 = value.parse().expect("a number");
        assert!(value >= 0.0, "{line}");
        assert!(self.samples.insert((name.to_owned(), labels.collect()), value).is_none(), "twice: {line}");
    }

    pub(crate) fn get(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        *self.samples.get(&(name.to_owned(), labels)).unwrap_or_else(|| panic!("no {name}"))
    }
}

pub(crate) fn metrics(server: &TestServer) -> Page {
    let token = server.token();
    let request =
        format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n", server.address());
    let reply = http(server.address(), &request);
    assert_eq!(reply.status, 200, "{}", reply.head);
    assert!(reply.head.contains("text/plain; version=0.0.4"), "{}", reply.head);
    Page::parse(&reply.body)
}

#[test]
fn metrics_count_what_happened() {
    let (server, mut client) = TestServer::with_client();
    let ended = client.run("p", &["head", "-c", "300000", "/dev/zero"]);
    assert_eq!(ended.stdout.len(), 300_000);
    client.start(cat("cat"));
    client.ok("process/write", with(write_params("cat", &[b'x'; 1000]), json!({"writeId": "w"})));
    client.call("process/read", json!({"processId": "nobody"})).expect_err("an unknown process");
    client.call("no/such/method", json!({})).expect_err("an unknown method");
    assert_eq!(http(server.address(), "GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 403);
    let host = format!("Host: {}\r\n", server.address());
    assert_eq!(http(server.address(), &format!("GET /metrics HTTP/1.1\r\n{host}\r\n")).status, 401);
    let mut page = metrics(&server);
    wait_for("the echo of cat", || {
        page = metrics(&server);
        page.get("exec_server_output_bytes_total", &[]) >= 301_000.0
    });
    let is = |name: &str, labels: &[(&str, &str)], value: f64| {
        assert_eq!(page.get(name, labels), value, "{name} {labels:?}")
    };
    is("exec_server_output_bytes_total", &[], 301_000.0);
    is("exec_server_stdin_bytes_total", &[], 1000.0);
    is("exec_server_connections", &[], 1.0);
    is("exec_server_connections_total", &[], 1.0);
    is("exec_server_sessions", &[("state", "attached")], 1.0);
    is("exec_server_sessions", &[("state", "detached")], 0.0);
    is("exec_server_processes", &[("state", "running")], 1.0);
    is("exec_server_processes", &[("state", "ended")], 1.0);
    is("exec_server_processes_started_total", &[], 2.0);
    is("exec_server_refused_total", &[("status", "401")], 1.0);
    is("exec_server_refused_total", &[("status", "403")], 1.0);
    is("exec_server_errors_total", &[("kind", "unknownProcess")], 1.0);
    is("exec_server_errors_total", &[("kind", "unknownMethod")], 1.0);
    is("exec_server_request_seconds_count", &[("method", "process/start")], 2.0);
    is("exec_server_request_seconds_bucket", &[("method", "process/write"), ("le", "+Inf")], 1.0);
    is("exec_server_gaps_total", &[], 0.0);
    // 300,000 bytes are 400,000 bytes of base64, plus the envelope.
    let sent = page.get("exec_server_sent_bytes_total", &[]);
    assert!((400_000.0..500_000.0).contains(&sent), "{sent}");
    // A method name that a client made up is not used as a label.
    assert!(page.samples.keys().all(|(_, labels)| labels.iter().all(|(_, value)| !value.contains("no/such"))));
}

#[test]
fn metrics_tell_of_gaps_blocked_processes_and_restarts() {
    let mut server = TestServer::builder().arg("--memory-per-process").arg("3MiB").start();
    let mut client = server.connect();
    client.initialize_with(json!({"clientName": "test", "capabilities": {"ack": true, "gap": true}}));
    client.start(start_params("waits", &["cat", "/dev/zero"]));
    wait_for("a process that waits", || {
        metrics(&server).get("exec_server_processes_blocked", &[("reason", "memory")]) == 1.0
    });
    let drops = start_params("drops", &["head", "-c", "20000000", "/dev/zero"]);
    client.start(with(drops, json!({"overflow": "dropOldest"})));
    wait_for("dropped output", || metrics(&server).get("exec_server_output_dropped_bytes_total", &[]) >= 10_000_000.0);
    let before = metrics(&server);
    server.restart();
    let after = metrics(&server);
    assert_eq!(after.get("exec_server_sessions_adopted_total", &[]), 1.0);
    assert_eq!(after.get("exec_server_sessions", &[("state", "detached")]), 1.0);
    // Output that was counted before the restart is not counted again.
    let dropped = |page: &Page| page.get("exec_server_output_dropped_bytes_total", &[]);
    assert!(dropped(&after) < dropped(&before));
    assert_eq!(after.get("exec_server_draining", &[]), 0.0);
}

#[test]
fn metrics_tell_what_became_of_those_at_the_door() {
    let server = TestServer::start();
    let at_door = |outcome: &str| metrics(&server).get("exec_server_door_total", &[("outcome", outcome)]);
    assert_eq!(["refused", "stalled", "evicted", "slowed"].map(at_door), [0.0; 4]);
    let wrong = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", server.address());
    let statuses: Vec<u16> = (0..102).map(|_| http(server.address(), &wrong).status).collect();
    let late = statuses.iter().filter(|status| **status == 429).count();
    assert!(late > 0, "{statuses:?}");
    assert_eq!((at_door("refused"), at_door("slowed")), (102.0, late as f64));
    // This source has few places left, so each new silent connection evicts an older one.
    let silent: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(server.address()).expect("connect")).collect();
    wait_for("some of the silent pushed out", || at_door("evicted") >= 10.0);
    drop(silent);
}

#[test]
fn metrics_are_on_unix_sockets_too() {
    let server = TestServer::builder().listen("unix://{dir}/x.sock").start();
    let reply = http_unix(&server.dir().join("x.sock"), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(reply.status, 200);
    assert_eq!(Page::parse(&reply.body).get("exec_server_connections", &[]), 0.0);
    let head = http_unix(&server.dir().join("x.sock"), "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(http_unix(&server.dir().join("x.sock"), "POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n").status, 405);
}

/// The next message to the service manager.
fn told(manager: &UnixDatagram) -> String {
    let mut message = [0; 256];
    let size = manager.recv(&mut message).expect("a message within the deadline");
    String::from_utf8(message[..size].to_vec()).expect("text")
}

#[test]
fn a_service_manager_is_told_when_it_is_ready_and_when_it_ends() {
    let dir = tempfile::tempdir().expect("make a directory");
    let path = dir.path().join("notify");
    let name = format!("exec-server-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    for (manager, place) in [
        (UnixDatagram::bind(&path).expect("bind"), path.display().to_string()),
        (UnixDatagram::bind_addr(&address).expect("bind"), format!("@{name}")),
    ] {
        manager.set_read_timeout(Some(testkit::DEADLINE)).expect("set a deadline");
        let mut server = TestServer::builder().env("NOTIFY_SOCKET", &place).keep_holders().start();
        assert_eq!(told(&manager), "READY=1");
        let ready = http(server.address(), "GET /readyz HTTP/1.1\r\n\r\n");
        assert_eq!(ready.status, 200, "{ready:?}");
        // A child must not be able to notify the service manager in the server's name.
        let policy =
            json!({"inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": []});
        let ended = server.client().run_params(with(start_params("env", &["env"]), json!({"envPolicy": policy})));
        let said = text(&ended.stdout);
        assert!(said.contains("PATH=") && !said.contains("NOTIFY_SOCKET"), "{said}");
        server.signal(rustix::process::Signal::TERM);
        assert_eq!(told(&manager), "STOPPING=1");
        assert!(server.wait().success());
    }
    // The socket does not exist, but the server still starts.
    let server = TestServer::builder().env("NOTIFY_SOCKET", "{dir}/nobody").start();
    server.client().ok("environment/status", json!({}));
    wait_for("a word about it", || server.stderr().contains("cannot notify the service manager"));
}

#[test]
fn json_lines_say_whose_they_are_and_join_a_trace() {
    let server = TestServer::builder().arg("--log-format").arg("json").arg("--log").arg("debug").start();
    let (mut client, session) = server.session();
    client.send_text(
        &json!({"id": 77, "method": "process/start", "params": start_params("job", &["echo", "argument-of-it"]),
                "trace": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}})
        .to_string(),
    );
    client.answer(77).expect("it starts");
    client.collect("job");
    let mut mine = json!(null);
    wait_for("the line of the request", || {
        let stderr = server.stderr();
        let whole = stderr.rfind('\n').map_or("", |end| &stderr[..end]);
        // At its start the server also prints two notes for people.
        let lines = whole.lines().filter(|line| !line.starts_with("state: ") && !line.starts_with("try: "));
        let mut lines = lines.map(|line| serde_json::from_str::<Value>(line).expect("every line is JSON"));
        mine = lines.rfind(|line| line["request"] == "77" && line["message"] == "answered").unwrap_or_default();
        !mine.is_null()
    });
    assert_members(&mine, json!({"method": "process/start", "process": "job", "session": session[..8]}));
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    assert_members(&mine, json!({"principal": "owner", "trace_id": trace, "parent_span_id": parent}));
    assert_eq!(mine["span_id"].as_str().map(str::len), Some(16));
    assert!(mine["connection"].is_u64() && mine["took_us"].is_u64() && mine["level"] == "debug", "{mine}");
    assert!(mine["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{mine}");
    let all = server.stderr();
    assert!(!all.contains(&session) && !all.contains(server.token()), "{all}");
    assert!(!all.contains("argument-of-it"), "{all}");
}

#[test]
fn the_doctor_looks_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("make a directory");
    let state = dir.path().join("state");
    let doctor = |more: &[&str]| {
        std::process::Command::new(testkit::binary())
            .arg("doctor")
            .args(more)
            .arg("--state-dir")
            .arg(&state)
            .output()
            .expect("run exec-server")
    };
    let output = doctor(&["--json"]);
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = |findings: &[Value], what: &str| {
        findings.iter().find(|finding| finding["what"] == what).cloned().unwrap_or_else(|| panic!("no {what}"))
    };
    assert_eq!(output.status.code(), Some(0), "{findings:?}");
    for what in ["kernel", "pidfds", "memfd seals", "cgroup v2", "descriptors", "logout", "ssh", "server"] {
        assert_ne!(of(&findings, what)["state"], "missing", "{findings:?}");
    }
    // Findings that are weak have advice.
    assert!(findings.iter().filter(|finding| finding["state"] != "fine").all(|finding| finding["advice"].is_string()));
    assert!(!state.exists());
    // A directory that others may read exposes the token.
    std::fs::create_dir(&state).expect("make the directory");
    std::fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("open it to others");
    let output = doctor(&[]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("MISSING state directory") && said.contains("0700"), "{said}");
}

#[test]
fn the_doctor_finds_the_server_of_a_state_directory() {
    let (server, _client) = TestServer::with_process(start_params("p", &["sleep", "1000"]));
    let output = std::process::Command::new(testkit::binary())
        .args(["doctor", "--state-dir"])
        .arg(server.state_dir())
        .output()
        .expect("run exec-server");
    let said = text(&output.stdout);
    assert!(said.contains(&format!("process {}; 1 holder", server.pid())), "{said}");
}
