//! Two threads with two mappings of the same memory: no wake-up is lost, and nothing is read before it is committed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use exec_server_log::{
    ControlBlock, Cursor, Exit, LogEvent, LogWriter, MappedSegment, OutputStream, RECORD_MAX, ReadStep, SegmentChain,
    SegmentInfo, SegmentPool,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// If a reader waits longer than this for a wake-up, the test considers it lost.
const LOST_AFTER_S: u64 = 20;

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn ring(bell: BorrowedFd<'_>) {
    rustix::io::write(bell, &1_u64.to_ne_bytes()).unwrap();
}

/// Waits for the eventfd and resets it. Panics if it is not written in time.
fn wait(bell: BorrowedFd<'_>) {
    let timeout = Timespec { tv_sec: LOST_AFTER_S.cast_signed(), tv_nsec: 0 };
    let mut fds = [PollFd::new(&bell, PollFlags::IN)];
    let ready = poll(&mut fds, Some(&timeout)).unwrap();
    assert_eq!(ready, 1, "a wake-up was lost");
    rustix::io::read(bell, &mut [0_u8; 8]).unwrap();
}

fn second_mapping(control: &ControlBlock) -> ControlBlock {
    ControlBlock::open(control.shared_fd().try_clone().unwrap()).unwrap()
}

/// Waits until a slot that the reader armed has new events. Returns these slots.
fn wait_for_news(control: &ControlBlock, bell: BorrowedFd<'_>, sleeps: &mut u64) -> Vec<u32> {
    loop {
        let mut slots = Vec::new();
        control.take_dirty(|slot| slots.push(slot));
        if !slots.is_empty() {
            return slots;
        }
        if !control.arm() {
            *sleeps += 1;
            wait(bell);
        }
    }
}

#[test]
fn no_wake_up_is_lost_over_many_events_of_many_logs() {
    const EVENTS: u64 = 300_000;
    const SLOTS: [u32; 4] = [0, 1, 64, 4095];
    let holder = ControlBlock::create().unwrap();
    let server = second_mapping(&holder);
    let bell = bell();
    SLOTS.iter().for_each(|slot| holder.reset_slot(*slot));
    let (sleeps, rung) = thread::scope(|scope| {
        let writer = scope.spawn(|| write_events(&holder, bell.as_fd(), &SLOTS, EVENTS));
        let mut sleeps = 0;
        let mut ready = SLOTS.to_vec();
        let mut left = SLOTS.to_vec();
        while !left.is_empty() {
            for slot in std::mem::take(&mut ready) {
                let mut seen = server.next_seq(slot);
                while seen <= EVENTS / 4 && server.arm_slot(slot, seen) {
                    let now = server.next_seq(slot);
                    assert!(now > seen, "news means progress");
                    seen = now;
                }
                left.retain(|of| *of != slot || seen <= EVENTS / 4);
            }
            if !left.is_empty() {
                ready = wait_for_news(&server, bell.as_fd(), &mut sleeps);
            }
        }
        (sleeps, writer.join().unwrap())
    });
    assert!(sleeps > 0, "the reader slept at least once");
    assert!(rung <= EVENTS, "at most one wake-up an event");
}

/// Appends `events` one-byte records, alternating between the slots. Returns the number of wake-ups.
fn write_events(control: &ControlBlock, bell: BorrowedFd<'_>, slots: &[u32], events: u64) -> u64 {
    let mut pool = SegmentPool::new();
    let mut writers: Vec<_> = slots.iter().map(|slot| LogWriter::new(*slot)).collect();
    let mut rung = 0;
    for event in 0..events {
        let index = usize::try_from(event).unwrap() % writers.len();
        let writer = &mut writers[index];
        writer.room(&mut pool).unwrap().buf[0] = 1;
        if writer.commit(control, OutputStream::Stdout, 1) {
            rung += 1;
            ring(bell);
        }
        if let Some(dropped) = writer.drop_oldest(control) {
            pool.recycle(dropped.segment.unwrap(), 0);
        }
        // Let the reader catch up now and then, so that it goes to sleep and races with the writer on waking.
        if event % 64 == 0 {
            thread::yield_now();
        }
    }
    rung
}

#[test]
fn a_reader_on_its_own_mapping_gets_every_byte_in_order() {
    const RECORDS: u64 = 20_000;
    let holder = ControlBlock::create().unwrap();
    let server = second_mapping(&holder);
    holder.reset_slot(5);
    let bell = bell();
    let (segments_tx, segments_rx) = mpsc::channel();
    let (read, written) = thread::scope(|scope| {
        let writer = scope.spawn(|| write_log(&holder, bell.as_fd(), segments_tx, RECORDS));
        let read = read_log(&server, bell.as_fd(), &segments_rx);
        (read, writer.join().unwrap())
    });
    assert_eq!(read, written);
    let status = server.status(5);
    assert_eq!(status.written, written);
    assert_eq!(status.exited.map(|(seq, _)| seq), Some(RECORDS + 1));
    assert_eq!(status.closed_seq, Some(RECORDS + 2));
}

fn payload_len(seq: u64) -> usize {
    usize::try_from(seq * 7919 % (RECORD_MAX as u64 / 16)).unwrap() + 1
}

fn write_log(
    control: &ControlBlock,
    bell: BorrowedFd<'_>,
    segments_tx: mpsc::Sender<(SegmentInfo, OwnedFd)>,
    records: u64,
) -> u64 {
    let mut pool = SegmentPool::new();
    let mut writer = LogWriter::new(5);
    let announce = |writer: &mut LogWriter| {
        while let Some(info) = writer.take_fresh() {
            let fd = writer.segment(info.id).unwrap().shared_fd();
            segments_tx.send((info, fd.try_clone().unwrap())).unwrap();
        }
    };
    for seq in 1..=records {
        let room = writer.room(&mut pool).unwrap();
        let len = payload_len(seq).min(room.buf.len());
        room.buf[..len].fill(seq as u8);
        let wake = writer.commit(control, OutputStream::Stderr, len);
        announce(&mut writer);
        if wake {
            ring(bell);
        }
    }
    let exit = Exit { code: 7, ..Exit::default() };
    for last in 0..2 {
        let wake = if last == 0 {
            writer.append_exited(control, &mut pool, exit)
        } else {
            writer.append_closed(control, &mut pool)
        };
        announce(&mut writer);
        if wake.unwrap() {
            ring(bell);
        }
    }
    writer.written()
}

fn read_log(control: &ControlBlock, bell: BorrowedFd<'_>, segments_rx: &mpsc::Receiver<(SegmentInfo, OwnedFd)>) -> u64 {
    let mut chain = SegmentChain::new();
    let mut cursor = Cursor::start();
    let mut sleeps = 0;
    loop {
        let seen = control.next_seq(5);
        while cursor.next_seq() < seen {
            match chain.read(&mut cursor) {
                ReadStep::Record(record) => match record.event {
                    LogEvent::Output { stream, bytes } => {
                        assert_eq!(stream, OutputStream::Stderr);
                        assert!(bytes.len() <= payload_len(record.seq));
                        let stamp = record.seq as u8;
                        assert!(bytes.iter().all(|byte| *byte == stamp));
                    }
                    LogEvent::Exited(exit) => assert_eq!(exit.code, 7),
                    LogEvent::Closed { written, dropped } => {
                        assert_eq!((written, dropped), (record.offset, 0));
                        return written;
                    }
                },
                // The event is committed, so the announcement of its segment is on its way.
                ReadStep::End => {
                    let patience = Duration::from_secs(LOST_AFTER_S);
                    let (info, fd) = segments_rx.recv_timeout(patience).unwrap();
                    chain.push_memory(info, MappedSegment::map(fd).unwrap());
                }
                other => panic!("unexpected {other:?}"),
            }
            chain.take_up_to(cursor.next_seq() - 1, 0);
        }
        if !control.arm_slot(5, seen) {
            assert_eq!(wait_for_news(control, bell, &mut sleeps), [5]);
        }
    }
}

#[test]
fn a_reader_that_is_behind_costs_no_wake_up() {
    let control = Arc::new(ControlBlock::create().unwrap());
    control.reset_slot(9);
    let mut pool = SegmentPool::new();
    let mut writer = LogWriter::new(9);
    let mut append = |control: &ControlBlock| {
        writer.room(&mut pool).unwrap().buf[0] = 1;
        writer.commit(control, OutputStream::Pty, 1)
    };
    assert!(!control.arm(), "nothing is dirty");
    assert!(!append(&control), "nobody waits at the end of this log");
    assert!(control.arm_slot(9, 1), "there is news already");
    assert!(!control.arm_slot(9, 2));
    assert!(append(&control), "one waits now");
    assert!(!append(&control), "and was told once");
    assert!(control.arm(), "a dirty bit is set");
    let mut dirty = Vec::new();
    control.take_dirty(|slot| dirty.push(slot));
    assert_eq!(dirty, [9]);
    assert!(!control.arm());
}
