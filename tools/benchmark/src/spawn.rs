//! The cost of a start: `process/start` of `true` until `process/closed`, compared with a bare fork, exec and wait; alone, many at once,
//! and on a server that holds a gibibyte of output.

use super::{
    TRUE,
    baselines::{self, BareSpawner, HEAD},
    table::quantile,
};
use crate::prelude::*;

/// Outputs that are kept to make the server heavy: 64 times the memory cap of a process is 1 GiB.
const HEAVY_PROCESSES: usize = 64;
const HEAVY_BYTES: u64 = 16 << 20;

/// How long filling the logs may take.
const FILLING: Duration = Duration::from_secs(60);

/// How many processes run at once when the rate is measured.
const AT_ONCE: [u32; 3] = [1, 16, 64];

/// Indices of the figures of a lane: times without and with a terminal, in microseconds.
const P50: usize = 0;
const P99: usize = 1;
const TTY_P50: usize = 2;
const TTY_P99: usize = 3;

const BARE: &str = "bare";
const OURS: &str = "ours";
const PEER: &str = "peer";
const SHARED: &str = "OpenSSH, shared connection";
const ALONE: &str = "OpenSSH, new connection";

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let mut servers = BenchServers::start(setting)?;
    let mut contestants =
        SpawnContestants { bare: BareSpawner::start()?, ours: servers.json()?, peer: setting.peer()? };
    let ssh = setting.ssh.map(Ssh::start).transpose()?;
    let contest = contestants.latency(setting, ssh.as_ref())?;
    ssh.map_or(Ok(()), Ssh::end)?;
    let mut rows = latency_rows(&contest);
    for at_once in AT_ONCE {
        rows.extend(contestants.rate(setting, at_once)?);
    }
    contestants.peer.take().map_or(Ok(()), BenchSession::end)?;
    rows.extend(contestants.heavy(setting, &servers)?);
    contestants.ours.end()?;
    servers.stop()?;

    let ms = |lane, index| contest.median(lane, index).map(|micros| micros / 1e3);
    let chart = Bars::new("Start of `true` until it has ended", "ms")
        .bar("fork + exec + wait", BarOwner::Machine, ms(BARE, P50))
        .bar("exec-server", BarOwner::Ours, ms(OURS, P50))
        .bar("exec-server, terminal", BarOwner::Ours, ms(OURS, TTY_P50))
        .bar("OpenSSH, shared", BarOwner::Ssh, ms(SHARED, 0))
        .bar("OpenSSH, new", BarOwner::Ssh, ms(ALONE, 0))
        .bar("peer", BarOwner::Peer, ms(PEER, P50));
    Ok(Report { rows, charts: vec![chart] })
}

fn latency_rows(contest: &Contest) -> Vec<Row> {
    let pair = |ours, beside| Pair { ours, beside, unit: "µs" };
    let row = |name: &str, ours, beside| contest.row(name, pair(ours, beside));
    let mut rows = vec![
        row("start of `true`, p50 / fork+exec+wait", (OURS, P50), (BARE, P50)).at_most(1.5),
        row("start of `true`, p99 / fork+exec+wait, p99", (OURS, P99), (BARE, P99)).at_most(2.0),
        row("start with a terminal, p50 / fork+exec+wait", (OURS, TTY_P50), (BARE, P50)).at_most(1.7),
        row("start with a terminal, p99 / fork+exec+wait, p99", (OURS, TTY_P99), (BARE, P99)).at_most(2.0),
        row("start with a terminal, p50 / the same bare", (OURS, TTY_P50), (BARE, TTY_P50)),
    ];
    for ssh in [SHARED, ALONE] {
        rows.push(contest.row(format!("start of `true`, p50 / {ssh}"), pair((OURS, P50), (ssh, P50))));
    }
    if contest.median(PEER, P50).is_some() {
        rows.push(row("peer: start of `true`, p50 / fork+exec+wait", (PEER, P50), (BARE, P50)));
        rows.push(row("peer: start of `true`, p99 / fork+exec+wait, p99", (PEER, P99), (BARE, P99)));
        rows.push(row("peer: start with a terminal, p50 / fork+exec+wait", (PEER, TTY_P50), (BARE, P50)));
    }
    rows
}

/// The programs that start processes.
struct SpawnContestants {
    bare: BareSpawner,
    ours: BenchSession,
    peer: Option<BenchSession>,
}

impl SpawnContestants {
    fn latency(&mut self, setting: &BenchSetting<'_>, ssh: Option<&Ssh<'_>>) -> Result<Contest> {
        let (rounds, batch) = setting.pick((3, 10), (21, 100));
        let (shared, alone) = setting.pick((1, 1), (5, 2));
        let mut lanes = self.lanes(batch);
        if let Some(ssh) = ssh {
            lanes.push(BenchLane::new(SHARED, move |_| commands(shared, || ssh.shared("true"))));
            lanes.push(BenchLane::new(ALONE, move |_| commands(alone, || ssh.alone(&[], "true"))));
        }
        Contest::hold(rounds, lanes)
    }

    fn lanes(&mut self, batch: u32) -> Vec<BenchLane<'_>> {
        let Self { bare, ours, peer } = self;
        let mut lanes = vec![
            BenchLane::new(BARE, move |_| {
                Ok([summary(&bare.batch(false, batch)?), summary(&bare.batch(true, batch)?)].concat())
            }),
            BenchLane::new(OURS, move |_| both(ours, batch)),
        ];
        lanes.extend(peer.as_mut().map(|peer| BenchLane::new(PEER, move |_| both(peer, batch))));
        lanes
    }

    /// Processes per second, compared with the machine's own rate.
    fn rate(&mut self, setting: &BenchSetting<'_>, at_once: u32) -> Result<Vec<Row>> {
        let (rounds, count) = setting.pick((3, 64), (11, 300));
        let Self { bare, ours, peer } = self;
        let mut lanes = vec![
            BenchLane::new(BARE, |_| Ok(vec![bare.rate(at_once, count)?])),
            BenchLane::new(OURS, |_| Ok(vec![rate(ours, at_once, count)?])),
        ];
        lanes.extend(peer.as_mut().map(|peer| BenchLane::new(PEER, move |_| Ok(vec![rate(peer, at_once, count)?]))));
        let contest = Contest::hold(rounds, lanes)?;
        let pair = |ours| Pair { ours: (ours, 0), beside: (BARE, 0), unit: "/s" };
        let name = format!("processes/s, {at_once} at once / the machine's own rate");
        let row = contest.row(&*name, pair(OURS));
        let mut rows = vec![if at_once == 16 { row.at_least(0.6) } else { row }];
        if contest.median(PEER, 0).is_some() {
            rows.push(contest.row(format!("peer: {name}"), pair(PEER)));
        }
        Ok(rows)
    }

    /// Starts on a server that holds much unread output.
    fn heavy(&mut self, setting: &BenchSetting<'_>, servers: &BenchServers) -> Result<Vec<Row>> {
        let (rounds, batch) = setting.pick((3, 10), (21, 50));
        // The output belongs to the same session and was written before; the starts are measured as usual.
        self.ours.withhold();
        fill(&mut self.ours)?;
        let held = servers.setup.memory_kib() >> 10;
        let contest = Contest::hold(rounds, self.lanes(batch))?;
        let row = |name: &str, index| {
            let row = contest.row(name, Pair { ours: (OURS, index), beside: (BARE, P50), unit: "µs" });
            let note = format!("{}, {held} MiB held", row.note);
            row.note(note)
        };
        Ok(vec![
            row("start of `true` at 1 GiB, p50 / fork+exec+wait", P50).at_most(1.7),
            row("start with a terminal at 1 GiB, p50 / fork+exec+wait", TTY_P50).at_most(2.0),
        ])
    }
}

/// Runs a command `count` times.
fn commands(count: u32, command: impl Fn() -> Result<Command>) -> Result<FigureValues> {
    let times = (0..count).map(|_| baselines::timed(command()?)).collect::<Result<Vec<_>>>()?;
    Ok(summary(&times))
}

/// Measures without and with a terminal.
fn both(session: &mut BenchSession, count: u32) -> Result<FigureValues> {
    let pipe = starts(session, StartRequest::new(&[TRUE]), count)?;
    let tty = starts(session, StartRequest { tty: true, ..StartRequest::new(&[TRUE]) }, count)?;
    Ok([summary(&pipe), summary(&tty)].concat())
}

fn summary(times: &[f64]) -> FigureValues {
    vec![quantile(times, 0.5), quantile(times, 0.99)]
}

/// Microseconds of each of `count` starts, one after the other.
pub(super) fn starts(session: &mut BenchSession, start: StartRequest<'_>, count: u32) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        let process = session.start(start)?;
        session.until_closed(process)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        session.forget(&[process])?;
    }
    Ok(times)
}

/// Processes per second with `at_once` running; they are forgotten after the time is taken.
fn rate(session: &mut BenchSession, at_once: u32, count: u32) -> Result<f64> {
    let begun = Instant::now();
    let mut closed = Vec::new();
    let mut started = 0;
    while closed.len() < count as usize {
        while started < count && (started as usize) < closed.len() + at_once as usize {
            session.start(StartRequest::new(&[TRUE]))?;
            started += 1;
        }
        match session.next()? {
            SessionMessage::Closed { process, .. } => closed.push(process),
            SessionMessage::Answer { refused, .. } => ensure!(!refused, "refused: {}", session.text()),
            SessionMessage::Output { .. } | SessionMessage::Other => {}
        }
    }
    let rate = f64::from(count) / begun.elapsed().as_secs_f64();
    session.forget(&closed)?;
    Ok(rate)
}

/// Starts processes whose output is not taken, and reads it once so that the server maps it.
fn fill(session: &mut BenchSession) -> Result<()> {
    let bytes = (HEAVY_BYTES * 2).to_string();
    let mut heavy = Vec::new();
    for _ in 0..HEAVY_PROCESSES {
        heavy.push(session.start(StartRequest::new(&[HEAD, "-c", &bytes, "/dev/zero"]))?);
    }
    let deadline = Instant::now() + FILLING;
    loop {
        let list = session.call("process/list", &json!({}))?;
        let full = |entry: &&Value| entry["outputBytes"].as_u64() >= Some(HEAVY_BYTES * 15 / 16);
        let entries = list["processes"].as_array().context("`process/list` gave no `processes`")?;
        if entries.iter().filter(full).count() >= HEAVY_PROCESSES {
            break;
        }
        ensure!(Instant::now() < deadline, "the processes did not fill their logs within {FILLING:?}");
    }
    for process in heavy {
        let mut after = 0;
        loop {
            let params = json!({ "processId": process.to_string(), "afterSeq": after, "maxBytes": 4 << 20 });
            let answer = session.call("process/read", &params)?;
            if answer["chunks"].as_array().is_none_or(Vec::is_empty) {
                break;
            }
            after = answer["nextSeq"].as_u64().context("no `nextSeq`")? - 1;
        }
    }
    Ok(())
}
