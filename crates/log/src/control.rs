//! The control block of a session: counters of every log and the flags of the wake-up protocol. Knows no segment.
//!
//! The holder writes everything but the waiting flags, which readers raise and the holder takes. Both map it read-write, so
//! the holder never reads back what it wrote: a damaged block can mislead a reader, not the writer.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
    },
};

use rustix::mm::ProtFlags;

use crate::{
    event::{Blocked, Cause, Exit, Hit},
    layout::{CONTROL_MAGIC, LAYOUT, SLOTS},
    memory::{Map, OpenError, Writers},
    wake,
};

const HEADER_BYTES: usize = 4096;
const SLOT_BYTES: usize = 128;
const DIRTY_WORDS: usize = SLOTS as usize / 64;

/// Header page 4096 + 4096 slots x 128 = 516 KiB, of which only touched pages exist.
const CONTROL_BYTES: usize = HEADER_BYTES + SLOTS as usize * SLOT_BYTES;

#[repr(C)]
struct Header {
    magic: AtomicU64,
    layout: AtomicU32,
    slots: AtomicU32,
    pad_to_line: [u64; 6],
    /// Raised by the session's reader before it waits for the eventfd.
    waiting: AtomicU32,
    pad_to_dirty: [u32; 15],
    /// One bit a slot: a reader waited at the end of this log and there is news.
    dirty: [AtomicU64; DIRTY_WORDS],
}

#[repr(C)]
struct Slot {
    next_seq: AtomicU64,
    first_seq: AtomicU64,
    released_seq: AtomicU64,
    released_offset: AtomicU64,
    written: AtomicU64,
    dropped: AtomicU64,
    exited_seq: AtomicU64,
    closed_seq: AtomicU64,
    /// The only field of a slot that readers write; on the second cache line, apart from the counters.
    waiting: AtomicU32,
    code: AtomicI32,
    signal: AtomicU32,
    cause: AtomicU32,
    user_ms: AtomicU64,
    system_ms: AtomicU64,
    max_rss_bytes: AtomicU64,
    blocked: AtomicU32,
    /// Zero from a holder that does not know it.
    hit: AtomicU32,
    pad: [u32; 4],
}

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES);
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// Where a log stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Number that the next event gets; all below are committed. Zero: the slot was never used.
    pub next_seq: u64,
    /// Lowest number that is retained.
    pub first_seq: u64,
    /// Highest number let go because the server said that it was taken.
    pub released_seq: u64,
    /// Output bytes up to and including `released_seq`.
    pub released_offset: u64,
    /// Output bytes of the whole log, dropped ones included.
    pub written: u64,
    /// Output bytes dropped by policy.
    pub dropped: u64,
    /// Number and content of the exit event.
    pub exited: Option<(u64, Exit)>,
    /// Number of the last event.
    pub closed_seq: Option<u64>,
    /// Whether and why output is not read.
    pub blocked: Blocked,
}

/// The shared counters and flags of a session's logs.
pub struct Control {
    fd: Arc<OwnedFd>,
    map: Map,
}

impl Control {
    /// Makes the block of a new session.
    pub fn create() -> io::Result<Self> {
        let (fd, map) = Map::create("exec-server-control", CONTROL_BYTES, Writers::All)?;
        let control = Self { fd: Arc::new(fd), map };
        let header = control.header();
        header.layout.store(LAYOUT, Ordering::Relaxed);
        header.slots.store(SLOTS, Ordering::Relaxed);
        header.magic.store(CONTROL_MAGIC, Ordering::Release);
        Ok(control)
    }

    /// Maps the block that a holder made.
    pub fn open(fd: OwnedFd) -> Result<Self, OpenError> {
        let map = Map::open(&fd, CONTROL_BYTES, ProtFlags::READ | ProtFlags::WRITE)?;
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

    /// The memfd, to be handed to a reader.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The same to be kept until it can be handed over: a copy of its own might not be had.
    pub fn shared_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Where the log of `slot` stands. What an event changed is there as soon as `next_seq` is past it.
    ///
    /// A slot beyond [`SLOTS`] reads as never used.
    pub fn status(&self, slot: u32) -> Status {
        let Some(shared) = self.slot(slot) else {
            return Status::default();
        };
        // The writer stores this last; what is loaded after it is at least as new.
        let next_seq = shared.next_seq.load(Ordering::Acquire);
        let exited_seq = shared.exited_seq.load(Ordering::Acquire);
        let closed_seq = shared.closed_seq.load(Ordering::Acquire);
        let released_seq = shared.released_seq.load(Ordering::Acquire);
        Status {
            next_seq,
            first_seq: shared.first_seq.load(Ordering::Acquire),
            released_seq,
            released_offset: shared.released_offset.load(Ordering::Relaxed),
            written: shared.written.load(Ordering::Relaxed),
            dropped: shared.dropped.load(Ordering::Relaxed),
            // An end that was stored after `next_seq` was loaded is not part of this picture yet.
            exited: (exited_seq != 0 && exited_seq < next_seq).then(|| (exited_seq, shared.exit())),
            closed_seq: (closed_seq != 0 && closed_seq < next_seq).then_some(closed_seq),
            blocked: Blocked::from_word(shared.blocked.load(Ordering::Relaxed)),
        }
    }

    /// Number that the next event of `slot` gets; all below are committed.
    pub fn next_seq(&self, slot: u32) -> u64 {
        self.slot(slot).map_or(0, |shared| shared.next_seq.load(Ordering::Acquire))
    }

    /// Asks to be told of the next event of `slot`. True means that `next_seq` is not `seen_next_seq` any more: do not sleep.
    pub fn arm_slot(&self, slot: u32, seen_next_seq: u64) -> bool {
        self.slot(slot).is_some_and(|shared| {
            wake::arm(&shared.waiting, || shared.next_seq.load(Ordering::Acquire) != seen_next_seq)
        })
    }

    /// Calls `f` with every slot that has news since its reader armed it, and forgets them.
    pub fn take_dirty(&self, mut f: impl FnMut(u32)) {
        for (word, dirty) in (0_u32..).zip(&self.header().dirty) {
            let mut bits = wake::take_bits(dirty);
            while bits != 0 {
                f(word * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Asks for the eventfd to be written at the next news. True means that dirty bits are set already: go round again.
    pub fn arm(&self) -> bool {
        let header = self.header();
        wake::arm(&header.waiting, || {
            let mut words = header.dirty.iter();
            words.any(|dirty| dirty.load(Ordering::Acquire) != 0)
        })
    }

    /// Tells the reader of `slot`, if it waits; true means that the caller must write the eventfd.
    pub fn notify(&self, slot: u32) -> bool {
        let Some(shared) = self.slot(slot) else {
            return false;
        };
        let header = self.header();
        let dirty = &header.dirty[slot as usize / 64];
        wake::notify(&shared.waiting, dirty, slot % 64, &header.waiting)
    }

    /// Begins a new log in `slot`. The reader of the old one must be gone.
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

    /// Puts the state of a log that an earlier holder completed into `slot`.
    pub(crate) fn restore_slot(&self, slot: u32, status: &Status) {
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

    /// Says whether and why the output of `slot` is not read.
    pub fn set_blocked(&self, slot: u32, blocked: Blocked) {
        if let Some(shared) = self.slot(slot) {
            shared.blocked.store(blocked.to_word(), Ordering::Relaxed);
        }
    }

    /// Publishes `next_seq` after everything that belongs to the events below it.
    pub(crate) fn publish(&self, slot: u32, next_seq: u64, written: u64) {
        if let Some(shared) = self.slot(slot) {
            shared.written.store(written, Ordering::Relaxed);
            shared.next_seq.store(next_seq, Ordering::Release);
        }
    }

    /// Stores the exit; `publish` makes it visible.
    pub(crate) fn set_exited(&self, slot: u32, seq: u64, exit: &Exit) {
        let Some(shared) = self.slot(slot) else {
            return;
        };
        shared.code.store(exit.code, Ordering::Relaxed);
        let signal = u32::from(exit.signal.unwrap_or(0));
        shared.signal.store(signal, Ordering::Relaxed);
        let cause = u32::from(exit.cause.to_byte());
        shared.cause.store(cause, Ordering::Relaxed);
        shared.hit.store(u32::from(exit.flags()), Ordering::Relaxed);
        shared.user_ms.store(exit.user_ms, Ordering::Relaxed);
        shared.system_ms.store(exit.system_ms, Ordering::Relaxed);
        let max_rss = exit.max_rss_bytes;
        shared.max_rss_bytes.store(max_rss, Ordering::Relaxed);
        // Last: a reader that sees the number sees the fields above.
        shared.exited_seq.store(seq, Ordering::Release);
    }

    /// Stores the number of the last event; `publish` makes it visible.
    pub(crate) fn set_closed(&self, slot: u32, seq: u64) {
        if let Some(shared) = self.slot(slot) {
            shared.closed_seq.store(seq, Ordering::Release);
        }
    }

    pub(crate) fn set_first(&self, slot: u32, first_seq: u64, dropped: u64) {
        if let Some(shared) = self.slot(slot) {
            shared.dropped.store(dropped, Ordering::Relaxed);
            shared.first_seq.store(first_seq, Ordering::Release);
        }
    }

    pub(crate) fn set_released(&self, slot: u32, seq: u64, offset: u64) {
        if let Some(shared) = self.slot(slot) {
            // The offset first: a reader may see it ahead of its number, never behind.
            shared.released_offset.store(offset, Ordering::Relaxed);
            shared.released_seq.store(seq, Ordering::Release);
        }
    }

    fn header(&self) -> &Header {
        debug_assert_eq!(self.map.len(), CONTROL_BYTES);
        // SAFETY: the mapping is page-aligned, lives as long as `self` and is larger than `Header`, whose used fields are all
        // atomics, so that writes by the other process are no data race.
        unsafe { self.map.start().cast().as_ref() }
    }

    fn slot(&self, slot: u32) -> Option<&Slot> {
        if slot >= SLOTS {
            return None;
        }
        let at = HEADER_BYTES + slot as usize * SLOT_BYTES;
        // SAFETY: `slot` is below `SLOTS`, so `at` plus a slot is inside the mapping; `at` is a multiple of 128; the used fields
        // are all atomics.
        Some(unsafe { self.map.start().add(at).cast().as_ref() })
    }
}

impl Slot {
    fn exit(&self) -> Exit {
        let byte = |word: &AtomicU32| u8::try_from(word.load(Ordering::Relaxed)).ok();
        Exit {
            code: self.code.load(Ordering::Relaxed),
            signal: byte(&self.signal).filter(|signal| *signal != 0),
            cause: byte(&self.cause).and_then(Cause::from_byte).unwrap_or_default(),
            user_ms: self.user_ms.load(Ordering::Relaxed),
            system_ms: self.system_ms.load(Ordering::Relaxed),
            max_rss_bytes: self.max_rss_bytes.load(Ordering::Relaxed),
            hit: byte(&self.hit).map_or_else(Hit::default, Hit::from_byte),
            is_denied: byte(&self.hit).is_some_and(Exit::is_denied_in),
        }
    }
}
