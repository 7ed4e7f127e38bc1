//! Many parallel `exec-server run`, each in a lane that starts the next run when one has ended.
//!
//! `relay` knows what a run transfers and checks it.

use super::lanes::Lanes;
use crate::prelude::*;
use exec_server_harness::relay::{self, RelayJob, RelayTally};

/// Bytes transferred by a run: mostly within this range, so that faults also hit starts and ends.
const RUN_BYTES: std::ops::Range<u64> = 64 << 10..6 << 20;

/// Runs programs at this URL, one after the other, until the lanes end.
pub(super) fn lane(lanes: &Lanes, binary: &Path, url: &str, mut random: Random) -> Result<RelayTally> {
    let mut tally = RelayTally::default();
    while !lanes.is_over() {
        // One run in four is a conversation with pauses; the others transfer as much as they can.
        let (most, pause) = if random.one_in(4) { (256 << 10, 30) } else { (RUN_BYTES.end, 0) };
        let job = RelayJob {
            id: lanes.next_id(),
            count: random.between(RUN_BYTES.start, most) / RECORD,
            random: random.fork(),
            pause: Duration::from_millis(pause),
        };
        tally += relay::execute(&mut run(binary, url), job, &lanes.watch)?;
    }
    Ok(tally)
}

/// `exec-server run` at this URL, without the program.
pub(super) fn run(binary: &Path, url: &str) -> Command {
    // A run may begin while the server is down; without `--wait` that is reported at once.
    connected(binary, &["run", "--wait", "10s"], url)
}

/// `exec-server` with these arguments and this URL. The token is passed as the documentation recommends.
pub(super) fn connected(binary: &Path, args: &[&str], url: &str) -> Command {
    let mut command = Command::new(binary);
    command.args(args);
    match url.split_once("?token=") {
        Some((plain, token)) => command.args(["--connect", plain]).env("EXEC_SERVER_TOKEN", token),
        None => command.args(["--connect", url]),
    };
    command
}

/// Checks that no process is listed, because each run ended its session, even after faults of the link. Then shuts the server down.
pub(super) fn finish(setup: &Setup, server: Server) -> Result<()> {
    let (mut wire, _) = WireClient::session(&server.address)?;
    let mut left = Vec::new();
    let waited = try_until("no process is listed", Duration::from_secs(5), || {
        left = wire.list_all()?;
        Ok(left.is_empty())
    });
    ensure!(left.is_empty(), "left on the server: {left:?}");
    waited?;
    wire.end_session()?;
    setup.finish(server)
}
