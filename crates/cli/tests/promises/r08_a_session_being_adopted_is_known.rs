//! R8, second half: a session whose holder does not answer a restarted server is still known. A resume gets a retryable error or is held,
//! our own clients wait and print why, and nothing is lost when the holder continues.

use crate::prelude::*;

/// A server that was killed and restarted while its only holder was stopped.
struct Story {
    server: TestServer,
    holder: u32,
}

impl Story {
    /// Stops the holder and restarts the server.
    fn freeze(mut server: TestServer) -> Self {
        let holder = server.holder();
        stop(holder);
        server.restart();
        Self { server, holder }
    }

    /// A session with the process `p`, frozen after its client has disconnected.
    fn frozen() -> (Self, String) {
        let server = TestServer::builder().keep_holders().start();
        let (mut client, session) = server.modern_client();
        client.ok("process/start", sh("p", "exec sleep 1000"));
        drop(client);
        (Self::freeze(server), session)
    }

    fn thaw(&self) {
        send_signal(self.holder, Signal::CONT);
    }

    /// One attempt to resume by a client with our capabilities.
    fn resume(&self, session: &str) -> Result<Value, RpcError> {
        self.server.connect().call("initialize", resume(session, true))
    }
}

fn resume(session: &str, is_ours: bool) -> Value {
    let mut params = json!({"clientName": "test", "resumeSessionId": session});
    if is_ours {
        params["capabilities"] = json!({"ack": true, "gap": true, "concurrent": true});
    }
    params
}

/// A file, and a script that writes a line, waits for that file, and writes another one.
fn gated(server: &TestServer) -> (PathBuf, String) {
    let go = server.dir().join("go");
    let script = format!("echo begin; while [ ! -e {} ]; do sleep 0.05; done; echo end; exit 7", go.display());
    (go, script)
}

/// `exec-server` connected to a server, with pipes.
fn program(server: &TestServer, args: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command.args(&args[..1]).args(["--connect", server.url()]).args(&args[1..]);
    command.env_remove("EXEC_SERVER_TOKEN").env("XDG_CONFIG_HOME", server.dir());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("run exec-server")
}

#[test]
fn a_resume_gets_a_retryable_error_until_the_holder_continues() {
    let server = TestServer::builder().keep_holders().start();
    let other = token_helpers::create(&server, "other", &[]);
    let (mut client, session) = server.modern_client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    let pid = client.pid_of("p");
    drop(client);
    let story = Story::freeze(server);

    let error = story.resume(&session).expect_err("its holder is stopped");
    assert_error(&error, -32010, "sessionAdopting");
    assert!(error.message.contains("holder process has not answered"), "{}", error.message);

    // The processes are not silently missing, and a request about one of them says why.
    let mut observer = story.server.client();
    let list = observer.ok("process/list", json!({"scope": "all"}));
    assert_eq!(list["processes"], json!([]));
    let adopting = list["adopting"].as_array().expect("a list");
    assert_eq!((adopting.len(), &adopting[0]["sessionId"]), (1, &json!(session)));
    assert!(list["adopting"][0]["waitingMs"].as_u64().is_some_and(|ms| ms >= 5000), "{list}");
    let read = json!({"processId": "p", "sessionId": session});
    assert_eq!(observer.fails("process/read", read).kind(), "sessionAdopting");
    assert_eq!(observer.ok("process/list", json!({})).get("adopting"), None, "its own session is not being adopted");

    // Another principal does not even learn that the session exists.
    let mut stranger = token_helpers::client(&story.server, &other);
    assert_eq!(stranger.ok("process/list", json!({"scope": "all"})).get("adopting"), None);
    let mut stranger = token_helpers::connect(&story.server, &other);
    assert_eq!(stranger.fails("initialize", resume(&session, true)).kind(), "unknownSession");

    story.thaw();
    wait_for("the session", || match story.resume(&session) {
        Ok(result) => result["sessionId"] == session.as_str(),
        Err(error) => {
            assert_eq!(error.kind(), "sessionAdopting");
            false
        }
    });
    let list = observer.ok("process/list", json!({"scope": "all"}));
    assert_eq!((&list["processes"][0]["pid"], list.get("adopting")), (&json!(pid), None));
}

#[test]
fn a_client_that_announces_nothing_is_held_until_the_holder_continues() {
    let (story, session) = Story::frozen();
    let mut held = story.server.connect();
    let request = held.send_request("initialize", resume(&session, false));
    assert_eq!(story.resume(&session).expect_err("its holder is stopped").kind(), "sessionAdopting");
    story.thaw();
    assert_eq!(held.answer(request).expect("held, then resumed")["sessionId"], session.as_str());
    held.notify("initialized", json!({}));
    assert_eq!(held.ok("process/list", json!({}))["processes"][0]["processId"], "p");
}

#[test]
fn a_held_resume_fails_within_its_bound_with_the_error_on_which_generation_h_retries() {
    let (story, session) = Story::frozen();
    let mut held = story.server.connect();
    let began = Instant::now();
    let error = held.fails("initialize", resume(&session, false));
    assert_error(&error, -32010, "sessionAdopting");
    assert!(began.elapsed() >= Duration::from_secs(7), "held for {:?} only", began.elapsed());
    // The connection can be used for the next attempt.
    story.thaw();
    assert_eq!(held.initialize_with(resume(&session, false))["sessionId"], session.as_str());
}

#[test]
fn our_own_client_waits_prints_why_and_loses_nothing() {
    let server = TestServer::builder().keep_holders().start();
    let (go, script) = gated(&server);
    let mut run = program(&server, &["run", "--", "sh", "-c", &script]);
    wait_for("the process", || !server.named("exec-holder").is_empty());
    wait_for("its output", || {
        let list = server.client().ok("process/list", json!({"scope": "all"}));
        list["processes"][0]["outputBytes"] == 6
    });
    let mut stderr = run.stderr.take().expect("a pipe");
    let said = thread::spawn(move || {
        read_until(&mut stderr, "being adopted");
        stderr
    });
    let story = Story::freeze(server);
    let _stderr = said.join().expect("it prints why it waits");
    story.thaw();
    fs::write(&go, "").expect("let it end");
    let output = run.wait_with_output().expect("its end");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("begin\nend\n", Some(7)));
}

#[test]
fn a_reader_from_another_session_continues_and_ps_names_what_it_cannot_list() {
    let server = TestServer::builder().keep_holders().start();
    let (go, script) = gated(&server);
    let started = program(&server, &["run", "-d", "--name", "job", "--", "sh", "-c", &script]).wait_with_output();
    assert!(started.as_ref().is_ok_and(|output| output.status.success()), "{started:?}");
    let mut logs = program(&server, &["logs", "-f", "job"]);
    let mut stdout = logs.stdout.take().expect("a pipe");
    let mut first = [0; 6];
    stdout.read_exact(&mut first).expect("its first line");
    assert_eq!(&first, b"begin\n");
    let story = Story::freeze(server);

    let ps = program(&story.server, &["ps"]).wait_with_output().expect("ps");
    assert!(ps.status.success() && text(&ps.stderr).contains("holder process has not answered"), "{ps:?}");
    let wait = program(&story.server, &["wait", "job"]).wait_with_output().expect("wait");
    assert!(!wait.status.success() && text(&wait.stderr).contains("not listed yet"), "{wait:?}");

    story.thaw();
    fs::write(&go, "").expect("let it end");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("the rest");
    let output = logs.wait_with_output().expect("its end");
    assert_eq!(rest, "end\n", "{output:?}");
}

#[test]
fn a_start_that_the_holder_does_not_answer_fails_in_time_and_never_runs() {
    let server = TestServer::builder().keep_holders().start();
    let (mut client, _) = server.modern_client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    let marks = server.dir().join("marks");
    fs::create_dir(&marks).expect("make a directory");
    let touch = |id: &str, mark: &str| sh(id, &format!("touch {}", marks.join(mark).display()));
    let holder = server.holder();
    stop(holder);
    let began = Instant::now();
    // More starts than a holder spawns in one batch.
    let starts: Vec<i64> = (0..12)
        .map(|n| client.send_request("process/start", touch(&format!("q{n}"), &format!("withdrawn{n}"))))
        .collect();
    for start in starts {
        let error = client.answer(start).expect_err("the holder does not answer");
        assert_eq!(error.kind(), "holderSilent");
        assert!(error.message.contains("holder process of session"), "{}", error.message);
    }
    assert!(began.elapsed() >= Duration::from_secs(4), "given up after {:?}", began.elapsed());
    // A retry with the same id must not run beside the first start.
    let again = client.fails("process/start", touch("q0", "again"));
    assert_eq!(again.kind(), "holderSilent");
    send_signal(holder, Signal::CONT);
    wait_for("the name to be free", || client.call("process/start", touch("q0", "again")).is_ok());
    assert_eq!(client.collect("q0").code(), 0);
    let ran: Vec<_> =
        fs::read_dir(&marks).expect("list it").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(ran, ["again"], "a start that was answered with an error was run");
    let list = client.ok("process/list", json!({}));
    let ids: Vec<_> = list["processes"].as_array().expect("a list").iter().map(|entry| &entry["processId"]).collect();
    assert_eq!(ids, [&json!("p"), &json!("q0")]);
}
