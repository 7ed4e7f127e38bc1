//! C1 and C2: the command line client under faults. Many `exec-server run` while the link is cut or the server killed.
//!
//! Each run must end as if nothing had happened: its output, its stderr, its exit code and the input that its program read.

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use exec_server_chaos::{Event, Plan, Proxy, Way};
use exec_server_harness::{
    Random,
    relay::RelayTally,
    server::{Server, Setup},
};

use super::{
    FaultSetting, Figures,
    parallel_runs::{self, LaneRunner},
};

/// C1: links are cut at any byte in either direction, also in handshakes, starts and ends.
pub(super) fn cuts(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let (wanted, parallel) = (setting.pick(60, 1000, 20_000), setting.pick(6, 20, 20));
    let mut random = setting.random("C1");
    // The client uses the proxy's port in `Host`, which is not the server's own.
    let setup = Setup::new(&setting.binary)?.arg("--allow-host").arg("127.0.0.1");
    let server = setup.start()?;
    let proxy = Proxy::start(server.address.socket, random.next(), plan)?;
    let url = through(&server.address.url, server.address.socket, proxy.address());
    let nemesis = |lanes: &LaneRunner| {
        while proxy.count() < wanted && !lanes.is_over() {
            thread::sleep(Duration::from_millis(2));
        }
        proxy.disarm();
        Ok(proxy.count())
    };
    let (cuts, tally) = LaneRunner::new()
        .run(&setting.binary, &url, (parallel, random), nemesis)
        .with_context(|| format!("after {} cuts; the server says: {}", proxy.count(), setup.log_tail()))?;
    ensure!(cuts >= wanted, "only {cuts} of {wanted} cuts in the time there is");
    parallel_runs::finish(&setup, server)?;
    Ok(vec![figures(cuts, parallel, tally)])
}

/// C2: the server is killed at any moment and restarted on its port and state directory.
pub(super) fn kills(setting: &FaultSetting) -> Result<Vec<Figures>> {
    const PARALLEL: u64 = 4;
    let wanted = setting.pick(10, 200, 2000);
    let mut random = setting.random("C2");
    let setup = Setup::new(&setting.binary)?;
    let server = setup.start()?;
    let url = server.address.url.clone();
    let mut times = random.fork();
    let nemesis = |lanes: &LaneRunner| kill_often(&setup, server, &mut times, wanted, lanes);
    let ((server, killed), tally) = LaneRunner::new()
        .run(&setting.binary, &url, (PARALLEL, random), nemesis)
        .with_context(|| format!("the server says: {}", setup.log_tail()))?;
    ensure!(killed >= wanted, "only {killed} of {wanted} kills in the time there is");
    parallel_runs::finish(&setup, server)?;
    Ok(vec![figures(killed, PARALLEL, tally)])
}

fn figures(injected: u64, parallel: u64, tally: RelayTally) -> Figures {
    Figures::default()
        .survived(injected)
        .set("parallel", parallel)
        .set("runs", tally.runs)
        .set("bytes", tally.bytes)
        .set("quiet_lines", tally.quiet)
}

/// The same URL with the proxy's port.
fn through(url: &str, server: SocketAddr, proxy: SocketAddr) -> String {
    url.replacen(&server.to_string(), &proxy.to_string(), 1)
}

/// Half of the cuts hit the client's data. One in six comes within the first bytes: the upgrade, `initialize`, the resume and repeated
/// requests. More of these would make the client back off longer and longer instead of working.
fn plan(random: &mut Random) -> Plan {
    let byte = match random.between(0, 6) {
        0 => random.between(1, 2500),
        1 | 2 => random.between(2500, 64 << 10),
        _ => random.between(64 << 10, 1 << 20),
    };
    let way = if random.one_in(2) { Way::Down } else { Way::Up };
    Plan::default().at(way, byte, Event::any_cut(random))
}

fn kill_often(
    setup: &Setup,
    mut server: Server,
    random: &mut Random,
    wanted: u64,
    lanes: &LaneRunner,
) -> Result<(Server, u64)> {
    let mut killed = 0;
    while killed < wanted && !lanes.is_over() {
        // Sometimes wait long enough for whole runs, and for the reconnect backoff to become short again.
        let longest = if random.one_in(4) { 1500 } else { 250 };
        thread::sleep(Duration::from_millis(random.between(5, longest)));
        server.kill()?;
        killed += 1;
        while killed < wanted && random.one_in(8) {
            let launched = setup.launch()?;
            thread::sleep(Duration::from_millis(random.between(0, 25)));
            launched.kill()?;
            killed += 1;
        }
        server = setup.start().with_context(|| format!("after {killed} kills"))?;
    }
    Ok((server, killed))
}
