//! `run_command`: one command from its start to its end, with both of its streams.
//!
//! ```text
//!  start ──▶ output … ──▶ exited ──▶ closed ──▶ answer
//!    │            │          └──something else holds the streams──▶ ended after a while, and said
//!    │            └──time is over, called off, server ends──▶ terminate, the rest of the output, answer
//!    └──called off──▶ never was
//! ```
//!
//! What a command leaves behind that holds none of its streams is not seen here; it ends with the MCP session, as everything in its session with
//! the executor does.
//!
//! Must not keep more of the output than was asked for, nor wait for what is left behind.

use std::{collections::BTreeMap, time::Duration};

use exec_server_client::{
    Event, Events, Exit, Process,
    protocol::process::{Cause, Stream},
};
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{self, Instant, MissedTickBehavior};

use super::{Call, Command, Failure, Reply, or_default, within};
use crate::serve::{
    limits,
    text::{HeadTail, Kept},
};

/// How long a command may take where nothing is said, in milliseconds.
const TIMEOUT_MS: u64 = 120_000;

/// Bytes of each stream that are returned where nothing is said.
const OUTPUT_BYTES: u64 = 64 << 10;

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// How long something that the command left behind may hold its streams open before it is ended. Long enough for a pipeline's last words.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// How long the rest of the output is waited for when everything was ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Progress is told no more often.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Characters of the last line in a message about progress.
const PROGRESS_CHARS: usize = 120;

/// Arguments of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// One text for the shell, such as `ls | wc -l`; or the program and its arguments as an array, such as ["ls", "-l", "a b"].
    command: Command,
    /// The directory it runs in; relative to the server's own directory, which is the default.
    cwd: Option<String>,
    /// Variables of its environment, besides those it inherits.
    #[serde(default, deserialize_with = "or_default")]
    env: BTreeMap<String, String>,
    /// Ends it after so many milliseconds, default 120000.
    #[schemars(range(min = 1, max = 86_400_000))]
    timeout_ms: Option<u64>,
    /// Bytes of standard output, and of standard error, that are returned at most; default 65536. Of more the beginning and the end are kept.
    #[schemars(range(min = 1024, max = 1_048_576))]
    max_output_bytes: Option<u64>,
}

/// Result of `run_command`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Ran {
    /// The exit code, or 128 + n after signal n; absent where it is not known how it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// The signal that ended it, such as SIGKILL.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    /// Whether it was ended because its time was over.
    timed_out: bool,
    /// How long it took, in milliseconds.
    duration_ms: u64,
    /// What it wrote to standard output; where bytes are left out, a line says how many.
    stdout: String,
    /// What it wrote to standard error, in the same way.
    stderr: String,
    /// Bytes that it wrote to standard output in all.
    stdout_bytes: u64,
    /// Bytes that it wrote to standard error in all.
    stderr_bytes: u64,
    /// Bytes of standard output that are left out.
    stdout_omitted_bytes: u64,
    /// Bytes of standard error that are left out.
    stderr_omitted_bytes: u64,
    /// What else there is to say of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Runs a command.
pub(super) async fn run(call: &Call<'_>, arguments: Arguments) -> Result<Reply, Failure> {
    let timeout = within("timeout_ms", arguments.timeout_ms, TIMEOUT_MS, (1, limits::TIMEOUT_MS))?;
    let most = within("max_output_bytes", arguments.max_output_bytes, OUTPUT_BYTES, (1 << 10, limits::OUTPUT_BYTES))?;
    let place = &call.server.place;
    let argv = arguments.command.argv(&place.shell)?;
    let mut start = place.start(argv, arguments.cwd.as_deref());
    for (name, value) in arguments.env {
        start = start.env(name, value);
    }
    let begun = Instant::now();
    let until = begun + Duration::from_millis(timeout);
    // The start is dropped only to call it off.
    let (client, process) = tokio::select! {
        started = call.executor.begin(start) => started?,
        why = call.called_off() => return Err(Failure::new(format!("{why}; nothing was started"))),
        () = time::sleep_until(until) => {
            return Err(Failure::new(format!("not started within {timeout} ms: the executor does not answer")));
        }
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut watch = Watch {
        has_grace: client.server().capabilities.grace,
        events: process.events(),
        process,
        stdout: HeadTail::new(most),
        stderr: HeadTail::new(most),
        exit: None,
        until,
        standing: Standing::Runs,
        is_closed: false,
    };
    watch.follow(call, begun).await?;
    watch.forget(client.server().capabilities.forget).await;
    Ok(watch.answer(begun.elapsed(), timeout))
}

/// How it stands with a command that is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Nobody has touched it.
    Runs,
    /// Its time was over.
    TimedOut,
    /// Nobody wants it any more.
    CalledOff(&'static str),
    /// It ended by itself, and left something behind that was ended.
    LeftSomething,
}

struct Watch {
    process: Process,
    events: Events,
    has_grace: bool,
    stdout: HeadTail,
    stderr: HeadTail,
    exit: Option<Exit>,
    /// When something has to be done: its time is over, or the wait for its last words.
    until: Instant,
    standing: Standing,
    is_closed: bool,
}

impl Watch {
    /// Watches it until nothing of it is left.
    async fn follow(&mut self, call: &Call<'_>, begun: Instant) -> Result<(), Failure> {
        let token = call.context.meta.get_progress_token();
        let mut progress = time::interval_at(begun + PROGRESS_EVERY, PROGRESS_EVERY);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_closed {
            // All are cancel safe; an event that was not returned is returned by the next call.
            tokio::select! {
                event = self.events.next() => self.take(event)?,
                why = call.called_off(), if self.standing == Standing::Runs => self.end(Standing::CalledOff(why)).await,
                () = time::sleep_until(self.until) => match (self.standing, &self.exit) {
                    (Standing::Runs, None) => self.end(Standing::TimedOut).await,
                    (Standing::Runs, Some(_)) => self.end(Standing::LeftSomething).await,
                    // Whatever holds the streams is beyond us.
                    _ => return Ok(()),
                },
                _ = progress.tick(), if token.is_some() => self.tell(call, token.clone(), begun.elapsed()).await,
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Option<Event>) -> Result<(), Failure> {
        match event {
            Some(Event::Output { stream: Stream::Stderr, bytes, .. }) => self.stderr.push(&bytes),
            Some(Event::Output { stream: Stream::Stdout | Stream::Pty, bytes, .. }) => self.stdout.push(&bytes),
            Some(Event::Gap { bytes, .. }) => self.stdout.lose(bytes.unwrap_or(1)),
            Some(Event::Exited { exit, .. }) => {
                self.exit = Some(exit);
                if self.standing == Standing::Runs {
                    self.until = self.until.min(Instant::now() + LEFT_BEHIND);
                }
            }
            Some(Event::Closed { .. }) | None => self.is_closed = true,
            Some(Event::Failed(error)) => {
                let text = format!("the connection to the command is lost, and it may still run: {error}");
                return Err(Failure::new(text));
            }
        }
        Ok(())
    }

    /// Ends it and everything that it started.
    async fn end(&mut self, standing: Standing) {
        self.standing = standing;
        // What holds the streams of a command that has ended had its time.
        let grace = if self.has_grace && self.exit.is_none() { Some(GRACE) } else { None };
        // A server that cannot be reached ends it by the session's time-to-live.
        match time::timeout(GRACE, self.process.terminate(grace)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a command could not be ended"),
            Err(_) => tracing::warn!("a command could not be ended: no answer"),
        }
        self.until = Instant::now() + grace.unwrap_or_default() + LAST_WORDS;
    }

    async fn tell(&mut self, call: &Call<'_>, token: Option<ProgressToken>, elapsed: Duration) {
        let Some(token) = token else { return };
        let bytes = self.stdout.total() + self.stderr.total();
        let line = match self.stdout.last_line(PROGRESS_CHARS) {
            line if line.is_empty() => self.stderr.last_line(PROGRESS_CHARS),
            line => line,
        };
        let message = format!("{} s, {bytes} bytes of output; last line: {line}", elapsed.as_secs());
        let param = ProgressNotificationParam::new(token, elapsed.as_secs_f64()).with_message(message);
        // A client that does not read hears nothing of it; the command goes on.
        time::timeout(PROGRESS_EVERY, call.context.peer.notify_progress(param)).await.ok();
    }

    /// Lets the server forget what was returned; it would keep it for a day.
    async fn forget(&mut self, can: bool) {
        if can && self.is_closed {
            // It is forgotten with the session at the latest.
            time::timeout(GRACE, self.process.forget()).await.ok();
        }
    }

    fn answer(self, took: Duration, timeout_ms: u64) -> Reply {
        let is_complete = self.is_closed;
        let (standing, exit) = (self.standing, self.exit);
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        let headline = headline(standing, exit.as_ref(), took, timeout_ms);
        let note = match standing {
            Standing::LeftSomething => Some(
                "it left something running that held its output open, which was ended; use start_process for programs that go on",
            ),
            _ if !is_complete => {
                Some("something still holds its output open and could not be ended; more may have been written")
            }
            _ => None,
        };
        let is_lost = exit.as_ref().is_none_or(|exit| exit.cause == Some(Cause::Lost));
        let failed = matches!(standing, Standing::TimedOut | Standing::CalledOff(_)) || is_lost;
        let text = text(&headline, note, &stdout, &stderr);
        let ran = Ran {
            exit_code: exit.as_ref().map(|exit| exit.code),
            signal: exit.and_then(|exit| exit.signal),
            timed_out: standing == Standing::TimedOut,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            stdout_bytes: stdout.bytes,
            stderr_bytes: stderr.bytes,
            stdout_omitted_bytes: stdout.omitted,
            stderr_omitted_bytes: stderr.omitted,
            stdout: stdout.text,
            stderr: stderr.text,
            note: note.map(str::to_owned),
        };
        Reply::new(text, &ran).failed_if(failed)
    }
}

/// How it ended, in one line.
fn headline(standing: Standing, exit: Option<&Exit>, took: Duration, timeout_ms: u64) -> String {
    let took = format!("after {:.1} s", took.as_secs_f64());
    match (standing, exit) {
        (Standing::TimedOut, _) => format!(
            "timed out after {timeout_ms} ms and was ended with everything it started; what it wrote until then follows. \
             Give a longer `timeout_ms`, or use start_process"
        ),
        (Standing::CalledOff(why), _) => format!("{why}; the command was ended {took}"),
        (_, None) => format!("it is not known how it ended, {took}"),
        (_, Some(exit)) => ended(exit, &took),
    }
}

fn ended(exit: &Exit, took: &str) -> String {
    match (exit.cause, &exit.signal) {
        (Some(Cause::Oom), _) => format!("killed for want of memory {took} (exit code {})", exit.code),
        (Some(Cause::Lost), _) => format!("lost with the program that held it {took}: nobody knows how it ended"),
        (_, Some(signal)) => format!("ended by {signal} {took} (exit code {})", exit.code),
        (_, None) => format!("exit code {} {took}", exit.code),
    }
}

fn text(headline: &str, note: Option<&str>, stdout: &Kept, stderr: &Kept) -> String {
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
