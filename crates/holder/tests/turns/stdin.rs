//! Writes to stdin: order, exactly-once delivery and close.

use crate::prelude::*;

const KEY: [u8; 16] = [9; 16];

fn open() -> StartSpec {
    StartSpec { pipe_stdin: true, ..spec() }
}

/// Reads everything that is in the child's stdin now.
fn drain(driver: &ScriptDriver, into: &mut Vec<u8>) {
    let mut buf = [0; 65536];
    while let Ok(n @ 1..) = driver.read_stdin(&mut buf) {
        into.extend_from_slice(&buf[..n]);
    }
}

/// Sends one part and returns its request number.
fn part(rig: &mut HolderRig, slot: u32, key: Option<[u8; 16]>, whole: &[u8], range: std::ops::Range<usize>) -> u32 {
    let req = rig.server.req();
    let (total, offset) = (whole.len() as u64, range.start as u64);
    rig.server.send(&ToHolder::Write { req, slot, key, digest: None, total, offset, data: &whole[range] });
    req
}
/// Writes one part and returns the answer.
#[track_caller]
fn write(
    rig: &mut HolderRig,
    slot: u32,
    key: Option<[u8; 16]>,
    whole: &[u8],
    range: std::ops::Range<usize>,
) -> (WriteStatus, u64) {
    let req = part(rig, slot, key, whole, range);
    rig.written(req)
}

#[test]
fn part_is_accepted_when_the_child_has_taken_it_all() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(open());
    let driver = rig.driver();
    let data = pattern(150_000);
    let mut got = Vec::new();
    for start in (0..data.len()).step_by(50_000) {
        let req = part(&mut rig, slot, Some(KEY), &data, start..start + 50_000);
        // The pipe holds 64 KiB, so the second part waits for the child.
        rig.turn();
        drain(&driver, &mut got);
        rig.turn();
        drain(&driver, &mut got);
        assert_eq!(rig.written(req), (WriteStatus::Accepted, start as u64 + 50_000));
        drain(&driver, &mut got);
    }
    assert!(got == data);
}

#[test]
fn retry_by_a_new_controller_in_the_middle_of_a_part_is_written_once() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(open());
    let driver = rig.driver();
    let data = pattern(112_000);
    assert_eq!(write(&mut rig, slot, Some(KEY), &data, 0..56_000), (WriteStatus::Accepted, 56_000));
    // Only some bytes of this part fit before the child reads. The part is unfinished when the controller disappears.
    part(&mut rig, slot, Some(KEY), &data, 56_000..112_000);
    rig.turn();
    drop(rig.adopt(2));
    assert_eq!(write(&mut rig, slot, Some(KEY), &data, 0..56_000).0, WriteStatus::Accepted);
    let again = part(&mut rig, slot, Some(KEY), &data, 56_000..112_000);
    let mut inbox = Vec::new();
    rig.until(|rig| {
        drain(&driver, &mut inbox);
        rig.server.inbox.iter().any(|message| matches!(message, FromHolder::Written { req, .. } if *req == again))
    });
    assert_eq!(rig.written(again), (WriteStatus::Accepted, 112_000));
    drain(&driver, &mut inbox);
    assert!(inbox == data);
    // Repeat the write once more after it is complete.
    assert_eq!(write(&mut rig, slot, Some(KEY), &data, 0..56_000), (WriteStatus::Accepted, 112_000));
    drain(&driver, &mut inbox);
    assert_eq!(inbox.len(), data.len());
}

#[test]
fn same_key_with_another_length_or_a_hole_is_a_mismatch() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(open());
    let data = pattern(100);
    let key = Some(KEY);
    assert_eq!(write(&mut rig, slot, key, &data, 0..50), (WriteStatus::Accepted, 50));
    assert_eq!(write(&mut rig, slot, key, &data[..90], 50..90), (WriteStatus::Mismatch, 50));
    assert_eq!(write(&mut rig, slot, key, &data, 60..100), (WriteStatus::Mismatch, 50));
    assert_eq!(write(&mut rig, slot, key, &data, 40..100), (WriteStatus::Accepted, 100));
    let mut got = Vec::new();
    drain(&rig.driver(), &mut got);
    assert_eq!(got, data);
}

#[test]
fn completed_write_stays_accepted_after_stdin_is_closed_and_another_is_refused() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(open());
    assert_eq!(write(&mut rig, slot, Some(KEY), b"abc", 0..3), (WriteStatus::Accepted, 3));
    assert_eq!(rig.request(|req| ToHolder::CloseStdin { req, slot }), CommandStatus::Ok);
    assert_eq!(rig.request(|req| ToHolder::CloseStdin { req, slot }), CommandStatus::StdinClosed);
    assert_eq!(write(&mut rig, slot, Some(KEY), b"abc", 0..3), (WriteStatus::Accepted, 3));
    assert_eq!(write(&mut rig, slot, None, b"abc", 0..3), (WriteStatus::StdinClosed, 0));
}

#[test]
fn writes_without_a_stdin_or_a_process_are_refused() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(spec());
    assert_eq!(write(&mut rig, slot, None, b"x", 0..1), (WriteStatus::StdinClosed, 0));
    assert_eq!(write(&mut rig, 77, None, b"x", 0..1), (WriteStatus::UnknownProcess, 0));
    let slot = rig.start(open());
    rig.driver().exit(0);
    rig.until(|rig| rig.server.log(slot).exit.is_some());
    assert_eq!(write(&mut rig, slot, None, b"x", 0..1), (WriteStatus::StdinClosed, 0));
}

#[test]
fn child_that_closes_its_end_or_dies_ends_a_waiting_part() {
    for dies in [false, true] {
        let mut rig = HolderRig::scripted();
        let slot = rig.start(open());
        let driver = rig.driver();
        let data = pattern(112_000);
        assert_eq!(write(&mut rig, slot, Some(KEY), &data, 0..56_000), (WriteStatus::Accepted, 56_000));
        let req = part(&mut rig, slot, Some(KEY), &data, 56_000..112_000);
        rig.turn();
        if dies {
            driver.exit(1)
        } else {
            driver.close_stdin()
        }
        let (status, done) = rig.written(req);
        assert_eq!(status, WriteStatus::StdinClosed);
        assert!((56_000..112_000).contains(&done), "{done}");
    }
}

#[test]
fn part_is_busy_while_another_is_being_written() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(open());
    let data = pattern(112_000);
    part(&mut rig, slot, None, &data, 0..56_000);
    part(&mut rig, slot, None, &data, 56_000..112_000);
    assert_eq!(write(&mut rig, slot, None, b"x", 0..1).0, WriteStatus::Busy);
}

#[test]
fn close_waits_for_the_part_that_is_being_written() {
    let mut rig = HolderRig::real();
    let slot = rig.start(StartSpec { pipe_stdin: true, ..shell("sleep 0.2; wc -c") });
    let data = pattern(112_000);
    assert_eq!(write(&mut rig, slot, None, &data, 0..56_000).0, WriteStatus::Accepted);
    let second = part(&mut rig, slot, None, &data, 56_000..112_000);
    let close = rig.server.req();
    rig.server.send(&ToHolder::CloseStdin { req: close, slot });
    assert_eq!(rig.written(second).0, WriteStatus::Accepted);
    assert_eq!(rig.answer(close), CommandStatus::Ok);
    assert_eq!(rig.until_closed(slot).bytes.trim_ascii(), b"112000");
}

#[test]
fn closing_a_terminal_sends_its_eof_character_or_reports_raw_mode() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(StartSpec { tty: Some(TerminalSize::default()), ..spec() });
    let driver = rig.driver();
    assert_eq!(rig.request(|req| ToHolder::CloseStdin { req, slot }), CommandStatus::Ok);
    let mut got = Vec::new();
    drain(&driver, &mut got);
    assert_eq!(got, [4]);
    driver.set_canonical(false);
    assert_eq!(rig.request(|req| ToHolder::CloseStdin { req, slot }), CommandStatus::RawMode);
    assert_eq!(write(&mut rig, slot, None, b"still", 0..5).0, WriteStatus::Accepted);
}
