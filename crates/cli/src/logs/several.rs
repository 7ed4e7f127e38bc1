//! `logs` of several processes: prints whole lines, each prefixed with the name of its process; with `-f` as they arrive.
//!
//! A line is buffered until it is complete, so that lines of two processes never mix. Failure paths: a log that cannot be read to its end
//! does not stop the others; a closed stdout stops all of them.

use std::{collections::BTreeMap, io};

use bytes::Bytes;
use exec_server_client::{
    Client,
    protocol::process::{ProcessInfo, Stream},
};
use exec_server_rpc::StandardOutput;
use futures_util::future;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{LogSink, ReadPlan, attach, follow, print_pushed, read_to};
use crate::{
    args,
    connect::ListingSession,
    display::{self, Palette, Style},
    ids,
    kill::keep_first,
    print, printable,
};

/// A longer line is printed in parts that are slightly longer than this.
const LINE_MAX: usize = 1 << 20;

/// Colours for the names, used in turn.
const STYLES: [Style; 5] = [display::CYAN, display::YELLOW, display::GREEN, display::MAGENTA, display::BLUE];

/// Prints the logs of all processes that the user named.
pub(super) async fn show(args: &args::LogsArgs, listing: &ListingSession) -> anyhow::Result<()> {
    let mut failed = None;
    let mut found: Vec<(&Client, &ProcessInfo)> = Vec::new();
    for id in &args.ids {
        match listing.find(id) {
            Ok((client, info)) => found.push((client, info)),
            Err(error) => failed = keep_first(failed, Err(error.into())),
        }
    }
    let streams = Mutex::new([StandardOutput::stdout(), StandardOutput::stderr()]);
    let names = names(&found);
    let widest = names.iter().map(|name| display::width(name)).max().unwrap_or_default();
    let sinks = found.iter().zip(&names).enumerate().map(|(at, (target, name))| {
        let style = STYLES[at % STYLES.len()];
        let padded = display::pad(name, widest) + " |";
        let prefixes = [Palette::of_stdout(), Palette::of_stderr()].map(|palette| palette.paint(style, &padded) + " ");
        let id = target.1.process_id.as_str();
        (target, LinePrinter { streams: &streams, id, prefixes, as_json: args.json, open: Default::default() })
    });
    let mut done = Vec::new();
    if args.follow {
        // A closed stdout ends all; any other error ends only its own log.
        let each =
            sinks.map(|((client, info), sink)| async move { split_errors(show_one(args, client, info, sink).await) });
        done = future::try_join_all(each).await?;
    } else {
        for ((client, info), sink) in sinks {
            done.push(split_errors(show_one(args, client, info, sink).await)?);
        }
    }
    for done in done {
        failed = keep_first(failed, done);
    }
    failed.map_or(Ok(()), Err)
}

/// Returns a closed stdout as the outer error and any other error as the inner one.
fn split_errors(done: anyhow::Result<()>) -> anyhow::Result<anyhow::Result<()>> {
    match done {
        Err(error) if print::is_closed_pipe(&error) => Err(error),
        done => Ok(done),
    }
}

/// The process ids; if two are equal, with their session.
fn names(found: &[(&Client, &ProcessInfo)]) -> Vec<String> {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, info) in found {
        *count.entry(info.process_id.as_str()).or_default() += 1;
    }
    let name = |info: &ProcessInfo| {
        let id = ids::clean(info.process_id.as_str());
        if count[info.process_id.as_str()] > 1 { format!("{}/{id}", ids::short_session(&info.session_id)) } else { id }
    };
    found.iter().map(|(_, info)| name(info)).collect()
}

/// Prints the log of one process.
async fn show_one(
    args: &args::LogsArgs,
    client: &Client,
    info: &ProcessInfo,
    mut sink: LinePrinter<'_>,
) -> anyhow::Result<()> {
    let plan = ReadPlan::new(args, info, client);
    let process = attach(client, info, plan.after, plan.reader).await?;
    if plan.has_reads || !args.follow {
        let read = if plan.has_reads {
            read_to(&mut sink, &process, info, args).await
        } else {
            print_pushed(&mut sink, &process, info, args).await
        };
        // With `-f`, pushed output may complete the last line.
        if read.is_err() || !args.follow {
            sink.end().await?;
        }
        read?;
    }
    if args.follow { follow(&process, process.events_after(plan.after), sink).await } else { Ok(()) }
}

/// Collects and prints the lines of one process.
struct LinePrinter<'a> {
    /// Stdout (index 0) and stderr (index 1).
    streams: &'a Mutex<[StandardOutput; 2]>,
    id: &'a str,
    /// The prefixes for lines on stdout (index 0) and stderr (index 1).
    prefixes: [String; 2],
    as_json: bool,
    /// The incomplete last lines of stdout (index 0) and stderr (index 1).
    open: [Vec<u8>; 2],
}

impl LinePrinter<'_> {
    /// Prints all complete lines of a stream and keeps the rest.
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
        self.put(at, text.concat().into()).await
    }

    /// Writes the bytes under the lock, so that lines of other processes do not come in between, and both streams stay in order on one
    /// terminal.
    async fn put(&self, at: usize, bytes: Bytes) -> io::Result<()> {
        let written = self.streams.lock().await[at].write_all(vec![bytes]).await;
        // Ignore errors of stderr, which may be closed.
        if at == 0 { written } else { Ok(()) }
    }
}

impl LogSink for LinePrinter<'_> {
    fn as_json(&self) -> bool {
        self.as_json
    }

    async fn text(&mut self, stream: Stream, bytes: Bytes) -> io::Result<()> {
        let at = match stream {
            Stream::Stdout | Stream::Pty => 0,
            Stream::Stderr => 1,
        };
        self.add(at, &bytes).await
    }

    async fn json(&mut self, mut event: Value) -> io::Result<()> {
        event["processId"] = json!(self.id);
        self.put(0, printable::json_line(&event).into()).await
    }

    /// `put` has written everything.
    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Prints the incomplete lines with a newline added.
    async fn end(&mut self) -> io::Result<()> {
        for at in 0..2 {
            if !self.open[at].is_empty() {
                self.add(at, b"\n").await?;
            }
        }
        Ok(())
    }
}
