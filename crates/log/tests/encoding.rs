//! Events and states are read as they were written, and malformed ones are refused.

use exec_server_log::{
    BlockReason, ControlBlock, Cursor, Exit, ExitCause, LimitsHit, LogStatus, LogWriter, SegmentPool,
};
use proptest::prelude::*;

const CAUSES: [ExitCause; 6] = [
    ExitCause::Exit,
    ExitCause::Signal,
    ExitCause::Timeout,
    ExitCause::IdleTimeout,
    ExitCause::Terminated,
    ExitCause::OutOfMemory,
];

fn exits() -> impl Strategy<Value = Exit> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (any::<i32>(), 0..=u8::MAX, 0..CAUSES.len(), numbers, flags).prop_map(|(code, signal, cause, numbers, flags)| {
        Exit {
            code,
            signal: (signal != 0).then_some(signal),
            cause: CAUSES[cause],
            user_ms: numbers.0,
            system_ms: numbers.1,
            max_rss_bytes: numbers.2,
            hit: LimitsHit { pids: flags.0, memory: flags.1 },
            is_denied: flags.2,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_exit_is_read_as_it_was_written(exit in exits()) {
        prop_assert_eq!(Exit::decode(&exit.encode()), Some(exit));
        let control = ControlBlock::create().unwrap();
        control.reset_slot(0);
        LogWriter::new(0).append_exited(&control, &mut SegmentPool::new(), exit).unwrap();
        prop_assert_eq!(control.status(0).exited, Some((1, exit)));
    }
}

#[test]
fn a_malformed_exit_is_refused() {
    let bytes = Exit::default().encode();
    assert_eq!(Exit::decode(&bytes[1..]), None);
    assert_eq!(Exit::decode(&[&bytes[..], &[0]].concat()), None);
    let mut unknown = bytes;
    unknown[5] = 6;
    assert_eq!(Exit::decode(&unknown), None);
    let mut later = bytes;
    later[6] = 0x7c;
    assert_eq!(Exit::decode(&later), Some(Exit::default()), "flags of a later release are ignored");
}

#[test]
fn a_reset_slot_has_no_trace_of_the_log_before() {
    let control = ControlBlock::create().unwrap();
    assert_eq!(control.status(3), LogStatus::default());
    control.reset_slot(3);
    let fresh = LogStatus { next_seq: 1, first_seq: 1, ..LogStatus::default() };
    assert_eq!(control.status(3), fresh);
    let mut pool = SegmentPool::new();
    let mut writer = LogWriter::new(3);
    writer.room(&mut pool).unwrap();
    assert!(!control.arm_slot(3, 1));
    writer.commit(&control, exec_server_log::OutputStream::Stderr, 5);
    writer.append_exited(&control, &mut pool, Exit { code: 4, ..Exit::default() }).unwrap();
    writer.append_closed(&control, &mut pool).unwrap();
    let id = writer.segments().next().unwrap().id;
    writer.release(&control, id);
    assert!(!control.arm_slot(3, 4));
    for blocked in [BlockReason::MemoryCap, BlockReason::Quota, BlockReason::DiskFull] {
        control.set_blocked(3, blocked);
        assert_eq!(control.status(3).blocked, blocked);
    }
    assert_eq!(control.next_seq(3), 4);
    control.reset_slot(3);
    assert_eq!(control.status(3), fresh);
    control.take_dirty(|_| {});
    assert!(!control.notify(3), "the reader of the old log does not wait");
    assert!(!control.arm(), "and its log is not dirty");
}

#[test]
fn a_cursor_begins_where_it_is_told() {
    assert_eq!((Cursor::start().next_seq(), Cursor::start().offset()), (1, Some(0)));
    assert_eq!((Cursor::after(0).next_seq(), Cursor::after(0).offset()), (1, Some(0)));
    assert_eq!((Cursor::after(8).next_seq(), Cursor::after(8).offset()), (9, None));
    let known = Cursor::after_with_offset(8, 100);
    assert_eq!((known.next_seq(), known.offset()), (9, Some(100)));
}
