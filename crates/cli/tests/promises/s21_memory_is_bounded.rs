//! S21: memory per session is bounded for any output rate, and a slow client blocks only its own processes.

use crate::{prelude::*, wire::configuration_and_monitoring::metrics};

const FLOODS: u64 = 4;
const MIB: u64 = 1 << 20;

/// The limits of a process's log in memory and on disk in this test.
const MEMORY: u64 = 4 * MIB;
const DISK: u64 = 8 * MIB;

/// Other memory of a process and a connection: a segment on its way to disk, one that was read back, tables, buffers, and its quarter of
/// the 16 MiB that a holder with this many processes may keep for its next segments.
const BESIDE: u64 = 9 * MIB;

fn server() -> TestServer {
    TestServer::builder().args(["--memory-per-process=4MiB", "--disk-per-process=8MiB"]).start()
}

/// How often memory shared by server and holder is counted. Only root can read the proportional share of a holder.
fn shares() -> u64 {
    if rustix::process::geteuid().is_root() { 1 } else { 2 }
}

/// Anonymous and shared memory of the server and its holders.
fn memory(server: &TestServer) -> u64 {
    let (file, keys) = if shares() == 1 {
        ("smaps_rollup", ["Pss_Anon:", "Pss_Shmem:"])
    } else {
        ("status", ["RssAnon:", "RssShmem:"])
    };
    let of = |pid: &u32| {
        let read = |file| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let (name, memory) = (read("comm"), read(file));
        let kib = |key: &&str| {
            let line = memory.lines().find(|line| line.starts_with(*key)).expect("the kernel counts it");
            line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number")
        };
        if name.starts_with("exec-") { keys.iter().map(kib).sum::<u64>() * 1024 } else { 0 }
    };
    server.processes().iter().map(of).sum()
}

fn list(client: &mut Client, session: &str) -> Vec<Value> {
    client.list_all().into_iter().filter(|process| process["sessionId"] == session).collect()
}

/// Waits until all floods of the session are blocked for this reason; returns how much each has written.
fn wait_blocked(observer: &mut Client, session: &str, why: &str) -> Vec<u64> {
    let mut written = Vec::new();
    wait_for(&format!("all blocked by {why}"), || {
        let list = list(observer, session);
        written = list.iter().map(|process| process["outputBytes"].as_u64().expect("a number")).collect();
        list.len() as u64 == FLOODS && list.iter().all(|process| process["blocked"] == why)
    });
    written
}

/// A round trip through `cat`, and a megabyte of output.
fn works(client: &mut Client, round: u64) {
    let text = format!("round {round}\n");
    client.ok("process/write", json!({"processId": "cat", "writeId": text, "chunk": encode_base64(text.as_bytes())}));
    let echo = client.next_notification();
    assert_eq!(decode_base64(echo["params"]["chunk"].as_str().expect("a chunk")), text.as_bytes());
    let ended = client.run(&format!("much-{round}"), &["/bin/sh", "-c", "yes | head -c 1048576"]);
    assert_eq!((ended.code(), ended.stdout.len()), (0, 1 << 20));
}

#[test]
fn memory_is_bounded_and_a_slow_client_blocks_only_its_own_processes() {
    let server = server();
    let (mut neighbour, _) = server.modern_client();
    neighbour.start(cat("cat"));
    works(&mut neighbour, 0);
    let before = memory(&server);
    let bound = before + FLOODS * shares() * (MEMORY + BESIDE);

    // A client that reads nothing: its processes block, and no others.
    let (mut slow, session) = server.modern_client();
    for number in 0..FLOODS {
        slow.ok("process/start", start_params(&format!("flood-{number}"), &["/usr/bin/yes"]));
    }
    let written = wait_blocked(&mut neighbour, &session, "memoryCap");
    assert!(memory(&server) <= bound, "{} bytes, {before} before, attached", memory(&server));
    for round in 1..4 {
        works(&mut neighbour, round);
    }
    let later: Vec<u64> = list(&mut neighbour, &session).iter().filter_map(|p| p["outputBytes"].as_u64()).collect();
    assert_eq!(later, written, "blocked processes went on");

    // After it disconnects, output goes to disk up to the quota, and then the processes block again.
    slow.leave();
    let written = wait_blocked(&mut neighbour, &session, "quota");
    assert!(written.iter().all(|bytes| *bytes <= MEMORY + DISK + 5 * MIB), "{written:?}");
    assert!(memory(&server) <= bound, "{} bytes, {before} before, detached", memory(&server));
    works(&mut neighbour, 4);

    // After it reconnects and reads, the processes continue.
    let mut back = server.resume(&session, modern());
    let mut taken = vec![0; FLOODS as usize];
    while taken.iter().zip(&written).any(|(taken, written)| *taken < written + 4 * MIB) {
        let event = back.next_notification_within(Duration::from_secs(20)).expect("the floods go on");
        let params = &event["params"];
        assert_eq!(event["method"], "process/output", "{event}");
        let name = params["processId"].as_str().expect("a name");
        let number: usize = name.trim_start_matches("flood-").parse().expect("one of the floods");
        taken[number] += decode_base64(params["chunk"].as_str().expect("a chunk")).len() as u64;
        back.notify("process/ack", json!({"processId": name, "seq": params["seq"]}));
    }
    assert!(memory(&server) <= bound, "{} bytes, {before} before, read again", memory(&server));
    back.ok("session/end", json!({}));
    works(&mut neighbour, 5);
}

#[test]
fn a_hundred_readers_that_stop_hold_a_window_each_and_disturb_no_one_else() {
    const READERS: u64 = 100;
    let server = TestServer::builder().args(["--memory-per-process=4MiB", "--disk-per-process=8MiB"]).start();
    let (mut neighbour, _) = server.modern_client();
    neighbour.start(cat("cat"));
    works(&mut neighbour, 0);
    let before = memory(&server);
    let mut readers: Vec<Client> = (0..READERS).map(|_| server.modern_client().0).collect();
    for reader in &mut readers {
        reader.ok("process/start", start_params("flood", &["/usr/bin/yes"]));
    }
    let is_blocked = |process: &Value| process["blocked"] == "memoryCap";
    wait_for("all of them to be blocked", || {
        neighbour.list_all().iter().filter(|p| is_blocked(p)).count() as u64 == READERS
    });
    let blocked = || metrics(&server).get("exec_server_processes_blocked", &[("reason", "memory")]);
    wait_for("the metrics to show them", || blocked() == READERS as f64);
    let bound = before + READERS * shares() * (MEMORY + 2 * MIB);
    assert!(memory(&server) <= bound, "{} bytes, {before} before", memory(&server));
    works(&mut neighbour, 1);
    // A reader that leaves its session frees all of it.
    for mut reader in readers {
        reader.ok("session/end", json!({}));
    }
    wait_for("the sessions to end", || neighbour.list_all().iter().all(|process| process["processId"] != "flood"));
    works(&mut neighbour, 2);
}
