//! The events of a log and the encoding of their payloads. Segments and positions are in other modules.

/// The stream of the process that an output record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputStream {
    Stdout = 0,
    Stderr = 1,
    /// The terminal, which carries both stdout and stderr.
    Pty = 2,
}

impl OutputStream {
    pub(crate) const fn to_byte(self) -> u8 {
        self as u8
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
pub enum ExitCause {
    /// The process exited by itself.
    #[default]
    Exit = 0,
    /// A signal killed the process, and none of the causes below applies. Includes signals that a client sent.
    Signal = 1,
    /// The total time limit was reached.
    Timeout = 2,
    /// The process produced no output for the idle time limit.
    IdleTimeout = 3,
    /// A client asked to terminate the process.
    Terminated = 4,
    /// The kernel's OOM killer ended the process.
    OutOfMemory = 5,
}

impl ExitCause {
    pub(crate) const fn to_byte(self) -> u8 {
        self as u8
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

/// The cgroup limits that a process or one of its descendants has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsHit {
    /// A fork or thread creation was refused because the pids limit was reached.
    pub pids: bool,
    /// The OOM killer killed a process of the cgroup.
    pub memory: bool,
}

impl LimitsHit {
    pub(crate) fn to_byte(self) -> u8 {
        u8::from(self.pids) | u8::from(self.memory) << 1
    }

    /// Ignores bits that only a later release knows.
    pub(crate) fn from_byte(byte: u8) -> Self {
        Self { pids: byte & 1 != 0, memory: byte & 2 != 0 }
    }
}

/// How a process ended and the resources that it used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Exit code, or 128 + n for signal n.
    pub code: i32,
    /// The signal that killed the process. Never `Some(0)`.
    pub signal: Option<u8>,
    pub cause: ExitCause,
    /// CPU time in user mode.
    pub user_ms: u64,
    /// CPU time in kernel mode.
    pub system_ms: u64,
    /// Largest resident set size.
    pub max_rss_bytes: u64,
    /// The cgroup limits that the process reached.
    pub hit: LimitsHit,
    /// The process ran in a sandbox, and the sandbox seems to be the reason that it failed.
    pub is_denied: bool,
}

/// Bit for `is_denied`, in the byte that also has the bits of `LimitsHit`.
const DENIED: u8 = 1 << 7;

/// Size of an encoded `Exit`: code 4, signal 1 (0 = none), cause 1, limits and denial 1, zero 1, user 8, system 8,
/// max RSS 8.
pub(crate) const EXIT_BYTES: usize = 32;

impl Exit {
    /// Encodes the exit as the payload of its record.
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

    /// Decodes a payload. Returns `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != EXIT_BYTES {
            return None;
        }
        Some(Self {
            code: i32::from_le_bytes(bytes.first_chunk().copied()?),
            signal: (bytes[4] != 0).then_some(bytes[4]),
            cause: ExitCause::from_byte(bytes[5])?,
            user_ms: u64_at(bytes, 8)?,
            system_ms: u64_at(bytes, 16)?,
            max_rss_bytes: u64_at(bytes, 24)?,
            hit: LimitsHit::from_byte(bytes[6]),
            is_denied: Self::is_denied_in(bytes[6]),
        })
    }

    /// Limits and denial in one byte. An older reader ignores the bits that it does not know.
    pub(crate) fn flags(&self) -> u8 {
        self.hit.to_byte() | if self.is_denied { DENIED } else { 0 }
    }

    pub(crate) fn is_denied_in(flags: u8) -> bool {
        flags & DENIED != 0
    }
}

/// Size of an encoded `Closed` event: written 8, dropped 8.
pub(crate) const CLOSED_BYTES: usize = 16;

pub(crate) fn encode_closed(written: u64, dropped: u64) -> [u8; CLOSED_BYTES] {
    let mut out = [0; CLOSED_BYTES];
    out[..8].copy_from_slice(&written.to_le_bytes());
    out[8..].copy_from_slice(&dropped.to_le_bytes());
    out
}

pub(crate) fn decode_closed(bytes: &[u8]) -> Option<LogEvent<'static>> {
    if bytes.len() != CLOSED_BYTES {
        return None;
    }
    Some(LogEvent::Closed { written: u64_at(bytes, 0)?, dropped: u64_at(bytes, 8)? })
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|raw| u64::from_le_bytes(*raw))
}

/// Why the holder currently does not read the output of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockReason {
    /// The holder reads the output, or waits only until a segment is on disk.
    #[default]
    No = 0,
    /// A client is attached and the memory of the log is full, or the holder is short of memory or fds.
    MemoryCap = 1,
    /// No client is attached, and the disk quota is used up.
    Quota = 2,
    /// The last write to disk failed, for example because it would have used the reserved free space.
    DiskFull = 3,
}

impl BlockReason {
    pub(crate) const fn to_word(self) -> u32 {
        self as u32
    }

    /// Treats an unknown value as not blocked. It comes from a newer holder, and the field is only shown to users.
    pub(crate) const fn from_word(word: u32) -> Self {
        match word {
            1 => Self::MemoryCap,
            2 => Self::Quota,
            3 => Self::DiskFull,
            _ => Self::No,
        }
    }
}

/// One event with its position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// Sequence number of the event, starting at 1.
    pub seq: u64,
    /// Output bytes before the event.
    pub offset: u64,
    pub event: LogEvent<'a>,
}

/// The content of an event. Output is borrowed from the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEvent<'a> {
    Output {
        stream: OutputStream,
        /// From 1 byte to 64 KiB.
        bytes: &'a [u8],
    },
    /// The process ended. Its streams may still be open.
    Exited(Exit),
    /// All streams reached EOF. This is the last event.
    Closed {
        /// Output bytes of the whole log, including dropped ones.
        written: u64,
        /// Output bytes that the holder dropped to stay within the limits of the log.
        dropped: u64,
    },
}
