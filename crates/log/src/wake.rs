//! The wake-up protocol, both levels, and nothing else: it knows no layout, no log and no eventfd.
//!
//! Level one, per log: a reader at the end raises the log's flag, then looks again; the writer commits, then takes the flag.
//! Level two, per session: the writer that took a log's flag sets its dirty bit, then takes the session's flag; whoever takes
//! that one owes the eventfd a write. A reader that is behind has raised nothing and costs the writer one load.
//!
//! Each side stores, fences, then loads what the other stores. The two SeqCst fences are ordered one way or the other, so at
//! least one side sees the other's store; with release and acquire alone both may miss, which is the lost wake-up.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Raises `waiting` and asks once more; true means that there is news and the caller must not sleep.
pub(crate) fn arm(waiting: &AtomicU32, has_news: impl FnOnce() -> bool) -> bool {
    // Swaps on both sides, no plain store: so the changes of the flag form one chain that the model checker can follow.
    waiting.swap(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    let news = has_news();
    if news {
        // Not going to sleep: spare the writer a wake-up. If it took the flag in between, its wake-up is merely idle.
        waiting.swap(0, Ordering::AcqRel);
    }
    news
}

/// Takes the flag of a reader after something was stored for it; true means that it must be told.
pub(crate) fn take(waiting: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    // The load keeps the cache line shared while nobody waits; the fence has ordered it already.
    waiting.load(Ordering::Relaxed) != 0 && waiting.swap(0, Ordering::AcqRel) != 0
}

/// Passes news of log `bit` up to the session; true means that the eventfd must be written.
///
/// Call after the commit was stored.
pub(crate) fn notify(log_waiting: &AtomicU32, dirty: &AtomicU64, bit: u32, session_waiting: &AtomicU32) -> bool {
    if !take(log_waiting) {
        return false;
    }
    dirty.fetch_or(1 << bit, Ordering::AcqRel);
    take(session_waiting)
}

/// Takes all dirty bits of one word.
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

    /// Stands for the eventfd: a counter to wait on. Loom reports a reader that waits for ever as a deadlock.
    #[derive(Default)]
    struct Bell {
        rung: Mutex<u64>,
        changed: Condvar,
    }

    impl Bell {
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

    struct Session {
        commit: [AtomicU64; 2],
        log_waiting: [AtomicU32; 2],
        dirty: AtomicU64,
        waiting: AtomicU32,
        bell: Bell,
    }

    impl Session {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                commit: [AtomicU64::new(0), AtomicU64::new(0)],
                log_waiting: [AtomicU32::new(0), AtomicU32::new(0)],
                dirty: AtomicU64::new(0),
                waiting: AtomicU32::new(0),
                bell: Bell::default(),
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
            let session = Session::new();
            let writer = {
                let session = session.clone();
                thread::spawn(move || {
                    for next in 1..=2 {
                        session.commit[0].store(next, Ordering::Release);
                        if take(&session.log_waiting[0]) {
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
        // Three preemptions reach every pairing of the two fences on each level; unbounded takes hours.
        model.preemption_bound = Some(3);
        model.check(|| {
            let session = Session::new();
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
