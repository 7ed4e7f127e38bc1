//! F10: failing system calls. `strace` makes the kernel refuse a holder's disk operations (EIO, ENOSPC, EINTR on write, open and rename)
//! and interrupts the server's socket calls. Nothing is lost, no process dies, and neighbours keep working.
//!
//! Short writes cannot be injected this way: F19 splits every write of a segment, and F9 fills the disk during a write.

use std::{io::BufReader, process::ChildStderr};

use rustix::process::Signal;

use super::detached_producer::{self, Flood, OverflowPolicy};
use crate::prelude::*;
use exec_server_harness::environment::OwnedChild;
use exec_server_workspace::{packages, processes::kill};

/// Bytes of each flood: 3 MiB in memory and six segments on disk.
const FLOOD_BYTES: u64 = 9 << 20;

/// The holder's calls that fail, every third one: an attempt may need two. After a failure other than EINTR the holder does not use the
/// disk for a second.
const DISK: &[&str] =
    &["pwrite64:error=EIO", "pwrite64:error=ENOSPC", "pwrite64:error=EINTR", "openat:error=EIO", "renameat:error=EIO"];

/// The server's calls that are interrupted: every hundredth one of each thread.
const SOCKETS: &str = "recvfrom,sendto,recvmsg,sendmsg,writev,epoll_wait:error=EINTR:when=20+100";

/// How the log of `strace` says that a thread has stopped.
const STOPPED: &str = "--- stopped by SIGSTOP ---";

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    packages::ensure(packages::STRACE).context("F10 lets calls fail")?;
    let wanted = setting.pick(12, 200, 5000);
    let mut tally = FailedCalls::default();
    for round in 0.. {
        if tally.disk >= wanted {
            break;
        }
        ensure!(round < wanted, "only {} calls failed in {round} rounds", tally.disk);
        let setup = Setup::new(&setting.binary)?.arg("--memory-per-process").arg("3MiB");
        tally
            .add_round(&setup, round)
            .with_context(|| format!("round {round}; the server says: {}", setup.log_tail()))?;
    }
    let FailedCalls { disk, sockets, bytes, neighbour_ms } = tally;
    Figures::survived(disk + sockets)
        .set("bytes", bytes)
        .set("disk", disk)
        .set("sockets", sockets)
        .set("neighbour_worst_ms", format!("{neighbour_ms:.1}"))
        .only_line()
}

/// The results so far.
#[derive(Default)]
struct FailedCalls {
    disk: u64,
    sockets: u64,
    bytes: u64,
    /// The longest turn of a neighbour.
    neighbour_ms: f64,
}

impl FailedCalls {
    fn add_round(&mut self, setup: &Setup, round: u64) -> Result<()> {
        let server = setup.start()?;
        let (mut observer, _) = WireClient::session(&server.address)?;
        detached_producer::neighbour(&mut observer, "first")?;
        let mut sessions = Vec::new();
        let mut tracers = Vec::new();
        for (number, fault) in (0..).zip(DISK) {
            let known = setup.holders();
            let (mut wire, session) = WireClient::session(&server.address)?;
            let flood = Flood::new(round * 100 + number, FLOOD_BYTES, OverflowPolicy::Block);
            flood.start(&mut wire)?;
            tracers.push(Tracer::attach(setup.new_holder(&known)?, &format!("{fault}:when=1+3"), setup.scratch())?);
            // The client disconnects: from now on the flood goes to disk.
            sessions.push((session, [flood]));
        }
        try_until("every flood is written whole, against all refusals", Duration::from_secs(60), || {
            self.neighbour_ms = self.neighbour_ms.max(detached_producer::neighbour(&mut observer, "neighbour")?);
            let list = detached_producer::listed(&mut observer)?;
            let is_whole =
                |flood: &Flood| list.get(&flood.name()).is_some_and(|entry| entry["outputBytes"] == FLOOD_BYTES);
            Ok(sessions.iter().all(|(_, floods)| floods.iter().all(is_whole)))
        })?;
        self.disk += tracers.into_iter().map(Tracer::detach).sum::<Result<u64>>()?;
        let tracer = Tracer::attach(server.pid(), SOCKETS, setup.scratch())?;
        for (session, floods) in &mut sessions {
            self.bytes += detached_producer::drain(&server.address, session, floods)?;
        }
        let sockets = tracer.detach()?;
        ensure!(sockets > 0, "no call of the server was interrupted");
        self.sockets += sockets;
        detached_producer::neighbour(&mut observer, "last")?;
        drop(observer);
        server.stop()
    }
}

/// A running `strace` that makes calls of one process fail.
struct Tracer {
    child: OwnedChild,
    pid: u32,
    log: PathBuf,
    /// Held open, because `strace` prints a line for every new thread.
    _stderr: BufReader<ChildStderr>,
}

impl Tracer {
    fn attach(pid: u32, fault: &str, scratch: &Path) -> Result<Self> {
        let log = scratch.join(format!("strace-{pid}"));
        let calls = fault.split(':').next().unwrap_or_default();
        let child = Command::new("strace")
            .args(["-f", "-p", &pid.to_string()])
            .args(["-e", &format!("trace={calls}"), "-e", &format!("inject={fault}"), "-o"])
            .arg(&log)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("start strace")?;
        let mut child = OwnedChild(child);
        let mut stderr = BufReader::new(child.stderr.take().context("standard error is a pipe")?);
        let mut line = String::new();
        stderr.read_line(&mut line)?;
        let tracer = Self { child, pid, log, _stderr: stderr };
        ensure!(line.contains("attached"), "strace cannot attach to {pid}: {line}");
        Ok(tracer)
    }

    /// Ends the tracing. Returns how many calls were refused.
    ///
    /// `strace` makes a call fail in two steps: it replaces the call by one that does not exist, and sets the error when that call returns. A thread
    /// that is detached between the two gets ENOSYS, and one that gets it from `epoll_wait` panics and takes its runtime with it. So the process
    /// is stopped first, and `strace` is ended when its log says that it has seen every thread stop. The state in `/proc` does not say that: a thread
    /// in the middle of a traced call looks stopped too, for as long as `strace` gets no processor time.
    fn detach(mut self) -> Result<u64> {
        kill(self.pid, Signal::STOP);
        try_until("strace sees all threads of a process stop", Duration::from_secs(10), || self.has_seen_all_stop())?;
        kill(self.child.id(), Signal::TERM);
        self.child.wait()?;
        kill(self.pid, Signal::CONT);
        Ok(self.read_log()?.lines().filter(|line| line.ends_with("(INJECTED)")).count() as u64)
    }

    /// Whether the last event of every thread in the log is its stop.
    fn has_seen_all_stop(&self) -> Result<bool> {
        let log = self.read_log()?;
        let last: HashMap<&str, &str> = log.lines().filter_map(|line| line.split_once(' ')).collect();
        // None if the process has ended: a holder leaves when its processes have ended and their output is on disk.
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let threads: Vec<String> = tasks.map(|task| task.file_name().to_string_lossy().into_owned()).collect();
        Ok(threads.iter().all(|thread| last.get(thread.as_str()).is_some_and(|event| event.trim() == STOPPED)))
    }

    fn read_log(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("read `{}`", self.log.display()))
    }
}
