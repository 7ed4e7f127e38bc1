//! Unit tests of the log: gaps that overlap known events, events before the log's beginning, and memory bounds.

use super::*;

fn output(seq: u64, len: usize) -> Event {
    Event::Output {
        seq,
        stream: exec_server_protocol::process::Stream::Stdout,
        bytes: vec![0; len].into(),
        offset: None,
    }
}

fn gap(from_seq: u64, to_seq: u64, bytes: u64) -> Event {
    Event::Gap { from_seq, to_seq, bytes: Some(bytes) }
}

/// The numbers and the bytes of the last event, which must be a gap.
fn last_gap(log: &EventLog) -> (u64, u64, Option<u64>) {
    let state = log.state.lock();
    match state.events.after(state.next - 2) {
        Some(Event::Gap { from_seq, to_seq, bytes }) => (from_seq, to_seq, bytes),
        other => panic!("the last event is a gap, not {other:?}"),
    }
}

#[test]
fn an_overlapping_gap_counts_only_bytes_that_were_not_reported() {
    let log = EventLog::new(FlowPolicy::observed(), 0);
    for event in [output(1, 10), gap(2, 5, 100), gap(2, 9, 170)] {
        log.append(event).expect("in order");
    }
    assert_eq!(last_gap(&log), (6, 9, Some(70)));
    // Output that was reported does not count as part of the gap.
    log.append(output(10, 7)).and_then(|_| log.append(gap(2, 20, 300))).expect("in order");
    assert_eq!(last_gap(&log), (11, 20, Some(300 - 100 - 70 - 7)));
}

#[test]
fn a_gap_from_the_beginning_is_counted_after_events_were_dropped() {
    let at = |seq, len, offset| match output(seq, len) {
        Event::Output { stream, bytes, .. } => Event::Output { seq, stream, bytes, offset: Some(offset) },
        other => other,
    };
    // The log begins in the middle, and learns its offset from the first output.
    let log = EventLog::new(FlowPolicy::observed(), 4);
    log.append(at(5, 10, 100)).and_then(|_| log.append(gap(1, 9, 170))).expect("in order");
    assert_eq!(last_gap(&log), (6, 9, Some(60)));
    log.state.lock().consume(9);
    log.state.lock().events = EventRuns::default();
    log.append(gap(1, 20, 300)).expect("in order");
    assert_eq!(last_gap(&log), (10, 20, Some(130)));
}

#[test]
fn a_gap_with_unknown_overlap_has_no_count() {
    let log = EventLog::new(FlowPolicy::observed(), 4);
    log.append(gap(5, 8, 100)).and_then(|_| log.append(gap(3, 12, 170))).expect("in order");
    assert_eq!(last_gap(&log), (9, 12, None), "it began before this log");
    log.append(gap(7, 14, 300)).expect("in order");
    assert_eq!(last_gap(&log), (13, 14, None), "it begins inside of another");
    let inside = log.state.lock().find(6);
    assert!(matches!(inside, Poll::Ready(CursorRead::Event(Event::Gap { from_seq: 7, to_seq: 8, bytes: None }))));
}

#[test]
fn an_exit_and_a_close_before_the_beginning_are_recorded_without_events() {
    let log = EventLog::new(FlowPolicy::observed(), 9);
    log.record_exit(Exit::of_code(3));
    assert_eq!((log.exit(), log.exit_at()), (Some(Exit::of_code(3)), None));
    assert!(matches!(log.state.lock().find(9), Poll::Pending));
    log.record_closed(Totals::default());
    assert!(matches!(log.state.lock().find(9), Poll::Ready(CursorRead::End)));
}

#[test]
fn an_event_that_completes_the_log_wakes_also_if_a_later_one_came_first() {
    let log = EventLog::new(FlowPolicy { is_ordered: false, ..FlowPolicy::observed() }, 0);
    let mut wake = log.wake();
    log.append(Event::Closed { seq: 2, totals: Totals::default() }).expect("kept");
    wake.mark_unchanged();
    assert_eq!(log.closed(), None);
    log.append(output(1, 10)).expect("fills the hole");
    assert_eq!((log.closed(), wake.has_changed().expect("the log exists")), (Some(Totals::default()), true));
}

#[test]
fn the_end_of_a_lost_process_is_renumbered_behind_all_received_events() {
    let log = EventLog::new(FlowPolicy::acked(4 << 20), 0);
    for seq in 1..=9 {
        log.append(output(seq, 10)).expect("in order");
    }
    // A repeated event is ignored.
    log.append(output(5, 10)).expect("known");
    log.append(Event::Exited { seq: 6, exit: Exit::of_code(0) }).expect("a number that output has used");
    assert_eq!((log.exit(), log.next()), (None, 10));
    // After its holder died, the server reports the end with numbers that were used before.
    let exit = Exit { cause: Some(wire::Cause::Lost), ..Exit::of_code(-1) };
    log.append(Event::Exited { seq: 6, exit: exit.clone() }).expect("the exit");
    log.append(Event::Exited { seq: 6, exit: exit.clone() }).expect("sent again");
    log.append(Event::Closed { seq: 7, totals: Totals::default() }).expect("the close");
    assert_eq!((log.exit_at(), log.closed(), log.next()), (Some((10, exit)), Some(Totals::default()), 12));
}

#[test]
fn a_window_of_single_bytes_for_a_slow_reader_is_not_a_violation() {
    let (window, count) = (4 << 20, 5 << 18);
    let log = EventLog::new(FlowPolicy::acked(window), 0);
    let reader = log.add_cursor(0);
    for seq in 1..=count {
        assert_eq!(log.append(output(seq, 1)), Ok(Appended::Accepted), "{seq}");
    }
    let cx = Context::from_waker(Waker::noop());
    for position in 0..count {
        let found = log.poll(reader, position, &cx);
        assert!(matches!(found, Poll::Ready(CursorRead::Event(Event::Output { seq, .. })) if seq == position + 1));
        // Reading alone makes an acknowledgement due; no further event has to arrive.
        assert_eq!(log.is_ack_due(), position * (1 + limits::EVENT_OVERHEAD) >= window / 4, "{position}");
    }
    assert_eq!(log.due_ack(), Some(count - 1));
    assert!(log.state.lock().events.len <= HISTORY_EVENTS + 1);
}

#[test]
fn the_number_of_events_without_output_is_bounded() {
    for empty in [|seq| output(seq, 0), |seq| gap(seq, seq, 0)] {
        let log = EventLog::new(FlowPolicy::acked(4 << 20), 0);
        let violation = (1..1 << 20).find_map(|seq| log.append(empty(seq)).err());
        assert_eq!(violation, Some(OVERRUN));
        assert_eq!(log.state.lock().events.len, EMPTY_EVENTS + 1);
    }
}
