//! `ps`: sorting, colour on a terminal, the message for an empty list, and repetition with `-w`.

use crate::prelude::*;

#[test]
fn running_processes_are_listed_first_and_the_newest_first() {
    let home = Home::new();
    for (name, program) in [("a", "true"), ("b", "exec sleep 1000"), ("c", "exit 3"), ("d", "exec sleep 1000")] {
        home.ok(&["run", "-d", "--name", name, "--", "sh", "-c", program]);
        if !program.contains("sleep") {
            home.run(&["wait", name]);
        }
    }
    assert_eq!(home.ok(&["ps", "-q"]), "d\nb\nc\na");
    assert_eq!(home.ok(&["ps", "-rq"]), "d\nb");
    let table = home.ok(&["ps"]);
    let first: Vec<&str> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(first, ["ID", "d", "b", "c", "a"]);
    let listed = home.json(&["ps", "--json"]);
    let ids: Vec<&str> = listed.as_array().expect("an array").iter().filter_map(|p| p["processId"].as_str()).collect();
    assert_eq!(ids, ["a", "b", "c", "d"], "programs get the order of process/list");
}

#[test]
fn an_empty_list_is_reported_and_prints_nothing() {
    let home = Home::new();
    for (args, said) in [
        (&["ps"][..], "exec-server: no processes\n"),
        (&["ps", "-r"], "exec-server: no running processes\n"),
        (&["ps", "-q"], ""),
    ] {
        let output = home.run(args);
        assert_eq!((output.stdout.len(), text(&output.stderr).as_str()), (0, said), "{args:?}");
        assert!(output.status.success());
    }
    assert_eq!(home.json(&["ps", "--json"]), json!([]));
}

#[test]
fn states_have_colour_on_a_terminal_that_wants_it() {
    let home = Home::new();
    home.ok(&["run", "-d", "--name", "job", "--", "sleep", "1000"]);
    home.ok(&["run", "-d", "--name", "bad", "--", "false"]);
    home.run(&["wait", "bad"]);
    let shown = |variable: (&str, &str)| {
        let mut command = home.command(&["ps"]);
        command.env("TERM", "xterm").env_remove("NO_COLOR").env(variable.0, variable.1);
        let (mut terminal, mut child) = Terminal::with(24, 120, command);
        let seen = terminal.see("false\r\n");
        assert_eq!(end_of(&mut child).code(), Some(0));
        seen
    };
    let coloured = shown(("UNUSED", "1"));
    for part in ["\x1b[32mrunning\x1b[0m", "\x1b[31mexited 1\x1b[0m", "\x1b[1mID\x1b[0m"] {
        assert!(coloured.contains(part), "{coloured:?}");
    }
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = shown(variable);
        assert!(!plain.contains('\x1b') && plain.contains("running"), "{variable:?}: {plain:?}");
    }
    let mut piped = home.command(&["ps"]);
    piped.env("TERM", "xterm").env_remove("NO_COLOR");
    assert!(!text(&finish(piped).stdout).contains('\x1b'));
}

#[test]
fn watching_redraws_the_list_and_restores_the_screen() {
    let home = Home::new();
    let mut command = home.command(&["ps", "-w", "--interval", "200ms"]);
    command.env("TERM", "xterm").env("NO_COLOR", "1");
    // Started while not even a server runs.
    let (mut terminal, mut child) = Terminal::with(10, 100, command);
    terminal.see("\x1b[?1049h");
    terminal.see("0 running, 0 ended");
    home.ok(&["run", "-d", "--name", "job", "--", "sleep", "1000"]);
    terminal.see("1 running, 0 ended");
    terminal.see("job ");
    home.ok(&["kill", "job"]);
    terminal.see("0 running, 1 ended");
    terminal.see("killed SIGTERM");
    signal(child.id(), Signal::INT);
    terminal.see("\x1b[?1049l");
    assert_eq!(end_of(&mut child).code(), Some(130));
}

#[test]
fn watching_reports_a_broken_link_and_continues() {
    let home = Home::new();
    let mut server = TestServer::builder().keep_holders().listen("unix://{dir}/x.sock").start();
    let url = server.url().to_owned();
    home.ok(&["run", "-d", "--connect", &url, "--name", "job", "--", "sleep", "1000"]);
    let mut command = home.command(&["ps", "-w", "--interval", "200ms", "--connect", &url]);
    command.env("NO_COLOR", "1");
    let (mut terminal, mut child) = Terminal::with(10, 120, command);
    terminal.see("1 running, 0 ended");
    server.kill();
    terminal.see("reconnecting");
    server.restart();
    terminal.see("1 running, 0 ended\x1b[K");
    signal(child.id(), Signal::TERM);
    assert_eq!(end_of(&mut child).code(), Some(143));
    home.ok(&["kill", "--connect", &url, "job"]);
}

#[test]
fn watching_into_a_pipe_prints_lists_until_the_reader_leaves() {
    let home = Home::new();
    home.ok(&["run", "-d", "--name", "job", "--", "sleep", "1000"]);
    let mut child = spawn(&mut home.command(&["ps", "-w", "--interval", "200ms", "--json"]));
    let mut stdout = child.stdout.take().expect("stdout is a pipe");
    for _ in 0..2 {
        let line = read_until(&mut stdout, "\n");
        let list: serde_json::Value = serde_json::from_str(&line).expect("it is JSON");
        assert_eq!(list[0]["processId"], "job");
    }
    drop(stdout);
    assert_eq!(end_of(&mut child).code(), Some(141));
    let fast = home.run(&["ps", "-w", "--interval", "1ms"]);
    assert_eq!(fast.status.code(), Some(2));
    wait_for("it to be gone", || home.run(&["kill", "-9", "job"]).status.success());
}
