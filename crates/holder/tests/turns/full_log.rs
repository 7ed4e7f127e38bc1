//! Full logs: blocking, spilling and dropping.

use std::mem::MaybeUninit;

use rustix::fs::inotify;

use crate::prelude::*;
use exec_server_holder::manifest::{self, MANIFEST_NAME};
use exec_server_log::BlockReason;

const CAP: u64 = 2 * MIB;

fn small(overflow: OverflowPolicy) -> StartSpec {
    StartSpec { cap_bytes: CAP, overflow, ..spec() }
}

/// Writes as much as the pipe accepts.
fn feed(driver: &ScriptDriver, data: &[u8], at: &mut usize) {
    while let Some(rest) = data.get(*at..).filter(|rest| !rest.is_empty()) {
        match driver.write_stdout(&rest[..rest.len().min(65536)]) {
            Ok(n) => *at += n,
            Err(_) => return,
        }
    }
}

fn blocked(rig: &HolderRig, slot: u32) -> BlockReason {
    rig.status(slot).blocked
}

/// A process whose log blocks for this reason. Returns its data and how much of it is written.
#[track_caller]
fn blocked_process(mut rig: HolderRig, len: usize, why: BlockReason) -> (HolderRig, u32, Vec<u8>, usize) {
    let slot = rig.start(small(OverflowPolicy::Block));
    if why != BlockReason::MemoryCap {
        rig.server.send(&ToHolder::Detach { ttl_ms: TTL_NONE });
    }
    let (data, mut at) = (pattern(len), 0);
    feed_until_blocked(&mut rig, slot, &data, &mut at, why);
    (rig, slot, data, at)
}

/// Writes the rest of the data until the reader has all of it.
#[track_caller]
fn feed_to_end(rig: &mut HolderRig, slot: u32, data: &[u8], mut at: usize) {
    let driver = rig.driver();
    rig.until(|rig| {
        feed(&driver, data, &mut at);
        rig.server.log(slot).bytes.len() == data.len()
    });
}

/// Writes until the holder reports that it no longer reads.
#[track_caller]
fn feed_until_blocked(rig: &mut HolderRig, slot: u32, data: &[u8], at: &mut usize, why: BlockReason) {
    let driver = rig.driver();
    rig.until(|rig| {
        feed(&driver, data, at);
        blocked(rig, slot) == why
    });
}

#[test]
fn full_log_of_an_attached_session_blocks_the_child_until_output_is_taken() {
    let (mut rig, slot, data, mut at) = blocked_process(HolderRig::limited(1 << 30), 12 << 20, BlockReason::MemoryCap);
    let retained = rig.server.log(slot).bytes.len();
    assert!(retained as u64 <= CAP && retained as u64 > CAP - MIB, "{retained}");
    let driver = rig.driver();
    rig.until(|rig| {
        rig.server.release(slot);
        feed(&driver, &data, &mut at);
        if at == data.len() {
            driver.exit(0);
            driver.close_all();
        }
        rig.server.log(slot).closed.is_some()
    });
    assert!(rig.server.log(slot).bytes == data);
    assert!(rig.files().iter().all(|name| !name.ends_with(".seg")), "no disk is touched while attached");
}

/// Why a log is full.
#[derive(Clone, Copy, Debug)]
enum FullReason {
    Memory,
    Quota,
    Disk,
}

/// Creates a process that is blocked because its log is full. Returns its data and how much of it is written. Some of
/// that is still in the pipe.
fn on_a_full_log(full: FullReason) -> (HolderRig, u32, Vec<u8>, usize) {
    let (mut rig, slot, data, mut at) = match full {
        FullReason::Disk => on_a_full_disk(),
        FullReason::Memory => blocked_process(HolderRig::limited(1 << 30), 12 << 20, BlockReason::MemoryCap),
        FullReason::Quota => blocked_process(HolderRig::limited(3 * MIB), 12 << 20, BlockReason::Quota),
    };
    feed(&rig.driver(), &data, &mut at);
    for _ in 0..10 {
        rig.turn();
    }
    assert!(rig.server.log(slot).bytes.len() < at, "its pipe is full as well");
    assert_ne!(blocked(&rig, slot), BlockReason::No);
    (rig, slot, data, at)
}

#[test]
fn exit_of_a_blocked_child_is_reported_with_its_tail_whatever_is_full() {
    for full in [FullReason::Memory, FullReason::Quota, FullReason::Disk] {
        let (mut rig, slot, data, at) = on_a_full_log(full);
        let driver = rig.driver();
        driver.die(9);
        driver.close_all();
        // Nothing is released: the end must not wait for that.
        let log = rig.until_closed(slot);
        assert!(log.bytes == data[..at], "{full:?}");
        assert_eq!((log.order.as_slice(), log.gap_bytes), (["output", "exited", "closed"].as_slice(), 0), "{full:?}");
        assert_eq!(blocked(&rig, slot), BlockReason::No, "{full:?}");
        assert_eq!(rig.request(|req| ToHolder::Forget { req, slot }), CommandStatus::Ok, "{full:?}");
    }
}

#[test]
fn exit_is_reported_while_others_hold_a_full_log_and_the_close_when_they_are_gone() {
    for full in [FullReason::Memory, FullReason::Quota, FullReason::Disk] {
        let (mut rig, slot, data, mut at) = on_a_full_log(full);
        let driver = rig.driver();
        driver.exit(7);
        rig.until(|rig| rig.server.log(slot).exit.is_some());
        assert_eq!(rig.server.log(slot).exit.map(|exit| exit.code), Some(7));
        assert!(rig.server.log(slot).bytes == data[..at], "{full:?}");
        // The remaining writer still blocks: the reserve is only for output that cannot grow.
        let exited = rig.server.log(slot).bytes.len();
        for _ in 0..10 {
            feed(&driver, &data, &mut at);
            rig.turn();
        }
        assert_eq!(rig.server.log(slot).bytes.len(), exited, "{full:?}");
        assert_ne!(blocked(&rig, slot), BlockReason::No, "{full:?}");
        driver.close_all();
        rig.until_closed(slot);
        assert!(rig.server.log(slot).bytes == data[..at], "{full:?}");
        assert_eq!(rig.server.log(slot).order, ["output", "exited", "output", "closed"], "{full:?}");
    }
}

/// The last event in the log, which this reader has read.
fn read_to(rig: &HolderRig, slot: u32) -> u64 {
    rig.status(slot).next_seq - 1
}

#[test]
fn following_readers_free_what_they_have_taken_and_nothing_more() {
    for full in [FullReason::Quota, FullReason::Disk] {
        let (mut rig, slot, data, mut at) = on_a_full_log(full);
        let driver = rig.driver();
        // The readers have taken only the first event of the oldest segment, so the segment stays.
        rig.server.send(&ToHolder::Followed { slot, seq: 1 });
        rig.turn();
        assert_eq!(rig.status(slot).dropped, 0, "{full:?}");
        rig.until(|rig| {
            let seq = read_to(rig, slot);
            rig.server.send(&ToHolder::Followed { slot, seq });
            feed(&driver, &data, &mut at);
            at == data.len() && rig.server.log(slot).bytes.len() == at
        });
        let status = rig.status(slot);
        assert!(status.dropped > 0 && status.released_seq == 0, "counted, and not taken by the owner: {status:?}");
        // The follower has missed nothing. A reader that starts later misses everything that was dropped.
        assert!(rig.server.log(slot).bytes == data && rig.server.log(slot).gap_bytes == 0, "{full:?}");
        rig.end_process(slot);
        rig.adopt_until_ready(2);
        rig.server.absorb();
        let late = rig.server.log(slot);
        assert_eq!((late.gap_bytes, late.closed), (status.dropped, Some((at as u64, status.dropped))), "{full:?}");
        assert!(late.bytes == data[data.len() - late.bytes.len()..], "{full:?}");
    }
}

#[test]
fn followed_log_is_kept_for_an_attached_client_and_when_the_server_is_lost() {
    let (mut rig, slot, ..) = on_a_full_log(FullReason::Quota);
    let dropped = |rig: &HolderRig| rig.status(slot).dropped;
    rig.server.send(&ToHolder::Attach);
    rig.until(|rig| blocked(rig, slot) == BlockReason::MemoryCap);
    let seq = read_to(&rig, slot);
    rig.server.send(&ToHolder::Followed { slot, seq });
    for _ in 0..10 {
        rig.turn();
    }
    assert_eq!((blocked(&rig, slot), dropped(&rig)), (BlockReason::MemoryCap, 0), "its client has not taken it");
    // Followers are lost with the server, and reconnect through the next one.
    rig.lose_server();
    rig.last = rig.holder.turn(0);
    rig.adopt_until_ready(2);
    rig.until(|rig| blocked(rig, slot) == BlockReason::Quota);
    assert_eq!(dropped(&rig), 0);
    rig.server.send(&ToHolder::Followed { slot, seq });
    rig.until(|rig| dropped(rig) > 0);
}

#[test]
fn paused_stream_that_ends_is_read_to_its_end_and_causes_no_wake_up_afterwards() {
    let (mut rig, slot, data, at) = on_a_full_log(FullReason::Quota);
    let driver = rig.driver();
    // The child continues without its streams.
    driver.close_all();
    rig.until(|rig| rig.server.log(slot).bytes.len() == at);
    assert!(rig.server.log(slot).bytes == data[..at]);
    assert!(rig.server.log(slot).exit.is_none());
    assert!(rig.is_idle(), "nothing is left to do");
    driver.exit(0);
    rig.until_closed(slot);
}

#[test]
fn full_log_of_a_detached_session_is_spilled_and_read_back_completely() {
    let mut rig = HolderRig::limited(1 << 30);
    let slot = rig.start(small(OverflowPolicy::Block));
    rig.server.send(&ToHolder::Detach { ttl_ms: TTL_NONE });
    let (data, mut at, driver) = (pattern(12 << 20), 0, rig.driver());
    rig.until(|_| {
        feed(&driver, &data, &mut at);
        at == data.len()
    });
    rig.end_process(slot);
    assert!(rig.server.log(slot).bytes == data);
    let spilled = rig.files().iter().filter(|name| name.ends_with(".seg")).count();
    assert!(spilled >= 9, "{:?}", rig.files());

    // A second reader gets everything from the files.
    rig.adopt_until_ready(2);
    rig.server.absorb();
    assert!(rig.server.log(slot).bytes == data);
    rig.server.release(slot);
    rig.until(|rig| rig.files().iter().all(|name| !name.ends_with(".seg")));
}

#[test]
fn quota_blocks_and_attaching_keeps_to_the_memory_rule() {
    let (mut rig, slot, data, mut at) = blocked_process(HolderRig::limited(3 * MIB), 12 << 20, BlockReason::Quota);
    assert_eq!(rig.files().iter().filter(|name| name.ends_with(".seg")).count(), 3);
    rig.server.send(&ToHolder::Attach);
    rig.until(|rig| blocked(rig, slot) == BlockReason::MemoryCap);
    rig.server.release(slot);
    let driver = rig.driver();
    rig.until(|rig| {
        rig.server.release(slot);
        feed(&driver, &data, &mut at);
        at == data.len() && rig.server.log(slot).bytes.len() == at
    });
    assert!(rig.server.log(slot).bytes == data);
}

#[test]
fn blocked_child_is_read_again_when_its_client_leaves() {
    let (mut rig, slot, data, at) = blocked_process(HolderRig::limited(1 << 30), 6 << 20, BlockReason::MemoryCap);
    rig.server.send(&ToHolder::Detach { ttl_ms: TTL_NONE });
    feed_to_end(&mut rig, slot, &data, at);
    assert!(rig.server.log(slot).bytes == data);
}

#[test]
fn raised_cap_lets_a_blocked_child_continue() {
    let (mut rig, slot, data, at) = blocked_process(HolderRig::limited(1 << 30), 4 << 20, BlockReason::MemoryCap);
    rig.server.send(&ToHolder::Cap { slot, bytes: 16 * MIB });
    feed_to_end(&mut rig, slot, &data, at);
    assert_eq!(blocked(&rig, slot), BlockReason::No);
}

#[test]
fn drop_oldest_never_blocks_and_counts_what_it_dropped() {
    for is_attached in [true, false] {
        let mut rig = HolderRig::limited(3 * MIB);
        let slot = rig.start(small(OverflowPolicy::DropOldest));
        if !is_attached {
            rig.server.send(&ToHolder::Detach { ttl_ms: TTL_NONE });
        }
        rig.adopt_until_ready(2);
        if is_attached {
            rig.server.send(&ToHolder::Attach);
        }
        let (data, mut at, driver) = (pattern(20 << 20), 0, rig.driver());
        // The reader is idle while the child writes.
        let start = std::time::Instant::now();
        while at < data.len() {
            feed(&driver, &data, &mut at);
            rig.holder.turn(0);
            assert!(start.elapsed().as_secs() < 20, "stuck at {at}");
        }
        driver.exit(0);
        driver.close_all();
        rig.until(|rig| rig.server.logs.get(&slot).is_some_and(|log| log.closed.is_some()));
        let log = rig.server.log(slot);
        let (written, dropped) = log.closed.expect("closed");
        assert_eq!(written, data.len() as u64);
        assert!(dropped > 0);
        assert_eq!(log.bytes.len() as u64 + log.gap_bytes, written);
        assert_eq!(log.gap_bytes, dropped);
        assert!(log.bytes == data[data.len() - log.bytes.len()..]);
    }
}

/// Creates a process whose log waits for a full disk. Returns its data and how much of it is written.
fn on_a_full_disk() -> (HolderRig, u32, Vec<u8>, usize) {
    // A free-space floor above the size of any disk simulates a full disk.
    let limits = HolderLimits {
        free_floor_bytes: u64::MAX / 2,
        free_floor_percent: 100,
        ttl_ms: TTL_NONE,
        ..HolderLimits::default()
    };
    blocked_process(HolderRig::build(limits), 12 << 20, BlockReason::DiskFull)
}

#[test]
fn full_disk_blocks_is_reported_and_is_tried_again() {
    let (mut rig, slot, data, mut at) = on_a_full_disk();
    assert_eq!(rig.last.next_deadline_ns, Some(1_000_000_000));
    // The retry fails too, and the next one is scheduled. Nothing is lost.
    rig.now = 1_000_000_000;
    rig.until(|rig| rig.last.next_deadline_ns == Some(2_000_000_000));
    assert_eq!(blocked(&rig, slot), BlockReason::DiskFull);
    rig.server.send(&ToHolder::Attach);
    let driver = rig.driver();
    rig.until(|rig| {
        rig.server.release(slot);
        feed(&driver, &data, &mut at);
        rig.server.log(slot).bytes.len() == data.len()
    });
    assert!(rig.server.log(slot).bytes == data);
}

#[test]
fn failing_disk_causes_no_wake_up_while_nothing_can_be_done() {
    let (mut rig, ..) = on_a_full_disk();
    // Send requests without reading the answers, until the holder stops reading.
    rig.flood_with_requests();
    rig.now = 1_000_000_000;
    let turn = rig.holder.turn(rig.now);
    assert!(turn.next_deadline_ns.is_none_or(|at| at > rig.now), "{turn:?}");
    // When the server reads again, the holder tries the disk again and schedules the next retry.
    rig.until(|rig| rig.last.next_deadline_ns == Some(2_000_000_000));
}

/// Starts a process that writes more than its cap and then ends, in a detached session. Returns its slot.
#[track_caller]
fn spill_one(rig: &mut HolderRig) -> u32 {
    let slot = rig.start(small(OverflowPolicy::Block));
    let (data, mut at, driver) = (pattern(6 << 20), 0, rig.driver());
    rig.until(|_| {
        feed(&driver, &data, &mut at);
        at == data.len()
    });
    rig.end_process(slot);
    rig.holder.wait_for_disk();
    rig.turn();
    slot
}

#[test]
fn slot_is_reused_once_its_files_are_gone_and_the_manifest_says_so() {
    let mut rig = HolderRig::limited(1 << 30);
    rig.server.send(&ToHolder::Detach { ttl_ms: TTL_NONE });
    let (first, second) = (spill_one(&mut rig), spill_one(&mut rig));
    let is_of = |slot: u32, name: &str| name.starts_with(&format!("{slot}-"));
    let files = rig.files().iter().filter(|name| is_of(first, name)).count();
    assert!(files > 2, "{:?}", rig.files());
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).expect("inotify");
    let kinds = inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&watch, rig.dir.path(), kinds).expect("a watch");
    // The holder gets both commands in one turn.
    let (forget, start) = (rig.server.req(), rig.server.req());
    rig.server.send(&ToHolder::Forget { req: forget, slot: first });
    rig.server.send(&ToHolder::Start { req: start, spec: spec() });
    let is_started = |message: &FromHolder| matches!(message, FromHolder::Started { .. });
    let FromHolder::Started { slot, .. } = rig.until_message(is_started) else { unreachable!("only `Started` fits") };
    assert!(slot != first && slot != second, "files of another are there under slot {slot}");
    rig.holder.wait_for_disk();
    let mut space = [MaybeUninit::uninit(); 4096];
    let (mut events, mut names) = (inotify::Reader::new(&watch, &mut space), Vec::new());
    while let Ok(event) = events.next() {
        names.extend(event.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    // The process is removed from the manifest first, so that a kill in between does not bring it back. Then its files
    // go.
    assert_eq!(names.first().map(String::as_str), Some(MANIFEST_NAME), "{names:?}");
    assert!(names.len() == files + 1 && names.iter().skip(1).all(|name| is_of(first, name)), "{names:?}");
    assert_eq!(rig.start(spec()), first);
}

#[test]
fn manifest_is_removed_with_the_last_file_and_comes_back_with_the_next() {
    let mut rig = HolderRig::limited(1 << 30);
    rig.server.send(&ToHolder::Detach { ttl_ms: TTL_NONE });
    let entries = |rig: &HolderRig| {
        let text = std::fs::read_to_string(rig.dir.path().join(MANIFEST_NAME)).expect("a manifest");
        manifest::decode(&text).expect("a whole one").iter().map(|process| process.slot).collect::<Vec<_>>()
    };
    let first = spill_one(&mut rig);
    assert_eq!(entries(&rig), [first]);
    rig.server.release(first);
    rig.turn();
    rig.holder.wait_for_disk();
    // A new process is not in the old manifest, so that file must be gone.
    let second = rig.start(spec());
    assert_eq!(rig.files(), ["sock"]);
    let third = spill_one(&mut rig);
    assert_eq!(entries(&rig), [first, second, third]);
}
