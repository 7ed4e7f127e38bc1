//! The latency of a request and the number of requests per second, compared with a bare WebSocket echo on the same engine.
//!
//! All lanes send and read with the same few lines of code, so the client's cost is in both sides of a ratio.

use super::{
    baselines::{EchoServer, OneProcessor},
    lean_connection::MessageKind,
    servers::{ConnectionKind, Transport},
    table::quantile,
};
use crate::prelude::*;

/// Requests in flight at once in the pipelined measurement.
const IN_FLIGHT: u32 = 32;

/// The cheapest request, and one that every generation of the wire answers, with an error.
pub(super) const CHEAP: &str = "\"method\":\"environment/status\",\"params\":{}";
const KNOWN_TO_ALL: &str = "\"method\":\"process/read\",\"params\":{\"processId\":\"none\",\"afterSeq\":0}";

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let one = OneProcessor::take()?;
    let contest = hold(setting, None)?;
    drop(one);
    let free = hold(setting, setting.peer()?)?;

    let pair = |ours, index, unit| Pair { ours: (ours, index), beside: ("echo", index), unit };
    let mut rows = vec![
        contest.row("request round trip, p50 / WebSocket echo", pair("JSON/ws", 0, "µs")).at_most(1.3),
        contest.row("request round trip, p99 / WebSocket echo", pair("JSON/ws", 1, "µs")),
        contest.row("request round trip over unix, p50 / WebSocket echo", pair("JSON/unix", 0, "µs")),
        contest.row("request round trip over stdio, p50 / WebSocket echo", pair("JSON/stdio", 0, "µs")),
        contest.row("requests/s, 32 at once / WebSocket echo", pair("JSON/ws", 2, "/s")),
        contest.row("requests/s over unix, 32 at once / WebSocket echo", pair("JSON/unix", 2, "/s")),
        free.row("request round trip on all processors, p50 / WebSocket echo", pair("JSON/ws", 0, "µs")),
        free.row("requests/s on all processors, 32 at once / WebSocket echo", pair("JSON/ws", 2, "/s")),
    ];
    if setting.peer.is_some() {
        rows.push(free.row("peer: request round trip, p50 / WebSocket echo", pair("peer", 0, "µs")));
        rows.push(free.row("peer: request round trip, p99 / WebSocket echo", pair("peer", 1, "µs")));
        rows.push(free.row("peer: requests/s, 32 at once / WebSocket echo", pair("peer", 2, "/s")));
    }
    let chart = Bars::new("Request round trip", "µs")
        .bar("bare WebSocket echo", BarOwner::Machine, contest.median("echo", 0))
        .bar("exec-server, unix", BarOwner::Ours, contest.median("JSON/unix", 0))
        .bar("exec-server, ws", BarOwner::Ours, contest.median("JSON/ws", 0))
        .bar("peer", BarOwner::Peer, free.median("peer", 0));
    Ok(Report { rows, charts: vec![chart] })
}

fn hold(setting: &BenchSetting<'_>, mut peer: Option<BenchSession>) -> Result<Contest> {
    let (rounds, batch, pipelined) = setting.pick((5, 200, 1000), (21, 1000, 5000));
    let mut servers = BenchServers::start(setting)?;
    let echo = EchoServer::start(setting)?;
    let mut bare = BenchConnection::connect(&echo.url)?;
    let mut ours = Vec::new();
    for transport in [Transport::Ws, Transport::Unix, Transport::Stdio] {
        let kind = ConnectionKind::new(transport, MessageFormat::Json);
        ours.push((kind.name(), servers.open(kind)?.context("JSON is always offered")?));
    }
    let peer_asks = peer.as_mut().map(|peer| cheapest(peer)).transpose()?.unwrap_or(CHEAP);

    let mut lanes = vec![BenchLane::new("echo", |_| both(&mut bare, CHEAP, batch, pipelined))];
    for (name, session) in &mut ours {
        lanes.push(BenchLane::new(&**name, move |_| both(session.link(), CHEAP, batch, pipelined)));
    }
    if let Some(peer) = &mut peer {
        lanes.push(BenchLane::new("peer", move |_| both(peer.link(), peer_asks, batch, pipelined)));
    }
    let contest = Contest::hold(rounds, lanes)?;
    for session in ours.into_iter().map(|(_, session)| session).chain(peer) {
        session.end()?;
    }
    servers.stop()?;
    Ok(contest)
}

/// The request to use with a foreign server.
fn cheapest(peer: &mut BenchSession) -> Result<&'static str> {
    exchange(peer.link(), CHEAP, 1_000_000)?;
    let text = String::from_utf8_lossy(peer.link().message()).into_owned();
    Ok(if text.contains("\"error\"") { KNOWN_TO_ALL } else { CHEAP })
}

/// Median and 99th percentile in microseconds, and requests per second.
fn both(link: &mut BenchConnection, what: &str, batch: u32, pipelined: u32) -> Result<Vec<f64>> {
    let mut id = 0;
    let times = micros(batch, || {
        id += 1;
        exchange(link, what, id)
    })?;
    let begun = Instant::now();
    let (mut sent, mut answered) = (0, 0);
    while answered < pipelined {
        while sent < pipelined && sent < answered + IN_FLIGHT {
            ask(link, what, sent)?;
            sent += 1;
        }
        link.next()?;
        answered += 1;
    }
    let rate = f64::from(pipelined) / begun.elapsed().as_secs_f64();
    Ok(vec![quantile(&times, 0.5), quantile(&times, 0.99), rate])
}

/// Sends a message and waits for the answer with its id.
pub(super) fn exchange(link: &mut BenchConnection, what: &str, id: u32) -> Result<()> {
    let head = ask(link, what, id)?;
    let kind = link.next()?;
    let is_answer = kind == MessageKind::Text && memchr::memmem::find(link.message(), head.as_bytes()).is_some();
    ensure!(is_answer, "an answer to nothing: {}", String::from_utf8_lossy(link.message()));
    Ok(())
}

fn ask(link: &mut BenchConnection, what: &str, id: u32) -> Result<String> {
    let head = format!("\"id\":{id}");
    link.queue(MessageKind::Text, &[b"{", head.as_bytes(), b",", what.as_bytes(), b"}"])?;
    Ok(head)
}
