//! The latency of a byte through `cat` on a pipe and on a terminal: back to back, after pauses, and beside a process that floods. Compared
//! with a WebSocket echo, a bare terminal and OpenSSH.

use std::thread;

use super::{
    baselines::{EchoProgram, EchoServer, OneProcessor, TerminalProgram},
    echo_calls,
    hop_chain::{ChainEnd, RelayChain},
    roundtrip,
    servers::{ConnectionKind, Transport},
    table::quantile,
};
use crate::prelude::*;

/// A request to write one byte, as long as ours.
const WRITE: &str =
    "\"method\":\"process/write\",\"params\":{\"processId\":\"1\",\"chunk\":\"eA==\",\"writeId\":\"w1234\"}";

/// Echoes its input byte by byte, and prints one byte first: by then the terminal modes are set.
const CAT: &str = "stty raw -echo 2>/dev/null; printf r; exec cat";

/// The pause before each byte in the variant with pauses.
const PAUSE: Duration = Duration::from_millis(5);

const BARE: &str = "WebSocket echo";
const TERMINAL: &str = "bare terminal";
const CHAIN: &str = "bare chain, pipe";
const CHAIN_TTY: &str = "bare chain, terminal";
const SSH: &str = "OpenSSH, pipe";
const SSH_TTY: &str = "OpenSSH, terminal";

/// The conditions of the measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EchoConditions {
    /// No load, with both ends on one CPU.
    Nothing,
    /// All CPUs, together with programs that do the same without us.
    Others,
    Pauses,
    Flood,
}

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let mut rows = Vec::new();
    let one = OneProcessor::take()?;
    let contest = hold(setting, EchoConditions::Nothing)?;
    drop(one);
    let free = hold(setting, EchoConditions::Others)?;
    let row = |name: &str, ours: &str, beside: &str| contest.row(name, pair(ours, beside));
    for format in [MessageFormat::Binary, MessageFormat::Json] {
        let (pipe, tty) = (lane(format, false), lane(format, true));
        let name = format.name();
        rows.extend([
            row(&format!("echo of a byte, {name}, pipe, p50 / WebSocket echo"), &pipe, BARE).at_most(2.0),
            row(&format!("echo of a byte, {name}, terminal, p50 / WebSocket echo"), &tty, BARE).at_most(2.5),
        ]);
    }
    // If the targets are missed, these rows show the lower bound: the hops alone.
    let (pipe, tty) = (lane(MessageFormat::Binary, false), lane(MessageFormat::Binary, true));
    rows.push(row("floor: echo of a byte over the same hops, pipe, p50 / WebSocket echo", CHAIN, BARE));
    rows.push(row("floor: echo of a byte over the same hops, terminal, p50 / WebSocket echo", CHAIN_TTY, BARE));
    rows.push(row("echo of a byte, binary, pipe, p50 / the same hops", &pipe, CHAIN));
    rows.push(row("echo of a byte, binary, terminal, p50 / the same hops", &tty, CHAIN_TTY));
    let row = |name: &str, ours: &str, beside: &str| free.row(name, pair(ours, beside));
    rows.push(row("echo on all processors, binary, pipe, p50 / WebSocket echo", &pipe, BARE));
    rows.push(row("echo on all processors, binary, terminal, p50 / WebSocket echo", &tty, BARE));
    rows.push(row("echo on all processors, binary, pipe, p50 / the same hops", &pipe, CHAIN));
    rows.push(row("echo on all processors, binary, terminal, p50 / the same hops", &tty, CHAIN_TTY));
    rows.push(row("echo on all processors, binary, pipe, p50 / OpenSSH", &pipe, SSH));
    rows.push(row("echo on all processors, binary, terminal, p50 / OpenSSH", &tty, SSH_TTY));
    if free.median("peer, pipe", 0).is_some() {
        rows.push(row("peer: echo of a byte, pipe, p50 / WebSocket echo", "peer, pipe", BARE));
        rows.push(row("peer: echo of a byte, terminal, p50 / WebSocket echo", "peer, terminal", BARE));
    }
    rows.extend(others(&hold(setting, EchoConditions::Pauses)?, "after a pause of 5 ms"));
    rows.extend(others(&hold(setting, EchoConditions::Flood)?, "beside a flood"));
    rows.push(echo_calls::row(setting)?);

    let chart = Bars::new("Echo of one byte through a terminal", "µs")
        .bar("bare WebSocket echo", BarOwner::Machine, free.median(BARE, 0))
        .bar("bare terminal", BarOwner::Machine, free.median(TERMINAL, 0))
        .bar("the same hops, bare", BarOwner::Machine, free.median(CHAIN_TTY, 0))
        .bar("exec-server, binary", BarOwner::Ours, free.median(&tty, 0))
        .bar("exec-server, JSON", BarOwner::Ours, free.median(&lane(MessageFormat::Json, true), 0))
        .bar("OpenSSH", BarOwner::Ssh, free.median(SSH_TTY, 0))
        .bar("peer", BarOwner::Peer, free.median("peer, terminal", 0));
    Ok(Report { rows, charts: vec![chart] })
}

fn pair<'a>(ours: &'a str, beside: &'a str) -> Pair<'a> {
    Pair { ours: (ours, 0), beside: (beside, 0), unit: "µs" }
}

/// Rows without a target.
fn others(contest: &Contest, when: &str) -> Vec<Row> {
    let lanes = [MessageFormat::Binary, MessageFormat::Json].map(|format| [lane(format, false), lane(format, true)]);
    let row = |ours: &String| contest.row(format!("echo {when}, {ours}, p50 / WebSocket echo"), pair(ours, BARE));
    lanes.as_flattened().iter().map(row).collect()
}

fn lane(format: MessageFormat, tty: bool) -> String {
    format!("{}, {}", format.name(), if tty { "terminal" } else { "pipe" })
}

/// A process that echoes bytes, and its session.
pub(super) struct EchoProcess {
    pub(super) session: BenchSession,
    process: u64,
}

fn hold(setting: &BenchSetting<'_>, beside: EchoConditions) -> Result<Contest> {
    let (rounds, batch) = match beside {
        EchoConditions::Nothing | EchoConditions::Others => setting.pick((5, 100), (21, 500)),
        EchoConditions::Pauses => setting.pick((3, 20), (9, 40)),
        EchoConditions::Flood => setting.pick((3, 20), (9, 100)),
    };
    let pause = if beside == EchoConditions::Pauses { PAUSE } else { Duration::ZERO };
    let mut servers = BenchServers::start(setting)?;
    let echo = EchoServer::start(setting)?;
    let mut bare = BenchConnection::connect(&echo.url)?;
    let mut ours = Vec::new();
    for format in [MessageFormat::Binary, MessageFormat::Json] {
        for tty in [false, true] {
            let Some(session) = servers.open(ConnectionKind::new(Transport::Ws, format))? else { continue };
            let mut back = EchoProcess::start(session, tty)?;
            if beside == EchoConditions::Flood {
                back.session.start(StartRequest::new(&["/bin/cat", "/dev/zero"]))?;
            }
            ours.push((lane(format, tty), back));
        }
    }
    let references = match beside {
        EchoConditions::Nothing => ReferencePrograms::bare()?,
        EchoConditions::Others => ReferencePrograms::start(setting)?,
        EchoConditions::Pauses | EchoConditions::Flood => ReferencePrograms::default(),
    };
    let ReferencePrograms { terminal, chains, ssh, cats, mut peers } = references;
    let mut lanes = vec![BenchLane::new(BARE, |_| {
        batch_of(batch, pause, |at| {
            let begun = Instant::now();
            roundtrip::exchange(&mut bare, WRITE, at)?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
    })];
    for (name, back) in &mut ours {
        let is_flooded = beside == EchoConditions::Flood;
        lanes.push(BenchLane::new(&**name, move |_| batch_of(batch, pause, |at| back.byte(at as u8, is_flooded))));
    }
    if let Some(terminal) = &terminal {
        lanes.push(BenchLane::new(TERMINAL, |_| batch_of(batch, pause, |at| terminal.echo(at as u8))));
    }
    for (name, chain) in &chains {
        lanes.push(BenchLane::new(*name, |_| batch_of(batch, pause, |at| chain.echo(at as u8))));
    }
    for (name, cat) in &cats {
        lanes.push(BenchLane::new(*name, |_| batch_of(batch, pause, |at| cat.echo(at as u8))));
    }
    for (name, back) in &mut peers {
        lanes.push(BenchLane::new(*name, move |_| batch_of(batch, pause, |at| back.byte(at as u8, false))));
    }
    let contest = Contest::hold(rounds, lanes)?;
    drop(cats);
    ssh.map_or(Ok(()), Ssh::end)?;
    let backs = ours.into_iter().map(|(_, back)| back).chain(peers.into_iter().map(|(_, back)| back));
    for back in backs {
        back.session.end()?;
    }
    servers.stop()?;
    Ok(contest)
}

/// The median and the 99th percentile of `count` measurements, with a pause before each.
fn batch_of(count: u32, pause: Duration, mut one: impl FnMut(u32) -> Result<f64>) -> Result<FigureValues> {
    let mut times = Vec::with_capacity(count as usize);
    for at in 0..count {
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        times.push(one(at)?);
    }
    Ok(vec![quantile(&times, 0.5), quantile(&times, 0.99)])
}

impl EchoProcess {
    pub(super) fn start(mut session: BenchSession, tty: bool) -> Result<Self> {
        let process = session.start(StartRequest { tty, stdin: true, ..StartRequest::new(&["/bin/sh", "-c", CAT]) })?;
        loop {
            match session.next()? {
                SessionMessage::Output { .. } => break,
                SessionMessage::Answer { refused: true, .. } => bail!("refused: {}", session.text()),
                _ => {}
            }
        }
        ensure!(session.bytes() == b"r", "`cat` began with {:?}", session.bytes());
        Ok(Self { session, process })
    }

    /// Microseconds until a byte is back. Its answer is received too, before or after.
    pub(super) fn byte(&mut self, byte: u8, is_flooded: bool) -> Result<f64> {
        let begun = Instant::now();
        let asked = self.session.write(self.process, &[byte])?;
        let (mut took, mut is_answered) = (None, false);
        while took.is_none() || !is_answered {
            match self.session.next()? {
                SessionMessage::Output { process } if process == self.process => {
                    took = Some(begun.elapsed().as_secs_f64() * 1e6);
                    ensure!(self.session.bytes() == [byte], "{:?} came back for {byte}", self.session.bytes());
                }
                SessionMessage::Output { .. } => ensure!(is_flooded, "output of another process"),
                SessionMessage::Answer { id, refused } => {
                    ensure!(!refused, "refused: {}", self.session.text());
                    is_answered |= id == asked;
                }
                SessionMessage::Closed { .. } => bail!("`cat` has ended"),
                SessionMessage::Other => {}
            }
        }
        took.context("the byte is back")
    }
}

/// The programs that do the same without us.
#[derive(Default)]
struct ReferencePrograms<'a> {
    terminal: Option<TerminalProgram>,
    chains: Vec<(&'static str, RelayChain)>,
    ssh: Option<Ssh<'a>>,
    cats: Vec<(&'static str, EchoProgram)>,
    peers: Vec<(&'static str, EchoProcess)>,
}

impl<'a> ReferencePrograms<'a> {
    /// The programs that are started by us directly, and so on our current CPU.
    fn bare() -> Result<Self> {
        let terminal = Some(TerminalProgram::start(Command::new("/bin/cat"))?);
        let chains =
            vec![(CHAIN, RelayChain::start(ChainEnd::Pipe)?), (CHAIN_TTY, RelayChain::start(ChainEnd::Terminal)?)];
        Ok(Self { terminal, chains, ..Self::default() })
    }

    /// All of them.
    fn start(setting: &'a BenchSetting<'_>) -> Result<Self> {
        let mut references = Self::bare()?;
        if let Some(sshd) = setting.ssh {
            let ssh = Ssh::start(sshd)?;
            references.cats.push((SSH, EchoProgram::start(ssh.shared(CAT)?)?));
            // Over the shared connection it would need a terminal on our side too.
            references.cats.push((SSH_TTY, EchoProgram::start(ssh.alone(&["-tt"], CAT)?)?));
            references.ssh = Some(ssh);
        }
        for (name, tty) in [("peer, pipe", false), ("peer, terminal", true)] {
            if let Some(session) = setting.peer()? {
                references.peers.push((name, EchoProcess::start(session, tty)?));
            }
        }
        Ok(references)
    }
}
