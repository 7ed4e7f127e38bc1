//! `logs --tail`, and `logs` of several processes.

use crate::prelude::*;

#[test]
fn the_tail_is_the_last_lines() {
    let home = Home::new();
    home.ok(&["run", "-d", "--name", "job", "--", "sh", "-c", "seq 1 100000; printf end"]);
    assert_eq!(home.run(&["wait", "job"]).status.code(), Some(0));
    assert_eq!(home.ok(&["logs", "-n", "3", "job"]), "99999\n100000\nend");
    assert_eq!(home.ok(&["logs", "--tail", "1", "job"]), "end");
    assert_eq!(home.ok(&["logs", "-n", "0", "job"]), "");
    let expected: Vec<String> = (90_002..=100_000).map(|n| n.to_string()).chain(["end".to_owned()]).collect();
    assert_eq!(home.ok(&["logs", "-n", "10000", "job"]), expected.join("\n"));
    let all = home.run(&["logs", "job"]).stdout;
    assert!(home.run(&["logs", "-n", "1000000", "job"]).stdout == all, "a tail that is longer is all of it");
    assert_eq!(home.ok(&["logs", "-f", "-n", "2", "job"]), "100000\nend");
    let event: Value = serde_json::from_str(&home.ok(&["logs", "--json", "-n", "1", "job"])).expect("it is JSON");
    assert_eq!((&event["event"], &event["chunk"]), (&json!("output"), &json!("ZW5k")));
}

#[test]
fn a_tail_is_followed_without_a_gap_or_a_repetition() {
    let home = Home::new();
    let gate = home.path().join("gate");
    let program = format!("seq 1 500; until test -e {}; do sleep 0.02; done; seq 501 600", gate.display());
    home.ok(&["run", "-d", "--name", "job", "--", "sh", "-c", &program]);
    wait_for("the first part", || home.ok(&["logs", "job"]).ends_with("\n500"));
    let mut follow = spawn(&mut home.command(&["logs", "-f", "--tail", "2", "job"]));
    let mut stdout = follow.stdout.take().expect("stdout is a pipe");
    let mut seen = read_until(&mut stdout, "500\n");
    std::fs::write(&gate, "").expect("open the gate");
    seen += &read_until(&mut stdout, "\n600\n");
    let expected: Vec<String> = (499..=600).map(|n| n.to_string()).collect();
    assert_eq!(seen, expected.join("\n") + "\n");
    assert_eq!(end_of(&mut follow).code(), Some(0));
}

#[test]
fn lines_of_several_processes_have_their_names() {
    let home = Home::new();
    home.ok(&["run", "-d", "--name", "web", "--", "sh", "-c", "echo one; echo two; printf open"]);
    home.ok(&["run", "-d", "--name", "worker", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(home.run(&["wait", "web", "worker"]).status.code(), Some(0));
    let (out, said, code) = outcome(home.command(&["logs", "web", "worker"]));
    assert_eq!(out, "web    | one\nweb    | two\nweb    | open\nworker | out\n");
    assert_eq!((said.as_str(), code), ("worker | err\n", Some(0)));
    let (tail, _, _) = outcome(home.command(&["logs", "-n", "1", "web", "worker"]));
    assert!(tail.starts_with("web    | open\n") && !tail.contains("two"));
    // An unknown id does not stop the others.
    let (out, said, code) = outcome(home.command(&["logs", "web", "nothing", "worker"]));
    assert_eq!((code, out.lines().count()), (Some(1), 4));
    assert!(said.contains("no such process: `nothing`"));
    let parse = |line: &str| -> Value { serde_json::from_str(line).expect("it is JSON") };
    let events: Vec<Value> = home.ok(&["logs", "-f", "--json", "web", "worker"]).lines().map(parse).collect();
    for name in ["web", "worker"] {
        let own = events.iter().filter(|event| event["processId"] == name);
        let of: Vec<&str> = own.filter_map(|event| event["event"].as_str()).collect();
        assert_eq!(of[of.len() - 2..], ["exited", "closed"], "{name}");
    }
}

#[test]
fn several_processes_are_followed_at_once_line_by_line() {
    let home = Home::new();
    let gates = ["a", "b"].map(|name| home.path().join(format!("gate-{name}")));
    for (name, gate) in ["a", "b"].iter().zip(&gates) {
        let program = format!("printf 'begin '; until test -e {}; do sleep 0.02; done; echo end", gate.display());
        home.ok(&["run", "-d", "--name", name, "--", "sh", "-c", &program]);
        wait_for("its first word", || home.ok(&["logs", name]) == "begin ");
    }
    let mut follow = spawn(&mut home.command(&["logs", "-f", "a", "b"]));
    let mut stdout = follow.stdout.take().expect("stdout is a pipe");
    std::fs::write(&gates[1], "").expect("open the gate");
    assert_eq!(read_until(&mut stdout, "\n"), "b | begin end\n");
    std::fs::write(&gates[0], "").expect("open the gate");
    assert_eq!(read_until(&mut stdout, "\n"), "a | begin end\n");
    let output = finish_child(follow);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn names_of_several_processes_have_colour_on_a_terminal() {
    let home = Home::new();
    for name in ["a", "b"] {
        home.ok(&["run", "-d", "--name", name, "--", "echo", "hello"]);
        home.run(&["wait", name]);
    }
    let mut command = home.command(&["logs", "a", "b"]);
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    let (mut terminal, mut child) = Terminal::with(24, 80, command);
    terminal.see("\x1b[36ma |\x1b[0m hello\r\n");
    terminal.see("\x1b[33mb |\x1b[0m hello\r\n");
    assert_eq!(end_of(&mut child).code(), Some(0));
}
