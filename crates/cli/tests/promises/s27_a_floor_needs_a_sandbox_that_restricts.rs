//! S27: a sandbox floor (`--sandbox required`, `--sandbox offline`) refuses a policy that restricts nothing, for processes and for file
//! methods. A policy restricts nothing if it is not `managed`, leaves files `unrestricted`, or makes `/` writable, even with exceptions. No
//! policy, refused or not, gives access to the server's token.

use super::{
    sandbox_helpers::{self, Ground, confined, path, sandbox, special, unrestricted},
    token_helpers,
};
use crate::prelude::*;
use testkit::kind_or_ok as kind;

/// Policies that restrict nothing, each with a name.
fn open_policies(ground: &Ground) -> Vec<(&'static str, Value)> {
    let of_type = |permissions: Value| json!({"permissions": permissions});
    let open = |entries: Vec<Value>| sandbox(entries, "restricted");
    let roots = json!({"workspaceRoots": ["/"]});
    vec![
        ("none", Value::Null),
        ("disabled", of_type(json!({"type": "disabled"}))),
        ("external", of_type(json!({"type": "external", "network": "restricted"}))),
        ("unrestricted", unrestricted()),
        ("root", open(vec![special("root", "write")])),
        ("root twice", open(vec![special("root", "read"), special("root", "write")])),
        ("its path", open(vec![path("/", "write")])),
        ("its path with dots", open(vec![path("/tmp/..", "write")])),
        ("a project root", with(open(vec![special("project_roots", "write")]), roots)),
        ("less a missing path", open(vec![special("root", "write"), path(ground.at("outside/no/such"), "deny")])),
        ("less one file", open(vec![special("root", "write"), path(ground.at("outside/file"), "deny")])),
        ("less one directory", open(vec![special("root", "write"), path(ground.at("outside"), "read")])),
        ("the older shape", of_type(json!({"file_system": {"write": ["/"]}}))),
    ]
}

/// Calls each method with this sandbox and returns the results.
fn tries(client: &mut Client, ground: &Ground, (id, sandbox): (&str, &Value)) -> Vec<(&'static str, String)> {
    let (file, dir) = (ground.at("work/inner"), ground.at("work"));
    let calls = [
        ("process/start", start_params(id, &["true"])),
        ("fs/readFile", json!({"path": file})),
        ("fs/getMetadata", json!({"path": file})),
        ("fs/readDirectory", json!({"path": dir})),
        ("fs/open", json!({"handleId": id, "path": file})),
        ("fs/glob", json!({"path": dir, "pattern": "*"})),
        ("fs/search", json!({"path": dir, "pattern": "inner"})),
        ("fs/watch", json!({"handleId": format!("w-{id}"), "path": dir})),
        ("fs/writeFile", json!({"path": ground.at("work/new"), "dataBase64": "eA=="})),
        ("fs/createDirectory", json!({"path": ground.at("work/dir")})),
    ];
    let answers = calls.map(|(method, params)| (method, kind(client.call(method, confined(params, sandbox)))));
    for handle in [id.to_owned(), format!("w-{id}")] {
        client.ok("fs/close", json!({"handleId": handle}));
    }
    answers.to_vec()
}

#[test]
fn a_policy_that_restricts_nothing_is_below_every_floor() {
    let (server, ground) = (TestServer::start(), Ground::new());
    let closed = sandbox_helpers::workspace(&ground.at("work"));
    let policies = open_policies(&ground);
    for floor in ["required", "offline"] {
        let mut client = token_helpers::new_client(&server, floor, &["--sandbox", floor]);
        for (name, policy) in &policies {
            // `null` means no sandbox.
            for (method, answer) in tries(&mut client, &ground, (name, policy)) {
                assert_eq!(answer, "forbidden", "{floor}, {name}: {method}");
            }
        }
        for (method, answer) in tries(&mut client, &ground, ("closed", &closed)) {
            assert_eq!(answer, "ok", "{floor}: {method}");
        }
    }
    // Without a floor the principal may choose these policies.
    let mut client = token_helpers::new_client(&server, "free", &[]);
    for (name, policy) in &policies {
        assert_eq!(tries(&mut client, &ground, (name, policy))[1].1, "ok", "{name}");
    }
}

#[test]
fn no_policy_leads_to_the_token() {
    let (server, ground) = (TestServer::start(), Ground::new());
    let (token, table) = (server.state_dir().join("token"), server.state_dir().join("tokens.toml"));
    let mut policies = open_policies(&ground);
    let link = ground.at("to-root");
    symlink("/", &link).expect("link");
    let entries = [
        ("a link to the root", vec![path(&link, "write")]),
        ("all but the root", vec![sandbox_helpers::pattern("/*", "write")]),
        ("reading", vec![special("root", "read")]),
        ("the state directory", vec![path(server.state_dir(), "write")]),
        ("the token", vec![path(&token, "read"), path(&table, "write")]),
        ("around it", vec![path(server.dir(), "write")]),
    ];
    policies.extend(entries.map(|(name, entries)| (name, sandbox(entries, "restricted"))));
    for (floor, flags) in [("required", ["--sandbox", "required"].as_slice()), ("none", &[])] {
        let mut client = token_helpers::new_client(&server, &format!("f-{floor}"), flags);
        let before = std::fs::read_to_string(&table).expect("the table is there");
        for (name, policy) in &policies {
            let entry = encode_base64(b"[[tokens]]\nname = \"me\"\n");
            let stolen = ground.at("work/stolen");
            for (method, params) in [
                ("fs/readFile", json!({"path": token})),
                ("fs/open", json!({"handleId": "h", "path": token})),
                ("fs/writeFile", json!({"path": table, "dataBase64": entry})),
                ("fs/writeFile", json!({"path": table, "dataBase64": entry, "append": true})),
                ("fs/remove", json!({"path": table, "force": false})),
                ("fs/copy", json!({"sourcePath": token, "destinationPath": stolen, "recursive": false})),
            ] {
                let answer = client.call(method, confined(params, policy));
                answer.expect_err(&format!("{floor}, {name}: {method}"));
            }
        }
        assert_eq!(std::fs::read_to_string(&table).expect("the table is there"), before, "{floor}");
        assert!(!ground.at("work/stolen").exists(), "{floor}");
        // A process without a sandbox is inside the trust boundary; a process in any sandbox is not.
        for (name, policy) in policies.iter().filter(|(_, policy)| policy["permissions"]["type"] == "managed") {
            let id = format!("cat {name}");
            let params = confined(start_params(&id, &["cat", &token.display().to_string()]), policy);
            if client.call("process/start", params).is_ok() {
                let said = client.collect(&id).stdout;
                assert!(said.is_empty(), "{floor}, {name}: {}", text(&said));
            }
        }
    }
}
