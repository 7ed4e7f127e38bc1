//! The memory of the server: idle, with idle processes, with idle sessions, and while it streams; as Pss over server, spawner and holders.
//!
//! These are sizes, not times: other load on the machine changes them little, so a few rounds are enough.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::{
    TRUE,
    baselines::HEAD,
    servers::{ConnectionKind, Transport},
};
use crate::prelude::*;

/// Numbers of idle processes and idle sessions that are measured together.
const PROCESSES: usize = 200;
const SESSIONS: usize = 50;

/// Sleeps for longer than any measurement.
pub(super) const SLEEP: [&str; 2] = ["/bin/sleep", "1000000"];

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let rounds = setting.pick(1, 5);
    let mut rows = vec![idle(setting, rounds)?];
    for tty in [false, true] {
        rows.extend(processes(setting, tty, rounds)?);
    }
    rows.push(sessions(setting, false, rounds)?);
    rows.push(sessions(setting, true, rounds)?);
    for format in [MessageFormat::Binary, MessageFormat::Json] {
        rows.push(streaming(setting, format)?);
    }
    Ok(rows.into())
}

fn idle(setting: &BenchSetting<'_>, rounds: usize) -> Result<Row> {
    let mut values = Vec::new();
    for _ in 0..rounds {
        let servers = BenchServers::start(setting)?;
        values.push(settled(&servers.setup) / 1024.0);
        servers.stop()?;
    }
    Ok(Row::new("idle server, Pss", "MiB").values(values).at_most(10.0).note("server and spawner"))
}

/// The memory per additional process in a session; the holder belongs to the session and is not counted.
fn processes(setting: &BenchSetting<'_>, tty: bool, rounds: usize) -> Result<Vec<Row>> {
    let (mut each, mut threads) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut servers = BenchServers::start(setting)?;
        let mut session = servers.json()?;
        first(&mut session)?;
        let (before, threads_before) = (settled(&servers.setup), servers.setup.threads());
        sleepers(&mut session, tty, PROCESSES)?;
        each.push((settled(&servers.setup) - before) / PROCESSES as f64);
        threads.push(servers.setup.threads() as f64 - threads_before as f64);
        session.end()?;
        servers.stop()?;
    }
    let with = if tty { " with a terminal" } else { "" };
    Ok(vec![
        Row::new(format!("idle process{with}, added Pss"), "KiB").values(each).at_most(40.0).note("mean of 200"),
        Row::new(format!("200 idle processes{with}, added threads"), "").values(threads).at_most(0.0),
    ])
}

/// The memory per additional session, without a process, or with one and therefore a holder.
fn sessions(setting: &BenchSetting<'_>, with_process: bool, rounds: usize) -> Result<Row> {
    let mut each = Vec::new();
    for _ in 0..rounds {
        let mut servers = BenchServers::start(setting)?;
        let mut one = servers.json()?;
        first(&mut one)?;
        let before = settled(&servers.setup);
        let mut more = Vec::new();
        for _ in 0..SESSIONS {
            let mut session = servers.json()?;
            if with_process {
                sleepers(&mut session, false, 1)?;
            }
            more.push(session);
        }
        each.push((settled(&servers.setup) - before) / SESSIONS as f64);
        for session in more {
            session.end()?;
        }
        one.end()?;
        servers.stop()?;
    }
    let name = if with_process { "idle session with an idle process, added Pss" } else { "idle session, added Pss" };
    Ok(Row::new(name, "KiB").values(each).at_most(200.0).note("mean of 50"))
}

/// The peak memory while output flows.
fn streaming(setting: &BenchSetting<'_>, format: MessageFormat) -> Result<Row> {
    let bytes = setting.pick(64_u64, 512) << 20;
    let row = Row::new(format!("server while a process streams, {}, added Pss", format.name()), "MiB");
    let mut servers = BenchServers::start(setting)?;
    let Some(mut session) = servers.open(ConnectionKind::new(Transport::Ws, format))? else {
        servers.stop()?;
        return Ok(row.note("not offered"));
    };
    first(&mut session)?;
    let idle = settled(&servers.setup);
    let most = watched(&servers.setup, || {
        let argument = bytes.to_string();
        let process = session.start(StartRequest::new(&[HEAD, "-c", &argument, "/dev/zero"]))?;
        let seen = session.until_closed(process)?;
        ensure!(seen == bytes, "{seen} of {bytes} bytes through the server");
        Ok(())
    })?;
    session.end()?;
    servers.stop()?;
    Ok(row.values(vec![(most - idle) / 1024.0]).note("the most that was seen"))
}

/// The peak memory in KiB of server, spawner and holders while `work` runs.
pub(super) fn watched(setup: &Setup, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = 0;
            while !is_done.load(Ordering::Relaxed) {
                most = most.max(setup.memory_kib());
                thread::sleep(Duration::from_millis(5));
            }
            most.max(setup.memory_kib())
        });
        let worked = work();
        is_done.store(true, Ordering::Relaxed);
        let most = watching.join().ok().context("the watch has ended")?;
        worked.map(|()| most as f64)
    })
}

/// Runs one process, so that the session has a holder.
pub(super) fn first(session: &mut BenchSession) -> Result<()> {
    let process = session.start(StartRequest::new(&[TRUE]))?;
    session.until_closed(process)?;
    session.forget(&[process])
}

/// Starts `count` processes that do nothing.
pub(super) fn sleepers(session: &mut BenchSession, tty: bool, count: usize) -> Result<()> {
    for _ in 0..count {
        session.start(StartRequest { tty, ..StartRequest::new(&SLEEP) })?;
        // One at a time, because many concurrent starts would leave other memory behind.
        session.next_answer()?;
    }
    Ok(())
}

/// Memory in KiB once two samples in a row differ by at most 64 KiB, or after two seconds.
pub(super) fn settled(setup: &Setup) -> f64 {
    let mut last = setup.memory_kib();
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(200));
        let now = setup.memory_kib();
        if now.abs_diff(last) <= 64 {
            return now as f64;
        }
        last = now;
    }
    last as f64
}
