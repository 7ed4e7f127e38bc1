//! The ledger of writes to one child's stdin: what makes a retried write go in exactly once.
//!
//! Knows keys, byte counts and digests, never the bytes. A write begins, advances as the child takes it, and is done when all of
//! it went in; a retry under the same key learns how far it came. The oldest key is forgotten beyond [`REMEMBERED`].

use std::collections::{HashMap, VecDeque};

/// Keys remembered per process. At 64 bytes each a ledger in full use costs about 260 KiB, an unused one nothing.
pub const REMEMBERED: usize = 4096;

/// What is known of a write when it begins or is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Never seen: nothing of it went in.
    New,
    /// Seen, and this many of its bytes went in.
    Continue {
        /// Bytes that went in.
        done: u64,
    },
    /// All of it went in.
    Done,
    /// The key is known with another length or digest: it is not the same write.
    Mismatch {
        /// The length under which the key is known.
        total: u64,
    },
}

/// How far a write came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Its length.
    pub total: u64,
    /// Bytes of it that went in.
    pub done: u64,
    /// Digest of its bytes, where its sender gave one.
    pub digest: Option<u32>,
}

impl Progress {
    /// Whether another write under the same key is this one: of the same length, and of the same bytes as far as that is known.
    pub fn is_same(&self, total: u64, digest: Option<u32>) -> bool {
        let is_other = matches!((self.digest, digest), (Some(known), Some(given)) if known != given);
        self.total == total && !is_other
    }
}

/// `advance` of a key that is not in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write key is not in the ledger")]
pub struct Unknown;

/// The last [`REMEMBERED`] write keys of a process.
#[derive(Clone, Debug, Default)]
pub struct StdinLedger {
    /// In order of their beginning; `first` is the serial number of the front.
    entries: VecDeque<Entry>,
    first: u64,
    /// Key to serial number.
    index: HashMap<[u8; 16], u64>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: [u8; 16],
    progress: Progress,
}

impl StdinLedger {
    /// An empty ledger; allocates nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the write `key` of `total` bytes with this digest, or says how far it came before.
    pub fn begin(&mut self, key: [u8; 16], total: u64, digest: Option<u32>) -> Begin {
        if let Some(entry) = self.entry(key) {
            let known = entry.progress;
            return match known {
                known if !known.is_same(total, digest) => Begin::Mismatch { total: known.total },
                known if known.done == total => Begin::Done,
                known => Begin::Continue { done: known.done },
            };
        }
        if self.entries.len() == REMEMBERED
            && let Some(oldest) = self.entries.pop_front()
        {
            self.index.remove(&oldest.key);
            self.first += 1;
        }
        self.index.insert(key, self.first + self.entries.len() as u64);
        self.entries.push_back(Entry { key, progress: Progress { total, done: 0, digest } });
        Begin::New
    }

    /// Records that `n` more bytes of the write went in; the answer is how many did in all. Never above its total.
    pub fn advance(&mut self, key: [u8; 16], n: u64) -> Result<u64, Unknown> {
        let progress = &mut self.entry(key).ok_or(Unknown)?.progress;
        progress.done = progress.done.saturating_add(n).min(progress.total);
        Ok(progress.done)
    }

    /// How far the write `key` came.
    pub fn progress(&self, key: [u8; 16]) -> Option<Progress> {
        let at = self.position(key)?;
        self.entries.get(at).map(|entry| entry.progress)
    }

    /// Keys in the ledger.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no write was ever begun.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn entry(&mut self, key: [u8; 16]) -> Option<&mut Entry> {
        let at = self.position(key)?;
        self.entries.get_mut(at)
    }

    fn position(&self, key: [u8; 16]) -> Option<usize> {
        let serial = *self.index.get(&key)?;
        usize::try_from(serial.checked_sub(self.first)?).ok()
    }
}
