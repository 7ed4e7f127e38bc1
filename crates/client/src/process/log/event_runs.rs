//! Stores the published events of a log, in order, without holes, and compactly.
//!
//! A server's window counts bytes. A program that writes one byte at a time produces one event per byte, so millions of events can be in
//! memory before the first is consumed. An [`Event`] needs about a hundred bytes of memory. Small consecutive pieces are therefore stored
//! as one run, in which a piece of one byte needs about five. This way the window also bounds memory, and the number of events with output
//! needs no limit.

use std::collections::VecDeque;

use bytes::Bytes;
use exec_server_protocol::process::Stream;

use crate::process::event::Event;

/// The largest piece that joins a run. For a larger one, the overhead of a separate event does not matter.
const SMALL_BYTES: usize = 64;

/// The most pieces in one run. A run is freed when its last piece is removed, so this bounds the memory held for removed pieces. Together
/// with `SMALL_BYTES` it keeps each offset within 16 bits.
const RUN_PIECES: usize = 1000;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct EventRuns {
    parts: VecDeque<StoredPart>,
    /// The number of events.
    pub(super) len: usize,
    /// The number of output bytes.
    pub(super) bytes: u64,
    /// The number of events without output, which no window bounds.
    pub(super) empty: usize,
}

#[derive(Debug)]
enum StoredPart {
    One(Event),
    Run(OutputRun),
}

/// Small consecutive pieces of output.
#[derive(Debug)]
struct OutputRun {
    /// The sequence number of the first piece.
    first: u64,
    /// Output bytes of the process before the first piece, if the server reports offsets. Either all pieces of a run have an offset or
    /// none.
    offset: Option<u64>,
    bytes: Vec<u8>,
    pieces: Vec<RunPiece>,
    /// The number of pieces at the front that were removed.
    removed: usize,
}

#[derive(Debug, Clone, Copy)]
struct RunPiece {
    /// The end of the piece in the bytes of its run.
    end: u16,
    stream: Stream,
}

impl EventRuns {
    /// The first and the last sequence number of the oldest event.
    pub(super) fn front(&self) -> Option<(u64, u64)> {
        match self.parts.front()? {
            StoredPart::One(event) => event.span(),
            StoredPart::Run(run) => Some((run.from(), run.from())),
        }
    }

    /// Appends the event with the next sequence number.
    pub(super) fn push(&mut self, event: Event) {
        self.len += 1;
        self.bytes += event.weight();
        self.empty += usize::from(event.weight() == 0);
        let Event::Output { seq, stream, bytes, offset } = &event else {
            return self.parts.push_back(StoredPart::One(event));
        };
        if bytes.is_empty() || bytes.len() > SMALL_BYTES {
            return self.parts.push_back(StoredPart::One(event));
        }
        if let Some(StoredPart::Run(run)) = self.parts.back_mut()
            && run.is_continued_by(*seq, *offset)
        {
            return run.push(bytes, *stream);
        }
        let mut run = OutputRun { first: *seq, offset: *offset, bytes: Vec::new(), pieces: Vec::new(), removed: 0 };
        run.push(bytes, *stream);
        self.parts.push_back(StoredPart::Run(run));
    }

    /// Removes the oldest event.
    pub(super) fn pop(&mut self) {
        let weight = match self.parts.front_mut() {
            None => return,
            Some(StoredPart::One(event)) => event.weight(),
            Some(StoredPart::Run(run)) => run.pop(),
        };
        if !matches!(self.parts.front(), Some(StoredPart::Run(run)) if run.removed < run.pieces.len()) {
            self.parts.pop_front();
        }
        self.len -= 1;
        self.bytes -= weight;
        self.empty -= usize::from(weight == 0);
    }

    /// The first event that ends after number `position`.
    pub(super) fn after(&self, position: u64) -> Option<Event> {
        match self.parts.get(self.part_after(position))? {
            StoredPart::One(event) => Some(event.clone()),
            StoredPart::Run(run) => run.event(position.saturating_add(1).max(run.from())),
        }
    }

    /// Output bytes of the events that end after number `after` and not after number `to`.
    pub(super) fn bytes_between(&self, after: u64, to: u64) -> u64 {
        let mut bytes = 0;
        for part in self.parts.iter().skip(self.part_after(after)) {
            match part {
                StoredPart::One(event) if event.span().is_some_and(|(_, last)| last <= to) => bytes += event.weight(),
                StoredPart::Run(run) if run.from() <= to => bytes += run.bytes_between(after, to),
                StoredPart::One(_) | StoredPart::Run(_) => break,
            }
        }
        bytes
    }

    /// Output bytes reported from number `from` on. `None` if an event spans `from`, was removed, or is a gap without a byte count.
    pub(super) fn reported_from(&self, from: u64) -> Option<u64> {
        let mut bytes = 0;
        for part in self.parts.iter().rev() {
            let first = match part {
                StoredPart::One(event) => {
                    bytes += event.output_bytes()?;
                    event.span()?.0
                }
                StoredPart::Run(run) => {
                    bytes += run.bytes_between(from.saturating_sub(1), u64::MAX);
                    // Each piece of a run is an event of its own, so the count can begin at any of them.
                    run.from().max(from.min(run.last()))
                }
            };
            if first <= from {
                return (first == from).then_some(bytes);
            }
        }
        None
    }

    /// The index of the first part that ends after number `position`.
    fn part_after(&self, position: u64) -> usize {
        self.parts.partition_point(|part| match part {
            StoredPart::One(event) => event.span().is_some_and(|(_, to)| to <= position),
            StoredPart::Run(run) => run.last() <= position,
        })
    }
}

impl OutputRun {
    /// The sequence number of the first piece that was not removed.
    fn from(&self) -> u64 {
        self.first + self.removed as u64
    }

    /// The sequence number of the last piece.
    fn last(&self) -> u64 {
        self.first + self.pieces.len() as u64 - 1
    }

    fn is_continued_by(&self, seq: u64, offset: Option<u64>) -> bool {
        let is_adjacent = match (self.offset, offset) {
            (Some(begins), Some(offset)) => begins.checked_add(self.bytes.len() as u64) == Some(offset),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        is_adjacent && seq == self.last() + 1 && self.pieces.len() < RUN_PIECES
    }

    fn push(&mut self, bytes: &[u8], stream: Stream) {
        self.bytes.extend_from_slice(bytes);
        let end = u16::try_from(self.bytes.len()).expect("the pieces of a run are few and small");
        self.pieces.push(RunPiece { end, stream });
    }

    /// Removes the first piece and returns its length.
    fn pop(&mut self) -> u64 {
        let bytes = self.end(self.removed + 1) - self.end(self.removed);
        self.removed += 1;
        bytes as u64
    }

    /// The end of the first `count` pieces in `bytes`.
    fn end(&self, count: usize) -> usize {
        count.checked_sub(1).and_then(|at| self.pieces.get(at)).map_or(0, |piece| usize::from(piece.end))
    }

    /// The index of a sequence number among the pieces, clamped to those that were not removed.
    fn index_of(&self, seq: u64) -> usize {
        let index = usize::try_from(seq.saturating_sub(self.first)).unwrap_or(usize::MAX);
        index.clamp(self.removed, self.pieces.len())
    }

    /// The piece with this sequence number.
    fn event(&self, seq: u64) -> Option<Event> {
        let at = self.index_of(seq);
        let (from, piece) = (self.end(at), self.pieces.get(at)?);
        let bytes = Bytes::copy_from_slice(self.bytes.get(from..usize::from(piece.end))?);
        let offset = self.offset.map(|begins| begins + from as u64);
        Some(Event::Output { seq, stream: piece.stream, bytes, offset })
    }

    /// Bytes of the pieces after number `after`, up to number `to`.
    fn bytes_between(&self, after: u64, to: u64) -> u64 {
        let (from, to) = (self.index_of(after.saturating_add(1)), self.index_of(to.saturating_add(1)));
        self.end(to.max(from)) as u64 - self.end(from) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(seq: u64, stream: Stream, bytes: &str, offset: Option<u64>) -> Event {
        Event::Output { seq, stream, bytes: bytes.to_owned().into(), offset }
    }

    /// Compares every query with the same computation over the plain events.
    fn check(runs: &EventRuns, events: &[Event]) {
        let weight = |events: &[Event]| events.iter().map(Event::weight).sum::<u64>();
        let spans: Vec<_> = events.iter().map(|event| event.span().unwrap()).collect();
        assert_eq!((runs.len, runs.bytes, runs.front()), (events.len(), weight(events), spans.first().copied()));
        assert_eq!(runs.empty, events.iter().filter(|event| event.weight() == 0).count());
        for (at, (from, to)) in spans.iter().copied().enumerate() {
            for position in from - 1..to {
                assert_eq!(format!("{:?}", runs.after(position)), format!("{:?}", Some(&events[at])));
            }
            let reported = events[at..].iter().map(Event::output_bytes).sum::<Option<u64>>();
            assert_eq!(runs.reported_from(from), reported, "from {from}");
            for end in at..events.len() {
                assert_eq!(runs.bytes_between(from - 1, spans[end].1), weight(&events[at..=end]), "{from} to {end}");
            }
        }
        let last = spans.last().map_or(0, |span| span.1);
        assert!(runs.after(last).is_none() && runs.reported_from(last + 1).is_none());
        assert_eq!(runs.bytes_between(0, u64::MAX), weight(events));
    }

    #[test]
    fn events_stored_in_one_run_are_returned_separately() {
        let large = "x".repeat(SMALL_BYTES + 1);
        let mut events = vec![
            output(1, Stream::Stdout, "a", Some(0)),
            output(2, Stream::Stderr, "bc", Some(1)),
            output(3, Stream::Stdout, "", Some(3)),
            output(4, Stream::Stdout, &large, Some(3)),
            output(5, Stream::Stdout, "d", Some(68)),
            output(6, Stream::Pty, "e", Some(69)),
            // An offset that does not follow, or a missing one, starts a new run.
            output(7, Stream::Pty, "f", Some(7)),
            output(8, Stream::Pty, "g", None),
            output(9, Stream::Pty, "h", None),
            output(10, Stream::Pty, "i", Some(u64::MAX)),
            output(11, Stream::Pty, "j", Some(0)),
            Event::Gap { from_seq: 12, to_seq: 15, bytes: Some(9) },
            output(16, Stream::Stderr, "k", None),
        ];
        let mut runs = EventRuns::default();
        for at in 0..events.len() {
            runs.push(events[at].clone());
            check(&runs, &events[..=at]);
        }
        while !events.is_empty() {
            runs.pop();
            events.remove(0);
            check(&runs, &events);
        }
        runs.pop();
        assert_eq!((runs.len, runs.parts.len()), (0, 0));
        // `reported_from` knows nothing about a number inside a gap, or about one that was removed.
        runs.push(Event::Gap { from_seq: 17, to_seq: 20, bytes: Some(9) });
        assert_eq!((runs.reported_from(18), runs.reported_from(16)), (None, None));
    }

    #[test]
    fn a_million_events_of_one_byte_are_stored_as_a_thousand_runs() {
        let mut runs = EventRuns::default();
        for seq in 1..=1_000_000 {
            runs.push(output(seq, if seq % 2 == 0 { Stream::Stdout } else { Stream::Stderr }, "x", None));
        }
        assert_eq!((runs.len, runs.bytes, runs.parts.len()), (1_000_000, 1_000_000, 1000));
        assert_eq!(size_of::<RunPiece>(), 4);
    }
}
