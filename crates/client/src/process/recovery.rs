//! Fetches events that no notification will deliver: those of a cut, those before the first event that a log has in memory, and those of
//! processes that existed before this client resumed the session.
//!
//! Events can be rebuilt from the answer to a `process/read`. The answer contains the sequence numbers of the output.
//! The number that is missing among them is that of the exit. The last number is that of the close. An answer that
//! contradicts these rules fails only the handle of its process.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use exec_server_protocol::{base64, process as wire};
use futures_util::{Stream, TryStreamExt as _, stream};

use super::{
    ProcessShared,
    event::{Event, Exit, Totals},
    log::{Appended, EventLog, ProtocolViolation},
    millis,
};
use crate::{
    compat::replay,
    error::Error,
    requests,
    routes::EventSource,
    server_link::ServerLink,
    session::{ConnectionState, ProcessKey, Session, is_adopting},
};

/// How long one read of a polled process waits for new events.
const POLL_WAIT: Duration = Duration::from_secs(30);

/// Limit for the bytes of a list of processes. Each page of the list is bounded, but the number of pages is not.
const LISTED_BYTES: usize = 256 << 20;

/// A polled process is not read further while this many bytes are unconsumed.
const POLL_AHEAD: u64 = 1 << 20;

/// Brings every log of the session up to date on a new link. An error means that the link is gone again.
pub(crate) async fn catch_up(session: &Session, link: &ServerLink) -> Result<(), Error> {
    for (key, log, source) in session.routes.all() {
        if log.is_over() || source == EventSource::Polled {
            continue;
        }
        let caught_up = if key.session_id.is_some() {
            subscribe(link, &key, &log, source != EventSource::Observed).await
        } else if session.generation().pushes_missed_events() {
            // The server pushes events again from the last acknowledgement on.
            Ok(())
        } else {
            replay::read_missed(link, &key, &log).await
        };
        match caught_up {
            Ok(()) => {}
            Err(error @ Error::Disconnected { .. }) => return Err(error),
            Err(error) if is_adopting(&error) => {
                session.subscribe_adopted(key, Arc::downgrade(&log), source != EventSource::Observed, link.epoch);
            }
            // The server does not know the process: the request to start was lost with the link, and will be sent again.
            Err(Error::Server { .. }) if source == EventSource::Starting => {}
            Err(error) => log.fail(error),
        }
    }
    Ok(())
}

/// Subscribes again to a process of another session, after the last event received. `from_seq` asks the server to keep everything after the
/// log's beginning. The caller acknowledges right afterwards what was consumed, so that the server keeps only the rest.
pub(crate) async fn subscribe(link: &ServerLink, key: &ProcessKey, log: &EventLog, hold: bool) -> Result<(), Error> {
    let ProcessKey { process_id, session_id } = key.clone();
    let after_seq = Some(log.next() - 1);
    let from_seq = hold.then_some(log.began_after);
    let params = wire::SubscribeParams { process_id, session_id, after_seq, hold, from_seq };
    link.call::<requests::ProcessSubscribe>(&params).await.map(drop)
}

/// Reads the events between a cursor's position and `first`, the number of the first event that its log has in memory.
pub(super) async fn read_back(shared: &ProcessShared, position: u64, first: u64) -> Result<VecDeque<Event>, Error> {
    let gap = || VecDeque::from([Event::Gap { from_seq: position + 1, to_seq: first - 1, bytes: None }]);
    if !shared.session().generation().has_process_methods() {
        return Ok(gap());
    }
    let params = read_params(&shared.key, position, Duration::ZERO);
    let read = match replay::read_after(shared.session(), &params).await {
        Ok(read) => read,
        // A server that has forgotten the process has also forgotten its output.
        Err(Error::Server { .. }) => return Ok(gap()),
        Err(error) => return Err(error),
    };
    let events =
        rebuild(position, read, shared.log.exit_at()).map_err(|violation| Error::Protocol(violation.0.to_owned()))?;
    // Events that the log has in memory come from the log: notifications contain more than a read.
    let mut events: VecDeque<Event> =
        events.into_iter().filter(|event| event.span().is_some_and(|(from, _)| from < first)).collect();
    match events.back_mut() {
        // The gap is cut off before `first`. The bytes of the remaining part are unknown.
        Some(Event::Gap { to_seq, bytes, .. }) if *to_seq >= first => (*to_seq, *bytes) = (first - 1, None),
        Some(_) => {}
        None => return Ok(gap()),
    }
    Ok(events)
}

/// Fills a log by `process/read` alone. Used for a handle that was created by attaching to a process of this session, because notifications
/// about this process may have gone to an earlier client.
pub(crate) async fn poll_events(session: Weak<Session>, key: ProcessKey, weak: Weak<EventLog>) {
    loop {
        let Some(log) = weak.upgrade() else { return };
        log.wait_for_room_below(POLL_AHEAD).await;
        if log.is_over() {
            return;
        }
        let after = log.next() - 1;
        // Release the log while waiting, so that the handle can be dropped.
        drop(log);
        let Some(session) = session.upgrade() else { return };
        let read = replay::read_after(&session, &read_params(&key, after, POLL_WAIT)).await;
        let Some(log) = weak.upgrade() else { return };
        let appended = match read {
            Ok(read) => {
                let exit = if read.end.exited && log.exit().is_none() { exit_of(&session, &key).await } else { None };
                append_read(&log, after, read, exit).map_err(|violation| Error::Protocol(violation.0.to_owned()))
            }
            // `call_timeout` and `fail_fast` are meant for the caller's own calls. This read continues on the next link.
            Err(Error::Disconnected { .. } | Error::UnknownOutcome { .. }) if session.lost().is_none() => {
                drop(log);
                session.state().wait_for(|state| !matches!(state, ConnectionState::Recovering { .. })).await.ok();
                continue;
            }
            Err(error) => Err(error),
        };
        if let Err(error) = appended {
            log.fail(error);
        }
        session.acks.notify_one();
    }
}

/// How a process ended, including the details that a read leaves out; `None` if the server does not list processes.
pub(crate) async fn exit_of(session: &Session, key: &ProcessKey) -> Option<Exit> {
    find_process(session, key).await.ok().flatten().and_then(|info| info.exit).map(Exit::from)
}

/// The server's entry for a process, if it has one.
pub(crate) async fn find_process(session: &Session, key: &ProcessKey) -> Result<Option<wire::ProcessInfo>, Error> {
    let scope = if key.session_id.is_some() { wire::Scope::All } else { wire::Scope::Session };
    let own = session.peer.session_id.as_ref();
    let requested_session = key.session_id.as_ref().or(own);
    let is_requested =
        |info: &wire::ProcessInfo| info.process_id == key.process_id && Some(&info.session_id) == requested_session;
    let mut pages = pin!(process_pages(session, scope));
    while let Some(page) = pages.try_next().await? {
        if let Some(found) = page.processes.into_iter().find(is_requested) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Lists all processes of a session, or of every session of its principal. `adopting` is that of the first page that reports any: a session
/// that was adopted after this page may have processes that belong on an earlier page, so it is still reported.
pub(crate) async fn list_processes(session: &Session, scope: wire::Scope) -> Result<wire::ListResult, Error> {
    let mut pages = pin!(process_pages(session, scope));
    let mut all = wire::ListResult { processes: Vec::new(), next_cursor: None, adopting: Vec::new() };
    let mut bytes = 0;
    while let Some(page) = pages.try_next().await? {
        bytes += page.processes.iter().map(memory_bytes).sum::<usize>();
        if bytes > LISTED_BYTES {
            return Err(Error::Protocol(format!("process/list: the server lists more than {LISTED_BYTES} bytes")));
        }
        all.processes.extend(page.processes);
        if all.adopting.is_empty() {
            all.adopting = page.adopting;
        }
    }
    Ok(all)
}

/// The approximate memory that an entry needs.
fn memory_bytes(info: &wire::ProcessInfo) -> usize {
    let argv: usize = info.argv.iter().map(|arg| arg.len() + size_of::<String>()).sum();
    size_of::<wire::ProcessInfo>() + info.process_id.as_str().len() + info.cwd.len() + argv
}

/// The pages of a list, one at a time. A server without paging sends one page.
fn process_pages(session: &Session, scope: wire::Scope) -> impl Stream<Item = Result<wire::ListResult, Error>> {
    // The state is the cursor of the next page; `None` after the last page.
    stream::try_unfold(Some(None), move |next: Option<Option<String>>| async move {
        let Some(cursor) = next else { return Ok(None) };
        let params = wire::ListParams { scope, cursor, limit: None };
        let mut listed = session.call::<requests::ProcessList>(&params).await?;
        // A faulty server could otherwise make this client ask endlessly.
        if listed.next_cursor.is_some() && (listed.processes.is_empty() || listed.next_cursor == params.cursor) {
            return Err(Error::Protocol("process/list: the server's pages make no progress".to_owned()));
        }
        let next = listed.next_cursor.take().map(Some);
        Ok(Some((listed, next)))
    })
}

/// Records the end of a process, because its exit or close may lie before the beginning of its log. No event would then report it.
pub(crate) fn record_end(log: &EventLog, info: &wire::ProcessInfo, after: u64, source: EventSource) {
    let is_over = info.closed && info.next_seq <= after.saturating_add(1);
    // A polled log finds out with its first read whether the exit lies before its beginning.
    if let Some(exit) = info.exit.clone().filter(|_| is_over || source != EventSource::Polled) {
        log.record_exit(exit.into());
    }
    if is_over {
        log.record_closed(Totals { output_bytes: Some(info.output_bytes), dropped_bytes: Some(info.dropped_bytes) });
    }
}

/// Appends the events of a read to a log. `exit` contains more details of the exit than the read.
pub(crate) fn append_read(
    log: &EventLog,
    after: u64,
    read: wire::ReadResult,
    exit: Option<Exit>,
) -> Result<Appended, ProtocolViolation> {
    let mut appended = Appended::Accepted;
    let exit_in_read = exit_of_read(&read.end);
    let is_over = read.end.closed && read.end.next_seq <= after.saturating_add(1);
    // An exit that was not learned from an event has no sequence number; 0 matches no event.
    let known_exit = log.exit_at().or_else(|| log.recorded_exit().map(|exit| (0, exit)));
    let events = rebuild(after, read, known_exit)?;
    let is_reported = log.exit().is_some() || events.iter().any(|event| matches!(event, Event::Exited { .. }));
    if let Some(exit_in_read) = exit_in_read.filter(|_| !is_reported) {
        log.record_exit(exit.clone().unwrap_or(exit_in_read));
    }
    if is_over {
        log.record_closed(Totals::default());
    }
    for mut event in events {
        if let (Event::Exited { exit: rebuilt, .. }, Some(detailed)) = (&mut event, &exit) {
            *rebuilt = detailed.clone();
        }
        appended = log.append(event)?;
    }
    Ok(appended)
}

/// The exit with the details that a read reports: its code, and `sandbox_denied`.
fn exit_of_read(end: &wire::ReadEnd) -> Option<Exit> {
    let code = end.exit_code.filter(|_| end.exited)?;
    Some(Exit { sandbox_denied: end.sandbox_denied.then_some(true), ..Exit::of_code(code) })
}

pub(crate) fn read_params(key: &ProcessKey, after: u64, wait: Duration) -> wire::ReadParams {
    wire::ReadParams {
        process_id: key.process_id.clone(),
        session_id: key.session_id.clone(),
        after_seq: Some(after),
        // No bound: with one, an older server would report `closed` together with only a part of the output.
        max_bytes: None,
        wait_ms: Some(millis(wait)),
        from_seq: None,
    }
}

/// Rebuilds the events from a read of everything after `after`. `known_exit` is the exit with its number, if it is known already.
pub(crate) fn rebuild(
    after: u64,
    read: wire::ReadResult,
    known_exit: Option<(u64, Exit)>,
) -> Result<Vec<Event>, ProtocolViolation> {
    let end = read.end;
    if end.next_seq == u64::MAX {
        return Err(ProtocolViolation("impossible sequence number"));
    }
    let mut events = Vec::new();
    let mut holes = Vec::new();
    let mut next = after + 1;
    for chunk in read.chunks {
        if chunk.seq == u64::MAX {
            return Err(ProtocolViolation("impossible sequence number"));
        }
        // A chunk from before the requested range, or a repeated one.
        if chunk.seq < next {
            continue;
        }
        if end.closed && chunk.seq + 1 >= end.next_seq {
            return Err(ProtocolViolation("output has the sequence number of the close"));
        }
        if chunk.seq > next {
            holes.push((next, chunk.seq - 1));
        }
        let bytes = base64::decode(&chunk.chunk).map_err(|_| ProtocolViolation("output is not base64"))?.into();
        events.push(Event::Output { seq: chunk.seq, stream: chunk.stream, bytes, offset: None });
        next = chunk.seq + 1;
    }
    // The number of the close, or of the next event. A close before the requested range is not an event of this read.
    let close_or_next = if end.closed { end.next_seq.saturating_sub(1) } else { end.next_seq };
    if close_or_next > next {
        holes.push((next, close_or_next - 1));
    }
    if end.closed && close_or_next > after {
        events.push(Event::Closed { seq: close_or_next, totals: Totals::default() });
    }
    let exit = match known_exit {
        Some(known) => Some(known),
        None if end.exited => {
            let exit = exit_of_read(&end).ok_or(ProtocolViolation("a process exited without a code"))?;
            match holes.last() {
                // The server evicts the oldest output first, so the last missing number is that of the exit.
                Some((_, seq)) => Some((*seq, exit)),
                None if after == 0 => return Err(ProtocolViolation("no sequence number is left for the exit")),
                // The number of the exit lies before the requested range.
                None => None,
            }
        }
        None => None,
    };
    // A server may count the bytes of a gap from the very beginning of the output and not from `after`. Use the count only if `after` is
    // the beginning. If the exit divides a gap, the first part gets all of the bytes, as in a notification.
    let counted = end.gap.as_ref().filter(|_| after == 0);
    let mut gap_bytes = counted.map_or(0, |gap| gap.bytes);
    let is_counted = |to_seq: u64| counted.is_some_and(|gap| to_seq <= gap.to_seq);
    for (from, to) in holes {
        let mut gap = |from_seq, to_seq| {
            if from_seq <= to_seq {
                let bytes = is_counted(to_seq).then(|| std::mem::take(&mut gap_bytes));
                events.push(Event::Gap { from_seq, to_seq, bytes });
            }
        };
        match &exit {
            Some((seq, exit)) if (from..=to).contains(seq) => {
                gap(from, seq - 1);
                gap(seq + 1, to);
                events.push(Event::Exited { seq: *seq, exit: exit.clone() });
            }
            Some(_) | None => gap(from, to),
        }
    }
    events.sort_by_key(|event| event.span().map_or(u64::MAX, |(from, _)| from));
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::log::FlowPolicy;

    fn read(chunks: &[u64], next_seq: u64, exit_code: Option<i32>, closed: bool) -> wire::ReadResult {
        let chunk = |&seq: &u64| wire::ReadChunk { seq, stream: wire::Stream::Stdout, chunk: "eA==".to_owned() };
        let end = wire::ReadEnd {
            next_seq,
            exited: exit_code.is_some(),
            exit_code,
            closed,
            failure: None,
            sandbox_denied: false,
            first_seq: 0,
            gap: None,
            blocked: None,
        };
        wire::ReadResult { chunks: chunks.iter().map(chunk).collect(), end }
    }

    fn spell(events: Result<Vec<Event>, ProtocolViolation>) -> String {
        let word = |event: &Event| match event {
            Event::Output { seq, .. } => format!("o{seq}"),
            Event::Gap { from_seq, to_seq, .. } => format!("g{from_seq}-{to_seq}"),
            Event::Exited { seq, exit } => format!("x{seq}={}", exit.code),
            Event::Closed { seq, .. } => format!("c{seq}"),
            Event::Failed(_) => "f".to_owned(),
        };
        match events {
            Ok(events) => events.iter().map(word).collect::<Vec<_>>().join(" "),
            Err(violation) => violation.0.to_owned(),
        }
    }

    #[test]
    fn recovery_handles_dense_tail_output_and_newer_notification() {
        assert_eq!(spell(rebuild(0, read(&[1, 2], 5, Some(3), true), None)), "o1 o2 x3=3 c4");
        assert_eq!(spell(rebuild(2, read(&[3, 4, 6], 8, Some(0), true), None)), "o3 o4 x5=0 o6 c7");
        assert_eq!(spell(rebuild(3, read(&[], 5, Some(0), true), Some((3, Exit::of_code(0))))), "c4");
        assert_eq!(spell(rebuild(0, read(&[1], 3, Some(0), true), None)), "no sequence number is left for the exit");
        assert_eq!(spell(rebuild(2, read(&[3], 4, None, false), None)), "o3");
        assert_eq!(spell(rebuild(2, read(&[3], 5, Some(9), false), None)), "o3 x4=9");
    }

    #[test]
    fn recovery_rejects_output_at_closed_sequence() {
        assert_eq!(
            spell(rebuild(0, read(&[1, 3], 4, Some(0), true), None)),
            "output has the sequence number of the close"
        );
    }

    #[test]
    fn evicted_output_is_a_gap() {
        assert_eq!(spell(rebuild(0, read(&[5, 6], 7, None, false), None)), "g1-4 o5 o6");
        assert_eq!(spell(rebuild(0, read(&[5, 6], 9, Some(1), true), None)), "g1-4 o5 o6 x7=1 c8");
        let known = Some((3, Exit::of_code(2)));
        assert_eq!(spell(rebuild(0, read(&[5], 7, Some(2), true), known)), "g1-2 x3=2 g4-4 o5 c6");
    }

    #[test]
    fn an_exit_before_the_beginning_is_recorded_without_an_event() {
        for (answer, is_closed) in [(read(&[], 4, Some(7), false), false), (read(&[], 5, Some(7), true), true)] {
            let log = EventLog::new(FlowPolicy::observed(), 3);
            append_read(&log, 3, answer, None).expect("the exit is number 3");
            assert_eq!((log.exit(), log.exit_at()), (Some(Exit::of_code(7)), None));
            assert_eq!(log.closed().is_some(), is_closed);
        }
        // The recorded exit has the details from the list. A number that is missing later is a gap, because the exit is known.
        let log = EventLog::new(FlowPolicy::observed(), 3);
        let more = Exit { signal: Some("SIGKILL".to_owned()), ..Exit::of_code(137) };
        append_read(&log, 3, read(&[4], 5, Some(137), false), Some(more.clone())).expect("the exit is before");
        append_read(&log, 4, read(&[8], 9, Some(137), false), None).expect("a gap");
        assert_eq!((log.exit(), log.exit_at(), log.next()), (Some(more), None, 9));
        // The close lies before the beginning, too.
        let log = EventLog::new(FlowPolicy::observed(), 4);
        append_read(&log, 4, read(&[], 5, Some(7), true), None).expect("everything is before");
        assert_eq!((log.exit(), log.closed(), log.next()), (Some(Exit::of_code(7)), Some(Totals::default()), 5));
    }

    #[test]
    fn the_bytes_of_a_gap_that_the_exit_divides_are_counted_once() {
        let mut divided = read(&[7], 8, Some(0), false);
        divided.end.gap = Some(wire::Gap { from_seq: 1, to_seq: 6, bytes: 90 });
        let counts = |after: u64| -> Vec<_> {
            let events = rebuild(after, divided.clone(), Some((4, Exit::of_code(0)))).expect("a gap");
            events.iter().map(Event::output_bytes).collect()
        };
        assert_eq!(counts(0), [Some(90), Some(0), Some(0), Some(1)]);
        assert_eq!(counts(1), [None, Some(0), None, Some(1)], "the count may include earlier output");
    }

    #[test]
    fn known_events_are_not_rebuilt() {
        assert_eq!(spell(rebuild(4, read(&[], 5, Some(0), true), Some((3, Exit::of_code(0))))), "");
    }
}
