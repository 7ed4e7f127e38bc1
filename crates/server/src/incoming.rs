//! The server's budget for received bytes of all connections: messages that are not complete or not handled yet, and
//! large requests and stdin writes until they are answered.
//!
//! Each connection may hold a whole message, so a hundred connections could exhaust the memory. If the received bytes
//! exceed the budget, the connection that holds the most is closed with the WebSocket close code 1013. Its session
//! stays, and the client can reconnect and resume it, as after any cut. A large request or a stdin write reserves its
//! bytes until it is answered. If they do not fit, the request fails with `overloaded`. A connection that holds little
//! is never closed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A connection that holds less than 1 MiB is never closed for the budget: closing it would free next to nothing.
const SHED_MIN_BYTES: usize = 1 << 20;

/// The budget of all connections.
#[derive(Debug, Default)]
pub(crate) struct IncomingBudget {
    /// Zero = no bound.
    max: usize,
    /// The bytes of all shares, and those that requests reserved.
    total: AtomicUsize,
    shares: Mutex<BTreeMap<u64, Arc<BudgetShare>>>,
}

/// The bytes that one connection holds.
#[derive(Debug, Default)]
pub(crate) struct BudgetShare {
    id: u64,
    bytes: AtomicUsize,
    is_shed: AtomicBool,
    /// Notified when this connection must close.
    pub(crate) shed: Notify,
}

impl IncomingBudget {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// Adds a connection, which holds nothing yet.
    pub(crate) fn join(&self, id: u64) -> Arc<BudgetShare> {
        let share = Arc::new(BudgetShare { id, ..BudgetShare::default() });
        self.shares.lock().insert(id, Arc::clone(&share));
        share
    }

    /// Removes a connection and its bytes.
    pub(crate) fn leave(&self, share: &BudgetShare) {
        self.settle(share, 0);
        self.shares.lock().remove(&share.id);
    }

    /// Counts bytes that were read. A connection that is already being closed discards what it reads, so nothing is
    /// counted.
    pub(crate) fn grow(&self, share: &BudgetShare, bytes: usize) {
        if share.is_shed() {
            return;
        }
        share.bytes.fetch_add(bytes, Ordering::Relaxed);
        let total = self.total.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.max > 0 && total > self.max {
            self.shed(total);
        }
    }

    /// Sets the bytes that a connection holds now.
    pub(crate) fn settle(&self, share: &BudgetShare, bytes: usize) {
        let before = share.bytes.swap(bytes, Ordering::Relaxed);
        // Atomic additions wrap around, so this also subtracts.
        self.total.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Reserves bytes for a request until it is answered. Returns false, and reserves nothing, if they do not fit.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        let before = self.total.fetch_add(bytes, Ordering::Relaxed);
        let fits = self.max == 0 || before + bytes <= self.max;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    /// Releases the bytes of `reserve`.
    pub(crate) fn release(&self, bytes: usize) {
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Closes the connection that holds the most, unless the connections already being closed free enough.
    fn shed(&self, total: usize) {
        let shares = self.shares.lock();
        let held = |share: &&Arc<BudgetShare>| share.bytes.load(Ordering::Relaxed);
        let leaving: usize = shares.values().filter(|share| share.is_shed()).map(|share| held(&share)).sum();
        if total.saturating_sub(leaving) <= self.max {
            return;
        }
        if let Some(largest) = shares.values().filter(|share| !share.is_shed()).max_by_key(held)
            && held(&largest) >= SHED_MIN_BYTES
        {
            tracing::warn!(
                total,
                held = held(&largest),
                "received messages exceed the memory budget; closing the connection that holds the most"
            );
            largest.is_shed.store(true, Ordering::Relaxed);
            largest.shed.notify_one();
        }
    }
}

impl BudgetShare {
    /// Whether this connection is being closed to free memory.
    pub(crate) fn is_shed(&self) -> bool {
        self.is_shed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_the_budget_only_as_many_connections_are_closed_as_needed_largest_first() {
        let incoming = IncomingBudget::new(10 << 20);
        let shares: Vec<_> = (0..4).map(|id| incoming.join(id)).collect();
        incoming.grow(&shares[0], 2 << 20);
        incoming.grow(&shares[1], 5 << 20);
        incoming.grow(&shares[2], 3 << 20);
        assert!(shares.iter().all(|share| !share.is_shed()));
        incoming.grow(&shares[3], 1);
        assert!(shares[1].is_shed(), "the largest connection is closed");
        incoming.grow(&shares[3], 4 << 20);
        assert!(
            !shares[0].is_shed() && !shares[2].is_shed() && !shares[3].is_shed(),
            "the bytes of the closed connection no longer count"
        );
        incoming.grow(&shares[1], 1 << 30);
        incoming.leave(&shares[1]);
        assert_eq!(incoming.total.load(Ordering::Relaxed), (9 << 20) + 1);
        shares.iter().filter(|share| share.id != 1).for_each(|share| incoming.leave(share));
        assert_eq!((incoming.total.load(Ordering::Relaxed), incoming.shares.lock().len()), (0, 0));
    }

    #[test]
    fn connections_that_hold_little_are_never_closed_and_reserved_bytes_count() {
        let incoming = IncomingBudget::new(4 << 20);
        let shares: Vec<_> = (0..100).map(|id| incoming.join(id)).collect();
        shares.iter().for_each(|share| incoming.grow(share, 64 << 10));
        assert!(shares.iter().all(|share| !share.is_shed()));
        shares.iter().for_each(|share| incoming.settle(share, 0));
        assert!(incoming.reserve(3 << 20) && !incoming.reserve(2 << 20) && incoming.reserve(1 << 20));
        incoming.release(4 << 20);
        assert_eq!(incoming.total.load(Ordering::Relaxed), 0);
    }
}
