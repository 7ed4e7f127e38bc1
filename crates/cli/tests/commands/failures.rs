//! The commands under failures: a lost session, an answer that never arrives, a holder that dies, an exit event that was missed. A command
//! never reports success for work that was not done. Successful runs are tested in the files of the commands.

use std::sync::atomic::AtomicU32;

use crate::prelude::*;

/// An error answer.
fn refusal(kind: &str) -> Verdict {
    Verdict::Answer(json!({"error": {"code": -32600, "message": format!("refused: {kind}"), "data": {"kind": kind}}}))
}

/// Whether this is a request of the client for `method`.
fn asks(side: Side, message: &Value, method: &str) -> bool {
    side == Side::Client && message["method"] == method
}

/// A client with our capabilities in a session with an unlimited time-to-live, and the session's id.
fn owner(server: &TestServer) -> (Client, String) {
    let mut client = server.connect();
    let session = client.open_session(with(modern(), json!({"ttlMs": "none"})));
    (client, session)
}

fn listed(server: &TestServer, id: &str) -> Value {
    server.client().listed(id)
}

/// Bytes of a log that needs more than one read.
const LARGE: usize = 3_000_000;

/// A server on which the process `big` has written `LARGE` bytes and ended.
fn server_with_a_log() -> TestServer {
    let server = TestServer::start();
    let (mut client, _) = owner(&server);
    let program = format!("head -c {LARGE} /dev/zero | tr '\\0' x");
    client.ok("process/start", start_params("big", &["sh", "-c", &program]));
    wait_for("all of it", || listed(&server, "big")["closed"] == true);
    client.leave();
    server
}

#[test]
fn a_log_whose_session_is_lost_midway_is_an_error() {
    let server = server_with_a_log();
    let mut reads = 0;
    let proxy = MessageProxy::start(server.url(), move |side, message| {
        reads += u32::from(asks(side, message, "process/read"));
        match () {
            () if asks(side, message, "process/read") && reads > 1 => Verdict::Cut,
            () if message["params"]["resumeSessionId"].is_string() => refusal("unknownSession"),
            () => Verdict::Pass,
        }
    });
    let home = Home::new();
    let output = home.run(&["logs", "--connect", &proxy.url(), "big"]);
    let (said, printed) = (text(&output.stderr), output.stdout.len());
    assert_eq!(output.status.code(), Some(255), "{printed} bytes: {said}");
    assert!(printed > 0 && printed < LARGE, "what was read is printed: {printed}");
    assert!(said.contains("the log of `big` was printed up to number") && said.contains("is lost"), "{said}");
    // The command that the error message suggests works.
    let since = said.split("--since ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
    let output = home.run(&["logs", "--connect", server.url(), "--since", since, "big"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), LARGE - printed));
}

#[test]
fn a_log_that_the_server_stops_sending_is_an_error() {
    let server = server_with_a_log();
    let mut reads = 0;
    let proxy = MessageProxy::start(server.url(), move |side, message| {
        if !asks(side, message, "process/read") {
            return Verdict::Pass;
        }
        reads += 1;
        let next = message["params"]["afterSeq"].as_u64().expect("a number") + 1;
        let nothing =
            json!({"chunks": [], "nextSeq": next, "exited": false, "exitCode": null, "closed": false, "failure": null});
        if reads == 1 { Verdict::Pass } else { Verdict::Answer(json!({"result": nothing})) }
    });
    let (out, said, code) = outcome(Home::new().command(&["logs", "--json", "--connect", &proxy.url(), "big"]));
    assert_eq!(code, Some(255), "{said}");
    assert!(!out.is_empty() && said.contains("the server sent nothing after"), "{said}");
}

#[test]
fn the_log_of_a_process_whose_holder_died_is_printed_completely_and_is_an_error() {
    let server = TestServer::builder().keep_holders().start();
    let (mut client, _) = owner(&server);
    let program = format!("head -c {LARGE} /dev/zero | tr '\\0' x; exec sleep 1000");
    client.ok("process/start", start_params("big", &["sh", "-c", &program]));
    wait_for("all of it", || listed(&server, "big")["outputBytes"] == LARGE);
    client.leave();
    signal(server.holder(), Signal::KILL);
    wait_for("the news", || listed(&server, "big")["exit"]["cause"] == "lost");
    let home = Home::new();
    for follow in [&[][..], &["-f"]] {
        let (out, said, code) = outcome(home.command(&[&["logs", "--connect", server.url(), "big"], follow].concat()));
        assert_eq!((code, out.len()), (Some(255), LARGE), "{follow:?} {said}");
        assert!(said.contains("the holder of this process died"), "{follow:?} {said}");
    }
    let (_, said, code) = outcome(home.command(&["logs", "--connect", server.url(), "-f", "--json", "big"]));
    assert!(code == Some(255) && said.contains("the holder of this process died"), "{said}");
}

#[test]
fn an_exit_before_the_first_event_that_is_read_is_known_nevertheless() {
    let home = Home::new();
    home.ok(&["run", "-d", "--name", "job", "--", "sh", "-c", "echo one; exit 4"]);
    assert_eq!(home.run(&["wait", "job"]).status.code(), Some(4));
    // Output, exit and close are numbers 1 to 3.
    for since in ["1", "2", "3", "4"] {
        assert_eq!(home.ok(&["logs", "-f", "--since", since, "job"]), "", "{since}");
    }
    // A descendant writes so much after the exit that an attach starts reading behind the exit event.
    let gate = home.path().join("gate");
    let left = format!("until test -e {}; do /bin/echo more; done", gate.display());
    home.ok(&["run", "-d", "--name", "left", "--", "sh", "-c", &format!("({left}) & exit 4")]);
    wait_for("a long log", || home.listed("left").expect("listed")["nextSeq"].as_u64() > Some(1100));
    let mut attach = spawn(&mut home.command(&["attach", "left"]));
    read_until(attach.stdout.as_mut().expect("stdout is a pipe"), "more\n");
    std::fs::write(&gate, "").expect("open the gate");
    let output = finish_child(attach);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
}

/// A server on which the process `old` has ended, the client that started it, and the session's id.
fn server_with_an_ended_process() -> (TestServer, Client, String) {
    let server = TestServer::start();
    let (mut client, session) = owner(&server);
    client.ok("process/start", start_params("old", &["true"]));
    wait_for("its end", || listed(&server, "old")["closed"] == true);
    (server, client, session)
}

/// Resumes a session, like a client that reconnects.
fn come_back(server: &TestServer, session: &str) -> Client {
    server.resume(session, with(modern(), json!({"takeover": true, "ttlMs": "none"})))
}

/// Makes the server look like one that does not end empty sessions itself, so that the command has to do it.
fn as_an_older_server(message: &mut Value) {
    if let Some(served) = message.pointer_mut("/result/capabilities/autoForget") {
        *served = json!(false);
    }
}

/// A proxy that alters messages with `alter` and passes the `ttlMs` of each resume to `see`.
fn watching_resumes(
    server: &TestServer,
    alter: fn(&mut Value),
    mut see: impl FnMut(&Value) + Send + 'static,
) -> MessageProxy {
    MessageProxy::start(server.url(), move |_, message| {
        alter(message);
        if message["params"]["resumeSessionId"].is_string() {
            see(&message["params"]["ttlMs"]);
        }
        Verdict::Pass
    })
}

fn counting_resumes(server: &TestServer, alter: fn(&mut Value)) -> (MessageProxy, Arc<AtomicU32>) {
    let resumes = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&resumes);
    let see = move |_: &Value| {
        count.fetch_add(1, Ordering::SeqCst);
    };
    (watching_resumes(server, alter, see), resumes)
}

#[test]
fn forget_leaves_an_empty_session_to_a_server_that_ends_it_itself() {
    let (server, client, session) = server_with_an_ended_process();
    client.leave();
    let (proxy, resumes) = counting_resumes(&server, |_| {});
    Home::new().ok(&["forget", "--connect", &proxy.url(), "old"]);
    assert_eq!((listed(&server, "old"), resumes.load(Ordering::SeqCst)), (Value::Null, 0));
    // The client of the session may be about to reconnect.
    come_back(&server, &session).leave();
}

#[test]
fn forget_asks_once_for_a_session_that_has_a_client() {
    let (server, mut client, session) = server_with_an_ended_process();
    let (proxy, resumes) = counting_resumes(&server, as_an_older_server);
    let url = proxy.url();
    let command = thread::spawn(move || {
        let home = Home::new();
        home.ok(&["forget", "--connect", &url, "old"])
    });
    // The server pings this connection before it hands the session over. The client answers pings only while it reads, so keep it reading.
    while !command.is_finished() {
        client.ok("environment/status", json!({}));
    }
    command.join().expect("it ends well");
    assert_eq!(resumes.load(Ordering::SeqCst), 1);
    assert_eq!(listed(&server, "old"), Value::Null, "it is forgotten");
    client.ok("process/start", start_params("new", &["true"]));
    drop(client);
    come_back(&server, &session).leave();
}

#[test]
fn forget_leaves_the_session_of_a_client_that_is_briefly_away() {
    let (server, client, session) = server_with_an_ended_process();
    client.leave();
    let lives = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&lives);
    let proxy = watching_resumes(&server, as_an_older_server, move |ttl| {
        seen.lock().expect("no panic under the lock").push(ttl.clone());
    });
    Home::new().ok(&["forget", "--connect", &proxy.url(), "old"]);
    assert_eq!(listed(&server, "old"), Value::Null, "it is forgotten");
    // An abandoned empty session gets a short time-to-live.
    assert_eq!(*lives.lock().expect("no panic under the lock"), [json!(30_000)]);
    let mut client = come_back(&server, &session);
    client.ok("process/start", start_params("new", &["true"]));
}

#[test]
fn forget_ends_nothing_that_was_started_in_between() {
    let (server, client, session) = server_with_an_ended_process();
    client.leave();
    let server = Arc::new(server);
    let (busy, lives) = (Arc::clone(&server), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&lives);
    let proxy = watching_resumes(&server, as_an_older_server, move |ttl| {
        let mut lives = seen.lock().expect("no panic under the lock");
        if lives.is_empty() {
            // The session's client starts a process and leaves, between the listing and the resume of the command.
            let mut client = come_back(&busy, &session);
            client.ok("process/start", start_params("new", &["sleep", "1000"]));
            client.leave();
        }
        lives.push(ttl.clone());
    });
    Home::new().ok(&["forget", "--connect", &proxy.url(), "old"]);
    assert_eq!(listed(&server, "new")["exited"], false, "it runs");
    let lives = lives.lock().expect("no panic under the lock").clone();
    assert_eq!(lives, [json!(30_000), json!("none")], "and not for less time");
    drop(proxy);
}

/// A program that acts only after it has read all of its input.
const COMMITS: [&str; 3] = ["sh", "-c", "echo up; cat; echo committed"];

/// Runs [`COMMITS`], which must not commit because its input is incomplete for this reason.
fn assert_not_committed(output: &Output, reason: &str) {
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).contains("committed")), (Some(255), false), "{said}");
    assert!(said.contains(&format!("because its stdin is incomplete: {reason}")), "{said}");
}

fn run_through(proxy: &MessageProxy) -> Output {
    let home = Home::new();
    let command = home.command(&[&["run", "--connect", &proxy.url(), "--"], &COMMITS[..]].concat());
    finish_with_input(command, &pattern(0, 600_000))
}

#[test]
fn unreadable_input_is_not_treated_as_its_end() {
    let home = Home::new();
    let directory = || File::open(home.path()).expect("open a directory");
    let mut command = home.command(&[&["run", "--"], &COMMITS[..]].concat());
    command.stdin(directory());
    assert_not_committed(&finish(command), "read standard input: Is a directory");
    // A guest detaches and ends nothing.
    home.ok(&["run", "-d", "--name", "job", "--", "sleep", "1000"]);
    let mut command = home.command(&["attach", "job"]);
    command.stdin(directory());
    let (_, said, code) = outcome(command);
    assert_eq!(code, Some(255), "{said}");
    assert!(said.contains("detached from `job`, which keeps running: read standard input: Is a directory"), "{said}");
    assert_eq!(home.listed("job").expect("listed")["exited"], false);
}

#[test]
fn input_that_a_server_refuses_is_not_treated_as_its_end() {
    let server = TestServer::start();
    let proxy = MessageProxy::start(server.url(), |side, message| {
        if asks(side, message, "process/write") { refusal("resourcesExhausted") } else { Verdict::Pass }
    });
    assert_not_committed(&run_through(&proxy), "forward standard input: refused: resourcesExhausted");
}

#[test]
fn input_that_may_have_been_lost_with_the_link_is_not_treated_as_its_end() {
    let server = TestServer::start();
    let mut is_cut = false;
    // Imitate a server that keeps no write ids.
    let proxy = MessageProxy::start(server.url(), move |side, message| {
        if asks(side, message, "environment/info") {
            return Verdict::Answer(json!({"error": {"code": -32601, "message": "unknown method"}}));
        }
        if let Some(result) = message["result"].as_object_mut().filter(|result| result.contains_key("sessionId")) {
            result.remove("capabilities");
        }
        if asks(side, message, "process/write") && !is_cut {
            is_cut = true;
            return Verdict::Cut;
        }
        Verdict::Pass
    });
    assert_not_committed(&run_through(&proxy), "forward standard input: process/write: ");
}

/// Runs a program whose first signal is sent into a link that breaks before the answer. Returns stderr and the exit code.
fn signalled_on_a_dead_link(name: &str, number: Signal) -> (String, Option<i32>) {
    let server = TestServer::start();
    let mut is_cut = false;
    let is_reported = Arc::new(AtomicBool::new(false));
    let may_return = is_reported.clone();
    let proxy = MessageProxy::start(server.url(), move |side, message| {
        if asks(side, message, "process/signal") && !std::mem::replace(&mut is_cut, true) {
            return Verdict::Cut;
        }
        // A link that is back before the client reports its loss would not be reported at all.
        if is_cut && asks(side, message, "initialize") {
            wait_for("the report of the loss", || may_return.load(Ordering::SeqCst));
        }
        Verdict::Pass
    });
    let home = Home::new();
    let program = format!("trap 'exit 7' {name}; echo ready; read line; exit 5");
    let mut command = home.command(&["run", "--connect", &proxy.url(), "--", "sh", "-c", &program]);
    let mut child = spawn(command.stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    read_until(child.stdout.as_mut().expect("stdout is a pipe"), "ready\n");
    signal(child.id(), number);
    let mut stderr = child.stderr.take().expect("stderr is a pipe");
    let mut said = read_until(&mut stderr, "reconnecting\n");
    is_reported.store(true, Ordering::SeqCst);
    if number == Signal::USR1 {
        // The two messages may come in either order.
        while !said.contains("may not have received it\n") {
            said += &read_until(&mut stderr, "\n");
        }
        stdin.write_all(b"go on\n").expect("write");
    }
    let code = end_of(&mut child).code();
    stderr.read_to_string(&mut said).expect("read");
    (said, code)
}

#[test]
fn a_signal_that_was_lost_with_its_link_is_sent_again() {
    for (name, number) in [("TERM", Signal::TERM), ("INT", Signal::INT)] {
        let (said, code) = signalled_on_a_dead_link(name, number);
        assert_eq!((said.lines().count(), code), (2, Some(7)), "{said}");
        assert!(said.ends_with("exec-server: connected again\n"), "{said}");
    }
    // Sending SIGUSR1 twice is not the same as once, so it is not repeated; the unknown outcome is reported.
    let (said, code) = signalled_on_a_dead_link("USR1", Signal::USR1);
    assert!(said.contains("while sending SIGUSR1; `sh-"), "{said}");
    assert_eq!(code, Some(5), "{said}");
}

#[test]
fn a_terminal_is_raw_only_when_there_is_a_program_for_its_keys() {
    let server = TestServer::start();
    let mut is_cut = false;
    let proxy = MessageProxy::start(server.url(), move |side, message| {
        if asks(side, message, "process/start") && !std::mem::replace(&mut is_cut, true) {
            return Verdict::Shut;
        }
        Verdict::Pass
    });
    let home = Home::new();
    let program = "stty -echo; echo ready; while read -r line; do stty size; echo \"<$line>\"; done; exit 5";
    let args = ["run", "-t", "--connect", &proxy.url(), "--", "sh", "-c", program];
    let (mut terminal, mut child) = Terminal::with(24, 80, home.command(&args));
    // The broken link is reported before the start is answered, and Ctrl-C still reaches us.
    terminal.see("reconnecting");
    assert!(!terminal.is_raw());
    terminal.keys(b"typed ahead\r");
    terminal.resize(55, 66);
    signal(child.id(), Signal::WINCH);
    proxy.open();
    terminal.see("ready");
    terminal.see("<typed ahead>\r\n");
    assert!(terminal.is_raw());
    let mut seen = String::new();
    wait_for("the size that it has by now", || {
        terminal.keys(b"again\r");
        seen += &terminal.see("<again>\r\n");
        seen.contains("55 66\r\n")
    });
    terminal.keys(b"\x04");
    assert_eq!(end_of(&mut child).code(), Some(5));
    assert!(!terminal.is_raw());
}

#[test]
fn two_signals_cancel_a_start_whose_server_is_away() {
    let server = TestServer::start();
    let proxy = MessageProxy::start(server.url(), |side, message| {
        if asks(side, message, "process/start") { Verdict::Shut } else { Verdict::Pass }
    });
    let mut child = spawn(&mut Home::new().command(&["run", "--connect", &proxy.url(), "--", "true"]));
    let mut stderr = child.stderr.take().expect("stderr is a pipe");
    read_until(&mut stderr, "reconnecting\n");
    signal(child.id(), Signal::INT);
    signal(child.id(), Signal::TERM);
    let code = end_of(&mut child).code();
    assert!(code == Some(143) || code == Some(130), "{code:?}");
}
