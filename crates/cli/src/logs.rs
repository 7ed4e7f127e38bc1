//! `exec-server logs`: prints the output of processes, from the beginning, from a sequence number or the last lines; with `-f` until the
//! output is complete.
//!
//! The log of one process is printed byte for byte. For several processes, `several` prints lines with a name before each.
//!
//! Without `-f`, the log is read in pieces up to the end that it had when the command began, and the process is not
//! held back. A long log of a process that has closed is pushed by the server instead, which takes a quarter of the work. With `-f`, the command is a reader with backpressure: if its own stdout is not read and the log is full,
//! the process blocks, or loses its oldest output if it was started with `dropOldest`.
//!
//! Failure paths: bytes that were read are printed before an error is reported. The command succeeds only if the log was printed to its
//! end.

mod several;
mod tail;

use std::{io, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow, ensure};
use bytes::Bytes;
use exec_server_client::{
    Attach, Client, Event, Events, Exit, Process, ReadResult, Totals,
    protocol::{
        base64,
        process::{Cause, ProcessInfo, Stream},
    },
};
use exec_server_rpc::StandardOutput;
use futures_util::future;
use serde_json::{Value, json};

use crate::{
    args, codes,
    connect::ListingSession,
    env_token,
    ids::{self, ProcessLookupError},
    print, printable, runtime, stall,
    streams::{BATCH_BYTES, OutputWriter, StreamRole, report_gap},
};

/// Bytes per `process/read`: a few chunks, so that memory stays small for a log of any size.
const READ_BYTES: u64 = 1 << 20;

/// A log of at least this much output, of a closed process, is pushed instead of read.
const PUSHED_BYTES: u64 = 8 << 20;

pub(crate) fn run(args: &args::LogsArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    runtime::block_on_here(async {
        let listing = ListingSession::open(&args.connect, token).await?;
        let done = print::or_closed_pipe(show(args, &listing).await.map(|()| 0));
        listing.end().await;
        done.map(ExitCode::from)
    })
}

async fn show(args: &args::LogsArgs, listing: &ListingSession) -> anyhow::Result<()> {
    let [id] = &args.ids[..] else { return several::show(args, listing).await };
    let (client, info) = listing.find(id)?;
    let plan = ReadPlan::new(args, info, client);
    let process = attach(client, info, plan.after, plan.reader).await?;
    if plan.has_reads || !args.follow {
        print_existing(&process, info, args, &plan).await?;
    }
    let events = || process.events_after(plan.after);
    match (args.follow, args.json) {
        (false, _) => Ok(()),
        (true, true) => tokio::select! {
            followed = follow(&process, events(), LogPrinter::new(true)) => followed,
            () = stall::watch(&process) => Ok(()),
        },
        (true, false) => {
            let printing = OutputWriter::new(process.clone(), StreamRole::Guest, 0).run(events());
            let ended = tokio::select! {
                ended = printing => ended?,
                () = stall::watch(&process) => return Ok(()),
            };
            if ended.stdout_closed {
                Err(io::Error::from(io::ErrorKind::BrokenPipe).into())
            } else {
                refuse_lost(&process)
            }
        }
    }
}

/// Which part of a log is fetched with reads, and which part the server pushes.
struct ReadPlan {
    /// Only events with a higher number are pushed to us.
    after: u64,
    reader: LogReader,
    /// Whether the events up to now are fetched with reads.
    has_reads: bool,
}

/// Our effect on the process whose log we read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogReader {
    /// The server keeps output until we have taken it. If we are slow and the log is full, the overflow policy of the
    /// process applies: the process blocks, or drops its oldest output.
    Follower,
    /// The server keeps nothing for us. If we are slow, we see gaps.
    Observer,
}

impl ReadPlan {
    /// Without `-f`, everything is fetched with reads, and pushed events are not used, except for a long log of a closed process. With
    /// `-f`, later events are pushed; past events are fetched with reads if `--tail` is given, else they are pushed too.
    fn new(args: &args::LogsArgs, info: &ProcessInfo, client: &Client) -> Self {
        let last = info.next_seq.saturating_sub(1);
        // Following holds no process back that has closed. Only a read reports why a process was lost.
        let is_lost = info.exit.as_ref().is_some_and(|exit| exit.cause == Cause::Lost);
        let can_push = info.closed && !is_lost && client.server().capabilities.follow;
        match (args.follow, args.tail) {
            (false, None) if can_push && info.output_bytes >= PUSHED_BYTES => {
                Self { after: args.since, reader: LogReader::Follower, has_reads: false }
            }
            (true, None) => Self { after: args.since, reader: LogReader::Follower, has_reads: false },
            (true, Some(_)) => Self { after: last.max(args.since), reader: LogReader::Follower, has_reads: true },
            (false, _) => Self { after: last, reader: LogReader::Observer, has_reads: true },
        }
    }
}

/// Prints all events up to now. If reading fails half-way, what was read is printed first.
async fn print_existing(
    process: &Process,
    info: &ProcessInfo,
    args: &args::LogsArgs,
    plan: &ReadPlan,
) -> anyhow::Result<()> {
    let mut printer = LogPrinter::new(args.json);
    let read = if plan.has_reads {
        read_to(&mut printer, process, info, args).await
    } else {
        print_pushed(&mut printer, process, info, args).await
    };
    let flushed = printer.end().await;
    read?;
    Ok(flushed?)
}

/// Reads and prints the log piece by piece. `Ok` means that all of it was printed.
async fn read_to(
    sink: &mut impl LogSink,
    process: &Process,
    info: &ProcessInfo,
    args: &args::LogsArgs,
) -> anyhow::Result<()> {
    let name = ids::clean(info.process_id.as_str());
    let last = info.next_seq.saturating_sub(1);
    let beginning = match args.tail {
        Some(lines) => tail::find(process, args.since, last, lines)
            .await
            .with_context(|| format!("find the last lines of `{name}`"))?,
        None => tail::LogPosition { after: args.since, skip: 0 },
    };
    let mut after = beginning.after;
    let mut failure = None;
    let mut next_read = None;
    if after < last {
        next_read = Some(process.read(after, Some(READ_BYTES), Duration::ZERO).await);
    }
    while let Some(read) = next_read.take() {
        let read = read.with_context(|| progress(info, after))?;
        // A server always knows an exit code for a closed process. So the client library produced a reply without one because the session
        // is lost, and its numbers say nothing about the log.
        let is_session_lost = read.failure.is_some() && read.closed && read.exit_code.is_none();
        let next = read.next_seq.saturating_sub(1);
        let printing = print_read(sink, &read, last, beginning);
        // Fetch the next piece while this one is printed. Repeating a read that returned nothing would return the same answer forever.
        if next > after && next < last && !is_session_lost {
            let reading = async { anyhow::Ok(process.read(next, Some(READ_BYTES), Duration::ZERO).await) };
            let ((), read) = future::try_join(printing, reading).await?;
            next_read = Some(read);
        } else {
            printing.await?;
        }
        if let Some(failure) = read.failure.as_ref().filter(|_| is_session_lost) {
            return Err(anyhow!("{failure}")).with_context(|| progress(info, after));
        }
        if next <= after {
            return Err(anyhow!("the server sent nothing after number {after}")).with_context(|| progress(info, after));
        }
        after = next;
        // A process that was lost still has a log; every answer contains both the failure and log data.
        failure = read.failure.or(failure);
    }
    match failure {
        Some(failure) => Err(anyhow!("{failure}").context(format!("the log of `{name}` was printed to its end"))),
        None => Ok(()),
    }
}

/// Prints the pushed log of a closed process, like [`read_to`] does with reads. `Ok` means that all of it was printed.
async fn print_pushed(
    sink: &mut impl LogSink,
    process: &Process,
    info: &ProcessInfo,
    args: &args::LogsArgs,
) -> anyhow::Result<()> {
    let mut after = args.since;
    let mut events = process.events_after(after);
    loop {
        let batch = events.next_batch(BATCH_BYTES).await;
        let is_over = batch.is_empty();
        for event in batch {
            match event {
                Event::Output { seq, stream, bytes, .. } => {
                    sink.chunk(seq, stream, bytes).await?;
                    after = seq;
                }
                Event::Gap { from_seq, to_seq, bytes } => {
                    sink.gap(from_seq, to_seq, bytes).await?;
                    after = to_seq;
                }
                Event::Exited { .. } | Event::Closed { .. } => {}
                Event::Failed(error) => {
                    sink.flush().await?;
                    return Err(error).with_context(|| progress(info, after));
                }
            }
        }
        sink.flush().await?;
        if is_over {
            return refuse_lost(process);
        }
    }
}

/// The context of an error that ended the printing after event `after`.
fn progress(info: &ProcessInfo, after: u64) -> String {
    let name = ids::clean(info.process_id.as_str());
    let last = info.next_seq.saturating_sub(1);
    format!(
        "the log of `{name}` was printed up to number {after} of {last}; \
         `exec-server logs --since {after} {name}` prints the rest"
    )
}

/// Prints one piece of the log: its events up to number `last`, from the position `beginning` on.
async fn print_read(
    sink: &mut impl LogSink,
    read: &ReadResult,
    last: u64,
    beginning: tail::LogPosition,
) -> anyhow::Result<()> {
    if let Some(gap) = read.gap {
        sink.gap(gap.from_seq, gap.to_seq, Some(gap.bytes)).await?;
    }
    for chunk in read.chunks.iter().take_while(|chunk| chunk.seq <= last) {
        let skip = if chunk.seq == beginning.after + 1 { beginning.skip.min(chunk.bytes.len()) } else { 0 };
        // Do not print an empty event for a chunk that is skipped completely.
        if skip == 0 || skip < chunk.bytes.len() {
            sink.chunk(chunk.seq, chunk.stream, chunk.bytes.slice(skip..)).await?;
        }
    }
    Ok(sink.flush().await?)
}

/// Prints events until the log is complete.
async fn follow(process: &Process, mut events: Events, mut sink: impl LogSink) -> anyhow::Result<()> {
    while let Some(event) = events.next().await {
        match event {
            Event::Output { seq, stream, bytes, .. } => sink.chunk(seq, stream, bytes).await?,
            Event::Gap { from_seq, to_seq, bytes } => sink.gap(from_seq, to_seq, bytes).await?,
            Event::Exited { seq, exit } => sink.event(exited(seq, &exit)).await?,
            Event::Closed { seq, totals } => sink.event(closed(seq, totals)).await?,
            Event::Failed(error) => {
                sink.end().await?;
                return Err(error.into());
            }
        }
        sink.flush().await?;
    }
    sink.end().await?;
    refuse_lost(process)
}

/// Fails if the holder of the process died: its last output may be missing.
fn refuse_lost(process: &Process) -> anyhow::Result<()> {
    let is_lost = process.exit().is_some_and(|exit| exit.cause == Some(Cause::Lost));
    let name = ids::clean(process.id().as_str());
    ensure!(!is_lost, "`{name}` was lost: the holder of this process died, so its last output may be missing");
    Ok(())
}

/// The destination of a log.
trait LogSink {
    fn as_json(&self) -> bool;
    /// Prints output in text mode.
    async fn text(&mut self, stream: Stream, bytes: Bytes) -> io::Result<()>;
    /// Prints an event in JSON mode.
    async fn json(&mut self, event: Value) -> io::Result<()>;
    /// Called after each pushed event and after each piece that was read.
    async fn flush(&mut self) -> io::Result<()>;
    /// Prints everything that is still held back.
    async fn end(&mut self) -> io::Result<()>;

    async fn gap(&mut self, from_seq: u64, to_seq: u64, bytes: Option<u64>) -> io::Result<()> {
        // The report comes behind the output before it.
        self.flush().await?;
        if !self.as_json() {
            report_gap(from_seq, to_seq, bytes);
        }
        self.event(json!({"event": "gap", "fromSeq": from_seq, "toSeq": to_seq, "bytes": bytes})).await
    }

    async fn chunk(&mut self, seq: u64, stream: Stream, bytes: Bytes) -> io::Result<()> {
        if !self.as_json() {
            return self.text(stream, bytes).await;
        }
        let chunk = base64::encode(&bytes);
        self.json(json!({"event": "output", "seq": seq, "stream": stream.as_str(), "chunk": chunk})).await
    }

    /// Prints an event in JSON mode. In text mode such an event prints nothing.
    async fn event(&mut self, event: Value) -> io::Result<()> {
        if self.as_json() { self.json(event).await } else { Ok(()) }
    }
}

/// Prints the log of one process unchanged or as JSON.
struct LogPrinter {
    stdout: StandardOutput,
    stderr: StandardOutput,
    /// Output for one of the two that is not written yet.
    batch: Vec<Bytes>,
    batch_bytes: usize,
    is_for_stderr: bool,
    as_json: bool,
}

impl LogPrinter {
    fn new(as_json: bool) -> Self {
        let (stdout, stderr) = (StandardOutput::stdout(), StandardOutput::stderr());
        Self { stdout, stderr, batch: Vec::new(), batch_bytes: 0, is_for_stderr: false, as_json }
    }

    /// Adds to the batch. Writes the batch first if it is for the other stream, so that both streams stay in order on one terminal.
    async fn add(&mut self, is_for_stderr: bool, bytes: Bytes) -> io::Result<()> {
        if self.is_for_stderr != is_for_stderr || self.batch_bytes as u64 >= BATCH_BYTES {
            self.flush().await?;
            self.is_for_stderr = is_for_stderr;
        }
        self.batch_bytes += bytes.len();
        self.batch.push(bytes);
        Ok(())
    }
}

impl LogSink for LogPrinter {
    fn as_json(&self) -> bool {
        self.as_json
    }

    async fn text(&mut self, stream: Stream, bytes: Bytes) -> io::Result<()> {
        let is_for_stderr = match stream {
            Stream::Stdout | Stream::Pty => false,
            Stream::Stderr => true,
        };
        self.add(is_for_stderr, bytes).await
    }

    async fn json(&mut self, event: Value) -> io::Result<()> {
        self.add(false, printable::json_line(&event).into()).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if self.is_for_stderr { self.stderr.write_all(batch).await } else { self.stdout.write_all(batch).await }
    }

    async fn end(&mut self) -> io::Result<()> {
        self.flush().await
    }
}

fn exited(seq: u64, exit: &Exit) -> Value {
    json!({"event": "exited", "seq": seq, "exitCode": exit.code, "signal": exit.signal, "cause": exit.cause})
}

fn closed(seq: u64, Totals { output_bytes, dropped_bytes }: Totals) -> Value {
    json!({"event": "closed", "seq": seq, "outputBytes": output_bytes, "droppedBytes": dropped_bytes})
}

/// Attaches to a process of another session. If the process has disappeared since the listing, it is reported as unknown.
pub(crate) async fn attach(
    client: &Client,
    info: &ProcessInfo,
    after: u64,
    reader: LogReader,
) -> anyhow::Result<Process> {
    let hold = reader == LogReader::Follower;
    let options = Attach { session_id: Some(info.session_id.clone()), after, hold };
    match client.attach(&info.process_id, options).await {
        Ok(process) => Ok(process),
        Err(error) if codes::is_gone(&error) => {
            Err(ProcessLookupError::Unknown { asked: info.process_id.to_string() }.into())
        }
        Err(error) => Err(error).with_context(|| format!("attach to `{}`", ids::clean(info.process_id.as_str()))),
    }
}
