//! Searches and watches of a connection: threads that look at trees, and what they found until somebody asks for it.
//!
//! ```text
//! thread: search ▶ Search, two pages at most, then the thread waits ▶ fs/searchNext
//! thread: watch  ▶ Watching, one entry a path, then overflow        ▶ fs/watchNext
//! ```
//!
//! Bounds: so many of a connection and of the server, given back when the thread has ended, not before. All end with the connection. Must not
//! know paths, policies or the wire.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use exec_server_fs::{
    PatternError, Stop,
    search::{Line, Outcome},
    watch::{Changes, Ender, Taken},
};
use exec_server_protocol::{limits, path::Form};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::{error::Failure, process::lock};

/// How long a page waits for more after its first line.
const PAGE_TIME: Duration = Duration::from_millis(100);

/// How often a thread that waits for its reader looks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Threads that all connections together may have.
#[derive(Debug)]
pub(crate) struct Places {
    searches: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        let of_server = || Arc::new(Semaphore::new(limits::SEARCHES_OF_SERVER));
        Self { searches: of_server(), watches: of_server() }
    }
}

/// A place of a connection and of the server, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _of_connection: OwnedSemaphorePermit,
    _of_server: OwnedSemaphorePermit,
}

/// What a connection has under way.
#[derive(Debug)]
pub(crate) struct Seekers {
    searches: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    named: Mutex<Named>,
}

#[derive(Debug, Default)]
struct Named {
    by_name: BTreeMap<String, Seeker>,
    is_over: bool,
}

/// Something under way.
#[derive(Clone, Debug)]
pub(crate) enum Seeker {
    /// It is searched, or globbed, and may be called off.
    Search(Arc<Search>),
    /// It is watched.
    Watch(Arc<Watching>),
}

impl Seeker {
    fn end(&self) {
        match self {
            Self::Search(search) => search.call_off(),
            Self::Watch(watching) => watching.ender.end(),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Search(one), Self::Search(other)) => Arc::ptr_eq(one, other),
            (Self::Watch(one), Self::Watch(other)) => Arc::ptr_eq(one, other),
            (Self::Search(_), Self::Watch(_)) | (Self::Watch(_), Self::Search(_)) => false,
        }
    }
}

impl Default for Seekers {
    fn default() -> Self {
        Self {
            searches: Arc::new(Semaphore::new(limits::SEARCHES)),
            watches: Arc::new(Semaphore::new(limits::WATCHES)),
            named: Mutex::default(),
        }
    }
}

impl Seekers {
    /// A place for a search or a glob.
    pub(crate) fn place_to_search(&self, server: &Places) -> Result<Place, Failure> {
        place(&self.searches, &server.searches)
            .ok_or(Failure::TooManySeekers { what: "searches", most: limits::SEARCHES })
    }

    /// A place for a watch.
    pub(crate) fn place_to_watch(&self, server: &Places) -> Result<Place, Failure> {
        place(&self.watches, &server.watches).ok_or(Failure::TooManySeekers { what: "watches", most: limits::WATCHES })
    }

    /// Gives something a name, by which it is found and called off.
    pub(crate) fn add(&self, name: &str, seeker: Seeker) -> Result<(), Failure> {
        if name.is_empty() || name.len() > limits::HANDLE_ID_BYTES {
            return Err(Failure::HandleName);
        }
        let mut named = lock(&self.named);
        if named.is_over {
            return Err(Failure::Superseded);
        }
        if named.by_name.contains_key(name) {
            return Err(Failure::DuplicateHandle { id: name.to_owned() });
        }
        named.by_name.insert(name.to_owned(), seeker);
        Ok(())
    }

    /// What has this name.
    pub(crate) fn find(&self, name: &str) -> Option<Seeker> {
        lock(&self.named).by_name.get(name).cloned()
    }

    /// Takes this very one off the table; another of the same name stays.
    pub(crate) fn remove(&self, name: &str, seeker: &Seeker) {
        let mut named = lock(&self.named);
        if named.by_name.get(name).is_some_and(|known| known.is(seeker)) {
            named.by_name.remove(name);
        }
    }

    /// Calls off what has this name.
    pub(crate) fn close(&self, name: &str) {
        let closed = lock(&self.named).by_name.remove(name);
        if let Some(seeker) = closed {
            seeker.end();
        }
    }

    /// The connection is over: everything is called off, and nothing more is begun.
    pub(crate) fn end(&self) {
        let mut named = lock(&self.named);
        named.is_over = true;
        let all = std::mem::take(&mut named.by_name);
        drop(named);
        all.values().for_each(Seeker::end);
    }
}

fn place(of_connection: &Arc<Semaphore>, of_server: &Arc<Semaphore>) -> Option<Place> {
    let _of_connection = of_connection.clone().try_acquire_owned().ok()?;
    let _of_server = of_server.clone().try_acquire_owned().ok()?;
    Some(Place { _of_connection, _of_server })
}

/// A search under way, or done and not told to its end.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) stop: Stop,
    /// How its paths are written.
    pub(crate) form: Form,
    /// Bytes of lines that wait; beyond it the thread does.
    capacity: usize,
    found: Mutex<Found>,
    /// Told when lines were taken, and when it is called off.
    room: Condvar,
    /// Told when there is something to take.
    news: Notify,
    /// Held by the one who waits for a page.
    reader: tokio::sync::Mutex<()>,
    _place: Place,
}

#[derive(Debug, Default)]
struct Found {
    lines: Vec<Line>,
    bytes: usize,
    outcome: Option<Result<Outcome, Refused>>,
}

/// Why something came to nothing.
#[derive(Debug)]
pub(crate) enum Refused {
    /// What was asked for cannot be read.
    Pattern(PatternError),
    /// The files are not so.
    File(exec_server_fs::Error),
    /// It may not be.
    Failure(Failure),
}

impl From<PatternError> for Refused {
    fn from(error: PatternError) -> Self {
        Self::Pattern(error)
    }
}

impl From<exec_server_fs::Error> for Refused {
    fn from(error: exec_server_fs::Error) -> Self {
        Self::File(error)
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Some lines, and at the end what it came to.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) lines: Vec<Line>,
    pub(crate) outcome: Option<Result<Outcome, Refused>>,
}

impl Search {
    /// One that is about to begin. In pages, its thread runs two ahead of the reader.
    pub(crate) fn new(stop: Stop, in_pages: bool, form: Form, place: Place) -> Arc<Self> {
        let capacity = if in_pages { 2 * limits::SEARCH_PAGE_BYTES } else { usize::MAX };
        Arc::new(Self {
            stop,
            form,
            capacity,
            found: Mutex::default(),
            room: Condvar::new(),
            news: Notify::new(),
            reader: tokio::sync::Mutex::default(),
            _place: place,
        })
    }

    /// Ends it at its next look.
    pub(crate) fn call_off(&self) {
        self.stop.cancel();
        self.room.notify_all();
    }

    /// Called by its thread: keeps a line, when there is room for it.
    pub(crate) fn tell(&self, line: Line) -> ControlFlow<()> {
        let mut found = lock(&self.found);
        while found.bytes >= self.capacity {
            if self.stop.check().is_some() {
                return ControlFlow::Break(());
            }
            let waited = self.room.wait_timeout(found, LOOK_EVERY);
            found = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        found.bytes += line.cost();
        found.lines.push(line);
        drop(found);
        self.news.notify_one();
        ControlFlow::Continue(())
    }

    /// Called by its thread, last.
    pub(crate) fn done(&self, outcome: Result<Outcome, Refused>) {
        lock(&self.found).outcome = Some(outcome);
        self.news.notify_one();
    }

    /// The next page, when it is there.
    pub(crate) async fn page(&self) -> Result<Page, Failure> {
        let Ok(_reader) = self.reader.try_lock() else {
            return Err(Failure::Overloaded { what: "requests for a page of one search" });
        };
        self.wait(|found| !found.lines.is_empty()).await;
        let full = self.wait(|found| found.bytes >= limits::SEARCH_PAGE_BYTES);
        // What there is then has to do.
        tokio::time::timeout(PAGE_TIME, full).await.ok();
        Ok(self.take())
    }

    /// All of it, when it is done.
    pub(crate) async fn all(&self) -> Page {
        self.wait(|_| false).await;
        self.take()
    }

    /// Waits until it is so, or the search is done. Cancel safe.
    async fn wait(&self, is_enough: impl Fn(&Found) -> bool) {
        loop {
            let news = self.news.notified();
            {
                let found = lock(&self.found);
                if found.outcome.is_some() || is_enough(&found) {
                    return;
                }
            }
            news.await;
        }
    }

    fn take(&self) -> Page {
        let Found { lines, outcome, .. } = std::mem::take(&mut *lock(&self.found));
        self.room.notify_all();
        Page { lines, outcome }
    }
}

/// A watch under way.
#[derive(Debug)]
pub(crate) struct Watching {
    pub(crate) changes: Changes,
    pub(crate) ender: Ender,
    /// How its paths are written.
    pub(crate) form: Form,
    news: Notify,
    /// Held by the one who waits for changes.
    reader: tokio::sync::Mutex<()>,
    _place: Place,
}

impl Watching {
    /// One that is about to begin.
    pub(crate) fn new(ender: Ender, form: Form, place: Place) -> Arc<Self> {
        let (changes, news, reader) = (Changes::default(), Notify::new(), tokio::sync::Mutex::default());
        Arc::new(Self { changes, ender, form, news, reader, _place: place })
    }

    /// Called by its thread when there is something to take.
    pub(crate) fn ring(&self) {
        self.news.notify_one();
    }

    /// What changed, when something has, or the time is over; after the first change it is gathered for a while.
    pub(crate) async fn next(&self, wait: Duration, settle: Duration, most: usize) -> Result<Taken, Failure> {
        let Ok(_reader) = self.reader.try_lock() else {
            return Err(Failure::Overloaded { what: "requests for changes of one watch" });
        };
        let something = async {
            loop {
                let news = self.news.notified();
                if !self.changes.is_empty() {
                    return;
                }
                news.await;
            }
        };
        if !wait.is_zero() {
            // Nothing came: then that is the answer.
            tokio::time::timeout(wait, something).await.ok();
        }
        if !settle.is_zero() && !self.changes.is_empty() && !self.changes.is_over() {
            tokio::time::sleep(settle).await;
        }
        Ok(self.changes.take(most))
    }
}

#[cfg(test)]
mod tests {
    use std::{ops::ControlFlow, path::PathBuf, sync::Arc, time::Duration};

    use exec_server_fs::{
        Stop,
        search::{Line, Outcome},
        watch::Ender,
    };
    use exec_server_protocol::{limits, path::Form};

    use super::{Places, Search, Seeker, Seekers, Watching};
    use crate::error::Failure;

    fn line() -> Line {
        Line {
            path: PathBuf::from("/x"),
            number: 1,
            offset: 0,
            text: vec![b'x'; 1000],
            skipped: 0,
            bytes: 1000,
            spans: Vec::new(),
            is_context: false,
        }
    }

    #[tokio::test]
    async fn a_search_waits_for_a_slow_reader_and_keeps_no_more_than_two_pages() {
        let (seekers, server) = (Seekers::default(), Places::default());
        let search = Search::new(Stop::new(), true, Form::Native, seekers.place_to_search(&server).unwrap());
        let thread = std::thread::spawn({
            let search = search.clone();
            move || {
                for _ in 0..2000 {
                    assert_eq!(search.tell(line()), ControlFlow::Continue(()));
                }
                search.done(Ok(Outcome::default()));
            }
        });
        let (mut lines, mut most) = (0, 0);
        loop {
            let page = search.page().await.unwrap();
            most = most.max(page.lines.len());
            lines += page.lines.len();
            if page.outcome.is_some() {
                break;
            }
        }
        thread.join().unwrap();
        assert_eq!(lines, 2000);
        assert!(most * line().cost() <= 2 * limits::SEARCH_PAGE_BYTES + line().cost(), "{most}");
    }

    #[test]
    fn a_search_that_is_called_off_does_not_wait_for_its_reader() {
        let (seekers, server) = (Seekers::default(), Places::default());
        let search = Search::new(Stop::new(), true, Form::Native, seekers.place_to_search(&server).unwrap());
        seekers.add("s", Seeker::Search(search.clone())).unwrap();
        let thread = std::thread::spawn({
            let search = search.clone();
            move || while search.tell(line()).is_continue() {}
        });
        seekers.close("s");
        thread.join().unwrap();
        assert!(seekers.find("s").is_none());
        let timed =
            Search::new(Stop::within(Duration::ZERO), true, Form::Native, seekers.place_to_search(&server).unwrap());
        while timed.tell(line()).is_continue() {}
    }

    #[test]
    fn names_and_places_are_bounded_and_come_back() {
        let (seekers, server) = (Seekers::default(), Places::default());
        let watch = || {
            let place = seekers.place_to_watch(&server)?;
            Ok::<Arc<Watching>, Failure>(Watching::new(Ender::new().unwrap(), Form::Native, place))
        };
        let all: Vec<_> = (0..limits::WATCHES).map(|_| watch().unwrap()).collect();
        assert!(matches!(watch(), Err(Failure::TooManySeekers { .. })));
        drop(all);
        let one = watch().unwrap();
        seekers.add("w", Seeker::Watch(one.clone())).unwrap();
        assert!(matches!(seekers.add("w", Seeker::Watch(one.clone())), Err(Failure::DuplicateHandle { .. })));
        assert!(matches!(seekers.add("", Seeker::Watch(one.clone())), Err(Failure::HandleName)));
        let long = "x".repeat(limits::HANDLE_ID_BYTES + 1);
        assert!(matches!(seekers.add(&long, Seeker::Watch(one.clone())), Err(Failure::HandleName)));
        seekers.end();
        assert!(seekers.find("w").is_none());
        assert!(seekers.add("v", Seeker::Watch(one)).is_err());
    }
}
