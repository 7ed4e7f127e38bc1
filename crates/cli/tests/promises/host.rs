//! Helpers for the tests of children: detects what this host allows without using the server, and inspects processes from outside.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use testkit::{Client, DEADLINE, TestServer, decode_base64, start_params, wait_for};

/// The uid of `nobody`.
pub(crate) const NOBODY: u32 = 65534;

/// A client with the `ack`, `gap` and `concurrent` capabilities, and its session id.
pub(crate) fn modern(server: &TestServer) -> (Client, String) {
    let mut client = server.connect();
    let capabilities = json!({"ack": true, "gap": true, "concurrent": true});
    let answer = client.initialize_with(json!({"clientName": "test", "capabilities": capabilities}));
    let session = answer["sessionId"].as_str().expect("a session id").to_owned();
    (client, session)
}

/// Params for running a shell script.
pub(crate) fn sh(id: &str, script: &str) -> Value {
    start_params(id, &["sh", "-c", script])
}

/// Runs a script to its end and returns its stdout without trailing newlines.
pub(crate) fn said(client: &mut Client, id: &str, script: &str) -> String {
    client.ok("process/start", sh(id, script));
    String::from_utf8_lossy(&client.collect(id).stdout).trim_end().to_owned()
}

/// The pid of a process, from `process/list`.
pub(crate) fn pid_of(client: &mut Client, id: &str) -> u32 {
    let list = client.ok("process/list", json!({}));
    let entries = list["processes"].as_array().expect("a list");
    let entry = entries.iter().find(|entry| entry["processId"] == id).unwrap_or_else(|| panic!("`{id}` in {list}"));
    u32::try_from(entry["pid"].as_u64().expect("a pid")).expect("a pid is small")
}

/// Waits until the output of a process contains `wanted`, and returns all output until then.
pub(crate) fn wait_output(client: &mut Client, id: &str, wanted: &str) -> String {
    let end = Instant::now() + DEADLINE;
    let mut all = String::new();
    while !all.contains(wanted) {
        let left = end.saturating_duration_since(Instant::now());
        let message = client.next_notification_within(left).unwrap_or_else(|| panic!("`{wanted}` after `{all}`"));
        if message["method"] == "process/output" && message["params"]["processId"] == id {
            all += &String::from_utf8_lossy(&decode_base64(message["params"]["chunk"].as_str().expect("a chunk")));
        }
    }
    all
}

/// The processes of a server with this `comm`: `exec-spawner` or `exec-holder`.
pub(crate) fn named(server: &TestServer, name: &str) -> BTreeSet<u32> {
    let is_it = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name);
    server.processes().into_iter().filter(is_it).collect()
}

/// Compiles a C program or library for a child to run. The tests need a C compiler.
pub(crate) fn compile(dir: &Path, name: &str, source: &str, flags: &[&str]) -> String {
    let (text, made) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&text, source).expect("write the source");
    let compiled = std::process::Command::new("cc").args(flags).arg("-o").arg(&made).arg(&text).output();
    let compiled = compiled.expect("start the C compiler `cc`, which this test needs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    made.display().to_string()
}

/// Sends SIGKILL.
pub(crate) fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).expect("a process id is not zero"), Signal::KILL).expect("kill it");
}

/// Sends SIGSTOP and waits until the process is stopped.
pub(crate) fn stop(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).expect("a process id is not zero"), Signal::STOP).expect("stop it");
    let stat = format!("/proc/{pid}/stat");
    wait_for("a process to stand still", || {
        fs::read_to_string(&stat)
            .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" T")))
    });
}

/// All live processes whose arguments contain `mark`, except this one.
pub(crate) fn carrying(mark: &str) -> BTreeSet<u32> {
    testkit::marked(mark)
}

/// Waits at most `limit` for a condition and returns how long it took; fails with `what` otherwise.
pub(crate) fn within(limit: Duration, what: &str, mut level: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !level() {
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
    begun.elapsed()
}

/// The directory of a cgroup hierarchy in which this process may create groups; `None` if the host does not allow it.
fn writable(hierarchy: &str) -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.split_once(hierarchy)?.1.strip_prefix('/'))?.to_owned();
    let places: &[&str] =
        if hierarchy == "0::" { &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] } else { &["/sys/fs/cgroup/pids"] };
    places.iter().map(|place| Path::new(place).join(&path)).find(|base| {
        let probe = base.join(format!("probe-{}", std::process::id()));
        let made = base.join("cgroup.procs").exists() && fs::create_dir(&probe).is_ok();
        let wanted = if hierarchy == "0::" { "cgroup.kill" } else { "pids.max" };
        let is_it = probe.join(wanted).exists();
        fs::remove_dir(&probe).ok();
        made && is_it
    })
}

/// Whether this host allows groups with `cgroup.kill`.
pub(crate) fn has_group_kill() -> bool {
    writable("0::").is_some()
}

/// Whether this host allows limiting processes by a group, in the v1 pids hierarchy or in the unified one.
pub(crate) fn has_group_pids() -> bool {
    let unified = writable("0::").and_then(|base| fs::read_to_string(base.join("cgroup.controllers")).ok());
    writable(":pids:").is_some() || unified.is_some_and(|controllers| controllers.contains("pids"))
}

/// The control groups of the sessions in this server's state directory.
pub(crate) fn groups_of(server: &TestServer) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for session in fs::read_dir(server.state_dir().join("sessions")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(session.path().join("cgroup")).unwrap_or_default();
        all.extend(text.lines().filter_map(|line| line.split_once(' ')).map(|(_, dir)| PathBuf::from(dir)));
    }
    all
}
