//! What a spawn costs: `process/start` of `true` until `process/closed`, beside a bare fork, exec and wait.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Rounds, Row, Setting, TRUE, median};
use crate::{
    children,
    server::Setup,
    wire::{self, Incoming, Wire},
};

/// Outputs kept to make the server heavy: 64 times the memory cap of a process are 1 GiB.
const HEAVY_PROCESSES: usize = 64;
const HEAVY_BYTES: u64 = 16 << 20;

pub(super) fn measure(setting: &Setting) -> Result<Vec<Row>> {
    let (rounds, batch) = setting.pick((9, 15), (21, 50));
    let setup = Setup::new(&setting.binary)?;
    let server = setup.start()?;
    let (mut wire, _) = Wire::session(&server.address)?;
    let mut bare = Bare::start()?;
    let mut spawner = Spawner::new(&mut wire, 0);
    let mut rows = Vec::new();

    let (pipe, tty) = spawner.compare(&mut bare, rounds, batch)?;
    rows.push(row("spawn / bare fork+exec+wait", 1.7, &pipe, ""));
    rows.push(row("spawn with a terminal / bare fork+exec+wait", 2.0, &tty.plain, ""));
    rows.push(Row { target: None, ..row("spawn with a terminal / bare with a terminal", 0.0, &tty.terminal, "") });

    let held = spawner.fill(&setup)?;
    let note = format!(", {} MiB held", held >> 10);
    let (pipe, tty) = spawner.compare(&mut bare, rounds, batch)?;
    rows.push(row("spawn at 1 GiB / bare fork+exec+wait", 1.7, &pipe, &note));
    rows.push(row("spawn with a terminal at 1 GiB / bare", 2.0, &tty.plain, &note));

    wire.call("session/end", &json!({}))?;
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    Ok(rows)
}

fn row(name: &'static str, target: f64, rounds: &Rounds, note: &str) -> Row {
    let figures = format!("{}{note}", rounds.figures("µs"));
    Row { name, value: rounds.ratio(), unit: "x", target: Some(target), note: figures }
}

/// Spawns with a terminal beside both yardsticks.
#[derive(Default)]
struct Terminal {
    plain: Rounds,
    terminal: Rounds,
}

/// The client that starts `true` again and again.
pub(super) struct Spawner<'a> {
    wire: &'a mut Wire,
    next: u64,
}

impl<'a> Spawner<'a> {
    /// One whose processes are numbered from here on.
    pub(super) fn new(wire: &'a mut Wire, next: u64) -> Self {
        Self { wire, next }
    }
    fn compare(&mut self, bare: &mut Bare, rounds: u32, batch: u32) -> Result<(Rounds, Terminal)> {
        let (mut pipe, mut tty) = (Rounds::default(), Terminal::default());
        // The first round warms caches and counts for nothing.
        for round in 0..=rounds {
            let plain = bare.batch("pipe", batch)?;
            let ours = self.batch(&json!({ "tty": false }), batch)?;
            let ours_tty = self.batch(&json!({ "tty": true }), batch)?;
            let plain_tty = bare.batch("tty", batch)?;
            if round > 0 {
                pipe.add(ours, plain);
                tty.plain.add(ours_tty, plain);
                tty.terminal.add(ours_tty, plain_tty);
            }
        }
        Ok((pipe, tty))
    }

    /// The median of a batch in microseconds, each start with these members.
    pub(super) fn batch(&mut self, members: &Value, count: u32) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..count {
            self.next += 1;
            let process = format!("spawn-{}", self.next);
            let mut params = wire::start(&process, &[TRUE]);
            for (name, value) in members.as_object().into_iter().flatten() {
                params[name] = value.clone();
            }
            let begun = Instant::now();
            self.wire.send("process/start", &params)?;
            self.wait_closed(&process)?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            self.wire.call("process/forget", &json!({ "processId": process }))?;
        }
        Ok(median(times))
    }

    fn wait_closed(&mut self, process: &str) -> Result<()> {
        loop {
            match self.wire.next()? {
                Incoming::Closed { process: closed, .. } if closed == process => return Ok(()),
                Incoming::Exited { process: exited, code, .. } if exited == process => {
                    ensure!(code == 0, "`true` exited with {code}");
                }
                Incoming::Answer { outcome, .. } => drop(outcome?),
                _ => {}
            }
        }
    }

    /// Makes server and holder heavy with output that nobody takes, and reads it once so that the server maps it.
    fn fill(&mut self, setup: &Setup) -> Result<u64> {
        let program = children::program()?;
        for number in 0..HEAVY_PROCESSES {
            let bytes = (HEAVY_BYTES * 2).to_string();
            let params = wire::start(&format!("heavy-{number}"), &[&program, "child", "flood", &bytes]);
            self.wire.call("process/start", &params)?;
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let list = self.wire.call("process/list", &json!({}))?;
            self.wire.forget_early();
            let full = |entry: &&Value| entry["outputBytes"].as_u64() >= Some(HEAVY_BYTES * 15 / 16);
            let entries = list["processes"].as_array().context("`process/list` gave no `processes`")?;
            if entries.iter().filter(full).count() >= HEAVY_PROCESSES {
                break;
            }
            ensure!(Instant::now() < deadline, "the processes did not fill their logs within 60 s");
        }
        for number in 0..HEAVY_PROCESSES {
            self.read_all(&format!("heavy-{number}"))?;
        }
        Ok(setup.memory_kib())
    }

    fn read_all(&mut self, process: &str) -> Result<()> {
        let mut after = 0;
        loop {
            let params = json!({ "processId": process, "afterSeq": after, "maxBytes": 4 << 20 });
            let answer = self.wire.call("process/read", &params)?;
            self.wire.forget_early();
            if answer["chunks"].as_array().is_none_or(Vec::is_empty) {
                return Ok(());
            }
            after = answer["nextSeq"].as_u64().context("no `nextSeq`")? - 1;
        }
    }
}

/// The yardstick, in a small process of its own.
struct Bare {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Bare {
    fn start() -> Result<Self> {
        let mut child = Command::new(children::program()?)
            .args(["child", "bare"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().context("standard input is a pipe")?;
        let stdout = BufReader::new(child.stdout.take().context("standard output is a pipe")?);
        Ok(Self { child, stdin, stdout })
    }

    /// The median of a batch in microseconds.
    fn batch(&mut self, kind: &str, count: u32) -> Result<f64> {
        writeln!(self.stdin, "{kind} {count}")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let times: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        ensure!(times.len() == count as usize, "the bare child measured {} of {count}", times.len());
        Ok(median(times) / 1e3)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.child.kill().ok(); // Ended already where it failed.
        self.child.wait().ok();
    }
}
