//! Processes that outlive a call: `start_process`, `read_output`, `write_stdin`, `signal_process`, `list_processes`.
//!
//! A session has one [`Table`] of those that it started, under short names of its own; nobody else's can be named. What is not read stays at the
//! executor, up to its bound, and then the oldest goes: a server that nobody listens to must not stand still. The table is bounded, too;
//! the oldest process that has ended makes room.
//!
//! Must not end a process that nobody asked to end; the end of the session does, by dropping the table.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_server_client::{
    Client, Process, Read,
    protocol::{
        process::{CloseStdinStatus, Overflow, ProcessInfo, Scope, Size, Stream, WriteStatus},
        signal as signals,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{self, Instant};

use super::{Call, Command, Failure, Reply, or_default, within};
use crate::serve::text::lossy;

/// Processes of one session, those that have ended included.
const PROCESSES: usize = 64;

/// Bytes of output in one answer where nothing is said.
const READ_BYTES: u64 = 64 << 10;

/// Bytes of output that may be asked for.
const READ_BYTES_MAX: u64 = 1 << 20;

/// How long an answer may be waited for, in milliseconds: less than most clients wait for theirs is up to them.
const WAIT_MS_MAX: u64 = 300_000;

/// How long a write waits for a process that does not read.
const WRITE_WITHIN: Duration = Duration::from_secs(20);

/// How long the executor may take to forget one that has ended.
const FORGET_WITHIN: Duration = Duration::from_secs(2);

/// Between SIGTERM and SIGKILL where nothing is said, in milliseconds.
const GRACE_MS: u64 = 5_000;

/// The longest grace.
const GRACE_MS_MAX: u64 = 600_000;

/// The processes of one session.
#[derive(Debug, Default)]
pub(in crate::serve) struct Table(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// Counts those that were ever started.
    last: u64,
    all: BTreeMap<u64, Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    process: Process,
    command: String,
    started: Instant,
    /// The number of the last event that was read.
    cursor: u64,
    /// Output bytes up to there, read or gone.
    position: u64,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        // No code under the lock can panic half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, process: Process, command: String) -> u64 {
        let mut entries = self.lock();
        entries.last += 1;
        let number = entries.last;
        entries.all.insert(number, Entry { process, command, started: Instant::now(), cursor: 0, position: 0 });
        number
    }

    fn find(&self, id: &str) -> Result<(u64, Entry), Failure> {
        let entries = self.lock();
        let number = id.strip_prefix('p').and_then(|number| number.parse().ok());
        match number.and_then(|number| Some((number, entries.all.get(&number)?.clone()))) {
            Some(found) => Ok(found),
            None => {
                let known: Vec<String> = entries.all.keys().map(|number| format!("p{number}")).collect();
                let known = if known.is_empty() {
                    "there is none".to_owned()
                } else {
                    format!("there are {}", known.join(", "))
                };
                let id: String = id.chars().take(32).collect();
                Err(Failure::new(format!("no process `{id}` in this session; {known}")))
            }
        }
    }

    fn advance(&self, number: u64, cursor: u64, position: u64) {
        if let Some(entry) = self.lock().all.get_mut(&number) {
            // Of two reads at a time the one that got further counts.
            if cursor > entry.cursor {
                (entry.cursor, entry.position) = (cursor, position);
            }
        }
    }

    fn snapshot(&self) -> Vec<(u64, Entry)> {
        self.lock().all.iter().map(|(number, entry)| (*number, entry.clone())).collect()
    }
}

/// Arguments of `start_process`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StartArguments {
    /// One text for the shell, or the program and its arguments as an array.
    command: Command,
    /// The directory it runs in; relative to the server's own directory, which is the default.
    cwd: Option<String>,
    /// Variables of its environment, besides those it inherits.
    #[serde(default, deserialize_with = "or_default")]
    env: BTreeMap<String, String>,
    /// Gives it a terminal of 24 lines and 80 columns, for programs that ask for one; then standard error is part of its output.
    #[serde(default, deserialize_with = "or_default")]
    tty: bool,
}

/// Result of `start_process`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Started {
    /// Its name for the other tools.
    process_id: String,
    /// Its number at the operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

/// Starts a process.
pub(super) async fn start(call: &Call<'_>, arguments: StartArguments) -> Result<Reply, Failure> {
    if !call.has_session {
        let text = "a process needs a session to belong to: begin one with `initialize`, or use run_command";
        return Err(Failure::new(text));
    }
    let place = &call.server.place;
    let shown = arguments.command.show();
    let argv = arguments.command.argv(&place.shell)?;
    let client = place.client().await?;
    make_room(call.table, &client).await?;
    let mut start = place.start(argv, arguments.cwd.as_deref()).pipe_stdin(!arguments.tty);
    if client.server().capabilities.overflow {
        start = start.overflow(Overflow::DropOldest);
    }
    if arguments.tty {
        start = start.tty(Some(Size { rows: 24, cols: 80 }));
    }
    for (name, value) in arguments.env {
        start = start.env(name, value);
    }
    // The start is dropped only to call it off.
    let (_, process) = tokio::select! {
        started = place.begin(start) => started?,
        why = call.called_off() => return Err(Failure::new(format!("{why}; nothing was started"))),
    };
    let pid = process.pid();
    let process_id = format!("p{}", call.table.add(process, shown.clone()));
    let told = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    let text = format!("started `{shown}` as {process_id}{told}; read_output shows what it writes");
    Ok(Reply::new(text, &Started { process_id, pid }))
}

/// Lets the oldest one go that has ended, where the table is full.
async fn make_room(table: &Table, client: &Client) -> Result<(), Failure> {
    let all = table.snapshot();
    if all.len() < PROCESSES {
        return Ok(());
    }
    let known = states(client).await?;
    let Some((number, entry)) = all.into_iter().find(|(_, entry)| state(entry, &known).exited) else {
        let text = format!("{PROCESSES} processes are running in this session; end one with signal_process first");
        return Err(Failure::new(text));
    };
    table.lock().all.remove(&number);
    // It is forgotten with the session at the latest.
    time::timeout(FORGET_WITHIN, entry.process.forget()).await.ok();
    Ok(())
}

/// Arguments of `read_output`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadArguments {
    /// The process, as start_process named it.
    process_id: String,
    /// Only what comes after this cursor; 0 is from the beginning. Default: after what was read last.
    after: Option<u64>,
    /// Waits so many milliseconds for something new, default 0.
    #[schemars(range(min = 0, max = 300_000))]
    wait_ms: Option<u64>,
    /// Returns so many bytes at most, default 65536; a piece that was written at once, of up to 65536 bytes, is not cut.
    #[schemars(range(min = 1, max = 1_048_576))]
    max_bytes: Option<u64>,
}

/// Result of `read_output`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Heard {
    /// What it wrote, in order.
    output: Vec<Piece>,
    /// Where this answer ends: `after` of a read that goes on from here.
    cursor: u64,
    /// Bytes before this output that are no longer kept; with an `after` of one's own other than 0, so many at most.
    gap_bytes: u64,
    /// Whether it has ended, and all that was written before is read.
    exited: bool,
    /// The exit code, or 128 + n after signal n.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Whether nothing more can come: it has ended, and so has everything that could write for it.
    closed: bool,
}

/// Output of one stream.
#[derive(Debug, Serialize, JsonSchema)]
struct Piece {
    /// `stdout`, `stderr`, or `pty` for a terminal.
    stream: &'static str,
    /// What was written.
    text: String,
}

/// Reads what a process wrote.
pub(super) async fn read(call: &Call<'_>, arguments: ReadArguments) -> Result<Reply, Failure> {
    let wait = within("wait_ms", arguments.wait_ms, 0, (0, WAIT_MS_MAX))?;
    let most = within("max_bytes", arguments.max_bytes, READ_BYTES, (1, READ_BYTES_MAX))?;
    let (number, entry) = call.table.find(&arguments.process_id)?;
    let after = arguments.after.unwrap_or(entry.cursor);
    // Both are cancel safe: a read takes nothing away.
    let (read, more) = tokio::select! {
        read = fetch(&entry.process, after, most, Duration::from_millis(wait)) => read?,
        why = call.called_off() => return Err(Failure::new(why)),
    };
    if let Some(failure) = &read.failure {
        return Err(Failure::new(format!("nothing more can be read of {}: {failure}", arguments.process_id)));
    }
    let bytes: u64 = read.chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum();
    let mut heard = hear(read, after);
    if more {
        (heard.exited, heard.closed, heard.exit_code) = (false, false, None);
    }
    if after == entry.cursor {
        // The executor counts what is gone from the beginning on.
        heard.gap_bytes = heard.gap_bytes.saturating_sub(entry.position);
        call.table.advance(number, heard.cursor, entry.position + heard.gap_bytes + bytes);
    }
    Ok(Reply::new(heard.text(&arguments.process_id), &heard))
}

/// One answer of the executor, and whether it has more output behind it. An end that is told beside output may lie far behind that.
async fn fetch(
    process: &Process,
    after: u64,
    most: u64,
    wait: Duration,
) -> Result<(Read, bool), exec_server_client::Error> {
    let read = process.read(after, Some(most), wait).await?;
    if !read.exited || read.chunks.is_empty() {
        return Ok((read, false));
    }
    let behind = process.read(read.next_seq.saturating_sub(1), Some(1), Duration::ZERO).await?;
    Ok((read, !behind.chunks.is_empty()))
}

/// One answer of the executor; what follows each other on one stream is one text, so that no character is torn.
fn hear(read: Read, after: u64) -> Heard {
    let mut joined: Vec<(Stream, Vec<u8>)> = Vec::new();
    for chunk in read.chunks {
        match joined.last_mut() {
            Some((stream, bytes)) if *stream == chunk.stream => bytes.extend_from_slice(&chunk.bytes),
            _ => joined.push((chunk.stream, chunk.bytes.to_vec())),
        }
    }
    let output = joined.iter().map(|(stream, bytes)| Piece { stream: stream.as_str(), text: lossy(bytes) }).collect();
    Heard {
        output,
        cursor: read.next_seq.saturating_sub(1).max(after),
        gap_bytes: read.gap.map_or(0, |gap| gap.bytes),
        exited: read.exited,
        exit_code: read.exit_code,
        closed: read.closed,
    }
}

impl Heard {
    fn text(&self, id: &str) -> String {
        let standing = match (self.exited, self.closed) {
            (false, _) => "running".to_owned(),
            (true, false) => format!("{}, but something it started still has its streams", code(self.exit_code)),
            (true, true) => code(self.exit_code),
        };
        let mut text = format!("{id}: {standing}; cursor {}", self.cursor);
        if self.gap_bytes > 0 {
            text.push_str(&format!("\n[… {} bytes are no longer kept …]", self.gap_bytes));
        }
        for piece in &self.output {
            let line_end = if text.ends_with('\n') { "" } else { "\n" };
            text.push_str(&format!("{line_end}--- {} ---\n{}", piece.stream, piece.text));
        }
        if self.output.is_empty() {
            text.push_str("\n(nothing new)");
        }
        text
    }
}

fn code(code: Option<i32>) -> String {
    code.map_or_else(|| "has ended".to_owned(), |code| format!("has ended with exit code {code}"))
}

/// Arguments of `write_stdin`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteArguments {
    /// The process, as start_process named it.
    process_id: String,
    /// What to write; a line with its line end. On a terminal, control characters are keys: \u0003 is Ctrl-C.
    #[serde(default, deserialize_with = "or_default")]
    text: String,
    /// Closes its standard input behind the text; on a terminal, sends the end-of-file character.
    #[serde(default, deserialize_with = "or_default")]
    close: bool,
}

/// Result of `write_stdin`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Wrote {
    /// Bytes that it has now.
    bytes: u64,
    /// Whether its standard input is closed.
    closed: bool,
}

/// Writes to a process.
pub(super) async fn write(call: &Call<'_>, arguments: WriteArguments) -> Result<Reply, Failure> {
    let (_, entry) = call.table.find(&arguments.process_id)?;
    let id = &arguments.process_id;
    if arguments.text.is_empty() && !arguments.close {
        return Err(Failure::new("there is nothing to write: give `text`, or set `close`"));
    }
    let bytes = arguments.text.len() as u64;
    let writing = async {
        if bytes > 0 {
            match entry.process.write(arguments.text.into_bytes()).await? {
                WriteStatus::Accepted => {}
                WriteStatus::StdinClosed => {
                    return Err(Failure::new(format!("the standard input of {id} is closed, or it has ended")));
                }
                WriteStatus::UnknownProcess => return Err(Failure::new(format!("{id} is gone"))),
                WriteStatus::Starting => return Err(Failure::new(format!("{id} is still being started; try again"))),
            }
        }
        if arguments.close {
            close(&entry.process, id).await?;
        }
        Ok(())
    };
    tokio::select! {
        done = writing => done?,
        // What was written is not taken back.
        () = time::sleep(WRITE_WITHIN) => {
            let text = format!("{id} has not read all of it within {} s; the rest waits for it, do not write it again", WRITE_WITHIN.as_secs());
            return Err(Failure::new(text));
        }
        why = call.called_off() => return Err(Failure::new(why)),
    }
    let closed = if arguments.close { " and closed its standard input" } else { "" };
    Ok(Reply::new(format!("wrote {bytes} bytes to {id}{closed}"), &Wrote { bytes, closed: arguments.close }))
}

async fn close(process: &Process, id: &str) -> Result<(), Failure> {
    match process.close_stdin().await? {
        CloseStdinStatus::Accepted | CloseStdinStatus::StdinClosed => Ok(()),
        CloseStdinStatus::RawMode => {
            let text =
                format!("{id} reads its terminal key by key, which has no end of file; write the keys that end it");
            Err(Failure::new(text))
        }
        CloseStdinStatus::UnknownProcess => Err(Failure::new(format!("{id} is gone"))),
        CloseStdinStatus::Starting => Err(Failure::new(format!("{id} is still being started; try again"))),
    }
}

/// Arguments of `signal_process`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignalArguments {
    /// The process, as start_process named it.
    process_id: String,
    /// `terminate`, the default, ends it and everything it started; or the name of a signal, such as INT, TERM, HUP, KILL or USR1.
    signal: Option<String>,
    /// With `terminate`: milliseconds between SIGTERM and SIGKILL, default 5000; 0 kills at once.
    #[schemars(range(min = 0, max = 600_000))]
    grace_ms: Option<u64>,
}

/// Result of `signal_process`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Signalled {
    /// Whether it ran when it was signalled.
    was_running: bool,
}

/// Ends or signals a process.
pub(super) async fn signal(call: &Call<'_>, arguments: SignalArguments) -> Result<Reply, Failure> {
    let grace = within("grace_ms", arguments.grace_ms, GRACE_MS, (0, GRACE_MS_MAX))?;
    let (_, entry) = call.table.find(&arguments.process_id)?;
    let id = &arguments.process_id;
    let word = arguments.signal.as_deref().unwrap_or("terminate");
    let done = async {
        if word.eq_ignore_ascii_case("terminate") {
            let grace = Some(Duration::from_millis(grace)).filter(|grace| !grace.is_zero());
            return Ok(entry.process.terminate(grace).await?);
        }
        if signals::number(word).is_none() {
            let word: String = word.chars().take(32).collect();
            return Err(Failure::new(format!(
                "`{word}` is no signal; use terminate, INT, TERM, HUP, KILL, USR1 or the like"
            )));
        }
        let client = call.server.place.client().await?;
        if state(&entry, &states(&client).await?).exited {
            return Ok(false);
        }
        entry.process.signal(word).await?;
        Ok(true)
    };
    let was_running = tokio::select! {
        done = done => done?,
        why = call.called_off() => return Err(Failure::new(why)),
    };
    let text = match (was_running, word.eq_ignore_ascii_case("terminate")) {
        (false, _) => format!("{id} had ended already"),
        (true, true) => format!("{id} is being ended; read_output says when it has"),
        (true, false) => format!("sent {word} to {id}"),
    };
    Ok(Reply::new(text, &Signalled { was_running }))
}

/// Arguments of `list_processes`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {}

/// Result of `list_processes`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listed {
    /// The processes, the oldest first.
    processes: Vec<Row>,
}

/// One process.
#[derive(Debug, Serialize, JsonSchema)]
struct Row {
    /// Its name for the other tools.
    process_id: String,
    /// What was started.
    command: String,
    /// Its number at the operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Seconds since its start.
    age_seconds: u64,
    /// Whether it has ended.
    exited: bool,
    /// The exit code, or 128 + n after signal n.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    /// Output bytes that it wrote so far, where the executor counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_bytes: Option<u64>,
}

/// Lists the processes of the session.
pub(super) async fn list(call: &Call<'_>, _arguments: ListArguments) -> Result<Reply, Failure> {
    let all = call.table.snapshot();
    if all.is_empty() {
        return Ok(Reply::new("no processes were started in this session", &Listed { processes: Vec::new() }));
    }
    let client = call.server.place.client().await?;
    let known = tokio::select! {
        known = states(&client) => known?,
        why = call.called_off() => return Err(Failure::new(why)),
    };
    let processes: Vec<Row> =
        all.iter().map(|(number, entry)| Row { process_id: format!("p{number}"), ..state(entry, &known) }).collect();
    let lines = processes.iter().map(|row| {
        let standing = match (&row.signal, row.exit_code, row.exited) {
            (Some(signal), _, _) => format!("ended by {signal}"),
            (None, Some(code), _) => format!("exit code {code}"),
            (None, None, true) => "has ended".to_owned(),
            (None, None, false) => "running".to_owned(),
        };
        format!("{}: {standing}, {} s old: {}", row.process_id, row.age_seconds, row.command)
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    Ok(Reply::new(text, &Listed { processes }))
}

/// What the executor knows of the processes of its session; nothing where it does not tell.
async fn states(client: &Client) -> Result<BTreeMap<String, ProcessInfo>, Failure> {
    if !client.server().capabilities.list {
        return Ok(BTreeMap::new());
    }
    let all = client.list(Scope::Session).await?;
    Ok(all.into_iter().map(|info| (info.process_id.as_str().to_owned(), info)).collect())
}

/// How it is with one of them. The executor's word goes first: what our handle has heard may lie behind output that nobody took.
fn state(entry: &Entry, known: &BTreeMap<String, ProcessInfo>) -> Row {
    let info = known.get(entry.process.id().as_str());
    let heard = entry.process.exit();
    let told = info.and_then(|info| info.exit.clone());
    let (exit_code, signal) = match (&told, &heard) {
        (Some(exit), _) => (Some(exit.exit_code), exit.signal.as_deref().map(str::to_owned)),
        (None, Some(exit)) => (Some(exit.code), exit.signal.clone()),
        (None, None) => (None, None),
    };
    Row {
        process_id: String::new(),
        command: entry.command.clone(),
        pid: entry.process.pid(),
        age_seconds: entry.started.elapsed().as_secs(),
        // A lost session has taken it along.
        exited: exit_code.is_some() || info.is_some_and(|info| info.exited) || entry.process.failed().is_some(),
        exit_code,
        signal,
        output_bytes: info.map(|info| info.output_bytes),
    }
}
