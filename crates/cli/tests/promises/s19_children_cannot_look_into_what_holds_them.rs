//! S19: processes of the same user cannot inspect server, spawner and holders. A child of the same user without a sandbox is still inside
//! the trust boundary: it can read the token file. With `--run-as` the child is another user, and cannot read that file or the memory of
//! server or holder, nor connect to the holder's socket.

use crate::{prelude::*, promises::host_helpers::family};

#[test]
fn server_spawner_and_holder_belong_to_root_in_proc_whoever_runs_them() {
    let server = TestServer::builder().run_by_nobody().start();
    let (mut client, _) = server.modern_client();
    client.ok("process/start", sh("p", "echo up; exec sleep 1000"));
    client.wait_output("p", "up\n");
    let owner = |pid: u32, file: &str| fs::metadata(format!("/proc/{pid}/{file}")).expect("look at it").uid();
    for pid in family(&server) {
        assert_eq!((owner(pid, "mem"), owner(pid, "environ")), (0, 0), "{pid} can be looked into");
    }
    // The same check on the child shows that it can detect access.
    let child = client.pid_of("p");
    assert_eq!((owner(child, "mem"), owner(child, "environ")), (NOBODY, NOBODY));
    for pid in family(&server) {
        let id = format!("look-{pid}");
        let script = format!(
            "id -u; for f in mem environ maps; do (exec 3</proc/{pid}/$f) 2>/dev/null && head -c1 /proc/{pid}/$f && echo open; done; echo done"
        );
        assert_eq!(client.script(&id, &script), format!("{NOBODY}\ndone"), "{pid}");
    }
}

fn token_file(server: &TestServer) -> String {
    server.state_dir().join("token").display().to_string()
}

#[test]
fn a_child_of_another_user_reads_neither_token_nor_memory_and_reaches_no_holder() {
    let server = TestServer::builder().args(["--run-as", "nobody"]).start();
    server.open_dir();
    let (mut client, _) = server.modern_client();
    let (token, state) = (token_file(&server), server.state_dir().display().to_string());
    assert_eq!(client.script("id", "id -u; id -g; id -G"), format!("{NOBODY}\n{NOBODY}\n{NOBODY}"));
    let attempts = format!(
        "cat {token}; ls {state}; ls {state}/sessions; cat {state}/sessions/*/secret; (: > {state}/x); echo done"
    );
    let ended = client.run_params(sh("files", &attempts));
    assert_eq!(ended.text(), "done\n");
    assert!(text(&ended.stderr).contains("Permission denied"));
    for pid in family(&server) {
        let script = format!(
            "for f in mem environ fd/0; do (exec 3</proc/{pid}/$f) 2>/dev/null && echo open $f; done; kill -0 {pid} 2>/dev/null && echo signalled; echo done"
        );
        assert_eq!(client.script(&format!("look-{pid}"), &script), "done", "{pid}");
    }
    // Without `--run-as` the child has the server's own user, which is inside the trust boundary.
    let server = TestServer::start();
    let (mut client, _) = server.modern_client();
    assert_eq!(client.script("token", &format!("cat {}", token_file(&server))), server.token());
}

#[test]
fn a_child_of_another_user_lives_as_that_user() {
    let server = TestServer::builder().args(["--run-as", "nobody"]).start();
    server.open_dir();
    let (mut client, _) = server.modern_client();
    // The streams belong to the child's user, so the child may open them again.
    assert_eq!(client.script("pipes", "echo one > /dev/stdout; echo two > /dev/stdout"), "one\ntwo");
    let script = "stat -c %u $(tty); echo again > $(tty); stty size; trap 'exit 9' TERM; echo up; sleep 1000 & wait";
    client.ok("process/start", tty("tty", script));
    let said = client.wait_output("tty", "up");
    assert!(said.starts_with(&format!("{NOBODY}\r\nagain\r\n24 80")), "{said}");
    client.ok("process/terminate", json!({"processId": "tty", "graceMs": 10000}));
    assert_eq!(client.collect("tty").code(), 9, "it was asked and answered");
    client.ok("process/start", sh("stubborn", "trap '' TERM; echo up; while :; do sleep 1; done"));
    client.wait_output("stubborn", "up\n");
    client.ok("process/terminate", json!({"processId": "stubborn"}));
    assert_eq!(client.collect("stubborn").exited["signal"], "SIGKILL");
    environment_is_its_own(&mut client);
    // A directory or program that the user may not enter or execute is refused with a specific error.
    let private = server.dir().join("private");
    fs::create_dir(&private).expect("make a directory");
    set_mode(&private, 0o700);
    let params = with(sh("cwd", "pwd"), json!({"cwd": private}));
    assert_eq!(client.fails("process/start", params).kind(), "permissionDenied", "it may not enter");
    let script = private.join("script");
    fs::write(&script, "#!/bin/sh\n").expect("write a script");
    let params = start_params("program", &[&script.display().to_string()]);
    assert_eq!(client.fails("process/start", params).kind(), "permissionDenied", "it may not execute");
}

fn environment_is_its_own(client: &mut Client) {
    let entry = fs::read_to_string("/etc/passwd").expect("read the users");
    let entry = entry.lines().find(|line| line.starts_with("nobody:")).expect("nobody has an entry").to_owned();
    let fields: Vec<&str> = entry.split(':').collect();
    let mut params = sh("env", "echo \"$HOME:$USER:$LOGNAME:$SHELL:${XDG_RUNTIME_DIR-none}\"");
    params["envPolicy"] = with(inherit_all(), json!({"ignoreDefaultExcludes": false}));
    let got = client.run_params(params).text();
    assert_eq!(got.trim_end(), format!("{}:nobody:nobody:{}:none", fields[5], fields[6]));
}

#[test]
fn only_root_can_give_children_another_user() {
    let dir = tempfile::tempdir().expect("a directory");
    let (code, said) = TestServer::builder().run_by_nobody().args(["--run-as", "root"]).refusal_text(dir.path());
    assert!(code == Some(255) && said.contains("--run-as"), "{said}");
    let dir = tempfile::tempdir().expect("a directory");
    let (_, said) = TestServer::builder().args(["--run-as", "no-such-user"]).refusal_text(dir.path());
    assert!(said.contains("no user `no-such-user`"), "{said}");
}
