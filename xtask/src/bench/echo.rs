//! The latency of a byte through `cat` on a pipe and on a terminal: back to back, after pauses, and beside a process that floods. Compared
//! with a WebSocket echo, a bare terminal and OpenSSH.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    Setting,
    chain::{Chain, End},
    client::Link,
    message::{Dialect, Start},
    place::{Carrier, Place, Way},
    roundtrip,
    session::{Incoming, Session},
    ssh::Ssh,
    table::{Bars, Contest, Figures, Lane, Pair, Report, Row, Whose, quantile},
    yard::{Cat, Echo, OneProcessor, Terminal},
};

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
enum Beside {
    /// No load, with both ends on one CPU.
    Nothing,
    /// All CPUs, together with programs that do the same without us.
    Others,
    Pauses,
    Flood,
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<Report> {
    let mut rows = Vec::new();
    let one = OneProcessor::take()?;
    let contest = hold(setting, Beside::Nothing)?;
    drop(one);
    let free = hold(setting, Beside::Others)?;
    let row = |name: &str, ours: &str, beside: &str| contest.row(name, pair(ours, beside));
    for dialect in [Dialect::Binary, Dialect::Json] {
        let (pipe, tty) = (lane(dialect, false), lane(dialect, true));
        let name = dialect.name();
        rows.extend([
            row(&format!("echo of a byte, {name}, pipe, p50 / WebSocket echo"), &pipe, BARE).at_most(2.0),
            row(&format!("echo of a byte, {name}, terminal, p50 / WebSocket echo"), &tty, BARE).at_most(2.5),
        ]);
    }
    // If the targets are missed, these rows show the lower bound: the hops alone.
    let (pipe, tty) = (lane(Dialect::Binary, false), lane(Dialect::Binary, true));
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
    rows.extend(others(&hold(setting, Beside::Pauses)?, "after a pause of 5 ms"));
    rows.extend(others(&hold(setting, Beside::Flood)?, "beside a flood"));

    let chart = Bars::new("Echo of one byte through a terminal", "µs")
        .bar("bare WebSocket echo", Whose::Machine, free.median(BARE, 0))
        .bar("bare terminal", Whose::Machine, free.median(TERMINAL, 0))
        .bar("the same hops, bare", Whose::Machine, free.median(CHAIN_TTY, 0))
        .bar("exec-server, binary", Whose::Ours, free.median(&tty, 0))
        .bar("exec-server, JSON", Whose::Ours, free.median(&lane(Dialect::Json, true), 0))
        .bar("OpenSSH", Whose::Ssh, free.median(SSH_TTY, 0))
        .bar("peer", Whose::Peer, free.median("peer, terminal", 0));
    Ok(Report { rows, charts: vec![chart] })
}

fn pair<'a>(ours: &'a str, beside: &'a str) -> Pair<'a> {
    Pair { ours: (ours, 0), beside: (beside, 0), unit: "µs" }
}

/// Rows without a target.
fn others(contest: &Contest, when: &str) -> Vec<Row> {
    let lanes = [(Dialect::Binary, false), (Dialect::Binary, true), (Dialect::Json, false), (Dialect::Json, true)];
    let row = |(dialect, tty): (Dialect, bool)| {
        let (ours, kind) = (lane(dialect, tty), if tty { "terminal" } else { "pipe" });
        let name = format!("echo {when}, {}, {kind}, p50 / WebSocket echo", dialect.name());
        contest.row(name, pair(&ours, BARE))
    };
    lanes.into_iter().map(row).collect()
}

fn lane(dialect: Dialect, tty: bool) -> String {
    format!("{}, {}", dialect.name(), if tty { "terminal" } else { "pipe" })
}

/// A process that echoes bytes, and its session.
struct Back {
    session: Session,
    process: u64,
}

fn hold(setting: &Setting<'_>, beside: Beside) -> Result<Contest> {
    let (rounds, batch) = match beside {
        Beside::Nothing | Beside::Others => setting.pick((5, 100), (21, 500)),
        Beside::Pauses => setting.pick((3, 20), (9, 40)),
        Beside::Flood => setting.pick((3, 20), (9, 100)),
    };
    let pause = if beside == Beside::Pauses { PAUSE } else { Duration::ZERO };
    let mut place = Place::start(setting)?;
    let echo = Echo::start(setting)?;
    let mut bare = Link::connect(&echo.url)?;
    let mut ours = Vec::new();
    for dialect in [Dialect::Binary, Dialect::Json] {
        for tty in [false, true] {
            let Some(session) = place.open(Way::new(Carrier::Ws, dialect))? else { continue };
            let mut back = Back::start(session, tty)?;
            if beside == Beside::Flood {
                back.session.start(Start::new(&["/bin/cat", "/dev/zero"]))?;
            }
            ours.push((lane(dialect, tty), back));
        }
    }
    let foreign = match beside {
        Beside::Nothing => Foreign::bare()?,
        Beside::Others => Foreign::start(setting)?,
        Beside::Pauses | Beside::Flood => Foreign::default(),
    };
    let Foreign { terminal, chains, ssh, cats, mut peers } = foreign;
    let mut lanes = vec![Lane::new(BARE, |_| {
        batch_of(batch, pause, |at| {
            let begun = Instant::now();
            roundtrip::exchange(&mut bare, WRITE, at)?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
    })];
    for (name, back) in &mut ours {
        let is_flooded = beside == Beside::Flood;
        lanes.push(Lane::new(&**name, move |_| batch_of(batch, pause, |at| back.byte(at as u8, is_flooded))));
    }
    if let Some(terminal) = &terminal {
        lanes.push(Lane::new(TERMINAL, |_| batch_of(batch, pause, |at| terminal.echo(at as u8))));
    }
    for (name, chain) in &chains {
        lanes.push(Lane::new(*name, |_| batch_of(batch, pause, |at| chain.echo(at as u8))));
    }
    for (name, cat) in &cats {
        lanes.push(Lane::new(*name, |_| batch_of(batch, pause, |at| cat.echo(at as u8))));
    }
    for (name, back) in &mut peers {
        lanes.push(Lane::new(*name, move |_| batch_of(batch, pause, |at| back.byte(at as u8, false))));
    }
    let contest = Contest::hold(rounds, lanes)?;
    drop(cats);
    ssh.map_or(Ok(()), Ssh::end)?;
    let backs = ours.into_iter().map(|(_, back)| back).chain(peers.into_iter().map(|(_, back)| back));
    for back in backs {
        back.session.end()?;
    }
    place.stop()?;
    Ok(contest)
}

/// The median and the 99th percentile of `count` measurements, with a pause before each.
fn batch_of(count: u32, pause: Duration, mut one: impl FnMut(u32) -> Result<f64>) -> Result<Figures> {
    let mut times = Vec::with_capacity(count as usize);
    for at in 0..count {
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        times.push(one(at)?);
    }
    Ok(vec![quantile(&times, 0.5), quantile(&times, 0.99)])
}

impl Back {
    fn start(mut session: Session, tty: bool) -> Result<Self> {
        let process = session.start(Start { tty, stdin: true, ..Start::new(&["/bin/sh", "-c", CAT]) })?;
        loop {
            match session.next()? {
                Incoming::Output { .. } => break,
                Incoming::Answer { refused: true, .. } => bail!("refused: {}", session.text()),
                _ => {}
            }
        }
        ensure!(session.bytes() == b"r", "`cat` began with {:?}", session.bytes());
        Ok(Self { session, process })
    }

    /// Microseconds until a byte is back. Its answer is received too, before or after.
    fn byte(&mut self, byte: u8, is_flooded: bool) -> Result<f64> {
        let begun = Instant::now();
        let asked = self.session.write(self.process, &[byte])?;
        let (mut took, mut is_answered) = (None, false);
        while took.is_none() || !is_answered {
            match self.session.next()? {
                Incoming::Output { process } if process == self.process => {
                    took = Some(begun.elapsed().as_secs_f64() * 1e6);
                    ensure!(self.session.bytes() == [byte], "{:?} came back for {byte}", self.session.bytes());
                }
                Incoming::Output { .. } => ensure!(is_flooded, "output of another process"),
                Incoming::Answer { id, refused } => {
                    ensure!(!refused, "refused: {}", self.session.text());
                    is_answered |= id == asked;
                }
                Incoming::Closed { .. } => bail!("`cat` has ended"),
                Incoming::Other => {}
            }
        }
        took.context("the byte is back")
    }
}

/// The programs that do the same without us.
#[derive(Default)]
struct Foreign<'a> {
    terminal: Option<Terminal>,
    chains: Vec<(&'static str, Chain)>,
    ssh: Option<Ssh<'a>>,
    cats: Vec<(&'static str, Cat)>,
    peers: Vec<(&'static str, Back)>,
}

impl<'a> Foreign<'a> {
    /// The programs that are started by us directly, and so on our current CPU.
    fn bare() -> Result<Self> {
        let terminal = Some(Terminal::start(Command::new("/bin/cat"))?);
        let chains = vec![(CHAIN, Chain::start(End::Pipe)?), (CHAIN_TTY, Chain::start(End::Terminal)?)];
        Ok(Self { terminal, chains, ..Self::default() })
    }

    /// All of them.
    fn start(setting: &'a Setting<'_>) -> Result<Self> {
        let mut foreign = Self::bare()?;
        if let Some(sshd) = setting.ssh {
            let ssh = Ssh::start(sshd)?;
            foreign.cats.push((SSH, Cat::start(ssh.shared(CAT)?)?));
            // Over the shared connection it would need a terminal on our side too.
            foreign.cats.push((SSH_TTY, Cat::start(ssh.alone(&["-tt"], CAT)?)?));
            foreign.ssh = Some(ssh);
        }
        for (name, tty) in [("peer, pipe", false), ("peer, terminal", true)] {
            if let Some(session) = setting.peer()? {
                foreign.peers.push((name, Back::start(session, tty)?));
            }
        }
        Ok(foreign)
    }
}
