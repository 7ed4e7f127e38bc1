//! The speed of output to a fast reader: of one process and of eight, over every transport, and through a terminal. Compared with a raw
//! pipe, a bare terminal and OpenSSH.

use super::{
    baselines::{self, HEAD, TerminalProgram},
    servers::{ConnectionKind, Transport},
};
use crate::prelude::*;

const KINDS: [ConnectionKind; 6] = [
    ConnectionKind { transport: Transport::Unix, format: MessageFormat::Binary },
    ConnectionKind { transport: Transport::Ws, format: MessageFormat::Binary },
    ConnectionKind { transport: Transport::Stdio, format: MessageFormat::Binary },
    ConnectionKind { transport: Transport::Unix, format: MessageFormat::Json },
    ConnectionKind { transport: Transport::Ws, format: MessageFormat::Json },
    ConnectionKind { transport: Transport::Stdio, format: MessageFormat::Json },
];

/// Number of concurrent writers.
const EIGHT: u64 = 8;

const PIPE: &str = "raw pipe";
const PIPES: &str = "eight raw pipes";
const TERMINAL: &str = "bare terminal";
const SSH: &str = "OpenSSH";
const PEER: &str = "peer";

/// The workload of one of our lanes.
#[derive(Clone, Copy)]
pub(super) enum Workload {
    One,
    Eight,
    Terminal,
}

impl Workload {
    fn lane(self, kind: ConnectionKind) -> String {
        match self {
            Self::One => kind.name(),
            Self::Eight => format!("eight, {}", kind.name()),
            Self::Terminal => format!("terminal, {}", kind.name()),
        }
    }
}

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let (rounds, bytes) = setting.pick((3, 32 << 20), (9, 256 << 20));
    let mut servers = BenchServers::start(setting)?;
    let mut ours = Vec::new();
    for kind in KINDS {
        for load in [Workload::One, Workload::Eight, Workload::Terminal] {
            // Measure eight processes and a terminal over only one transport: the comparison does not depend on it.
            let is_wanted = matches!(load, Workload::One) || kind.transport == Transport::Ws;
            if is_wanted && let Some(session) = servers.open(kind)? {
                ours.push((load, load.lane(kind), session));
            }
        }
    }
    let ssh = setting.ssh.map(Ssh::start).transpose()?;
    let mut peer = setting.peer()?;
    let mut lanes = vec![
        BenchLane::new(PIPE, |is_first| Ok(vec![baselines::pipe(bytes, is_first)?])),
        BenchLane::new(PIPES, |_| Ok(vec![baselines::pipes(EIGHT, bytes)?])),
        BenchLane::new(TERMINAL, |is_first| Ok(vec![TerminalProgram::output(bytes / 4, is_first)?])),
    ];
    for (load, name, session) in &mut ours {
        lanes.push(BenchLane::new(&**name, |is_first| Ok(vec![output(session, *load, bytes, is_first)?])));
    }
    if let Some(ssh) = &ssh {
        lanes.push(BenchLane::new(SSH, |is_first| {
            let command = ssh.shared(&format!("{HEAD} -c {bytes} /dev/zero"))?;
            Ok(vec![baselines::output_of(command, bytes, is_first)?])
        }));
    }
    if let Some(peer) = &mut peer {
        lanes.push(BenchLane::new(PEER, |is_first| {
            // Other servers are slower, and fewer bytes are enough.
            let one = output(peer, Workload::One, bytes / 4, is_first)?;
            Ok(vec![one, output(peer, Workload::Terminal, bytes / 4, is_first)?])
        }));
    }
    let contest = Contest::hold(rounds, lanes)?;
    ssh.map_or(Ok(()), Ssh::end)?;
    for session in ours.into_iter().map(|(_, _, session)| session).chain(peer) {
        session.end()?;
    }
    servers.stop()?;
    Ok(Report { rows: rows(&contest), charts: vec![chart(&contest)] })
}

fn rows(contest: &Contest) -> Vec<Row> {
    let row = |name: String, ours: &str, beside: &str| {
        contest.row(name, Pair { ours: (ours, 0), beside: (beside, 0), unit: "MB/s" })
    };
    let mut rows = Vec::new();
    for kind in KINDS {
        let name = kind.name();
        let row = row(format!("output of one process, {name} / raw pipe"), &name, PIPE);
        rows.push(match (kind.format, kind.transport) {
            (MessageFormat::Binary, Transport::Unix) => row.at_least(0.55),
            (MessageFormat::Binary, Transport::Ws) => row.at_least(0.45),
            (MessageFormat::Json, Transport::Ws | Transport::Stdio) => row.at_least(0.25),
            (MessageFormat::Binary, Transport::Stdio) | (MessageFormat::Json, Transport::Unix) => row,
        });
    }
    for format in [MessageFormat::Binary, MessageFormat::Json] {
        let kind = ConnectionKind::new(Transport::Ws, format);
        let (name, eight, terminal) = (kind.name(), Workload::Eight.lane(kind), Workload::Terminal.lane(kind));
        let beside_ssh = row(format!("output of one process, {name} / OpenSSH"), &name, SSH);
        rows.push(if format == MessageFormat::Binary { beside_ssh.at_least(2.0) } else { beside_ssh });
        rows.push(row(format!("output of eight processes, {name} / of one"), &eight, &name).at_least(1.0));
        rows.push(row(format!("output through a terminal, {name} / raw pipe"), &terminal, PIPE).at_least(0.12));
        rows.push(row(format!("output through a terminal, {name} / bare terminal"), &terminal, TERMINAL));
    }
    // If the targets are missed, these rows show the lower bound: the same without us.
    rows.push(row("floor: output of eight raw pipes / of one".to_owned(), PIPES, PIPE));
    rows.push(row("floor: output through a bare terminal / raw pipe".to_owned(), TERMINAL, PIPE));
    rows.push(row("OpenSSH: output of one process / raw pipe".to_owned(), SSH, PIPE));
    if contest.median(PEER, 0).is_some() {
        rows.push(row("peer: output of one process / raw pipe".to_owned(), PEER, PIPE));
        let pair = Pair { ours: (PEER, 1), beside: (PIPE, 0), unit: "MB/s" };
        rows.push(contest.row("peer: output through a terminal / raw pipe", pair));
    }
    rows
}

fn chart(contest: &Contest) -> Bars {
    let value = |lane: &str| contest.median(lane, 0);
    Bars::new("Output of one process", "MB/s")
        .bar("raw pipe", BarOwner::Machine, value(PIPE))
        .bar("exec-server, binary, unix", BarOwner::Ours, value("binary/unix"))
        .bar("exec-server, binary, ws", BarOwner::Ours, value("binary/ws"))
        .bar("exec-server, JSON, ws", BarOwner::Ours, value("JSON/ws"))
        .bar("exec-server, JSON, stdio", BarOwner::Ours, value("JSON/stdio"))
        .bar("OpenSSH", BarOwner::Ssh, value(SSH))
        .bar("peer", BarOwner::Peer, value(PEER))
}

/// MB/s of processes on the server, as received by the client.
pub(super) fn output(session: &mut BenchSession, load: Workload, bytes: u64, is_first: bool) -> Result<f64> {
    let (count, each) = match load {
        Workload::One => (1, bytes),
        // Each writes as much as the single one, so that the cost of growing a log to its cap has the same weight.
        Workload::Eight => (EIGHT, bytes),
        Workload::Terminal => (1, bytes / 4),
    };
    let begun = Instant::now();
    let argument = each.to_string();
    let argv = [HEAD, "-c", &argument, "/dev/zero"];
    for _ in 0..count {
        session.start(StartRequest { tty: matches!(load, Workload::Terminal), ..StartRequest::new(&argv) })?;
    }
    let mut closed = Vec::new();
    while (closed.len() as u64) < count {
        match session.next()? {
            SessionMessage::Output { .. } => {
                ensure!(!is_first || session.bytes().iter().all(|byte| *byte == 0), "not what was written");
            }
            SessionMessage::Closed { process, bytes } => {
                ensure!(bytes == each, "{bytes} of {each} bytes through the server");
                closed.push(process);
            }
            SessionMessage::Answer { refused: true, .. } => bail!("refused: {}", session.text()),
            SessionMessage::Answer { .. } | SessionMessage::Other => {}
        }
    }
    let rate = (count * each) as f64 / 1e6 / begun.elapsed().as_secs_f64();
    session.forget(&closed)?;
    Ok(rate)
}
