//! `kill`, `forget`, `prune` and `run --rm`: ending processes, waiting for them and forgetting them.

use crate::prelude::*;

/// A script that reacts to SIGTERM only once the file exists, so that the test decides when it ends.
fn stubborn(gate: &std::path::Path) -> String {
    format!(
        "exec 2>/dev/null; trap 'echo term; until test -e {}; do sleep 0.02; done; exit 7' TERM; echo ready; while :; do sleep 0.02; done",
        gate.display()
    )
}

#[test]
fn kill_returns_when_the_process_has_ended() {
    let (home, gate) = stubborn_job();
    let mut kill = spawn(&mut home.command(&["kill", "--grace", "10m", "job"]));
    wait_for("it to hear the signal", || home.ok(&["logs", "job"]).contains("term"));
    assert!(kill.try_wait().expect("look at it").is_none(), "it waits");
    std::fs::write(&gate, "").expect("open the gate");
    assert_eq!(end_of(&mut kill).code(), Some(0));
    let listed = home.listed("job").expect("listed");
    assert_eq!((&listed["closed"], &listed["exit"]["exitCode"]), (&json!(true), &json!(7)));
}

/// A user with a stubborn process `job` that has begun, and the file that lets it end.
fn stubborn_job() -> (Home, std::path::PathBuf) {
    let home = Home::new();
    let gate = home.path().join("gate");
    start_stubborn(&home, "job", &gate);
    (home, gate)
}

fn start_stubborn(home: &Home, name: &str, gate: &std::path::Path) {
    home.ok(&["run", "-d", "--name", name, "--", "sh", "-c", &stubborn(gate)]);
    wait_for("it to begin", || home.ok(&["logs", name]).starts_with("ready"));
}

#[test]
fn kill_without_waiting_returns_at_once() {
    let (home, gate) = stubborn_job();
    home.ok(&["kill", "--no-wait", "--grace", "10m", "job"]);
    wait_for("it to hear the signal", || home.ok(&["logs", "job"]).contains("term"));
    assert_eq!(home.listed("job").expect("listed")["exited"], false);
    // `kill` does not wait after a signal that the program may handle.
    home.ok(&["kill", "-s", "WINCH", "job"]);
    std::fs::write(&gate, "").expect("open the gate");
    assert_eq!(home.run(&["wait", "job"]).status.code(), Some(7));
}

#[test]
fn kill_takes_signals_in_the_usual_forms() {
    let home = Home::new();
    for (flag, code) in [("-9", 137), ("-KILL", 137), ("-SIGKILL", 137), ("-HUP", 129)] {
        home.ok(&["run", "-d", "--name", "job", "--", "sleep", "1000"]);
        home.ok(&["kill", flag, "job"]);
        if code == 137 {
            assert_eq!(home.listed("job").expect("listed")["exited"], true, "{flag}: it was waited for");
        }
        assert_eq!(home.run(&["wait", "job"]).status.code(), Some(code), "{flag}");
        home.ok(&["forget", "job"]);
    }
    let wrong = home.run(&["kill", "-99", "job"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn kill_signals_all_before_it_waits_for_the_first() {
    let home = Home::new();
    let gate = home.path().join("gate");
    for name in ["one", "two"] {
        start_stubborn(&home, name, &gate);
    }
    let mut kill = spawn(&mut home.command(&["kill", "--grace", "10m", "one", "two"]));
    wait_for("both to hear it", || ["one", "two"].iter().all(|name| home.ok(&["logs", name]).contains("term")));
    std::fs::write(&gate, "").expect("open the gate");
    assert_eq!(end_of(&mut kill).code(), Some(0));
}

#[test]
fn forget_with_force_ends_the_process_first() {
    let home = Home::new();
    home.ok(&["run", "-d", "--name", "job", "--", "sleep", "1000"]);
    let pid = home.listed("job").expect("listed")["pid"].as_u64().expect("a number");
    assert_eq!(home.run(&["forget", "job"]).status.code(), Some(1));
    home.ok(&["forget", "-f", "job"]);
    wait_gone("the process", &[u32::try_from(pid).expect("a pid")].into());
    assert_eq!(home.json(&["ps", "--json"]), json!([]));
}

#[test]
fn all_ended_processes_are_forgotten_and_running_ones_stay() {
    let home = Home::new();
    for name in ["one", "two", "three"] {
        home.ok(&["run", "-d", "--name", name, "--", "echo", name]);
        assert_eq!(home.run(&["wait", name]).status.code(), Some(0));
    }
    home.ok(&["run", "-d", "--name", "runs", "--", "sleep", "1000"]);
    let pruned = home.run(&["prune", "--older", "1h"]);
    assert_eq!((pruned.status.code(), text(&pruned.stdout).as_str()), (Some(0), ""));
    home.ok(&["forget", "one"]);
    let (out, said, code) = outcome(home.command(&["prune"]));
    assert_eq!((out.as_str(), code), ("two\nthree\n", Some(0)));
    assert_eq!(said, "exec-server: forgot 2 processes, freed 10 B of output\n");
    home.ok(&["run", "-d", "--name", "four", "--", "echo", "four"]);
    assert_eq!(home.run(&["wait", "four"]).status.code(), Some(0));
    assert_eq!(home.json(&["prune", "--json"]), json!({"forgotten": ["four"], "freedBytes": 5}));
    home.ok(&["run", "-d", "--name", "five", "--", "true"]);
    assert_eq!(home.run(&["wait", "five"]).status.code(), Some(0));
    home.ok(&["forget", "--ended"]);
    assert_eq!(home.ok(&["ps", "-q"]), "runs");
    assert_eq!(home.run(&["forget", "--ended", "runs"]).status.code(), Some(2));
}

#[test]
fn prune_asks_the_person_at_a_terminal() {
    let home = Home::new();
    home.ok(&["run", "-d", "--name", "job", "--", "true"]);
    assert_eq!(home.run(&["wait", "job"]).status.code(), Some(0));
    for (answer, code, left) in [(b"n\r", 1, "job"), (b"y\r", 0, "")] {
        let (mut terminal, mut prune) = Terminal::with(24, 80, home.command(&["prune"]));
        terminal.see("Forget 1 ended process and all output? [y/N] ");
        terminal.keys(answer);
        assert_eq!(end_of(&mut prune).code(), Some(code));
        assert_eq!(text(&home.run(&["ps", "-q"]).stdout).trim_end(), left);
    }
}

#[test]
fn run_with_rm_leaves_nothing_when_it_has_ended() {
    let home = Home::new();
    let gate = home.path().join("gate");
    let program = format!("echo one; until test -e {}; do sleep 0.02; done; echo two; exit 3", gate.display());
    home.ok(&["run", "-d", "--rm", "--name", "job", "--", "sh", "-c", &program]);
    let mut follow = spawn(&mut home.command(&["logs", "-f", "job"]));
    let mut stdout = follow.stdout.take().expect("stdout is a pipe");
    read_until(&mut stdout, "one\n");
    let mut wait = spawn(&mut home.command(&["wait", "job"]));
    // This also works after the server that started the process has died.
    let server = home.server().expect("it runs");
    signal(server, Signal::KILL);
    wait_gone("the server", &[server].into());
    assert_eq!(home.listed("job").expect("it runs on")["exited"], false);
    std::fs::write(&gate, "").expect("open the gate");
    read_until(&mut stdout, "two\n");
    assert_eq!(end_of(&mut follow).code(), Some(0), "a reader gets the end");
    assert_eq!(end_of(&mut wait).code(), Some(3), "and so does `wait`");
    wait_for("it to be forgotten", || home.listed("job").is_none());
}

#[test]
fn run_with_rm_is_forgotten_on_a_server_after_the_keys_left_it() {
    let (server, home) = (TestServer::start(), Home::new());
    let url = server.url();
    let program = "echo ready; read line; exit 3";
    let args = ["run", "-it", "--rm", "--name", "work", "--connect", url, "--", "sh", "-c", program];
    let (mut terminal, mut child) = Terminal::with(24, 80, home.command(&args));
    terminal.see("ready\r\n");
    terminal.exchange(b"\x1d\x1d", "left `work` running");
    assert_eq!(end_of(&mut child).code(), Some(0));
    home.ok(&["kill", "-9", "--connect", url, "work"]);
    wait_for("it to be forgotten", || home.json(&["ps", "--json", "--connect", url]) == json!([]));
}
