//! The ledger of writes to one child's stdin: what makes a retried write go in exactly once.
//!
//! Knows keys and byte counts, never the bytes. A write begins, advances as the child takes it, and is done when all of
//! it went in; a retry under the same key learns how far it came. The oldest key is forgotten beyond [`REMEMBERED`].

use std::collections::{HashMap, VecDeque};

/// Keys remembered per process. At 56 bytes each a ledger in full use costs about 230 KiB, an unused one nothing.
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
    /// The key is known with another length: it is not the same write.
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
    total: u64,
    done: u64,
}

impl StdinLedger {
    /// An empty ledger; allocates nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the write `key` of `total` bytes, or says how far it came before.
    pub fn begin(&mut self, key: [u8; 16], total: u64) -> Begin {
        if let Some(entry) = self.entry(key) {
            return match *entry {
                Entry { total: known, .. } if known != total => Begin::Mismatch { total: known },
                Entry { done, .. } if done == total => Begin::Done,
                Entry { done, .. } => Begin::Continue { done },
            };
        }
        if self.entries.len() == REMEMBERED
            && let Some(oldest) = self.entries.pop_front()
        {
            self.index.remove(&oldest.key);
            self.first += 1;
        }
        self.index.insert(key, self.first + self.entries.len() as u64);
        self.entries.push_back(Entry { key, total, done: 0 });
        Begin::New
    }

    /// Records that `n` more bytes of the write went in; the answer is how many did in all. Never above its total.
    pub fn advance(&mut self, key: [u8; 16], n: u64) -> Result<u64, Unknown> {
        let entry = self.entry(key).ok_or(Unknown)?;
        entry.done = entry.done.saturating_add(n).min(entry.total);
        Ok(entry.done)
    }

    /// How far the write `key` came: its total and what of it went in.
    pub fn progress(&self, key: [u8; 16]) -> Option<Progress> {
        let at = self.position(key)?;
        self.entries.get(at).map(|entry| Progress { total: entry.total, done: entry.done })
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
