//! `exec-server run` and the other commands against a remote server: streams, exit codes, defaults, tokens, names and failures.

use std::io::{Read, Write};

use crate::prelude::*;

/// A server on ws and unix sockets, and a user in another directory.
struct World {
    server: TestServer,
    home: Home,
}

impl World {
    fn new() -> Self {
        Self::with(TestServer::builder())
    }

    fn with(builder: testkit::Builder) -> Self {
        let server = builder.listen("ws://127.0.0.1:0").listen("unix://{dir}/x.sock").start();
        Self { server, home: Home::new() }
    }

    fn command_at(&self, url: &str, args: &[&str]) -> Command {
        let mut command = self.home.command(args);
        command.env("EXEC_SERVER_URL", url);
        command
    }

    fn command(&self, args: &[&str]) -> Command {
        self.command_at(self.server.url(), args)
    }

    /// Runs a command and returns stdout, stderr and the exit code.
    fn run(&self, args: &[&str]) -> (String, String, Option<i32>) {
        outcome(self.command(args))
    }

    fn url_without_token(&self) -> String {
        format!("ws://{}", self.server.address())
    }
}

#[test]
fn streams_stay_apart_and_codes_are_kept_over_every_socket() {
    let world = World::new();
    for url in world.server.urls() {
        let (out, errors, code) =
            outcome(world.command_at(url, &["run", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]));
        assert_eq!((out.as_str(), errors.as_str(), code), ("out\n", "err\n", Some(3)), "{url}");
    }
    for (argv, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["no-such-program-anywhere"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let (_, said, seen) = world.run(&[&["run", "--"], argv].concat());
        assert_eq!(seen, Some(code), "{argv:?}: {said}");
        assert_eq!(said.is_empty(), code == 0 || code == 137, "{argv:?}: {said}");
    }
}

#[test]
fn input_and_output_are_byte_exact_over_every_socket() {
    let world = World::new();
    let input = pattern(0, 5_000_001);
    for url in world.server.urls() {
        let output = finish_with_input(world.command_at(url, &["run", "--", "cat"]), &input);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(output.stdout == input, "{url}: {} bytes came back of {}", output.stdout.len(), input.len());
    }
    let output = finish_with_input(world.command(&["run", "-n", "--", "wc", "-c"]), b"not for it");
    assert_eq!(text(&output.stdout).trim(), "0", "-n");
}

#[test]
fn nothing_of_a_run_is_left_on_the_server() {
    let world = World::new();
    let program = "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo done";
    let (said, _, code) = world.run(&["run", "--", "sh", "-c", program]);
    assert_eq!((said.as_str(), code), ("done\n", Some(0)));
    assert_eq!(world.server.client().ok("process/list", json!({"scope": "all"})), json!({"processes": []}));
    let sleeps =
        |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\x001000"));
    wait_for("end of what it started", || !world.server.processes().iter().any(sleeps));
}

#[test]
fn times_are_limited() {
    let world = World::new();
    let (out, said, code) = world.run(&["run", "--timeout", "300ms", "--", "sh", "-c", "echo part; sleep 1000"]);
    assert_eq!((out.as_str(), code), ("part\n", Some(124)));
    assert!(said.contains("killed: timeout reached"), "{said}");
    let (_, said, code) = world.run(&["run", "--idle-timeout", "300ms", "--", "sleep", "1000"]);
    assert_eq!(code, Some(124), "{said}");
}

#[test]
fn signals_reach_the_program() {
    let world = World::new();
    let signals = [("INT", Signal::INT), ("TERM", Signal::TERM), ("USR1", Signal::USR1), ("USR2", Signal::USR2)];
    for (name, number) in signals {
        let program = format!("trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = spawn(&mut world.command(&["run", "--", "sh", "-c", &program]));
        let mut stdout = child.stdout.take().expect("stdout is a pipe");
        read_until(&mut stdout, "ready\n");
        signal(child.id(), number);
        assert_eq!(read_until(&mut stdout, "\n"), format!("got {name}\n"));
        assert_eq!(end_of(&mut child).code(), Some(7));
    }
}

#[test]
fn a_suspended_run_stops_its_program_and_continues_it() {
    let world = World::new();
    let mut child = spawn(&mut world.command(&["run", "--", "sh", "-c", "echo $$; exec sleep 1000"]));
    let mut stdout = child.stdout.take().expect("stdout is a pipe");
    let pid: u32 = read_until(&mut stdout, "\n").trim().parse().expect("a pid");
    signal(child.id(), Signal::TSTP);
    wait_for("both to stop", || [child.id(), pid].iter().all(|pid| state(*pid).as_deref() == Some("T")));
    signal(child.id(), Signal::CONT);
    wait_for("both to go on", || [child.id(), pid].iter().all(|pid| state(*pid).as_deref() == Some("S")));
    signal(child.id(), Signal::INT);
    assert_eq!(end_of(&mut child).code(), Some(130));
}

#[test]
fn directory_and_environment_are_the_servers_unless_flags_say_otherwise() {
    let world = World::with(TestServer::builder().env("SERVER_VAR", "far").env("SERVER_KEY", "secret").env("TERM", ""));
    let show = "pwd; echo \"$MINE|$SERVER_VAR|$SERVER_KEY|$HOME|$ADDED|$TERM\"";
    let run = |flags: &[&str]| {
        let mut command = world.command(&[&["run"], flags, &["--", "/bin/sh", "-c", show]].concat());
        command.env("MINE", "near").env("TERM", "vt220");
        let (out, said, code) = outcome(command);
        assert_eq!(code, Some(0), "{said}");
        out
    };
    let here = std::env::current_dir().expect("a directory").display().to_string();
    let home = world.server.dir().join("home").display().to_string();
    assert_eq!(run(&[]), format!("{here}\n|||{home}||\n"));
    assert_eq!(run(&["--cwd", "/", "--env", "ADDED=x"]), format!("/\n|||{home}|x|\n"));
    assert_eq!(run(&["--env-inherit", "all"]), format!("{here}\n|far||{home}||\n"));
    assert_eq!(run(&["--env-inherit", "none"]), format!("{here}\n|||||\n"));
    assert_eq!(run(&["-t"]), format!("{here}\r\n|||{home}||vt220\r\n"));
    // A relative directory is below the server's working directory.
    let (_, said, code) = world.run(&["run", "--cwd", "no-such-sub", "--", "pwd"]);
    assert_eq!(code, Some(255));
    assert!(said.contains(&format!("{here}/no-such-sub")), "{said}");
    let (_, said, code) = world.run(&["run", "--cwd", "/no/such/dir", "--", "pwd"]);
    assert!(code == Some(255) && said.contains("/no/such/dir"), "{said}");
}

#[test]
fn the_token_comes_from_the_url_a_file_or_the_environment_and_is_never_printed() {
    let world = World::new();
    let token = world.server.token().to_owned();
    let run = |variable: Option<&str>, flags: &[&str]| {
        let mut command = world.command_at(&world.url_without_token(), &[&["run"], flags, &["--", "env"]].concat());
        command.envs(variable.map(|value| ("EXEC_SERVER_TOKEN", value)));
        let (out, said, code) = outcome(command);
        assert!(!out.contains(&token) && !said.contains(&token));
        (code, said)
    };
    assert_eq!(run(Some(&token), &[]), (Some(0), String::new()));
    let file = world.home.path().join("token");
    std::fs::write(&file, &token).expect("write");
    set_mode(&file, 0o600);
    let flags = ["--token-file", file.to_str().expect("a plain path")];
    assert_eq!(run(None, &flags), (Some(0), String::new()));
    assert_eq!(run(Some("wrong-token"), &flags), (Some(0), String::new()), "the file goes before the variable");
    let (code, said) = run(Some("wrong-token"), &[]);
    assert_eq!(code, Some(255));
    assert!(said.contains("token") && !said.contains("wrong-token"), "{said}");
    set_mode(&file, 0o644);
    let (code, said) = run(None, &flags);
    assert!(code == Some(255) && said.contains("chmod 600"), "{said}");
    // A running client that holds the token, inspected from outside.
    let mut command = world.command_at(&world.url_without_token(), &["run", "--", "cat"]);
    let mut child = spawn(command.env("EXEC_SERVER_TOKEN", &token).stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    stdin.write_all(b"up\n").expect("write");
    read_until(child.stdout.as_mut().expect("stdout is a pipe"), "up\n");
    let environ = std::fs::read(format!("/proc/{}/environ", child.id())).expect("read it");
    assert!(!text(&environ).contains(&token));
    drop(stdin);
    assert_eq!(end_of(&mut child).code(), Some(0));
}

#[test]
fn names_of_servers_come_from_a_file() {
    let world = World::new();
    let url = world.server.url();
    world.home.write_environments(&format!("[[environments]]\nid = \"far\"\nurl = \"{url}\"\n"));
    let run = |args: &[&str]| outcome(world.home.command(args));
    let (out, said, code) = run(&["run", "--connect", "far", "--", "echo", "hi"]);
    assert_eq!((out.as_str(), code), ("hi\n", Some(0)), "{said}");
    let (_, said, code) = run(&["ps", "--connect", "fra"]);
    assert!(code == Some(255) && said.contains("`fra`") && said.contains("far"), "{said}");
    for url in ["none", "ftp://host", "ws://"] {
        let (_, said, code) = run(&["run", "--connect", url, "--", "true"]);
        assert!(code == Some(255) && said.starts_with("exec-server: "), "{said}");
    }
    assert_eq!(run(&["run", "--connect", "local", "--", "echo", "here"]).0, "here\n");
}

/// A listener that sends the same bytes to every connection.
fn answering(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for mut socket in listener.incoming().filter_map(Result::ok) {
            thread::spawn(move || {
                // The client may have gone.
                socket.write_all(answer).ok();
                if !answer.is_empty() {
                    socket.shutdown(std::net::Shutdown::Write).ok();
                }
                // Send nothing more, and keep the connection open until the client closes it.
                socket.read_to_end(&mut Vec::new()).ok();
            });
        }
    });
    port
}

#[test]
fn an_address_without_our_server_is_reported_in_words_and_in_time() {
    let home = Home::new();
    let dead = TcpListener::bind("127.0.0.1:0").expect("listen").local_addr().expect("an address").port();
    let web = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    let at = |port: u16| format!("ws://127.0.0.1:{port}");
    let mut file = String::new();
    for (id, url) in [
        ("dead", at(dead)),
        ("ssh", at(answering(b"SSH-2.0-x\r\n"))),
        ("web", at(answering(web))),
        ("mute", at(answering(b""))),
        ("gone", "unix:///no/such.sock".to_owned()),
    ] {
        let times = "connect_timeout_sec = 1\ninitialize_timeout_sec = 1";
        file += &format!("[[environments]]\nid = \"{id}\"\nurl = \"{url}\"\n{times}\n");
    }
    home.write_environments(&file);
    for (id, parts) in [
        ("dead", ["refused", "127.0.0.1"]),
        ("ssh", ["not HTTP", "127.0.0.1"]),
        ("web", ["HTTP 200", "127.0.0.1"]),
        ("mute", ["within 1s", "127.0.0.1"]),
        ("gone", ["no socket", "/no/such.sock"]),
    ] {
        for args in [&["run", "--connect", id, "--", "true"][..], &["ps", "--connect", id]] {
            let (out, said, code) = outcome(home.command(args));
            assert_eq!((code, out.as_str()), (Some(255), ""), "{id}: {said}");
            assert!(parts.iter().all(|part| said.contains(part)), "{id}: {said}");
        }
    }
}

#[test]
fn a_name_is_in_use_while_its_process_runs() {
    let world = World::new();
    let mut command = world.command(&["run", "--name", "job", "--", "sh", "-c", "echo up; cat"]);
    let mut first = spawn(command.stdin(Stdio::piped()));
    read_until(first.stdout.as_mut().expect("stdout is a pipe"), "up\n");
    let (_, said, code) = world.run(&["run", "--name", "job", "--", "true"]);
    assert_eq!(code, Some(255));
    assert!(said.contains("`job` is already running") && said.contains("exec-server kill job"), "{said}");
    drop(first.stdin.take());
    assert_eq!(end_of(&mut first).code(), Some(0));
    assert_eq!(world.run(&["run", "--name", "job", "--", "true"]).2, Some(0));
}

#[test]
fn a_run_continues_through_a_killed_server_and_reports_the_lost_and_the_new_connection() {
    let mut server = TestServer::builder().keep_holders().start();
    let home = Home::new();
    let url = server.url().to_owned();
    let mut command = home.command(&["run", "--connect", &url, "--", "sh", "-c", "echo before; cat; exit 9"]);
    let mut child = spawn(command.stdin(Stdio::piped()));
    read_until(child.stdout.as_mut().expect("stdout is a pipe"), "before\n");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    server.kill();
    stdin.write_all(b"while it is away\n").expect("write");
    server.restart();
    read_until(child.stdout.as_mut().expect("stdout is a pipe"), "while it is away\n");
    stdin.write_all(b"after\n").expect("write");
    drop(stdin);
    let output = finish_child(child);
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("after\n", Some(9)));
    let said = text(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let [lost, connected] = lines[..] else { panic!("{said}") };
    assert!(lost.starts_with("exec-server: connection lost (") && lost.ends_with("); reconnecting"), "{said}");
    assert_eq!(connected, "exec-server: connected again");
}

#[test]
fn a_second_interrupt_leaves_a_program_whose_server_is_away() {
    let mut server = TestServer::builder().keep_holders().start();
    let home = Home::new();
    let url = server.url().to_owned();
    let program = "echo up; exec sleep 1000";
    let command = ["run", "--name", "job", "--connect", &url, "--", "sh", "-c", program];
    let mut child = spawn(&mut home.command(&command));
    read_until(child.stdout.as_mut().expect("stdout is a pipe"), "up\n");
    let mut stderr = child.stderr.take().expect("stderr is a pipe");
    server.kill();
    read_until(&mut stderr, "reconnecting\n");
    signal(child.id(), Signal::INT);
    signal(child.id(), Signal::TERM);
    assert_eq!(read_until(&mut stderr, "\n"), "exec-server: left `job` running; `exec-server attach job` reattaches\n");
    assert_eq!(end_of(&mut child).code(), Some(255));
    server.restart();
    assert_eq!(home.json(&["ps", "--json", "--connect", &url])[0]["processId"], "job");
}

#[test]
fn a_closed_stdout_ends_the_program_like_a_pipe_does() {
    let world = World::new();
    assert_ends_with_its_reader(world.command(&["run", "--", "yes"]), "y\ny\n");
}

#[test]
fn a_detached_process_is_seen_from_every_connection() {
    let world = World::new();
    let run = |args: &[&str]| {
        let (out, said, code) = world.run(args);
        assert_eq!(code, Some(0), "{args:?}: {said}");
        out
    };
    let program = "echo out; echo err >&2; exec sleep 1000";
    let started = run(&["run", "--detach", "--json", "--name", "job", "--", "sh", "-c", program]);
    let started: serde_json::Value = serde_json::from_str(&started).expect("it is JSON");
    assert_eq!(started["processId"], "job");
    let listed = || -> serde_json::Value { serde_json::from_str(&run(&["ps", "--json"])).expect("it is JSON") };
    wait_for("its output", || listed()[0]["outputBytes"] == 8);
    assert_eq!((&listed()[0]["pid"], &listed()[0]["sessionId"]), (&started["pid"], &started["sessionId"]));
    let (out, err, code) = world.run(&["logs", "job"]);
    assert_eq!((out.as_str(), err.as_str(), code), ("out\n", "err\n", Some(0)));
    run(&["kill", "-s", "KILL", "job"]);
    assert_eq!(world.run(&["wait", "job"]).2, Some(137));
    run(&["forget", "job"]);
    assert_eq!(run(&["ps"]), "");
}

#[test]
fn the_program_that_carries_the_connection_ends_with_us() {
    let home = Home::new();
    let file = home.path().join("pid");
    let serve = format!("{} serve --listen stdio", testkit::binary());
    // Neither program would end by itself: one keeps running after its server has ended, the other is not a server at all.
    for (program, code) in [(serve.as_str(), 0), ("echo hello", 255)] {
        let url = format!("stdio:sh -c 'echo $$ >{}; {program}; sleep 1000'", file.display());
        let output = home.run(&["run", "--connect", &url, "--", "true"]);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        let pid = std::fs::read_to_string(&file).expect("it was started");
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists(), "`{program}` is left");
    }
}
