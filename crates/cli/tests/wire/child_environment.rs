//! The environment of a child: exactly as given without a policy, derived from the server's environment with one (spec 3.2, 3.7).

use std::os::unix::ffi::OsStrExt;

use crate::{
    prelude::*,
    wire::lines::{Lines, Wire},
};

/// The variables that a child gets by default.
const CORE: [&str; 11] =
    ["PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER"];

/// Runs `env` and returns its lines, sorted.
fn env(client: &mut Client, id: &str, more: Value) -> Vec<String> {
    let ended = client.run_params(with(start_params(id, &["/usr/bin/env"]), more));
    assert_eq!(ended.code(), 0);
    let mut lines: Vec<String> = String::from_utf8_lossy(&ended.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn policy(inherit: &str, more: Value) -> Value {
    let plain = json!({"ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": []});
    with(with(plain, json!({"inherit": inherit})), more)
}

fn server() -> TestServer {
    let names = "LANG=C USER=somebody MY_API_KEY=k A_SECRET_THING=s SESSION_TOKEN_X=t PLAIN=p lower_case=l";
    TestServer::builder().envs(names).envs("NOTIFY_SOCKET=/run/n LISTEN_FDS=3 NODE_REPL_AUTH_TOKEN=n").start()
}

#[test]
fn child_env_defaults_to_exact_env() {
    let server = server();
    let mut client = server.client();
    for tty in [false, true] {
        let id = format!("p{tty}");
        // The reference adds SHELL on a terminal; ours adds nothing.
        assert_eq!(env(&mut client, &id, json!({"env": {"ONLY": "1", "EMPTY": ""}, "tty": tty})), ["EMPTY=", "ONLY=1"]);
        assert_eq!(env(&mut client, &format!("none{tty}"), json!({"env": {}, "tty": tty})), Vec::<String>::new());
    }
}

#[test]
fn child_env_applies_policy_then_overlay() {
    let server = server();
    let mut client = server.client();
    let more = policy("none", json!({"set": {"SET": "1", "SECRET_KEY": "2", "BOTH": "policy"}}));
    let lines = env(&mut client, "p", json!({"env": {"MINE": "1", "BOTH": "request"}, "envPolicy": more}));
    assert_eq!(lines, ["BOTH=request", "MINE=1", "SECRET_KEY=2", "SET=1"]);
}

#[test]
fn core_is_the_short_list_and_all_leaves_out_what_looks_secret() {
    let server = server();
    let mut client = server.client();
    let core = env(&mut client, "core", json!({"env": {}, "envPolicy": policy("core", json!({}))}));
    let names: Vec<&str> = core.iter().filter_map(|line| line.split('=').next()).collect();
    assert!(names.contains(&"LANG") && names.contains(&"USER") && names.contains(&"HOME"), "{names:?}");
    assert!(names.iter().all(|name| CORE.contains(&name.to_uppercase().as_str())), "{names:?}");

    let all = env(&mut client, "all", json!({"env": {}, "envPolicy": policy("all", json!({}))}));
    assert!(all.contains(&"PLAIN=p".to_owned()) && all.contains(&"lower_case=l".to_owned()), "{all:?}");
    let names: Vec<&str> = all.iter().filter_map(|line| line.split('=').next()).collect();
    assert!(!names.iter().any(|name| ["KEY", "SECRET", "TOKEN"].iter().any(|word| name.contains(word))), "{all:?}");

    let kept = policy("all", json!({"ignoreDefaultExcludes": true}));
    let kept = env(&mut client, "kept", json!({"env": {}, "envPolicy": kept}));
    for line in ["MY_API_KEY=k", "A_SECRET_THING=s", "SESSION_TOKEN_X=t"] {
        assert!(kept.contains(&line.to_owned()), "{line}: {kept:?}");
    }
}

#[test]
fn exclude_and_include_only_are_wildcards_without_case() {
    let server = server();
    let mut client = server.client();
    let exclude = policy("all", json!({"exclude": ["pl*", "LOWER_CAS?"], "set": {"PLUS": "1"}}));
    let lines = env(&mut client, "x", json!({"env": {}, "envPolicy": exclude}));
    assert!(!lines.iter().any(|line| line.starts_with("PLAIN") || line.starts_with("lower")), "{lines:?}");
    assert!(lines.contains(&"PLUS=1".to_owned()), "what is set is not excluded");
    let only = policy("all", json!({"includeOnly": ["plai?", "s*"], "set": {"GONE": "1", "SET": "2"}}));
    let lines = env(&mut client, "o", json!({"env": {"OVER": "3"}, "envPolicy": only}));
    for line in ["PLAIN=p", "SET=2", "OVER=3"] {
        assert!(lines.contains(&line.to_owned()), "{line}: {lines:?}");
    }
    assert!(!lines.contains(&"GONE=1".to_owned()), "{lines:?}");
}

#[test]
fn names_of_credentials_and_plumbing_reach_no_child() {
    let server = server();
    let mut client = server.client();
    let asked = json!({
        "EXEC_SERVER_TOKEN": "x", "exec_server_token": "x", "node_repl_auth_token": "x", "OPENAI_IDENTITY_TOKEN_FILE": "x",
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN": "x", "OPENAI_FEDERATION_RULE_ID": "x",
        "OPENAI_WORKLOAD_IDENTITY_CONTEXT": "x", "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE": "x", "KEPT": "1",
    });
    assert_eq!(env(&mut client, "asked", json!({"env": asked})), ["KEPT=1"]);
    let all = policy("all", json!({"ignoreDefaultExcludes": true, "set": asked}));
    let lines = env(&mut client, "all", json!({"env": {}, "envPolicy": all}));
    for name in ["NOTIFY_SOCKET", "LISTEN_FDS", "NODE_REPL_AUTH_TOKEN", "EXEC_SERVER_TOKEN", "exec_server_token"] {
        assert!(!lines.iter().any(|line| line.starts_with(name)), "{name}: {lines:?}");
    }
    assert!(!lines.iter().any(|line| line.contains(server.token())));
}

#[test]
fn a_large_environment_arrives_whole() {
    let server = server();
    let mut client = server.client();
    let many: serde_json::Map<String, Value> =
        (0..2000).map(|i| (format!("V{i:04}"), json!("x".repeat(100)))).collect();
    let lines = env(&mut client, "p", json!({"env": many}));
    assert_eq!(lines.len(), 2000);
    assert!(lines.iter().all(|line| line.len() == 106));
}

/// The shortest start: without cwd, environment and terminal.
#[test]
fn a_start_without_cwd_and_env_runs_in_the_server_s_directory_with_its_core_variables() {
    let server = server();
    let mut client = server.client();
    let ended = client.run_params(json!({"processId": "p", "argv": ["sh", "-c", "pwd; env"]}));
    let said = text(&ended.stdout);
    let mut lines = said.lines();
    let info = client.ok("environment/info", json!({}));
    let own = server.cwd();
    assert_eq!(lines.next().map(std::path::Path::new), Some(own.as_path()));
    assert_eq!(info["cwd"], format!("file://{}", own.display()));
    // Variables that the shell sets itself.
    let of_the_shell = ["PWD", "SHLVL", "_", "OLDPWD"];
    for line in lines.clone() {
        let name = line.split('=').next().expect("split gives at least one part");
        assert!(CORE.contains(&name) || of_the_shell.contains(&name), "{line}");
    }
    assert!(lines.clone().any(|line| line == "LANG=C") && lines.clone().any(|line| line == "USER=somebody"), "{said}");
    // A given environment is complete, even an empty one.
    assert_eq!(env(&mut client, "empty", json!({"env": {}})), Vec::<String>::new());
}

#[test]
fn d11_3_5_variables_that_are_no_text_harm_nobody() {
    let mut lines = Lines::start_with("not-text", |command| {
        command.env(OsStr::from_bytes(b"NO_\xffTEXT"), "name").env("NO_TEXT", OsStr::from_bytes(b"\xff\xfe"))
    });
    lines.initialize();
    let policy = policy("all", json!({"includeOnly": ["NO_*"]}));
    let (output, ..) = lines.run(with(start_params("p", &["/usr/bin/env"]), json!({"env": {}, "envPolicy": policy})));
    let mut lines: Vec<&[u8]> = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    assert_eq!(lines, [b"NO_TEXT=\xff\xfe".as_slice(), b"NO_\xffTEXT=name"]);
}
