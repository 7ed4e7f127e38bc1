//! The lease and the end of the session.

use crate::{prelude::*, support::TestSpawner};
use exec_server_holder::{
    ChildRestrictions,
    cgroup::SessionCgroup,
    spawner::SECRET_NAME,
    tombstone::{ExpiredProcess, Tombstone},
};

/// Runs turns until the holder has ended.
#[track_caller]
fn until_ended(rig: &mut HolderRig) {
    rig.until(|rig| rig.last.ended);
    rig.server.absorb();
}

#[test]
fn end_kills_all_answers_and_leaves_nothing() {
    let mut rig = HolderRig::real();
    let mut pids = Vec::new();
    for _ in 0..3 {
        let req = rig.server.req();
        rig.server.send(&ToHolder::Start { req, spec: shell("sleep 1000 & sleep 1000") });
        let started = rig.until_message(|message| matches!(message, FromHolder::Started { .. }));
        let FromHolder::Started { pid, .. } = started else { unreachable!("only `Started` fits") };
        pids.push(pid);
    }
    let req = rig.server.req();
    rig.server.send(&ToHolder::End { req });
    until_ended(&mut rig);
    assert!(rig.server.inbox.contains(&FromHolder::Done { req, status: CommandStatus::Ok }));
    assert!(!rig.dir.path().exists());
    for pid in pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}

#[test]
fn expiry_kills_all_and_leaves_a_tombstone() {
    let mut rig = HolderRig::scripted();
    rig.start(StartSpec { meta: b"id".to_vec(), ..spec() });
    let driver = rig.driver();
    rig.server.send(&ToHolder::Detach { ttl_ms: 50 });
    rig.turn();
    assert_eq!(rig.last.next_deadline_ns, Some(50 * MS));
    rig.turn_at(49 * MS);
    assert!(!rig.last.ended && driver.signals().is_empty());
    rig.now = 50 * MS;
    until_ended(&mut rig);
    assert_eq!(driver.signals(), [libc::SIGKILL]);
    assert!(rig.server.inbox.contains(&FromHolder::Expired));
    assert_eq!(rig.files(), ["expired"]);
    let stone = Tombstone::read(open_dir(&rig.dir)).expect("readable").expect("there");
    let pid = driver.pid().as_raw_nonzero().get().unsigned_abs();
    assert_eq!(stone.processes, [ExpiredProcess { pid, was_running: true, meta: b"id".to_vec() }]);
    assert!(stone.unix_seconds > 1_600_000_000);
}

#[test]
fn lease_clock_stops_while_attached_and_runs_when_the_controller_is_lost() {
    let mut rig = HolderRig::scripted();
    rig.server.send(&ToHolder::SetTtl { ttl_ms: 100 });
    rig.turn_at(5000 * MS);
    assert!(!rig.last.ended && rig.last.next_deadline_ns.is_none());
    rig.lose_server();
    rig.turn();
    assert_eq!(rig.last.next_deadline_ns, Some(5100 * MS));
    rig.turn_at(5099 * MS);
    assert!(!rig.last.ended);
    rig.turn_at(5100 * MS);
    assert!(rig.last.ended);
}

#[test]
fn orphan_ends_after_its_own_time_unless_another_server_adopts_it() {
    let mut rig = HolderRig::scripted();
    rig.server.send(&ToHolder::SetTtl { ttl_ms: TTL_NONE });
    rig.server.send(&ToHolder::SetOrphanTtl { ttl_ms: 100 });
    rig.turn_at(5000 * MS);
    assert!(!rig.last.ended && rig.last.next_deadline_ns.is_none(), "its server is there");
    rig.lose_server();
    rig.turn();
    assert_eq!(rig.last.next_deadline_ns, Some(5100 * MS));
    // The next server does not set the limit, and the limit of the first server no longer applies.
    drop(rig.adopt(2));
    rig.turn();
    rig.turn_at(6000 * MS);
    rig.lose_server();
    rig.turn();
    assert!(!rig.last.ended && rig.last.next_deadline_ns.is_none());
    drop(rig.adopt(3));
    rig.turn();
    rig.server.send(&ToHolder::SetOrphanTtl { ttl_ms: 100 });
    rig.turn();
    rig.lose_server();
    rig.turn();
    rig.turn_at(6099 * MS);
    assert!(!rig.last.ended);
    rig.now = 6100 * MS;
    until_ended(&mut rig);
    assert_eq!(rig.files(), ["expired"]);
}

#[test]
fn holder_whose_secret_file_is_gone_ends_with_its_link() {
    let mut rig = HolderRig::scripted();
    std::fs::remove_file(rig.dir.path().join(SECRET_NAME)).expect("the secret was there");
    rig.turn();
    assert!(!rig.last.ended, "while its server is there nothing is lost");
    rig.lose_server();
    until_ended(&mut rig);
    assert_eq!(rig.files(), ["sock"], "another holder of the session may have taken the name");
}

#[test]
fn holder_whose_secret_was_replaced_leaves_its_control_group_to_the_next_holder() {
    // A plain directory in place of a control group: writes to the kernel end up in plain files.
    let group = tempfile::tempdir().expect("a directory");
    let build = || {
        let group = SessionCgroup::decode(format!("u {}\n", group.path().display()).as_bytes());
        let confine = ChildRestrictions { group, ..ChildRestrictions::default() };
        HolderRig::confined(TestSpawner::default(), HolderLimits::default(), confine)
    };
    let was_killed = || group.path().join("cgroup.kill").exists();
    let mut rig = build();
    std::fs::write(rig.dir.path().join(SECRET_NAME), [8; 32]).expect("the next holder's");
    rig.lose_server();
    until_ended(&mut rig);
    assert!(!was_killed(), "others live in it");
    let mut rig = build();
    rig.server.send(&ToHolder::End { req: 1 });
    until_ended(&mut rig);
    assert!(was_killed(), "all of it was its own");
}

#[test]
fn clock_of_a_holder_whose_secret_was_replaced_does_not_end_the_session() {
    let mut rig = HolderRig::scripted();
    rig.server.send(&ToHolder::Detach { ttl_ms: 50 });
    rig.turn();
    std::fs::write(rig.dir.path().join(SECRET_NAME), [8; 32]).expect("the next holder's");
    rig.now = 50 * MS;
    until_ended(&mut rig);
    assert_eq!(rig.files(), ["sock"]);
}

#[test]
fn holder_with_a_process_continues_without_its_secret() {
    let mut rig = HolderRig::scripted();
    rig.start(spec());
    std::fs::remove_file(rig.dir.path().join(SECRET_NAME)).expect("the secret was there");
    rig.lose_server();
    rig.turn();
    assert!(!rig.last.ended);
}

#[test]
fn last_commands_of_a_server_that_read_nothing_are_executed() {
    let mut rig = HolderRig::scripted();
    // The answers to these requests exceed the socket and the holder's queue, so the holder stops reading.
    for req in 0..500 {
        rig.server.send(&ToHolder::Signal { req, slot: 7, signal: 1 });
        rig.holder.turn(0);
    }
    rig.server.send(&ToHolder::End { req: 500 });
    rig.holder.turn(0);
    rig.lose_server();
    until_ended(&mut rig);
    assert!(!rig.dir.path().exists());
}

#[test]
fn session_without_a_time_to_live_never_expires() {
    let mut rig = HolderRig::scripted();
    rig.server.send(&ToHolder::Detach { ttl_ms: TTL_NONE });
    rig.turn_at(u64::MAX / 2);
    assert!(!rig.last.ended && rig.last.next_deadline_ns.is_none());
}

#[test]
fn lease_clock_stops_while_others_use_the_session_and_starts_again_afterwards() {
    let mut rig = HolderRig::scripted();
    rig.start(spec());
    rig.server.send(&ToHolder::Detach { ttl_ms: 100 });
    rig.turn();
    rig.now = 90 * MS;
    // A single use that has already ended.
    rig.server.send(&ToHolder::Used { is_going_on: false });
    rig.turn();
    rig.now = 180 * MS;
    rig.server.send(&ToHolder::Used { is_going_on: true });
    rig.turn();
    rig.turn_at(5000 * MS);
    assert!(!rig.last.ended && rig.last.next_deadline_ns.is_none(), "{:?}", rig.last);
    rig.server.send(&ToHolder::Used { is_going_on: false });
    rig.turn();
    assert_eq!(rig.last.next_deadline_ns, Some(5100 * MS));
    // The use ends when the server is lost.
    rig.server.send(&ToHolder::Used { is_going_on: true });
    rig.turn();
    assert_eq!(rig.last.next_deadline_ns, None);
    rig.lose_server();
    rig.last = rig.holder.turn(rig.now);
    assert_eq!(rig.last.next_deadline_ns, Some(5100 * MS));
}
