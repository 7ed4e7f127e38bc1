//! The control block of a session: the counters of every log and the flags of the wake-up protocol.
//!
//! The holder writes the counters. It also sets the dirty bits, which the reader clears, and clears the waiting flags,
//! which the reader sets. Both sides map the block read-write, so [`LogWriter`](super::LogWriter) keeps its own copies
//! of the counters and never reads them back: a damaged block can mislead the reader, but not the writer.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
    },
};

use rustix::mm::ProtFlags;

use super::{
    event::{BlockReason, Exit, ExitCause, LimitsHit},
    layout::{CONTROL_MAGIC, LAYOUT, SLOTS},
    memory::{MemoryMap, OpenError, WriteAccess},
};
use crate::wake;

const HEADER_BYTES: usize = 4096;
const SLOT_BYTES: usize = 128;
const DIRTY_WORDS: usize = SLOTS as usize / 64;

/// One header page (4096 bytes) and 4096 slots of 128 bytes: 516 KiB, of which only touched pages use memory.
const CONTROL_BYTES: usize = HEADER_BYTES + SLOTS as usize * SLOT_BYTES;

#[repr(C)]
struct ControlHeader {
    magic: AtomicU64,
    layout: AtomicU32,
    slots: AtomicU32,
    pad_to_line: [u64; 6],
    /// Set by the session's reader before it waits for the eventfd.
    waiting: AtomicU32,
    pad_to_dirty: [u32; 15],
    /// One bit per slot: the log has new events, and a reader was waiting at its end.
    dirty: [AtomicU64; DIRTY_WORDS],
}

#[repr(C)]
struct ControlSlot {
    next_seq: AtomicU64,
    first_seq: AtomicU64,
    released_seq: AtomicU64,
    released_offset: AtomicU64,
    written: AtomicU64,
    dropped: AtomicU64,
    exited_seq: AtomicU64,
    closed_seq: AtomicU64,
    /// The only field of a slot that readers write. It is on the second cache line, away from the counters.
    waiting: AtomicU32,
    code: AtomicI32,
    signal: AtomicU32,
    cause: AtomicU32,
    user_ms: AtomicU64,
    system_ms: AtomicU64,
    max_rss_bytes: AtomicU64,
    blocked: AtomicU32,
    /// The flags of `Exit`. Zero from an older holder that does not set them.
    exit_flags: AtomicU32,
    pad: [u32; 4],
}

const _: () = assert!(size_of::<ControlSlot>() == SLOT_BYTES);
const _: () = assert!(size_of::<ControlHeader>() <= HEADER_BYTES);

/// The state of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// Sequence number of the next event. All events below are committed. Zero: the slot was never used.
    pub next_seq: u64,
    /// Lowest retained sequence number.
    pub first_seq: u64,
    /// Highest sequence number that was released because the server reported it as taken.
    pub released_seq: u64,
    /// Output bytes up to and including `released_seq`.
    pub released_offset: u64,
    /// Output bytes of the whole log, including dropped ones.
    pub written: u64,
    /// Output bytes that the holder dropped to stay within the limits of the log.
    pub dropped: u64,
    /// Sequence number and content of the exit event.
    pub exited: Option<(u64, Exit)>,
    /// Sequence number of the `Closed` event, which is the last one.
    pub closed_seq: Option<u64>,
    /// Whether, and why, the holder does not read the output.
    pub blocked: BlockReason,
}

pub struct ControlBlock {
    fd: Arc<OwnedFd>,
    map: MemoryMap,
}

impl ControlBlock {
    /// Creates the block of a new session.
    pub fn create() -> io::Result<Self> {
        let (fd, map) = MemoryMap::create("exec-server-control", CONTROL_BYTES, WriteAccess::All)?;
        let control = Self { fd: Arc::new(fd), map };
        let header = control.header();
        header.layout.store(LAYOUT, Ordering::Relaxed);
        header.slots.store(SLOTS, Ordering::Relaxed);
        header.magic.store(CONTROL_MAGIC, Ordering::Release);
        Ok(control)
    }

    /// Maps the block that a holder has created.
    pub fn open(fd: OwnedFd) -> Result<Self, OpenError> {
        let map = MemoryMap::open(&fd, CONTROL_BYTES, ProtFlags::READ | ProtFlags::WRITE)?;
        let control = Self { fd: Arc::new(fd), map };
        let header = control.header();
        let magic = header.magic.load(Ordering::Acquire);
        if magic != CONTROL_MAGIC {
            return Err(OpenError::Magic { found: magic });
        }
        let layout = header.layout.load(Ordering::Relaxed);
        if layout != LAYOUT || header.slots.load(Ordering::Relaxed) != SLOTS {
            return Err(OpenError::Layout { expected: LAYOUT, found: layout });
        }
        Ok(control)
    }

    /// The memfd to pass to a reader. The shared handle can be kept until it is sent. Unlike a `dup`, this cannot fail
    /// when fds are exhausted.
    pub fn shared_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// The state of the log in `slot`. It includes the effects of every event below `next_seq`.
    ///
    /// A slot beyond [`SLOTS`] reads as never used.
    pub fn status(&self, slot: u32) -> LogStatus {
        let Some(shared) = self.slot(slot) else {
            return LogStatus::default();
        };
        // The writer stores `next_seq` last, so the values loaded after it are at least as new.
        let next_seq = shared.next_seq.load(Ordering::Acquire);
        let exited_seq = shared.exited_seq.load(Ordering::Acquire);
        let closed_seq = shared.closed_seq.load(Ordering::Acquire);
        let released_seq = shared.released_seq.load(Ordering::Acquire);
        LogStatus {
            next_seq,
            first_seq: shared.first_seq.load(Ordering::Acquire),
            released_seq,
            released_offset: shared.released_offset.load(Ordering::Relaxed),
            written: shared.written.load(Ordering::Relaxed),
            dropped: shared.dropped.load(Ordering::Relaxed),
            // Ignore an exit or close that was stored after `next_seq` was loaded.
            exited: (exited_seq != 0 && exited_seq < next_seq).then(|| (exited_seq, shared.exit())),
            closed_seq: (closed_seq != 0 && closed_seq < next_seq).then_some(closed_seq),
            blocked: BlockReason::from_word(shared.blocked.load(Ordering::Relaxed)),
        }
    }

    /// Sequence number of the next event of `slot`. All events below are committed.
    pub fn next_seq(&self, slot: u32) -> u64 {
        self.slot(slot).map_or(0, |shared| shared.next_seq.load(Ordering::Acquire))
    }

    /// Requests a wake-up for the next event of `slot`. True means that `next_seq` already differs from
    /// `seen_next_seq`, so the caller must not sleep.
    pub fn arm_slot(&self, slot: u32, seen_next_seq: u64) -> bool {
        self.slot(slot).is_some_and(|shared| {
            wake::arm(&shared.waiting, || shared.next_seq.load(Ordering::Acquire) != seen_next_seq)
        })
    }

    /// Calls `f` for every slot that got new events since its reader armed it, and clears the dirty bits.
    pub fn take_dirty(&self, mut f: impl FnMut(u32)) {
        for (word, dirty) in (0_u32..).zip(&self.header().dirty) {
            let mut bits = wake::take_bits(dirty);
            while bits != 0 {
                f(word * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Requests that the holder writes the eventfd when the next dirty bit is set. True means that a dirty bit is
    /// already set: do not sleep, call `take_dirty` again.
    pub fn arm(&self) -> bool {
        let header = self.header();
        wake::arm(&header.waiting, || {
            let mut words = header.dirty.iter();
            words.any(|dirty| dirty.load(Ordering::Acquire) != 0)
        })
    }

    /// Marks `slot` as dirty if its reader waits. True means that the caller must write the eventfd.
    pub fn notify(&self, slot: u32) -> bool {
        let Some(shared) = self.slot(slot) else {
            return false;
        };
        let header = self.header();
        let dirty = &header.dirty[slot as usize / 64];
        wake::notify(&shared.waiting, dirty, slot % 64, &header.waiting)
    }

    /// Resets `slot` for a new log. The reader of the old log must be gone. The fields of the exit keep their old
    /// values: readers ignore them while `exited_seq` is zero.
    pub fn reset_slot(&self, slot: u32) {
        let Some(shared) = self.slot(slot) else {
            return;
        };
        shared.exited_seq.store(0, Ordering::Relaxed);
        shared.closed_seq.store(0, Ordering::Relaxed);
        shared.released_seq.store(0, Ordering::Relaxed);
        shared.released_offset.store(0, Ordering::Relaxed);
        shared.written.store(0, Ordering::Relaxed);
        shared.dropped.store(0, Ordering::Relaxed);
        shared.blocked.store(0, Ordering::Relaxed);
        shared.waiting.store(0, Ordering::Relaxed);
        shared.first_seq.store(1, Ordering::Relaxed);
        shared.next_seq.store(1, Ordering::Release);
    }

    /// Restores the state of a log that an earlier holder completed.
    pub(crate) fn restore_slot(&self, slot: u32, status: &LogStatus) {
        self.reset_slot(slot);
        if let Some((seq, exit)) = &status.exited {
            self.set_exited(slot, *seq, exit);
        }
        if let Some(seq) = status.closed_seq {
            self.set_closed(slot, seq);
        }
        self.set_released(slot, status.released_seq, status.released_offset);
        self.set_first(slot, status.first_seq, status.dropped);
        self.publish(slot, status.next_seq, status.written);
    }

    /// Sets whether, and why, the output of `slot` is not read.
    pub fn set_blocked(&self, slot: u32, blocked: BlockReason) {
        if let Some(shared) = self.slot(slot) {
            shared.blocked.store(blocked.to_word(), Ordering::Relaxed);
        }
    }

    /// Publishes `next_seq`. Call it after storing everything that belongs to the events below `next_seq`.
    pub(crate) fn publish(&self, slot: u32, next_seq: u64, written: u64) {
        if let Some(shared) = self.slot(slot) {
            shared.written.store(written, Ordering::Relaxed);
            shared.next_seq.store(next_seq, Ordering::Release);
        }
    }

    /// Stores the exit. It becomes visible with the next `publish`.
    pub(crate) fn set_exited(&self, slot: u32, seq: u64, exit: &Exit) {
        let Some(shared) = self.slot(slot) else {
            return;
        };
        shared.code.store(exit.code, Ordering::Relaxed);
        let signal = u32::from(exit.signal.unwrap_or(0));
        shared.signal.store(signal, Ordering::Relaxed);
        let cause = u32::from(exit.cause.to_byte());
        shared.cause.store(cause, Ordering::Relaxed);
        shared.exit_flags.store(u32::from(exit.flags()), Ordering::Relaxed);
        shared.user_ms.store(exit.user_ms, Ordering::Relaxed);
        shared.system_ms.store(exit.system_ms, Ordering::Relaxed);
        let max_rss = exit.max_rss_bytes;
        shared.max_rss_bytes.store(max_rss, Ordering::Relaxed);
        // Store the number last: a reader that sees it also sees the fields above.
        shared.exited_seq.store(seq, Ordering::Release);
    }

    /// Stores the sequence number of the last event. It becomes visible with the next `publish`.
    pub(crate) fn set_closed(&self, slot: u32, seq: u64) {
        if let Some(shared) = self.slot(slot) {
            shared.closed_seq.store(seq, Ordering::Release);
        }
    }

    pub(crate) fn set_first(&self, slot: u32, first_seq: u64, dropped: u64) {
        if let Some(shared) = self.slot(slot) {
            // Store `dropped` first: a reader that sees the new `first_seq` also sees the dropped bytes.
            shared.dropped.store(dropped, Ordering::Relaxed);
            shared.first_seq.store(first_seq, Ordering::Release);
        }
    }

    pub(crate) fn set_released(&self, slot: u32, seq: u64, offset: u64) {
        if let Some(shared) = self.slot(slot) {
            // Store the offset first: a reader may then see an offset that is newer than `released_seq`, but never an
            // older one.
            shared.released_offset.store(offset, Ordering::Relaxed);
            shared.released_seq.store(seq, Ordering::Release);
        }
    }

    fn header(&self) -> &ControlHeader {
        debug_assert_eq!(self.map.len(), CONTROL_BYTES);
        // SAFETY: the mapping is page-aligned, lives as long as `self` and is larger than `ControlHeader`. All used
        // fields of `ControlHeader` are atomics, so writes by the other process are not a data race.
        unsafe { self.map.start().cast().as_ref() }
    }

    fn slot(&self, slot: u32) -> Option<&ControlSlot> {
        if slot >= SLOTS {
            return None;
        }
        let at = HEADER_BYTES + slot as usize * SLOT_BYTES;
        // SAFETY: `slot` is below `SLOTS`, so `at` plus the size of a slot is inside the mapping. `at` is a multiple of
        // 128. All used fields are atomics.
        Some(unsafe { self.map.start().add(at).cast().as_ref() })
    }
}

impl ControlSlot {
    fn exit(&self) -> Exit {
        let byte = |word: &AtomicU32| u8::try_from(word.load(Ordering::Relaxed)).ok();
        Exit {
            code: self.code.load(Ordering::Relaxed),
            signal: byte(&self.signal).filter(|signal| *signal != 0),
            cause: byte(&self.cause).and_then(ExitCause::from_byte).unwrap_or_default(),
            user_ms: self.user_ms.load(Ordering::Relaxed),
            system_ms: self.system_ms.load(Ordering::Relaxed),
            max_rss_bytes: self.max_rss_bytes.load(Ordering::Relaxed),
            hit: byte(&self.exit_flags).map_or_else(LimitsHit::default, LimitsHit::from_byte),
            is_denied: byte(&self.exit_flags).is_some_and(Exit::is_denied_in),
        }
    }
}
