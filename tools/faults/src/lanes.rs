//! Lanes that work in parallel while a nemesis injects faults into the link or the server.
//!
//! The nemesis decides when the lanes end, and a lane that fails ends all.

use crate::prelude::*;
use exec_server_chaos::Way;
use exec_server_harness::relay::RelayWatch;

/// Time limit of a nemesis; one that takes longer is stuck.
const LONGEST: Duration = Duration::from_secs(45 * 60);

/// What the lanes and the nemesis of a run share.
pub(super) struct Lanes {
    /// Its end is set when enough faults were injected, or when a lane failed.
    pub(super) watch: RelayWatch,
    begun: Instant,
    next_id: AtomicU64,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self { watch: RelayWatch::default(), begun: Instant::now(), next_id: AtomicU64::new(1) }
    }

    /// Runs `count` lanes while the nemesis works. The nemesis returns when it has done enough. Both must check `is_over` regularly.
    pub(super) fn run<T, L: Send>(
        &self,
        count: u64,
        mut random: Random,
        lane: impl Fn(&Self, Random) -> Result<L> + Sync,
        nemesis: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<(T, Vec<L>)> {
        let lane = &lane;
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..count)
                .map(|_| {
                    let random = random.fork();
                    scope.spawn(move || {
                        let outcome = lane(self, random);
                        self.watch.over.fetch_or(outcome.is_err(), Ordering::Relaxed);
                        outcome
                    })
                })
                .collect();
            let done = nemesis(self);
            self.watch.over.store(true, Ordering::Relaxed);
            let joined = lanes.into_iter().map(|lane| lane.join().expect("a lane does not panic"));
            let outcomes = joined.collect::<Result<_>>()?;
            Ok((done?, outcomes))
        })
    }

    /// Whether the lanes must end; then the nemesis stops as well.
    pub(super) fn is_over(&self) -> bool {
        self.watch.over.load(Ordering::Relaxed) || self.begun.elapsed() > LONGEST
    }

    /// A number for the next program, unique in this run.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The nemesis that waits until the proxy has cut enough links; returns how many.
    pub(super) fn wait_for_cuts(&self, proxy: &Proxy, wanted: u64) -> u64 {
        while proxy.count() < wanted && !self.is_over() {
            thread::sleep(Duration::from_millis(2));
        }
        proxy.disarm();
        proxy.count()
    }
}

/// Half of the cuts hit the client's data, and all come before byte `most`. One in six comes within the first bytes: the upgrade,
/// `initialize`, the resume and repeated requests. More of these would make the client back off longer and longer instead of working.
pub(super) fn cut_plan(random: &mut Random, most: u64) -> Plan {
    let byte = match random.between(0, 6) {
        0 => random.between(1, 2500),
        1 | 2 => random.between(2500, 64 << 10),
        _ => random.between(64 << 10, most),
    };
    let way = if random.one_in(2) { Way::Down } else { Way::Up };
    Plan::default().at(way, byte, Event::any_cut(random))
}
