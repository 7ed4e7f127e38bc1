//! R5: output that was spilled to disk survives SIGKILL of the holder, up to a torn last record, which is dropped and counted. Output in
//! memory is lost, and the client is informed.

use crate::prelude::*;

/// Numbered lines of eight bytes: 24 MiB of them, a fifth more than a log may keep in memory.
const LINES: usize = 3 << 20;

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
        wait_for("all of the output", || other.listed("p")["outputBytes"] == BYTES);
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

    fn kill_holder(&self) -> u32 {
        let holder = self.server.holder();
        kill(holder);
        holder
    }

    /// Resumes the session as its owner, with additional params.
    fn resume(&self, more: Value) -> Client {
        self.server.resume(&self.session, with(with(modern(), json!({"takeover": true})), more))
    }

    fn wait_dir_gone(&self) {
        wait_for("the session's directory to go", || !self.dir().exists());
    }

    fn kill_server(&mut self) {
        self.server.kill();
        let manifest = self.dir().join("processes");
        // The holder writes the manifest again when it loses the server. From then on the manifest contains the total number of bytes.
        wait_for("the manifest", || {
            fs::read_to_string(&manifest).is_ok_and(|text| text.contains(&format!(" {BYTES} ")))
        });
    }

    /// Kills the server and then the holder, so that no server sees the holder's death.
    fn kill_both(&mut self) {
        self.kill_server();
        wait_gone("the holder", &BTreeSet::from([self.kill_holder()]));
    }
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
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
fn spilled_output_is_readable_after_holder_and_server_were_killed() {
    let mut story = Story::begin();
    story.kill_both();
    story.server.restart();
    let expected = expected();

    let mut observer = story.server.client();
    let lost = observer.listed("p");
    assert_eq!((&lost["exited"], &lost["closed"]), (&json!(true), &json!(true)));
    assert_eq!((&lost["exit"]["cause"], &lost["outputBytes"]), (&json!("lost"), &json!(BYTES)));
    let retained = lost["retainedBytes"].as_u64().expect("a count");
    assert_eq!(observer.listed("quiet")["exit"]["cause"], "lost");

    // Another session reads the output without consuming it for the owner.
    let answers = observer.read_until_closed(&json!({"processId": "p", "sessionId": story.session}));
    let read: Vec<u8> = answers.iter().flat_map(chunk_bytes).collect();
    let last = answers.last().expect("an answer");
    assert_eq!(read.len() as u64, retained);
    assert!(read == expected[..read.len()], "what is read is not what was written");
    assert_eq!(last["gap"]["bytes"], BYTES - retained);
    assert!(last["failure"].as_str().is_some_and(|text| text.contains("lost")), "{last}");

    let mut owner = story.resume(json!({}));
    let (bytes, missing, exited) = pushed(&mut owner, "p");
    assert!(bytes == read, "{} bytes pushed, {} read", bytes.len(), read.len());
    assert_eq!((missing, &exited["cause"], &exited["exitCode"]), (BYTES - retained, &json!("lost"), &json!(-1)));
    assert_eq!(owner.fails("process/start", sh("q", "true")).kind(), "holderLost");

    // Acknowledged segments are deleted, except the last readable part; after `forget` all are deleted.
    let closed = observer.listed("p")["nextSeq"].as_u64().expect("a number") - 1;
    owner.notify("process/ack", json!({"processId": "p", "seq": closed}));
    wait_for("taken segments to go", || story.segments().len() < 3);
    owner.ok("process/forget", json!({"processId": "p"}));
    assert_eq!(story.segments(), [] as [PathBuf; 0]);
    owner.ok("session/end", json!({}));
    story.wait_dir_gone();
}

#[test]
fn spilled_output_is_readable_when_the_holder_dies_after_the_next_server_gave_it_up() {
    let mut story = Story::begin();
    story.kill_server();
    let holder = story.server.holder();
    stop(holder);
    story.server.restart();
    let mut observer = story.server.client();
    assert_eq!(observer.listed("p"), Value::Null, "it did not answer");
    kill(holder);
    wait_for("the holder's files", || observer.listed("p")["exit"]["cause"] == "lost");
    let mut owner = story.resume(json!({}));
    let (bytes, missing, exited) = pushed(&mut owner, "p");
    assert!(bytes.len() > 3 << 20 && bytes == expected()[..bytes.len()], "{} bytes", bytes.len());
    assert_eq!((bytes.len() as u64 + missing, &exited["cause"]), (BYTES, &json!("lost")));
    owner.ok("session/end", json!({}));
    story.wait_dir_gone();
}

#[test]
fn a_torn_last_record_is_dropped_and_counted() {
    let mut story = Story::begin();
    story.kill_both();
    let last = story.segments().pop().expect("segments on disk");
    let file = fs::File::options().write(true).open(&last).expect("open the segment");
    file.set_len(len(&last) - 100_000).expect("cut the segment");
    story.server.restart();
    let mut owner = story.resume(json!({}));
    let (bytes, missing, exited) = pushed(&mut owner, "p");
    assert!(bytes == expected()[..bytes.len()], "what is read is not what was written");
    assert_eq!((bytes.len() as u64 + missing, &exited["cause"]), (BYTES, &json!("lost")));
    owner.ok("session/end", json!({}));
}

#[test]
fn with_the_server_alive_nothing_that_was_written_is_missing() {
    let story = Story::begin();
    story.kill_holder();
    let mut owner = story.resume(json!({}));
    let (bytes, missing, exited) = pushed(&mut owner, "p");
    assert_eq!((bytes.len() as u64, missing, &exited["cause"]), (BYTES, 0, &json!("lost")));
    assert!(bytes == expected(), "what is read is not what was written");
    owner.ok("session/end", json!({}));
    story.wait_dir_gone();
}

#[test]
fn a_session_that_no_client_resumes_is_removed_when_its_time_is_over() {
    let mut story = Story::begin();
    story.kill_both();
    story.server.restart();
    let mut owner = story.resume(json!({"ttlMs": 100}));
    owner.ok("environment/status", json!({}));
    drop(owner);
    story.wait_dir_gone();
    let again = json!({"clientName": "test", "resumeSessionId": story.session});
    assert_eq!(story.server.connect().fails("initialize", again).kind(), "sessionExpired");
}
