//! `logs` of several processes: whole lines, each behind the name of its process; with `-f` as they come.
//!
//! A line is kept until it ends, so that lines of two processes never mix. Failure paths: a log that cannot be read to its end does
//! not keep the others; a closed standard output ends all.

use std::{collections::BTreeMap, io};

use exec_server_client::{Client, Event, Process, protocol::process::ProcessInfo};
use futures_util::future;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::Mutex,
};

use super::{LogSink, attach, closed, exited, gap, is_broken_pipe, json_line, output, read_to, start};
use crate::{
    args,
    connect::Visit,
    display::{self, Palette, Style},
    ids,
    kill::keep_first,
    streams::say_gap,
};
use exec_server_protocol::process::{Gap, Stream};

/// A line without an end is printed in parts of this size.
const LINE_MAX: usize = 1 << 20;

/// Colours of names, in turn.
const STYLES: [Style; 5] = [display::CYAN, display::YELLOW, display::GREEN, display::MAGENTA, display::BLUE];

/// Prints the logs of all that were asked for.
pub(super) async fn show(args: &args::Logs, visit: &Visit) -> anyhow::Result<()> {
    let mut failed = None;
    let mut found: Vec<(&Client, &ProcessInfo)> = Vec::new();
    for id in &args.ids {
        match visit.find(id) {
            Ok((client, info)) => found.push((client, info)),
            Err(error) => failed = keep_first(failed, Err(error.into())),
        }
    }
    let stdout = Mutex::new(exec_server_rpc::stdio().writer);
    let names = names(&found);
    let widest = names.iter().map(|name| display::width(name)).max().unwrap_or_default();
    let sinks = found.iter().zip(&names).enumerate().map(|(at, (of, name))| {
        let style = STYLES[at % STYLES.len()];
        let id = of.1.process_id.as_str();
        (of, Lines { id, ..Lines::new(&stdout, name, widest, style, args.json) })
    });
    let mut done = Vec::new();
    if args.follow {
        // A closed standard output ends all; any other failure only its own.
        let each = sinks.map(|((client, info), sink)| async move { pipe_or_rest(one(args, client, info, sink).await) });
        done = future::try_join_all(each).await?;
    } else {
        for ((client, info), sink) in sinks {
            done.push(pipe_or_rest(one(args, client, info, sink).await)?);
        }
    }
    for done in done {
        failed = keep_first(failed, done);
    }
    failed.map_or(Ok(()), Err)
}

/// A closed standard output apart from all other failures.
fn pipe_or_rest(done: anyhow::Result<()>) -> anyhow::Result<anyhow::Result<()>> {
    match done {
        Err(error) if is_broken_pipe(&error) => Err(error),
        done => Ok(done),
    }
}

/// Their ids; where two are the same, with their sessions.
fn names(found: &[(&Client, &ProcessInfo)]) -> Vec<String> {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, info) in found {
        *count.entry(info.process_id.as_str()).or_default() += 1;
    }
    let name = |info: &ProcessInfo| {
        let id = ids::clean(info.process_id.as_str());
        if count[info.process_id.as_str()] > 1 { format!("{}/{id}", ids::short(info)) } else { id }
    };
    found.iter().map(|(_, info)| name(info)).collect()
}

async fn one<W: AsyncWrite + Unpin>(
    args: &args::Logs,
    client: &Client,
    info: &ProcessInfo,
    mut sink: Lines<'_, W>,
) -> anyhow::Result<()> {
    let begin = start(args, info);
    let process = attach(client, info, begin.after, begin.hold).await?;
    if begin.reads {
        let read = read_to(&mut sink, &process, info, args).await;
        if read.is_err() || !args.follow {
            sink.end().await?;
        }
        read?;
    }
    if args.follow { follow(process, begin.after, sink).await } else { Ok(()) }
}

async fn follow<W: AsyncWrite + Unpin>(process: Process, after: u64, mut sink: Lines<'_, W>) -> anyhow::Result<()> {
    let mut events = process.events_after(after);
    while let Some(event) = events.next().await {
        match event {
            Event::Output { seq, stream, bytes, .. } => sink.chunk(seq, stream, &bytes).await?,
            Event::Gap { from_seq, to_seq, bytes } => sink.missing(from_seq, to_seq, bytes).await?,
            Event::Exited { seq, exit } => sink.event(exited(seq, &exit)).await?,
            Event::Closed { seq, totals } => sink.event(closed(seq, totals)).await?,
            Event::Failed(error) => {
                sink.end().await?;
                return Err(error.into());
            }
        }
    }
    Ok(sink.end().await?)
}

/// Lines of one process on their way out.
struct Lines<'a, W> {
    stdout: &'a Mutex<W>,
    id: &'a str,
    /// What stands before each line on standard output and standard error.
    prefixes: [String; 2],
    as_json: bool,
    /// Lines of standard output and standard error that have no end yet.
    open: [Vec<u8>; 2],
}

impl<'a, W: AsyncWrite + Unpin> Lines<'a, W> {
    fn new(stdout: &'a Mutex<W>, name: &'a str, widest: usize, style: Style, as_json: bool) -> Self {
        let padded = format!("{name}{} |", " ".repeat(widest - display::width(name)));
        let prefixes = [Palette::of_stdout(), Palette::of_stderr()].map(|palette| palette.paint(style, &padded) + " ");
        Self { stdout, id: name, prefixes, as_json, open: Default::default() }
    }

    async fn missing(&mut self, from_seq: u64, to_seq: u64, bytes: Option<u64>) -> io::Result<()> {
        if self.as_json {
            return self.event(gap(from_seq, to_seq, bytes)).await;
        }
        say_gap(from_seq, to_seq, bytes);
        Ok(())
    }

    /// An event, which only JSON has.
    async fn event(&mut self, mut event: Value) -> io::Result<()> {
        if !self.as_json {
            return Ok(());
        }
        event["processId"] = json!(self.id);
        self.put(0, json_line(&event).as_bytes()).await
    }

    /// What has no end gets one.
    async fn end(&mut self) -> io::Result<()> {
        for at in 0..2 {
            if !self.open[at].is_empty() {
                self.add(at, b"\n").await?;
            }
        }
        self.stdout.lock().await.flush().await
    }

    async fn add(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        self.open[at].extend_from_slice(bytes);
        if self.open[at].len() > LINE_MAX && !self.open[at].contains(&b'\n') {
            self.open[at].push(b'\n');
        }
        let Some(last) = self.open[at].iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let rest = self.open[at].split_off(last + 1);
        let whole = std::mem::replace(&mut self.open[at], rest);
        let prefix = self.prefixes[at].as_bytes();
        let text = whole.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [prefix, line]).collect::<Vec<_>>();
        self.put(at, &text.concat()).await
    }

    /// In one piece, so that lines of others do not come between.
    async fn put(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        if at == 0 {
            let mut stdout = self.stdout.lock().await;
            stdout.write_all(bytes).await?;
            return stdout.flush().await;
        }
        // Under the same lock, so that the two stay in order on one terminal. Our standard error may be closed.
        let _stdout = self.stdout.lock().await;
        let mut stderr = tokio::io::stderr();
        if stderr.write_all(bytes).await.is_ok() {
            stderr.flush().await.ok();
        }
        Ok(())
    }
}

impl<W: AsyncWrite + Unpin> LogSink for Lines<'_, W> {
    async fn gap(&mut self, gap: Gap) -> io::Result<()> {
        self.missing(gap.from_seq, gap.to_seq, Some(gap.bytes)).await
    }

    async fn chunk(&mut self, seq: u64, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if self.as_json {
            return self.event(output(seq, stream, bytes)).await;
        }
        let at = match stream {
            Stream::Stdout | Stream::Pty => 0,
            Stream::Stderr => 1,
        };
        self.add(at, bytes).await
    }
}
