//! A job queue that one thread at a time works off in order.
//!
//! Threads that all need the same draft would only wait for each other, and wake each other for every block. Instead, a caller adds its job
//! to the queue, and the thread that is already working runs it too.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

type Job = Box<dyn FnOnce() + Send>;

/// A queue of jobs. It is unbounded; the callers limit how much they add.
#[derive(Default)]
pub struct Line {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    is_worked_on: bool,
}

impl Line {
    /// Adds a job at the end. Returns true if no thread is working on the queue: the caller must then let one call [`Line::work`].
    #[must_use]
    pub fn add(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.state();
        state.waiting.push_back(Box::new(job));
        !std::mem::replace(&mut state.is_worked_on, true)
    }

    /// Runs all jobs in the queue, including those added in the meantime, and returns when it is empty. If a job panics, the jobs behind it
    /// are dropped without being run.
    pub fn work(&self) {
        let leave = Leave(self);
        while let Some(job) = self.next() {
            job();
        }
        std::mem::forget(leave);
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        let job = state.waiting.pop_front();
        state.is_worked_on = job.is_some();
        job
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("waiting", &self.state().waiting.len()).finish_non_exhaustive()
    }
}

/// Empties the queue if a job panics, so that the next `add` starts with a clean state.
struct Leave<'a>(&'a Line);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let left = std::mem::take(&mut *self.0.state());
        // Drop the jobs after the lock is released: dropping a job runs code of its owner.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, mpsc},
        thread,
    };

    use super::*;

    #[test]
    fn jobs_are_done_in_order_by_whoever_is_at_the_line() {
        let line = Arc::new(Line::default());
        let (told, hear) = mpsc::channel();
        let tell = |number: u32| {
            let told = told.clone();
            move || told.send((number, thread::current().id())).expect("heard")
        };
        assert!(line.add(tell(1)), "nobody is there yet");
        assert!(!line.add(tell(2)), "somebody has said that he comes");
        let (inner, third) = (line.clone(), tell(3));
        assert!(!line.add(move || assert!(!inner.add(third), "who is there does this one too")));
        let worker = thread::spawn({
            let line = line.clone();
            move || {
                line.work();
                thread::current().id()
            }
        });
        let worker = worker.join().expect("the line has an end");
        assert_eq!(hear.try_iter().collect::<Vec<_>>(), [(1, worker), (2, worker), (3, worker)]);
        assert!(line.add(tell(4)), "nobody is there any more");
    }

    #[test]
    fn after_a_panic_the_rest_is_dropped_and_the_line_goes_on() {
        let line = Line::default();
        let (told, hear) = mpsc::channel::<u32>();
        assert!(line.add(|| panic!("on purpose")));
        assert!(!line.add(move || told.send(1).expect("heard")));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| line.work())).is_err());
        assert_eq!(hear.recv(), Err(mpsc::RecvError), "the job behind it is gone, and whoever waits for it knows");
        assert!(line.add(|| ()), "nobody is there any more");
        line.work();
    }
}
