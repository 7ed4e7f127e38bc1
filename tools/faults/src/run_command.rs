//! C1 and C2: the command line client under faults. Many `exec-server run` while the link is cut or the server killed.
//!
//! Each run must end as if nothing had happened: its output, its stderr, its exit code and the input that its program read.

use super::lanes::{self, Lanes};
use crate::prelude::*;
use exec_server_harness::relay::RelayTally;

/// C1: links are cut at any byte in either direction, also in handshakes, starts and ends.
pub(super) fn cuts(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let (wanted, parallel) = (setting.pick(60, 1000, 20_000), setting.pick(6, 20, 20));
    let mut random = setting.random("C1");
    // The client uses the proxy's port in `Host`, which is not the server's own.
    let setup = Setup::new(&setting.binary)?.arg("--allow-host").arg("127.0.0.1");
    let server = setup.start()?;
    let proxy = Proxy::start(server.address.socket, random.next(), |random| lanes::cut_plan(random, 1 << 20))?;
    let url = server.address.url_through(proxy.address());
    let lane = |lanes: &Lanes, random| parallel_runs::lane(lanes, &setting.binary, &url, random);
    let (cuts, tallies) = Lanes::new()
        .run(parallel, random, lane, |lanes| Ok(lanes.wait_for_cuts(&proxy, wanted)))
        .with_context(|| format!("after {} cuts; the server says: {}", proxy.count(), setup.log_tail()))?;
    ensure!(cuts >= wanted, "only {cuts} of {wanted} cuts in the time there is");
    parallel_runs::finish(&setup, server)?;
    figures(cuts, parallel, &tallies)
}

/// C2: the server is killed at any moment and restarted on its port and state directory.
pub(super) fn kills(setting: &FaultSetting) -> Result<Vec<Figures>> {
    const PARALLEL: u64 = 4;
    let wanted = setting.pick(10, 200, 2000);
    let mut random = setting.random("C2");
    let (setup, server) = Setup::started(&setting.binary)?;
    let url = server.address.url.clone();
    let mut times = random.fork();
    let lane = |lanes: &Lanes, random| parallel_runs::lane(lanes, &setting.binary, &url, random);
    let nemesis = |lanes: &Lanes| kill_often(&setup, server, &mut times, wanted, lanes);
    let ((server, killed), tallies) = Lanes::new()
        .run(PARALLEL, random, lane, nemesis)
        .with_context(|| format!("the server says: {}", setup.log_tail()))?;
    ensure!(killed >= wanted, "only {killed} of {wanted} kills in the time there is");
    parallel_runs::finish(&setup, server)?;
    figures(killed, PARALLEL, &tallies)
}

fn figures(injected: u64, parallel: u64, tallies: &[RelayTally]) -> Result<Vec<Figures>> {
    let mut sum = RelayTally::default();
    tallies.iter().for_each(|tally| sum += *tally);
    Figures::survived(injected)
        .set("parallel", parallel)
        .set("runs", sum.runs)
        .set("bytes", sum.bytes)
        .set("quiet_lines", sum.quiet)
        .only_line()
}

fn kill_often(
    setup: &Setup,
    mut server: Server,
    random: &mut Random,
    wanted: u64,
    lanes: &Lanes,
) -> Result<(Server, u64)> {
    let mut killed = 0;
    while killed < wanted && !lanes.is_over() {
        // Sometimes wait long enough for whole runs, and for the reconnect backoff to become short again.
        let longest = if random.one_in(4) { 1500 } else { 250 };
        thread::sleep(Duration::from_millis(random.between(5, longest)));
        server.kill()?;
        killed += 1;
        killed += setup.kill_starting(random, wanted - killed)?;
        server = setup.start().with_context(|| format!("after {killed} kills"))?;
    }
    Ok((server, killed))
}
