//! The wake-up protocol, which never loses a wake-up. Independent of the layout of a log and of the eventfd.
//!
//! Level one, per log: a reader at the end sets the log's waiting flag, then checks for events again. The writer
//! commits, then clears the flag.
//!
//! Level two, per session: a writer that found a log's flag set marks the log as dirty, then clears the session's
//! waiting flag. If that was set too, the writer must write the eventfd. The reader sets the session's flag, then checks
//! the dirty bits again, before it sleeps.
//!
//! A reader that is behind has not set its flag, so it costs the writer only a fence and a load.
//!
//! Each side stores, executes a fence, then loads what the other side stores. The two SeqCst fences have a total order,
//! so at least one side sees the store of the other. With release and acquire alone, both sides could miss it: a lost
//! wake-up.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Sets `waiting` and checks again. True means that there is news and the caller must not sleep.
pub(crate) fn arm(waiting: &AtomicU32, has_news: impl FnOnce() -> bool) -> bool {
    // Both sides use swaps, not plain stores: then all changes of the flag form one chain of read-modify-writes, which
    // the model checker can follow.
    waiting.swap(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    let news = has_news();
    if news {
        // The reader will not sleep: clear the flag to save the writer a wake-up. If the writer cleared it first, its
        // wake-up is only spurious.
        waiting.swap(0, Ordering::AcqRel);
    }
    news
}

/// Clears the flag that `arm` sets. The writer calls this after it has stored something for the reader. True means that
/// the reader waits and must be woken.
pub(crate) fn disarm(waiting: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    // The load keeps the cache line shared while no reader waits. The fence above already orders it.
    waiting.load(Ordering::Relaxed) != 0 && waiting.swap(0, Ordering::AcqRel) != 0
}

/// Marks log `bit` as dirty if its reader waits. True means that the caller must write the eventfd.
///
/// Call it after storing the commit.
pub(crate) fn notify(log_waiting: &AtomicU32, dirty: &AtomicU64, bit: u32, session_waiting: &AtomicU32) -> bool {
    if !disarm(log_waiting) {
        return false;
    }
    dirty.fetch_or(1 << bit, Ordering::AcqRel);
    disarm(session_waiting)
}

/// Returns and clears all dirty bits of one word.
pub(crate) fn take_bits(dirty: &AtomicU64) -> u64 {
    if dirty.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    dirty.swap(0, Ordering::AcqRel)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::{
        sync::{
            Arc, Condvar, Mutex,
            atomic::{AtomicU32, AtomicU64, Ordering},
        },
        thread,
    };

    use super::*;

    /// Stands in for the eventfd: a counter to wait on. Loom reports a reader that never wakes as a deadlock.
    #[derive(Default)]
    struct FakeEventfd {
        rung: Mutex<u64>,
        changed: Condvar,
    }

    impl FakeEventfd {
        fn ring(&self) {
            *self.rung.lock().unwrap() += 1;
            self.changed.notify_one();
        }

        fn wait(&self) {
            let mut rung = self.rung.lock().unwrap();
            while *rung == 0 {
                rung = self.changed.wait(rung).unwrap();
            }
            *rung = 0;
        }
    }

    struct FakeSession {
        commit: [AtomicU64; 2],
        log_waiting: [AtomicU32; 2],
        dirty: AtomicU64,
        waiting: AtomicU32,
        bell: FakeEventfd,
    }

    impl FakeSession {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                commit: [AtomicU64::new(0), AtomicU64::new(0)],
                log_waiting: [AtomicU32::new(0), AtomicU32::new(0)],
                dirty: AtomicU64::new(0),
                waiting: AtomicU32::new(0),
                bell: FakeEventfd::default(),
            })
        }

        fn append(&self, log: usize) {
            let next = self.commit[log].load(Ordering::Relaxed) + 1;
            self.commit[log].store(next, Ordering::Release);
            let bit = u32::try_from(log).unwrap();
            if notify(&self.log_waiting[log], &self.dirty, bit, &self.waiting) {
                self.bell.ring();
            }
        }
    }

    #[test]
    fn loom_level_one_never_sleeps_on_news() {
        loom::model(|| {
            let session = FakeSession::new();
            let writer = {
                let session = session.clone();
                thread::spawn(move || {
                    for next in 1..=2 {
                        session.commit[0].store(next, Ordering::Release);
                        if disarm(&session.log_waiting[0]) {
                            session.bell.ring();
                        }
                    }
                })
            };
            let mut seen = 0;
            while seen < 2 {
                let now = session.commit[0].load(Ordering::Acquire);
                if now != seen {
                    seen = now;
                } else if !arm(&session.log_waiting[0], || session.commit[0].load(Ordering::Acquire) != seen) {
                    session.bell.wait();
                }
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_both_levels_never_sleep_on_news() {
        let mut model = loom::model::Builder::new();
        // Three preemptions reach every pairing of the two fences on each level. An unbounded search takes hours.
        model.preemption_bound = Some(3);
        model.check(|| {
            let session = FakeSession::new();
            let writer = {
                let session = session.clone();
                thread::spawn(move || {
                    session.append(0);
                    session.append(1);
                })
            };
            let mut seen = [0_u64; 2];
            let mut ready = 0b11_u64;
            while seen != [1, 1] {
                for log in 0..2 {
                    if ready & (1 << log) == 0 {
                        continue;
                    }
                    loop {
                        let now = session.commit[log].load(Ordering::Acquire);
                        if now != seen[log] {
                            seen[log] = now;
                        } else if !arm(&session.log_waiting[log], || {
                            session.commit[log].load(Ordering::Acquire) != seen[log]
                        }) {
                            break;
                        }
                    }
                }
                if seen == [1, 1] {
                    break;
                }
                ready = take_bits(&session.dirty);
                if ready == 0 && !arm(&session.waiting, || session.dirty.load(Ordering::Acquire) != 0) {
                    session.bell.wait();
                }
            }
            writer.join().unwrap();
        });
    }
}
