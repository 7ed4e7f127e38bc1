//! Helpers for the regression tests: find, stop and kill the processes of a test's server.

use std::{collections::BTreeSet, fs};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use testkit::{Client, Ended, TestServer, decode_base64, encode_base64, marked, wait_for};

/// The processes of this test's server with this `comm`, running or stopped.
pub(crate) fn named(server: &TestServer, name: &str) -> BTreeSet<u32> {
    let is_it = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name);
    marked(server.mark()).into_iter().filter(is_it).collect()
}

/// The holder of the only session with processes.
pub(crate) fn holder(server: &TestServer) -> u32 {
    let found = named(server, "exec-holder");
    assert_eq!(found.len(), 1, "one session has a holder: {found:?}");
    found.into_iter().next().expect("there is one")
}

/// Sends a signal to a process of this test.
pub(crate) fn send_signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process id is not zero");
    kill_process(pid, signal).expect("signal a process of this test");
}

/// A stopped holder. Dropping it sends SIGCONT.
pub(crate) struct Stopped(pub(crate) u32);

impl Stopped {
    pub(crate) fn new(pid: u32) -> Self {
        send_signal(pid, Signal::STOP);
        let stat = format!("/proc/{pid}/stat");
        wait_for("the holder to stand still", || {
            fs::read_to_string(&stat)
                .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" T")))
        });
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.0.cast_signed()).expect("a process id is not zero");
        kill_process(pid, Signal::CONT).ok(); // A failed test may have killed it.
    }
}

/// Resident memory of a kind in bytes: `RssAnon` is a process's own memory; the logs that it maps are `RssShmem`.
pub(crate) fn resident(pid: u32, kind: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find(|line| line.starts_with(kind)).expect("a line of this kind");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

/// Params of a write without an id.
pub(crate) fn write(id: &str, bytes: &[u8]) -> Value {
    json!({"processId": id, "chunk": encode_base64(bytes)})
}

/// Creates a session and returns its id.
pub(crate) fn initialize(client: &mut Client, params: Value) -> String {
    client.initialize_with(params)["sessionId"].as_str().expect("an id").to_owned()
}

/// Collects a process of the client's own session to its end and acknowledges every chunk. There must be no gap.
pub(crate) fn collect_acked(client: &mut Client, id: &str) -> Ended {
    let mut ended = Ended::default();
    loop {
        let message = client.next_notification();
        let params = &message["params"];
        assert_eq!(params["processId"], id, "{message}");
        ended.seqs.extend(params["seq"].as_u64());
        match message["method"].as_str() {
            Some("process/output") => {
                ended.stdout.extend(decode_base64(params["chunk"].as_str().expect("a chunk")));
                client.notify("process/ack", json!({"processId": id, "seq": params["seq"]}));
            }
            Some("process/exited") => ended.exited = params.clone(),
            Some("process/closed") => {
                ended.closed = params.clone();
                return ended;
            }
            _ => panic!("only output and the end are expected: {message}"),
        }
    }
}
