//! S18: a process in a sandbox can do what its policy grants and nothing else, whichever user runs the server. The same process without the
//! sandbox can do all of it, so each refusal comes from the sandbox. The answer reports what was applied. If a policy cannot be enforced,
//! nothing starts, also if Landlock is not available.

use crate::{
    prelude::*,
    promises::{
        host_helpers::compile,
        sandbox_helpers::{Ground, USERS, path, pattern, said_in, special, stage, unrestricted, workspace},
    },
};

/// A script that runs each line and prints its number and whether it worked.
fn tries(lines: &[String]) -> String {
    let tried = lines
        .iter()
        .enumerate()
        .map(|(at, line)| format!("if ( {line} ) >/dev/null 2>&1; then echo {at} yes; else echo {at} no; fi\n"));
    tried.collect()
}

/// The output of `tries` for these results.
fn answers(works: &[bool]) -> String {
    let lines = works.iter().enumerate().map(|(at, works)| format!("{at} {}", if *works { "yes" } else { "no" }));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_process_writes_only_where_it_may_and_reaches_neither_network_nor_token() {
    for user in USERS {
        let (server, mut client, ground) = stage(user);
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let probe = compile(&ground.at(""), "dial", DIAL, &[]);
        let (work, outside) = (ground.text("work"), ground.text("outside"));
        let port = listener.local_addr().expect("its address").port();
        let (state, pid) = (server.state_dir().display().to_string(), server.pid());
        let lines = [
            (true, format!("cat /etc/passwd {work}/inner {outside}/file")),
            (true, format!("echo x > {work}/new && mkdir {work}/sub/deep && mv {work}/new {work}/sub/deep/moved")),
            (true, format!("cat {work}/.git/config")),
            (true, "cat /proc/self/status && echo > /dev/null && head -c1 /dev/urandom".to_owned()),
            (false, format!("echo x > {outside}/new")),
            (false, format!("echo x >> {outside}/file")),
            (false, format!("chmod 700 {outside}/file")),
            (false, format!("ln {outside}/file {work}/linked")),
            (false, format!("rm {outside}/file")),
            (false, format!("echo x > {work}/.git/config")),
            (false, format!("touch {work}/.git/hooks/pre-commit")),
            (false, format!("mv {work}/.git {work}/gone")),
            (false, format!("cat {state}/token")),
            (false, format!("test -n \"$(ls {state})\"")),
            (false, format!("{probe} {port}")),
            (false, format!("kill -0 {pid}")),
        ];
        let script = tries(&lines.iter().map(|(_, line)| line.clone()).collect::<Vec<_>>());
        let expected: Vec<bool> = lines.iter().map(|(works, _)| *works).collect();
        let policy = workspace(&ground.at("work"));
        assert_eq!(said_in(&mut client, "in", &script, Some(&policy)), answers(&expected), "{user}");
        assert_eq!(fs::read_to_string(ground.at("outside/file")).expect("it is there"), "outer");
        // Once more with the cached view, and on a terminal.
        fs::remove_dir_all(ground.at("work/sub/deep")).expect("tidy up");
        let shown = client.run_params(confined(tty("tty", &script), &policy)).text().replace("\r\n", "\n");
        assert_eq!(shown.trim_end(), answers(&expected), "{user}");
        fs::remove_dir_all(ground.at("work/sub/deep")).expect("tidy up");
        // Without the sandbox the same user can do all of it.
        assert_eq!(said_in(&mut client, "out", &script, None), answers(&[true; 16]), "{user}");
        assert!(!ground.at("outside/file").exists());
    }
}

/// Connects to a port of this host.
const DIAL: &str = r#"
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>
int main(int argc, char **argv) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    return s < 0 || connect(s, (struct sockaddr *) &to, sizeof to) != 0;
}

"#;

#[test]
fn each_shape_of_policy_is_enforced() {
    for user in USERS {
        let (_server, mut client, ground) = stage(user);
        let (work, outside) = (ground.at("work"), ground.at("outside"));
        let lines = [
            format!("cat {}/inner", work.display()),
            format!("cat {}/a.env", work.display()),
            format!("touch {}/inner", work.display()),
            format!("cat {}/file", outside.display()),
            format!("touch {}/sub/x", work.display()),
            format!("cat {}/.git/config", work.display()),
            "cat /etc/passwd".to_owned(),
        ];
        let script = tries(&lines);
        let minimal = || special("minimal", "read");
        let everything = || special("root", "read");
        let sub = || path(work.join("sub"), "write");
        let offline = |entries: Vec<Value>| sandbox(entries, "restricted");
        let roots = |entries: Vec<Value>, cwd: Value, roots: Value| {
            with(offline(entries), json!({"cwd": cwd, "workspaceRoots": roots}))
        };
        let uri = json!(format!("file://{}", work.display()));
        let no_repository = path(work.join(".git"), "deny");
        let all_but_env = vec![special("root", "write"), pattern("**/*.env", "deny")];
        let project = || vec![minimal(), special("project_roots", "write")];
        let directory = vec![minimal(), special("current_working_directory", "read")];
        let cases = [
            ("read-only", offline(vec![minimal(), path(&work, "read")]), [1, 1, 0, 0, 0, 1, 1]),
            ("write", offline(vec![minimal(), path(&work, "write")]), [1, 1, 1, 0, 1, 1, 1]),
            ("nested", sandbox(vec![minimal(), path(&work, "read"), sub()], "enabled"), [1, 1, 0, 0, 1, 1, 1]),
            (
                "denied inside",
                offline(vec![everything(), no_repository, path(&outside, "none")]),
                [1, 1, 0, 0, 0, 0, 1],
            ),
            ("open in denied", offline(vec![everything(), path(&work, "deny"), sub()]), [0, 0, 0, 1, 1, 0, 1]),
            ("pattern", roots(all_but_env, json!(work), Value::Null), [1, 0, 1, 1, 1, 1, 1]),
            ("roots", roots(project(), uri.clone(), json!([uri])), [1, 1, 1, 0, 1, 1, 1]),
            ("older roots", roots(directory, json!(work), Value::Null), [1, 1, 0, 0, 0, 1, 1]),
            ("no roots", roots(project(), uri.clone(), json!([])), [0, 0, 0, 0, 0, 0, 1]),
        ];
        for (name, policy, expected) in cases {
            let expected = answers(&expected.map(|works| works == 1));
            assert_eq!(said_in(&mut client, name, &script, Some(&policy)), expected, "{user}: {name}");
        }
    }
}

#[test]
fn the_answer_tells_what_was_applied_and_what_is_hidden_is_reported_as_denied() {
    let (_server, mut client, ground) = stage("root");
    let mut applied = |id: &str, policy: Value| {
        let answer = client.ok("process/start", confined(sh(id, "exit 0"), &policy));
        client.collect(id);
        answer["sandbox"].clone()
    };
    let minimal = sandbox(vec![special("minimal", "read"), path(ground.at("outside"), "write")], "restricted");
    assert_eq!(applied("minimal", minimal.clone()), json!({"fileSystem": "view", "network": "restricted"}));
    let whole = workspace(&ground.at("work"));
    assert_eq!(applied("view", whole), json!({"fileSystem": "view", "network": "restricted"}));
    let network = json!({"fileSystem": "unrestricted", "network": "restricted"});
    assert_eq!(applied("network", unrestricted()), network);
    assert_eq!(applied("none", json!({"permissions": {"type": "disabled"}})), Value::Null);
    let bare = sandbox(vec![special("minimal", "read")], "enabled");
    let in_work = with(sh("cwd", "exit 0"), json!({"cwd": ground.at("work")}));
    let program = start_params("program", &[&ground.text("work/inner")]);
    for params in [confined(in_work, &bare), confined(program, &minimal)] {
        assert_error(&client.fails("process/start", params), -32600, "sandboxDenied");
    }
}

#[test]
fn a_file_method_tells_the_sandbox_that_it_was_confined_by() {
    let (_server, mut client, ground) = stage("root");
    let (work, inner) = (ground.text("work"), ground.text("work/inner"));
    let options = json!({"maxDepth": 2, "maxDirectories": 10, "maxEntries": 10, "followDirectorySymlinks": false});
    let requests = [
        ("fs/readFile", json!({"path": inner})),
        ("fs/writeFile", json!({"path": inner, "dataBase64": "bmV3"})),
        ("fs/getMetadata", json!({"path": inner})),
        ("fs/setMetadata", json!({"path": inner, "mode": 0o600})),
        ("fs/canonicalize", json!({"path": inner})),
        ("fs/createDirectory", json!({"path": format!("{work}/made")})),
        ("fs/createSymlink", json!({"path": format!("{work}/link"), "target": "inner", "replace": true})),
        ("fs/readDirectory", json!({"path": work})),
        ("fs/walk", json!({"path": work, "options": options})),
        ("fs/copy", json!({"sourcePath": inner, "destinationPath": format!("{work}/copy"), "recursive": false})),
        ("fs/remove", json!({"path": format!("{work}/copy")})),
        ("fs/search", json!({"path": work, "pattern": "new"})),
        ("fs/glob", json!({"path": work, "pattern": "*"})),
        ("fs/open", json!({"path": inner, "handleId": "open"})),
        ("fs/create", json!({"path": format!("{work}/draft"), "handleId": "draft"})),
        ("fs/watch", json!({"path": work, "handleId": "watch"})),
    ];
    let told = |file_system: &str, network: &str| json!({"fileSystem": file_system, "network": network});
    for (sandbox, expected) in [
        (workspace(&ground.at("work")), told("view", "restricted")),
        (unrestricted(), told("unrestricted", "restricted")),
        (json!({"permissions": {"type": "disabled"}}), told("unrestricted", "enabled")),
        (Value::Null, Value::Null),
    ] {
        for (method, params) in &requests {
            let params = confined(params.clone(), &sandbox);
            let result = client.ok(method, params.clone());
            assert_eq!(result["sandbox"], expected, "{method} in {sandbox}");
            if *method == "fs/open" {
                let block = client.ok("fs/readBlock", json!({"handleId": "open", "offset": 0, "len": 8}));
                assert_eq!(block, json!({"chunk": "bmV3", "eof": true}), "in {sandbox}");
            }
            if let Some(handle) = params.get("handleId") {
                client.ok("fs/close", json!({"handleId": handle}));
            }
        }
    }
}

#[test]
fn a_process_that_failed_because_of_its_sandbox_is_told_apart_from_one_that_just_failed() {
    let (_server, mut client, ground) = stage("root");
    let outside = ground.text("outside");
    let refused = format!("echo x > {outside}/new");
    let seen = format!("{refused}; exit 0");
    let policy = workspace(&ground.at("work"));
    for (id, script, is_confined, tty, is_denied) in [
        ("write", refused.as_str(), true, false, true),
        ("terminal", &refused, true, true, true),
        ("went on", &seen, true, false, false),
        ("missing", &format!("cat {outside}/none"), true, false, false),
        ("failed", "echo wrong >&2; exit 3", true, false, false),
        ("free", "echo Permission denied >&2; exit 1", false, false, false),
    ] {
        let params = with(sh(id, script), json!({"tty": tty}));
        let exited = client.run_params(confined(params, is_confined.then_some(&policy))).exited;
        assert_eq!(exited["sandboxDenied"], is_denied, "{id}: {exited}");
        let read = client.ok("process/read", json!({"processId": id, "waitMs": 10_000}));
        assert_eq!(read["sandboxDenied"], is_denied, "{id}: {read}");
    }
    assert!(!ground.at("outside/new").exists());
}

#[test]
fn a_single_file_that_is_granted_is_written_in_place() {
    let (_server, mut client, ground) = stage("root");
    let (file, beside) = (ground.text("outside/file"), ground.text("outside/new"));
    let alone = sandbox(vec![path(&file, "write")], "restricted");
    let around = sandbox(vec![special("root", "read"), path(&file, "write")], "restricted");
    for (policy, text) in [(alone, "alone"), (around, "around")] {
        let data = |text: &str| encode_base64(text.as_bytes());
        let write = |path: &str| json!({"path": path, "dataBase64": data(text), "sandbox": policy});
        let written = client.ok("fs/writeFile", write(&file));
        assert_eq!((&written["atomic"], &written["size"]), (&json!(false), &json!(text.len())), "{written}");
        assert_eq!(fs::read_to_string(&file).expect("it is there"), text);
        let error = client.fails("fs/writeFile", write(&beside));
        assert_eq!(error.kind(), "sandboxDenied", "its directory is not granted: {error:?}");
        let shorter = client.ok("fs/writeFile", json!({"path": file, "dataBase64": data("x"), "sandbox": policy}));
        assert_eq!((&shorter["atomic"], &shorter["size"]), (&json!(false), &json!(1)), "{shorter}");
        let listed = fs::read_dir(ground.at("outside")).expect("list it").count();
        assert_eq!(listed, 1, "nothing is left beside it");
    }
    // If the directory is granted too, the write is atomic.
    let both = sandbox(vec![path(ground.at("outside"), "write"), path(&file, "write")], "restricted");
    let written = client.ok("fs/writeFile", json!({"path": file, "dataBase64": "eA==", "sandbox": both}));
    assert_eq!(written["atomic"], true, "{written}");
}

// A running program cannot be written, so it was replaced by rename. That removed the name and with it the mount that protects it.
#[test]
fn a_read_only_program_is_not_replaced_while_it_runs() {
    for user in USERS {
        let (_server, mut client, ground) = stage(user);
        let tool = ground.text("work/tool");
        // By another program: a child that another test forks meanwhile could inherit our fd for writing, and the start would fail with ETXTBSY.
        let copied = Command::new("cp").arg("/bin/sleep").arg(&tool).status().expect("run cp");
        assert!(copied.success());
        ground.open_to_all(tool.as_ref());
        client.ok("process/start", start_params("tool", &[&tool, "1000"]));
        let policy = sandbox(vec![path(ground.at("work"), "write"), path(&tool, "read")], "restricted");
        let write = |path: &str| json!({"path": path, "dataBase64": "eA==", "sandbox": policy});
        client.fails("fs/writeFile", write(&tool));
        let copy = json!({"sourcePath": ground.text("work/inner"), "destinationPath": tool, "recursive": false});
        client.fails("fs/copy", confined(copy, &policy));
        assert_eq!(fs::read(&tool).expect("read it"), fs::read("/bin/sleep").expect("read it"), "by {user}");
        // Everything beside it can be written, and without the sandbox it can be replaced.
        client.ok("fs/writeFile", write(&ground.text("work/inner")));
        client.ok("fs/writeFile", json!({"path": tool, "dataBase64": "eA=="}));
    }
}

#[test]
fn a_repository_that_does_not_exist_cannot_be_created_and_nothing_of_that_is_left() {
    for user in USERS {
        let (server, mut client, ground) = stage(user);
        let (outside, git) = (ground.at("outside"), ground.at("outside/.git"));
        let lines = [
            format!("mkdir {}", git.display()),
            format!("mkdir {0}/x && mv {0}/x {1}", outside.display(), git.display()),
            format!("echo gitdir: /tmp > {}", git.display()),
            format!("ln -s sub {}", git.display()),
            format!("echo x > {}/config", git.display()),
            format!("rmdir {0} || mv {0} {0}-gone", git.display()),
            format!("echo x > {}/.gitignore", outside.display()),
        ];
        let script = tries(&lines);
        let kept = answers(&[false, false, false, false, false, false, true]);
        let tidy = |name: &str| fs::remove_dir_all(ground.at("outside").join(name)).ok();
        let minimal = || special("minimal", "read");
        let named = |access: &str, skips: bool| {
            let mut entry = path(&git, access);
            if skips {
                entry["missing_path_behavior"] = json!("skip");
            }
            sandbox(vec![minimal(), path(&outside, "write"), entry], "restricted")
        };
        let unnamed = sandbox(vec![minimal(), path(&outside, "write")], "restricted");
        for (id, policy) in [("whole", workspace(&outside)), ("minimal", unnamed), ("read", named("read", false))] {
            assert_eq!(said_in(&mut client, id, &script, Some(&policy)), kept, "{user}: {id}");
            tidy("x");
        }
        // The placeholder is not a repository, and it is removed.
        wait_for("its place is free again", || !git.exists());
        for (id, policy) in [("write", named("write", false)), ("skip", named("read", true))] {
            let made = said_in(&mut client, id, &tries(&lines[..1]), Some(&policy));
            assert_eq!(made, answers(&[true]), "{user}: {id}");
            fs::remove_dir(&git).expect("it was made");
        }
        // Another process outside creates a repository in the meantime: it stays, and it is read-only in the sandbox.
        let mut params = piped("long", "read line; echo x > $GIT/config; echo $?");
        params["env"]["GIT"] = json!(git);
        client.ok("process/start", confined(params, &workspace(&outside)));
        fs::write(git.join("config"), "made").expect("it can be used outside");
        let line = encode_base64(b"go\n");
        client.ok("process/write", json!({"processId": "long", "chunk": line, "writeId": "w"}));
        assert_ne!(client.collect("long").text().trim_end(), "0", "{user}");
        assert_eq!(fs::read_to_string(git.join("config")).expect("it is there"), "made");
        // A server that exits removes it without waiting.
        assert_eq!(said_in(&mut client, "last", "exit 0", Some(&workspace(&ground.at("work/sub")))), "");
        assert!(ground.at("work/sub/.git").is_dir(), "{user}: it stands there yet");
        drop((client, server));
        assert!(!ground.at("work/sub/.git").exists(), "{user}");
    }
}

#[test]
fn the_placeholder_of_a_repository_is_removed_also_when_the_server_was_killed() {
    let mut server = TestServer::builder().keep_holders().start();
    let ground = Ground::new();
    let (mut client, session) = server.modern_client();
    let [done, running] = ["outside", "work/sub"].map(|dir| (ground.at(dir), ground.at(dir).join(".git")));
    assert_eq!(said_in(&mut client, "done", "exit 0", Some(&workspace(&done.0))), "");
    client.ok("process/start", confined(sh("running", "exec sleep 1000"), &workspace(&running.0)));
    assert!(done.1.is_dir() && running.1.is_dir());
    server.restart();
    // The placeholder is removed during the adoption, not at the next sandboxed start, and not while a process needs it.
    assert!(!done.1.exists(), "an unused placeholder is removed before the server serves");
    assert!(running.1.is_dir(), "its process runs");
    let mut client = server.resume(&session, json!({"capabilities": {"ack": true}}));
    client.ok("process/terminate", json!({"processId": "running"}));
    wait_for("its place is free again", || !running.1.exists());
    client.ok("session/end", json!({}));
}

#[track_caller]
fn refused(client: &mut Client, sandbox: &Value, code: i64, kind: &str) {
    assert_error(&client.fails("process/start", confined(sh("refused", "exit 0"), sandbox)), code, kind);
}

#[test]
fn a_policy_that_cannot_be_enforced_starts_nothing() {
    let (_server, mut client, ground) = stage("root");
    for entry in [pattern("*.env", "deny"), special("project_roots", "read")] {
        refused(&mut client, &sandbox(vec![entry], "restricted"), -32600, "sandboxNeedsCwd");
    }
    let unknown = json!({"path": {"type": "special", "value": {"kind": "unknown", "path": "later"}}, "access": "deny"});
    refused(&mut client, &sandbox(vec![unknown], "restricted"), -32602, "notEnforceable");
    std::os::unix::fs::symlink("/", ground.at("outside/.git")).expect("make a link");
    refused(&mut client, &workspace(&ground.at("outside")), -32602, "notEnforceable");
    let foreign = sandbox(vec![path("file:///C:/x", "read")], "restricted");
    refused(&mut client, &foreign, -32602, "invalidUri");
    // Policies with too many entries or patterns are refused, for files as for processes.
    let many = sandbox((0..2001).map(|n| path(format!("/{n}"), "read")).collect(), "restricted");
    let patterns = sandbox((0..65).map(|n| pattern(&format!("/{n}/*"), "deny")).collect(), "restricted");
    for (policy, limit) in [(many, "at most 2000 entries"), (patterns, "at most 64 patterns")] {
        refused(&mut client, &policy, -32602, "invalidParams");
        let error = client.fails("fs/getMetadata", json!({"path": ground.at("work"), "sandbox": policy}));
        assert_error(&error, -32602, "invalidParams");
        assert!(error.message.contains(limit), "{}", error.message);
    }
}

/// Runs a program with Landlock blocked by seccomp, as on a kernel without it.
const WITHOUT: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_landlock_create_ruleset, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {4, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 99;
    execv(argv[1], argv + 1);
    return 98;
}

"#;

#[test]
fn without_landlock_a_sandbox_is_an_error_and_never_a_silent_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let without = compile(dir.path(), "without", WITHOUT, &[]);
    let server = TestServer::builder().after(&format!("set -- \"$0\" \"$@\"; exec {without} \"$@\"")).start();
    let ground = Ground::new();
    let (mut client, _) = server.modern_client();
    for policy in [workspace(&ground.at("work")), sandbox(vec![special("minimal", "read")], "restricted")] {
        refused(&mut client, &policy, -32602, "notEnforceable");
    }
    assert_eq!(said_in(&mut client, "free", "echo free", None), "free");
}
