//! Many parallel `exec-server run`, each in a lane that starts the next run when one has ended.
//!
//! The nemesis decides when the lanes end, and a lane that fails ends all. `relay` knows what a run transfers and checks it; the nemesis
//! injects the faults into the link or the server.

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use exec_server_harness::{
    Random,
    records::RECORD,
    relay::{self, RelayJob, RelayTally, RelayWatch},
    server::{Server, Setup},
    wire::{ServerAddress, WireClient},
};
use serde_json::json;

/// Bytes transferred by a run: mostly within this range, so that faults also hit starts and ends.
const RUN_BYTES: std::ops::Range<u64> = 64 << 10..6 << 20;

/// Time limit of a nemesis; one that takes longer is stuck.
const LONGEST: Duration = Duration::from_secs(45 * 60);

/// The state that lanes share.
pub(super) struct LaneRunner {
    /// Its end is set when enough faults were injected, or when a lane failed; all lanes check it.
    watch: RelayWatch,
    next_id: AtomicU64,
    begun: Instant,
}

impl LaneRunner {
    pub(super) fn new() -> Self {
        Self { watch: RelayWatch::default(), next_id: AtomicU64::new(1), begun: Instant::now() }
    }

    /// Runs `count` lanes at this URL while the nemesis works. The nemesis returns when it has done enough, and must check `is_over`
    /// regularly.
    pub(super) fn run<T>(
        &self,
        binary: &Path,
        url: &str,
        (count, mut random): (u64, Random),
        nemesis: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<(T, RelayTally)> {
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..count)
                .map(|_| {
                    let random = random.fork();
                    scope.spawn(move || self.lane(binary, url, random))
                })
                .collect();
            let done = nemesis(self);
            self.watch.over.store(true, Ordering::Relaxed);
            let mut tally = RelayTally::default();
            for lane in lanes {
                tally += lane.join().expect("a lane does not panic")?;
            }
            Ok((done?, tally))
        })
    }

    /// Whether the lanes must end; then the nemesis stops as well.
    pub(super) fn is_over(&self) -> bool {
        self.watch.over.load(Ordering::Relaxed) || self.begun.elapsed() > LONGEST
    }

    fn lane(&self, binary: &Path, url: &str, mut random: Random) -> Result<RelayTally> {
        let mut tally = RelayTally::default();
        while !self.is_over() {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            // One run in four is a conversation with pauses; the others transfer as much as they can.
            let (most, pause) = if random.one_in(4) { (256 << 10, 30) } else { (RUN_BYTES.end, 0) };
            let job = RelayJob {
                id,
                count: random.between(RUN_BYTES.start, most) / RECORD,
                random: random.fork(),
                pause: Duration::from_millis(pause),
            };
            let done = relay::execute(&mut run(binary, url), job, &self.watch);
            if done.is_err() {
                self.watch.over.store(true, Ordering::Relaxed);
            }
            tally += done?;
        }
        Ok(tally)
    }
}

/// `exec-server run` at this URL, without the program. The token is passed as the documentation recommends.
pub(super) fn run(binary: &Path, url: &str) -> Command {
    let mut command = Command::new(binary);
    // A run may begin while the server is down; without `--wait` that is reported at once.
    command.args(["run", "--wait", "10s"]);
    match url.split_once("?token=") {
        Some((plain, token)) => command.args(["--connect", plain]).env("EXEC_SERVER_TOKEN", token),
        None => command.args(["--connect", url]),
    };
    command
}

/// Checks that no process is listed, because each run ended its session, even after faults of the link. Then shuts the server down.
pub(super) fn finish(setup: &Setup, server: Server) -> Result<()> {
    let left = listed(&server.address)?;
    ensure!(left.is_empty(), "left on the server: {left:?}");
    setup.finish(server)
}

fn listed(address: &ServerAddress) -> Result<Vec<String>> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let (mut wire, _) = WireClient::session(address)?;
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
