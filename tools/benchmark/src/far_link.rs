//! A server behind a far link (`exec_server_chaos::FarLink`): output, `cp` and keystrokes, compared with plain TCP on the same link.
//!
//! Every lane opens its own connection, so each pays for the slow start of TCP. Server and clients run in the namespaces of the link.
//! Needs root; without it the rows say so.

use std::{net::TcpListener, path::Path};

use super::{
    baselines, copy,
    echo::EchoProcess,
    plain_tcp::PlainServer,
    table::quantile,
    throughput::{self, Workload},
    user_commands::UserCommands,
};
use crate::prelude::*;
use exec_server_chaos::{FarLink, LinkShape};
use exec_server_harness::{Random, file_tree, server::Server};
use exec_server_workspace::packages;

/// More than most paths between two continents carry, and so little that two cores are not busy: TCP, not a CPU, is the limit.
const BITS_PER_SECOND: u64 = 300_000_000;

/// The allowed delay of a keystroke beyond the round trip, in milliseconds.
const KEYSTROKE_MS: f64 = 20.0;

const TCP: &str = "plain TCP";
const LEAN: &str = "lean client";
const RUN: &str = "run";
const UP: &str = "cp to";
const DOWN: &str = "cp from";
const KEYSTROKE: &str = "keystroke";
const TCP_KEYSTROKE: &str = "plain TCP keystroke";

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let mut report = Report::default();
    for round_trip_ms in [50, 200] {
        // A short run has no time for two links; the far one shows nothing else about whether this works.
        let part = match setting.quick && round_trip_ms > 50 {
            true => Report::from(missing(round_trip_ms, "not in a short run")),
            false => match start(round_trip_ms) {
                Ok(link) => LinkBench::start(setting, link, round_trip_ms)?.measure()?,
                Err(error) => Report::from(missing(round_trip_ms, &format!("{error:#}"))),
            },
        };
        report.rows.extend(part.rows);
        report.charts.extend(part.charts);
    }
    Ok(report)
}

fn start(round_trip_ms: u64) -> Result<FarLink> {
    packages::ensure(packages::IP)?;
    Ok(FarLink::start(LinkShape::with_one_bdp(Duration::from_millis(round_trip_ms), BITS_PER_SECOND))?)
}

/// The rows of a link that could not be measured.
fn missing(round_trip_ms: u64, why: &str) -> Vec<Row> {
    let contest = Contest::default();
    rows(&contest, &contest, round_trip_ms).into_iter().map(|row| row.note(why)).collect()
}

fn rows(bulk: &Contest, keystrokes: &Contest, round_trip_ms: u64) -> Vec<Row> {
    let at = format!("at {round_trip_ms} ms");
    let row = |what: &str, ours: &str| {
        let pair = Pair { ours: (ours, 0), beside: (TCP, 0), unit: "MB/s" };
        bulk.row(format!("{what} {at} / plain TCP"), pair)
    };
    let beyond = |what: &str, lane: &str, index: usize| {
        let row = Row::new(format!("{what} {at}, beyond the round trip"), "ms");
        row.values(keystrokes.figure(lane, index).unwrap_or_default())
    };
    vec![
        row("output of `run`", RUN).at_least(0.9),
        row("output through the lean client", LEAN).at_least(0.9),
        row("cp to a server", UP).at_least(0.9),
        row("cp from a server", DOWN).at_least(0.9),
        beyond("keystroke beside a flood, p50", KEYSTROKE, 0).at_most(KEYSTROKE_MS),
        beyond("keystroke beside a flood, p99", KEYSTROKE, 1),
        beyond("plain TCP: byte beside a stream, p50", TCP_KEYSTROKE, 0),
        beyond("plain TCP: byte beside a stream, p99", TCP_KEYSTROKE, 1),
    ]
}

/// A link with a server at its far end.
struct LinkBench<'a> {
    setting: &'a BenchSetting<'a>,
    link: FarLink,
    round_trip_ms: u64,
    setup: Setup,
    server: Server,
    url: String,
}

impl<'a> LinkBench<'a> {
    fn start(setting: &'a BenchSetting<'a>, link: FarLink, round_trip_ms: u64) -> Result<Self> {
        let listen = format!("ws://{}:0", link.far().address());
        let setup = Setup::new(&setting.binary)?.arg("--listen").arg(&listen).arg("--insecure-plaintext");
        let mut server = link.far().run(|| setup.start())??;
        let url = server.second_line()?;
        Ok(Self { setting, link, round_trip_ms, setup, server, url })
    }

    fn measure(self) -> Result<Report> {
        let bulk = self.bulk()?;
        let keystrokes = self.keystrokes()?;
        self.setup.finish(self.server)?;
        let rate = |lane: &str| bulk.median(lane, 0);
        let megabits = BITS_PER_SECOND / 1_000_000;
        let control = self.link.far().get("ipv4/tcp_congestion_control")?;
        let title = format!("Link of {} ms and {megabits} Mbit/s, TCP with {control}", self.round_trip_ms);
        let chart = Bars::new(&title, "MB/s")
            .bar("plain TCP", BarOwner::Machine, rate(TCP))
            .bar("exec-server run", BarOwner::Ours, rate(RUN))
            .bar("exec-server cp, to", BarOwner::Ours, rate(UP))
            .bar("exec-server cp, from", BarOwner::Ours, rate(DOWN));
        Ok(Report { rows: rows(&bulk, &keystrokes, self.round_trip_ms), charts: vec![chart] })
    }

    /// MB/s of many bytes, each time over a new connection.
    fn bulk(&self) -> Result<Contest> {
        let (rounds, bytes) = self.setting.pick((0, 2 << 20), (3, 256 << 20));
        let commands = UserCommands::new(self.setting.environment, &["--connect", &self.url, "--insecure-plaintext"]);
        let folder = self.setting.environment.folder(&format!("far-link-{}", self.round_trip_ms))?;
        let (source, target) = (folder.join("large"), folder.join("target"));
        file_tree::large(&source, bytes, &mut Random::new(1))?;
        let plain = self.plain()?;
        let copy = |from: String, to: String| {
            let command = commands.command(&["cp"], &[&from, &to]);
            let took = self.link.near().run(|| copy::timed(command, &target))??[0];
            Ok(vec![bytes as f64 / 1e3 / took])
        };
        let here = |path: &Path| path.display().to_string();
        let there = |path: &Path| format!(":{}", path.display());
        let lanes = vec![
            BenchLane::new(TCP, |is_first| Ok(vec![self.link.near().run(|| plain.zeros(bytes, is_first))??])),
            BenchLane::new(LEAN, |is_first| Ok(vec![self.lean(bytes, is_first)?])),
            BenchLane::new(RUN, |is_first| {
                let command = commands.run_zeros(bytes);
                Ok(vec![self.link.near().run(|| baselines::output_of(command, bytes, is_first))??])
            }),
            BenchLane::new(UP, |_| copy(here(&source), there(&target))),
            BenchLane::new(DOWN, |_| copy(there(&source), here(&target))),
        ];
        let contest = Contest::hold(rounds, lanes)?;
        fs::remove_file(&source)?;
        self.link.near().run(|| plain.stop())??;
        Ok(contest)
    }

    fn plain(&self) -> Result<PlainServer> {
        PlainServer::start(self.link.far().run(|| TcpListener::bind((self.link.far().address(), 0)))??)
    }

    fn session(&self) -> Result<BenchSession> {
        let link = self.link.near().run(|| BenchConnection::connect(&self.url))??;
        BenchSession::open(link, MessageFormat::Binary)?.context("our server offers the binary dialect")
    }

    /// MB/s of output, with the time to connect.
    fn lean(&self, bytes: u64, is_first: bool) -> Result<f64> {
        let begun = Instant::now();
        let mut session = self.session()?;
        throughput::output(&mut session, Workload::One, bytes, is_first)?;
        let took = begun.elapsed().as_secs_f64();
        session.end()?;
        Ok(bytes as f64 / 1e6 / took)
    }

    /// How much longer than the round trip a byte takes beside a flood of the same session, and of plain TCP.
    fn keystrokes(&self) -> Result<Contest> {
        let (rounds, count) = self.setting.pick((0, 3), (3, 20));
        let flood = Duration::from_millis(self.setting.pick(300, 2000));
        let plain = self.plain()?;
        let lanes = vec![
            BenchLane::new(KEYSTROKE, |_| {
                let mut echo = EchoProcess::start(self.session()?, false)?;
                echo.session.start(StartRequest::new(&["/bin/cat", "/dev/zero"]))?;
                // TCP needs some time to fill the link.
                let begun = Instant::now();
                while begun.elapsed() < flood {
                    echo.session.next()?;
                }
                let times = (0..count).map(|at| echo.byte(at as u8, true)).collect::<Result<Vec<_>>>()?;
                echo.session.end()?;
                Ok(self.beyond(&times))
            }),
            BenchLane::new(TCP_KEYSTROKE, |_| {
                let times = self.link.near().run(|| plain.echoes_beside_flood(flood, count))??;
                Ok(self.beyond(&times))
            }),
        ];
        let contest = Contest::hold(rounds, lanes)?;
        self.link.near().run(|| plain.stop())??;
        Ok(contest)
    }

    /// Median and 99th percentile in milliseconds without the round trip, of times in microseconds.
    fn beyond(&self, times: &[f64]) -> FigureValues {
        [0.5, 0.99].map(|part| quantile(times, part) / 1e3 - self.round_trip_ms as f64).to_vec()
    }
}
