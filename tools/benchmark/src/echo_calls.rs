//! The system calls that the server and the holder make for one echo of a byte through `cat` on a pipe, counted by `strace`.
//!
//! Without `strace`, or where it may not attach, the row says why it has no value.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    process::{Child, ChildStderr},
};

use exec_server_workspace::{packages, processes};
use rustix::process::Signal;

use super::{
    echo::EchoProcess,
    servers::{ConnectionKind, Transport},
    table::short,
};
use crate::prelude::*;

/// The echoes of one round. The server also wakes four times a second for other reasons, which adds a fraction to the count.
const ECHOES: u32 = 300;

const ROUNDS: u32 = 3;

/// The calls of one round by name.
type CallCounts = BTreeMap<String, u32>;

pub(super) fn row(setting: &BenchSetting<'_>) -> Result<Row> {
    let row = Row::new("system calls of an echo of a byte, server and holder", "calls").at_most(20.0);
    if let Err(error) = packages::ensure(packages::STRACE) {
        return Ok(row.note(format!("no strace: {error:#}")));
    }
    let mut servers = BenchServers::start(setting)?;
    let kind = ConnectionKind::new(Transport::Ws, MessageFormat::Json);
    let session = servers.open(kind)?.context("JSON is always offered")?;
    let mut echo = EchoProcess::start(session, false)?;
    let [holder] = servers.setup.holders()[..] else { bail!("one session has one holder") };
    let mut totals = Vec::new();
    let mut last = [CallCounts::new(), CallCounts::new()];
    let mut refused = None;
    for _ in 0..ROUNDS {
        match CallTracer::attach(servers.server.pid(), holder, &servers.setup) {
            Ok(tracer) => {
                for at in 0..ECHOES {
                    echo.byte(at as u8, false)?;
                }
                last = tracer.detach()?;
                let total: u32 = last.iter().flat_map(CallCounts::values).sum();
                totals.push(f64::from(total) / f64::from(ECHOES));
            }
            Err(error) => refused = Some(format!("{error:#}")),
        }
    }
    echo.session.end()?;
    servers.stop()?;
    Ok(match refused {
        Some(why) => row.note(why),
        None => row.values(totals).note(format!("server: {}; holder: {}", describe(&last[0]), describe(&last[1]))),
    })
}

/// The calls of one echo, without those that most echoes do not make.
fn describe(counts: &CallCounts) -> String {
    let each = counts.iter().map(|(name, count)| (name, f64::from(*count) / f64::from(ECHOES)));
    let calls: Vec<_> =
        each.filter(|(_, each)| *each >= 0.5).map(|(name, each)| format!("{} {name}", short(each))).collect();
    calls.join(", ")
}

/// A running `strace` of the server and the holder.
struct CallTracer {
    child: Child,
    holder: u32,
    log: std::path::PathBuf,
    /// Held open, because `strace` prints a line for every new thread.
    _stderr: BufReader<ChildStderr>,
}

impl CallTracer {
    fn attach(server: u32, holder: u32, setup: &Setup) -> Result<Self> {
        let log = setup.scratch().join("echo-calls");
        let mut child = Command::new("strace")
            .args(["-f", "-p", &server.to_string(), "-p", &holder.to_string(), "-o"])
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("start strace")?;
        let mut stderr = BufReader::new(child.stderr.take().context("standard error is a pipe")?);
        for _ in [server, holder] {
            let mut line = String::new();
            stderr.read_line(&mut line)?;
            if !line.contains("attached") {
                processes::kill(child.id(), Signal::TERM);
                child.wait()?;
                bail!("strace cannot attach: {}", line.trim());
            }
        }
        Ok(Self { child, holder, log, _stderr: stderr })
    }

    /// The calls of the server and of the holder.
    fn detach(mut self) -> Result<[CallCounts; 2]> {
        processes::kill(self.child.id(), Signal::TERM);
        self.child.wait()?;
        let log = fs::read_to_string(&self.log).with_context(|| format!("read `{}`", self.log.display()))?;
        let mut counts = [CallCounts::new(), CallCounts::new()];
        // A call that another one interrupts has a second line, `PID <... NAME resumed>`.
        for (pid, call) in log.lines().filter_map(|line| line.split_once(' ')) {
            if let Some((name, _)) = call.trim_start().split_once('(')
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            {
                let index = usize::from(pid == self.holder.to_string());
                *counts[index].entry(name.to_owned()).or_default() += 1;
            }
        }
        Ok(counts)
    }
}
