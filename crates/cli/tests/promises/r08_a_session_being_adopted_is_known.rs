//! R8, second half: a session whose holder does not answer a restarted server is still known. A resume gets a retryable error or is held,
//! our own clients wait and print why, and nothing is lost when the holder continues.

use std::{
    fs,
    io::Read as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::promises::token_helpers;
use testkit::{RpcError, TestServer, binary, sh, stop, wait_for};

/// A server that was killed and restarted while its only holder was stopped.
struct Story {
    server: TestServer,
    holder: u32,
}

impl Story {
    /// Stops the holder and restarts the server.
    fn freeze(mut server: TestServer) -> Self {
        let holders = server.named("exec-holder");
        let [holder] = holders.iter().copied().collect::<Vec<_>>()[..] else { panic!("one holder, not {holders:?}") };
        stop(holder);
        server.kill();
        server.restart();
        Self { server, holder }
    }

    fn thaw(&self) {
        let pid = Pid::from_raw(self.holder.cast_signed()).expect("a process id is not zero");
        kill_process(pid, Signal::CONT).expect("let it go on");
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

/// `exec-server` connected to a server, with pipes.
fn program(server: &TestServer, args: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command.args(&args[..1]).args(["--connect", server.url()]).args(&args[1..]);
    command.env_remove("EXEC_SERVER_TOKEN").env("XDG_CONFIG_HOME", server.dir());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("run exec-server")
}

#[test]
fn a_resume_gets_a_retryable_error_until_the_holder_goes_on() {
    let server = TestServer::builder().keep_holders().start();
    let other = token_helpers::create(&server, "other", &[]);
    let (mut client, session) = server.modern_client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    let pid = client.pid_of("p");
    drop(client);
    let story = Story::freeze(server);

    let error = story.resume(&session).expect_err("its holder stands still");
    assert_eq!((error.code, error.kind()), (-32010, "sessionAdopting"));
    assert!(error.message.contains("holder process has not answered"), "{}", error.message);

    // The processes are not silently missing, and a request about one of them says why.
    let mut observer = story.server.client();
    let list = observer.ok("process/list", json!({"scope": "all"}));
    assert_eq!(list["processes"], json!([]));
    assert_eq!(
        (&list["adopting"][0]["sessionId"], list["adopting"].as_array().map(Vec::len)),
        (&json!(session), Some(1))
    );
    assert!(list["adopting"][0]["waitingMs"].as_u64().is_some_and(|ms| ms >= 5000), "{list}");
    let read = json!({"processId": "p", "sessionId": session});
    assert_eq!(observer.call("process/read", read).expect_err("not adopted").kind(), "sessionAdopting");
    assert_eq!(observer.ok("process/list", json!({})).get("adopting"), None, "its own session is not being adopted");

    // Another principal does not even learn that the session exists.
    let mut stranger = token_helpers::client(&story.server, &other);
    assert_eq!(stranger.ok("process/list", json!({"scope": "all"})).get("adopting"), None);
    let mut stranger = token_helpers::connect(&story.server, &other);
    assert_eq!(stranger.call("initialize", resume(&session, true)).expect_err("not its own").kind(), "unknownSession");

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
fn a_client_that_announces_nothing_is_held_until_the_holder_goes_on() {
    let server = TestServer::builder().keep_holders().start();
    let (mut client, session) = server.modern_client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    drop(client);
    let story = Story::freeze(server);
    let mut held = story.server.connect();
    let request = held.send_request("initialize", resume(&session, false));
    assert_eq!(story.resume(&session).expect_err("its holder stands still").kind(), "sessionAdopting");
    story.thaw();
    assert_eq!(held.answer(request).expect("held, then resumed")["sessionId"], session.as_str());
    held.notify("initialized", json!({}));
    assert_eq!(held.ok("process/list", json!({}))["processes"][0]["processId"], "p");
}

#[test]
fn a_held_resume_ends_within_its_bound_with_the_error_that_generation_h_tries_again_on() {
    let server = TestServer::builder().keep_holders().start();
    let (mut client, session) = server.modern_client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    drop(client);
    let story = Story::freeze(server);
    let mut held = story.server.connect();
    let began = Instant::now();
    let error = held.call("initialize", resume(&session, false)).expect_err("its holder stands still");
    assert_eq!((error.code, error.kind()), (-32010, "sessionAdopting"));
    assert!(began.elapsed() >= Duration::from_secs(7), "held for {:?} only", began.elapsed());
    // The connection can be used for the next attempt.
    story.thaw();
    assert_eq!(held.initialize_with(resume(&session, false))["sessionId"], session.as_str());
}

#[test]
fn our_own_client_waits_says_why_and_loses_nothing() {
    let server = TestServer::builder().keep_holders().start();
    let go = server.dir().join("go");
    let script = format!("echo begin; while [ ! -e {} ]; do sleep 0.05; done; echo end; exit 7", go.display());
    let mut run = program(&server, &["run", "--", "sh", "-c", &script]);
    wait_for("the process", || !server.named("exec-holder").is_empty());
    wait_for("its output", || {
        let list = server.client().ok("process/list", json!({"scope": "all"}));
        list["processes"][0]["outputBytes"] == 6
    });
    let mut stderr = run.stderr.take().expect("a pipe");
    let said = thread::spawn(move || {
        let (mut said, mut chunk) = (String::new(), [0; 512]);
        while !said.contains("being adopted") {
            match stderr.read(&mut chunk) {
                Ok(count @ 1..) => said += &String::from_utf8_lossy(&chunk[..count]),
                _ => panic!("it ended and had said: {said}"),
            }
        }
        stderr
    });
    let story = Story::freeze(server);
    let _stderr = said.join().expect("it said why it waits");
    story.thaw();
    fs::write(&go, "").expect("let it end");
    let output = run.wait_with_output().expect("its end");
    assert_eq!((String::from_utf8_lossy(&output.stdout).as_ref(), output.status.code()), ("begin\nend\n", Some(7)));
}

#[test]
fn a_reader_from_another_session_goes_on_and_ps_names_what_it_cannot_list() {
    let server = TestServer::builder().keep_holders().start();
    let go = server.dir().join("go");
    let script = format!("echo begin; while [ ! -e {} ]; do sleep 0.05; done; echo end; exit 7", go.display());
    let started = program(&server, &["run", "-d", "--name", "job", "--", "sh", "-c", &script]).wait_with_output();
    assert!(started.as_ref().is_ok_and(|output| output.status.success()), "{started:?}");
    let mut logs = program(&server, &["logs", "-f", "job"]);
    let mut stdout = logs.stdout.take().expect("a pipe");
    let mut first = [0; 6];
    stdout.read_exact(&mut first).expect("its first line");
    assert_eq!(&first, b"begin\n");
    let story = Story::freeze(server);

    let ps = program(&story.server, &["ps"]).wait_with_output().expect("ps");
    let said = String::from_utf8_lossy(&ps.stderr).into_owned();
    assert!(ps.status.success() && said.contains("holder process has not answered"), "{ps:?}");
    let wait = program(&story.server, &["wait", "job"]).wait_with_output().expect("wait");
    let said = String::from_utf8_lossy(&wait.stderr).into_owned();
    assert!(!wait.status.success() && said.contains("not listed yet"), "{wait:?}");

    story.thaw();
    fs::write(&go, "").expect("let it end");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("the rest");
    let output = logs.wait_with_output().expect("its end");
    assert_eq!(rest, "end\n", "{output:?}");
}

#[test]
fn a_start_that_the_holder_does_not_answer_fails_in_time_and_is_never_run() {
    let server = TestServer::builder().keep_holders().start();
    let (mut client, _) = server.modern_client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    let marks = server.dir().join("marks");
    fs::create_dir(&marks).expect("make a directory");
    let touch = |id: &str, mark: &str| sh(id, &format!("touch {}", marks.join(mark).display()));
    let holders = server.named("exec-holder");
    let holder = *holders.first().expect("one holder");
    stop(holder);
    let began = Instant::now();
    // More starts than a holder spawns in one batch.
    let starts: Vec<i64> = (0..12)
        .map(|n| client.send_request("process/start", touch(&format!("q{n}"), &format!("withdrawn{n}"))))
        .collect();
    for start in starts {
        let error = client.answer(start).expect_err("nobody answers");
        assert_eq!(error.kind(), "holderSilent");
        assert!(error.message.contains("holder process of session"), "{}", error.message);
    }
    assert!(began.elapsed() >= Duration::from_secs(4), "given up after {:?}", began.elapsed());
    // A retry with the same id must not run beside the first start.
    let again = client.call("process/start", touch("q0", "again")).expect_err("the first is not decided");
    assert_eq!(again.kind(), "holderSilent");
    kill_process(Pid::from_raw(holder.cast_signed()).expect("a process id is not zero"), Signal::CONT).expect("go on");
    wait_for("the name to be free", || client.call("process/start", touch("q0", "again")).is_ok());
    assert_eq!(client.collect("q0").code(), 0);
    let ran: Vec<_> =
        fs::read_dir(&marks).expect("list it").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(ran, ["again"], "a start that was answered with an error was run");
    let list = client.ok("process/list", json!({}));
    let ids: Vec<_> = list["processes"].as_array().expect("a list").iter().map(|entry| &entry["processId"]).collect();
    assert_eq!(ids, [&json!("p"), &json!("q0")]);
}
