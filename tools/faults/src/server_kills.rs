//! F2: the server is repeatedly killed with SIGKILL under load and restarted on the same state directory and port.
//!
//! One kill in eight hits the new server while it starts. No byte, process, exit code or pid may change.

use super::{FaultScale, ensure_p99};
use crate::prelude::*;

/// Limit for the time from the start of a server until it has adopted its sessions and one was resumed, with eight producers running.
const ADOPTED_MS: f64 = 50.0;

/// Concurrent producers.
const LANES: usize = 8;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let wanted = setting.pick(40, 200, 2000);
    let mut random = setting.random("F2");
    let (setup, mut server) = Setup::started(&setting.binary)?;
    let mut load = ProducerLoad::new(random.fork(), LANES)?;
    load.attach(&server.address)?;
    let mut times = Vec::new();
    let mut killed = 0;
    while killed < wanted {
        let context = || format!("after {killed} kills; the server says: {}", setup.log_tail());
        let until = Instant::now() + Duration::from_millis(random.between(5, 120));
        load.flow(&server, |_| Instant::now() >= until).with_context(context)?;
        server.kill()?;
        let more = 1 + setup.kill_starting(&mut random, wanted - killed - 1).with_context(context)?;
        let begun = Instant::now();
        server = setup.start().with_context(context)?;
        times.push(load.resume_restarted(&server, begun).with_context(context)?);
        killed += more;
    }
    load.finish(&server)?;
    setup.finish(server)?;
    let figures = Figures::survived(killed).set("bytes", load.bytes).set("processes", load.ended).times(&mut times);
    let middle = percentile(&times, 50);
    ensure!(middle <= ADOPTED_MS, "adoption takes {middle:.1} ms in the middle, promised {ADOPTED_MS} ms");
    // With forty kills the 99th percentile is the worst one, and CI shares its cores with other work.
    if !matches!(setting.scale, FaultScale::Ci) {
        ensure_p99(&times, ADOPTED_MS, "adoption")?;
    }
    figures.set("p50_ms", format!("{middle:.1}")).only_line()
}
