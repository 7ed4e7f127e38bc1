//! A client's view of one process, and the oracle that compares every event with what the child really did.
//!
//! It checks the promises R1 to R3: output bytes arrive once and in order, gaps are exact to the byte, there is one exit with the right
//! code, there is one close and it is last, and stdin arrives exactly once and in order. Does not depend on connections.

use crate::{
    child::{ChildRecord, ChildRecords, ScriptStep},
    prelude::*,
    stdin::{Write, WriteOutcome},
};

/// How to start a process.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The script of the child.
    pub steps: Vec<ScriptStep>,
    /// Runs on a terminal.
    pub tty: bool,
    /// Has a writable stdin.
    pub stdin: bool,
    /// Drops its oldest output instead of blocking. Such a process writes only to stdout, so that the position of a gap is known.
    pub drops: bool,
    /// Time limit of the process.
    pub timeout_ms: Option<u64>,
    /// Time limit without output.
    pub idle_ms: Option<u64>,
}

impl Plan {
    /// Whether an exit cause is plausible: a timeout only if there is a limit, a termination only if one was requested.
    pub fn allows(&self, cause: &str, code: i32, kill_requested: bool, lost: bool) -> bool {
        match cause {
            "exit" => code < 128,
            "timeout" => self.timeout_ms.is_some() && code >= 128,
            "idleTimeout" => self.idle_ms.is_some() && code >= 128,
            // The child may exit by itself during the grace period.
            "terminated" => kill_requested,
            "signal" => kill_requested && code >= 128,
            "lost" => lost && code == -1,
            _ => false,
        }
    }

    /// Whether all output goes to one stream, so that the position of lost bytes is known.
    pub fn is_single(&self) -> bool {
        !self.steps.iter().any(|step| matches!(step, ScriptStep::Write { stream: 1, .. }))
    }
}

/// The state of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartState {
    /// Sent this many times, and not answered.
    Asked(u32),
    /// The process runs or has run.
    Done,
    /// A terminate cancelled the start, or its result will never be known.
    Cancelled,
}

/// A client's view of one process.
pub struct ProcessView {
    /// The name on the wire and in the script.
    pub name: String,
    pub plan: Plan,
    pub start: StartState,
    /// The last sequence number processed.
    pub last: u64,
    /// The last sequence number acknowledged.
    pub acked: u64,
    /// Bytes processed since the last acknowledgement.
    pub unacked: u64,
    /// The exit code, once reported.
    pub exited: Option<i32>,
    /// The close was reported.
    pub closed: bool,
    /// All writes, in order.
    pub writes: Vec<Write>,
    /// Outer `None`: no close of stdin was requested. Inner `None`: the request was not answered yet.
    pub close_stdin: Option<Option<WriteOutcome>>,
    /// The client has sent `process/forget`, or the server no longer keeps the process.
    pub forgotten: bool,
    /// The process had exited when more time passed than closed processes are kept, so the server may not know it. The client may not have
    /// received all its events.
    pub may_be_gone: bool,
    /// The client has requested its end.
    pub kill_requested: bool,
    is_observed: bool,
    /// Bytes received per stream, including bytes in gaps.
    taken: [u64; 2],
    gaps: u64,
    /// The position of each received chunk: stream, offset and length, by sequence number. Used to check repeated chunks.
    chunks: BTreeMap<u64, (usize, u64, usize)>,
    /// How many bytes of the child's stdin were checked.
    pub(crate) checked: usize,
    trace: Trace,
    pub(crate) records: ChildRecords,
}

impl ProcessView {
    /// A process whose start is about to be requested.
    pub fn new(name: &str, plan: Plan, context: &WorldContext) -> Self {
        Self {
            name: name.to_owned(),
            plan,
            start: StartState::Asked(0),
            last: 0,
            acked: 0,
            unacked: 0,
            exited: None,
            closed: false,
            writes: Vec::new(),
            close_stdin: None,
            forgotten: false,
            may_be_gone: false,
            kill_requested: false,
            is_observed: false,
            taken: [0; 2],
            gaps: 0,
            chunks: BTreeMap::new(),
            checked: 0,
            trace: context.trace.clone(),
            records: context.records.clone(),
        }
    }

    /// The start failed, or its result will never be known.
    pub fn cancel(&mut self) {
        self.start = StartState::Cancelled;
        self.writes.iter_mut().for_each(|write| write.status = Some(WriteOutcome::No));
        self.close_stdin = Some(Some(WriteOutcome::No));
    }

    /// More time has passed than closed processes are kept.
    pub(crate) fn age(&mut self) {
        self.forgotten |= self.closed;
        self.may_be_gone |= self.records.with(&self.name, |record| record.exit.is_some());
    }

    /// Turns this into the view of a subscriber. The server does not wait for subscribers, so gaps are allowed.
    pub fn observe(&mut self) {
        (self.start, self.is_observed) = (StartState::Done, true);
    }

    pub(crate) fn report_violation(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.trace.report_violation(invariant, format_args!("{}: {what}", self.name));
    }

    /// Handles a chunk of output, pushed or read. Returns false if sequence numbers before it are missing.
    pub fn handle_chunk(&mut self, chunk: &Value, pushed: bool) -> bool {
        let (Some(seq), Some(bytes)) = (chunk["seq"].as_u64(), chunk["chunk"].as_str()) else {
            violation!(self, Wire, "a chunk without number or bytes: {chunk}");
            return true;
        };
        let Ok(bytes) = base64::decode(bytes) else {
            violation!(self, Wire, "chunk {seq} is not base64");
            return true;
        };
        let stream = usize::from(chunk["stream"] == "stderr");
        if (chunk["stream"] == "pty") != self.plan.tty {
            violation!(self, Wire, "chunk {seq} is of stream {}", chunk["stream"]);
        }
        if let Some((of, at, len)) = self.chunks.get(&seq) {
            self.trace.count(Branch::Duplicate);
            // The acknowledgement may have been lost with the link, so acknowledge repeated chunks again.
            self.unacked += bytes.len() as u64;
            if *of != stream || *len != bytes.len() || text(&self.name, *of, *at, *len) != bytes {
                violation!(self, Prefix, "chunk {seq} came twice and differs");
            }
            return true;
        }
        if seq <= self.last {
            return true; // Part of a gap reported before, or an event other than output.
        }
        if pushed && seq > self.last + 1 {
            return false;
        }
        if let Some(offset) = chunk["offset"].as_u64()
            && offset != self.total()
        {
            violation!(self, Prefix, "chunk {seq} at offset {offset}, expected {}", self.total());
        }
        if !chunk["gap"].is_null() {
            self.take_gap(&chunk["gap"], seq);
        }
        self.last = seq;
        if bytes.is_empty() {
            return true; // A placeholder for a missing number. The server sends it to peers that would stall at a jump.
        }
        let at = self.taken[stream];
        if text(&self.name, stream, at, bytes.len()) != bytes {
            violation!(self, Prefix, "chunk {seq}: {} bytes of stream {stream} are not those at {at}", bytes.len());
        }
        if self.records.with(&self.name, |record| record.written[stream]) < at + bytes.len() as u64 {
            violation!(self, Prefix, "chunk {seq} has bytes that were never written");
        }
        if self.closed {
            violation!(self, End, "chunk {seq} after the close");
        }
        if self.exited.is_some() {
            self.trace.count(Branch::OutputAfterExit);
        }
        self.trace.line(format_args!("{} #{seq} stream {stream}: {} bytes at {at}", self.name, bytes.len()));
        self.chunks.insert(seq, (stream, at, bytes.len()));
        self.taken[stream] += bytes.len() as u64;
        self.unacked += bytes.len() as u64;
        true
    }

    /// Handles a gap from an event or a read. It may begin before `last`, because the server counts from the last acknowledgement.
    pub fn handle_gap(&mut self, gap: &Value) {
        let (from, to) = (gap["fromSeq"].as_u64().unwrap_or(0), gap["toSeq"].as_u64().unwrap_or(0));
        if to <= self.last {
            return; // Repeated after a resume.
        }
        self.take_gap(gap, from);
        self.last = to;
    }

    fn take_gap(&mut self, gap: &Value, from: u64) {
        let bytes = gap["bytes"].as_u64().unwrap_or(0);
        self.trace.count(Branch::Gap);
        self.trace.count(if self.is_observed { Branch::ObserverGap } else { Branch::DropOldestGap });
        self.trace.line(format_args!("{} gap {}..{}: {bytes} bytes", self.name, gap["fromSeq"], gap["toSeq"]));
        if !self.plan.drops && !self.is_observed {
            return violation!(self, Gap, "a gap in a log that must not drop: {gap}");
        }
        let begins = match self.chunks.get(&from) {
            Some((_, at, _)) => *at,
            None if from == self.last + 1 => self.taken[0],
            None => return violation!(self, Gap, "gap from {from} where {} was the last number", self.last),
        };
        let Some(missed) = (begins + bytes).checked_sub(self.taken[0]) else {
            return violation!(self, Gap, "gap {gap} ends before {}, which was taken", self.taken[0]);
        };
        self.chunks.insert(from, (0, begins, 0));
        self.taken[0] += missed;
        self.gaps += missed;
    }

    fn total(&self) -> u64 {
        self.taken.iter().sum()
    }

    /// Handles the exit, from an event or from the flag of a read.
    pub fn handle_exit(&mut self, code: i32) {
        let (real, lost) = self.records.with(&self.name, |record| (record.exit, record.lost));
        if real != Some(code) && !(lost && code == -1) {
            violation!(self, End, "exit {code}, really {real:?}");
        }
        if self.exited.replace(code).is_none() {
            self.trace.line(format_args!("{} exited {code}", self.name));
        }
    }

    /// Takes the number of an event. Returns false if sequence numbers before it are missing.
    fn follows(&mut self, params: &Value) -> bool {
        let seq = params["seq"].as_u64().unwrap_or(0);
        let follows = seq <= self.last + 1;
        if follows {
            self.last = self.last.max(seq);
        }
        follows
    }

    /// Handles an `exited` event. Returns false if sequence numbers before it are missing.
    pub fn handle_exited_event(&mut self, params: &Value) -> bool {
        if !self.follows(params) {
            return false;
        }
        let code = params["exitCode"].as_i64().and_then(|code| i32::try_from(code).ok()).unwrap_or(i32::MIN);
        self.handle_exit(code);
        let (cause, lost) = (&params["cause"], self.records.with(&self.name, |record| record.lost));
        if !self.is_observed && !self.plan.allows(cause.as_str().unwrap_or(""), code, self.kill_requested, lost) {
            violation!(self, End, "exit {code} because of {cause}, of {:?}", self.plan);
        }
        match cause.as_str() {
            Some("timeout") => self.trace.count(Branch::Timeout),
            Some("idleTimeout") => self.trace.count(Branch::IdleTimeout),
            _ => {}
        }
        true
    }

    /// Handles a `closed` event. Returns false if sequence numbers before it are missing.
    pub fn handle_closed_event(&mut self, params: &Value) -> bool {
        if !self.follows(params) {
            return false;
        }
        let (written, lost): (u64, bool) =
            self.records.with(&self.name, |record| (record.written.iter().sum(), record.lost));
        let reported = params["outputBytes"].as_u64().unwrap_or(u64::MAX);
        // Output that a dying holder had not read is lost with it.
        if reported > written || reported < written && !lost {
            violation!(self, End, "closed says {} bytes, really {written}", params["outputBytes"]);
        }
        // Dropped output may have been delivered before it was dropped. But everything reported as a gap must have been dropped.
        if !self.is_observed && params["droppedBytes"].as_u64().is_none_or(|dropped| dropped < self.gaps) {
            violation!(self, Gap, "closed says {} dropped, gaps said {}", params["droppedBytes"], self.gaps);
        }
        self.handle_close();
        true
    }

    /// Handles the close, from an event or from the flag of a read. All output must have been received.
    pub fn handle_close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.trace.line(format_args!("{} closed", self.name));
        let record = self.records.get(&self.name);
        if self.exited.is_none() {
            violation!(self, End, "closed without an exit");
        }
        let is_all = self.taken.iter().zip(&record.written).all(|(taken, written)| taken <= written)
            && (self.taken == record.written || record.lost);
        if !is_all {
            violation!(self, End, "closed with {:?} bytes taken of {:?}", self.taken, record.written);
        }
    }

    /// The final checks at the end of a world.
    pub fn check_end(&mut self) {
        self.check_stdin();
        let record = self.records.get(&self.name);
        if record.spawns > 1 {
            violation!(self, Start, "spawned {} times", record.spawns);
        }
        if self.start == StartState::Done && !self.closed {
            violation!(self, End, "never closed: {}", self.missing(&record));
        }
        let accepted = self.accepted_end();
        if record.saw_eof && !record.lost && (record.stdin.len() as u64) < accepted {
            violation!(self, Stdin, "{accepted} bytes were accepted, stdin ended at {}", record.stdin.len());
        }
        let is_timed = self.plan.timeout_ms.or(self.plan.idle_ms).is_some();
        if record.exit.is_some_and(|code| code > 128) && !self.kill_requested && !is_timed && !record.lost {
            violation!(self, Start, "was killed ({:?}) and nobody asked for it", record.signals);
        }
    }

    fn missing(&self, record: &ChildRecord) -> String {
        format!(
            "last {} taken {:?} of {:?}, exit heard {:?} really {:?}, start {:?}, stdin {} of {:?}",
            self.last,
            self.taken,
            record.written,
            self.exited,
            record.exit,
            self.start,
            record.stdin.len(),
            self.writes.last(),
        )
    }
}
