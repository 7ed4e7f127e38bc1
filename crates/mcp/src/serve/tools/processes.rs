//! Processes that outlive a call: `start_process`, `read_output`, `write_stdin`, `signal_process`, `list_processes`.
//!
//! Each session has one [`ProcessTable`] with the processes that it started, under short ids. A session cannot address the processes of
//! another one. Unread output stays on the executor up to its limit. Beyond that the executor drops the oldest output, so that a process
//! whose output is not read does not block. An executor without this capability blocks the process instead. The table is limited too: when
//! it is full, a new process replaces the oldest one that has exited. A process runs until it exits, `signal_process` ends it, or the
//! session ends.

use std::{collections::BTreeMap, time::Duration};

use exec_server_client::{
    Client, Process, ReadResult,
    protocol::{
        process::{CloseStdinStatus, Overflow, ProcessInfo, Scope, Size, Stream, WriteStatus},
        signal as signals,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time;

use super::{
    CallContext, CommandArgument, ToolFailure, ToolReply, in_range, or_default,
    process_table::{IncompleteChars, ProcessEntry, ProcessSlot, ProcessTable},
};
use crate::serve::{
    limits,
    text::{incomplete_end, lossy},
};

/// The default number of output bytes in one answer.
const READ_BYTES: u64 = 64 << 10;

/// How long a write waits for a process that does not read its stdin.
const WRITE_WITHIN: Duration = Duration::from_secs(20);

/// Time limit for the executor to forget an ended process.
const FORGET_WITHIN: Duration = Duration::from_secs(2);

/// The default time between SIGTERM and SIGKILL, in milliseconds.
const GRACE_MS: u64 = 5_000;

/// The longest grace period, in milliseconds.
const GRACE_MS_MAX: u64 = 600_000;

/// Arguments of `start_process`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StartArguments {
    /// One string for the shell, or an array of the program and its arguments.
    command: CommandArgument,
    /// The working directory. A relative path starts at the server's base directory, which is the default.
    cwd: Option<String>,
    /// Environment variables to set in addition to the inherited ones.
    #[serde(default, deserialize_with = "or_default")]
    env: BTreeMap<String, String>,
    /// Gives the process a terminal of 24 lines and 80 columns, for interactive programs. Standard error is then part of its output.
    #[serde(default, deserialize_with = "or_default")]
    tty: bool,
}

/// Result of `start_process`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StartAnswer {
    /// The id of the process for the other tools.
    process_id: String,
    /// The process id of the operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

pub(super) async fn start(call: &CallContext<'_>, arguments: StartArguments) -> Result<ToolReply, ToolFailure> {
    if !call.has_session {
        return Err(failure!("start_process needs a session: send `initialize` first, or use run_command"));
    }
    let executor = &call.server.executor;
    let shown = arguments.command.show();
    let argv = arguments.command.argv(&executor.shell)?;
    let mut start = executor.start(argv, arguments.cwd.as_deref(), arguments.env).pipe_stdin(!arguments.tty);
    if arguments.tty {
        start = start.tty(Some(Size { rows: 24, cols: 80 }));
    }
    let starting = async {
        let client = call.process_session.client().await?;
        let slot = reserve_slot(call.table, &client).await?;
        if client.server().capabilities.overflow {
            start = start.overflow(Overflow::DropOldest);
        }
        let (_, process) = call.process_session.start(start).await?;
        Ok::<_, ToolFailure>((process, slot))
    };
    // Dropping the future cancels the start, or terminates a process that has started already.
    let (process, slot) = tokio::select! {
        started = starting => started?,
        why = call.cancelled() => return Err(failure!("{why}; nothing was started")),
    };
    let pid = process.pid();
    let process_id = format!("p{}", slot.fill(process, shown.clone()));
    let pid_text = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    let text = format!("started `{shown}` as {process_id}{pid_text}; read_output returns its output");
    Ok(ToolReply::new(text, &StartAnswer { process_id, pid }))
}

/// Reserves a slot. If the table is full, removes the oldest process that has exited.
async fn reserve_slot<'a>(table: &'a ProcessTable, client: &Client) -> Result<ProcessSlot<'a>, ToolFailure> {
    // Each round frees a slot or fails. Another round is needed only if a concurrent call takes the freed slot first.
    loop {
        if let Some(slot) = table.reserve() {
            return Ok(slot);
        }
        let infos = states(client).await?;
        let all = table.snapshot();
        let has_exited = |(number, entry): &(u64, ProcessEntry)| process_row(*number, entry, &infos).exited;
        let Some((number, entry)) = all.into_iter().find(has_exited) else {
            let most = limits::PROCESSES;
            return Err(failure!("{most} processes are running in this session; end one with signal_process first"));
        };
        table.remove(number);
        // Ignore a failure: the process is forgotten with the session at the latest.
        time::timeout(FORGET_WITHIN, entry.process.forget()).await.ok();
    }
}

/// Arguments of `read_output`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadOutputArguments {
    /// The id of the process, as returned by start_process.
    process_id: String,
    /// Returns only output after this cursor; 0 means from the beginning. Default: continue after the last read.
    after: Option<u64>,
    /// Waits up to this many milliseconds for new output; default 0.
    #[schemars(range(min = 0, max = 300_000))]
    wait_ms: Option<u64>,
    /// The maximum number of bytes, default 65536. A single chunk of up to 65536 bytes is never split.
    #[schemars(range(min = 1, max = 1_048_576))]
    max_bytes: Option<u64>,
}

/// Result of `read_output`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReadOutputAnswer {
    /// The output, in order.
    output: Vec<OutputPiece>,
    /// The position after this output. Give it as `after` to continue from here.
    cursor: u64,
    /// How many bytes before this output were dropped and cannot be read. If `after` was given and is not 0, this may count bytes before
    /// `after` too.
    gap_bytes: u64,
    /// Whether the process has exited and all output from before its exit has been read.
    exited: bool,
    /// The exit code, or 128 + n after signal n.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Whether no more output can follow: the process has exited, and no process holds its streams open.
    closed: bool,
}

/// Output of one stream.
#[derive(Debug, Serialize, JsonSchema)]
struct OutputPiece {
    /// `stdout`, `stderr`, or `pty` for a terminal.
    stream: &'static str,
    /// The text that was written.
    text: String,
}

pub(super) async fn read(call: &CallContext<'_>, arguments: ReadOutputArguments) -> Result<ToolReply, ToolFailure> {
    let wait = in_range("wait_ms", arguments.wait_ms, 0, 0..=limits::WAIT_MS)?;
    let most = in_range("max_bytes", arguments.max_bytes, READ_BYTES, 1..=limits::OUTPUT_BYTES)?;
    let (number, entry) = call.table.find(&arguments.process_id)?;
    let after = arguments.after.unwrap_or(entry.cursor);
    // Can be dropped at any point: a read consumes nothing on the executor.
    let fetching = async { Ok(fetch(&entry.process, after, most, Duration::from_millis(wait)).await?) };
    let (read, more) = call.unless_cancelled(fetching).await?;
    if let Some(failure) = &read.failure {
        return Err(failure!("cannot read more output of {}: {failure}", arguments.process_id));
    }
    let bytes: u64 = read.chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum();
    // Only a read that continues the last one completes the character that the last one held back, and moves the table's cursor.
    let continues = after == entry.cursor;
    let (mut answer, incomplete) = to_answer(read, after, continues.then_some(entry.incomplete), more);
    if more {
        // Report the exit only with the last output: a reader that sees `exited` stops reading.
        answer.exited = false;
        answer.closed = false;
        answer.exit_code = None;
    }
    if continues {
        answer.gap_bytes = lost_after(entry.position, answer.gap_bytes);
        call.table.advance(number, answer.cursor, entry.position + answer.gap_bytes + bytes, incomplete);
    }
    Ok(ToolReply::new(answer.text(&arguments.process_id), &answer))
}

/// How many bytes were lost after `position`. `counted` is the number in the executor's answer.
///
/// The executor counts from `position` if it still knows the byte offset of the last event that was read. Otherwise it
/// counts from the beginning of the output, so that the number includes the bytes before `position`. The answer does
/// not say which. A number below `position` cannot include those bytes, so it was counted from `position`. A larger or
/// equal number is taken to be counted from the beginning. That is a guess: if output after `position` is gone, the
/// event before it is usually gone too, and its offset with it.
fn lost_after(position: u64, counted: u64) -> u64 {
    counted.checked_sub(position).unwrap_or(counted)
}

/// Reads from the executor. An answer that reports the exit can be cut short by `most`. The flag says whether more output follows such an
/// answer; it is false for all other answers.
async fn fetch(
    process: &Process,
    after: u64,
    most: u64,
    wait: Duration,
) -> Result<(ReadResult, bool), exec_server_client::Error> {
    let read = process.read(after, Some(most), wait).await?;
    if !read.exited || read.chunks.is_empty() {
        return Ok((read, false));
    }
    // `next_seq - 1` is the last event of this answer.
    let following = process.read(read.next_seq.saturating_sub(1), Some(1), Duration::ZERO).await?;
    Ok((read, !following.chunks.is_empty()))
}

/// Converts an answer of the executor. Consecutive chunks of one stream become one text.
///
/// If a chunk ends within a character, its incomplete bytes are moved to the next chunk of the same stream, in this answer or the next one.
/// `incomplete` has the incomplete bytes of the previous answer. It is `None` if this read does not continue the previous one: then the
/// incomplete bytes are returned at once, because the next read may start elsewhere.
fn to_answer(
    read: ReadResult,
    after: u64,
    incomplete: Option<IncompleteChars>,
    more: bool,
) -> (ReadOutputAnswer, IncompleteChars) {
    let holds_back = incomplete.is_some() && (more || !read.closed);
    let mut incomplete = incomplete.unwrap_or_default();
    let mut joined: Vec<(Stream, Vec<u8>)> = Vec::new();
    for chunk in read.chunks {
        match joined.last_mut() {
            Some((stream, bytes)) if *stream == chunk.stream => bytes.extend_from_slice(&chunk.bytes),
            _ => joined.push((chunk.stream, chunk.bytes.to_vec())),
        }
    }
    for (stream, bytes) in &mut joined {
        if let Some(at) = incomplete.iter().position(|(of, _)| of == stream) {
            bytes.splice(..0, incomplete.swap_remove(at).1);
        }
        let whole = bytes.len() - incomplete_end(bytes);
        let rest = bytes.split_off(whole);
        if !rest.is_empty() {
            incomplete.push((*stream, rest));
        }
    }
    if !holds_back {
        // No more bytes will complete these characters.
        joined.append(&mut incomplete);
    }
    let pieces = joined.iter().filter(|(_, bytes)| !bytes.is_empty());
    let output = pieces.map(|(stream, bytes)| OutputPiece { stream: stream.as_str(), text: lossy(bytes) }).collect();
    let answer = ReadOutputAnswer {
        output,
        // Never before `after`: a client may have given a cursor beyond the end.
        cursor: read.next_seq.saturating_sub(1).max(after),
        gap_bytes: read.gap.map_or(0, |gap| gap.bytes),
        exited: read.exited,
        exit_code: read.exit_code,
        closed: read.closed,
    };
    (answer, incomplete)
}

impl ReadOutputAnswer {
    fn text(&self, id: &str) -> String {
        let state_text = match (self.exited, self.closed) {
            (false, _) => "running".to_owned(),
            (true, false) => {
                format!("{}, but a process that it started still holds its output open", exit_text(self.exit_code))
            }
            (true, true) => exit_text(self.exit_code),
        };
        let mut text = format!("{id}: {state_text}; cursor {}", self.cursor);
        if self.gap_bytes > 0 {
            text.push_str(&format!("\n[… {} bytes were dropped …]", self.gap_bytes));
        }
        for piece in &self.output {
            let line_end = if text.ends_with('\n') { "" } else { "\n" };
            text.push_str(&format!("{line_end}--- {} ---\n{}", piece.stream, piece.text));
        }
        if self.output.is_empty() {
            text.push_str("\n(no new output)");
        }
        text
    }
}

fn exit_text(code: Option<i32>) -> String {
    code.map_or_else(|| "exited".to_owned(), |code| format!("exited with code {code}"))
}

/// Arguments of `write_stdin`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteStdinArguments {
    /// The id of the process, as returned by start_process.
    process_id: String,
    /// The text to write. End each line with a line feed. On a terminal, control characters are keys: \u0003 is Ctrl-C.
    #[serde(default, deserialize_with = "or_default")]
    text: String,
    /// Closes standard input after the text. On a terminal, sends the end-of-file character instead.
    #[serde(default, deserialize_with = "or_default")]
    close: bool,
}

/// Result of `write_stdin`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WriteStdinAnswer {
    /// How many bytes were written.
    bytes: u64,
    /// Whether standard input is closed now.
    closed: bool,
}

pub(super) async fn write(call: &CallContext<'_>, arguments: WriteStdinArguments) -> Result<ToolReply, ToolFailure> {
    let (_, entry) = call.table.find(&arguments.process_id)?;
    let id = &arguments.process_id;
    if arguments.text.is_empty() && !arguments.close {
        return Err(failure!("there is nothing to write: give `text`, or set `close`"));
    }
    let bytes = arguments.text.len() as u64;
    let writing = async {
        if bytes > 0 {
            match entry.process.write(arguments.text.into_bytes()).await? {
                WriteStatus::Accepted => {}
                WriteStatus::StdinClosed => {
                    return Err(failure!("the standard input of {id} is closed, or {id} has exited"));
                }
                WriteStatus::UnknownProcess => return Err(failure!("{id} no longer exists on the executor")),
                WriteStatus::Starting => return Err(failure!("{id} is still starting; try again")),
            }
        }
        if arguments.close {
            close(&entry.process, id).await?;
        }
        Ok(())
    };
    tokio::select! {
        done = writing => done?,
        // Bytes that were enqueued are still written.
        () = time::sleep(WRITE_WITHIN) => {
            let limit = WRITE_WITHIN.as_secs();
            return Err(failure!("{id} has not read all of the text within {limit} s; the rest is queued, so do not write it again"));
        }
        why = call.cancelled() => return Err(failure!("{why}")),
    }
    let closed = if arguments.close { " and closed its standard input" } else { "" };
    let text = format!("wrote {bytes} bytes to {id}{closed}");
    Ok(ToolReply::new(text, &WriteStdinAnswer { bytes, closed: arguments.close }))
}

async fn close(process: &Process, id: &str) -> Result<(), ToolFailure> {
    match process.close_stdin().await? {
        CloseStdinStatus::Accepted | CloseStdinStatus::StdinClosed => Ok(()),
        CloseStdinStatus::RawMode => Err(failure!(
            "the terminal of {id} is in raw mode, which has no end of file; write the keys that make the program exit"
        )),
        CloseStdinStatus::UnknownProcess => Err(failure!("{id} no longer exists on the executor")),
        CloseStdinStatus::Starting => Err(failure!("{id} is still starting; try again")),
    }
}

/// Arguments of `signal_process`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignalArguments {
    /// The id of the process, as returned by start_process.
    process_id: String,
    /// `terminate`, the default, ends the process and everything it started. Or the name of a signal, such as INT, TERM, HUP, KILL or USR1.
    signal: Option<String>,
    /// For `terminate`: milliseconds between SIGTERM and SIGKILL, default 5000; 0 kills at once.
    #[schemars(range(min = 0, max = 600_000))]
    grace_ms: Option<u64>,
}

/// Result of `signal_process`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SignalAnswer {
    /// Whether the process was running when it was signalled.
    was_running: bool,
}

pub(super) async fn signal(call: &CallContext<'_>, arguments: SignalArguments) -> Result<ToolReply, ToolFailure> {
    let grace = in_range("grace_ms", arguments.grace_ms, GRACE_MS, 0..=GRACE_MS_MAX)?;
    let (number, entry) = call.table.find(&arguments.process_id)?;
    let id = &arguments.process_id;
    let word = arguments.signal.as_deref().unwrap_or("terminate");
    let is_terminate = word.eq_ignore_ascii_case("terminate");
    let done = async {
        if is_terminate {
            let grace = Some(Duration::from_millis(grace)).filter(|grace| !grace.is_zero());
            return Ok(entry.process.terminate(grace).await?);
        }
        if signals::number(word).is_none() {
            // Quote only the beginning of an overlong word.
            let word: String = word.chars().take(32).collect();
            return Err(failure!(
                "`{word}` is not a signal; use `terminate`, or a signal such as INT, TERM, HUP, KILL or USR1"
            ));
        }
        let client = call.process_session.client().await?;
        if process_row(number, &entry, &states(&client).await?).exited {
            return Ok(false);
        }
        entry.process.signal(word).await?;
        Ok(true)
    };
    let was_running = call.unless_cancelled(done).await?;
    let text = match (was_running, is_terminate) {
        (false, _) => format!("{id} had already exited"),
        (true, true) => format!("{id} is being terminated; read_output reports its exit"),
        (true, false) => format!("sent {word} to {id}"),
    };
    Ok(ToolReply::new(text, &SignalAnswer { was_running }))
}

/// Arguments of `list_processes`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListProcessesArguments {}

/// Result of `list_processes`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListProcessesAnswer {
    /// The processes, oldest first.
    processes: Vec<ProcessRow>,
}

/// A process.
#[derive(Debug, Serialize, JsonSchema)]
struct ProcessRow {
    /// The id of the process for the other tools.
    process_id: String,
    /// The command that was started.
    command: String,
    /// The process id of the operating system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Seconds since the start.
    age_seconds: u64,
    /// Whether the process has exited.
    exited: bool,
    /// The exit code, or 128 + n after signal n.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// The signal that ended the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    /// How many bytes the process has written so far, if the executor counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_bytes: Option<u64>,
}

pub(super) async fn list(call: &CallContext<'_>, _arguments: ListProcessesArguments) -> Result<ToolReply, ToolFailure> {
    let all = call.table.snapshot();
    if all.is_empty() {
        let none = ListProcessesAnswer { processes: Vec::new() };
        return Ok(ToolReply::new("no processes were started in this session", &none));
    }
    let infos = call.unless_cancelled(async { states(&call.process_session.client().await?).await }).await?;
    let processes: Vec<ProcessRow> = all.iter().map(|(number, entry)| process_row(*number, entry, &infos)).collect();
    let lines = processes.iter().map(|row| {
        let state_text = match (&row.signal, row.exit_code, row.exited) {
            (Some(signal), _, _) => format!("killed by {signal}"),
            (None, Some(code), _) => format!("exited with code {code}"),
            (None, None, true) => "exited".to_owned(),
            (None, None, false) => "running".to_owned(),
        };
        format!("{}: {state_text}, {} s old: {}", row.process_id, row.age_seconds, row.command)
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    Ok(ToolReply::new(text, &ListProcessesAnswer { processes }))
}

/// The executor's information about the processes of the session. Empty if the executor does not support `list`.
async fn states(client: &Client) -> Result<BTreeMap<String, ProcessInfo>, ToolFailure> {
    if !client.server().capabilities.list {
        return Ok(BTreeMap::new());
    }
    let all = client.list(Scope::Session).await?;
    Ok(all.into_iter().map(|info| (info.process_id.as_str().to_owned(), info)).collect())
}

/// The row of one process. The executor's information takes precedence: our handle learns of the exit only after all unread output.
fn process_row(number: u64, entry: &ProcessEntry, infos: &BTreeMap<String, ProcessInfo>) -> ProcessRow {
    let info = infos.get(entry.process.id().as_str());
    let local = entry.process.exit();
    let reported = info.and_then(|info| info.exit.clone());
    let (exit_code, signal) = match (&reported, &local) {
        (Some(exit), _) => (Some(exit.exit_code), exit.signal.as_deref().map(str::to_owned)),
        (None, Some(exit)) => (Some(exit.code), exit.signal.clone()),
        (None, None) => (None, None),
    };
    ProcessRow {
        process_id: format!("p{number}"),
        command: entry.command.clone(),
        pid: entry.process.pid(),
        age_seconds: entry.started.elapsed().as_secs(),
        // The handle has failed: its session is lost, and all processes of the session have ended.
        exited: exit_code.is_some() || info.is_some_and(|info| info.exited) || entry.process.failed().is_some(),
        exit_code,
        signal,
        output_bytes: info.map(|info| info.output_bytes),
    }
}

#[cfg(test)]
mod tests {
    use exec_server_client::Chunk;

    use super::*;

    /// An answer of the executor with these chunks.
    fn read(pieces: &[(Stream, &[u8])], closed: bool) -> ReadResult {
        let chunk = |(stream, bytes): &(Stream, &[u8])| Chunk { seq: 1, stream: *stream, bytes: bytes.to_vec().into() };
        ReadResult {
            chunks: pieces.iter().map(chunk).collect(),
            next_seq: 2,
            exited: closed,
            exit_code: None,
            closed,
            failure: None,
            sandbox_denied: false,
            gap: None,
            blocked: None,
        }
    }

    fn texts(answer: &ReadOutputAnswer) -> Vec<&str> {
        answer.output.iter().map(|piece| piece.text.as_str()).collect()
    }

    #[test]
    fn a_character_that_arrives_in_parts_is_returned_whole() {
        const OUT: Stream = Stream::Stdout;
        const ERR: Stream = Stream::Stderr;
        let euro = "€".as_bytes();
        // The characters are split by output of the other stream, and by the end of the answer.
        let pieces = [(OUT, &euro[..1]), (ERR, &b"e\xc3"[..]), (OUT, &euro[1..]), (OUT, &euro[..2])];
        let (answer, incomplete) = to_answer(read(&pieces, false), 0, Some(IncompleteChars::new()), false);
        assert_eq!(texts(&answer), ["e", "€"]);
        assert_eq!(incomplete.len(), 2);
        // No new output: nothing is returned, and nothing is lost.
        let (answer, incomplete) = to_answer(read(&[], false), 0, Some(incomplete), false);
        assert_eq!((texts(&answer), incomplete.len()), (Vec::new(), 2));
        let (answer, incomplete) = to_answer(read(&[(ERR, b"\xa4")], false), 0, Some(incomplete), false);
        assert_eq!((texts(&answer), incomplete.len()), (vec!["ä"], 1));
        let (answer, incomplete) = to_answer(read(&[(OUT, &euro[2..])], false), 0, Some(incomplete.clone()), false);
        assert_eq!((texts(&answer), incomplete.len()), (vec!["€"], 0));
    }

    #[test]
    fn a_gap_is_counted_from_the_last_read_whichever_way_the_executor_counts() {
        // Nothing was read before.
        assert_eq!(lost_after(0, 500), 500);
        // Counted from the beginning.
        assert_eq!(lost_after(1000, 1500), 500);
        assert_eq!(lost_after(1000, 1000), 0);
        // Counted from the position.
        assert_eq!(lost_after(1000, 500), 500);
        // No gap.
        assert_eq!(lost_after(1000, 0), 0);
    }

    #[test]
    fn an_incomplete_character_is_returned_when_no_later_read_can_complete_it() {
        let half = [(Stream::Stdout, &b"x\xc3"[..])];
        let (answer, incomplete) = to_answer(read(&half, true), 0, Some(IncompleteChars::new()), false);
        assert_eq!((texts(&answer), incomplete.len()), (vec!["x", "\u{fffd}"], 0));
        // An exit that comes after more output does not count yet.
        let (answer, incomplete) = to_answer(read(&half, true), 0, Some(IncompleteChars::new()), true);
        assert_eq!((texts(&answer), incomplete.len()), (vec!["x"], 1));
        // A read from another position: the next read may not continue from there.
        let (answer, incomplete) = to_answer(read(&half, false), 0, None, false);
        assert_eq!((texts(&answer), incomplete.len()), (vec!["x", "\u{fffd}"], 0));
    }
}
