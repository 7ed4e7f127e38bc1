//! R8: a process that has ended is always reported as ended, even at its quota. `kill` always ends it, and a command that waits for it
//! prints why it makes no progress. Output is dropped only if the user chose that or the reader already has it, and it is counted.

use crate::prelude::*;

const MIB: u64 = 1 << 20;

/// The limits of a process's log in memory and on disk.
const MEMORY: u64 = 3 * MIB;

const DISK: u64 = 4 * MIB;

/// Prints numbered lines of eight bytes without end.
const FLOOD: &str = "exec seq -f %07.0f 1 9999999";

/// The number of lines of a finite flood: more bytes than memory and disk hold together.
const LINES: u64 = 2 << 20;

struct World {
    server: TestServer,
}

impl World {
    fn new() -> Self {
        let limits = ["--memory-per-process=3MiB", "--disk-per-process=4MiB", "--disk-floor=0"];
        Self { server: TestServer::builder().keep_holders().args(limits).start() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg(args[0]).args(["--connect", self.server.url()]).args(&args[1..]);
        command.env("HOME", self.server.dir()).env("XDG_STATE_HOME", self.server.dir());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("run exec-server")
    }

    /// Starts a command whose stdout is discarded.
    fn spawn(&self, args: &[&str]) -> Running {
        spawn(self.command(args).stdout(Stdio::null()))
    }

    fn listed(&self, id: &str) -> Value {
        self.server.client().listed(id)
    }

    /// Starts a detached process and waits until it is blocked at its quota.
    fn blocked(&self, id: &str) {
        let output = self.run(&["run", "-d", "--keep-all", "--name", id, "--", "sh", "-c", FLOOD]);
        assert!(output.status.success(), "{output:?}");
        self.wait_blocked(id);
    }

    fn wait_blocked(&self, id: &str) {
        wait_for("the quota", || self.listed(id)["blocked"] == "quota");
    }

    /// Checks that a signal ended the process, that all its output is counted, and that its id is free.
    fn expect_ended(&self, id: &str) {
        let waited = self.run(&["wait", "--json", id]);
        assert_eq!(waited.status.code(), Some(137), "{waited:?}");
        let listed = self.listed(id);
        assert_eq!(
            (&listed["exited"], &listed["closed"], &listed["blocked"], &listed["droppedBytes"]),
            (&json!(true), &json!(true), &Value::Null, &json!(0)),
            "{listed}"
        );
        let logs = self.run(&["logs", id]);
        assert_eq!(json!(logs.stdout.len()), listed["outputBytes"], "what was in the pipe is in the log");
        assert!(logs.stdout == lines(0, logs.stdout.len()), "in order and whole");
        assert!(self.run(&["forget", id]).status.success());
        assert_eq!(self.listed(id), Value::Null);
        let again = self.run(&["run", "-d", "--name", id, "--", "true"]);
        assert!(again.status.success(), "{again:?}");
        self.run(&["wait", id]);
        assert!(self.run(&["forget", id]).status.success());
    }
}

/// Bytes `from` to `to` of a flood's output.
fn lines(from: usize, to: usize) -> Vec<u8> {
    let all = (from / 8 + 1..=to.div_ceil(8)).flat_map(|line| format!("{line:07}\n").into_bytes());
    all.skip(from % 8).take(to - from).collect()
}

#[test]
fn single_bytes_do_not_fill_the_log_of_a_client_that_reads() {
    const BYTES: usize = 120_000;
    let world = World::new();
    let out = world.server.dir().join("out");
    let mut run = world.command(&["run", "--name", "job", "--", "sleep", "1000"]);
    let mut run = spawn(run.stdout(File::create(&out).expect("create a file")));
    wait_for("the process", || world.listed("job")["pid"].is_number());
    let stdout = format!("/proc/{}/fd/1", world.listed("job")["pid"]);
    let mut stdout = fs::OpenOptions::new().write(true).open(stdout).expect("open the pipe");
    let mut last = Instant::now();
    for _ in 0..BYTES {
        stdout.write_all(b".").expect("write to the pipe");
        // The next byte only after the holder has read this one, so that each byte is an event of its own. Such events
        // take 32 bytes of the log: 3.7 MiB in all, where the log may have 3.
        while rustix::io::ioctl_fionread(&stdout).expect("ask the pipe") > 0 {
            assert!(last.elapsed() < Duration::from_secs(20), "the process is blocked");
            thread::yield_now();
        }
        last = Instant::now();
    }
    drop(stdout);
    assert!(world.run(&["kill", "-s", "KILL", "job"]).status.success());
    let status = run.wait().expect("wait for `run`");
    let written = fs::metadata(&out).expect("look at the file").len();
    assert_eq!((status.code(), written), (Some(137), BYTES as u64));
}

#[test]
fn kill_ends_a_process_at_its_quota() {
    let world = World::new();
    for how in [&["kill", "--grace", "0s", "job"][..], &["kill", "-s", "KILL", "job"]] {
        world.blocked("job");
        assert!(world.run(how).status.success(), "{how:?}");
        world.expect_ended("job");
    }
}

#[test]
fn commands_that_wait_for_a_process_at_its_quota_print_why_and_see_its_end() {
    let world = World::new();
    world.blocked("job");
    let wait = "`job` is blocked: its output has reached the disk quota";
    let mut waiting = world.spawn(&["wait", "job"]);
    let mut attached = world.spawn(&["attach", "job"]);
    // Starts at a number that leaves the oldest output unread, so it frees nothing.
    let mut following = world.spawn(&["logs", "-f", "--since", "10", "job"]);
    for command in [&mut waiting, &mut attached, &mut following] {
        let stderr = command.stderr.as_mut().expect("stderr is a pipe");
        assert!(read_until(stderr, "ends the process\n").contains(wait));
    }
    assert_eq!(world.listed("job")["blocked"], "quota", "no command has printed its output");
    assert!(world.run(&["kill", "--grace", "0s", "job"]).status.success());
    assert_eq!([&mut waiting, &mut attached].map(|command| end_of(command).code()), [Some(137); 2]);
    end_of(&mut following);
    world.expect_ended("job");
}

#[test]
fn logs_f_frees_what_it_has_printed_and_later_readers_get_a_gap() {
    let world = World::new();
    let script = format!("exec seq -f %07.0f 1 {LINES}");
    assert!(world.run(&["run", "-d", "--keep-all", "--name", "job", "--", "sh", "-c", &script]).status.success());
    world.wait_blocked("job");
    // `logs` without `-f` changes nothing.
    let (first, second) = (world.run(&["logs", "job"]), world.run(&["logs", "job"]));
    assert!(first.stdout == second.stdout && first.stdout.len() as u64 >= DISK, "{} bytes", first.stdout.len());
    assert_eq!(world.listed("job")["droppedBytes"], 0);
    let all = 8 * LINES;
    let followed = world.run(&["logs", "-f", "job"]);
    assert_eq!((followed.status.code(), followed.stdout.len() as u64), (Some(0), all));
    assert!(followed.stdout == lines(0, followed.stdout.len()), "whole and in order");
    let listed = world.listed("job");
    let dropped = listed["droppedBytes"].as_u64().expect("a count");
    assert!(dropped > 0 && listed["outputBytes"] == all && listed["closed"] == true, "{listed}");
    let late = world.run(&["logs", "job"]);
    let missing = usize::try_from(dropped).expect("a small count");
    assert!(late.stdout == lines(missing, followed.stdout.len()), "{} bytes", late.stdout.len());
    let gap = format!("{dropped} bytes of output");
    assert!(text(&late.stderr).contains(&gap), "{}", text(&late.stderr));
}

#[test]
fn without_keep_all_the_oldest_output_is_dropped_and_counted() {
    let world = World::new();
    let script = format!("exec seq -f %07.0f 1 {LINES}");
    assert!(world.run(&["run", "-d", "--name", "job", "--", "sh", "-c", &script]).status.success());
    assert_eq!(world.run(&["wait", "job"]).status.code(), Some(0), "it waits for no reader");
    let listed = world.listed("job");
    let (all, dropped) = (8 * LINES, listed["droppedBytes"].as_u64().expect("a count"));
    assert!(listed["outputBytes"] == all && dropped > 0 && dropped < all - MEMORY, "{listed}");
    let logs = world.run(&["logs", "job"]);
    assert_eq!(logs.stdout.len() as u64, all - dropped);
    let (from, to) = (usize::try_from(dropped).expect("small"), usize::try_from(all).expect("small"));
    assert!(logs.stdout == lines(from, to), "the newest of it");
}

/// Receives pushed output and acknowledges it on arrival, until `is_enough`.
fn follow(client: &mut Client, session: &str, bytes: &mut Vec<u8>, mut is_enough: impl FnMut(usize) -> bool) -> u64 {
    loop {
        let message = client.next_notification();
        let params = &message["params"];
        match message["method"].as_str() {
            Some("process/output") => {
                bytes.extend(decode_base64(params["chunk"].as_str().expect("a chunk")));
                let seq = params["seq"].as_u64().expect("a number");
                client.notify("process/ack", json!({"processId": "p", "sessionId": session, "seq": seq}));
                if is_enough(bytes.len()) {
                    return seq;
                }
            }
            Some("process/exited") => {}
            Some("process/closed") => return params["seq"].as_u64().expect("a number"),
            _ => panic!("{message}"),
        }
    }
}

#[test]
fn the_slowest_follower_decides_and_a_cut_or_a_killed_server_frees_nothing_more() {
    let mut world = World::new();
    let (mut owner, session) = world.server.modern_client();
    owner.ok("process/start", sh("p", &format!("exec seq -f %07.0f 1 {LINES}")));
    drop(owner);
    world.wait_blocked("p");
    let subscribe = |client: &mut Client, after: u64| {
        let params = json!({"processId": "p", "sessionId": session, "afterSeq": after, "fromSeq": 0, "hold": true});
        client.ok("process/subscribe", params);
    };
    let dropped = |world: &World| world.listed("p")["droppedBytes"].as_u64().expect("a count");
    let (mut fast, _) = world.server.modern_client();
    let (mut slow, _) = world.server.modern_client();
    subscribe(&mut slow, 0);
    subscribe(&mut fast, 0);
    let (mut bytes, most) = (Vec::new(), usize::try_from(DISK).expect("small"));
    let seq = follow(&mut fast, &session, &mut bytes, |len| len >= most);
    // Processed after the acknowledgements, because requests are handled in order.
    fast.ok("process/list", json!({}));
    assert_eq!((dropped(&world), &world.listed("p")["blocked"]), (0, &json!("quota")), "the slow one has nothing");
    // Cut the fast reader and kill the server: the slow reader determines what may be freed, and it has taken nothing.
    drop(fast);
    world.server.restart();
    world.wait_blocked("p");
    assert_eq!(dropped(&world), 0);
    // The fast reader comes back alone. The output that it already had is freed, and its output continues without a hole.
    let (mut fast, _) = world.server.modern_client();
    subscribe(&mut fast, seq);
    fast.notify("process/ack", json!({"processId": "p", "sessionId": session, "seq": seq}));
    follow(&mut fast, &session, &mut bytes, |_| false);
    assert!(bytes == lines(0, 8 * usize::try_from(LINES).expect("small")), "{} bytes", bytes.len());
    // The owner comes back, and its gap reports exactly the bytes that were freed.
    let mut owner = world.server.resume(&session, json!({"capabilities": {"ack": true, "gap": true}}));
    let (mut missing, mut rest) = (0, Vec::new());
    loop {
        let message = owner.next_notification();
        let params = &message["params"];
        match message["method"].as_str() {
            Some("process/gap") => missing += params["bytes"].as_u64().expect("a count"),
            Some("process/output") => {
                rest.extend(decode_base64(params["chunk"].as_str().expect("a chunk")));
                owner.notify("process/ack", json!({"processId": "p", "seq": params["seq"]}));
            }
            Some("process/closed") => break assert_eq!(params["droppedBytes"], missing),
            _ => {}
        }
    }
    assert!(missing > 0 && bytes.ends_with(&rest) && missing + rest.len() as u64 == 8 * LINES);
    owner.ok("session/end", json!({}));
}

#[test]
fn a_reader_that_polls_frees_what_it_has() {
    let world = World::new();
    let (mut owner, session) = world.server.modern_client();
    owner.ok("process/start", sh("p", &format!("exec seq -f %07.0f 1 {LINES}")));
    drop(owner);
    world.wait_blocked("p");
    let mut reader = world.server.client();
    let params = json!({"processId": "p", "sessionId": session, "fromSeq": 0, "waitMs": 10_000});
    let answers = reader.read_until_closed(&params);
    assert!(answers.iter().all(|answer| answer["gap"].is_null()));
    let bytes: Vec<u8> = answers.iter().flat_map(chunk_bytes).collect();
    assert!(bytes == lines(0, 8 * usize::try_from(LINES).expect("small")), "{} bytes", bytes.len());
    assert!(world.listed("p")["droppedBytes"].as_u64().expect("a count") > 0);
}

#[test]
fn a_process_whose_client_does_not_read_ends_when_it_is_killed() {
    let world = World::new();
    let (mut owner, session) = world.server.modern_client();
    owner.ok("process/start", sh("p", &format!("(sleep 1000 & ) ; {FLOOD}")));
    let mut other = world.server.client();
    wait_for("the bound of its memory", || world.listed("p")["blocked"] == "memoryCap");
    let pid = owner.pid_of("p");
    kill(pid);
    wait_for("its exit", || world.listed("p")["exited"] == true);
    // A descendant still holds the streams; `terminate` ends that one too.
    other.ok("process/terminate", json!({"processId": "p", "sessionId": session}));
    wait_for("its close", || world.listed("p")["closed"] == true);
    other.ok("process/forget", json!({"processId": "p", "sessionId": session}));
}
