//! `run --detach`, `ps`, `logs`, `kill`, `wait` and `forget` without `--connect`: the per-user server is started when it is needed, found
//! again, and exits when it is idle.

use crate::{commands::QUOTA_NOTE, prelude::*};

/// Whether the command succeeds with an empty list: nothing on stdout, and a message on stderr.
fn lists_nothing(home: &Home, args: &[&str]) -> bool {
    let (out, said, code) = outcome(home.command(args));
    assert!(said.starts_with("exec-server: no ") && said.ends_with("processes\n"), "{args:?}: {said}");
    code == Some(0) && out.is_empty()
}

#[test]
fn commands_that_only_look_start_no_server() {
    let home = Home::new();
    assert_eq!((lists_nothing(&home, &["ps"]), home.ok(&["ps", "--json"])), (true, "[]".to_owned()));
    for command in ["logs", "logs -f", "attach", "kill", "wait", "forget"] {
        let args: Vec<&str> = command.split(' ').chain(["x"]).collect();
        let (out, said, code) = outcome(home.command(&args));
        assert_eq!((code, out.as_str()), (Some(1), ""), "{args:?}");
        assert!(said.contains("no such process: `x`"), "{said}");
    }
    assert!(!home.state_dir().exists() && marked(&home.mark()).is_empty());
}

#[test]
fn a_detached_program_runs_here_as_its_caller_and_is_found_again() {
    let home = Home::new();
    let program =
        "pwd; echo \"$MINE|$EXEC_SERVER_TOKEN\"; echo err >&2; echo \"$0\"; read x; echo never; exec sleep 1000";
    let mut command = home.command(&["run", "--detach", "--", "sh", "-c", program, "last one"]);
    command.current_dir(home.path()).env("MINE", "near").env("EXEC_SERVER_TOKEN", "s3cret");
    let output = finish(command);
    // The per-user server has no time limit, so none is mentioned.
    assert_eq!(text(&output.stderr), QUOTA_NOTE);
    let id = text(&output.stdout).trim_end().to_owned();
    assert!(id.starts_with("sh-") && id.len() == 7, "{id}");
    let here = home.path().canonicalize().expect("it exists");
    let expected = format!("{}\nnear|\nlast one\nnever\n", here.display());
    wait_for("its output", || home.run(&["logs", &id]).stdout == expected.as_bytes());
    let (_, errors, code) = outcome(home.command(&["logs", "sh"]));
    assert_eq!((errors.as_str(), code), ("err\n", Some(0)), "by the beginning of its name");
    let listed = home.listed(&id).expect("it is listed");
    assert_eq!((&listed["exited"], &listed["tty"]), (&json!(false), &json!(false)));
    let table = home.ok(&["ps"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("ID ") && lines[1].starts_with(&id) && lines[1].contains("running"), "{table}");
    home.ok(&["kill", &id]);
    let ended = home.run(&["wait", "--json", &id]);
    assert_eq!(ended.status.code(), Some(143));
    let ended: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("it is JSON");
    assert_eq!([&ended["processId"], &ended["signal"], &ended["cause"]], [id.as_str(), "SIGTERM", "terminated"]);
    assert!(home.ok(&["ps"]).contains("killed SIGTERM"));
    assert!(lists_nothing(&home, &["ps", "--running"]));
    home.ok(&["forget", &id]);
    assert!(lists_nothing(&home, &["ps"]));
}

#[test]
fn logs_follow_to_the_end_and_begin_where_they_are_told_to() {
    let home = Home::new();
    let gate = home.path().join("gate");
    let program =
        format!("echo one; echo two >&2; until test -e {}; do sleep 0.02; done; echo three; exit 4", gate.display());
    home.ok(&["run", "-d", "--name", "job", "--", "sh", "-c", &program]);
    let mut follow = spawn(&mut home.command(&["logs", "-f", "job"]));
    read_until(follow.stdout.as_mut().expect("stdout is a pipe"), "one\n");
    std::fs::write(&gate, "").expect("open the gate");
    let output = finish_child(follow);
    assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("three\n", "two\n"));
    assert_eq!(output.status.code(), Some(0), "logs succeeds however the process ended");
    assert_eq!(home.run(&["wait", "job"]).status.code(), Some(4));
    let (out, errors, _) = outcome(home.command(&["logs", "job"]));
    assert_eq!((out.as_str(), errors.as_str()), ("one\nthree\n", "two\n"));
    assert_eq!(home.ok(&["logs", "--since", "2", "job"]), "three");
    assert_eq!(home.ok(&["logs", "-f", "--since", "2", "job"]), "three");
    let parse = |line: &str| -> serde_json::Value { serde_json::from_str(line).expect("it is JSON") };
    let events: Vec<_> = home.ok(&["logs", "-f", "--json", "job"]).lines().map(parse).collect();
    let kinds: Vec<(&str, u64)> = events
        .iter()
        .map(|event| (event["event"].as_str().expect("a word"), event["seq"].as_u64().expect("a number")))
        .collect();
    assert_eq!(kinds, [("output", 1), ("output", 2), ("output", 3), ("exited", 4), ("closed", 5)]);
    assert_eq!((&events[3]["exitCode"], &events[4]["outputBytes"]), (&json!(4), &json!(14)));
    assert_eq!(home.ok(&["logs", "--json", "job"]).lines().count(), 3);
}

#[test]
fn large_logs_are_complete_and_a_reader_may_leave() {
    let home = Home::new();
    home.ok(&["run", "-d", "--name", "big", "--", "head", "-c", "30000000", "/dev/zero"]);
    assert_eq!(home.run(&["wait", "big"]).status.code(), Some(0));
    for args in [&["logs", "big"][..], &["logs", "-f", "big"]] {
        let output = home.run(args);
        assert_eq!((output.stdout.len(), text(&output.stderr).as_str()), (30_000_000, ""), "{args:?}");
        assert!(output.stdout.iter().all(|byte| *byte == 0));
        assert_ends_with_its_reader(home.command(args), "\0");
    }
}

#[test]
fn names_are_checked_found_and_told_apart() {
    let home = Home::new();
    home.ok(&["run", "-d", "--name", "job", "--", "sleep", "1000"]);
    let again = home.run(&["run", "-d", "--name", "job", "--", "true"]);
    assert_eq!((again.status.code(), again.stdout.len()), (Some(255), 0));
    assert!(text(&again.stderr).contains("`job` is already running"));
    home.ok(&["run", "-d", "--name", "job-2", "--", "sleep", "1000"]);
    assert_eq!(home.listed("job").expect("listed")["argv"][1], "1000", "an id goes before the beginning of another");
    let (_, said, code) = outcome(home.command(&["kill", "jo"]));
    assert_eq!(code, Some(1));
    assert!(said.contains("/job, ") && said.contains("/job-2"), "{said}");
    let running = home.run(&["forget", "job"]);
    assert!(running.status.code() == Some(1) && text(&running.stderr).contains("exec-server kill job"));
    // Several ids at once; an unknown one does not stop the others.
    let several = home.run(&["kill", "--grace", "0s", "nothing", "job", "job-2"]);
    assert_eq!(several.status.code(), Some(1));
    assert_eq!(home.run(&["wait", "job-2", "job"]).status.code(), Some(137));
    // The id is free again and means the latest process.
    home.ok(&["run", "-d", "--name", "job", "--", "sh", "-c", "echo second; exit 5"]);
    assert_eq!(home.run(&["wait", "job"]).status.code(), Some(5));
    assert_eq!(home.ok(&["logs", "job"]), "second");
    let all = home.json(&["ps", "--json"]);
    let first = all.as_array().expect("an array").iter().find(|process| process["processId"] == "job").expect("listed");
    let by_session = format!("{}/job", &first["sessionId"].as_str().expect("a text")[..8]);
    assert_eq!(home.run(&["wait", &by_session]).status.code(), Some(137));
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    let home = Home::new();
    for (argv, code) in [(&["no-such-program"][..], 127), (&["/etc/passwd"], 126)] {
        let output = home.run(&[&["run", "-d", "--"], argv].concat());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0));
        assert!(!output.stderr.is_empty());
    }
    assert!(lists_nothing(&home, &["ps"]));
    assert_eq!(std::fs::read_dir(home.state_dir().join("sessions")).expect("it exists").count(), 0);
}

#[test]
fn processes_of_a_server_that_was_killed_are_found_by_the_next() {
    let home = Home::new();
    home.ok(&["run", "-d", "--name", "job", "--", "sh", "-c", "echo kept; exec sleep 1000"]);
    let pid = home.listed("job").expect("listed")["pid"].clone();
    let server = home.server().expect("it runs");
    signal(server, Signal::KILL);
    wait_gone("the server", &[server].into());
    assert_eq!(home.listed("job").expect("listed")["pid"], pid);
    assert_ne!(home.server(), Some(server));
    assert_eq!(home.ok(&["logs", "job"]), "kept");
    home.ok(&["kill", "job"]);
    assert_eq!(home.run(&["wait", "job"]).status.code(), Some(143));
}

#[test]
fn a_server_without_work_exits_in_order_and_keeps_unread_output() {
    let idle = ["--exit-when-idle", "1s"];
    let mut server = TestServer::builder().keep_holders().listen("unix://{dir}/x.sock").args(idle).start();
    let mut client = server.connect();
    client.initialize_with(with(modern(), json!({"ttlMs": "none"})));
    client.ok("process/start", testkit::start_params("p", &["sh", "-c", "echo kept; sleep 1.5"]));
    client.leave();
    // First a process runs without a connection, so the server stays. After its end the server exits within the idle time of one second.
    assert_eq!(server.wait().code(), Some(0));
    server.restart();
    let listed = server.client().listed("p");
    assert_eq!(listed["exited"], true, "{listed}");
}

#[test]
fn a_server_that_is_just_exiting_fails_no_command() {
    let home = Home::new();
    for round in 0..10 {
        // A server that exits as soon as it can, so that the commands meet it in every state.
        let mut short = std::process::Command::new(binary());
        short.args(["serve", "--exit-when-idle", "1ms", "--state-dir"]).arg(home.state_dir());
        short.arg("--listen").arg(format!("unix://{}/x.sock", home.path().display()));
        let mut short = spawn(short.stdout(Stdio::null()).stderr(Stdio::null()));
        let id = home.ok(&["run", "-d", "--name", &format!("job-{round}"), "--", "echo", "hi"]);
        assert_eq!(home.run(&["wait", &id]).status.code(), Some(0), "{round}");
        // The next round must not find the current server.
        if let Some(server) = home.server() {
            signal(server, Signal::TERM);
            wait_for("end of the server", || home.server() != Some(server));
        }
        end_of(&mut short);
    }
    assert_eq!(home.json(&["ps", "--json"]).as_array().map(Vec::len), Some(10));
}

#[test]
fn a_detached_program_reports_the_limits_that_the_server_sets() {
    let home = Home::new();
    let server = TestServer::builder().keep_holders().args(["--session-ttl", "2h"]).start();
    let run = |flags: &[&str], id: &str| {
        let all = [&["run", "-d", "--connect", server.url(), "--name", id], flags, &["--", "sleep", "1000"]].concat();
        let output = home.run(&all);
        assert_eq!((output.status.code(), text(&output.stdout).trim_end()), (Some(0), id), "{all:?}");
        text(&output.stderr)
    };
    let limited =
        "exec-server: the server ends the process after 2 hours without a client (limit: its `--session-ttl`)\n";
    assert_eq!(run(&[], "a"), format!("{QUOTA_NOTE}{limited}"));
    // The flags say what happens to output, so only the note about the session's lifetime is printed.
    assert_eq!((run(&["--keep-all"], "b"), run(&["--drop-oldest"], "c")), (limited.to_owned(), limited.to_owned()));
    assert_eq!(home.run(&["run", "-d", "--keep-all", "--drop-oldest", "--", "true"]).status.code(), Some(2));
    for id in ["a", "b", "c"] {
        assert_eq!(home.run(&["kill", "--connect", server.url(), id]).status.code(), Some(0));
        home.run(&["wait", "--connect", server.url(), id]);
        assert_eq!(home.run(&["forget", "--connect", server.url(), id]).status.code(), Some(0));
    }
}

#[test]
fn the_users_own_server_keeps_no_lock_of_the_script_that_started_it() {
    let home = Home::new();
    let lock = home.path().join("script.lock");
    let run = home.command(&["run", "-d", "--name", "job", "--", "sleep", "1000"]);
    let mut script = std::process::Command::new("sh");
    script.args(["-c", "exec 9> \"$LOCK\" && flock -n 9 && exec \"$0\" \"$@\""]);
    script.arg(run.get_program()).args(run.get_args());
    copy_env(&mut script, &run);
    let started = script.env("LOCK", &lock).stdin(std::process::Stdio::null()).output().expect("run the script");
    assert!(started.status.success(), "{started:?}");
    let file = std::fs::File::open(&lock).expect("open the lock");
    let free = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(free, Ok(()), "the server that runs on has the lock");
    home.ok(&["kill", "--grace", "0s", "job"]);
}
