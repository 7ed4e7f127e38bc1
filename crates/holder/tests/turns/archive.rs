//! When all processes of a detached session have closed, the holder exits and leaves the files. A later holder restores
//! them.

use crate::{
    prelude::*,
    support::{self, SECRET, TestServer},
};
use exec_server_holder::{archive_file::LeaseClock, manifest};
use exec_server_log as log;

const AFTER_MS: u64 = 500;

fn limits() -> HolderLimits {
    HolderLimits { ttl_ms: TTL_NONE, archive_after_ms: AFTER_MS, free_floor_bytes: 0, ..HolderLimits::default() }
}

/// Creates a holder whose server allows archives, with a closed process that wrote a little more than one segment.
fn ended(limits: HolderLimits) -> (HolderRig, u32, Vec<u8>) {
    let mut rig = HolderRig::build(limits);
    rig.server.send(&ToHolder::AllowArchive);
    let (slot, bytes) = run_one(&mut rig, b"first");
    (rig, slot, bytes)
}

fn run_one(rig: &mut HolderRig, meta: &[u8]) -> (u32, Vec<u8>) {
    let slot = rig.start(exec_server_holder::control::StartSpec { meta: meta.to_vec(), ..spec() });
    let driver = rig.driver();
    let bytes = pattern(1_300_000);
    for part in bytes.chunks(60_000) {
        assert_eq!(driver.write_stdout(part).expect("room in the pipe"), part.len());
        let until = rig.server.log(slot).bytes.len() + part.len();
        rig.until(|rig| rig.server.log(slot).bytes.len() >= until);
    }
    driver.close_all();
    driver.exit(3);
    rig.until_closed(slot);
    (slot, bytes)
}

/// Makes the holder archive its session and leave.
#[track_caller]
fn archive(rig: &mut HolderRig) {
    until_archived(rig);
    rig.server.send(&ToHolder::Leave);
    until_ended(rig);
}

/// Lets the time pass after which a holder archives its session, until it has done so.
#[track_caller]
fn until_archived(rig: &mut HolderRig) {
    wait(rig);
    rig.until_message(|message| *message == FromHolder::Archived);
}

fn detach(rig: &mut HolderRig) {
    rig.server.send(&ToHolder::Detach { ttl_ms: TTL_NONE });
    rig.turn();
}

/// Lets the time pass after which a holder archives its session.
fn wait(rig: &mut HolderRig) {
    rig.now += AFTER_MS * MS;
}

/// Runs turns until the holder has ended.
#[track_caller]
fn until_ended(rig: &mut HolderRig) {
    rig.until(|rig| rig.last.ended);
}

/// Creates the next holder for the same session, with a new server.
fn next(rig: HolderRig) -> HolderRig {
    let HolderRig { holder, source, now, dir, .. } = rig;
    drop(holder);
    let (ours, theirs) = support::pair();
    let config = HolderConfig { limits: limits(), ..support::config(open_dir(&dir)) };
    let holder = exec_server_holder::Holder::new(config, theirs, source.clone(), now).expect("a holder");
    let server = TestServer::new(ours, open_dir(&dir));
    let last = exec_server_holder::TurnResult { next_deadline_ns: None, ended: false };
    let mut rig = HolderRig { holder, server, source, now, tick: 0, last, dir };
    rig.server.hello(1);
    rig.server.send(&ToHolder::AllowArchive);
    rig
}

#[test]
fn a_session_whose_processes_have_closed_is_archived_and_restored() {
    let (mut rig, slot, bytes) = ended(limits());
    let (second, more) = run_one(&mut rig, b"second");
    detach(&mut rig);
    assert_eq!(rig.last.next_deadline_ns, Some(rig.now + AFTER_MS * MS));
    until_archived(&mut rig);
    let before = rig.status(slot);
    rig.server.send(&ToHolder::Leave);
    until_ended(&mut rig);

    let dir = open_dir(&rig.dir);
    assert_eq!(LeaseClock::read(&dir).expect("readable"), Some(LeaseClock { ttl_ms: TTL_NONE, detached_ns: Some(0) }));
    let entries = manifest::read(&dir).expect("readable").expect("a manifest");
    assert_eq!(entries.iter().map(|one| one.slot).collect::<Vec<_>>(), [slot, second]);
    for one in &entries {
        let recovered = log::recover(dir.as_fd(), one.slot).expect("readable");
        assert!(recovered.is_whole(&one.status), "{recovered:?}");
    }

    let mut rig = next(rig);
    rig.until_message(|message| *message == FromHolder::Ready);
    rig.until(|rig| rig.server.log(slot).closed.is_some() && rig.server.log(second).closed.is_some());
    assert_eq!(rig.status(slot), before);
    assert_eq!((&rig.server.log(slot).bytes, &rig.server.log(second).bytes), (&bytes, &more));
    assert_eq!((rig.server.log(slot).gap_bytes, rig.server.log(slot).exit.expect("an exit").code), (0, 3));
    let third = rig.start(spec());
    assert!(![slot, second].contains(&third), "a slot whose files exist is not reused");
    assert_eq!(rig.request(|req| ToHolder::Forget { req, slot }), CommandStatus::Ok);
    rig.holder.wait_for_disk();
    assert!(!rig.files().iter().any(|name| name.starts_with(&format!("{slot}-"))), "{:?}", rig.files());
}

#[test]
fn without_a_server_the_holder_exits_by_itself() {
    let (mut rig, slot, _) = ended(limits());
    rig.lose_server();
    rig.turn();
    wait(&mut rig);
    until_ended(&mut rig);
    let entries = manifest::read(open_dir(&rig.dir)).expect("readable").expect("a manifest");
    let recovered = log::recover(open_dir(&rig.dir).as_fd(), slot).expect("readable");
    assert!(recovered.is_whole(&entries[0].status));
}

#[test]
fn a_log_that_was_taken_completely_stays_known() {
    let mut rig = HolderRig::build(limits());
    rig.server.send(&ToHolder::AllowArchive);
    let slot = rig.start(spec());
    rig.end_process(slot);
    rig.server.release(slot);
    detach(&mut rig);
    archive(&mut rig);
    let mut rig = next(rig);
    let known = rig.until_message(|message| matches!(message, FromHolder::Process(_)));
    assert!(matches!(known, FromHolder::Process(info) if info.slot == slot && !info.running));
}

#[test]
fn a_server_that_does_not_know_archives_keeps_its_holder() {
    let mut rig = HolderRig::build(limits());
    let (slot, _) = run_one(&mut rig, b"id");
    detach(&mut rig);
    wait(&mut rig);
    rig.turn();
    rig.lose_server();
    rig.turn();
    wait(&mut rig);
    rig.turn();
    rig.holder.wait_for_disk();
    rig.turn();
    assert!(!rig.last.ended);
    assert!(!rig.files().iter().any(|name| name.starts_with(&format!("{slot}-"))));
}

#[test]
fn an_attached_session_and_one_with_a_running_process_keep_their_holder() {
    let (mut rig, ..) = ended(limits());
    wait(&mut rig);
    rig.turn();
    assert!(!rig.server.inbox.contains(&FromHolder::Archived));
    let slot = rig.start(spec());
    detach(&mut rig);
    wait(&mut rig);
    rig.turn();
    assert_eq!(rig.last.next_deadline_ns, None);
    rig.end_process(slot);
    rig.turn();
    until_archived(&mut rig);
}

#[test]
fn a_client_that_comes_back_before_the_holder_leaves_keeps_it() {
    let (mut rig, slot, _) = ended(limits());
    detach(&mut rig);
    until_archived(&mut rig);
    rig.server.send(&ToHolder::Attach);
    rig.turn();
    rig.server.send(&ToHolder::Leave);
    rig.until_message(|message| *message == FromHolder::Staying);
    rig.holder.wait_for_disk();
    assert_eq!(LeaseClock::read(open_dir(&rig.dir)).expect("readable"), None);
    let next = rig.start(spec());
    assert_ne!(next, slot);
}

#[test]
fn a_full_quota_keeps_the_holder() {
    let (mut rig, ..) = ended(HolderLimits { disk_quota_bytes: MIB, ..limits() });
    detach(&mut rig);
    for _ in 0..5 {
        wait(&mut rig);
        rig.turn();
        rig.holder.wait_for_disk();
    }
    assert!(!rig.last.ended && !rig.server.inbox.contains(&FromHolder::Archived));
    assert_eq!(rig.files(), ["sock"]);
}

#[test]
fn a_full_disk_keeps_the_holder_until_there_is_room() {
    let (mut rig, slot, _) = ended(limits());
    // Put a directory in the place of each segment file, so that the writes fail.
    let names: Vec<_> = rig.server.log(slot).ids().into_iter().map(|id| log::disk_name(slot, id)).collect();
    names.iter().for_each(|name| std::fs::create_dir(rig.dir.path().join(name)).expect("a directory"));
    detach(&mut rig);
    for _ in 0..5 {
        rig.now += 1000 * MS;
        rig.turn();
        rig.holder.wait_for_disk();
    }
    assert!(!rig.server.inbox.contains(&FromHolder::Archived));
    names.iter().for_each(|name| std::fs::remove_dir(rig.dir.path().join(name)).expect("empty"));
    rig.tick = 100 * MS;
    rig.until_message(|message| *message == FromHolder::Archived);
}

#[test]
fn a_holder_that_was_replaced_at_once_does_not_change_its_session() {
    let (mut rig, ..) = ended(limits());
    detach(&mut rig);
    archive(&mut rig);
    let files = rig.files();
    let mut rig = next(rig);
    rig.until_message(|message| *message == FromHolder::Ready);
    // The server could not use this holder and creates another.
    std::fs::write(rig.dir.path().join("secret"), [9; SECRET.len()]).expect("another secret");
    rig.lose_server();
    until_ended(&mut rig);
    let left: Vec<_> = rig.files().into_iter().filter(|name| name.ends_with(".seg") || name == "processes").collect();
    assert!(left.iter().all(|name| files.contains(name)) && left.len() > 1, "{left:?}");
}
