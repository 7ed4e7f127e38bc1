//! R4: processes survive the death of the server and of its spawner, which is replaced. When their holder dies they are killed, not
//! orphaned, and the client is informed; that part is tested in the file of S20.

use crate::{prelude::*, promises::host_helpers::within};

/// The processes of a state directory with this `comm`, including replacements, which have different arguments.
fn named(server: &TestServer, name: &str) -> BTreeSet<u32> {
    let state = server.state_dir().display().to_string();
    let comm = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    marked(&state).into_iter().filter(|pid| comm(pid).trim_end() == name).collect()
}

fn spawners(server: &TestServer) -> BTreeSet<u32> {
    named(server, "exec-spawner")
}

#[test]
fn a_dead_spawner_is_replaced_and_nothing_that_runs_is_touched() {
    let server = TestServer::start();
    let (mut client, _) = server.modern_client();
    client.ok("process/start", sh("p", "echo up; exec sleep 1000"));
    client.wait_output("p", "up\n");
    let pid = client.pid_of("p");
    let mut killed = BTreeSet::new();
    for round in 0..3 {
        let before = spawners(&server);
        assert_eq!(before.len(), 1, "{before:?}");
        before.iter().copied().for_each(kill);
        killed.extend(&before);
        if round != 1 {
            // The server watches its spawner, so a new one starts without a request.
            within(Duration::from_secs(5), "a new spawner", || spawners(&server).difference(&killed).count() == 1);
        }
        // A new spawner also starts at once when one is needed: here for a session that never had a holder.
        let (mut other, _) = server.modern_client();
        assert_eq!(other.script("q", "echo fine"), "fine");
        // The existing session still works: its holder does not need a spawner.
        assert_eq!(client.script(&format!("r{round}"), "echo here"), "here");
        other.ok("session/end", json!({}));
    }
    assert_eq!(client.pid_of("p"), pid);
    assert!(fs::exists(format!("/proc/{pid}")).expect("look for it"));
    wait_gone("the old spawners", &killed);
    // The first spawner was the server's own child. The others are reaped by the process that adopted them.
    let parent = format!("PPid:\t{}\n", server.pid());
    let is_ours =
        |pid: &&u32| fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| text.contains(&parent));
    assert_eq!(killed.iter().filter(is_ours).count(), 0, "a dead spawner is reaped");
    let last = spawners(&server);
    client.ok("session/end", json!({}));
    drop(server);
    wait_gone("the last spawner", &last);
}

#[test]
fn descendants_of_a_holder_whose_spawner_was_replaced_are_killed_too() {
    // As `nobody` there are no control groups, so only the spawner can find the descendant.
    let server = TestServer::builder().run_by_nobody().start();
    let before = spawners(&server);
    before.iter().copied().for_each(kill);
    within(Duration::from_secs(5), "a new spawner", || spawners(&server).difference(&before).count() == 1);
    let (mut client, _) = server.modern_client();
    let mark = format!("left-{}", server.mark());
    let script =
        format!("(setsid sh -c 'sleep 1000; sleep 1000' {mark} </dev/null >/dev/null 2>&1 &); echo up; sleep 1000");
    client.ok("process/start", sh("p", &script));
    client.wait_output("p", "up\n");
    within(Duration::from_secs(5), "the daemon", || !marked(&mark).is_empty());
    let holders = named(&server, "exec-holder");
    assert_eq!(holders.len(), 1, "{holders:?}");
    holders.iter().copied().for_each(kill);
    assert_eq!(client.collect("p").exited["cause"], "lost");
    within(Duration::from_secs(1), "what it left", || marked(&mark).is_empty());
    assert!(server.named("exec-holder").is_empty());
}
