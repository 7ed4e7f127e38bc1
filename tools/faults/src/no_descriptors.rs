//! F11: a server with a limit of 64 fds gets 200 connections and 100 starts at once.
//!
//! The server must not exit or spin, must answer connected clients, and must be healthy again within a second after the others have gone.

use std::net::TcpStream;

use crate::prelude::*;
use exec_server_harness::server;

const DESCRIPTORS: u64 = 64;
const CONNECTS: usize = 200;
const STARTS: usize = 100;

/// In the variant with few fds: the maximum number of fds that the connections leave free.
const FEW: u64 = 12;

/// How long the server stays without fds while its CPU time is measured.
const STARVED: Duration = Duration::from_secs(1);

/// A tenth of a core for that long, in clock ticks.
const TICKS: u64 = 10;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let rounds = setting.pick(6, 18, 180);
    let mut random = setting.random("F11");
    let limit = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"");
    let setup = Setup::new(&setting.binary)?.through(&["/bin/sh", "-c", &limit]);
    let server = setup.start()?;
    let mut neighbour = Neighbour::new(&server.address)?;
    neighbour.round_trip()?;
    let level = ResourceLevel::of(server.pid());
    let (mut times, mut worst_ticks, mut refused, mut started) = (Vec::new(), 0, 0, 0);
    for round in 0..rounds {
        let context = || format!("round {round}; the server says: {}", setup.log_tail());
        let (mut wire, _) = WireClient::session(&server.address).with_context(context)?;
        let crowd =
            |count| (0..count).filter_map(|_| TcpStream::connect(server.address.socket).ok()).collect::<Vec<_>>();
        // Three variants: the processes come first and the connections find no fd left; or the other way round; or the connections leave so
        // few fds that a holder gets only a part of what it needs.
        let early = match round % 3 {
            0 => Vec::new(),
            1 => crowd(CONNECTS),
            _ => crowd(free(server.pid()).saturating_sub(random.between(0, FEW)) as usize),
        };
        let (ok, no) = starts(&mut wire).with_context(context)?;
        let late = crowd(CONNECTS - early.len());
        started += ok;
        refused += no;
        let before = server::cpu_ticks(server.pid());
        thread::sleep(STARVED);
        let ticks = server::cpu_ticks(server.pid()) - before;
        worst_ticks = worst_ticks.max(ticks);
        ensure!(ticks < TICKS, "{ticks} hundredths of a second of processor time in one second without descriptors");
        neighbour.round_trip().context("a client that was inside before").with_context(context)?;
        wire.end_session().with_context(context)?;
        drop((early, late, wire));
        times.push(healthy(&server.address).with_context(context)?);
    }
    neighbour.end()?;
    // There is one connection less than at first, and nothing more.
    level.wait_back()?;
    setup.finish(server)?;
    Figures::survived(rounds * (CONNECTS + STARTS) as u64)
        .times(&mut times)
        .set("started", started)
        .set("refused", refused)
        .set("worst_cpu_percent", worst_ticks * 100 / (STARVED.as_millis() as u64 / 10))
        .only_line()
}

/// The number of fds that the server can still open.
fn free(pid: u32) -> u64 {
    DESCRIPTORS.saturating_sub(server::descriptors(pid))
}

/// Sends all starts; each is answered, with a process or with a reason.
fn starts(wire: &mut WireClient) -> Result<(u64, u64)> {
    let ids = (0..STARTS)
        .map(|number| wire.send("process/start", &wire::start(&format!("p{number}"), &["/bin/sleep", "60"])))
        .collect::<Result<Vec<_>, CallError>>()?;
    let (mut started, mut refused) = (0, 0);
    for id in ids {
        match wire.answer(id) {
            Ok(_) => started += 1,
            Err(CallError::Refused { kind, .. }) if kind == "resourcesExhausted" => refused += 1,
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok((started, refused))
}

/// Waits until a new client can start a program again; fails after a second.
fn healthy(address: &ServerAddress) -> Result<f64> {
    let begun = Instant::now();
    loop {
        let tried = try_start(address);
        let took = begun.elapsed();
        ensure!(took <= Duration::from_secs(1), "healthy again only after {took:?}, if at all: {tried:?}");
        if tried.is_ok() {
            return Ok(took.as_secs_f64() * 1e3);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn try_start(address: &ServerAddress) -> Result<()> {
    let (mut wire, _) = WireClient::session(address)?;
    let outcome = wire.start("p", &["/bin/true"]);
    wire.end_session()?;
    outcome?;
    Ok(())
}
