//! M2: bridges that end leave nothing behind: within 5 s of EOF or SIGTERM, and within 8 s of a SIGKILL or a cut if the executor has
//! to wait for 3 s.
//!
//! Half of the servers end at EOF; the others ignore it. Each has started a daemon that leads its own session and ignores all signals that
//! can be ignored. Processes and fds of the server are counted before and after.

use std::{io::BufReader, sync::Arc};

use rustix::process::Signal;

use super::mcp_echo;
use crate::prelude::*;
use exec_server_harness::{environment::OwnedChild, server};

/// Concurrent bridges.
const AT_ONCE: u64 = 25;

/// How a bridge ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BridgeEnd {
    Input,
    Terminated,
    Killed,
    Cut,
}

/// One of the two promises.
struct EndGroup {
    name: &'static str,
    ways: [BridgeEnd; 2],
    keep: &'static str,
    within: Duration,
}

const END_GROUPS: [EndGroup; 2] = [
    EndGroup {
        name: "ended",
        ways: [BridgeEnd::Input, BridgeEnd::Terminated],
        keep: "5m",
        within: Duration::from_secs(5),
    },
    EndGroup {
        name: "vanished",
        ways: [BridgeEnd::Killed, BridgeEnd::Cut],
        keep: "3s",
        within: Duration::from_secs(8),
    },
];

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let count = setting.pick(8, 100, 1000);
    let setup = Setup::new(&setting.binary)?.arg("--allow-host").arg("127.0.0.1").arg("--max-pids").arg("none");
    let server = setup.start()?;
    let mut lines = Vec::new();
    // The first bridges of a kind may open fds that stay open.
    let mut before = None;
    for group in END_GROUPS {
        let mut times = Vec::new();
        let mut done = 0;
        while done < count {
            let batch = AT_ONCE.min(count - done);
            let ended = group.end_some(setting, &server, done, batch);
            times.extend(ended.with_context(|| format!("{}; the server says: {}", group.name, setup.log_tail()))?);
            done += batch;
            descendants::settle("holders", 0, || setup.holders().len() as u64)?;
            let now = server::descriptors(server.pid());
            let at_first = *before.get_or_insert(now);
            descendants::settle("descriptors of the server", at_first, || server::descriptors(server.pid()))?;
        }
        lines.push(Figures::survived(count).times(&mut times).set("part", group.name));
    }
    descendants::settle("dead and not reaped", 0, || descendants::zombies(&setup.family()))?;
    parallel_runs::finish(&setup, server)?;
    Ok(lines)
}

impl EndGroup {
    /// Ends some bridges at once; returns for each the milliseconds until nothing of it was left.
    fn end_some(&self, setting: &FaultSetting, server: &server::Server, from: u64, count: u64) -> Result<Vec<f64>> {
        let is_shut = Arc::new(AtomicBool::new(false));
        let shut = Arc::clone(&is_shut);
        let draw = move |_: &mut exec_server_harness::Random| match shut.load(Ordering::Relaxed) {
            true => Plan::default().up(0, Event::Rst).down(0, Event::Rst),
            false => Plan::default(),
        };
        let proxy = Proxy::start(server.address.socket, setting.seed, draw)?;
        let through = server.address.url_through(proxy.address());
        let mut bridges = Vec::new();
        for number in from..from + count {
            let end = self.ways[usize::try_from(number % 2)?];
            let url = if end == BridgeEnd::Cut { &through } else { &server.address.url };
            let mark = descendants::mark(number + if self.name == "ended" { 0 } else { 100_000 });
            bridges.push(AbandonedBridge::start(setting, url, self.keep, end, number, mark)?);
        }
        for bridge in &mut bridges {
            bridge.wait_up()?;
        }
        let begun = Instant::now();
        is_shut.store(true, Ordering::Relaxed);
        if self.ways.contains(&BridgeEnd::Cut) {
            proxy.cut(Event::Rst);
        }
        for bridge in &mut bridges {
            bridge.end();
        }
        let mut times = vec![None; bridges.len()];
        while times.contains(&None) {
            let marks: Vec<&str> = bridges.iter().map(|bridge| bridge.mark.as_str()).collect();
            let took = begun.elapsed();
            for (at, alive) in descendants::alive_of(&marks).into_iter().enumerate() {
                if alive == 0 && times[at].is_none() {
                    times[at] = Some(took.as_secs_f64() * 1e3);
                }
                ensure!(
                    alive == 0 || took < self.within,
                    "{alive} are alive after {took:?}: {}",
                    bridges[at].describe()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
        for bridge in &mut bridges {
            bridge.check_code()?;
        }
        Ok(times.into_iter().flatten().collect())
    }
}

/// A bridge to a server with a daemon.
struct AbandonedBridge {
    child: OwnedChild,
    end: BridgeEnd,
    heeds: bool,
    mark: String,
}

impl AbandonedBridge {
    fn start(setting: &FaultSetting, url: &str, keep: &str, end: BridgeEnd, number: u64, mark: String) -> Result<Self> {
        let program = records::program()?;
        // Both ways of ending are combined with both kinds of server.
        let heeds = (number / 2).is_multiple_of(2);
        let then = if heeds { "exec \"$0\" mcp \"$1\"" } else { "exec sleep \"$1\"" };
        let script = descendants::script(&mark, 1, then);
        let words = ["/bin/sh", "-c", &script, &program, &mark];
        let child = mcp_echo::bridge(&setting.binary, url, keep, &words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start a bridge")?;
        Ok(Self { child: OwnedChild(child), end, heeds, mark })
    }

    /// Waits until the server has reported that its daemon is up.
    fn wait_up(&mut self) -> Result<()> {
        let mut line = String::new();
        BufReader::new(self.child.stdout.as_mut().context("a pipe")?).read_line(&mut line)?;
        ensure!(line == "up\n", "the server said `{line}`");
        // Three processes: the daemon, the script or the program it exec'ed, and the bridge, which has their command line in its own.
        descendants::wait_alive(&self.mark, 3)
    }

    fn describe(&self) -> String {
        format!("{:?}, heeds the end of its input: {}", self.end, self.heeds)
    }

    /// Ends the bridge.
    fn end(&mut self) {
        let signal = match self.end {
            BridgeEnd::Input => {
                self.child.stdin = None;
                return;
            }
            BridgeEnd::Terminated => Signal::TERM,
            BridgeEnd::Killed => Signal::KILL,
            BridgeEnd::Cut => return,
        };
        processes::kill(self.child.id(), signal);
    }

    /// Checks that the bridge has ended with the right code.
    fn check_code(&mut self) -> Result<()> {
        let status = self.child.try_wait()?.with_context(|| format!("not ended: {}", self.describe()))?;
        let expected = match self.end {
            BridgeEnd::Input if self.heeds => Some(mcp_echo::CODE),
            BridgeEnd::Input => Some(0),
            BridgeEnd::Terminated if self.heeds => Some(mcp_echo::CODE),
            BridgeEnd::Terminated => Some(128 + 15),
            BridgeEnd::Killed => None,
            BridgeEnd::Cut => Some(255),
        };
        ensure!(status.code() == expected, "{}: the bridge ended with {status}, not {expected:?}", self.describe());
        Ok(())
    }
}
