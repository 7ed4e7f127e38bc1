//! The pending HTTP requests of one connection: their ids, their slots, and their cancellation.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use exec_server_protocol::limits;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::{Fetcher, KIB};
use crate::{error::Failure, process::lock};

/// Most of the server's slots for one principal, so that it cannot take the slots of others.
const OF_PRINCIPAL: usize = limits::HTTP_REQUESTS_OF_SERVER / 4;

/// How many pending requests each principal has.
#[derive(Default)]
pub(super) struct Shares(Mutex<BTreeMap<String, usize>>);

impl Shares {
    fn take(self: &Arc<Self>, principal: &str) -> Option<Share> {
        let mut shares = lock(&self.0);
        let taken = shares.entry(principal.to_owned()).or_default();
        (*taken < OF_PRINCIPAL).then(|| {
            *taken += 1;
            Share { shares: self.clone(), principal: principal.to_owned() }
        })
    }
}

/// The share of one request. Dropping it frees the share.
struct Share {
    shares: Arc<Shares>,
    principal: String,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = lock(&self.shares.0);
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
    places: Arc<Semaphore>,
    pub(super) reading: Arc<Semaphore>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    under_way: BTreeMap<u64, Entry>,
}

struct Entry {
    name: String,
    is_stream: bool,
    calling_off: Arc<Notify>,
    /// The sequence number of the last body chunk that the client has acknowledged.
    taken: watch::Sender<u64>,
}

impl Default for Fetches {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(limits::HTTP_REQUESTS)),
            reading: Arc::new(Semaphore::new(limits::HTTP_READING_BYTES / KIB)),
            table: Mutex::default(),
        }
    }
}

impl Fetches {
    /// Registers a request. Fails if no slot is free, or if another stream has the same id.
    pub(crate) fn begin(
        self: &Arc<Self>,
        server: &Fetcher,
        principal: &str,
        name: &str,
        is_stream: bool,
    ) -> Result<UnderWay, Failure> {
        if name.len() > limits::HTTP_REQUEST_ID_BYTES {
            let reason = format!("requestId has more than {} bytes", limits::HTTP_REQUEST_ID_BYTES);
            return Err(Failure::InvalidParams { reason });
        }
        let place = |semaphore: &Arc<Semaphore>| semaphore.clone().try_acquire_owned().ok();
        let places = place(&self.places).zip(place(&server.places)).zip(server.shares.take(principal));
        let (places, share) = places.ok_or(Failure::Overloaded { what: "HTTP requests that are under way" })?;
        let mut table = lock(&self.table);
        if is_stream && table.under_way.values().any(|entry| entry.is_stream && entry.name == name) {
            return Err(Failure::DuplicateRequest { id: name.to_owned() });
        }
        table.last += 1;
        let (key, calling_off) = (table.last, Arc::new(Notify::new()));
        let (taken, taken_rx) = watch::channel(0);
        let entry = Entry { name: name.to_owned(), is_stream, calling_off: calling_off.clone(), taken };
        table.under_way.insert(key, entry);
        drop(table);
        Ok(UnderWay { fetches: self.clone(), key, calling_off, taken: taken_rx, _places: places, _share: share })
    }

    /// The client acknowledges a stream up to chunk `seq`. An unknown stream or an old number is ignored.
    pub(crate) fn ack(&self, name: &str, seq: u64) {
        let table = lock(&self.table);
        if let Some(entry) = table.under_way.values().find(|entry| entry.is_stream && entry.name == name) {
            entry.taken.send_if_modified(|taken| seq > std::mem::replace(taken, seq.max(*taken)));
        }
    }

    /// Cancels all requests with this id. Returns whether there were any.
    pub(crate) fn cancel(&self, name: &str) -> bool {
        let table = lock(&self.table);
        let named = table.under_way.values().filter(|entry| entry.name == name);
        named.inspect(|entry| entry.calling_off.notify_one()).count() > 0
    }
}

/// A registered request. Dropping it removes it from the table and frees its slots.
pub(crate) struct UnderWay {
    fetches: Arc<Fetches>,
    key: u64,
    calling_off: Arc<Notify>,
    taken: watch::Receiver<u64>,
    _places: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    _share: Share,
}

impl UnderWay {
    /// Returns when the request is cancelled. Cancel safe.
    pub(crate) async fn called_off(&self) {
        self.calling_off.notified().await;
        // Store the permit again, so that later calls return as well.
        self.calling_off.notify_one();
    }

    /// Waits until chunk `seq` is within the window. Cancel safe.
    pub(crate) async fn window(&self, seq: u64, window: u64) {
        let mut taken = self.taken.clone();
        // An error means that the sender is gone. It lives in the table as long as `self`, so that cannot happen here.
        taken.wait_for(|taken| seq.saturating_sub(*taken) <= window).await.ok();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.fetches.table).under_way.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use exec_server_protocol::limits;
    use futures_util::FutureExt as _;

    use super::{Fetcher, Fetches, OF_PRINCIPAL};
    use crate::error::Failure;

    #[test]
    fn a_stream_has_its_name_alone_and_places_come_back() {
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
    fn one_principal_leaves_places_for_others() {
        let server = Fetcher::new(&[]);
        let begin = |principal: &str| Arc::new(Fetches::default()).begin(&server, principal, "r", true);
        let mut many: Vec<_> = (0..OF_PRINCIPAL).map(|_| begin("greedy").unwrap()).collect();
        assert!(matches!(begin("greedy"), Err(Failure::Overloaded { .. })));
        let other = begin("other").unwrap();
        many.pop();
        many.push(begin("greedy").unwrap());
        drop((many, other));
        assert!(server.shares.0.lock().unwrap().is_empty(), "who has nothing under way is not remembered");
    }

    #[tokio::test]
    async fn whoever_waits_hears_that_it_was_called_off_however_late_it_asks() {
        let (fetches, server) = (Arc::new(Fetches::default()), Fetcher::new(&[]));
        let under_way = fetches.begin(&server, "me", "r", true).unwrap();
        assert!(!fetches.cancel("other"));
        assert!(fetches.cancel("r"));
        under_way.called_off().await;
        under_way.called_off().await;
        drop(under_way);
        assert!(!fetches.cancel("r"));
    }

    #[tokio::test]
    async fn a_piece_waits_for_its_window() {
        let (fetches, server) = (Arc::new(Fetches::default()), Fetcher::new(&[]));
        let under_way = fetches.begin(&server, "me", "r", true).unwrap();
        under_way.window(2, 2).await;
        assert_eq!(under_way.window(3, 2).now_or_never(), None);
        fetches.ack("r", 1);
        under_way.window(3, 2).await;
        // Acknowledgements never go back, and those of other streams do not count.
        fetches.ack("r", 0);
        fetches.ack("other", 9);
        under_way.window(3, 2).await;
        assert_eq!(under_way.window(4, 2).now_or_never(), None);
    }
}
