//! The server's picture of one child: the chain of its log, who watches it, who has taken what, and the line of writes to its stdin.
//!
//! The child itself, its descriptors and its exit belong to the holder. Nothing here blocks: disk segments are read by `load::Load`, which
//! the pump runs off the runtime's threads. A process whose holder was found dead is made in `remains`.
//!
//! Letting go: the owner and every `hold` subscriber is a *taker* with a position. What lies below the lowest position is released to the
//! holder, segment by segment, except for the last [`limits::READABLE_BYTES`]. What readers that follow have taken is said to the holder as well
//! (`followers`): at its quota it drops that instead of keeping the child waiting for an owner that is away.

use std::{
    collections::VecDeque,
    fmt,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use exec_server_holder::wire::{DIGESTS, ToHolder, WriteStatus};
use exec_server_log::{Chain, Control, Cursor, Place, SegmentInfo, Status, Step};
use exec_server_protocol::{ProcessId, SessionId, limits, process as wire};
use tokio::time::Instant;

use crate::{
    error::Failure,
    link::{Lent, Link, Waiter},
    pump::{Reply, Watch},
    session::short,
};

mod counted;
mod followers;
mod load;
mod meta;
mod remains;

pub(crate) use self::{
    followers::Hold,
    meta::{Dialect, Meta, kept_argv},
};
use self::{followers::Taker, load::Loads, remains::Board};

/// Bytes of one stdin part: with its header it fits a message to the holder.
const WRITE_PART_BYTES: usize = 56 << 10;

pub(crate) struct Process {
    /// The session it belongs to.
    pub(crate) session: Arc<str>,
    pub(crate) meta: Meta,
    pub(crate) pid: u32,
    slot: u32,
    /// To the holder of the moment: one that left the session to its files may be followed by another.
    link: Mutex<Arc<Link>>,
    board: RwLock<Board>,
    /// Changed by the link when segments come and go, read by cursors; held only while records are encoded.
    chain: Mutex<Chain>,
    /// Who wants to hear of new events. Bounded by the feeds and reads of all connections.
    watches: Mutex<Vec<Arc<Watch>>>,
    takers: Mutex<Vec<Taker>>,
    next_taker: AtomicU64,
    /// What the holder was told last of the readers that follow.
    followed: Mutex<u64>,
    stdin: Mutex<StdinLine>,
    loads: Mutex<Loads>,
    /// How far the owner got, kept for the next connection.
    owner: Mutex<Position>,
    /// At or below it, with an exact offset; that of an acknowledged number may be too low by what lies between two marks of its feed.
    owner_mark: Mutex<Position>,
    /// Kills the leader's group should the holder die. `None` once it was gone at adoption.
    leader: Mutex<Option<Arc<OwnedFd>>>,
    /// Set once when the holder died: what the log would have said next is made up from here.
    lost: OnceLock<Lost>,
    /// Its end is on record.
    end_told: AtomicBool,
    /// Set once when the process is forgotten: its slot and segments belong to others from then on.
    forgotten: OnceLock<Status>,
    /// When it was closed, on a clock that stands still while the owner is away or has not taken everything.
    closed_since: Mutex<Option<Instant>>,
    /// What was told to the metrics: bytes written and bytes dropped.
    counted: [AtomicU64; 2],
}

/// Where a reader stands: the last number it got, and how many output bytes that makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) seq: u64,
    pub(crate) offset: u64,
}

/// The end of a process whose holder died: numbers for the exit and the close that nobody wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    pub(crate) exited_seq: Option<u64>,
    pub(crate) closed_seq: u64,
}

#[derive(Default)]
struct StdinLine {
    line: VecDeque<Input>,
    /// The front of the line is in the holder's hands.
    busy: bool,
}

/// Something that waits for its turn at a process's stdin.
pub(crate) enum Input {
    Write { key: Option<[u8; 16]>, digest: u32, data: Bytes, done: usize, is_cut: bool, reply: Reply },
    Close { reply: Reply },
}

impl Input {
    fn reply(self) -> Reply {
        let (Self::Write { reply, .. } | Self::Close { reply }) = self;
        reply
    }

    /// Its process has ended, and nothing reads its stdin.
    fn closed(self, process: &str) {
        match self {
            Self::Write { reply, .. } => reply.write(process, wire::WriteStatus::StdinClosed),
            Self::Close { reply } => {
                reply.result(&wire::CloseStdinResult { status: wire::CloseStdinStatus::StdinClosed })
            }
        }
    }

    /// Its process is gone from the table.
    fn unknown(self, process: &str) {
        match self {
            Self::Write { reply, .. } => reply.write(process, wire::WriteStatus::UnknownProcess),
            Self::Close { reply } => {
                reply.result(&wire::CloseStdinResult { status: wire::CloseStdinStatus::UnknownProcess })
            }
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("id", &self.meta.process_id).field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// What the link knows of a process when it appears.
pub(crate) struct Birth {
    pub(crate) session: Arc<str>,
    pub(crate) meta: Meta,
    pub(crate) pid: u32,
    pub(crate) slot: u32,
    pub(crate) leader: Option<OwnedFd>,
    /// Bytes written and dropped under an earlier server, which counted them.
    pub(crate) counted: [u64; 2],
}

/// A position beyond every number that will ever be given.
const ABANDONED: u64 = u64::MAX / 2;

/// The owner is always a taker: what it has not taken is kept while it is away.
const OWNER: u64 = 0;

impl Process {
    pub(crate) fn new(birth: Birth, link: Arc<Link>, control: Arc<Control>) -> Self {
        let released = control.status(birth.slot);
        let taken = Position { seq: released.released_seq, offset: released.released_offset };
        let process = Self::at(birth, link, Board::Shared(control), taken);
        // An adopted log may have let go of its beginning: whoever asks for that is told.
        process.chain().forget_below(taken.seq + 1, taken.offset);
        process
    }

    fn at(birth: Birth, link: Arc<Link>, board: Board, taken: Position) -> Self {
        Self {
            session: birth.session,
            meta: birth.meta,
            pid: birth.pid,
            slot: birth.slot,
            link: Mutex::new(link),
            board: RwLock::new(board),
            chain: Mutex::default(),
            watches: Mutex::default(),
            takers: Mutex::new(vec![Taker { key: OWNER, from: 0, seq: taken.seq, holds: true }]),
            next_taker: AtomicU64::new(OWNER + 1),
            followed: Mutex::default(),
            stdin: Mutex::default(),
            loads: Mutex::default(),
            owner: Mutex::new(taken),
            owner_mark: Mutex::new(taken),
            leader: Mutex::new(birth.leader.map(Arc::new)),
            lost: OnceLock::new(),
            end_told: AtomicBool::new(false),
            forgotten: OnceLock::new(),
            closed_since: Mutex::default(),
            counted: birth.counted.map(AtomicU64::new),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.meta.process_id
    }

    /// Its name as it travels.
    pub(crate) fn process_id(&self) -> ProcessId {
        ProcessId::new(self.id())
    }

    pub(crate) fn session_id(&self) -> SessionId {
        SessionId::new(self.session.clone())
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    pub(crate) fn link(&self) -> Arc<Link> {
        lock(&self.link).clone()
    }

    /// The state the holder publishes, with the made-up end where the holder is gone.
    pub(crate) fn status(&self) -> Status {
        if let Some(last) = self.forgotten.get() {
            return *last;
        }
        let mut status = self.published();
        if let Some(lost) = self.lost.get() {
            status.next_seq = lost.closed_seq + 1;
            status.closed_seq = Some(lost.closed_seq);
        }
        status
    }

    /// Lets go of everything shared with the holder, before the holder is told to reuse it. Readers that still have the process find an
    /// empty log.
    pub(crate) fn forget(self: &Arc<Self>) {
        self.forgotten.set(self.status()).ok(); // Forgotten once is forgotten.
        let mut chain = self.chain();
        let (end_seq, end_offset) = (self.status().next_seq, chain.end_offset());
        // Let go of before they are given back: from then on others write there.
        let segments: Vec<SegmentInfo> = std::mem::take(&mut *chain).segments().collect();
        chain.forget_below(end_seq, end_offset);
        drop(chain);
        let link = self.link();
        for segment in segments {
            match segment.place {
                Place::Memory => link.send(&ToHolder::Return { segment: segment.id }),
                // The holder removes its files when it is told to forget; without one it is done here.
                Place::Disk if link.is_broken() => link.release(self.slot, segment.id),
                Place::Disk => {}
            }
        }
        drop(link.status(|req| ToHolder::Forget { req, slot: self.slot }));
        link.save_archive();
        // What waits for its stdin must not reach whoever gets the slot.
        self.next_input(lock(&self.stdin));
        self.wake();
    }

    pub(crate) fn lost(&self) -> Option<Lost> {
        self.lost.get().copied()
    }

    /// True the first time: whoever asked puts its end on record.
    pub(crate) fn tell_end(&self) -> bool {
        !self.end_told.swap(true, Ordering::AcqRel)
    }

    /// It runs no more; others may still hold its streams.
    pub(crate) fn has_ended(&self) -> bool {
        self.lost.get().is_some() || self.status().exited.is_some()
    }

    pub(crate) fn chain(&self) -> MutexGuard<'_, Chain> {
        lock(&self.chain)
    }

    /// True where something lies beyond `seen_next_seq` already; false: the next event wakes the watches.
    pub(crate) fn arm(&self, seen_next_seq: u64) -> bool {
        match &*self.board() {
            Board::Shared(control) => {
                self.lost.get().is_none()
                    && self.forgotten.get().is_none()
                    && control.arm_slot(self.slot, seen_next_seq)
            }
            Board::Left { .. } => false,
        }
    }

    pub(crate) fn watch(&self, watch: Arc<Watch>) {
        lock(&self.watches).push(watch);
    }

    pub(crate) fn unwatch(&self, watch: &Arc<Watch>) {
        lock(&self.watches).retain(|other| !Arc::ptr_eq(other, watch));
    }

    /// How many feeds and reads wait for its events, the owner's among them.
    pub(crate) fn watchers(&self) -> usize {
        lock(&self.watches).len()
    }

    /// Tells every watch that there is something new.
    pub(crate) fn wake(&self) {
        for watch in lock(&self.watches).iter() {
            watch.ring();
        }
    }

    pub(crate) fn owner_position(&self) -> Position {
        let owner = *lock(&self.owner);
        // Dropped behind its back: the gap is counted from where the count of bytes is exact, and the reader knows what it has of it.
        let is_gone = self.chain().first().is_some_and(|(first, _)| first > owner.seq + 1);
        if is_gone { *lock(&self.owner_mark) } else { owner }
    }

    /// The output bytes up to and including a number, where the log tells: what it has next begins there.
    pub(crate) fn offset_behind(&self, seq: u64) -> Option<u64> {
        let status = self.status();
        match self.chain().read(&mut Cursor::after(seq)) {
            Step::Record(record) => Some(record.offset),
            Step::End if seq.saturating_add(1) == status.next_seq => Some(status.written),
            Step::End | Step::Gap { .. } | Step::NeedsLoad(_) | Step::Damaged(_) => None,
        }
    }

    /// The same, also where nothing follows that tells: at the beginning, and where the owner is known to be.
    pub(crate) fn offset_at(&self, seq: u64) -> Option<u64> {
        if seq == 0 {
            return Some(0);
        }
        let mark = *lock(&self.owner_mark);
        self.offset_behind(seq).or((mark.seq == seq).then_some(mark.offset))
    }

    /// The owner has everything up to there, to the byte.
    pub(crate) fn set_owner_mark(&self, position: Position) {
        let mut mark = lock(&self.owner_mark);
        if position.seq >= mark.seq {
            *mark = position;
        }
    }

    /// The owner got this far. Never goes back: an old connection may say so after a new one.
    pub(crate) fn set_owner_position(&self, position: Position) {
        let mut owner = lock(&self.owner);
        if position.seq >= owner.seq {
            *owner = position;
        }
    }

    /// The owner has taken everything up to there. Its position moves along, so that a resume that comes before the old connection has
    /// left its place does not begin at what is gone.
    pub(crate) fn owner_took(&self, position: Position) {
        self.set_owner_position(position);
        self.took(OWNER, position.seq);
    }

    /// A taker has taken everything up to `seq`; what nobody needs any more goes back to the holder.
    pub(crate) fn took(&self, key: u64, seq: u64) {
        // Nobody has taken what was never written; such a word must not count for what comes later.
        let seq = seq.min(self.status().next_seq.saturating_sub(1));
        let mut moved = false;
        for taker in lock(&self.takers).iter_mut().filter(|taker| taker.key == key && taker.seq < seq) {
            taker.seq = seq;
            moved = true;
        }
        if moved {
            self.let_go();
        }
        if moved && key != OWNER {
            self.tell_followed();
        }
    }

    /// What the owner has taken, by whichever of its connections.
    pub(crate) fn owner_taken_seq(&self) -> u64 {
        lock(&self.takers).iter().find(|taker| taker.key == OWNER).map_or(0, |taker| taker.seq)
    }

    /// What every taker has taken.
    pub(crate) fn taken_seq(&self) -> u64 {
        lock(&self.takers).iter().filter(|taker| taker.holds).map(|taker| taker.seq).min().unwrap_or(ABANDONED)
    }

    fn let_go(&self) {
        let taken = self.taken_seq();
        let mut chain = self.chain();
        let gone = chain.take_up_to(taken, limits::READABLE_BYTES);
        let first = chain.first();
        drop(chain);
        if !gone.is_empty() {
            self.note_released(first);
        }
        for segment in gone {
            self.link().release(self.slot, segment);
        }
    }

    /// A segment that does not hold together is given up: readers are told of a gap instead of waiting for ever.
    pub(crate) fn handle_damaged(&self, segment: u64) {
        tracing::error!(
            session = short(&self.session),
            process = self.id(),
            segment,
            "part of the log is damaged; it is reported as a gap"
        );
        self.chain().remove(segment);
    }

    /// The holder began a segment (or names one at adoption): in memory with its mapping, else on disk.
    pub(crate) fn push_segment(&self, info: SegmentInfo, mapping: Option<Arc<Lent>>) {
        match mapping {
            Some(mapping) => self.chain().push_memory(info, mapping),
            None => self.chain().push_disk(info),
        }
        self.wake();
    }

    /// The holder wrote a segment to disk. Cursors borrow from the chain only, so its memory is free again at once.
    pub(crate) fn handle_spilled(&self, segment: u64) {
        self.chain().set_on_disk(segment);
        self.link().send(&ToHolder::Return { segment });
    }

    /// The holder dropped a segment by the user's own choice, or for readers that follow; cursors that come to it see a gap.
    pub(crate) fn handle_dropped(&self, segment: u64) {
        self.chain().remove(segment);
        self.link().send(&ToHolder::Return { segment });
        self.tell_followed();
    }

    /// Puts something into the line for stdin; it is answered when its turn has passed.
    pub(crate) fn input(self: &Arc<Self>, input: Input) {
        let mut stdin = lock(&self.stdin);
        stdin.line.push_back(input);
        self.next_input(stdin);
    }

    /// Hands the front of the line to the holder, unless something is there already. Takes the guard: where nothing can be handed over any
    /// more the whole line is answered, and not under the lock.
    fn next_input(self: &Arc<Self>, mut stdin: MutexGuard<'_, StdinLine>) {
        if self.forgotten.get().is_some() {
            // The slot may be another process's by now.
            let line = std::mem::take(&mut stdin.line);
            drop(stdin);
            return line.into_iter().for_each(|input| input.unknown(self.id()));
        }
        if stdin.busy {
            return;
        }
        let Some(front) = stdin.line.front() else { return };
        let waiter = Waiter::Stdin(Arc::downgrade(self));
        let slot = self.slot;
        let asked = match front {
            Input::Write { key, digest, data, done, .. } => {
                let part = &data[*done..data.len().min(done + WRITE_PART_BYTES)];
                let (total, offset, key) = (data.len() as u64, *done as u64, *key);
                let digest = self.link().takes(DIGESTS).then_some(*digest);
                self.link().ask(waiter, |req| ToHolder::Write { req, slot, key, digest, total, offset, data: part })
            }
            Input::Close { .. } => self.link().ask(waiter, |req| ToHolder::CloseStdin { req, slot }),
        };
        stdin.busy = asked.is_ok();
        drop(stdin);
        if asked.is_err() {
            self.fail_inputs();
        }
    }

    fn fail_inputs(&self) {
        // With the part that was out: nobody will answer it, and nothing may wait behind it.
        let lost = std::mem::take(&mut *lock(&self.stdin));
        let link = self.link();
        for input in lost.line {
            if link.is_archive() {
                input.closed(self.id());
            } else {
                input.reply().fail(&link.why_broken());
            }
        }
    }

    /// The holder has dealt with the part in its hands: `done` bytes of the write have entered the child's stdin.
    pub(crate) fn handle_written(self: &Arc<Self>, status: WriteStatus, done: u64) {
        let mut stdin = lock(&self.stdin);
        stdin.busy = false;
        if let Some(Input::Write { data, done: so_far, is_cut, .. }) = stdin.line.front_mut() {
            *is_cut |= status == WriteStatus::Cut;
            match status {
                WriteStatus::Accepted | WriteStatus::Cut => {
                    let done = usize::try_from(done).unwrap_or(usize::MAX).min(data.len());
                    self.link().metrics.stdin_bytes.add(done.saturating_sub(*so_far) as u64);
                    *so_far = done;
                }
                // Only right after an adoption: a part of the last server is still going in. The same part is sent again.
                WriteStatus::Busy => return self.next_input(stdin),
                WriteStatus::StdinClosed | WriteStatus::UnknownProcess | WriteStatus::Mismatch => *so_far = data.len(),
            }
            if *so_far < data.len() {
                return self.next_input(stdin);
            }
        }
        if let Some(Input::Write { is_cut, reply, .. }) = stdin.line.pop_front() {
            match status {
                WriteStatus::Accepted | WriteStatus::Cut => reply.accept_write(is_cut),
                WriteStatus::StdinClosed => reply.write(self.id(), wire::WriteStatus::StdinClosed),
                WriteStatus::UnknownProcess => reply.write(self.id(), wire::WriteStatus::UnknownProcess),
                WriteStatus::Mismatch | WriteStatus::Busy => reply.fail(&Failure::WriteIdReused),
            }
        }
        self.next_input(stdin);
    }

    /// The holder has closed stdin, or said why it could not.
    pub(crate) fn handle_stdin_closed(self: &Arc<Self>, status: wire::CloseStdinStatus) {
        let mut stdin = lock(&self.stdin);
        stdin.busy = false;
        if let Some(Input::Close { reply }) = stdin.line.pop_front() {
            reply.result(&wire::CloseStdinResult { status });
        }
        self.next_input(stdin);
    }

    /// The holder died. Answers everything that waits and lets readers see an end. What is left of the process is the caller's to kill.
    pub(crate) fn handle_holder_lost(&self) {
        self.end_here(self.published());
        self.fail_inputs();
        self.wake();
    }

    /// What names the leader for good, while it was running when the server last heard.
    pub(crate) fn leader(&self) -> Option<(Arc<OwnedFd>, u32)> {
        lock(&self.leader).clone().filter(|_| self.lost.get().is_some()).map(|leader| (leader, self.pid))
    }

    /// The owner wants nothing more of it: whatever comes counts as taken.
    pub(crate) fn abandon(&self) {
        self.set_owner_position(Position { seq: ABANDONED, offset: 0 });
        lock(&self.takers).retain(|taker| taker.key != OWNER);
        self.let_go();
    }

    /// Readers other than the owner whose untaken output is kept.
    pub(crate) fn has_holds(&self) -> bool {
        lock(&self.takers).iter().any(|taker| taker.key != OWNER && taker.holds)
    }

    /// Since when it has been closed and the owner could have known. The time an owner is away does not count: each look without one starts
    /// the clock again.
    pub(crate) fn closed_since(&self, now: Instant, attached: bool) -> Option<Instant> {
        self.status().closed_seq?;
        let mut since = lock(&self.closed_since);
        if since.is_none() || !attached || !self.is_taken() {
            *since = Some(now);
        }
        *since
    }

    /// The owner has everything, by its own word or, for a peer that cannot say so, by what was sent.
    pub(crate) fn is_taken(&self) -> bool {
        lock(&self.owner).seq + 1 >= self.status().next_seq
    }

    /// A cursor for a reader that has everything up to `after`.
    pub(crate) fn cursor(&self, after: Position) -> Cursor {
        Cursor::after_with_offset(after.seq, after.offset)
    }
}

/// A lock whose holder panicked still protects plain data that is consistent after every statement; going on beats losing a session.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
