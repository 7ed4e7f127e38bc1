//! The pending HTTP requests of one connection: their ids, their slots, and their cancellation.

use std::{collections::BTreeMap, sync::Arc};

use exec_server_protocol::limits;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::{Fetcher, KIB};
use crate::error::Failure;

/// Maximum number of the server's slots that one principal may take, so that the others get slots too.
const SLOTS_OF_PRINCIPAL: usize = limits::HTTP_REQUESTS_OF_SERVER / 4;

/// How many pending requests each principal has.
#[derive(Default)]
pub(super) struct PrincipalShares(Mutex<BTreeMap<String, usize>>);

impl PrincipalShares {
    fn take(self: &Arc<Self>, principal: &str) -> Option<PrincipalShare> {
        let mut shares = self.0.lock();
        let taken = shares.entry(principal.to_owned()).or_default();
        (*taken < SLOTS_OF_PRINCIPAL).then(|| {
            *taken += 1;
            PrincipalShare { shares: self.clone(), principal: principal.to_owned() }
        })
    }
}

/// The share of one request. Dropping it frees the share.
struct PrincipalShare {
    shares: Arc<PrincipalShares>,
    principal: String,
}

impl Drop for PrincipalShare {
    fn drop(&mut self) {
        let mut shares = self.shares.0.lock();
        if let Some(taken) = shares.get_mut(&self.principal) {
            *taken -= 1;
            if *taken == 0 {
                shares.remove(&self.principal);
            }
        }
    }
}

/// The pending requests of a connection.
pub(crate) struct Fetches {
    slots: Arc<Semaphore>,
    pub(super) reading: Arc<Semaphore>,
    table: Mutex<FetchTable>,
}

#[derive(Default)]
struct FetchTable {
    last: u64,
    active: BTreeMap<u64, FetchEntry>,
}

struct FetchEntry {
    name: String,
    is_stream: bool,
    cancelled: Arc<Notify>,
    /// The sequence number of the last body chunk that the client has acknowledged.
    taken: watch::Sender<u64>,
}

impl Default for Fetches {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(limits::HTTP_REQUESTS)),
            reading: Arc::new(Semaphore::new(limits::HTTP_READING_BYTES / KIB)),
            table: Mutex::default(),
        }
    }
}

impl Fetches {
    /// Registers the request with the id `name`. Fails if the id is too long, if no slot is free, or if the request is
    /// a stream and another stream has the same id.
    pub(crate) fn begin(
        self: &Arc<Self>,
        server: &Fetcher,
        principal: &str,
        name: &str,
        is_stream: bool,
    ) -> Result<ActiveFetch, Failure> {
        if name.len() > limits::HTTP_REQUEST_ID_BYTES {
            let reason = format!("requestId has more than {} bytes", limits::HTTP_REQUEST_ID_BYTES);
            return Err(Failure::InvalidParams { reason });
        }
        let slot = |semaphore: &Arc<Semaphore>| semaphore.clone().try_acquire_owned().ok();
        let slots = slot(&self.slots).zip(slot(&server.slots)).zip(server.shares.take(principal));
        let (slots, share) = slots.ok_or(Failure::Overloaded { what: "HTTP requests in progress" })?;
        let mut table = self.table.lock();
        if is_stream && table.active.values().any(|entry| entry.is_stream && entry.name == name) {
            return Err(Failure::DuplicateRequest { id: name.to_owned() });
        }
        table.last += 1;
        let key = table.last;
        let cancelled = Arc::new(Notify::new());
        let (taken, taken_rx) = watch::channel(0);
        let entry = FetchEntry { name: name.to_owned(), is_stream, cancelled: cancelled.clone(), taken };
        table.active.insert(key, entry);
        drop(table);
        Ok(ActiveFetch { fetches: self.clone(), key, cancelled, taken: taken_rx, _slots: slots, _share: share })
    }

    /// The client acknowledges a stream up to chunk `seq`. An unknown stream or an old number is ignored.
    pub(crate) fn ack(&self, name: &str, seq: u64) {
        let table = self.table.lock();
        if let Some(entry) = table.active.values().find(|entry| entry.is_stream && entry.name == name) {
            entry.taken.send_if_modified(|taken| {
                let is_newer = seq > *taken;
                *taken = seq.max(*taken);
                is_newer
            });
        }
    }

    /// Cancels all requests with this id. Returns whether there were any.
    pub(crate) fn cancel(&self, name: &str) -> bool {
        let table = self.table.lock();
        let named = table.active.values().filter(|entry| entry.name == name);
        named.inspect(|entry| entry.cancelled.notify_one()).count() > 0
    }
}

/// A registered request. Dropping it removes it from the table and frees its slots.
pub(crate) struct ActiveFetch {
    fetches: Arc<Fetches>,
    key: u64,
    cancelled: Arc<Notify>,
    taken: watch::Receiver<u64>,
    _slots: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    _share: PrincipalShare,
}

impl ActiveFetch {
    /// Returns when the request is cancelled. Cancel safe.
    pub(crate) async fn cancelled(&self) {
        self.cancelled.notified().await;
        // Store the permit again, so that later calls return as well.
        self.cancelled.notify_one();
    }

    /// Waits until chunk `seq` is within the window. Cancel safe.
    pub(crate) async fn wait_for_window(&self, seq: u64, window: u64) {
        let mut taken = self.taken.clone();
        // An error means that the sender is gone. It lives in the table as long as `self`, so that cannot happen here.
        taken.wait_for(|taken| seq.saturating_sub(*taken) <= window).await.ok();
    }
}

impl Drop for ActiveFetch {
    fn drop(&mut self) {
        self.fetches.table.lock().active.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use exec_server_protocol::limits;
    use futures_util::FutureExt as _;

    use super::{Fetcher, Fetches, SLOTS_OF_PRINCIPAL};
    use crate::error::Failure;

    #[test]
    fn stream_ids_are_unique_and_slots_are_returned() {
        let (fetches, server) = (Arc::new(Fetches::default()), Fetcher::new(&[]));
        let first = fetches.begin(&server, "me", "r", true).unwrap();
        assert!(matches!(fetches.begin(&server, "me", "r", true), Err(Failure::DuplicateRequest { .. })));
        let whole = fetches.begin(&server, "me", "r", false).unwrap();
        drop((first, whole));
        let many: Vec<_> =
            (0..limits::HTTP_REQUESTS).map(|n| fetches.begin(&server, "me", &n.to_string(), true).unwrap()).collect();
        assert!(matches!(fetches.begin(&server, "me", "more", true), Err(Failure::Overloaded { .. })));
        drop(many);
        assert!(fetches.begin(&server, "me", "more", true).is_ok());
        let long = "x".repeat(limits::HTTP_REQUEST_ID_BYTES + 1);
        assert!(matches!(fetches.begin(&server, "me", &long, false), Err(Failure::InvalidParams { .. })));
    }

    #[test]
    fn one_principal_cannot_take_all_slots() {
        let server = Fetcher::new(&[]);
        let begin = |principal: &str| Arc::new(Fetches::default()).begin(&server, principal, "r", true);
        let mut many: Vec<_> = (0..SLOTS_OF_PRINCIPAL).map(|_| begin("greedy").unwrap()).collect();
        assert!(matches!(begin("greedy"), Err(Failure::Overloaded { .. })));
        let other = begin("other").unwrap();
        many.pop();
        many.push(begin("greedy").unwrap());
        drop((many, other));
        assert!(server.shares.0.lock().is_empty(), "a principal without requests has no entry");
    }

    #[tokio::test]
    async fn a_cancelled_request_stays_cancelled_for_later_waiters() {
        let (fetches, server) = (Arc::new(Fetches::default()), Fetcher::new(&[]));
        let active = fetches.begin(&server, "me", "r", true).unwrap();
        assert!(!fetches.cancel("other"));
        assert!(fetches.cancel("r"));
        active.cancelled().await;
        active.cancelled().await;
        drop(active);
        assert!(!fetches.cancel("r"));
    }

    #[tokio::test]
    async fn a_piece_waits_until_it_is_within_the_window() {
        let (fetches, server) = (Arc::new(Fetches::default()), Fetcher::new(&[]));
        let active = fetches.begin(&server, "me", "r", true).unwrap();
        active.wait_for_window(2, 2).await;
        assert_eq!(active.wait_for_window(3, 2).now_or_never(), None);
        fetches.ack("r", 1);
        active.wait_for_window(3, 2).await;
        // Acknowledgements never go back, and those of other streams do not count.
        fetches.ack("r", 0);
        fetches.ack("other", 9);
        active.wait_for_window(3, 2).await;
        assert_eq!(active.wait_for_window(4, 2).now_or_never(), None);
    }
}
