//! R5: output that was spilled to disk survives SIGKILL of the holder, up to a torn last record, which is dropped and counted. Output in
//! memory is lost, and the client is informed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use testkit::{Client, RpcError, TestServer, decode_base64, kill, sh, stop, wait_for, wait_gone};

/// Numbered lines of eight bytes: 20 MiB of them, a quarter more than a log may keep in memory.
const LINES: usize = 5 << 19;

const BYTES: u64 = 8 * LINES as u64;

fn expected() -> Vec<u8> {
    (1..=LINES).flat_map(|line| format!("{line:07}\n").into_bytes()).collect()
}

struct Story {
    server: TestServer,
    session: String,
}

impl Story {
    /// A process has written everything and still runs, its client has disconnected, and the older part of its output is on disk.
    fn begin() -> Self {
        let server = TestServer::builder().keep_holders().start();
        let (mut client, session) = server.modern_client();
        client.ok("process/start", sh("p", &format!("seq -f %07.0f 1 {LINES}; exec sleep 1000")));
        client.ok("process/start", sh("quiet", "echo quiet; exec sleep 1000"));
        drop(client);
        let mut other = server.client();
        wait_for("all of the output", || listed(&mut other, "p")["outputBytes"] == BYTES);
        let story = Self { server, session };
        wait_for("the oldest of it on disk", || story.segments().iter().map(|path| len(path)).sum::<u64>() > 3 << 20);
        story
    }

    fn dir(&self) -> PathBuf {
        self.server.state_dir().join("sessions").join(&self.session)
    }

    /// The files of spilled segments, oldest first.
    fn segments(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.dir()) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
        let first_seq = |path: &PathBuf| fs::read(path).ok().and_then(|bytes| bytes.get(24..32).map(<[u8]>::to_vec));
        paths.sort_by_key(|path| first_seq(path).map(|raw| raw.into_iter().rev().collect::<Vec<u8>>()));
        paths
    }

    /// The holder of the session. It is the only one left, because the holders of other sessions end with them.
    fn holder(&self) -> u32 {
        let holders = self.server.named("exec-holder");
        let [holder] = holders.iter().copied().collect::<Vec<_>>()[..] else { panic!("one holder, not {holders:?}") };
        holder
    }

    fn kill_holder(&self) -> u32 {
        let holder = self.holder();
        kill(holder);
        holder
    }

    /// Resumes the session as its owner, with additional params.
    fn resume(&self, more: &Value) -> Client {
        let mut client = self.server.connect();
        let capabilities = json!({"ack": true, "gap": true, "concurrent": true});
        let mut params = json!({"clientName": "test", "resumeSessionId": self.session, "takeover": true, "capabilities": capabilities});
        for (name, value) in more.as_object().into_iter().flatten() {
            params[name] = value.clone();
        }
        client.initialize_with(params);
        client
    }

    fn kill_server(&mut self) {
        self.server.kill();
        let roll = self.dir().join("processes");
        // The holder writes the manifest again when it loses the server. From then on the manifest contains the total number of bytes.
        wait_for("the roll", || fs::read_to_string(&roll).is_ok_and(|text| text.contains(&format!(" {BYTES} "))));
    }

    /// Kills the server and then the holder, so that no server sees the holder's death.
    fn kill_both(&mut self) {
        self.kill_server();
        wait_gone("the holder", &BTreeSet::from([self.kill_holder()]));
    }
}

/// The error kind of a failed call.
fn kind(outcome: Result<Value, RpcError>) -> String {
    outcome.expect_err("an error").kind().to_owned()
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

fn listed(client: &mut Client, id: &str) -> Value {
    let list = client.ok("process/list", json!({"scope": "all"}));
    let processes = list["processes"].as_array().expect("a list").clone();
    processes.into_iter().find(|process| process["processId"] == id).unwrap_or_default()
}

/// Everything pushed for a process: its bytes, the size of its gaps, its exit.
fn pushed(client: &mut Client, id: &str) -> (Vec<u8>, u64, Value) {
    let (mut bytes, mut missing, mut exited) = (Vec::new(), 0, Value::Null);
    loop {
        let message = client.next_notification();
        let params = &message["params"];
        if params["processId"] != id {
            continue;
        }
        match message["method"].as_str() {
            Some("process/output") => {
                assert_eq!(missing, 0, "output after the gap: {params}");
                bytes.extend(decode_base64(params["chunk"].as_str().expect("a chunk")));
                client.notify("process/ack", json!({"processId": id, "seq": params["seq"]}));
            }
            Some("process/gap") => missing += params["bytes"].as_u64().expect("a count"),
            Some("process/exited") => exited = params.clone(),
            Some("process/closed") => return (bytes, missing, exited),
            _ => panic!("{message}"),
        }
    }
}

#[test]
fn what_was_spilled_is_read_after_holder_and_server_were_killed() {
    let mut story = Story::begin();
    story.kill_both();
    story.server.restart();
    let expected = expected();

    let mut observer = story.server.client();
    let lost = listed(&mut observer, "p");
    assert_eq!(
        (&lost["exited"], &lost["closed"], &lost["exit"]["cause"]),
        (&json!(true), &json!(true), &json!("lost"))
    );
    assert_eq!(lost["outputBytes"], BYTES);
    let retained = lost["retainedBytes"].as_u64().expect("a count");
    assert_eq!(listed(&mut observer, "quiet")["exit"]["cause"], "lost");

    // Another session reads the output without consuming it for the owner.
    let (mut read, mut after) = (Vec::new(), 0);
    let last = loop {
        let answer =
            observer.ok("process/read", json!({"processId": "p", "sessionId": story.session, "afterSeq": after}));
        for chunk in answer["chunks"].as_array().expect("chunks") {
            read.extend(decode_base64(chunk["chunk"].as_str().expect("a chunk")));
        }
        after = answer["nextSeq"].as_u64().expect("a number") - 1;
        if answer["closed"] == true {
            break answer;
        }
    };
    assert_eq!(read.len() as u64, retained);
    assert!(read == expected[..read.len()], "what is read is not what was written");
    assert_eq!(last["gap"]["bytes"], BYTES - retained);
    assert!(last["failure"].as_str().is_some_and(|text| text.contains("lost")), "{last}");

    let mut owner = story.resume(&json!({}));
    let (bytes, missing, exited) = pushed(&mut owner, "p");
    assert!(bytes == read, "{} bytes pushed, {} read", bytes.len(), read.len());
    assert_eq!((missing, &exited["cause"], &exited["exitCode"]), (BYTES - retained, &json!("lost"), &json!(-1)));
    assert_eq!(kind(owner.call("process/start", sh("q", "true"))), "holderLost");

    // Acknowledged segments are deleted, except the last readable part; after `forget` all are deleted.
    let closed = listed(&mut observer, "p")["nextSeq"].as_u64().expect("a number") - 1;
    owner.notify("process/ack", json!({"processId": "p", "seq": closed}));
    wait_for("taken segments to go", || story.segments().len() < 3);
    owner.ok("process/forget", json!({"processId": "p"}));
    assert_eq!(story.segments(), [] as [PathBuf; 0]);
    owner.ok("session/end", json!({}));
    wait_for("the session's directory to go", || !story.dir().exists());
}

#[test]
fn what_was_spilled_is_read_also_when_the_holder_dies_only_after_the_next_server_gave_it_up() {
    let mut story = Story::begin();
    story.kill_server();
    let holder = story.holder();
    stop(holder);
    story.server.restart();
    let mut observer = story.server.client();
    assert_eq!(listed(&mut observer, "p"), Value::Null, "it did not answer");
    kill(holder);
    wait_for("what it left", || listed(&mut observer, "p")["exit"]["cause"] == "lost");
    let mut owner = story.resume(&json!({}));
    let (bytes, missing, exited) = pushed(&mut owner, "p");
    assert!(bytes.len() > 3 << 20 && bytes == expected()[..bytes.len()], "{} bytes", bytes.len());
    assert_eq!((bytes.len() as u64 + missing, &exited["cause"]), (BYTES, &json!("lost")));
    owner.ok("session/end", json!({}));
    wait_for("the session's directory to go", || !story.dir().exists());
}

#[test]
fn a_torn_last_record_is_dropped_and_counted() {
    let mut story = Story::begin();
    story.kill_both();
    let last = story.segments().pop().expect("segments on disk");
    let file = fs::File::options().write(true).open(&last).expect("open the segment");
    file.set_len(len(&last) - 100_000).expect("cut the segment");
    story.server.restart();
    let mut owner = story.resume(&json!({}));
    let (bytes, missing, exited) = pushed(&mut owner, "p");
    assert!(bytes == expected()[..bytes.len()], "what is read is not what was written");
    assert_eq!((bytes.len() as u64 + missing, &exited["cause"]), (BYTES, &json!("lost")));
    owner.ok("session/end", json!({}));
}

#[test]
fn with_the_server_alive_nothing_that_was_written_is_missing() {
    let story = Story::begin();
    story.kill_holder();
    let mut owner = story.resume(&json!({}));
    let (bytes, missing, exited) = pushed(&mut owner, "p");
    assert_eq!((bytes.len() as u64, missing, &exited["cause"]), (BYTES, 0, &json!("lost")));
    assert!(bytes == expected(), "what is read is not what was written");
    owner.ok("session/end", json!({}));
    wait_for("the session's directory to go", || !story.dir().exists());
}

#[test]
fn a_session_that_nobody_comes_back_for_is_removed_in_its_time() {
    let mut story = Story::begin();
    story.kill_both();
    story.server.restart();
    let mut owner = story.resume(&json!({"ttlMs": 100}));
    owner.ok("environment/status", json!({}));
    drop(owner);
    wait_for("the session's directory to go", || !story.dir().exists());
    let again = json!({"clientName": "test", "resumeSessionId": story.session});
    assert_eq!(kind(story.server.connect().call("initialize", again)), "sessionExpired");
}
