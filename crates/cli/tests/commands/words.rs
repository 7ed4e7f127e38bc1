//! Help texts, schema and wrong flags, and that none of these leaves a process behind.

use std::process::{Command, Output, Stdio};

fn run(args: &[&str]) -> Output {
    Command::new(testkit::binary()).args(args).stdin(Stdio::null()).output().expect("run exec-server")
}

#[test]
fn help_has_examples_and_exit_codes() {
    for args in [&["--help"][..], &["run", "--help"]] {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("Examples:") && said.contains("Exit codes:"), "{said}");
    }
    let output = run(&[]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage:"));
}

#[test]
fn the_schema_is_json_and_names_every_family() {
    let output = run(&["schema"]);
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = schema.to_string();
    for name in ["initialize", "process/start", "process/output", "command/exec", "sessionExpired"] {
        assert!(text.contains(name), "{name}");
    }
}

#[test]
fn wrong_flags_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().expect("make a directory");
    for args in [
        &["serve", "--concurrent-requests", "0"][..],
        &["serve", "--concurrent-requests", "many"],
        &["serve", "--session-ttl", "soon"],
        &["serve", "--auth", "maybe"],
        &["serve", "--allow-host", "http://x"],
        &["--listen"],
        &["--no-such-flag"],
        &["no-such-command"],
        &["run"],
    ] {
        let output = Command::new(testkit::binary())
            .args(args)
            .env("HOME", dir.path())
            .env("XDG_STATE_HOME", dir.path())
            .env("XDG_RUNTIME_DIR", dir.path())
            .stdin(Stdio::null())
            .output()
            .expect("run exec-server");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("read the directory").count(), 0);
}

#[test]
fn the_spawner_ends_with_the_program() {
    let mark = format!("words-{}.test", std::process::id());
    run(&["serve", "--allow-host", &mark, "--auth", "maybe"]);
    testkit::wait_for("end of the spawner", || testkit::marked(&mark).is_empty());
}
