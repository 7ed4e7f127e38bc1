//! F5: the server gets SIGTERM under load, and another one takes over on the same state directory and port.
//!
//! The server must exit with code 0 within five seconds, even if the client does not read, and must inform the client. No byte, process,
//! exit code or pid may change.

use super::producer_load::millis;
use crate::prelude::*;

/// Concurrent producers.
const LANES: usize = 8;

/// How long a drain may take.
const DRAIN: Duration = Duration::from_secs(5);

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let wanted = setting.pick(5, 50, 500);
    let mut random = setting.random("F5");
    let (setup, mut server) = Setup::started(&setting.binary)?;
    let mut load = ProducerLoad::new(random.fork(), LANES)?;
    load.attach(&server.address)?;
    let (mut times, mut drains, mut deaf) = (Vec::new(), Vec::new(), 0);
    for drained in 0..wanted {
        let context = || format!("after {drained} drains; the server says: {}", setup.log_tail());
        let until = Instant::now() + Duration::from_millis(random.between(5, 250));
        load.flow(&server, |_| Instant::now() >= until).with_context(context)?;
        // In the first drain the client never reads, so that even a short run has both kinds.
        let listens = drained > 0 && !random.one_in(10);
        deaf += u64::from(!listens);
        drains.push(drain(server, listens.then_some(&mut load)).with_context(context)?);
        let begun = Instant::now();
        server = setup.start()?;
        times.push(load.resume_restarted(&server, begun).with_context(context)?);
    }
    load.finish(&server)?;
    setup.finish(server)?;
    Figures::survived(wanted)
        .set("bytes", load.bytes)
        .set("processes", load.ended)
        .times(&mut times)
        .set("deaf", deaf)
        .set("worst_drain_ms", format!("{:.1}", figures::worst(&drains)))
        .only_line()
}

/// Shuts the server down. If there is a listener, it must get a close that says so.
pub(super) fn drain(server: Server, listener: Option<&mut ProducerLoad>) -> Result<f64> {
    server.terminate();
    let begun = Instant::now();
    if let Some(load) = listener {
        let end = loop {
            match load.step() {
                Ok(()) => ensure!(begun.elapsed() < DRAIN, "still connected 5 s after SIGTERM"),
                Err(error) if is_lost(&error) => break error.to_string(),
                Err(error) => return Err(error),
            }
        };
        ensure!(end.contains("Away"), "the client was not told that the server goes away: {end}");
    }
    // Only wait: a second SIGTERM would force the exit.
    let code = server.wait(DRAIN.saturating_sub(begun.elapsed())).context("the server has not drained within 5 s")?;
    ensure!(code == Some(0), "the drained server ended with {code:?}");
    Ok(millis(begun))
}
