//! Writes the output of the process to our standard streams, in sequence order. Events are taken from the server only after they were
//! written, so a reader that does not read applies backpressure to the process.
//!
//! All events that have arrived, up to [`BATCH_BYTES`] of output, are written as one batch. A batch ends where the output changes between
//! stdout and stderr, so that both keep their order on one terminal or in one file.

use std::{io, os::fd::AsFd, time::Duration};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use exec_server_client::{Event, Events, Exit, Process};
use exec_server_protocol::process::{Cause, Stream};
use exec_server_rpc::StandardOutput;
use rustix::fs::FileType;
use tokio::task::JoinSet;

use super::{StreamRole, screen::ScreenTracker};
use crate::codes;

/// How long a program may continue after its stdout was closed, if SIGPIPE alone does not end it.
const CLOSED_GRACE: Duration = Duration::from_secs(1);

/// Output that is written as one batch. As much again arrives in the meantime. More would leave the cache of the CPU before it is written.
pub(crate) const BATCH_BYTES: u64 = 256 << 10;

/// How the process ended, or that our stdout has no reader.
#[derive(Debug)]
pub(crate) struct OutputEnd {
    /// `None` if a guest left because its stdout was closed.
    pub(crate) exit: Option<Exit>,
    /// The reader of our stdout has gone.
    pub(crate) stdout_closed: bool,
}

impl OutputEnd {
    /// The code that a shell would show. If our stdout was closed and a signal ended the program, it counts as SIGPIPE, whichever signal it
    /// was.
    pub(crate) fn code(&self) -> u8 {
        match &self.exit {
            Some(exit) if !(self.stdout_closed && exit.signal.is_some()) => codes::of_exit(exit),
            Some(_) | None => codes::CLOSED_PIPE,
        }
    }

    /// Prints what the exit code alone does not say.
    pub(crate) fn explain(&self) {
        if self.exit.as_ref().is_some_and(|exit| exit.sandbox_denied == Some(true)) {
            report!("the sandbox may have caused the failure; `--read DIR` and `--write DIR` allow more");
        }
        match self.exit.as_ref().and_then(|exit| exit.cause) {
            Some(Cause::Timeout) => report!("killed: timeout reached"),
            Some(Cause::IdleTimeout) => report!("killed: idle timeout reached, no output"),
            Some(Cause::Oom) => report!("killed: out of memory"),
            Some(Cause::Lost) => report!("lost: the holder process died, so the exit status is unknown"),
            Some(Cause::Exit | Cause::Signal | Cause::Terminated) | None => {}
        }
    }
}

/// Writes the events of one process.
pub(crate) struct OutputWriter {
    process: Process,
    role: StreamRole,
    stdout: StandardOutput,
    stderr: StandardOutput,
    /// Output of one of our streams that is not written yet.
    batch: Vec<Bytes>,
    batch_stream: BatchStream,
    screen: ScreenTracker,
    stdout_closed: bool,
    /// Our terminal has gone. The program learns that from SIGHUP, and its further output is dropped.
    is_hung_up: bool,
    /// Why writing to stdout failed, if that has to be reported.
    failed: Option<io::Error>,
    exit: Option<Exit>,
    /// Gaps up to this number are not reported: only the latest output was requested.
    replayed_to: u64,
    /// At most one task, which ends a program whose stdout is closed.
    ending: JoinSet<()>,
}

/// The stream to which a batch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchStream {
    Stdout,
    Stderr,
}

impl OutputWriter {
    /// Events up to `replayed_to` are a replay, which may have gaps.
    pub(crate) fn new(process: Process, role: StreamRole, replayed_to: u64) -> Self {
        Self {
            process,
            role,
            stdout: StandardOutput::stdout(),
            stderr: StandardOutput::stderr(),
            batch: Vec::new(),
            batch_stream: BatchStream::Stdout,
            screen: ScreenTracker::default(),
            stdout_closed: false,
            is_hung_up: false,
            failed: None,
            exit: None,
            replayed_to,
            ending: JoinSet::new(),
        }
    }

    /// Writes all output. Returns when the process has closed, or when a guest's stdout is closed.
    pub(crate) async fn run(mut self, mut events: Events) -> anyhow::Result<OutputEnd> {
        loop {
            let events = events.next_batch(BATCH_BYTES).await;
            let is_over = events.is_empty();
            for event in events {
                if let Event::Output { stream, bytes, .. } = event {
                    self.add(stream, bytes).await;
                    continue;
                }
                // Reports about the output come behind the output before them.
                self.flush().await;
                match event {
                    Event::Gap { to_seq, .. } if to_seq <= self.replayed_to => {}
                    Event::Gap { from_seq, to_seq, bytes } => report_gap(from_seq, to_seq, bytes),
                    Event::Exited { exit, .. } => self.exit = Some(exit),
                    Event::Closed { .. } => return self.ended(),
                    Event::Failed(error) => return Err(error.into()),
                    Event::Output { .. } => {}
                }
            }
            self.flush().await;
            if is_over || self.stdout_closed && self.role == StreamRole::Guest {
                return self.ended();
            }
        }
    }

    /// Adds output to the batch. Writes the batch first if it is for the other stream.
    async fn add(&mut self, stream: Stream, bytes: Bytes) {
        let batch_stream = match stream {
            Stream::Stdout | Stream::Pty => BatchStream::Stdout,
            Stream::Stderr => BatchStream::Stderr,
        };
        if batch_stream != self.batch_stream {
            self.flush().await;
            self.batch_stream = batch_stream;
        }
        if stream == Stream::Pty && !self.is_stdout_gone() {
            self.screen.track(&bytes);
        }
        self.batch.push(bytes);
    }

    /// Whether output is dropped, because stdout is closed or the terminal has gone.
    fn is_stdout_gone(&self) -> bool {
        self.stdout_closed || self.is_hung_up
    }

    /// Writes the batch.
    async fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return;
        }
        match self.batch_stream {
            BatchStream::Stdout if self.is_stdout_gone() => {}
            BatchStream::Stdout => match self.stdout.write_all(batch).await {
                Ok(()) => {}
                Err(error) if is_hang_up(&error, io::stdout()) => self.is_hung_up = true,
                // A reader that has gone is normal; a full disk is an error.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.close_stdout(),
                Err(error) => {
                    self.failed.get_or_insert(error);
                    self.close_stdout();
                }
            },
            // Programs normally continue without stderr, and so do we.
            BatchStream::Stderr => self.stderr.write_all(batch).await.unwrap_or(()),
        }
    }

    /// Sends SIGPIPE, as the kernel does to a local program, and terminates a program that ignores the signal. The
    /// answers may arrive behind output that this task has to read, so they are awaited in another task.
    fn close_stdout(&mut self) {
        self.stdout_closed = true;
        if self.role == StreamRole::Guest {
            return;
        }
        let process = self.process.clone();
        self.ending.spawn(async move {
            process.signal("SIGPIPE").await.ok(); // It may have ended already.
            process.terminate(Some(CLOSED_GRACE)).await.ok(); // It may have ended already.
        });
    }

    fn ended(self) -> anyhow::Result<OutputEnd> {
        if let Some(error) = self.failed {
            return Err(error).context("write standard output");
        }
        // If reading started after the exit event, no such event was seen, but the client's log knows the exit.
        let exit = self.exit.or_else(|| self.process.exit());
        if exit.is_none() && !self.stdout_closed {
            return Err(anyhow!("the process closed without an exit code"));
        }
        Ok(OutputEnd { exit, stdout_closed: self.stdout_closed })
    }
}

/// Reports that output is missing at this point.
pub(crate) fn report_gap(from_seq: u64, to_seq: u64, bytes: Option<u64>) {
    match bytes {
        Some(bytes) => report!("{bytes} bytes of output are missing here"),
        None => report!("output {from_seq} to {to_seq} is missing here"),
    }
}

/// Whether the error means that a terminal hung up, as opposed to a failing disk.
pub(super) fn is_hang_up(error: &io::Error, stream: impl AsFd) -> bool {
    let is_io = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
    // After a hang-up `isatty` fails, but the fd is still a character device.
    is_io
        && rustix::fs::fstat(stream)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
}
