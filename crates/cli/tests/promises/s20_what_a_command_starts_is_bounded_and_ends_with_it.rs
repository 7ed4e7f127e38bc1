//! S20: each process is in a control group with limits if the host allows creating one, and otherwise has its own rlimits. Terminate kills
//! the control group in one step; without one it kills process group, session and descendants. Nothing outlives its session or the death of
//! its holder.

use crate::{
    prelude::*,
    promises::host_helpers::{compile, groups_of, has_group_kill, has_group_pids, within},
};

const SECOND: Duration = Duration::from_secs(1);

/// Descendants that left their session, lost their parents and ignore all signals that can be ignored; `MARK` is in their arguments.
const DAEMON: &str = "for i in 1 2 3; do (setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000; sleep 1000' MARK </dev/null >/dev/null 2>&1 &) ; done";

/// Starts the process `p` with daemons and waits until all of them run.
fn start_daemons(client: &mut Client, mark: &str) {
    let daemons = DAEMON.replace("MARK", mark);
    client.ok("process/start", sh("p", &format!("{daemons}; echo up; sleep 1000")));
    client.wait_output("p", "up\n");
    wait_for("all daemons", || marked(mark).len() >= 3);
}

/// Forks forever. A copy that cannot fork tries again, so the group stays full. Every copy has the mark in its arguments.
const BOMB: &str =
    "#include <poll.h>\n#include <unistd.h>\nint main(void) { for (;;) if (fork() < 0) poll(0, 0, 10); }\n";

/// The limit on processes in the group of a child. It must be in force before a fork bomb may be started.
fn limit_in_force(client: &mut Client) -> u64 {
    let own = client.script("limit", "cat /proc/self/cgroup");
    let mut found = Vec::new();
    for (left, right) in own.lines().filter_map(|line| line.split_once("/exec-server-")) {
        let unified = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let bases = if left.starts_with("0::") { &unified[..] } else { &["/sys/fs/cgroup/pids"] };
        let base = left.rsplit(':').next().unwrap_or_default();
        // The group is reused for the next process, with the same limit.
        found.extend(bases.iter().filter_map(|place| {
            fs::read_to_string(format!("{place}{base}/exec-server-{right}/pids.max")).ok()?.trim().parse::<u64>().ok()
        }));
    }
    found.pop().expect("the limit is in force in the group of a child")
}

#[test]
fn fork_bombs_are_contained_and_gone_within_a_second_and_the_server_answers_throughout() {
    assert!(has_group_pids(), "this host lets us limit no group of processes; no bomb goes off here");
    let server = TestServer::builder().args(["--max-pids", "100"]).start();
    let (mut client, _) = server.modern_client();
    assert_eq!(limit_in_force(&mut client), 100);
    let mut other = server.client();
    let bomb = compile(server.dir(), "bomb", BOMB, &[]);
    for round in 0..20 {
        let id = format!("bomb{round}");
        let mark = format!("bomb-{round}-{}", server.mark());
        client.ok("process/start", start_params(&id, &[&bomb, &mark]));
        within(10 * SECOND, "the bomb fills its group", || marked(&mark).len() >= 90);
        assert!(marked(&mark).len() <= 100, "contained");
        let asked = Instant::now();
        other.ok("environment/status", json!({}));
        assert!(asked.elapsed() < SECOND, "the server answered after {:?}", asked.elapsed());
        let begun = Instant::now();
        client.ok("process/terminate", json!({"processId": id}));
        within(SECOND, "every part of the bomb is gone", || marked(&mark).is_empty());
        let ended = client.collect(&id);
        assert_eq!(ended.exited["cause"], "terminated");
        assert_eq!(ended.exited["limitsHit"], json!(["pids"]), "{}", ended.exited);
        assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    }
    // The next process starts with a clean state.
    assert_eq!(client.run("after", &["true"]).exited.get("limitsHit"), None);
}

#[test]
fn a_process_that_cannot_fork_is_reported_and_its_neighbour_in_the_session_is_unharmed() {
    assert!(has_group_pids(), "this host lets us make no control group with a limit of processes");
    let server = TestServer::builder().args(["--max-pids", "8"]).start();
    let (mut client, _) = server.modern_client();
    client.ok("process/start", sh("full", "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 >/dev/null 2>&1 & done; wait"));
    let full = client.collect("full");
    assert!(String::from_utf8_lossy(&full.stderr).to_lowercase().contains("fork"), "{full:?}");
    assert_eq!(full.exited["limitsHit"], json!(["pids"]));
    assert_eq!(client.run("next", &["echo", "fine"]).stdout, b"fine\n");
}

#[test]
fn daemons_are_gone_within_a_second_of_terminate_with_a_group_and_of_the_end_of_the_session_without() {
    assert!(has_group_kill(), "this host lets us make no control group that can be killed");
    let server = TestServer::start();
    let mark = format!("daemon-{}", server.mark());
    let (mut client, _) = server.modern_client();
    start_daemons(&mut client, &mark);
    client.ok("process/terminate", json!({"processId": "p"}));
    within(SECOND, "daemons after terminate", || marked(&mark).is_empty());

    // As `nobody` we cannot create control groups.
    let server = TestServer::builder().run_by_nobody().start();
    let mark = format!("daemon-{}", server.mark());
    let (mut client, _) = server.modern_client();
    start_daemons(&mut client, &mark);
    assert_eq!(groups_of(&server), Vec::<std::path::PathBuf>::new());
    client.ok("session/end", json!({}));
    within(SECOND, "daemons after the end of the session", || marked(&mark).is_empty());
}

#[test]
fn nothing_of_a_dead_holder_lives_longer_than_a_second_with_and_without_groups() {
    for is_nobody in [false, true] {
        let builder = TestServer::builder();
        let server = if is_nobody { builder.run_by_nobody() } else { builder }.start();
        let mark = format!("daemon-{}", server.mark());
        let (mut client, _session) = server.modern_client();
        start_daemons(&mut client, &mark);
        client.ok("process/start", sh("q", "exec sleep 1000"));
        let holders = server.named("exec-holder");
        let groups = groups_of(&server);
        assert_eq!(groups.is_empty(), is_nobody || !has_group_kill());
        let begun = Instant::now();
        holders.iter().copied().for_each(kill);
        let told = client.collect("q");
        assert_eq!((told.code(), &told.exited["cause"]), (-1, &json!("lost")));
        assert!(begun.elapsed() < SECOND, "told after {:?}", begun.elapsed());
        within(SECOND, "what the holder had", || marked(&mark).is_empty());
        wait_gone("the holder", &holders);
        assert_eq!(client.fails("process/start", sh("r", "exit 0")).kind(), "holderLost");
        within(SECOND, "its groups", || !groups.iter().any(|group| group.exists()));
    }
}

#[test]
fn the_next_server_kills_the_descendants_of_a_holder_that_died_between_two_servers() {
    assert!(has_group_kill(), "this host lets us make no control group that can be killed");
    let mut server = TestServer::builder().keep_holders().start();
    let mark = format!("daemon-{}", server.mark());
    let (mut client, session) = server.modern_client();
    start_daemons(&mut client, &mark);
    let (holders, groups) = (server.named("exec-holder"), groups_of(&server));
    server.kill();
    wait_gone("the spawner", &server.named("exec-spawner"));
    holders.iter().copied().for_each(kill);
    wait_gone("the holder", &holders);
    assert!(!marked(&mark).is_empty(), "no server was there to end them");
    server.restart();
    within(SECOND, "what the holder had", || marked(&mark).is_empty());
    assert!(!groups.iter().any(|group| group.exists()), "{groups:?}");
    let gone = server.connect().fails("initialize", json!({"clientName": "test", "resumeSessionId": session}));
    assert_eq!(gone.kind(), "holderLost");
}

#[test]
fn groups_are_removed_with_their_session_and_reused_within_it() {
    assert!(has_group_kill(), "this host lets us make no control group that can be killed");
    let server = TestServer::start();
    let (mut client, _) = server.modern_client();
    let mut seen = BTreeSet::new();
    for round in 0..10 {
        seen.insert(client.script(&format!("p{round}"), "grep exec-server /proc/self/cgroup"));
    }
    assert!(seen.iter().all(|own| own.contains("exec-server-")), "{seen:?}");
    assert!(seen.len() <= 2, "one after the other needs no more: {seen:?}");
    let groups = groups_of(&server);
    assert!(!groups.is_empty() && groups.iter().all(|group| group.exists()), "{groups:?}");
    client.ok("session/end", json!({}));
    wait_for("the end of the groups", || !groups.iter().any(|group| group.exists()));
}

#[test]
fn without_a_group_each_process_has_its_own_limits_and_the_server_says_so() {
    // As `nobody` we cannot create control groups.
    let limits = ["--max-pids", "3000", "--max-memory", "64MiB"];
    let server = TestServer::builder().run_by_nobody().args(limits).start();
    let (mut client, _) = server.modern_client();
    let limits = client.script("limits", "cat /proc/self/limits");
    let of = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).expect("the limit is listed");
        line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of("Max processes"), ["3000", "3000"]);
    assert_eq!(of("Max data size"), ["67108864", "67108864"]);
    let log = server.stderr();
    assert!(log.contains("--max-pids") && log.contains("--max-memory"), "{log}");
}
