//! Runs the examples of the client library as a reader would: the real programs, with and without a server. `cargo test --workspace` builds
//! them beside the tests; a missing example is a failure, not a skipped test.

use crate::prelude::*;

/// The path of an example program, built with this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("our own path");
    let target = test.ancestors().nth(2).expect("tests lie two levels below their profile's folder");
    let path = target.join("examples").join(name);
    assert!(
        path.exists(),
        "`{}` is not there: `cargo test --workspace` builds it, as does `cargo build -p exec-server-client --examples`",
        path.display()
    );
    path
}

/// An example started by a user with an empty home, with or without a server.
fn command(name: &str, home: &TempDir, url: Option<&str>) -> Command {
    let mut command = Command::new(example(name));
    command
        .env_remove("CODEX_EXEC_SERVER_URL")
        .env_remove("EXEC_SERVER_TOKEN")
        .env("EXEC_SERVER_URL", url.unwrap_or_default())
        .env("HOME", home.path())
        .env("XDG_CONFIG_HOME", home.path())
        .env("XDG_RUNTIME_DIR", home.path())
        .env("TMPDIR", home.path())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    command
}

fn home() -> TempDir {
    tempfile::Builder::new().prefix("exec-server-test-").tempdir().expect("make a home")
}

/// Runs an example and checks its last line, and that it leaves no file and no process on the server.
#[track_caller]
fn check_last_line(name: &str, last: &str) {
    let (server, home) = (TestServer::start(), home());
    let (_, said, code) = outcome(command(name, &home, Some(server.url())));
    assert_eq!(code, Some(0), "{name}: {said}");
    assert_eq!(said.lines().last(), Some(last), "{said}");
    assert_eq!(std::fs::read_dir(home.path()).expect("read the home").count(), 0, "{name} left a file");
    assert!(server.client().list_all().is_empty(), "{name} left a process");
}

#[test]
fn the_agent_loses_nothing_through_a_cut_and_its_own_death() {
    let last = "agent: 30 steps in order through a cut and a death; 1 answer repeated and skipped, nothing lost";
    check_last_line("agent", last);
}

#[test]
fn every_reader_sees_the_same() {
    check_last_line("two_readers", "two_readers: every reader has the same 100000 lines");
}

#[test]
fn a_command_runs_on_a_server_and_inside_the_program_alike() {
    let (server, home) = (TestServer::start(), home());
    for url in [Some(server.url()), None] {
        let mut run = command("run_command", &home, url);
        run.args(["sh", "-c", "cat; printf err >&2; exit 3"]);
        let output = finish_with_input(run, b"in\0\xff");
        assert_eq!((output.stdout.as_slice(), text(&output.stderr).as_str()), (&b"in\0\xff"[..], "err"), "{url:?}");
        assert_eq!(output.status.code(), Some(3), "{url:?}");
        let mut run = command("run_command", &home, url);
        run.arg("no-such-program");
        let (_, said, code) = outcome(run);
        assert_eq!(code, Some(255), "{url:?}");
        assert!(said.contains("no-such-program"), "{url:?}: {said}");
    }
    assert_eq!(std::fs::read_dir(home.path()).expect("read the home").count(), 0, "a private directory is left");
}
