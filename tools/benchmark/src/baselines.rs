//! The baseline programs: a raw pipe, a bare terminal, bare fork and exec, the WebSocket echo on the same engine.
//!
//! Starts, reads and ends them. All readers are alike: plain reads into one buffer, and the total is checked. Does not use the server or
//! the wire protocol.

use std::{
    io::{BufRead as _, BufReader},
    os::fd::AsFd,
    process::{ChildStdin, ChildStdout},
};

use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    pty::OpenptFlags,
    termios::OptionalActions,
    thread::CpuSet,
};

use super::lean_connection;
use crate::prelude::*;
use exec_server_harness::{environment::OwnedChild, records};
use exec_server_workspace::processes::first_line;

/// Buffer size of a plain reader.
const READ: usize = 64 << 10;

/// Writes zeros; by its full path, so that no PATH search is measured.
pub(super) const HEAD: &str = "/usr/bin/head";

/// Pins this thread, and everything it starts, to one CPU until it is dropped.
///
/// If a CPU is idle, the kernel runs two programs that wake each other sometimes on one CPU and sometimes on two, and the same exchange can
/// take four times as long. On one CPU, the work of both programs is compared.
pub(super) struct OneProcessor {
    before: CpuSet,
}

impl OneProcessor {
    pub(super) fn take() -> Result<Self> {
        let before = rustix::thread::sched_getaffinity(None)?;
        let first = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).context("no processor")?;
        let mut one = CpuSet::new();
        one.set(first);
        rustix::thread::sched_setaffinity(None, &one)?;
        Ok(Self { before })
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        rustix::thread::sched_setaffinity(None, &self.before).ok(); // Setting the previous affinity cannot be refused.
    }
}

/// Reads to the end of an fd and returns the number of bytes; in the first round they must be zeros.
pub(super) fn drain(fd: impl AsFd, are_zeros: bool) -> Result<u64> {
    let mut buffer = vec![0; READ];
    let mut seen = 0;
    loop {
        match rustix::io::read(&fd, &mut buffer) {
            // Reading a terminal fails with EIO once no process has it open.
            Ok(0) | Err(Errno::IO) => return Ok(seen),
            Ok(count) => {
                ensure!(!are_zeros || buffer[..count].iter().all(|byte| *byte == 0), "not what was written");
                seen += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("read a yardstick"),
        }
    }
}

/// Microseconds of a command from its start to its end.
pub(super) fn timed(mut command: Command) -> Result<f64> {
    let begun = Instant::now();
    let status =
        command.stdin(Stdio::null()).stdout(Stdio::null()).status().with_context(|| format!("start `{command:?}`"))?;
    let took = begun.elapsed().as_secs_f64() * 1e6;
    ensure!(status.success(), "`{command:?}` {status}");
    Ok(took)
}

/// MB/s of a command's output to a pipe.
pub(super) fn output_of(mut command: Command, bytes: u64, is_first: bool) -> Result<f64> {
    let begun = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().context("standard output is a pipe")?;
    let seen = drain(&stdout, is_first)?;
    let took = begun.elapsed().as_secs_f64();
    ensure!(child.wait()?.success() && seen == bytes, "{seen} of {bytes} bytes through a pipe");
    Ok(bytes as f64 / 1e6 / took)
}

/// A command that writes this many zeros.
fn zeros(bytes: u64) -> Command {
    let mut head = Command::new(HEAD);
    head.args(["-c", &bytes.to_string(), "/dev/zero"]).stdin(Stdio::null()).stdout(Stdio::piped());
    head
}

/// MB/s of a raw pipe.
pub(super) fn pipe(bytes: u64, is_first: bool) -> Result<f64> {
    output_of(zeros(bytes), bytes, is_first)
}

/// MB/s of `count` raw pipes together, with one reader.
pub(super) fn pipes(count: u64, bytes: u64) -> Result<f64> {
    let each = bytes / count;
    let begun = Instant::now();
    let mut heads = (0..count).map(|_| zeros(each).spawn()).collect::<Result<Vec<_>, _>>()?;
    let mut open: Vec<ChildStdout> = heads.iter_mut().filter_map(|head| head.stdout.take()).collect();
    let (mut buffer, mut seen) = (vec![0; READ], 0);
    while !open.is_empty() {
        let mut polled: Vec<PollFd<'_>> = open.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None))?;
        let is_ready: Vec<bool> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        // From the last one, so that a pipe at EOF can be removed.
        for (at, _) in is_ready.iter().enumerate().rev().filter(|(_, is_ready)| **is_ready) {
            match rustix::io::retry_on_intr(|| rustix::io::read(&open[at], &mut buffer)).context("read a yardstick")? {
                0 => drop(open.swap_remove(at)),
                count => seen += count as u64,
            }
        }
    }
    let took = begun.elapsed().as_secs_f64();
    for mut head in heads {
        ensure!(head.wait()?.success(), "a yardstick failed");
    }
    ensure!(seen == each * count, "{seen} of {bytes} bytes through {count} pipes");
    Ok(seen as f64 / 1e6 / took)
}

/// A program on a terminal, from the master side.
pub(super) struct TerminalProgram {
    _child: OwnedChild,
    pub(super) master: OwnedFd,
}

impl TerminalProgram {
    /// Starts a program on a raw terminal without echo.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::pty::unlockpt(&master)?;
        let name = rustix::pty::ptsname(&master, Vec::new())?;
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let slave = rustix::fs::open(name, flags, rustix::fs::Mode::empty())?;
        let mut modes = rustix::termios::tcgetattr(&slave)?;
        modes.make_raw();
        rustix::termios::tcsetattr(&slave, OptionalActions::Now, &modes)?;
        let child = command.stdin(slave.try_clone()?).stdout(slave).stderr(Stdio::null()).spawn()?;
        // The command holds copies of the slave; drop them.
        drop(command);
        Ok(Self { _child: OwnedChild(child), master })
    }

    /// MB/s of zeros through a terminal.
    pub(super) fn output(bytes: u64, is_first: bool) -> Result<f64> {
        let begun = Instant::now();
        let terminal = Self::start(zeros(bytes))?;
        let seen = drain(&terminal.master, is_first)?;
        ensure!(seen == bytes, "{seen} of {bytes} bytes through a terminal");
        Ok(bytes as f64 / 1e6 / begun.elapsed().as_secs_f64())
    }

    /// Microseconds until a byte is back.
    pub(super) fn echo(&self, byte: u8) -> Result<f64> {
        exchange(&self.master, &self.master, byte, &[byte])
    }
}

/// Microseconds until the expected answer to a byte has been read.
pub(super) fn exchange(writer: impl AsFd, reader: impl AsFd, byte: u8, expected: &[u8]) -> Result<f64> {
    let begun = Instant::now();
    rustix::io::retry_on_intr(|| rustix::io::write(&writer, &[byte]))?;
    let (mut back, mut seen) = ([0; 16], 0);
    while seen < expected.len() {
        lean_connection::wait_readable(&reader)?;
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&reader, &mut back[seen..]))?;
        ensure!(count > 0, "the end came for {byte}");
        seen += count;
    }
    let took = begun.elapsed().as_secs_f64() * 1e6;
    ensure!(back[..seen] == *expected, "{:?} came back for {byte}", &back[..seen]);
    Ok(took)
}

/// A program that echoes its input.
pub(super) struct EchoProgram {
    _child: OwnedChild,
    stdin: ChildStdin,
    stdout: ChildStdout,
}

impl EchoProgram {
    /// Starts the program and waits for the byte that shows that it runs.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        let mut child = OwnedChild(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let stdin = child.stdin.take().context("standard input is a pipe")?;
        let stdout = child.stdout.take().context("standard output is a pipe")?;
        let cat = Self { _child: child, stdin, stdout };
        lean_connection::wait_readable(&cat.stdout)?;
        let mut said = [0; 16];
        let count = rustix::io::read(&cat.stdout, &mut said)?;
        ensure!(said[..count] == *b"r", "`cat` began with {:?}", &said[..count]);
        Ok(cat)
    }

    /// Microseconds until a byte is back.
    pub(super) fn echo(&self, byte: u8) -> Result<f64> {
        exchange(&self.stdin, &self.stdout, byte, &[byte])
    }
}

/// The WebSocket echo on the engine of the server.
pub(super) struct EchoServer {
    _child: OwnedChild,
    pub(super) url: String,
}

impl EchoServer {
    pub(super) fn start(setting: &BenchSetting<'_>) -> Result<Self> {
        let child = Command::new(&setting.echo).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut child = OwnedChild(child);
        let url = first_line(&mut child)?;
        Ok(Self { _child: child, url })
    }
}

/// Bare fork, exec and wait, in a separate small process.
pub(super) struct BareSpawner {
    _child: OwnedChild,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl BareSpawner {
    pub(super) fn start() -> Result<Self> {
        let mut command = Command::new(records::program()?);
        command.args(["bare"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = OwnedChild(command.spawn()?);
        let stdin = child.stdin.take().context("standard input is a pipe")?;
        let stdout = BufReader::new(child.stdout.take().context("standard output is a pipe")?);
        Ok(Self { _child: child, stdin, stdout })
    }

    /// The times of a batch in microseconds, each with or without a terminal.
    pub(super) fn batch(&mut self, tty: bool, count: u32) -> Result<Vec<f64>> {
        let times = self.ask(&format!("{} {count}", if tty { "tty" } else { "pipe" }))?;
        ensure!(times.len() == count as usize, "the bare child measured {} of {count}", times.len());
        Ok(times.into_iter().map(|nanoseconds| nanoseconds / 1e3).collect())
    }

    /// Processes per second with `at_once` running: the machine's own rate.
    pub(super) fn rate(&mut self, at_once: u32, count: u32) -> Result<f64> {
        match self.ask(&format!("rate {count} {at_once}"))?[..] {
            [nanoseconds] => Ok(f64::from(count) * 1e9 / nanoseconds),
            _ => bail!("the bare child told no rate"),
        }
    }

    fn ask(&mut self, line: &str) -> Result<Vec<f64>> {
        writeln!(self.stdin, "{line}")?;
        let mut answer = String::new();
        self.stdout.read_line(&mut answer)?;
        Ok(answer.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    }
}
