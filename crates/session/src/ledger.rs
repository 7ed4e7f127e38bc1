//! The ledger of writes to one child's stdin, which makes sure that a retried write is applied exactly once.
//!
//! It stores keys, byte counts and digests, but not the bytes. A write begins, advances as the child's stdin accepts
//! bytes, and is done when all bytes were accepted. A retry with the same key learns how many bytes were accepted.
//! Beyond [`LEDGER_KEYS_MAX`] keys, the oldest is dropped.

use std::collections::{HashMap, VecDeque};

/// Maximum number of keys kept per process. At 64 bytes each, a full ledger takes at least 256 KiB. An unused ledger
/// takes no memory.
pub const LEDGER_KEYS_MAX: usize = 4096;

/// The state of a write when it begins or is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBegin {
    /// The key is new: no bytes were accepted yet.
    New,
    /// The key is known, and bytes are left to accept.
    Continue {
        /// Bytes accepted so far. May be 0.
        done: u64,
    },
    /// All bytes were accepted.
    Done,
    /// The key is known with another length or digest, so this is a different write.
    Mismatch {
        /// The length that was stored with the key.
        total: u64,
    },
}

/// The progress of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteProgress {
    /// Length of the write.
    pub total: u64,
    /// Bytes accepted so far.
    pub done: u64,
    /// Digest of the bytes, if the sender gave one.
    pub digest: Option<u32>,
}

impl WriteProgress {
    /// Whether a write with the same key is this write: it has the same length, and the same digest if both are known.
    pub fn is_same(&self, total: u64, digest: Option<u32>) -> bool {
        let is_other = matches!((self.digest, digest), (Some(known), Some(given)) if known != given);
        self.total == total && !is_other
    }
}

/// `advance` was called with a key that is not in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write key is not in the ledger")]
pub struct UnknownWrite;

/// The last [`LEDGER_KEYS_MAX`] write keys of a process.
#[derive(Clone, Debug, Default)]
pub struct StdinLedger {
    /// In the order in which the writes began. `first` is the serial number of the front entry.
    entries: VecDeque<LedgerEntry>,
    first: u64,
    /// From key to serial number.
    index: HashMap<[u8; 16], u64>,
}

#[derive(Clone, Copy, Debug)]
struct LedgerEntry {
    key: [u8; 16],
    progress: WriteProgress,
}

impl StdinLedger {
    /// Begins the write `key` of `total` bytes with this digest, or reports how much of it was accepted before.
    pub fn begin(&mut self, key: [u8; 16], total: u64, digest: Option<u32>) -> WriteBegin {
        if let Some(entry) = self.entry(key) {
            let known = entry.progress;
            return if !known.is_same(total, digest) {
                WriteBegin::Mismatch { total: known.total }
            } else if known.done == total {
                WriteBegin::Done
            } else {
                WriteBegin::Continue { done: known.done }
            };
        }
        if self.entries.len() == LEDGER_KEYS_MAX
            && let Some(oldest) = self.entries.pop_front()
        {
            self.index.remove(&oldest.key);
            self.first += 1;
        }
        self.index.insert(key, self.first + self.entries.len() as u64);
        self.entries.push_back(LedgerEntry { key, progress: WriteProgress { total, done: 0, digest } });
        WriteBegin::New
    }

    /// Records that `n` more bytes of the write were accepted. Returns how many were accepted in total, never more than
    /// its length.
    pub fn advance(&mut self, key: [u8; 16], n: u64) -> Result<u64, UnknownWrite> {
        let progress = &mut self.entry(key).ok_or(UnknownWrite)?.progress;
        progress.done = progress.done.saturating_add(n).min(progress.total);
        Ok(progress.done)
    }

    pub fn progress(&self, key: [u8; 16]) -> Option<WriteProgress> {
        let at = self.position(key)?;
        self.entries.get(at).map(|entry| entry.progress)
    }

    /// Number of keys in the ledger.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn entry(&mut self, key: [u8; 16]) -> Option<&mut LedgerEntry> {
        let at = self.position(key)?;
        self.entries.get_mut(at)
    }

    fn position(&self, key: [u8; 16]) -> Option<usize> {
        let serial = *self.index.get(&key)?;
        usize::try_from(serial.checked_sub(self.first)?).ok()
    }
}
