//! Many `exec-server run` beside each other, each in a lane that begins the next when one has ended.
//!
//! Owns the lanes' common end: the nemesis says when it is over, and a lane that fails ends all. What a run moves and whether it
//! came back whole is `relay`'s to know; what befalls the link or the server is the nemesis's.

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::relay::{self, Job, Tally, Watch};
use crate::{
    children::RECORD,
    random::Random,
    server::{Server, Setup},
    wire::{Address, Wire},
};

/// What a run moves: mostly between these numbers of bytes, so that starts and ends meet the faults as well.
const RUN_BYTES: std::ops::Range<u64> = 64 << 10..6 << 20;

/// No nemesis takes longer; what does is stuck.
const LONGEST: Duration = Duration::from_secs(45 * 60);

/// What lanes share.
pub(super) struct Lanes {
    /// Its end is set when enough has been injected, or when a lane failed; all lanes look at the one.
    watch: Watch,
    next_id: AtomicU64,
    begun: Instant,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self { watch: Watch::default(), next_id: AtomicU64::new(1), begun: Instant::now() }
    }

    /// Runs `count` lanes of runs at this URL while the nemesis works. It returns when it has done enough, and must look at
    /// `is_over` meanwhile.
    pub(super) fn run<T>(
        &self,
        binary: &Path,
        url: &str,
        (count, mut random): (u64, Random),
        nemesis: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<(T, Tally)> {
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..count)
                .map(|_| {
                    let random = random.fork();
                    scope.spawn(move || self.lane(binary, url, random))
                })
                .collect();
            let done = nemesis(self);
            self.watch.over.store(true, Ordering::Relaxed);
            let mut tally = Tally::default();
            for lane in lanes {
                tally += lane.join().expect("a lane does not panic")?;
            }
            Ok((done?, tally))
        })
    }

    /// Whether the lanes are to end; the nemesis stops then as well.
    pub(super) fn is_over(&self) -> bool {
        self.watch.over.load(Ordering::Relaxed) || self.begun.elapsed() > LONGEST
    }

    fn lane(&self, binary: &Path, url: &str, mut random: Random) -> Result<Tally> {
        let mut tally = Tally::default();
        while !self.is_over() {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            // One run in four is a conversation with pauses; the others move as much as they can.
            let (most, pause) = if random.one_in(4) { (256 << 10, 30) } else { (RUN_BYTES.end, 0) };
            let job = Job {
                id,
                count: random.between(RUN_BYTES.start, most) / RECORD,
                random: random.fork(),
                pause: Duration::from_millis(pause),
            };
            let done = relay::carry_out(&mut run(binary, url), job, &self.watch);
            if done.is_err() {
                self.watch.over.store(true, Ordering::Relaxed);
            }
            tally += done?;
        }
        Ok(tally)
    }
}

/// `exec-server run` at this URL, without the program. The token is handed over as the documents recommend.
pub(super) fn run(binary: &Path, url: &str) -> Command {
    let mut command = Command::new(binary);
    // A run may begin while the server is down; without the flag that is reported at once.
    command.args(["run", "--wait", "10s"]);
    match url.split_once("?token=") {
        Some((plain, token)) => command.args(["--connect", plain]).env("EXEC_SERVER_TOKEN", token),
        None => command.args(["--connect", url]),
    };
    command
}

/// No process is listed any more: each run ended its session, whatever happened to the link. Then the server ends in order.
pub(super) fn finish(setup: &Setup, server: Server) -> Result<()> {
    let left = listed(&server.address)?;
    ensure!(left.is_empty(), "left on the server: {left:?}");
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))
}

fn listed(address: &Address) -> Result<Vec<String>> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let (mut wire, _) = Wire::session(address)?;
    loop {
        let list = wire.call("process/list", &json!({ "scope": "all" }))?;
        let entries = list["processes"].as_array().context("`process/list` gave no `processes`")?;
        if entries.is_empty() || Instant::now() > deadline {
            wire.call("session/end", &json!({}))?;
            return Ok(entries.iter().map(ToString::to_string).collect());
        }
        thread::sleep(Duration::from_millis(50));
    }
}
