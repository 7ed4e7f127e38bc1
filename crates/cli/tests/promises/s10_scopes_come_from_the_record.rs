//! S10: the server's token file decides what a principal may do; nothing that a client declares adds to it. Every method that needs a scope
//! is refused without it, before it has any effect. Processes start only below the granted roots and with the granted variables, and in a
//! sandbox if the file requires it. One principal sees nothing of another.

use crate::{
    prelude::*,
    promises::sandbox_helpers::{self, Ground},
};
use exec_server_protocol::method::{METHODS, MethodInfo, Scope};
use testkit::kind_or_ok as kind;

/// Calls a method with empty params on a new connection, because some methods end it.
fn call(server: &TestServer, token: &str, method: &MethodInfo) -> String {
    kind(token_helpers::client(server, token).call(method.name, json!({})))
}

#[test]
fn each_method_is_denied_without_its_scope_and_only_then() {
    let server = TestServer::start();
    let all_but = |missing: Scope| {
        let others = Scope::ALL.iter().filter(|scope| **scope != missing);
        others.flat_map(|scope| ["--scope", scope.as_str()]).collect::<Vec<_>>()
    };
    let mut denied = 0;
    for scope in Scope::ALL {
        let without = token_helpers::create(&server, &format!("without-{}", scope.as_str()), &all_but(*scope));
        let only = token_helpers::create(&server, &format!("only-{}", scope.as_str()), &["--scope", scope.as_str()]);
        for method in METHODS.iter().filter(|method| method.name != "initialize") {
            let (lacking, having) = (call(&server, &without, method), call(&server, &only, method));
            let (needs_it, needs_other) =
                (method.scope == Some(*scope), method.scope.is_some_and(|needed| needed != *scope));
            assert_eq!(lacking == "forbidden", needs_it, "{} without {scope:?}: {lacking}", method.name);
            assert_eq!(having == "forbidden", needs_other, "{} with {scope:?} alone: {having}", method.name);
            denied += usize::from(needs_it);
        }
    }
    assert_eq!(denied, METHODS.iter().filter(|method| method.scope.is_some()).count());
}

#[test]
fn a_denied_request_has_no_effect_and_a_declared_scope_adds_nothing() {
    let server = TestServer::builder().audit().start();
    let token = token_helpers::create(&server, "reader", &["--scope", "stdin"]);
    let mut client = token_helpers::connect(&server, &token);
    client.initialize_with(json!({
        "clientName": "owner", "principal": "owner", "scopes": ["exec"], "scope": "exec",
        "capabilities": {"ack": true, "scopes": ["exec", "signal"], "exec": true},
    }));
    let before = server.processes();
    let mark = server.dir().join("mark");
    let params = with(start_params("p", &["touch", &mark.display().to_string()]), json!({"scopes": ["exec"]}));
    let error = client.fails("process/start", params.clone());
    assert_error(&error, -32600, "forbidden");
    assert!(error.message.contains("`exec`") && error.message.contains("`reader`"), "{}", error.message);
    assert_eq!(kind(client.call("command/exec", params)), "forbidden");
    assert_eq!(server.processes(), before);
    assert!(!mark.exists());
    let mut denied = token_helpers::lines(&server.dir().join("audit.log"));
    denied.retain(|line| line["event"] == "request.deny");
    assert_eq!(denied.len(), 2, "{denied:?}");
    assert_eq!((&denied[0]["principal"], &denied[0]["method"]), (&json!("reader"), &json!("process/start")));
}

#[test]
fn a_start_without_a_directory_begins_in_the_first_root() {
    let server = TestServer::start();
    let root = server.dir().canonicalize().expect("it exists").join("root");
    fs::create_dir(&root).expect("make a directory");
    let token = token_helpers::create(&server, "rooted", &["--root", &root.display().to_string()]);
    let mut client = token_helpers::client(&server, &token);
    let expected = format!("{}\n", root.display());
    assert_eq!(client.run_params(json!({"processId": "p", "argv": ["pwd"]})).text(), expected);
    let mut run = std::process::Command::new(testkit::binary());
    run.args(["run", "--connect", &token_helpers::url(&server, &token), "--", "pwd"]);
    let output = run.output().expect("run the program");
    assert_eq!(text(&output.stdout), expected, "{output:?}");
}

#[test]
fn processes_start_only_beneath_the_roots() {
    let server = TestServer::start();
    let root = server.dir().join("root");
    fs::create_dir_all(root.join("in/side")).expect("make directories");
    fs::create_dir(server.dir().join("rootless")).expect("make a directory beside");
    std::os::unix::fs::symlink(server.dir(), root.join("out")).expect("make a link out");
    std::os::unix::fs::symlink(root.join("in"), root.join("link")).expect("make a link within");
    let mut client = token_helpers::new_client(&server, "rooted", &["--root", &root.display().to_string()]);
    let dir = server.dir().display().to_string();
    for (cwd, expected) in [
        (format!("{dir}/root"), "ok"),
        (format!("{dir}/root/in/side"), "ok"),
        (format!("file://{dir}/root/in"), "ok"),
        (format!("{dir}/root/link"), "ok"),
        (format!("{dir}/root/in/.."), "ok"),
        (format!("{dir}/root/nothing"), "cwdNotFound"),
        (dir.clone(), "forbidden"),
        ("/".to_owned(), "forbidden"),
        (format!("{dir}/rootless"), "forbidden"),
        (format!("{dir}/root/.."), "forbidden"),
        (format!("{dir}/root/in/../.."), "forbidden"),
        (format!("{dir}/root/out"), "forbidden"),
        (format!("{dir}/root/nothing/../.."), "forbidden"),
        ("/no/such".to_owned(), "forbidden"),
    ] {
        for method in ["process/start", "command/exec"] {
            let params = with(start_params(&format!("{method} {cwd}"), &["true"]), json!({"cwd": cwd}));
            assert_eq!(kind(client.call(method, params)), expected, "{method} in {cwd}");
        }
    }
}

#[test]
fn requests_set_only_the_granted_variables() {
    let server = TestServer::start();
    let mut client = token_helpers::new_client(&server, "plain", &["--env", "PATH", "--env", "LC_*"]);
    for (name, expected) in [
        ("PATH", "ok"),
        ("LC_ALL", "ok"),
        ("LD_PRELOAD", "forbidden"),
        ("path", "forbidden"),
        ("XLC_ALL", "forbidden"),
        ("LC", "forbidden"),
    ] {
        let start = |id: &str| start_params(&format!("{id}-{name}"), &["true"]);
        let set = json!({"env": {name: "/usr/bin:/bin"}});
        assert_eq!(kind(client.call("process/start", with(start("p"), set.clone()))), expected, "{name}");
        assert_eq!(kind(client.call("command/exec", with(start("c"), set))), expected, "{name}");
        let core = json!({"inherit": "core", "ignoreDefaultExcludes": false, "set": {name: "/bin"}});
        let by_policy = json!({"env": {}, "envPolicy": with(inherit_all(), core)});
        assert_eq!(kind(client.call("process/start", with(start("s"), by_policy))), expected, "{name} by policy");
    }
    let terminal = with(start_params("t", &["true"]), json!({"tty": true, "term": "xterm"}));
    assert_eq!(kind(client.call("process/start", terminal)), "forbidden", "TERM is a variable, too");
}

#[test]
fn a_principal_sees_and_reaches_nothing_of_another() {
    let server = TestServer::start();
    let (mut owner, session) = server.session();
    owner.ok("process/start", start_params("p", &["sleep", "1000"]));
    let mut other = token_helpers::new_client(&server, "other", &[]);
    assert!(other.list_all().is_empty());
    for method in ["process/read", "process/subscribe", "process/terminate", "process/forget", "process/closeStdin"] {
        let answer = other.call(method, json!({"sessionId": session, "processId": "p"}));
        assert_eq!(kind(answer), "unknownSession", "{method}");
    }
    for (method, more) in [("process/write", json!({"chunk": ""})), ("process/signal", json!({"signal": "SIGKILL"}))] {
        let params = with(json!({"sessionId": session, "processId": "p"}), more);
        assert_eq!(kind(other.call(method, params)), "unknownSession", "{method}");
    }
    assert_eq!(owner.list_all()[0]["exited"], false);
}

#[test]
fn a_principal_that_must_be_confined_does_nothing_without_a_sandbox() {
    let server = TestServer::start();
    let ground = Ground::new();
    let target = Target::saying("hello");
    let reading = |network: &str| sandbox_helpers::sandbox(vec![sandbox_helpers::special("root", "read")], network);
    let of_type = |permissions: Value| json!({"permissions": permissions});
    let boxes = [
        ("none", Value::Null),
        ("disabled", of_type(json!({"type": "disabled"}))),
        ("external", of_type(json!({"type": "external", "network": "restricted"}))),
        ("files free", sandbox_helpers::unrestricted()),
        ("online", reading("enabled")),
        ("offline", reading("restricted")),
    ];
    for (floor, allowed) in [("required", ["online", "offline"].as_slice()), ("offline", &["offline"])] {
        let token = token_helpers::create(&server, floor, &["--sandbox", floor]);
        let mut client = token_helpers::client(&server, &token);
        for (name, sandbox) in &boxes {
            let expected = if allowed.contains(name) { "ok" } else { "forbidden" };
            let with = |params: Value| confined(params, sandbox);
            let file = ground.at("outside/file");
            let started = kind(client.call("process/start", with(start_params(name, &["true"]))));
            let read = kind(client.call("fs/readFile", with(json!({"path": file}))));
            let found = kind(client.call("fs/glob", with(json!({"path": ground.at("outside"), "pattern": "*"}))));
            let opened = kind(client.call("fs/open", with(json!({"handleId": name, "path": file}))));
            assert_eq!([&started, &read, &found, &opened], [expected; 4], "{floor}: {name}");
        }
        let mark = ground.text(&format!("work/{floor}"));
        let write = json!({"path": mark, "dataBase64": ""});
        assert_eq!(kind(client.call("fs/writeFile", write)), "forbidden");
        let mut old = token_helpers::connect(&server, &token);
        let exec = json!({"processId": "v0", "argv": ["touch", mark], "cwd": "/", "env": {}, "tty": false});
        assert_eq!(kind(old.call("command/exec", exec)), "forbidden");
        assert!(!std::path::Path::new(&mark).exists(), "nothing happened");
        let request = json!({"requestId": "r", "method": "GET", "url": target.url("/")});
        let expected = if floor == "offline" { "forbidden" } else { "ok" };
        assert_eq!(kind(client.call("http/request", request)), expected);
    }
    assert_eq!(target.asked().len(), 1, "only for the floor that allows a network");
}
