//! R5: when all processes of a detached session have ended, their logs are complete on disk and the holder exits. The server, and the next
//! server after SIGKILL, reads the same bytes, numbers and exits from the files, and continues the session if a client starts more
//! processes.

use crate::prelude::*;

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

fn is_closed(client: &mut Client, id: &str) -> bool {
    client.list_all().iter().any(|process| process["processId"] == id && process["closed"] == true)
}

/// Reads a process from its beginning: each chunk with its number, and the end.
fn read(client: &mut Client, session: &str, id: &str) -> Vec<Value> {
    let params = json!({"processId": id, "sessionId": session});
    let mut all = Vec::new();
    for mut answer in client.read_until_closed(&params) {
        assert_eq!(answer["gap"], Value::Null, "{id}: {answer}");
        let chunks = answer["chunks"].take();
        all.extend(chunks.as_array().expect("chunks").iter().cloned());
        if answer["closed"] == true {
            all.push(answer);
        }
    }
    all
}

/// Everything that clients can ask about the jobs.
fn picture(client: &mut Client, session: &str) -> (Vec<Value>, Vec<Vec<Value>>) {
    let listed = client.list_all();
    (listed, JOBS.iter().map(|(id, _)| read(client, session, id)).collect())
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
        story.wait_holder_gone();
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

    fn wait_holder_gone(&self) {
        wait_for("the holder to leave", || holders(&self.server) == 0);
    }

    fn wait_dir_gone(&self) {
        wait_for("the session's directory to go", || !self.dir().exists());
    }

    fn picture(&mut self) -> (Vec<Value>, Vec<Vec<Value>>) {
        picture(&mut self.observer, &self.session)
    }

    fn assert_same(&mut self, before: &(Vec<Value>, Vec<Vec<Value>>), when: &str) {
        assert_eq!(self.observer.list_all(), before.0, "{when}");
        self.assert_read_same(&before.1, when);
    }

    fn assert_read_same(&mut self, before: &[Vec<Value>], when: &str) {
        for ((id, _), before) in JOBS.iter().zip(before) {
            let now = read(&mut self.observer, &self.session, id);
            let at = now.iter().zip(before).position(|(now, before)| now != before);
            let at = at.or((now.len() != before.len()).then_some(now.len().min(before.len())));
            assert!(at.is_none(), "{when}: `{id}` differs at {at:?}: {:?} and not {:?}", now.last(), before.last());
        }
    }

    /// Kills the server with SIGKILL and starts another.
    fn restart(&mut self) {
        self.server.restart();
        self.observer = self.server.client();
    }
}

#[test]
fn ended_processes_are_read_the_same_without_their_holder_and_after_a_kill_of_the_server() {
    let (mut story, client) = Story::ended();
    let before = story.picture();
    assert_eq!(holders(&story.server), 1);
    client.leave();
    story.wait_holder_gone();
    for round in 0..2 {
        story.assert_same(&before, &format!("round {round} after the holder left"));
    }
    story.restart();
    for round in 0..2 {
        story.assert_same(&before, &format!("round {round} after the server was killed"));
    }
    assert_eq!(holders(&story.server), 0);
    // Terminating an ended process has the same result as with a holder.
    let params = json!({"processId": "big", "sessionId": story.session});
    assert_eq!(story.observer.ok("process/terminate", params)["running"], false);
    let mut owner = story.server.take_over(&story.session);
    owner.ok("session/end", json!({}));
    story.wait_dir_gone();
}

#[test]
fn a_holder_exits_also_when_the_server_was_killed_before() {
    let (mut story, client) = Story::ended();
    let before = story.picture();
    drop(client);
    story.server.kill();
    story.wait_holder_gone();
    story.server.restart();
    story.observer = story.server.client();
    story.assert_same(&before, "after the next server came");
    story.server.take_over(&story.session).ok("session/end", json!({}));
}

#[test]
fn a_session_without_a_holder_continues_where_it_was() {
    let mut story = Story::archived();
    let before = story.picture();
    for round in 0..2 {
        let mut owner = story.server.take_over(&story.session);
        let again = owner.fails("process/start", sh("big", "true"));
        assert_eq!(again.kind(), "duplicateProcess", "{again:?}");
        let id = format!("later-{round}");
        owner.ok("process/start", sh(&id, "echo later; exec sleep 1000"));
        assert_eq!(holders(&story.server), 1);
        story.assert_read_same(&before.1, "with a new holder");
        // Kill the server also while the new holder runs.
        story.restart();
        story.assert_read_same(&before.1, "with a new holder and a new server");
        let mut owner = story.server.take_over(&story.session);
        owner.ok("process/terminate", json!({"processId": id}));
        wait_for("its end", || is_closed(&mut story.observer, &id));
        owner.leave();
        story.wait_holder_gone();
    }
    story.restart();
    let mut owner = story.server.take_over(&story.session);
    owner.ok("process/forget", json!({"processId": "later-0"}));
    assert_eq!(story.observer.list_all().len(), JOBS.len() + 1);
    owner.ok("session/end", json!({}));
    story.wait_dir_gone();
}

#[test]
fn processes_forgotten_without_a_holder_leave_the_disk_and_do_not_come_back() {
    let mut story = Story::archived();
    let segments = story.files(".seg").len();
    let forget = |story: &mut Story, id: &str| {
        story.observer.ok("process/forget", json!({"processId": id, "sessionId": story.session}));
    };
    forget(&mut story, "big");
    wait_for("its files to go", || story.files(".seg").len() + 3 <= segments);
    story.restart();
    assert_eq!(story.observer.list_all().len(), JOBS.len() - 1);
    for (id, _) in &JOBS[1..] {
        forget(&mut story, id);
    }
    wait_for("all files to go", || story.files(".seg").is_empty() && story.files("processes").is_empty());
    story.restart();
    assert_eq!(story.observer.list_all(), [] as [Value; 0]);
    // The session is empty but still exists for its client.
    let mut owner = story.server.take_over(&story.session);
    owner.ok("process/start", sh("big", "true"));
    owner.ok("session/end", json!({}));
}

#[test]
fn the_clock_of_a_session_without_a_holder_runs_on_across_a_restart() {
    let (mut story, client) = Story::ended();
    drop(client);
    let ttl = json!({"takeover": true, "ttlMs": 5_000});
    let mut owner = story.server.resume(&story.session, with(modern(), ttl));
    owner.ok("environment/status", json!({}));
    drop(owner);
    story.wait_holder_gone();
    assert!(story.dir().exists());
    story.restart();
    assert!(story.dir().exists(), "its time is not over");
    story.wait_dir_gone();
    let again = json!({"clientName": "test", "resumeSessionId": story.session});
    assert_eq!(story.server.connect().fails("initialize", again).kind(), "sessionExpired");
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
        server.take_over(&session).ok("session/end", json!({}));
    }
}

#[test]
fn ended_sessions_cost_the_server_neither_descriptors_nor_mappings() {
    let mut story = Story::archived();
    let count = |server: &TestServer| {
        let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid())).expect("ours");
        (server.descriptors(), maps.lines().filter(|line| line.contains("/memfd:exec-server-")).count())
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
    story.wait_holder_gone();
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
    let last = observer.list_all();
    server.restart();
    let mut observer = server.client();
    for (id, session) in &jobs {
        let all = read(&mut observer, session, id);
        let text = chunk_bytes(&json!({"chunks": all[..all.len() - 1]}));
        let expected: String = (1..=3000).map(|line| format!("{line}\n")).chain([format!("{id}\n")]).collect();
        assert!(text == expected.as_bytes(), "{id}: {} bytes instead of {}", text.len(), expected.len());
        assert_eq!(all.last().expect("an end")["exitCode"], 5, "{id}");
    }
    assert_eq!(observer.list_all(), last);
    wait_for("the holders to leave", || holders(&server) == 0);
    for (_, session) in jobs {
        server.take_over(&session).ok("session/end", json!({}));
    }
}
