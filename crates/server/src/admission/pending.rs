//! The connections that are not authenticated yet: how many there may be, which one is evicted when there are too many,
//! and which sources are answered late.
//!
//! A new connection always gets a slot. When all slots are taken, the oldest connection of the source with the most
//! connections is evicted. So half-open connections evict each other, and not a client that sends its request at once.
//!
//! A source that fails repeatedly is answered with a growing delay and has fewer slots. It is never blocked, and a
//! request with a valid token is never delayed: on loopback or behind a gateway, good and bad clients share one
//! address.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// Most unauthenticated connections. Each one costs an fd and 8 KiB.
pub(super) const PENDING_MAX: usize = 64;

/// Most slots of a source that has failed too often.
const PENALIZED_MAX: usize = 8;

/// The first failure whose response is delayed. A person, or a client that does not have the new token yet, stays below
/// it.
const DELAYED_FROM: u32 = 100;

/// The delay doubles after each further run of this many failures.
const FAILURES_A_DOUBLING: u32 = 16;

/// The first delay and the longest one. The longest is well below the deadline of a request.
const DELAY_FIRST: Duration = Duration::from_millis(50);
const DELAY_MAX: Duration = Duration::from_secs(5);

/// The failures of a source are forgotten if there was none for this long.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// Most sources in the table.
const SOURCES_MAX: usize = 1024;

/// The origin of a connection, as far as origins are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PeerSource {
    Local,
    /// An IP address. For IPv6 only the first 64 bits, because one machine usually has a whole /64.
    Net(IpAddr),
}

impl From<SocketAddr> for PeerSource {
    fn from(peer: SocketAddr) -> Self {
        Self::Net(match peer.ip().to_canonical() {
            IpAddr::V6(ip) if !ip.is_loopback() => {
                let prefix = u128::from(ip) >> 64 << 64;
                IpAddr::V6(Ipv6Addr::from(prefix))
            }
            ip => ip,
        })
    }
}

/// Counters of an admission since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionCounts {
    /// Answered with a refusal, failed in the TLS handshake, or closed because access control refused the certificate.
    pub refused: u64,
    /// No complete request by the deadline.
    pub stalled: u64,
    /// Dropped to make room for others.
    pub evicted: u64,
    /// Refusals of sources that had failed too often: answered late, or closed without an answer.
    pub slowed: u64,
}

/// All unauthenticated connections, and the failures of their sources.
#[derive(Debug, Default)]
pub(super) struct PendingConnections {
    table: Mutex<PendingTable>,
}

#[derive(Debug, Default)]
struct PendingTable {
    /// By ticket: the first entry is the oldest connection.
    waiting: BTreeMap<u64, WaitingConnection>,
    next: u64,
    sources: HashMap<PeerSource, SourceRecord>,
    counts: AdmissionCounts,
}

#[derive(Debug)]
struct WaitingConnection {
    source: PeerSource,
    eviction: Arc<Notify>,
}

#[derive(Debug, Default)]
struct SourceRecord {
    pending: usize,
    failures: u32,
    last_failure: Option<Instant>,
}

impl SourceRecord {
    fn delay(&self, now: Instant) -> Option<Duration> {
        let beyond = self.failures.checked_sub(DELAYED_FROM)?;
        let is_fresh = self.last_failure.is_some_and(|last| now.duration_since(last) < FORGET_AFTER);
        // The bound prevents an overflow. The delay reaches its maximum long before.
        let doublings = (beyond / FAILURES_A_DOUBLING).min(16);
        is_fresh.then(|| (DELAY_FIRST * (1 << doublings)).min(DELAY_MAX))
    }
}

/// The slot of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct PendingSlot {
    pending: Arc<PendingConnections>,
    ticket: u64,
    source: PeerSource,
    eviction: Arc<Notify>,
}

impl PendingConnections {
    /// Takes a slot. Evicts another connection if none is free.
    pub(super) fn reserve(self: &Arc<Self>, source: PeerSource, now: Instant) -> PendingSlot {
        let mut table = self.table.lock();
        while let Some(victim) = table.victim(source, now).and_then(|victim| table.evict(victim)) {
            victim.eviction.notify_one();
            table.count_failure(victim.source, now);
            // Log only when the count is a power of two: a flood of connections must not fill the log.
            table.counts.evicted += 1;
            let evicted = table.counts.evicted;
            if evicted.is_power_of_two() {
                tracing::warn!(evicted, "unauthenticated connections were dropped to make room for others");
            }
        }
        let ticket = table.next;
        let eviction = Arc::new(Notify::new());
        table.next += 1;
        table.waiting.insert(ticket, WaitingConnection { source, eviction: Arc::clone(&eviction) });
        table.record(source).pending += 1;
        PendingSlot { pending: Arc::clone(self), ticket, source, eviction }
    }

    /// Whether all slots are taken, so that the next connection evicts another one.
    pub(super) fn is_full(&self) -> bool {
        self.table.lock().waiting.len() >= PENDING_MAX
    }

    pub(super) fn counts(&self) -> AdmissionCounts {
        self.table.lock().counts
    }
}

impl PendingTable {
    /// The source whose oldest connection must be evicted before a new connection of `source` can enter. `None` if
    /// there is room.
    fn victim(&self, source: PeerSource, now: Instant) -> Option<PeerSource> {
        let record = self.sources.get(&source);
        if record.is_some_and(|record| record.pending >= PENALIZED_MAX && record.delay(now).is_some()) {
            return Some(source);
        }
        let is_full = self.waiting.len() >= PENDING_MAX;
        let most = self.sources.iter().max_by_key(|(_, record)| record.pending);
        most.filter(|_| is_full).map(|(source, _)| *source)
    }

    /// Evicts the oldest connection of a source.
    fn evict(&mut self, source: PeerSource) -> Option<WaitingConnection> {
        let ticket = *self.waiting.iter().find(|(_, waiting)| waiting.source == source)?.0;
        self.remove(ticket)
    }

    /// Frees the slot of a ticket. `None` if its connection was evicted before.
    fn remove(&mut self, ticket: u64) -> Option<WaitingConnection> {
        let waiting = self.waiting.remove(&ticket)?;
        if let Some(record) = self.sources.get_mut(&waiting.source) {
            record.pending -= 1;
            if record.pending == 0 && record.failures == 0 {
                self.sources.remove(&waiting.source);
            }
        }
        Some(waiting)
    }

    /// Counts a failure and returns how long to delay the response.
    fn count_failure(&mut self, source: PeerSource, now: Instant) -> Option<Duration> {
        let record = self.record(source);
        if record.last_failure.is_some_and(|last| now.duration_since(last) >= FORGET_AFTER) {
            record.failures = 0;
        }
        record.failures = record.failures.saturating_add(1);
        record.last_failure = Some(now);
        record.delay(now)
    }

    /// The record of a source. When the table is full, the source whose last failure is oldest is removed, but never
    /// one with pending connections.
    fn record(&mut self, source: PeerSource) -> &mut SourceRecord {
        if self.sources.len() >= SOURCES_MAX && !self.sources.contains_key(&source) {
            let idle = self.sources.iter().filter(|(_, record)| record.pending == 0);
            let oldest = idle.min_by_key(|(_, record)| record.last_failure).map(|(source, _)| *source);
            if let Some(oldest) = oldest {
                self.sources.remove(&oldest);
            }
        }
        self.sources.entry(source).or_default()
    }
}

impl PendingSlot {
    /// Returns when the connection is evicted. Cancel safe.
    pub(super) async fn evicted(&self) {
        self.eviction.notified().await;
    }

    /// Counts a refusal and returns how long to delay the response.
    pub(super) fn refused(&self, now: Instant) -> Option<Duration> {
        let mut table = self.pending.table.lock();
        table.counts.refused += 1;
        let delay = table.count_failure(self.source, now);
        table.counts.slowed += u64::from(delay.is_some());
        delay
    }

    /// Counts a connection that sent no complete request before the deadline.
    pub(super) fn stalled(&self, now: Instant) {
        let mut table = self.pending.table.lock();
        table.counts.stalled += 1;
        table.count_failure(self.source, now);
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        self.pending.table.lock().remove(self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn at(address: &str) -> PeerSource {
        address.parse::<SocketAddr>().unwrap().into()
    }

    fn is_evicted(slot: &PendingSlot) -> bool {
        slot.evicted().now_or_never().is_some()
    }

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_prefix() {
        assert_eq!(at("[2001:db8::1]:1"), at("[2001:db8::ffff:2]:2"));
        assert_ne!(at("[2001:db8::1]:1"), at("[2001:db8:0:1::1]:1"));
        assert_eq!(at("[::ffff:10.0.0.1]:1"), at("10.0.0.1:2"));
        assert_ne!(at("10.0.0.1:1"), at("10.0.0.2:1"));
        assert_ne!(at("[::1]:1"), at("[::2]:1"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connection_of_the_source_with_the_most_is_evicted() {
        let pending = Arc::new(PendingConnections::default());
        let now = Instant::now();
        let lone: Vec<_> = (0..4).map(|n| pending.reserve(at(&format!("10.0.0.{n}:1")), now)).collect();
        let mut flood: Vec<_> = (0..500).map(|_| pending.reserve(at("10.9.9.9:1"), now)).collect();
        assert!(lone.iter().all(|slot| !is_evicted(slot)), "others keep theirs");
        assert_eq!(flood.iter().filter(|slot| !is_evicted(slot)).count(), PENALIZED_MAX);
        assert!(!is_evicted(&flood.pop().unwrap()), "the newest is in");
        let newcomer = pending.reserve(at("10.0.0.9:1"), now);
        assert!(!is_evicted(&newcomer));
        drop((lone, flood, newcomer));
        let table = pending.table.lock();
        assert!(table.waiting.is_empty() && table.sources.values().all(|record| record.pending == 0));
        assert!(table.counts.evicted >= 400);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_delay_their_source_up_to_a_bound_and_are_forgotten() {
        let pending = Arc::new(PendingConnections::default());
        let slot = pending.reserve(at("10.0.0.1:1"), Instant::now());
        let mut delays: Vec<_> = (0..400).map(|_| slot.refused(Instant::now()).unwrap_or_default()).collect();
        assert!(delays[..99].iter().all(Duration::is_zero));
        assert_eq!((delays[99], delays[399]), (DELAY_FIRST, DELAY_MAX));
        assert!(delays.is_sorted());
        delays.dedup();
        assert_eq!(delays.len(), 9, "{delays:?}");
        let other = pending.reserve(at("10.0.0.2:1"), Instant::now());
        assert_eq!(other.refused(Instant::now()), None);
        tokio::time::advance(FORGET_AFTER).await;
        assert_eq!(slot.refused(Instant::now()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_of_sources_is_bounded() {
        let pending = Arc::new(PendingConnections::default());
        for n in 0..3 * SOURCES_MAX as u32 {
            let source = PeerSource::Net(IpAddr::V4((0x0a00_0000 + n).into()));
            pending.reserve(source, Instant::now()).refused(Instant::now());
        }
        assert!(pending.table.lock().sources.len() <= SOURCES_MAX);
    }
}
