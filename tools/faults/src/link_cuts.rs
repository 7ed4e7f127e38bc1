//! F1: the link is cut repeatedly under load; the client resumes and checks every record.

use super::{FaultScale, ensure_p99, producer_load::millis};
use crate::prelude::*;

/// Concurrent producers.
const LANES: usize = 8;

/// Limit for the 99th percentile of the time to resume.
const RESUME_P99_MS: f64 = 300.0;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let wanted = setting.pick(200, 1000, 20_000);
    let mut random = setting.random("F1");
    let (setup, server) = Setup::started(&setting.binary)?;
    let proxy = Proxy::start(server.address.socket, random.next(), plan)?;
    let address = server.address.through(proxy.address());

    let mut load = ProducerLoad::new(random, LANES)?;
    let begun = Instant::now();
    load.resume(&address, begun)?;
    let mut resumes = Vec::new();
    let mut cut_at = None;
    while !load.is_done() {
        let bytes = load.bytes;
        match load.step() {
            Ok(()) if load.bytes > bytes => {
                // The link has recovered when the first new byte arrives, not when the handshake is complete.
                if let Some(cut_at) = cut_at.take() {
                    resumes.push(millis(cut_at));
                }
            }
            Ok(()) => {}
            Err(error) if is_lost(&error) => {
                let noticed = *cut_at.get_or_insert_with(Instant::now);
                load.resume(&address, noticed)?;
            }
            Err(error) => {
                let said = setup.log_tail();
                return Err(error.context(format!("after {} cuts; the server says: {said}", proxy.count())));
            }
        }
        if proxy.count() >= wanted {
            proxy.disarm();
            load.stop_refilling();
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    load.end_session()?;
    setup.finish(server)?;
    let rate = load.bytes as f64 / 1e6 / seconds;
    let figures = Figures::survived(proxy.count())
        .set("bytes", load.bytes)
        .set("processes", load.ended)
        .set("mb_per_s", format!("{rate:.0}"))
        .times(&mut resumes);
    ensure_p99(&resumes, RESUME_P99_MS, "resume")?;
    ensure!(matches!(setting.scale, FaultScale::Ci) || rate >= 50.0, "only {rate:.0} MB/s of load, not 50");
    figures.only_line()
}

/// A cut of any kind at any byte. One in eight hits the client's data: acknowledgements, starts, sometimes the handshake.
fn plan(random: &mut Random) -> Plan {
    let event = Event::any_cut(random);
    if random.one_in(8) {
        return Plan::default().up(random.between(100, 4000), event);
    }
    Plan::default().down(random.between(64 << 10, 8 << 20), event)
}
