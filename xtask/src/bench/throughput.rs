//! The speed of output to a fast reader: of one process and of eight, over every transport, and through a terminal. Compared with a raw
//! pipe, a bare terminal and OpenSSH.

use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::{
    Setting,
    message::{Dialect, Start},
    place::{Carrier, Place, Way},
    session::{Incoming, Session},
    ssh::Ssh,
    table::{Bars, Contest, Lane, Pair, Report, Row, Whose},
    yard::{self, HEAD, Terminal},
};

const WAYS: [Way; 6] = [
    Way { carrier: Carrier::Unix, dialect: Dialect::Binary },
    Way { carrier: Carrier::Ws, dialect: Dialect::Binary },
    Way { carrier: Carrier::Stdio, dialect: Dialect::Binary },
    Way { carrier: Carrier::Unix, dialect: Dialect::Json },
    Way { carrier: Carrier::Ws, dialect: Dialect::Json },
    Way { carrier: Carrier::Stdio, dialect: Dialect::Json },
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
enum Load {
    One,
    Eight,
    Terminal,
}

impl Load {
    fn lane(self, way: Way) -> String {
        match self {
            Self::One => way.name(),
            Self::Eight => format!("eight, {}", way.name()),
            Self::Terminal => format!("terminal, {}", way.name()),
        }
    }
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<Report> {
    let (rounds, bytes) = setting.pick((3, 32 << 20), (9, 256 << 20));
    let mut place = Place::start(setting)?;
    let mut ours = Vec::new();
    for way in WAYS {
        for load in [Load::One, Load::Eight, Load::Terminal] {
            // Measure eight processes and a terminal over only one transport: the comparison does not depend on it.
            let is_wanted = matches!(load, Load::One) || way.carrier == Carrier::Ws;
            if is_wanted && let Some(session) = place.open(way)? {
                ours.push((load, load.lane(way), session));
            }
        }
    }
    let ssh = setting.ssh.map(Ssh::start).transpose()?;
    let mut peer = setting.peer()?;
    let mut lanes = vec![
        Lane::new(PIPE, |is_first| Ok(vec![yard::pipe(bytes, is_first)?])),
        Lane::new(PIPES, |_| Ok(vec![yard::pipes(EIGHT, bytes)?])),
        Lane::new(TERMINAL, |is_first| Ok(vec![Terminal::output(bytes / 4, is_first)?])),
    ];
    for (load, name, session) in &mut ours {
        lanes.push(Lane::new(&**name, |is_first| Ok(vec![output(session, *load, bytes, is_first)?])));
    }
    if let Some(ssh) = &ssh {
        lanes.push(Lane::new(SSH, |is_first| {
            let command = ssh.shared(&format!("{HEAD} -c {bytes} /dev/zero"))?;
            Ok(vec![yard::output_of(command, bytes, is_first)?])
        }));
    }
    if let Some(peer) = &mut peer {
        lanes.push(Lane::new(PEER, |is_first| {
            // Other servers are slower, and fewer bytes are enough.
            let one = output(peer, Load::One, bytes / 4, is_first)?;
            Ok(vec![one, output(peer, Load::Terminal, bytes / 4, is_first)?])
        }));
    }
    let contest = Contest::hold(rounds, lanes)?;
    ssh.map_or(Ok(()), Ssh::end)?;
    for session in ours.into_iter().map(|(_, _, session)| session).chain(peer) {
        session.end()?;
    }
    place.stop()?;
    Ok(Report { rows: rows(&contest), charts: vec![chart(&contest)] })
}

fn rows(contest: &Contest) -> Vec<Row> {
    let row = |name: String, ours: &str, beside: &str| {
        contest.row(name, Pair { ours: (ours, 0), beside: (beside, 0), unit: "MB/s" })
    };
    let mut rows = Vec::new();
    for way in WAYS {
        let name = way.name();
        let row = row(format!("output of one process, {name} / raw pipe"), &name, PIPE);
        rows.push(match (way.dialect, way.carrier) {
            (Dialect::Binary, Carrier::Unix) => row.at_least(0.55),
            (Dialect::Binary, Carrier::Ws) => row.at_least(0.45),
            (Dialect::Json, Carrier::Ws | Carrier::Stdio) => row.at_least(0.25),
            (Dialect::Binary, Carrier::Stdio) | (Dialect::Json, Carrier::Unix) => row,
        });
    }
    for dialect in [Dialect::Binary, Dialect::Json] {
        let way = Way::new(Carrier::Ws, dialect);
        let (name, eight, terminal) = (way.name(), Load::Eight.lane(way), Load::Terminal.lane(way));
        let beside_ssh = row(format!("output of one process, {name} / OpenSSH"), &name, SSH);
        rows.push(if dialect == Dialect::Binary { beside_ssh.at_least(2.0) } else { beside_ssh });
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
        .bar("raw pipe", Whose::Machine, value(PIPE))
        .bar("exec-server, binary, unix", Whose::Ours, value("binary/unix"))
        .bar("exec-server, binary, ws", Whose::Ours, value("binary/ws"))
        .bar("exec-server, JSON, ws", Whose::Ours, value("JSON/ws"))
        .bar("exec-server, JSON, stdio", Whose::Ours, value("JSON/stdio"))
        .bar("OpenSSH", Whose::Ssh, value(SSH))
        .bar("peer", Whose::Peer, value(PEER))
}

/// MB/s of processes on the server, as received by the client.
fn output(session: &mut Session, load: Load, bytes: u64, is_first: bool) -> Result<f64> {
    let (count, each) = match load {
        Load::One => (1, bytes),
        // Each writes as much as the single one, so that the cost of growing a log to its cap has the same weight.
        Load::Eight => (EIGHT, bytes),
        Load::Terminal => (1, bytes / 4),
    };
    let begun = Instant::now();
    let argument = each.to_string();
    let argv = [HEAD, "-c", &argument, "/dev/zero"];
    for _ in 0..count {
        session.start(Start { tty: matches!(load, Load::Terminal), ..Start::new(&argv) })?;
    }
    let mut closed = Vec::new();
    while (closed.len() as u64) < count {
        match session.next()? {
            Incoming::Output { .. } => {
                ensure!(!is_first || session.bytes().iter().all(|byte| *byte == 0), "not what was written");
            }
            Incoming::Closed { process, bytes } => {
                ensure!(bytes == each, "{bytes} of {each} bytes through the server");
                closed.push(process);
            }
            Incoming::Answer { refused: true, .. } => bail!("refused: {}", session.text()),
            Incoming::Answer { .. } | Incoming::Other => {}
        }
    }
    let rate = (count * each) as f64 / 1e6 / begun.elapsed().as_secs_f64();
    session.forget(&closed)?;
    Ok(rate)
}
