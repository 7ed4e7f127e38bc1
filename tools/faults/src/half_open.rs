//! F6: peers that are still connected for the server's kernel but never send anything again.
//!
//! There are two ways. A proxy swallows all data; its kernel still acknowledges, so only a resume can detect it. Or the link of a network
//! namespace goes down; nothing is acknowledged, so the server must notice by itself. In both cases the session goes to the client that
//! reconnects: at once with `takeover`, after an unanswered ping without it.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::producer_reader::ProducerReader;
use crate::prelude::*;
use exec_server_chaos::Way;
use exec_server_workspace::packages;

/// Concurrent half-open sessions.
const AT_ONCE: u64 = 10;

/// The silence after which the server must have noticed, and the allowed delay: a third of the ping interval, and two busy cores.
const DEAD_AFTER: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_millis(500);

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let mut random = setting.random("F6");
    let setup = Setup::new(&setting.binary)?
        .arg("--ping-every=300ms")
        .arg("--dead-after=1s")
        .arg("--log=info")
        .arg("--insecure-plaintext")
        .arg("--allow-host=127.0.0.1");
    let net = NetworkNamespace::new()?;
    let setup = setup.arg("--listen").arg(&format!("ws://{}:0", net.near));
    let mut server = setup.start()?;
    let (mut times, mut bytes, mut detected) = (Vec::new(), 0, Vec::new());
    let rounds = setting.pick(1, 5, 50);
    for round in 0..rounds {
        let proxy = Proxy::start(server.address.socket, random.next(), |_| Plan::default())?;
        let ways = [[Way::Up, Way::Down].as_slice(), &[Way::Up], &[Way::Down]][random.between(0, 3) as usize];
        let open = open_all(&server.address.through(proxy.address()), round * AT_ONCE)?;
        proxy.blackhole(ways);
        let back = come_back(&server.address, open, &mut random)
            .with_context(|| format!("swallowed {ways:?}; the server says: {}", setup.log_tail()))?;
        times.extend(back.0);
        bytes += back.1;
    }
    let second = server.second_line()?;
    let far = ServerAddress { socket: ServerAddress::parse(&second)?.socket, url: server.address.url.clone() };
    for round in 0..rounds {
        let known = noticed(&setup);
        let open = net.inside(|| open_all(&far, (rounds + round) * AT_ONCE))?;
        net.link("down")?;
        detected.push(wait_noticed(&setup, known + AT_ONCE)?);
        let back = come_back(&server.address, open, &mut random).context("after the link went down")?;
        times.extend(back.0);
        bytes += back.1;
        net.link("up")?;
    }
    setup.finish(server)?;
    let links = rounds * AT_ONCE;
    Figures::survived(2 * links)
        .set("bytes", bytes)
        .times(&mut times)
        .set("links_down", links)
        .set("worst_detection_ms", format!("{:.0}", figures::worst(&detected)))
        .only_line()
}

/// A client that no longer receives anything; its socket stays open.
struct SilentClient {
    session: String,
    reader: ProducerReader,
}

/// Twice the acknowledgement window, so that much of it is sent after the peer went silent.
const COUNT: u64 = (8 << 20) / RECORD;

fn open_all(address: &ServerAddress, first: u64) -> Result<Vec<SilentClient>> {
    (first..first + AT_ONCE)
        .map(|id| {
            let (wire, session) = WireClient::session(address)?;
            let mut reader = ProducerReader::start(wire, id, COUNT)?;
            while reader.seq == 0 {
                reader.take()?;
            }
            Ok(SilentClient { session, reader })
        })
        .collect()
}

/// Resumes all at once and reads each to its end; returns the times to resume, and the number of bytes.
fn come_back(address: &ServerAddress, open: Vec<SilentClient>, random: &mut Random) -> Result<(Vec<f64>, u64)> {
    thread::scope(|scope| {
        let lanes: Vec<_> = open
            .into_iter()
            .map(|open| {
                let takeover = random.one_in(2);
                scope.spawn(move || resume(address, open, takeover))
            })
            .collect();
        let mut times = Vec::new();
        for lane in lanes {
            times.push(lane.join().expect("a lane does not panic")?);
        }
        let bytes = times.len() as u64 * COUNT * RECORD;
        Ok((times, bytes))
    })
}

fn resume(address: &ServerAddress, open: SilentClient, takeover: bool) -> Result<f64> {
    let SilentClient { session, mut reader } = open;
    let mut params = hello(Some(&session));
    params["takeover"] = json!(takeover);
    let begun = Instant::now();
    let (wire, _) = WireClient::open(address, &params).with_context(|| format!("resume with takeover {takeover}"))?;
    let took = begun.elapsed();
    let promised = Duration::from_secs(if takeover { 1 } else { 3 });
    ensure!(took <= promised, "handed over after {took:?} with takeover {takeover}, promised {promised:?}");
    // Kept to the end: the socket of a silent client stays open.
    let _silent = reader.resume(wire);
    reader.finish().with_context(|| format!("session {session}"))?;
    Ok(took.as_secs_f64() * 1e3)
}

/// How many dead peers the server has reported.
fn noticed(setup: &Setup) -> u64 {
    setup.log().matches("no sign of life").count() as u64
}

fn wait_noticed(setup: &Setup, wanted: u64) -> Result<f64> {
    let took = try_until("all dead peers are noticed", DEAD_AFTER + SLACK, || Ok(noticed(setup) >= wanted))
        .with_context(|| format!("{} of {AT_ONCE} dead peers were not noticed", wanted - noticed(setup)))?;
    Ok(took.as_secs_f64() * 1e3)
}

/// A network namespace that is connected to us by one link; removed when dropped.
struct NetworkNamespace {
    name: String,
    link: String,
    /// The address of our end.
    near: String,
}

impl NetworkNamespace {
    fn new() -> Result<Self> {
        // Fail instead of skipping: half of the run must not pass for all of it.
        ensure!(rustix::process::geteuid().is_root(), "F6 takes down a link of its own, for which it must be root");
        packages::ensure(packages::IP).context("F6 takes down a link")?;
        let own = std::process::id();
        let (name, link) = (format!("xtask-{own}"), format!("xt{own}"));
        let (low, high) = (own % 200 + 20, own / 200 % 250);
        let net = Self { near: format!("10.{low}.{high}.1"), name, link };
        let (near, far) = (format!("{}/24", net.near), format!("10.{low}.{high}.2/24"));
        for line in [
            format!("netns add {}", net.name),
            format!("link add {} type veth peer name far0 netns {}", net.link, net.name),
            format!("addr add {near} dev {}", net.link),
            format!("link set {} up", net.link),
            format!("-n {} addr add {far} dev far0", net.name),
            format!("-n {} link set far0 up", net.name),
        ] {
            ip(&line)?;
        }
        Ok(net)
    }

    /// Sets the link up or down; while it is down, packets are lost.
    fn link(&self, state: &str) -> Result<()> {
        ip(&format!("-n {} link set far0 {state}", self.name))
    }

    /// Runs `work` in a thread inside the namespace; sockets that it opens stay there.
    fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let door = std::fs::File::open(format!("/run/netns/{}", self.name))?;
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                use std::os::fd::AsFd as _;
                move_into_link_name_space(door.as_fd(), Some(LinkNameSpaceType::Network))?;
                work()
            });
            inside.join().expect("the work does not panic")
        })
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.name)).ok(); // Its link goes with it.
        ip(&format!("link del {}", self.link)).ok(); // Only left if the namespace was not created.
    }
}

fn ip(line: &str) -> Result<()> {
    let output = Command::new("ip").args(line.split(' ')).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {line}`: {said}");
    Ok(())
}
