//! What the server weighs: idle, and with 200 idle processes, as Pss over server, spawner and holders.

use std::{thread, time::Duration};

use anyhow::Result;
use serde_json::json;

use super::{
    Setting, TRUE,
    table::{Report, Row},
};
use crate::{
    server::Setup,
    wire::{self, Incoming, Wire},
};

const PROCESSES: usize = 200;

pub(super) fn measure(setting: &Setting<'_>) -> Result<Report> {
    let setup = Setup::new(&setting.binary)?;
    let server = setup.start()?;
    let idle = settled(&setup);
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    let mut rows =
        vec![Row::new("idle server, Pss", "MiB").values(vec![mib(idle)]).at_most(10.0).note("server and spawner")];
    for tty in [false, true] {
        rows.extend(many(setting, tty)?);
    }
    Ok(rows.into())
}

fn many(setting: &Setting<'_>, tty: bool) -> Result<Vec<Row>> {
    let setup = Setup::new(&setting.binary)?;
    let server = setup.start()?;
    let idle = settled(&setup);
    let (mut wire, _) = Wire::session(&server.address)?;
    // The first process brings the holder: its thread is the session's, not the 200 processes'.
    wire.call("process/start", &wire::start("first", &[TRUE]))?;
    while !matches!(wire.next()?, Incoming::Closed { .. }) {}
    let threads = setup.threads();
    for number in 0..PROCESSES {
        let mut params = wire::start(&format!("idle-{number}"), &["/bin/sleep", "1000000"]);
        params["tty"] = json!(tty);
        wire.call("process/start", &params)?;
    }
    let added = settled(&setup).saturating_sub(idle);
    let more_threads = setup.threads().saturating_sub(threads);
    wire.call("session/end", &json!({}))?;
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    let (memory, count) = if tty {
        ("200 idle processes with a terminal, added Pss", "200 idle processes with a terminal, added threads")
    } else {
        ("200 idle processes, added Pss", "200 idle processes, added threads")
    };
    Ok(vec![
        Row::new(memory, "MiB").values(vec![mib(added)]).at_most(8.0).note(format!("idle {:.1} MiB", mib(idle))),
        Row::new(count, "").values(vec![more_threads as f64]).at_most(0.0).note(format!("{threads} before")),
    ])
}

/// Memory once two samples in a row agree to 64 KiB, or after two seconds.
fn settled(setup: &Setup) -> u64 {
    let mut last = setup.memory_kib();
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(200));
        let now = setup.memory_kib();
        if now.abs_diff(last) <= 64 {
            return now;
        }
        last = now;
    }
    last
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
