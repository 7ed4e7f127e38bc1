//! Copies bytes, keys and signals between our standard streams and a process, until the process ends or we leave it.
//!
//! Two futures run side by side: `output` writes what the process prints, in order, with backpressure from our reader; `input` reads what
//! the user types or pipes. This module handles signals and the state of the link.
//!
//! Failure paths:
//! - The link breaks: one line is printed, and everything continues after the reconnect.
//! - The session is lost: the event stream ends with the reason.
//! - Our stdin fails: a process that we own is ended, because it would take partial input for complete input.

mod input;
mod link_notice;
mod output;
mod screen;

use std::{
    io::{self, IsTerminal as _},
    time::Duration,
};

use exec_server_client::{Client, Error, Events, Process, protocol::process::Size};
use tokio::{task::JoinSet, time};

pub(crate) use input::{AtEof, InputEnd, InputMode, forward};
pub(crate) use link_notice::LinkNotice;
pub(crate) use output::{BATCH_BYTES, OutputEnd, OutputWriter, report_gap};

use crate::{
    ids,
    signals::{self, SignalEvent, SignalStream},
    stall,
    terminal::{self, Terminal},
};

/// How long a suspend waits until the process is stopped; after that we stop without it.
const STOP_WITHIN: Duration = Duration::from_secs(1);

/// How often a signal is sent if its answer gets lost with the link. Each attempt waits for a link; the limit prevents an endless loop if
/// every new link breaks at once.
const SIGNAL_TRIES: u32 = 8;

/// How long a program gets to notice the first of two sizes; short enough not to be visible.
const BETWEEN_SIZES: Duration = Duration::from_millis(80);

/// The number of SIGHUP.
const HANGUP: u8 = 1;

/// Our relation to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRole {
    /// Like its shell: signals are passed on, and a closed stdout ends the process.
    Owner,
    /// An observer that can also type: a signal ends only the observation.
    Guest,
}

#[derive(Debug)]
pub(crate) enum StreamOutcome {
    /// The process ended.
    Ended(OutputEnd),
    /// The user pressed the detach keys.
    Detached,
    /// We received the signal with this number, or our terminal hung up (SIGHUP); the process continues.
    Left(u8),
}

/// A process and the streams and signals to connect it to.
pub(crate) struct StreamForwarder {
    pub(crate) client: Client,
    pub(crate) process: Process,
    pub(crate) events: Events,
    /// Events up to this number are only a replay.
    pub(crate) replayed_to: u64,
    pub(crate) input: InputMode,
    pub(crate) signals: SignalStream,
    /// Signals received before the process was started.
    pub(crate) pending: Vec<SignalEvent>,
    pub(crate) role: StreamRole,
    /// In raw mode as long as this exists.
    pub(crate) terminal: Option<Terminal>,
}

impl StreamForwarder {
    /// Runs to the end. The terminal is restored when this returns.
    pub(crate) async fn run(self) -> anyhow::Result<StreamOutcome> {
        let Self { client, process, events, replayed_to, input, mut signals, pending, role, terminal } = self;
        // The task that forwards our stdin, and later perhaps one that ends the process.
        let mut typing = JoinSet::new();
        typing.spawn(forward(process.clone(), input, client.server().generation));
        let stall = stall::watch(&process);
        tokio::pin!(stall);
        let output = OutputWriter::new(process.clone(), role, replayed_to).run(events);
        tokio::pin!(output);
        let has_screen = process.is_tty() && terminal.is_some() && io::stdout().is_terminal();
        let mut link = LinkNotice::new(client.watch_state(), has_screen);
        let mut signal_handler = SignalHandler::new(process.clone(), role, terminal);
        let name = ids::clean(process.id().as_str());
        for event in pending {
            if let Some(outcome) = signal_handler.handle(event, link.is_broken()).await {
                return Ok(outcome);
            }
        }
        // Set to the reason if our stdin failed half-way.
        let mut failed = None;
        loop {
            // All branches are cancel-safe. `output` is dropped before its end only when we leave the process.
            tokio::select! {
                ended = &mut output => {
                    let ended = ended?;
                    return failed.map_or(Ok(StreamOutcome::Ended(ended)), Err);
                }
                event = signals.next() => {
                    if event == SignalEvent::Resized {
                        link.handle_resize();
                    }
                    if let Some(outcome) = signal_handler.handle(event, link.is_broken()).await {
                        return Ok(outcome);
                    }
                }
                Some(Ok(typed)) = typing.join_next() => {
                    let error = match typed {
                        InputEnd::Detach => return Ok(StreamOutcome::Detached),
                        InputEnd::HungUp => {
                            signal_handler.hang_up();
                            None
                        }
                        InputEnd::Eof | InputEnd::Closed(_) => None,
                        InputEnd::Unreadable(error) => Some(anyhow::Error::new(error).context("read standard input")),
                        InputEnd::Refused(error) => Some(anyhow::Error::new(error).context("forward standard input")),
                    };
                    match error {
                        None => {}
                        // The process ended without needing the rest of the input.
                        Some(_) if failed.is_none() && process.has_exited() => {}
                        Some(error) if role == StreamRole::Owner && failed.is_none() => {
                            failed = Some(error.context(format!("killed `{name}`, because its stdin is incomplete")));
                            typing.spawn(end(process.clone()));
                        }
                        Some(error) => {
                            let left = || error.context(format!("detached from `{name}`, which keeps running"));
                            return Err(failed.unwrap_or_else(left));
                        }
                    }
                }
                works_again = link.watch() => {
                    if works_again && has_screen {
                        signal_handler.redraw();
                    }
                }
                // Only a guest needs to know that another reader blocks the process; an owner reads the output itself.
                () = &mut stall, if role == StreamRole::Guest => {}
            }
            if signal_handler.is_hung_up && (role == StreamRole::Guest || link.is_broken()) {
                // The terminal has gone, so further output would not be seen.
                return Ok(StreamOutcome::Left(HANGUP));
            }
        }
    }
}

/// Ends the process at once, because it must not act on partial input. Its last output is still printed.
async fn end(process: Process) -> InputEnd {
    match process.terminate(None).await {
        Ok(_) => InputEnd::Eof,
        Err(error) => InputEnd::Refused(io::Error::other(error)),
    }
}

/// Reacts to signals.
struct SignalHandler {
    process: Process,
    role: StreamRole,
    terminal: Option<Terminal>,
    /// Requests whose results are ignored: a signal to an ended process is not an error.
    calls: JoinSet<()>,
    /// We have stopped the process with SIGSTOP.
    stopped: bool,
    /// How many signals arrived since the link broke.
    interrupts: u32,
    /// Our terminal has gone.
    is_hung_up: bool,
}

impl SignalHandler {
    fn new(process: Process, role: StreamRole, terminal: Option<Terminal>) -> Self {
        Self { process, role, terminal, calls: JoinSet::new(), stopped: false, interrupts: 0, is_hung_up: false }
    }

    /// Does what the kernel does when a terminal hangs up, even if it was not our controlling terminal.
    fn hang_up(&mut self) {
        self.is_hung_up = !signals::ignores_hangup();
        if self.is_hung_up && self.role == StreamRole::Owner {
            self.pass("SIGHUP");
        }
    }

    async fn handle(&mut self, event: SignalEvent, link_is_broken: bool) -> Option<StreamOutcome> {
        match event {
            SignalEvent::Signal(_, number) if self.role == StreamRole::Guest => {
                return Some(StreamOutcome::Left(number));
            }
            SignalEvent::Signal(name, number) => {
                self.interrupts = if link_is_broken { self.interrupts + 1 } else { 0 };
                if self.interrupts > 1 {
                    // The first signal waits for the link; a user who asks again does not want to wait.
                    return Some(StreamOutcome::Left(number));
                }
                self.pass(name);
            }
            SignalEvent::Resized => self.resize(),
            SignalEvent::Suspend => self.suspend().await,
            SignalEvent::Continued => {
                if std::mem::take(&mut self.stopped) {
                    self.pass("SIGCONT");
                }
                if let Some(terminal) = &self.terminal {
                    terminal.make_raw_again();
                }
                self.resize();
            }
        }
        None
    }

    fn pass(&mut self, name: &'static str) {
        let process = self.process.clone();
        self.calls.spawn(async move {
            if process.has_exited() {
                // Only descendants still hold the streams. A signal to the process itself would reach nothing, so kill the
                // descendants.
                process.terminate(None).await.ok(); // They may have ended already.
            } else {
                send(&process, name).await;
            }
        });
    }

    fn resize(&mut self) {
        if let Some(size) = terminal::size().filter(|_| self.process.is_tty()) {
            let process = self.process.clone();
            self.calls.spawn(async move {
                process.resize(size).await.ok(); // The process may have ended already.
            });
        }
    }

    /// Makes the program redraw its screen, which our notice has covered.
    fn redraw(&mut self) {
        if let Some(size) = terminal::size() {
            let process = self.process.clone();
            self.calls.spawn(async move { redraw(&process, size).await });
        }
    }

    /// Stops the process, if we own it, and then ourselves. Uses SIGSTOP, because the kernel discards SIGTSTP for an orphaned process
    /// group, and the process leads its own session.
    async fn suspend(&mut self) {
        if self.role == StreamRole::Owner && !self.process.has_exited() {
            // Set even if the answer is lost, because the process may have received the signal. SIGCONT is harmless for a process that was
            // not stopped.
            self.stopped = true;
            time::timeout(STOP_WITHIN, send(&self.process, "SIGSTOP")).await.ok(); // After the timeout we stop without it.
        }
        terminal::restore();
        signals::stop_us();
    }
}

/// Sends a signal. If a cut loses the answer, the signal may have arrived or not. A signal that does no harm if it arrives twice, such as
/// one that ends the program, is sent again. For any other signal, reports that the outcome is unknown.
async fn send(process: &Process, name: &'static str) {
    let tries = match name {
        "SIGINT" | "SIGTERM" | "SIGHUP" | "SIGQUIT" | "SIGSTOP" | "SIGCONT" => SIGNAL_TRIES,
        _ => 1,
    };
    for _ in 0..tries {
        // Any other error means that the process or the session has ended, which the event stream reports.
        let Err(Error::UnknownOutcome { .. }) = process.signal(name).await else { return };
    }
    let id = ids::clean(process.id().as_str());
    report!("connection lost while sending {name}; `{id}` may not have received it");
}

/// Makes a program redraw its screen, by changing the terminal size and changing it back.
pub(crate) async fn redraw(process: &Process, size: Size) {
    let other = Size { rows: if size.rows > 1 { size.rows - 1 } else { 2 }, ..size };
    // The process may have ended already.
    process.resize(other).await.ok();
    // Without a pause the program would only see the final size, and nothing tells us when it has read the first one.
    time::sleep(BETWEEN_SIZES).await;
    process.resize(size).await.ok();
}
