//! Help texts with examples and exit codes, completions, manual pages, the schema and wrong command lines, and that none of these leaves a
//! process behind.

use crate::{commands::COMMANDS, prelude::*};

#[test]
fn every_command_has_examples_and_exit_codes() {
    let home = Home::new();
    for command in COMMANDS.split(' ') {
        let help = home.ok(&[command, "--help"]);
        assert!(help.contains("Example") && help.contains("Exit codes"), "{command}: {help}");
        assert_eq!(home.ok(&["help", command]), help);
    }
    for command in ["list", "status", "call"] {
        let help = home.ok(&["mcp", command, "--help"]);
        assert!(help.contains("Example") && help.contains("Exit codes"), "{command}: {help}");
    }
    assert!(home.ok(&["attach", "--help"]).contains("Ctrl-] twice"));
    assert!(home.ok(&["--help"]).contains("255"));
}

#[test]
fn completions_are_scripts_of_their_shells() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = home.ok(&["completions", shell]);
        // The offered candidates are tested in `completion`.
        assert!(script.contains("EXEC_SERVER_COMPLETE") && script.contains("exec-server"), "{shell}");
    }
    let mut check = Command::new("bash");
    check.arg("-n").stdout(Stdio::piped()).stderr(Stdio::piped());
    let checked = finish_with_input(check, home.ok(&["completions", "bash"]).as_bytes());
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert_eq!(home.run(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn there_are_manual_pages_for_the_program_and_its_commands() {
    let home = Home::new();
    assert!(home.ok(&["man"]).contains(".TH exec-server 1"));
    let page = home.ok(&["man", "run"]);
    assert!(page.contains(".TH exec-server-run 1") && page.contains("idle\\-timeout"), "{page}");
    assert_eq!(home.run(&["man", "nothing"]).status.code(), Some(255));
}

#[test]
fn a_wrong_command_line_has_its_own_exit_code() {
    let home = Home::new();
    for args in [
        &["run"][..],
        &["run", "--timeout", "5x", "--", "true"],
        &["run", "--json", "--", "true"],
        &["run", "--env", "=x", "--", "true"],
        &["kill"],
        &["kill", "-s", "NOPE", "x"],
        &["kill", "-s", "INT", "--grace", "1s", "x"],
        &["ps", "--tls-cert", "x"],
        &["logs", "--since", "-1", "x"],
        &["wait"],
        &["no-such-command"],
    ] {
        let output = home.run(args);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{args:?}");
        assert!(text(&output.stderr).contains("error:"), "{args:?}");
    }
}

#[test]
fn a_list_ends_quietly_with_its_reader() {
    let home = Home::new();
    // Together this is more than a pipe holds, so the write blocks. The listing contains 32 KiB of each command line.
    let long = "x".repeat(100_000);
    for name in ["job-1", "job-2", "job-3", "job-4"] {
        home.ok(&["run", "-d", "--name", name, "--", "sh", "-c", "exec sleep 1000", &long]);
    }
    assert_ends_with_its_reader(home.command(&["ps", "--json"]), "job");
}

fn run(args: &[&str]) -> Output {
    Command::new(testkit::binary()).args(args).stdin(Stdio::null()).output().expect("run exec-server")
}

#[test]
fn help_has_examples_and_exit_codes() {
    for args in [&["--help"][..], &["run", "--help"]] {
        let output = run(args);
        let said = text(&output.stdout);
        assert!(output.status.success() && said.contains("Examples:") && said.contains("Exit codes:"), "{said}");
    }
    let output = run(&[]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(text(&output.stderr).contains("Usage:"));
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
fn wrong_flags_are_refused_before_anything_is_created() {
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
        let mut command = Command::new(testkit::binary());
        for variable in ["HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
            command.env(variable, dir.path());
        }
        let output = command.args(args).stdin(Stdio::null()).output().expect("run exec-server");
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
