//! R5: when all processes of a detached session have ended, their logs are complete on disk and the holder exits. The server, and the next
//! server after SIGKILL, reads the same bytes, numbers and exits from the files, and continues the session if a client starts more
//! processes.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use testkit::{Client, TestServer, decode_base64, kill, sh, wait_for};

/// Output of more than two segments, and all the ways in which processes end.
const JOBS: [(&str, &str); 4] = [
    ("big", "seq -f %07.0f 1 400000; echo done >&2; exit 7"),
    ("killed", "echo before; kill -9 $$"),
    ("silent", "exit 0"),
    ("small", "echo hello"),
];

fn holders(server: &TestServer) -> usize {
    server.named("exec-holder").len()
}

fn all(client: &mut Client) -> Vec<Value> {
    let list = client.ok("process/list", json!({"scope": "all"}));
    list["processes"].as_array().expect("a list").clone()
}

fn is_closed(client: &mut Client, id: &str) -> bool {
    all(client).iter().any(|process| process["processId"] == id && process["closed"] == true)
}

/// Reads a process from its beginning: each chunk with its number, and the end.
fn read(client: &mut Client, session: &str, id: &str) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let mut answer = client.ok("process/read", json!({"processId": id, "sessionId": session, "afterSeq": after}));
        assert_eq!(answer["gap"], Value::Null, "{id}: {answer}");
        after = answer["nextSeq"].as_u64().expect("a number") - 1;
        let chunks = answer["chunks"].take();
        all.extend(chunks.as_array().expect("chunks").iter().cloned());
        if answer["closed"] == true {
            all.push(answer);
            return all;
        }
    }
}

/// Everything that clients can ask about the jobs.
fn picture(client: &mut Client, session: &str) -> (Vec<Value>, Vec<Vec<Value>>) {
    let listed = all(client);
    (listed, JOBS.iter().map(|(id, _)| read(client, session, id)).collect())
}

fn resume(server: &TestServer, session: &str, ttl_ms: Option<u64>) -> Client {
    let mut client = server.connect();
    let capabilities = json!({"ack": true, "gap": true, "concurrent": true});
    let mut params =
        json!({"clientName": "test", "resumeSessionId": session, "takeover": true, "capabilities": capabilities});
    if let Some(ttl_ms) = ttl_ms {
        params["ttlMs"] = json!(ttl_ms);
    }
    client.initialize_with(params);
    client
}

struct Story {
    server: TestServer,
    session: String,
    observer: Client,
}

impl Story {
    /// All jobs have ended and their client is still attached.
    fn ended() -> (Self, Client) {
        let server = TestServer::builder().keep_holders().start();
        let (mut client, session) = server.modern_client();
        for (id, script) in JOBS {
            client.ok("process/start", sh(id, script));
        }
        let mut observer = server.client();
        wait_for("the ends", || JOBS.iter().all(|(id, _)| is_closed(&mut observer, id)));
        (Self { server, session, observer }, client)
    }

    /// The client has left, and the holder has exited.
    fn archived() -> Self {
        let (story, client) = Self::ended();
        client.leave();
        wait_for("the holder to leave", || holders(&story.server) == 0);
        story
    }

    fn dir(&self) -> PathBuf {
        self.server.state_dir().join("sessions").join(&self.session)
    }

    fn files(&self, id: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.dir()) else { return Vec::new() };
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(id)).collect()
    }

    fn picture(&mut self) -> (Vec<Value>, Vec<Vec<Value>>) {
        picture(&mut self.observer, &self.session)
    }

    fn assert_same(&mut self, before: &(Vec<Value>, Vec<Vec<Value>>), when: &str) {
        let now = self.picture();
        assert_eq!(now.0, before.0, "{when}");
        for ((now, before), (id, _)) in now.1.iter().zip(&before.1).zip(JOBS) {
            let at = now.iter().zip(before).position(|(now, before)| now != before);
            let at = at.or((now.len() != before.len()).then_some(now.len().min(before.len())));
            assert!(at.is_none(), "{when}: `{id}` differs at {at:?}: {:?} and not {:?}", now.last(), before.last());
        }
    }

    /// Kills the server with SIGKILL and starts another.
    fn restart(&mut self) {
        self.server.kill();
        self.server.restart();
        self.observer = self.server.client();
    }
}

#[test]
fn what_ended_is_read_the_same_without_its_holder_and_after_a_kill_of_the_server() {
    let (mut story, client) = Story::ended();
    let before = story.picture();
    assert_eq!(holders(&story.server), 1);
    client.leave();
    wait_for("the holder to leave", || holders(&story.server) == 0);
    for round in 0..2 {
        story.assert_same(&before, &format!("round {round} after the holder left"));
    }
    story.restart();
    for round in 0..2 {
        story.assert_same(&before, &format!("round {round} after the server was killed"));
    }
    assert_eq!(holders(&story.server), 0);
    // Terminating an ended process has the same result as with a holder.
    let steer = json!({"processId": "big", "sessionId": story.session});
    assert_eq!(story.observer.ok("process/terminate", steer.clone())["running"], false);
    let mut owner = resume(&story.server, &story.session, None);
    owner.ok("session/end", json!({}));
    wait_for("the session's directory to go", || !story.dir().exists());
}

#[test]
fn a_holder_leaves_also_when_the_server_was_killed_before() {
    let (mut story, client) = Story::ended();
    let before = story.picture();
    drop(client);
    story.server.kill();
    wait_for("the holder to leave", || holders(&story.server) == 0);
    story.server.restart();
    story.observer = story.server.client();
    story.assert_same(&before, "after the next server came");
    resume(&story.server, &story.session, None).ok("session/end", json!({}));
}

#[test]
fn a_session_without_a_holder_goes_on_where_it_was() {
    let mut story = Story::archived();
    let before = story.picture();
    for round in 0..2 {
        let mut owner = resume(&story.server, &story.session, None);
        let again = owner.call("process/start", sh("big", "true")).expect_err("the id is taken");
        assert_eq!(again.kind(), "duplicateProcess", "{again:?}");
        let id = format!("later-{round}");
        owner.ok("process/start", sh(&id, "echo later; exec sleep 1000"));
        assert_eq!(holders(&story.server), 1);
        assert!(JOBS.iter().zip(&before.1).all(|((job, _), read_before)| read(
            &mut story.observer,
            &story.session,
            job
        ) == *read_before));
        // Kill the server also while the new holder runs.
        story.restart();
        assert!(JOBS.iter().zip(&before.1).all(|((job, _), read_before)| read(
            &mut story.observer,
            &story.session,
            job
        ) == *read_before));
        let mut owner = resume(&story.server, &story.session, None);
        owner.ok("process/terminate", json!({"processId": id}));
        wait_for("its end", || is_closed(&mut story.observer, &id));
        owner.leave();
        wait_for("the holder to leave", || holders(&story.server) == 0);
    }
    story.restart();
    let mut owner = resume(&story.server, &story.session, None);
    owner.ok("process/forget", json!({"processId": "later-0"}));
    let ids: Vec<Value> = all(&mut story.observer).iter().map(|process| process["processId"].clone()).collect();
    assert_eq!(ids.len(), JOBS.len() + 1, "{ids:?}");
    owner.ok("session/end", json!({}));
    wait_for("the session's directory to go", || !story.dir().exists());
}

#[test]
fn what_is_forgotten_without_a_holder_leaves_the_disk_and_does_not_come_back() {
    let mut story = Story::archived();
    let segments = story.files(".seg").len();
    let forget = |story: &mut Story, id: &str| {
        story.observer.ok("process/forget", json!({"processId": id, "sessionId": story.session}));
    };
    forget(&mut story, "big");
    wait_for("its files to go", || story.files(".seg").len() + 3 <= segments);
    story.restart();
    let ids: Vec<Value> = all(&mut story.observer).iter().map(|process| process["processId"].clone()).collect();
    assert_eq!(ids.len(), JOBS.len() - 1, "{ids:?}");
    for (id, _) in &JOBS[1..] {
        forget(&mut story, id);
    }
    wait_for("all files to go", || story.files(".seg").is_empty() && story.files("processes").is_empty());
    story.restart();
    assert_eq!(all(&mut story.observer), [] as [Value; 0]);
    // The session is empty but still exists for its client.
    let mut owner = resume(&story.server, &story.session, None);
    owner.ok("process/start", sh("big", "true"));
    owner.ok("session/end", json!({}));
}

#[test]
fn the_clock_of_a_session_without_a_holder_runs_on_across_a_restart() {
    let (mut story, client) = Story::ended();
    drop(client);
    let mut owner = resume(&story.server, &story.session, Some(5_000));
    owner.ok("environment/status", json!({}));
    drop(owner);
    wait_for("the holder to leave", || holders(&story.server) == 0);
    assert!(story.dir().exists());
    story.restart();
    assert!(story.dir().exists(), "its time is not over");
    wait_for("the session's directory to go", || !story.dir().exists());
    let again = json!({"clientName": "test", "resumeSessionId": story.session});
    let refused = story.server.connect().call("initialize", again).expect_err("it is over");
    assert_eq!(refused.kind(), "sessionExpired");
}

#[test]
fn a_daemon_that_outlived_its_process_keeps_the_holder() {
    let server = TestServer::builder().keep_holders().start();
    let (mut client, session) = server.modern_client();
    let file = server.dir().join("daemon");
    let script =
        format!("setsid sh -c 'echo $$ > {}; exec sleep 1000' > /dev/null 2>&1 < /dev/null & exit 0", file.display());
    client.ok("process/start", sh("p", &script));
    let mut observer = server.client();
    wait_for("the end", || is_closed(&mut observer, "p"));
    let mut daemon = None;
    wait_for("the daemon", || {
        daemon = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u32>().ok());
        daemon.is_some()
    });
    client.leave();
    let daemon = daemon.expect("it was there");
    let dir = server.state_dir().join("sessions").join(&session);
    // Without the daemon the log would be archived by now: another session, which began to wait later, has lost its holder.
    let (mut other, other_session) = server.modern_client();
    other.ok("process/start", sh("q", "true"));
    wait_for("the end", || is_closed(&mut observer, "q"));
    other.leave();
    wait_for("the other holder to leave", || holders(&server) == 1);
    assert!(fs::exists(format!("/proc/{daemon}")).expect("readable") && !dir.join("archived").exists());
    kill(daemon);
    wait_for("the holder to leave", || holders(&server) == 0);
    for session in [session, other_session] {
        resume(&server, &session, None).ok("session/end", json!({}));
    }
}

#[test]
fn ended_sessions_cost_the_server_neither_descriptors_nor_mappings() {
    let mut story = Story::archived();
    let count = |server: &TestServer| {
        let fds = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("ours").count();
        let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid())).expect("ours");
        (fds, maps.lines().filter(|line| line.contains("/memfd:exec-server-")).count())
    };
    wait_for("nothing of a holder to be mapped", || count(&story.server).1 == 0);
    let (fds, _) = count(&story.server);
    for job in 0..12 {
        let (mut client, _) = story.server.modern_client();
        let id = format!("job-{job}");
        client.ok("process/start", sh(&id, "head -c 100000 /dev/zero"));
        wait_for("the end", || is_closed(&mut story.observer, &id));
        client.leave();
    }
    wait_for("the holders to leave", || holders(&story.server) == 0);
    wait_for("what they had to go", || count(&story.server).0 <= fds && count(&story.server).1 == 0);
}

#[test]
fn a_kill_of_the_server_at_any_moment_of_leaving_loses_nothing() {
    let mut server = TestServer::builder().keep_holders().start();
    let mut observer = server.client();
    let mut jobs = Vec::new();
    // Start sessions one after the other for a little longer than a holder stays. So at the kill some holders have left, some are leaving,
    // and some stay.
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_millis(2_600) {
        let (mut client, session) = server.modern_client();
        let id = format!("job-{}", jobs.len());
        client.ok("process/start", sh(&id, &format!("seq 1 3000; echo {id}; exit 5")));
        wait_for("the end", || is_closed(&mut observer, &id));
        client.leave();
        jobs.push((id, session));
    }
    let last = observer.ok("process/list", json!({"scope": "all"}));
    server.kill();
    server.restart();
    let mut observer = server.client();
    for (id, session) in &jobs {
        let all = read(&mut observer, session, id);
        let text: Vec<u8> = all.iter().filter_map(|part| part["chunk"].as_str()).flat_map(decode_base64).collect();
        let expected: String = (1..=3000).map(|line| format!("{line}\n")).chain([format!("{id}\n")]).collect();
        assert!(text == expected.as_bytes(), "{id}: {} bytes instead of {}", text.len(), expected.len());
        assert_eq!(all.last().expect("an end")["exitCode"], 5, "{id}");
    }
    assert_eq!(observer.ok("process/list", json!({"scope": "all"})), last);
    wait_for("the holders to leave", || holders(&server) == 0);
    for (_, session) in jobs {
        resume(&server, &session, None).ok("session/end", json!({}));
    }
}
