//! The events of a log and their payload bytes. Knows no segment and no position.

/// Which stream of the process an output record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output, a pipe.
    Stdout,
    /// Standard error, a pipe.
    Stderr,
    /// The terminal, where both are one.
    Pty,
}

impl Stream {
    pub(crate) const fn to_byte(self) -> u8 {
        match self {
            Self::Stdout => 0,
            Self::Stderr => 1,
            Self::Pty => 2,
        }
    }

    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Stdout),
            1 => Some(Self::Stderr),
            2 => Some(Self::Pty),
            _ => None,
        }
    }
}

/// Why a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It returned.
    #[default]
    Exit,
    /// A signal that was not ours killed it.
    Signal,
    /// Its total time was over.
    Timeout,
    /// It was silent for too long.
    IdleTimeout,
    /// It was terminated by request.
    Terminated,
    /// The kernel ran out of memory for it.
    OutOfMemory,
}

impl Cause {
    pub(crate) const fn to_byte(self) -> u8 {
        match self {
            Self::Exit => 0,
            Self::Signal => 1,
            Self::Timeout => 2,
            Self::IdleTimeout => 3,
            Self::Terminated => 4,
            Self::OutOfMemory => 5,
        }
    }

    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Exit),
            1 => Some(Self::Signal),
            2 => Some(Self::Timeout),
            3 => Some(Self::IdleTimeout),
            4 => Some(Self::Terminated),
            5 => Some(Self::OutOfMemory),
            _ => None,
        }
    }
}

/// The limits of its control group that a process, or something that it started, has run into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// A fork or a thread was refused, for there were as many as allowed.
    pub pids: bool,
    /// Somebody was killed for want of memory.
    pub memory: bool,
}

impl Hit {
    pub(crate) fn to_byte(self) -> u8 {
        u8::from(self.pids) | u8::from(self.memory) << 1
    }

    /// Bits that a later release sets mean nothing here.
    pub(crate) fn from_byte(byte: u8) -> Self {
        Self { pids: byte & 1 != 0, memory: byte & 2 != 0 }
    }
}

/// How a process ended and what it used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 + n for signal n.
    pub code: i32,
    /// The signal that killed it; never zero.
    pub signal: Option<u8>,
    /// Why it ended.
    pub cause: Cause,
    /// Processor time in user mode.
    pub user_ms: u64,
    /// Processor time in the kernel.
    pub system_ms: u64,
    /// Largest resident set.
    pub max_rss_bytes: u64,
    /// Limits that were reached on the way.
    pub hit: Hit,
    /// It was confined and seems to have failed for that.
    pub is_denied: bool,
}

/// The bit beside the limits that were hit.
const DENIED: u8 = 1 << 7;

/// code 4, signal 1 (0 none), cause 1, limits hit and denial 1, zero 1, user 8, system 8, resident set 8.
pub(crate) const EXIT_BYTES: usize = 32;

impl Exit {
    /// Its bytes in a log.
    pub fn encode(&self) -> [u8; EXIT_BYTES] {
        let mut out = [0; EXIT_BYTES];
        out[..4].copy_from_slice(&self.code.to_le_bytes());
        out[4] = self.signal.unwrap_or(0);
        out[5] = self.cause.to_byte();
        out[6] = self.flags();
        out[8..16].copy_from_slice(&self.user_ms.to_le_bytes());
        out[16..24].copy_from_slice(&self.system_ms.to_le_bytes());
        out[24..].copy_from_slice(&self.max_rss_bytes.to_le_bytes());
        out
    }

    /// Reads its bytes; `None` where they are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != EXIT_BYTES {
            return None;
        }
        Some(Self {
            code: i32::from_le_bytes(bytes.first_chunk().copied()?),
            signal: (bytes[4] != 0).then_some(bytes[4]),
            cause: Cause::from_byte(bytes[5])?,
            user_ms: u64_at(bytes, 8)?,
            system_ms: u64_at(bytes, 16)?,
            max_rss_bytes: u64_at(bytes, 24)?,
            hit: Hit::from_byte(bytes[6]),
            is_denied: Self::is_denied_in(bytes[6]),
        })
    }

    /// Limits and denial as one byte; a reader that knows less of them sees less.
    pub(crate) fn flags(&self) -> u8 {
        self.hit.to_byte() | if self.is_denied { DENIED } else { 0 }
    }

    pub(crate) fn is_denied_in(flags: u8) -> bool {
        flags & DENIED != 0
    }
}

/// written 8, dropped 8.
pub(crate) const CLOSED_BYTES: usize = 16;

pub(crate) fn encode_closed(written: u64, dropped: u64) -> [u8; CLOSED_BYTES] {
    let mut out = [0; CLOSED_BYTES];
    out[..8].copy_from_slice(&written.to_le_bytes());
    out[8..].copy_from_slice(&dropped.to_le_bytes());
    out
}

pub(crate) fn decode_closed(bytes: &[u8]) -> Option<Event<'static>> {
    if bytes.len() != CLOSED_BYTES {
        return None;
    }
    Some(Event::Closed { written: u64_at(bytes, 0)?, dropped: u64_at(bytes, 8)? })
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|raw| u64::from_le_bytes(*raw))
}

/// Why the holder does not read a process's output at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocked {
    /// It does read it.
    #[default]
    No,
    /// Attached, and the memory of the log is full.
    MemoryCap,
    /// Detached, and the disk quota is used up.
    Quota,
    /// The disk refused a write.
    DiskFull,
}

impl Blocked {
    pub(crate) const fn to_word(self) -> u32 {
        match self {
            Self::No => 0,
            Self::MemoryCap => 1,
            Self::Quota => 2,
            Self::DiskFull => 3,
        }
    }

    /// An unknown word reads as not blocked: the other side is newer and this is a hint for people.
    pub(crate) const fn from_word(word: u32) -> Self {
        match word {
            1 => Self::MemoryCap,
            2 => Self::Quota,
            3 => Self::DiskFull,
            _ => Self::No,
        }
    }
}

/// One event with its place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Number of the event, from 1.
    pub seq: u64,
    /// Output bytes before it.
    pub offset: u64,
    /// What happened.
    pub event: Event<'a>,
}

/// What happened; output is borrowed from the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The process wrote.
    Output {
        /// Where it wrote to.
        stream: Stream,
        /// What it wrote, 1 byte to 64 KiB.
        bytes: &'a [u8],
    },
    /// The process ended; its streams may still be open.
    Exited(Exit),
    /// All streams ended; the last event.
    Closed {
        /// Output bytes of the whole log, dropped ones included.
        written: u64,
        /// Output bytes dropped by policy up to here.
        dropped: u64,
    },
}
