//! `run_command`: runs one command from start to end and collects both output streams.
//!
//! ```text
//!  start ──▶ output … ──▶ exited ──▶ closed ──▶ answer
//!    │            │          └──another process holds the streams──▶ terminate it after a second, answer with a note
//!    │            └──timeout, cancelled, server shuts down──▶ terminate, the rest of the output, answer
//!    └──cancelled──▶ cancel the start; terminate the command if it has started already
//! ```
//!
//! A leftover process that does not hold the command's streams is not noticed here. It is killed when the MCP session ends, because it runs
//! in the executor session of that MCP session. Only the requested amount of output is kept in memory.

use std::{collections::BTreeMap, time::Duration};

use exec_server_client::{
    Event, Events, Exit, Process,
    protocol::process::{Cause, Stream},
};
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{self, Instant, MissedTickBehavior};

use super::{CallContext, CommandArgument, ToolFailure, ToolReply, in_range, or_default};
use crate::serve::{
    limits,
    text::{BoundedText, HeadTail},
};

/// The default timeout of a command, in milliseconds.
const TIMEOUT_MS: u64 = 120_000;

/// The default number of bytes returned from each stream.
const OUTPUT_BYTES: u64 = 64 << 10;

/// The time between SIGTERM and SIGKILL. Also the time limit for the answers to `terminate` and `forget`.
const GRACE: Duration = Duration::from_secs(2);

/// How long leftover processes may hold the command's streams open before they are terminated. Long enough for the last output of a
/// pipeline.
const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

/// How long to wait for the rest of the output after everything was terminated.
const REST_OF_OUTPUT: Duration = Duration::from_millis(500);

/// The minimum interval between progress notifications, and the time limit for sending one.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// How many characters of the last line a progress notification contains.
const PROGRESS_CHARS: usize = 120;

/// Arguments of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunArguments {
    /// One string for the shell, such as `ls | wc -l`; or an array of the program and its arguments, such as ["ls", "-l", "a b"].
    command: CommandArgument,
    /// The working directory. A relative path starts at the server's base directory, which is the default.
    cwd: Option<String>,
    /// Environment variables to set in addition to the inherited ones.
    #[serde(default, deserialize_with = "or_default")]
    env: BTreeMap<String, String>,
    /// Terminates the command after this many milliseconds; default 120000.
    #[schemars(range(min = 1, max = 86_400_000))]
    timeout_ms: Option<u64>,
    /// The maximum number of bytes returned from each stream; default 65536. If there is more output, its beginning and its end are
    /// returned.
    #[schemars(range(min = 1024, max = 1_048_576))]
    max_output_bytes: Option<u64>,
}

/// Result of `run_command`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunAnswer {
    /// The exit code, or 128 + n after signal n. Absent if it is unknown how the command ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// The signal that killed the command, such as SIGKILL.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    /// Whether the command was terminated because of its timeout.
    timed_out: bool,
    /// The duration in milliseconds.
    duration_ms: u64,
    /// The standard output. If bytes are left out, a line says how many.
    stdout: String,
    /// The standard error. If bytes are left out, a line says how many.
    stderr: String,
    /// How many bytes were written to standard output in total.
    stdout_bytes: u64,
    /// How many bytes were written to standard error in total.
    stderr_bytes: u64,
    /// How many bytes of standard output are left out.
    stdout_omitted_bytes: u64,
    /// How many bytes of standard error are left out.
    stderr_omitted_bytes: u64,
    /// A remark about processes that the command left running, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

pub(super) async fn run(call: &CallContext<'_>, arguments: RunArguments) -> Result<ToolReply, ToolFailure> {
    let timeout = in_range("timeout_ms", arguments.timeout_ms, TIMEOUT_MS, 1..=limits::TIMEOUT_MS)?;
    let most = in_range("max_output_bytes", arguments.max_output_bytes, OUTPUT_BYTES, 1 << 10..=limits::OUTPUT_BYTES)?;
    let executor = &call.server.executor;
    let argv = arguments.command.argv(&executor.shell)?;
    let start = executor.start(argv, arguments.cwd.as_deref(), arguments.env);
    let begun = Instant::now();
    let until = begun + Duration::from_millis(timeout);
    // Dropping the future cancels the start, or terminates a process that has started already.
    let (client, process) = tokio::select! {
        started = call.process_session.start(start) => started?,
        why = call.cancelled() => return Err(failure!("{why}; nothing was started")),
        () = time::sleep_until(until) => {
            return Err(failure!("not started within {timeout} ms: the executor has not answered"));
        }
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut command_run = CommandRun {
        has_grace: client.server().capabilities.grace,
        events: process.events(),
        process,
        stdout: HeadTail::new(most),
        stderr: HeadTail::new(most),
        exit: None,
        until,
        termination: Termination::None,
        is_closed: false,
    };
    command_run.follow(call, begun).await?;
    if client.server().capabilities.forget && command_run.is_closed {
        // Otherwise the executor would keep the ended process and its output. Ignore a failure: it is forgotten with the session at the
        // latest.
        time::timeout(GRACE, command_run.process.forget()).await.ok();
    }
    Ok(command_run.answer(begun.elapsed(), timeout))
}

/// Whether and why this module has terminated processes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Termination {
    /// Nothing was terminated.
    None,
    /// The command, because its timeout has passed.
    TimedOut,
    /// The command, because the call was cancelled or the server shuts down. Holds the reason.
    Cancelled(&'static str),
    /// Leftover processes that held the command's streams after its exit.
    Leftovers,
}

struct CommandRun {
    process: Process,
    events: Events,
    has_grace: bool,
    stdout: HeadTail,
    stderr: HeadTail,
    exit: Option<Exit>,
    /// The next deadline: the timeout of the command, the end of `LEFTOVER_GRACE`, or the end of the wait for the last output.
    until: Instant,
    termination: Termination,
    is_closed: bool,
}

impl CommandRun {
    /// Handles events until the command has closed or the last deadline has passed.
    async fn follow(&mut self, call: &CallContext<'_>, begun: Instant) -> Result<(), ToolFailure> {
        let token = call.context.meta.get_progress_token();
        let mut progress = time::interval_at(begun + PROGRESS_EVERY, PROGRESS_EVERY);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_closed {
            // All arms are cancel safe: an event that was not returned is returned by the next call.
            tokio::select! {
                event = self.events.next() => self.handle(event)?,
                why = call.cancelled(), if self.termination == Termination::None => {
                    self.terminate(Termination::Cancelled(why)).await;
                }
                () = time::sleep_until(self.until) => match (self.termination, &self.exit) {
                    (Termination::None, None) => self.terminate(Termination::TimedOut).await,
                    (Termination::None, Some(_)) => self.terminate(Termination::Leftovers).await,
                    // The processes that hold the streams could not be terminated.
                    _ => return Ok(()),
                },
                _ = progress.tick(), if token.is_some() => self.send_progress(call, token.clone(), begun.elapsed()).await,
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Option<Event>) -> Result<(), ToolFailure> {
        match event {
            Some(Event::Output { stream: Stream::Stderr, bytes, .. }) => self.stderr.push(&bytes),
            Some(Event::Output { stream: Stream::Stdout | Stream::Pty, bytes, .. }) => self.stdout.push(&bytes),
            // A gap does not say which stream lost output. With an unknown count, record one byte, so that the text shows the loss.
            Some(Event::Gap { bytes, .. }) => self.stdout.record_loss(bytes.unwrap_or(1)),
            Some(Event::Exited { exit, .. }) => {
                self.exit = Some(exit);
                if self.termination == Termination::None {
                    self.until = self.until.min(Instant::now() + LEFTOVER_GRACE);
                }
            }
            // The events end only after the close.
            Some(Event::Closed { .. }) | None => self.is_closed = true,
            Some(Event::Failed(error)) => {
                return Err(failure!("lost the connection to the command, which may still be running: {error}"));
            }
        }
        Ok(())
    }

    /// Terminates the command and everything that it started.
    async fn terminate(&mut self, termination: Termination) {
        self.termination = termination;
        // After the exit, the leftover processes have already had `LEFTOVER_GRACE`, so they get no grace period.
        let grace = if self.has_grace && self.exit.is_none() { Some(GRACE) } else { None };
        // If the executor cannot be reached, the command is killed when the time-to-live of the executor session is over.
        match time::timeout(GRACE, self.process.terminate(grace)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "could not terminate a command"),
            Err(_) => tracing::warn!("could not terminate a command: the executor has not answered"),
        }
        self.until = Instant::now() + grace.unwrap_or_default() + REST_OF_OUTPUT;
    }

    async fn send_progress(&mut self, call: &CallContext<'_>, token: Option<ProgressToken>, elapsed: Duration) {
        let Some(token) = token else { return };
        let bytes = self.stdout.total + self.stderr.total;
        let line = match self.stdout.last_line(PROGRESS_CHARS) {
            line if line.is_empty() => self.stderr.last_line(PROGRESS_CHARS),
            line => line,
        };
        let message = format!("{} s, {bytes} bytes of output; last line: {line}", elapsed.as_secs());
        let param = ProgressNotificationParam::new(token, elapsed.as_secs_f64()).with_message(message);
        // Ignore a timeout: a client that does not read gets no progress, and the command continues.
        time::timeout(PROGRESS_EVERY, call.context.peer.notify_progress(param)).await.ok();
    }

    fn answer(self, took: Duration, timeout_ms: u64) -> ToolReply {
        let Self { termination, exit, is_closed, .. } = self;
        let stdout = self.stdout.finish();
        let stderr = self.stderr.finish();
        let headline = headline(termination, exit.as_ref(), took, timeout_ms);
        let note = match termination {
            Termination::Leftovers => Some(
                "processes that the command left running held its output open and were terminated; use start_process for programs that \
                 keep running",
            ),
            _ if !is_closed => {
                Some("a process still holds the output open and could not be terminated; it may have written more")
            }
            _ => None,
        };
        let is_lost = exit.as_ref().is_none_or(|exit| exit.cause == Some(Cause::Lost));
        let is_error = matches!(termination, Termination::TimedOut | Termination::Cancelled(_)) || is_lost;
        let text = text(&headline, note, &stdout, &stderr);
        let ran = RunAnswer {
            exit_code: exit.as_ref().map(|exit| exit.code),
            signal: exit.and_then(|exit| exit.signal),
            timed_out: termination == Termination::TimedOut,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            stdout_bytes: stdout.bytes,
            stderr_bytes: stderr.bytes,
            stdout_omitted_bytes: stdout.omitted,
            stderr_omitted_bytes: stderr.omitted,
            stdout: stdout.text,
            stderr: stderr.text,
            note: note.map(str::to_owned),
        };
        ToolReply { is_error, ..ToolReply::new(text, &ran) }
    }
}

/// One line that says how the command ended.
fn headline(termination: Termination, exit: Option<&Exit>, took: Duration, timeout_ms: u64) -> String {
    let took = format!("after {:.1} s", took.as_secs_f64());
    match (termination, exit) {
        (Termination::TimedOut, _) => format!(
            "timed out after {timeout_ms} ms and was terminated with everything it started; the output so far follows. Give a longer \
             `timeout_ms`, or use start_process"
        ),
        (Termination::Cancelled(why), _) => format!("{why}; the command was terminated {took}"),
        (_, None) => format!("exit status unknown {took}"),
        (_, Some(exit)) => match (exit.cause, &exit.signal) {
            (Some(Cause::Oom), _) => format!("killed: out of memory {took} (exit code {})", exit.code),
            (Some(Cause::Lost), _) => format!("lost {took}: the holder process died, so the exit status is unknown"),
            (_, Some(signal)) => format!("killed by {signal} {took} (exit code {})", exit.code),
            (_, None) => format!("exit code {} {took}", exit.code),
        },
    }
}

fn text(headline: &str, note: Option<&str>, stdout: &BoundedText, stderr: &BoundedText) -> String {
    let mut text = headline.to_owned();
    if let Some(note) = note {
        text.push_str(&format!("\nnote: {note}"));
    }
    for (name, kept) in [("stdout", stdout), ("stderr", stderr)] {
        if !kept.text.is_empty() {
            let line_end = if text.ends_with('\n') { "" } else { "\n" };
            text.push_str(&format!("{line_end}--- {name} ---\n{}", kept.text));
        }
    }
    if stdout.bytes + stderr.bytes == 0 {
        text.push_str("\n(no output)");
    }
    text
}
