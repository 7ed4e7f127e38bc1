//! A program under `exec-server run`, its input, and the oracle for its output.
//!
//! The program (a child mode of the tools) copies stdin to stdout, numbers its steps on stderr and exits with a code made from its id. It
//! checks its input itself, record by record, so input that the client sent twice or not at all is detected on the far side. This module
//! does not depend on links, servers and their faults.

use std::{
    io::{self, Read, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    Random,
    records::{self, RECORD, Records},
};

/// The program prints a line on stderr after this much input.
const STEP: u64 = 16 << 10;

/// The exit code of a program whose input was damaged; no id has this code.
const DAMAGED: i32 = 250;

/// Beginning and end of the message of `run` about a lost link.
const QUIET: (&[u8], &[u8]) = (b"exec-server: connection lost (", b"); reconnecting\n");

/// Beginning and end of the other messages of `run` about its link.
const NOTICES: [(&[u8], &[u8]); 4] = [
    (b"exec-server: still reconnecting: ", b"\n"),
    (b"exec-server: connected again\n", b""),
    (b"exec-server: no answer for 3 s; waiting\n", b""),
    (b"exec-server: the server answers again\n", b""),
];

/// Longer than any run may make no progress: the longest pause between two reconnects is 5 s, and two cores are shared.
const PATIENCE: Duration = Duration::from_secs(60);

/// The child mode.
pub fn child(id: u64) -> Result<()> {
    let mut records = Records::new(id);
    let (mut stdin, mut stderr) = (io::stdin().lock(), io::stderr().lock());
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0_u64;
    loop {
        let count = stdin.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        records::write_raw(&buffer[..count])?;
        records.push(&buffer[..count]);
        for step in total / STEP + 1..=(total + count as u64) / STEP {
            stderr.write_all(step_line(id, step).as_bytes())?;
        }
        total += count as u64;
    }
    if let Err(error) = records.finish(total / RECORD) {
        writeln!(stderr, "input damaged: {error:#}")?;
        std::process::exit(DAMAGED);
    }
    stderr.write_all(last_line(id, total).as_bytes())?;
    std::process::exit(i32::try_from(records::exit_code(id))?)
}

fn step_line(id: u64, step: u64) -> String {
    format!("relay {id} step {step}\n")
}

fn last_line(id: u64, total: u64) -> String {
    format!("relay {id} took {total} bytes\n")
}

/// Everything that a program with this id prints on stderr when it gets `total` bytes.
fn expected_stderr(id: u64, total: u64) -> Vec<u8> {
    let mut text: String = (1..=total / STEP).map(|step| step_line(id, step)).collect();
    text += &last_line(id, total);
    text.into_bytes()
}

/// One program and its input.
pub struct RelayJob {
    pub id: u64,
    /// Maximum number of records; fewer if `over` is set earlier.
    pub count: u64,
    /// Determines the sizes of writes and the pauses between them.
    pub random: Random,
    /// Longest pause between two writes.
    pub pause: Duration,
}

/// The totals of successful runs.
#[derive(Clone, Copy, Default)]
pub struct RelayTally {
    pub runs: u64,
    /// Bytes of input, each of which came back as output.
    pub bytes: u64,
    /// Number of messages about a lost link.
    pub quiet: u64,
}

impl std::ops::AddAssign for RelayTally {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.bytes += other.bytes;
        self.quiet += other.quiet;
    }
}

/// Lets other threads observe a running `run`, and end it.
#[derive(Default)]
pub struct RelayWatch {
    /// Set to end the input.
    pub over: AtomicBool,
    /// The pid of `run`; 0 if there is none.
    pub pid: AtomicU32,
    /// Bytes of output that came back.
    pub back: AtomicU64,
}

/// Starts the program with `run`, a command that lacks only `-- PROGRAM`, feeds it, and checks all of its output.
pub fn execute(run: &mut Command, job: RelayJob, watch: &RelayWatch) -> Result<RelayTally> {
    let id = job.id;
    let program = records::program()?;
    let mut child = run
        .args(["--", &program, "relay", &id.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start `{run:?}`"))?;
    watch.pid.store(child.id(), Ordering::Relaxed);
    let stdin = child.stdin.take().context("standard input is a pipe")?;
    let mut stdout = child.stdout.take().context("standard output is a pipe")?;
    let mut stderr = child.stderr.take().context("standard error is a pipe")?;
    let moved = &AtomicU64::new(0);
    let (fed, records, stderr, code) = thread::scope(|scope| {
        let feeding = scope.spawn(move || feed(stdin, job, &watch.over, moved));
        let reading = scope.spawn(move || {
            let mut records = Records::new(id);
            let read = read_all(&mut stdout, moved, |bytes| {
                records.push(bytes);
                watch.back.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            });
            read.map(|()| records)
        });
        let reading_stderr = scope.spawn(move || {
            let mut text = Vec::new();
            read_all(&mut stderr, moved, |bytes| text.extend_from_slice(bytes)).map(|()| text)
        });
        let code = wait(&mut child, moved);
        let joined = "no thread of a run panics";
        (feeding.join().expect(joined), reading.join().expect(joined), reading_stderr.join().expect(joined), code)
    });
    watch.pid.store(0, Ordering::Relaxed);
    let stderr = stderr?;
    check_run(id, fed, &records?, &stderr, code?)
        .with_context(|| format!("run {id} said on standard error: {}", excerpt(&stderr)))
}

/// Writes records until there are enough or the run is over; returns how many.
fn feed(mut stdin: ChildStdin, mut job: RelayJob, over: &AtomicBool, moved: &AtomicU64) -> Result<u64> {
    let mut next = 0;
    let mut bytes = Vec::new();
    while next < job.count && !over.load(Ordering::Relaxed) {
        // Mostly small, sometimes more than a pipe holds.
        let most = if job.random.one_in(8) { 12_000 } else { 600 };
        let end = job.count.min(next + job.random.between(1, most));
        bytes.clear();
        for counter in next..end {
            bytes.extend_from_slice(&job.id.to_le_bytes());
            bytes.extend_from_slice(&counter.to_le_bytes());
        }
        stdin.write_all(&bytes).with_context(|| format!("feed record {next}"))?;
        next = end;
        moved.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if !job.pause.is_zero() {
            thread::sleep(job.pause * u32::try_from(job.random.between(0, 1000))? / 1000);
        }
    }
    Ok(next)
}

fn read_all(from: &mut impl Read, moved: &AtomicU64, mut take: impl FnMut(&[u8])) -> Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        take(&buffer[..count]);
        moved.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Waits for the exit code. If nothing moves for too long, kills the run, so that its pipes are closed too.
fn wait(child: &mut Child, moved: &AtomicU64) -> Result<i32> {
    let (mut last, mut since) = (moved.load(Ordering::Relaxed), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return status.code().with_context(|| format!("`run` itself was ended: {status}"));
        }
        let now = moved.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            bail!("nothing moved for {} s after {last} bytes", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(3));
    }
}

fn check_run(id: u64, fed: Result<u64>, records: &Records, stderr: &[u8], code: i32) -> Result<RelayTally> {
    // If feeding failed, `run` had already ended, and its code and messages say more.
    let count = fed.with_context(|| format!("`run` ended with {code} before its input did"))?;
    records.finish(count).with_context(|| format!("output, and exit code {code}"))?;
    let (words, quiet) = without_quiet_lines(stderr);
    let expected = expected_stderr(id, count * RECORD);
    if words != expected {
        let at = words.iter().zip(&expected).take_while(|(is, should)| is == should).count();
        let from = at.saturating_sub(40);
        let part = |bytes: &[u8]| String::from_utf8_lossy(&bytes[from..bytes.len().min(at + 120)]).into_owned();
        bail!("standard error differs at byte {at}: `{}` instead of `{}`", part(&words), part(&expected));
    }
    let promised = records::exit_code(id);
    ensure!(i64::from(code) == promised, "exit code {code} instead of {promised}");
    Ok(RelayTally { runs: 1, bytes: count * RECORD, quiet })
}

/// Removes the messages of `run` about a lost link from stderr and counts them. A message may be inside a line of the program, because a
/// chunk of output may end there.
fn without_quiet_lines(stderr: &[u8]) -> (Vec<u8>, u64) {
    let mut words = stderr.to_vec();
    let quiet = remove_messages(&mut words, QUIET);
    for notice in NOTICES {
        remove_messages(&mut words, notice);
    }
    (words, quiet)
}

/// Removes every message with this beginning and end, and counts them.
fn remove_messages(words: &mut Vec<u8>, (begin, end): (&[u8], &[u8])) -> u64 {
    let find = |bytes: &[u8], part| (0..=bytes.len()).find(|at| bytes[*at..].starts_with(part));
    let mut count = 0;
    while let Some(at) = find(words, begin) {
        let Some(length) = find(&words[at + begin.len()..], end) else { break };
        words.drain(at..at + begin.len() + length + end.len());
        count += 1;
    }
    count
}

/// The last lines that are not steps of the program.
fn excerpt(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains(" step ")).collect();
    lines[lines.len().saturating_sub(8)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(id: u64, counters: impl Iterator<Item = u64>) -> Records {
        let mut records = Records::new(id);
        for counter in counters {
            records.push(&[id.to_le_bytes(), counter.to_le_bytes()].concat());
        }
        records
    }

    #[test]
    fn messages_about_a_lost_link_are_removed_inside_lines_too() {
        let line = b"exec-server: connection lost (reset); reconnecting\n".as_slice();
        let again = b"exec-server: connected again\n".as_slice();
        let still = b"exec-server: still reconnecting: Broken pipe (os error 32)\n".as_slice();
        let stderr = [line, again, b"relay 1 st", line, still, line, still, still, again, b"ep 1\nrelay"].concat();
        assert_eq!(without_quiet_lines(&stderr), (b"relay 1 step 1\nrelay".to_vec(), 3));
        let other = b"exec-server: connection lost (reset); something else".as_slice();
        assert_eq!(without_quiet_lines(other), (other.to_vec(), 0));
    }

    #[test]
    fn each_kind_of_damage_is_detected() {
        let (id, count) = (7, 3000);
        let stderr = expected_stderr(id, count * RECORD);
        let code = i32::try_from(records::exit_code(id)).unwrap();
        let whole = || records(id, 0..count);
        assert_eq!(check_run(id, Ok(count), &whole(), &stderr, code).unwrap().bytes, count * RECORD);
        assert!(check_run(id, Ok(count), &whole(), &stderr, 0).is_err());
        assert!(check_run(id, Ok(count), &whole(), &stderr[1..], code).is_err());
        assert!(check_run(id, Ok(count), &records(id, 1..count), &stderr, code).is_err());
        let twice = records(id, (0..count).chain([5]));
        assert!(check_run(id, Ok(count), &twice, &stderr, code).is_err());
    }
}
