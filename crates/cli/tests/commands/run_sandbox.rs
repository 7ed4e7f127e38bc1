//! `run --sandbox`: the access that the flags grant, denied access, and the messages for the user.

use crate::prelude::*;

/// A working directory for the program, with a subdirectory to write in, and a secret beside it.
fn tree() -> TempDir {
    let dir = tempfile::Builder::new().prefix("exec-server-sandbox-").tempdir().expect("make a directory");
    for name in ["work", "work/out", "secret"] {
        fs::create_dir(dir.path().join(name)).expect("make a directory");
    }
    fs::write(dir.path().join("work/input"), "input\n").expect("write a file");
    fs::write(dir.path().join("secret/file"), "secret\n").expect("write a file");
    dir
}

/// Runs a script in the sandbox; returns stdout, stderr and the exit code.
fn run(mut command: Command, flags: &[&str], script: &str) -> (String, String, Option<i32>) {
    command.args(flags).args(["--", "/bin/sh", "-c", script]);
    outcome(command)
}

fn local(home: &Home, dir: &Path) -> Command {
    let mut command = home.command(&["run"]);
    command.current_dir(dir.join("work"));
    command
}

const TRY_EVERYTHING: &str = "cat input; echo made >out/made && cat out/made; \
    { echo no >here; } 2>/dev/null || echo no writing here; cat ../secret/file 2>/dev/null || echo no secret";

#[test]
fn a_confined_program_reaches_only_what_was_granted_here_and_on_a_server() {
    let (home, dir) = (Home::new(), tree());
    let server = TestServer::start();
    let work = dir.path().join("work").canonicalize().expect("it is there");
    let work = work.to_str().expect("text");
    let mut remote = home.command(&["run", "--cwd", work]);
    remote.env("EXEC_SERVER_URL", server.url());
    for command in [local(&home, dir.path()), remote] {
        let (stdout, stderr, code) = run(command, &["--sandbox", "--write", "out"], TRY_EVERYTHING);
        assert_eq!((stdout.as_str(), code), ("input\nmade\nno writing here\nno secret\n", Some(0)), "{stderr}");
        let report =
            format!("exec-server: sandbox: read system directories and `{work}`; write `{work}/out`; network on\n");
        assert_eq!(stderr, report);
        fs::remove_file(dir.path().join("work/out/made")).expect("it was made");
    }
}

#[test]
fn a_sandbox_without_network_cannot_connect() {
    let (home, dir) = (Home::new(), tree());
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("an address").port();
    let script = format!("exec /bin/bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected' 2>/dev/null");
    let (stdout, stderr, code) = run(local(&home, dir.path()), &["--sandbox"], &script);
    assert_eq!((stdout.as_str(), code), ("connected\n", Some(0)), "{stderr}");
    let (stdout, stderr, code) = run(local(&home, dir.path()), &["--sandbox", "--no-network"], &script);
    assert_eq!((stdout.as_str(), code), ("", Some(1)));
    assert!(stderr.contains("; network off\n"), "{stderr}");
}

#[test]
fn a_denied_access_of_a_sandboxed_program_is_explained() {
    let (home, dir) = (Home::new(), tree());
    let (_, stderr, code) = run(local(&home, dir.path()), &["--sandbox"], "echo no >here");
    assert_ne!(code, Some(0));
    assert!(stderr.contains("`--read DIR` and `--write DIR` allow more"), "{stderr}");
}

#[test]
fn a_detached_program_is_confined_too() {
    let (home, dir) = (Home::new(), tree());
    let flags = ["-d", "--name", "boxed", "--sandbox", "--write", "."];
    let (stdout, stderr, code) = run(local(&home, dir.path()), &flags, "echo made >here");
    assert_eq!((stdout.as_str(), code), ("boxed\n", Some(0)), "{stderr}");
    assert!(stderr.contains("exec-server: sandbox: read system directories; write `"), "{stderr}");
    assert!(home.run(&["wait", "boxed"]).status.success());
    assert_eq!(fs::read_to_string(dir.path().join("work/here")).expect("it was written"), "made\n");
}

#[test]
fn the_flags_of_a_sandbox_need_the_sandbox() {
    let home = Home::new();
    for flags in [&["--read", "/"][..], &["--write", "/"], &["--no-network"]] {
        let (_, stderr, code) = run(home.command(&["run"]), flags, "true");
        assert_eq!(code, Some(2));
        assert!(stderr.contains("--sandbox"), "{stderr}");
    }
}
