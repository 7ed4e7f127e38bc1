//! F2: the server is repeatedly killed with SIGKILL under load and restarted on the same state directory and port.
//!
//! One kill in eight hits the new server while it starts. No byte, process, exit code or pid may change.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use exec_server_harness::{
    Random,
    server::{Server, Setup},
    wire::WireClient,
};
use serde_json::json;

use super::{
    FaultScale, FaultSetting, Figures, ensure_p99,
    figures::percentile,
    link_cuts,
    producer_load::{ProducerLoad, is_lost},
};

/// Limit for the time from the start of a server until it has adopted its sessions and one was resumed, with eight producers running.
const ADOPTED_MS: f64 = 50.0;

/// Concurrent producers.
const LANES: usize = 8;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let wanted = setting.pick(40, 200, 2000);
    let mut random = setting.random("F2");
    let setup = Setup::new(&setting.binary)?;
    let mut server = setup.start()?;
    let mut load = ProducerLoad::new(random.fork(), LANES)?;
    let mut wire = load.attach(&server.address)?;
    let mut times = Vec::new();
    let mut killed = 0;
    while killed < wanted {
        let until = Instant::now() + Duration::from_millis(random.between(5, 120));
        flow(&mut load, &mut wire, &server, |_| Instant::now() >= until)
            .with_context(|| format!("after {killed} kills; the server says: {}", setup.log_tail()))?;
        server.kill()?;
        killed += 1;
        let again = restart(&setup, &mut random, &mut load, wanted - killed)
            .with_context(|| format!("after {killed} kills; the server says: {}", setup.log_tail()))?;
        killed += again.killed;
        times.push(again.millis);
        (server, wire) = (again.server, again.wire);
    }
    load.stop_refilling();
    flow(&mut load, &mut wire, &server, ProducerLoad::is_done).context("after the last kill")?;
    wire.call("session/end", &json!({})).context("end the session")?;
    setup.finish(server)?;
    let figures =
        Figures::default().survived(killed).set("bytes", load.bytes).set("processes", load.ended).times(&mut times);
    let middle = percentile(&times, 50);
    ensure!(middle <= ADOPTED_MS, "adoption takes {middle:.1} ms in the middle, promised {ADOPTED_MS} ms");
    // With forty kills the 99th percentile is the worst one, and CI shares its cores with other work.
    if !matches!(setting.scale, FaultScale::Ci) {
        ensure_p99(&times, ADOPTED_MS, "adoption")?;
    }
    Ok(vec![figures.set("p50_ms", format!("{middle:.1}"))])
}

/// Handles messages until `stop`. A lost link is an error here, because the server was not killed.
pub(super) fn flow(
    load: &mut ProducerLoad,
    wire: &mut WireClient,
    server: &Server,
    stop: impl Fn(&ProducerLoad) -> bool,
) -> Result<()> {
    while !stop(load) {
        match load.step(wire) {
            Ok(()) => {}
            Err(error) if is_lost(&error) => {
                return Err(error.context(format!("the server (pid {}) was not killed", server.pid())));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A server that took over, and the time from its start until the session was resumed.
struct RestartedServer {
    server: Server,
    wire: WireClient,
    millis: f64,
    killed: u64,
}

fn restart(setup: &Setup, random: &mut Random, load: &mut ProducerLoad, left: u64) -> Result<RestartedServer> {
    let mut killed = 0;
    while killed < left && random.one_in(8) {
        let launched = setup.launch()?;
        std::thread::sleep(Duration::from_millis(random.between(0, 25)));
        launched.kill()?;
        killed += 1;
    }
    let begun = Instant::now();
    let server = setup.start()?;
    let (mut wire, millis) = link_cuts::resume(load, &server.address, begun)?;
    load.check_pids(&mut wire)?;
    Ok(RestartedServer { server, wire, millis, killed })
}
