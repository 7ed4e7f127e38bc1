//! The searches and watches of a connection: threads that read directory trees, and their results until the client asks
//! for them.
//!
//! ```text
//! thread: search ▶ SearchTask: at most two pages, then the thread waits ▶ fs/searchNext
//! thread: watch  ▶ WatchTask: one entry per path, then overflow          ▶ fs/watchNext
//! ```
//! A search without pages collects all its lines, and `fs/search` itself returns them.
//!
//! The number of searches and watches is bounded, per connection and for the whole server. A task keeps its slot until
//! its thread has ended and the connection has dropped the task. All tasks end with the connection.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc, time::Duration};

use exec_server_fs::{
    Stop,
    search::{SearchLine, SearchSummary},
    watch::{ChangeBatch, PendingChanges, WatchStopper},
};
use exec_server_protocol::{limits, path::Form};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::error::Failure;

/// How long to wait for a full page after the first line.
const PAGE_TIME: Duration = Duration::from_millis(100);

/// How often a thread that waits for its reader checks whether it should stop.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Slots for search and watch threads, of a connection or of all connections together.
#[derive(Debug)]
pub(crate) struct FileTaskSlots {
    searches: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

impl FileTaskSlots {
    fn new(searches: usize, watches: usize) -> Self {
        Self { searches: Arc::new(Semaphore::new(searches)), watches: Arc::new(Semaphore::new(watches)) }
    }

    /// The slots of the server: as many for watches as for searches.
    pub(crate) fn of_server() -> Self {
        Self::new(limits::SEARCHES_OF_SERVER, limits::SEARCHES_OF_SERVER)
    }
}

/// One permit of the connection and one of the server. Returned on drop.
pub(crate) type FileTaskSlot = [OwnedSemaphorePermit; 2];

/// The searches and watches of a connection.
#[derive(Debug)]
pub(crate) struct FileTasks {
    slots: FileTaskSlots,
    named: Mutex<NamedTasks>,
}

#[derive(Debug, Default)]
struct NamedTasks {
    by_name: BTreeMap<String, FileTask>,
    is_over: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum FileTask {
    /// A search or a glob.
    Search(Arc<SearchTask>),
    Watch(Arc<WatchTask>),
}

impl FileTask {
    fn stop(&self) {
        match self {
            Self::Search(search) => search.cancel(),
            Self::Watch(watch) => watch.stopper.end(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Search(one), Self::Search(other)) => Arc::ptr_eq(one, other),
            (Self::Watch(one), Self::Watch(other)) => Arc::ptr_eq(one, other),
            (Self::Search(_), Self::Watch(_)) | (Self::Watch(_), Self::Search(_)) => false,
        }
    }
}

impl Default for FileTasks {
    fn default() -> Self {
        Self { slots: FileTaskSlots::new(limits::SEARCHES, limits::WATCHES), named: Mutex::default() }
    }
}

impl FileTasks {
    pub(crate) fn reserve_search(&self, server: &FileTaskSlots) -> Result<FileTaskSlot, Failure> {
        reserve_slot("searches", &self.slots.searches, limits::SEARCHES, &server.searches)
    }

    pub(crate) fn reserve_watch(&self, server: &FileTaskSlots) -> Result<FileTaskSlot, Failure> {
        reserve_slot("watches", &self.slots.watches, limits::WATCHES, &server.watches)
    }

    /// Registers a task under a name, by which it can be found and closed.
    pub(crate) fn add(&self, name: &str, task: FileTask) -> Result<(), Failure> {
        if name.is_empty() || name.len() > limits::HANDLE_ID_BYTES {
            return Err(Failure::HandleName);
        }
        let mut named = self.named.lock();
        if named.is_over {
            // The connection has ended, so no client gets this error.
            return Err(Failure::Superseded);
        }
        if named.by_name.contains_key(name) {
            return Err(Failure::DuplicateHandle { id: name.to_owned() });
        }
        named.by_name.insert(name.to_owned(), task);
        Ok(())
    }

    pub(crate) fn find(&self, name: &str) -> Option<FileTask> {
        self.named.lock().by_name.get(name).cloned()
    }

    /// Removes this task. Another one that has taken the same name stays.
    pub(crate) fn remove(&self, name: &str, task: &FileTask) {
        let mut named = self.named.lock();
        if named.by_name.get(name).is_some_and(|known| known.is_same(task)) {
            named.by_name.remove(name);
        }
    }

    /// Removes and stops the task with this name.
    pub(crate) fn close(&self, name: &str) {
        let closed = self.named.lock().by_name.remove(name);
        if let Some(task) = closed {
            task.stop();
        }
    }

    /// Stops all tasks because the connection has ended. No new ones can be added.
    pub(crate) fn end(&self) {
        let ended = NamedTasks { by_name: BTreeMap::new(), is_over: true };
        let all = std::mem::replace(&mut *self.named.lock(), ended).by_name;
        all.values().for_each(FileTask::stop);
    }
}

/// Reserves a slot of the connection and one of the server. `per_connection` is the limit of the connection, for the
/// error text.
fn reserve_slot(
    what: &'static str,
    of_connection: &Arc<Semaphore>,
    per_connection: usize,
    of_server: &Arc<Semaphore>,
) -> Result<FileTaskSlot, Failure> {
    let too_many = |most, scope| Failure::TooManyFileTasks { what, most, scope };
    let connection_permit = of_connection.clone().try_acquire_owned();
    let connection_permit = connection_permit.map_err(|_| too_many(per_connection, "connection"))?;
    let server_permit = of_server.clone().try_acquire_owned();
    let server_permit = server_permit.map_err(|_| too_many(limits::SEARCHES_OF_SERVER, "server"))?;
    Ok([connection_permit, server_permit])
}

/// A search that is running, or finished with results left to read.
#[derive(Debug)]
pub(crate) struct SearchTask {
    pub(crate) stop: Stop,
    /// How paths are written on the wire.
    pub(crate) form: Form,
    /// Most bytes of buffered lines. Beyond that, the thread waits.
    capacity: usize,
    buffer: Mutex<SearchPage>,
    /// Notified when lines were taken, and when the search is cancelled.
    room: Condvar,
    /// Notified when there are new lines or an outcome.
    changed: Notify,
    /// Held by the request that waits for a page.
    reader: tokio::sync::Mutex<()>,
    _slot: FileTaskSlot,
}

/// The lines that were found and not yet taken, and the outcome if no more will follow.
#[derive(Debug, Default)]
pub(crate) struct SearchPage {
    pub(crate) lines: Vec<SearchLine>,
    bytes: usize,
    pub(crate) outcome: Option<Result<SearchSummary, Failure>>,
}

impl SearchTask {
    /// A search that has not started yet. With `in_pages`, its thread runs at most two pages ahead of the reader.
    pub(crate) fn new(stop: Stop, in_pages: bool, form: Form, slot: FileTaskSlot) -> Arc<Self> {
        let capacity = if in_pages { 2 * limits::SEARCH_PAGE_BYTES } else { usize::MAX };
        Arc::new(Self {
            stop,
            form,
            capacity,
            buffer: Mutex::default(),
            room: Condvar::new(),
            changed: Notify::new(),
            reader: tokio::sync::Mutex::default(),
            _slot: slot,
        })
    }

    /// Cancels the search. Its thread ends at its next check.
    pub(crate) fn cancel(&self) {
        self.stop.cancel();
        self.room.notify_all();
    }

    /// Buffers a line; called by the search's thread. Waits while the buffer is full.
    pub(crate) fn push_line(&self, line: SearchLine) -> ControlFlow<()> {
        let mut buffer = self.buffer.lock();
        while buffer.bytes >= self.capacity {
            if self.stop.check().is_some() {
                return ControlFlow::Break(());
            }
            self.room.wait_for(&mut buffer, CHECK_EVERY);
        }
        buffer.bytes += line.cost();
        buffer.lines.push(line);
        drop(buffer);
        self.changed.notify_one();
        ControlFlow::Continue(())
    }

    /// Sets the outcome; the last call of the search's thread.
    pub(crate) fn finish(&self, outcome: Result<SearchSummary, Failure>) {
        self.buffer.lock().outcome = Some(outcome);
        self.changed.notify_one();
    }

    /// Waits for the next page. It is full, unless the search is done or a full page takes longer than [`PAGE_TIME`].
    pub(crate) async fn page(&self) -> Result<SearchPage, Failure> {
        let Ok(_reader) = self.reader.try_lock() else {
            return Err(Failure::Overloaded { what: "requests for a page of one search" });
        };
        self.wait(|buffer| !buffer.lines.is_empty()).await;
        let full = self.wait(|buffer| buffer.bytes >= limits::SEARCH_PAGE_BYTES);
        // On timeout, return the lines that there are.
        tokio::time::timeout(PAGE_TIME, full).await.ok();
        Ok(self.take())
    }

    /// Waits until the search is done and returns all lines.
    pub(crate) async fn all(&self) -> SearchPage {
        self.wait(|_| false).await;
        self.take()
    }

    /// Waits until `is_enough` returns true or the search is done. Cancel safe.
    async fn wait(&self, is_enough: impl Fn(&SearchPage) -> bool) {
        loop {
            // `notify_one` stores a permit, so a change between the check and the `await` is not lost.
            let changed = self.changed.notified();
            {
                let buffer = self.buffer.lock();
                if buffer.outcome.is_some() || is_enough(&buffer) {
                    return;
                }
            }
            changed.await;
        }
    }

    fn take(&self) -> SearchPage {
        let page = std::mem::take(&mut *self.buffer.lock());
        self.room.notify_all();
        page
    }
}

#[derive(Debug)]
pub(crate) struct WatchTask {
    pub(crate) changes: PendingChanges,
    pub(crate) stopper: WatchStopper,
    /// How paths are written on the wire.
    pub(crate) form: Form,
    changed: Notify,
    /// Held by the request that waits for changes.
    reader: tokio::sync::Mutex<()>,
    _slot: FileTaskSlot,
}

impl WatchTask {
    /// A watch that has not started yet.
    pub(crate) fn new(stopper: WatchStopper, form: Form, slot: FileTaskSlot) -> Arc<Self> {
        Arc::new(Self {
            changes: PendingChanges::default(),
            stopper,
            form,
            changed: Notify::new(),
            reader: tokio::sync::Mutex::default(),
            _slot: slot,
        })
    }

    /// Called by the watch's thread when there are changes.
    pub(crate) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Waits for changes, at most `wait`. After the first change, waits for `settle` to collect more, then returns at
    /// most `most`.
    pub(crate) async fn next(&self, wait: Duration, settle: Duration, most: usize) -> Result<ChangeBatch, Failure> {
        let Ok(_reader) = self.reader.try_lock() else {
            return Err(Failure::Overloaded { what: "requests for changes of one watch" });
        };
        let has_changes = async {
            loop {
                let changed = self.changed.notified();
                if !self.changes.is_empty() {
                    return;
                }
                changed.await;
            }
        };
        if !wait.is_zero() {
            // On timeout, return an empty result.
            tokio::time::timeout(wait, has_changes).await.ok();
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
        search::{SearchLine, SearchSummary},
        watch::WatchStopper,
    };
    use exec_server_protocol::{limits, path::Form};

    use super::{FileTask, FileTaskSlots, FileTasks, SearchTask, WatchTask};
    use crate::error::Failure;

    fn line() -> SearchLine {
        SearchLine {
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
    async fn a_search_buffers_at_most_two_pages_for_a_slow_reader() {
        let (tasks, server) = (FileTasks::default(), FileTaskSlots::of_server());
        let search = SearchTask::new(Stop::new(), true, Form::Native, tasks.reserve_search(&server).unwrap());
        let thread = std::thread::spawn({
            let search = search.clone();
            move || {
                for _ in 0..2000 {
                    assert_eq!(search.push_line(line()), ControlFlow::Continue(()));
                }
                search.finish(Ok(SearchSummary::default()));
            }
        });
        let mut lines = 0;
        let mut most = 0;
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
    fn a_cancelled_search_does_not_wait_for_its_reader() {
        let (tasks, server) = (FileTasks::default(), FileTaskSlots::of_server());
        let search = SearchTask::new(Stop::new(), true, Form::Native, tasks.reserve_search(&server).unwrap());
        tasks.add("s", FileTask::Search(search.clone())).unwrap();
        let thread = std::thread::spawn({
            let search = search.clone();
            move || while search.push_line(line()).is_continue() {}
        });
        tasks.close("s");
        thread.join().unwrap();
        assert!(tasks.find("s").is_none());
        let timed =
            SearchTask::new(Stop::within(Duration::ZERO), true, Form::Native, tasks.reserve_search(&server).unwrap());
        while timed.push_line(line()).is_continue() {}
    }

    #[test]
    fn names_and_slots_are_bounded_and_slots_are_returned() {
        let (tasks, server) = (FileTasks::default(), FileTaskSlots::of_server());
        let watch = || {
            let slot = tasks.reserve_watch(&server)?;
            Ok::<Arc<WatchTask>, Failure>(WatchTask::new(WatchStopper::new().unwrap(), Form::Native, slot))
        };
        let all: Vec<_> = (0..limits::WATCHES).map(|_| watch().unwrap()).collect();
        assert!(matches!(watch(), Err(Failure::TooManyFileTasks { .. })));
        drop(all);
        let one = watch().unwrap();
        tasks.add("w", FileTask::Watch(one.clone())).unwrap();
        assert!(matches!(tasks.add("w", FileTask::Watch(one.clone())), Err(Failure::DuplicateHandle { .. })));
        assert!(matches!(tasks.add("", FileTask::Watch(one.clone())), Err(Failure::HandleName)));
        let long = "x".repeat(limits::HANDLE_ID_BYTES + 1);
        assert!(matches!(tasks.add(&long, FileTask::Watch(one.clone())), Err(Failure::HandleName)));
        tasks.end();
        assert!(tasks.find("w").is_none());
        assert!(tasks.add("v", FileTask::Watch(one)).is_err());
    }
}
