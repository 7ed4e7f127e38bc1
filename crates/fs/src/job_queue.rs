//! A queue of jobs that run in order, on one thread at a time.
//!
//! Threads that all need the same draft would only wait for each other, and wake each other for every block. Instead, a caller adds its job
//! to the queue, and the thread that is already working runs it too.

use std::{collections::VecDeque, fmt};

use parking_lot::Mutex;

type Job = Box<dyn FnOnce() + Send>;

/// A queue of jobs. It is unbounded; the callers limit how much they add.
#[derive(Default)]
pub struct JobQueue {
    state: Mutex<JobQueueState>,
}

#[derive(Default)]
struct JobQueueState {
    waiting: VecDeque<Job>,
    is_running: bool,
}

impl JobQueue {
    /// Adds a job at the end. Returns true if no thread is working on the queue: the caller must then have a thread call [`JobQueue::run`].
    #[must_use]
    pub fn enqueue(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.state.lock();
        state.waiting.push_back(Box::new(job));
        !std::mem::replace(&mut state.is_running, true)
    }

    /// Runs all jobs in the queue, including those added in the meantime, and returns when it is empty. If a job panics, the jobs behind it
    /// are dropped without being run.
    pub fn run(&self) {
        let guard = ClearOnPanic(self);
        while let Some(job) = self.next() {
            job();
        }
        std::mem::forget(guard);
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        let job = state.waiting.pop_front();
        state.is_running = job.is_some();
        job
    }
}

impl fmt::Debug for JobQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobQueue").field("waiting", &self.state.lock().waiting.len()).finish_non_exhaustive()
    }
}

/// Empties the queue if a job panics, so that the next `enqueue` starts with a clean state.
struct ClearOnPanic<'a>(&'a JobQueue);

impl Drop for ClearOnPanic<'_> {
    fn drop(&mut self) {
        let abandoned = std::mem::take(&mut *self.0.state.lock());
        // Drop the jobs after the lock is released: dropping a job runs code of its owner.
        drop(abandoned);
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
    fn the_running_thread_also_runs_later_jobs_in_order() {
        let queue = Arc::new(JobQueue::default());
        let (report_tx, reports) = mpsc::channel();
        let report = |number: u32| {
            let report_tx = report_tx.clone();
            move || report_tx.send((number, thread::current().id())).expect("the receiver is alive")
        };
        assert!(queue.enqueue(report(1)), "no thread is running the queue yet");
        assert!(!queue.enqueue(report(2)), "the first caller will run the queue");
        let (inner, third) = (queue.clone(), report(3));
        assert!(!queue.enqueue(move || assert!(!inner.enqueue(third), "the running thread takes this job too")));
        let worker = thread::spawn({
            let queue = queue.clone();
            move || {
                queue.run();
                thread::current().id()
            }
        });
        let worker = worker.join().expect("the queue runs empty");
        assert_eq!(reports.try_iter().collect::<Vec<_>>(), [(1, worker), (2, worker), (3, worker)]);
        assert!(queue.enqueue(report(4)), "the queue is idle again");
    }

    #[test]
    fn a_panic_drops_the_waiting_jobs_and_the_queue_stays_usable() {
        let queue = JobQueue::default();
        let (report_tx, reports) = mpsc::channel::<u32>();
        assert!(queue.enqueue(|| panic!("on purpose")));
        assert!(!queue.enqueue(move || report_tx.send(1).expect("the receiver is alive")));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.run())).is_err());
        assert_eq!(reports.recv(), Err(mpsc::RecvError), "the job behind the panic was dropped");
        assert!(queue.enqueue(|| ()), "the queue is idle again");
        queue.run();
    }
}
