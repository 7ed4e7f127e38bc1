//! `exec-server mcp bridge`: how a server on an executor appears to an MCP client, through cuts and kills, and that no server outlives its
//! client. The servers are small scripts that answer lines; `cargo xtask interop` uses real ones.

use std::{
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{ChildStdin, ChildStdout},
};

use crate::prelude::*;

/// Prints its pid, and then echoes each line.
const ECHO: &str = "echo $$; while IFS= read -r line; do printf '%s\\n' \"$line\"; done; exit 4";

/// Prints its pid, never reads, and ignores all signals that ask it to end. Its child does the same.
const DEAF: &str = "trap '' TERM INT HUP; (trap '' TERM; exec sleep 1000) & echo $$; sleep 1000; sleep 1000";

/// A running bridge, from the view of its MCP client.
struct Bridge {
    child: Running,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// The pid of the server behind the bridge.
    pid: u32,
}

impl Bridge {
    /// Starts a bridge to a script that prints its pid first.
    fn start(home: &Home, flags: &[&str], script: &str) -> Self {
        let mut command = home.command(&[&["mcp", "bridge"], flags, &["--", "sh", "-c", script]].concat());
        let mut child = spawn(command.stdin(Stdio::piped()));
        let stdin = child.stdin.take();
        let mut stdout = child.stdout.take().expect("stdout is a pipe");
        let pid = read_until(&mut stdout, "\n").trim().parse().expect("a process id");
        Self { child, stdin, stdout, pid }
    }

    fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("it was not closed");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("write");
    }

    fn answer(&mut self) -> String {
        read_until(&mut self.stdout, "\n").trim_end_matches('\n').to_owned()
    }

    /// Ends the bridge in the given way, and returns its exit code.
    fn end(mut self, how: impl FnOnce(&mut Self)) -> Option<i32> {
        how(&mut self);
        end_of(&mut self.child).code()
    }
}

fn server() -> TestServer {
    TestServer::builder().behind_proxy().start()
}

/// Checks that no process of any session is left.
fn nothing_is_left(server: &TestServer) {
    let list = server.client().ok("process/list", json!({"scope": "all"}));
    assert_eq!(list, json!({"processes": []}));
}

#[test]
fn bytes_pass_unchanged_here_and_there() {
    let (server, home) = (server(), Home::new());
    let input = pattern(0, 300_001);
    for flags in [&[][..], &["--connect", server.url()]] {
        let script = "cat; echo log >&2; exit 3";
        let command = home.command(&[&["mcp", "bridge"], flags, &["--", "sh", "-c", script]].concat());
        let output = finish_with_input(command, &input);
        assert!(output.stdout == input, "{} bytes came back of {}", output.stdout.len(), input.len());
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(3), "log\n"), "{flags:?}");
    }
    nothing_is_left(&server);
}

#[test]
fn a_client_may_give_sockets_instead_of_pipes() {
    let (server, home) = (server(), Home::new());
    let (near, far) = UnixStream::pair().expect("a pair");
    let (mut near, shared) = (near, far.try_clone().expect("a clone"));
    let mut command = home.command(&["mcp", "bridge", "--connect", server.url(), "--", "sh", "-c", ECHO]);
    let mut child = spawn(command.stdin(OwnedFd::from(far)).stdout(OwnedFd::from(shared)));
    // `command` holds the other ends of the sockets; drop them.
    drop(command);
    read_until(&mut near, "\n");
    near.write_all(b"hello\n").expect("write");
    assert_eq!(read_until(&mut near, "\n"), "hello\n");
    near.shutdown(Shutdown::Write).expect("close");
    assert_eq!(end_of(&mut child).code(), Some(4));
    nothing_is_left(&server);
}

#[test]
fn a_line_is_answered_at_once_and_an_end_of_input_ends_the_server() {
    let (server, home) = (server(), Home::new());
    for flags in [&[][..], &["--connect", server.url()]] {
        let mut bridge = Bridge::start(&home, flags, ECHO);
        for round in 0..5 {
            bridge.send(&format!("{{\"id\":{round}}}"));
            assert_eq!(bridge.answer(), format!("{{\"id\":{round}}}"));
        }
        let pid = bridge.pid;
        assert_eq!(bridge.end(|bridge| drop(bridge.stdin.take())), Some(4), "its own code: it ended by itself");
        wait_gone("the MCP server", &[pid].into());
    }
    nothing_is_left(&server);
}

/// A way to end a bridge: its description, the action, and the expected exit code.
type BridgeEnd = (&'static str, fn(&mut Bridge), i32);

#[test]
fn a_server_that_ignores_signals_is_killed_with_all_it_started() {
    let (server, home) = (server(), Home::new());
    let ways: [BridgeEnd; 3] = [
        ("end of input", |bridge| drop(bridge.stdin.take()), 0),
        ("SIGTERM", |bridge| signal(bridge.child.id(), Signal::TERM), 143),
        ("SIGHUP twice", |bridge| (0..2).for_each(|_| signal(bridge.child.id(), Signal::HUP)), 129),
    ];
    let start = |way: &BridgeEnd| {
        let (what, way, code) = way;
        let bridge = Bridge::start(&home, &["--connect", server.url()], DEAF);
        assert_eq!(bridge.end(way), Some(*code), "{what}");
    };
    let ended: Vec<_> = thread::scope(|scope| {
        let all: Vec<_> = ways.iter().map(|way| scope.spawn(move || start(way))).collect();
        all.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    assert!(ended.iter().all(Result::is_ok));
    nothing_is_left(&server);
    let sleeps = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep"));
    wait_for("end of what it started", || !server.processes().iter().any(sleeps));
}

#[test]
fn calls_are_answered_once_through_cuts_and_a_killed_executor() {
    let mut server = TestServer::builder().keep_holders().behind_proxy().start();
    let home = Home::new();
    let proxy = Proxy::start(server.address());
    let url = proxy.through(server.url());
    let slow = "echo $$; while IFS= read -r line; do sleep 0.01; printf '%s\\n' \"$line\"; done";
    let mut bridge = Bridge::start(&home, &["--connect", &url], slow);
    let mut seed = 7;
    let mut ask = |bridge: &mut Bridge, round: u32, meanwhile: &mut dyn FnMut()| {
        let filler = "x".repeat(usize::try_from(random(&mut seed) % 2000).expect("small"));
        let asked: Vec<_> = (0..3).map(|part| format!("{{\"id\":\"{round}.{part}\",\"p\":\"{filler}\"}}")).collect();
        bridge.send(&asked.join("\n"));
        meanwhile();
        for line in asked {
            assert_eq!(bridge.answer(), line, "round {round}");
        }
    };
    for round in 0..15 {
        ask(&mut bridge, round, &mut || proxy.cut());
    }
    // Cut at any byte of either direction.
    proxy.cut_next(3, 10, &[Way::Up, Way::Down], 750);
    let mut round = 100;
    while proxy.cuts() < 10 {
        ask(&mut bridge, round, &mut || {});
        round += 1;
        assert!(round < 1000, "only {} cuts", proxy.cuts());
    }
    for round in 2000..2002 {
        ask(&mut bridge, round, &mut || server.restart());
    }
    let pid = bridge.pid;
    assert_eq!(bridge.end(|bridge| drop(bridge.stdin.take())), Some(0));
    wait_gone("the MCP server", &[pid].into());
    nothing_is_left(&server);
}

#[test]
fn a_killed_bridge_is_waited_for_as_long_as_its_flag_says() {
    let (server, home) = (server(), Home::new());
    let start = |flags: &[&str]| Bridge::start(&home, &[&["--connect", server.url()], flags].concat(), DEAF);
    let (short, long, here) = (start(&["--keep", "300ms"]), start(&["--keep", "1h"]), Bridge::start(&home, &[], DEAF));
    let pids: BTreeSet<_> = [short.pid, here.pid].into();
    let stays = long.pid;
    for bridge in [short, long, here] {
        assert_eq!(bridge.end(|bridge| signal(bridge.child.id(), Signal::KILL)), None);
    }
    wait_gone("the MCP servers", &pids);
    let left: Vec<_> = server.client().list_all().iter().map(|left| left["pid"].clone()).collect();
    assert_eq!(left, [json!(stays)]);
}

#[test]
fn an_executor_that_stays_away_is_given_up_and_reported() {
    let (server, home) = (server(), Home::new());
    let proxy = Proxy::start(server.address());
    let url = proxy.through(server.url());
    let bridge = Bridge::start(&home, &["--connect", &url, "--keep", "500ms"], ECHO);
    let pid = bridge.pid;
    proxy.shut();
    // The MCP client has closed nothing and keeps waiting.
    let _stdin = bridge.stdin;
    let output = finish_child(bridge.child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(said.contains("reconnecting\n") && said.contains("is lost; restart it"), "{said}");
    wait_gone("the MCP server", &[pid].into());
}

#[test]
fn a_session_that_is_gone_ends_the_bridge_with_its_reason() {
    let (server, home) = (server(), Home::new());
    let bridge = Bridge::start(&home, &["--connect", server.url()], ECHO);
    let session = &server.client().list_all()[0]["sessionId"];
    let mut thief = server.connect();
    thief.initialize_with(json!({"clientName": "thief", "resumeSessionId": session, "takeover": true}));
    thief.ok("session/end", json!({}));
    let _stdin = bridge.stdin;
    let output = finish_child(bridge.child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(said.contains("is lost; restart it from the MCP client: session "), "{said}");
}

#[test]
fn a_server_that_leaves_a_process_with_its_streams_ends_the_bridge_nevertheless() {
    let (server, home) = (server(), Home::new());
    for flags in [&[][..], &["--connect", server.url()]] {
        let script = "echo $$; (trap '' HUP TERM; exec sleep 1000) & echo last; exit 5";
        let mut bridge = Bridge::start(&home, flags, script);
        assert_eq!(bridge.answer(), "last");
        let _stdin = bridge.stdin.take();
        let output = finish_child(bridge.child);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(5));
        assert!(said.contains("killing the processes that it left behind"), "{said}");
    }
    nothing_is_left(&server);
}

#[test]
fn a_client_that_closes_our_output_ends_the_server() {
    let (server, home) = (server(), Home::new());
    let mut bridge = Bridge::start(&home, &["--connect", server.url()], "echo $$; while :; do echo more; done");
    assert_eq!(bridge.answer(), "more");
    drop(bridge.stdout);
    let _stdin = bridge.stdin.take();
    assert_eq!(end_of(&mut bridge.child).code(), Some(141));
    nothing_is_left(&server);
}

#[test]
fn an_end_of_input_is_seen_behind_messages_that_the_server_does_not_read() {
    let (server, home) = (server(), Home::new());
    for flags in [&[][..], &["--connect", server.url()]] {
        let mut bridge = Bridge::start(&home, flags, "echo $$; exec sleep 1000");
        let mut stdin = bridge.stdin.take().expect("a pipe");
        rustix::io::ioctl_fionbio(&stdin, true).expect("a pipe that does not wait");
        let messages = b"{\"id\":1}\n".repeat(1000);
        wait_for("a line that is full", || {
            let mut taken = 0;
            while let Ok(count) = stdin.write(&messages) {
                taken += count;
            }
            taken == 0
        });
        drop(stdin);
        assert_eq!(end_of(&mut bridge.child).code(), Some(0), "{flags:?}");
        wait_gone("the MCP server", &[bridge.pid].into());
    }
    nothing_is_left(&server);
}

#[test]
fn a_server_that_closes_its_input_ends_the_bridge() {
    let (server, home) = (server(), Home::new());
    let mut bridge = Bridge::start(&home, &["--connect", server.url()], "exec <&-; echo $$; exec sleep 1000");
    bridge.send("is anybody there?");
    let _stdin = bridge.stdin.take();
    let output = finish_child(bridge.child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(said.contains("forward a message to the MCP server: "), "{said}");
    nothing_is_left(&server);
}

#[test]
fn a_client_that_does_not_read_holds_the_server_back_and_not_our_memory() {
    const BYTES: usize = 40_000_000;
    let (server, home) = (server(), Home::new());
    let script = format!("echo $$; yes | head -c {BYTES}");
    let mut bridge = Bridge::start(&home, &["--connect", server.url()], &script);
    // The server writes more than all buffers on the way may hold.
    let written = || server.client().list_all()[0]["outputBytes"].as_u64().expect("a number");
    wait_for("a full log", || written() > 12 << 20);
    let status = std::fs::read_to_string(format!("/proc/{}/status", bridge.child.id())).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak").replace(" kB", "");
    let peak: u64 = peak.trim().parse().expect("a number");
    assert!(peak < 64 << 10, "{peak} KiB");
    let _stdin = bridge.stdin.take();
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut bridge.stdout, &mut all).expect("read");
    assert!(all.len() == BYTES && all.chunks(2).all(|line| line == b"y\n"), "{} bytes", all.len());
    assert_eq!(end_of(&mut bridge.child).code(), Some(0));
}

#[test]
fn an_unread_log_stops_no_server() {
    let (server, home) = (server(), Home::new());
    let script = "yes log | head -c 20000000 >&2; ".to_owned() + ECHO;
    // Longer than a pipe and our queue of pieces hold, and not read until the end.
    let mut bridge = Bridge::start(&home, &["--connect", server.url()], &script);
    bridge.send("still there?");
    assert_eq!(bridge.answer(), "still there?");
    drop(bridge.stdin.take());
    let output = finish_child(bridge.child);
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).contains("log\n"));
}

#[test]
fn variables_and_directory_are_the_executors_unless_asked_for() {
    let server = TestServer::builder().env("FAR", "far").env("FAR_TOO", "far too").start();
    let home = Home::new();
    let bridge = |flags: &[&str], script: &str| {
        let mut command = home.command(&[&["mcp", "bridge"], flags, &["--", "sh", "-c", script]].concat());
        command.env("NEAR", "near").env("NEAR_TOO", "near too").env("LANG", "near.UTF-8");
        // Keep stdin open until the script has ended: EOF would terminate the script early.
        command.stdin(Stdio::piped());
        outcome(command)
    };
    let say = "echo \"$NEAR|$NEAR_TOO|$FAR|$FAR_TOO|$SET|${PATH:+path}\"; pwd";
    let cwd = server.dir().display().to_string();
    let flags = ["--connect", server.url(), "--cwd", &cwd, "--env", "NEAR", "--env", "SET=a=b", "--env-remote", "FAR"];
    assert_eq!(bridge(&flags, say), (format!("near||far||a=b|path\n{cwd}\n"), String::new(), Some(0)));
    assert_eq!(bridge(&["--connect", server.url()], say).0.lines().next(), Some("|||||path"));
    // Without `--connect` the executor is this machine, with our variables and working directory.
    let (said, _, _) = bridge(&["--env", "NEAR", "--env-remote", "NEAR_TOO"], &format!("{say}; echo $LANG"));
    let here = std::env::current_dir().expect("there is one").display().to_string();
    assert_eq!(said, format!("near|near too||||path\n{here}\nnear.UTF-8\n"));
    let (_, said, code) = bridge(&["--env", "NOWHERE"], "exit 0");
    let note = "exec-server: `--env NOWHERE`: not set here, so the MCP server does not get it\n";
    assert_eq!((said.as_str(), code), (note, Some(0)));
}

#[test]
fn a_failed_start_is_reported_with_an_exit_code_and_nothing_on_stdout() {
    let (server, home) = (server(), Home::new());
    for (argv, code, part) in [
        (&["--connect", server.url(), "--", "no-such-mcp-server"][..], 127, "no-such-mcp-server"),
        (&["--connect", server.url(), "--", "/etc/passwd"], 126, "/etc/passwd"),
        (&["--", "no-such-mcp-server"], 127, "no-such-mcp-server"),
        (&["--connect", server.url(), "--cwd", "relative", "--", "true"], 255, "must be absolute"),
        (&["--connect", "unix:///no/such.sock", "--", "true"], 255, "/no/such.sock"),
        (&["--env", "=x", "--", "true"], 2, "NAME=value"),
        (&["--env-remote", "A=b", "--", "true"], 2, "the name of a variable"),
        (&["--keep", "0s", "--", "true"], 2, "must not be zero"),
        (&[], 2, "CMD"),
    ] {
        let output = home.run(&[&["mcp", "bridge"], argv].concat());
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{argv:?}: {said}");
        assert!(said.contains(part), "{argv:?}: {said}");
    }
    nothing_is_left(&server);
}

#[test]
fn the_help_of_the_bridge_has_examples_and_exit_codes() {
    let home = Home::new();
    let help = home.ok(&["mcp", "bridge", "--help"]);
    assert!(help.contains("Examples:") && help.contains("Exit codes:") && help.contains("mcpServers"), "{help}");
    assert_eq!(home.ok(&["help", "mcp", "bridge"]), help);
}
