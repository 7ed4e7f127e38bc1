//! `exec-server logs`: what a process has written, from the beginning or a number on; with `-f` until it is complete.
//!
//! Without `-f` the log is read in pieces up to what it was when we came, and nothing is held. With it we are a reader that
//! holds the process back when our own reader does not read. Failure paths: what was read is printed first, and only a log that
//! was printed to its end is a success. Must not know how a server is reached.

use std::{io, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow};
use exec_server_client::{
    Attach, Chunk, Client, Event, Events, Exit, Process, Totals,
    protocol::{
        base64,
        process::{Gap, ProcessInfo, Stream},
    },
};
use serde_json::json;
use tokio::io::{AsyncWrite, AsyncWriteExt as _, Stderr};

use crate::{
    args, codes,
    connect::Visit,
    env_token,
    ids::{self, NoProcess},
    printable, runtime,
    streams::{Output, Role, say_gap},
};

/// One read without `-f`: some chunks, so that memory stays small whatever the log holds.
const READ_BYTES: u64 = 1 << 20;

/// Prints it.
pub(crate) fn run(args: &args::Logs, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    runtime::block_on(async {
        let visit = Visit::begin(&args.connect, token).await?;
        let shown = show(args, &visit).await;
        visit.end().await;
        match shown {
            Ok(()) => Ok(ExitCode::SUCCESS),
            // Nobody reads any more.
            Err(error) if is_broken_pipe(&error) => Ok(ExitCode::from(codes::CLOSED_PIPE)),
            Err(error) => Err(error),
        }
    })
}

async fn show(args: &args::Logs, visit: &Visit) -> anyhow::Result<()> {
    let (client, info) = visit.find(&args.id)?;
    // Without `-f` nothing is held, and what is pushed is not read: all of it is asked for.
    let (after, hold) = if args.follow { (args.since, true) } else { (info.next_seq.saturating_sub(1), false) };
    let process = attach(client, info, after, hold).await?;
    match (args.follow, args.json) {
        (false, _) => read(&process, info, args).await,
        (true, true) => follow_as_json(process.events_after(after)).await,
        (true, false) => {
            let stdio = exec_server_rpc::stdio();
            let events = process.events_after(after);
            let ended = Output::new(process, stdio.writer, Role::Guest).run(events).await?;
            if ended.stdout_closed { Err(io::Error::from(io::ErrorKind::BrokenPipe).into()) } else { Ok(()) }
        }
    }
}

/// Everything that was there when we came. What was read is the reader's, also where the rest cannot be had.
async fn read(process: &Process, info: &ProcessInfo, args: &args::Logs) -> anyhow::Result<()> {
    let mut to = Printed { stdout: exec_server_rpc::stdio().writer, stderr: tokio::io::stderr(), as_json: args.json };
    let read = read_to(&mut to, process, info, args.since).await;
    let flushed = to.flush().await;
    read?;
    Ok(flushed?)
}

/// Reads it piece by piece. Without an error all was printed that there is.
async fn read_to<W: AsyncWrite + Unpin>(
    to: &mut Printed<W>,
    process: &Process,
    info: &ProcessInfo,
    since: u64,
) -> anyhow::Result<()> {
    let name = ids::clean(info.process_id.as_str());
    let (mut after, last) = (since, info.next_seq.saturating_sub(1));
    let mut failure = None;
    while after < last {
        let part = || {
            format!(
                "the log of `{name}` was printed up to number {after} of {last}; \
                 `exec-server logs --since {after} {name}` prints the rest"
            )
        };
        let read = process.read(after, Some(READ_BYTES), Duration::ZERO).await.with_context(part)?;
        if let Some(gap) = read.gap {
            to.gap(gap).await?;
        }
        for chunk in read.chunks.iter().take_while(|chunk| chunk.seq <= last) {
            to.chunk(chunk).await?;
        }
        if let Some(failure) = read.failure.as_ref().filter(|_| read.closed && read.exit_code.is_none()) {
            // A server knows a code of whatever has closed: this is our own side's answer for a session that is lost, and its
            // numbers tell nothing of the log.
            return Err(anyhow!("{failure}")).with_context(part);
        }
        let next = read.next_seq.saturating_sub(1);
        if next <= after {
            // Asked again, it would say the same for ever.
            return Err(anyhow!("the server tells nothing that follows")).with_context(part);
        }
        after = next;
        // A process that was lost has a log all the same, and each answer says both.
        failure = read.failure.or(failure);
    }
    match failure {
        Some(failure) => {
            Err(anyhow!("{failure}").context(format!("the log of `{name}` was printed as far as it goes")))
        }
        None => Ok(()),
    }
}

/// Where a log goes that is read in pieces.
struct Printed<W> {
    stdout: W,
    stderr: Stderr,
    as_json: bool,
}

impl<W: AsyncWrite + Unpin> Printed<W> {
    async fn gap(&mut self, gap: Gap) -> io::Result<()> {
        if !self.as_json {
            say_gap(gap.from_seq, gap.to_seq, Some(gap.bytes));
            return Ok(());
        }
        let line = json!({"event": "gap", "fromSeq": gap.from_seq, "toSeq": gap.to_seq, "bytes": gap.bytes});
        self.stdout.write_all(format!("{line}\n").as_bytes()).await
    }

    async fn chunk(&mut self, chunk: &Chunk) -> io::Result<()> {
        match (self.as_json, chunk.stream) {
            (true, stream) => self.stdout.write_all(output(chunk.seq, stream, &chunk.bytes).as_bytes()).await,
            (false, Stream::Stdout | Stream::Pty) => self.stdout.write_all(&chunk.bytes).await,
            (false, Stream::Stderr) => self.stderr.write_all(&chunk.bytes).await,
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush().await?;
        self.stderr.flush().await
    }
}

async fn follow_as_json(mut events: Events) -> anyhow::Result<()> {
    let mut stdout = exec_server_rpc::stdio().writer;
    while let Some(event) = events.next().await {
        let line = match event {
            Event::Output { seq, stream, bytes, .. } => output(seq, stream, &bytes),
            Event::Gap { from_seq, to_seq, bytes } => {
                format!("{}\n", json!({"event": "gap", "fromSeq": from_seq, "toSeq": to_seq, "bytes": bytes}))
            }
            Event::Exited { seq, exit } => exited(seq, &exit),
            Event::Closed { seq, totals: Totals { output_bytes, dropped_bytes } } => {
                let totals =
                    json!({"event": "closed", "seq": seq, "outputBytes": output_bytes, "droppedBytes": dropped_bytes});
                format!("{totals}\n")
            }
            Event::Failed(error) => return Err(error.into()),
        };
        stdout.write_all(line.as_bytes()).await?;
        stdout.flush().await?;
    }
    Ok(())
}

fn output(seq: u64, stream: Stream, bytes: &[u8]) -> String {
    format!("{}\n", json!({"event": "output", "seq": seq, "stream": stream.as_str(), "chunk": base64::encode(bytes)}))
}

fn exited(seq: u64, exit: &Exit) -> String {
    let line =
        json!({"event": "exited", "seq": seq, "exitCode": exit.code, "signal": exit.signal, "cause": exit.cause});
    printable::clean_json(&format!("{line}\n"))
}

/// Takes hold of a process of another session. One that went between the list and this was not there.
pub(crate) async fn attach(client: &Client, info: &ProcessInfo, after: u64, hold: bool) -> anyhow::Result<Process> {
    let options = Attach { session_id: Some(info.session_id.clone()), after, hold };
    match client.attach(&info.process_id, options).await {
        Ok(process) => Ok(process),
        Err(error) if codes::is_gone(&error) => Err(NoProcess::Unknown { asked: info.process_id.to_string() }.into()),
        Err(error) => Err(error).with_context(|| format!("attach to `{}`", ids::clean(info.process_id.as_str()))),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
