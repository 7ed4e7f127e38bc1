//! Carries bytes, keys and signals between our standard streams and a process until it has ended, or we leave it.
//!
//! Two things run beside each other: `output` writes what the process says, in order, and holds it back when our reader does not
//! read; `input` reads what is typed or piped. This file listens to signals and to the link. Failure paths: the link breaks,
//! one line says so and all goes on when it is mended; it is lost, the events end with why; our input fails, a process of ours is
//! ended, because it would take a part of it for the whole. Must not know how the process was started or found.

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

pub(crate) use input::Input;
pub(crate) use link_notice::LinkNotice;
pub(crate) use output::{Ended, Output, say_gap};

use crate::{
    ids, say,
    signals::{self, Heard, Signals},
    stall,
    terminal::{self, Terminal},
};
use input::Typed;

/// How long a suspension waits for the process to be stopped, before we stop without it.
const STOP_WITHIN: Duration = Duration::from_secs(1);

/// How often a signal is sent whose answers are lost with their links: each try waits for a link, and a link that breaks as
/// soon as it is made is no reason to go on for ever.
const SIGNAL_TRIES: u32 = 8;

/// How long a program has to see the first of two sizes; a person does not.
const BETWEEN_SIZES: Duration = Duration::from_millis(80);

/// SIGHUP.
const HANGUP: u8 = 1;

/// What we are to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Its shell: signals are passed on, and a closed standard output ends it.
    Owner,
    /// Somebody who looks on and types: a signal only ends the looking.
    Guest,
}

/// How the carrying ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// With the process.
    Ended(Ended),
    /// By the keys that detach.
    Detached,
    /// By a signal to us, its number; the process goes on.
    Left(u8),
}

/// Everything there is to carry.
pub(crate) struct Carry {
    pub(crate) client: Client,
    pub(crate) process: Process,
    pub(crate) events: Events,
    /// The last number of what is only shown again.
    pub(crate) replayed_to: u64,
    pub(crate) input: Input,
    pub(crate) signals: Signals,
    /// What was heard before there was a process to tell.
    pub(crate) pending: Vec<Heard>,
    pub(crate) role: Role,
    /// Raw for as long as this lives.
    pub(crate) terminal: Option<Terminal>,
}

impl Carry {
    /// Carries; the terminal is given back when this returns.
    pub(crate) async fn run(self) -> anyhow::Result<Outcome> {
        let Self { client, process, events, replayed_to, input, mut signals, pending, role, terminal } = self;
        let stdio = exec_server_rpc::stdio();
        let mut typing = JoinSet::new();
        typing.spawn(input::forward(process.clone(), stdio.reader, input, client.server().generation));
        let stall = stall::watch(&process);
        tokio::pin!(stall);
        let output = Output::new(process.clone(), stdio.writer, role).replaying_to(replayed_to).run(events);
        tokio::pin!(output);
        let has_screen = process.is_tty() && terminal.is_some() && io::stdout().is_terminal();
        let mut link = LinkNotice::new(client.watch_state(), has_screen);
        let mut steering = Steering::new(process.clone(), role, terminal);
        let name = ids::clean(process.id().as_str());
        for heard in pending {
            if let Some(outcome) = steering.handle(heard, link.is_broken()).await {
                return Ok(outcome);
            }
        }
        // Why our input is not whole.
        let mut failed = None;
        loop {
            // All are cancel safe, and `output` is never dropped before its end.
            tokio::select! {
                ended = &mut output => {
                    let ended = ended?;
                    return failed.map_or(Ok(Outcome::Ended(ended)), Err);
                }
                heard = signals.next() => {
                    if heard == Heard::Resized {
                        link.handle_resize();
                    }
                    if let Some(outcome) = steering.handle(heard, link.is_broken()).await {
                        return Ok(outcome);
                    }
                }
                Some(typed) = typing.join_next() => match typed {
                    Ok(Typed::Detach) => return Ok(Outcome::Detached),
                    Ok(Typed::HungUp) => steering.hang_up(),
                    // It did without.
                    Ok(Typed::Failed(_)) if failed.is_none() && process.has_exited() => {}
                    Ok(Typed::Failed(error)) if role == Role::Owner && failed.is_none() => {
                        failed = Some(error.context(format!("ended `{name}`, because its input is not whole")));
                        typing.spawn(end(process.clone()));
                    }
                    Ok(Typed::Failed(error)) => {
                        return Err(failed.unwrap_or_else(|| error.context(format!("left `{name}`, which goes on"))));
                    }
                    Ok(Typed::Ended) | Err(_) => {}
                },
                is_well_again = link.watch() => {
                    if is_well_again && has_screen {
                        steering.redraw();
                    }
                }
                // The owner takes what is printed: only a guest may be kept waiting by another.
                () = &mut stall, if role == Role::Guest => {}
            }
            if steering.is_hung_up && (role == Role::Guest || link.is_broken()) {
                // Nobody is there to wait for anything.
                return Ok(Outcome::Left(HANGUP));
            }
        }
    }
}

/// Ends the process at once: it must not do anything with what it has. Its last output is still carried.
async fn end(process: Process) -> Typed {
    match process.terminate(None).await {
        Ok(_) => Typed::Ended,
        Err(error) => Typed::Failed(error.into()),
    }
}

/// What signals do.
struct Steering {
    process: Process,
    role: Role,
    terminal: Option<Terminal>,
    /// Calls whose answers nobody needs: a signal to a process that has ended is none.
    calls: JoinSet<()>,
    /// We stopped the process.
    stopped: bool,
    /// Signals that were to end it while the link was broken.
    interrupts: u32,
    /// Our terminal is gone.
    is_hung_up: bool,
}

impl Steering {
    fn new(process: Process, role: Role, terminal: Option<Terminal>) -> Self {
        Self { process, role, terminal, calls: JoinSet::new(), stopped: false, interrupts: 0, is_hung_up: false }
    }

    /// Does what the kernel does for a terminal that is gone, also where it was not our controlling one.
    fn hang_up(&mut self) {
        self.is_hung_up = !signals::ignores_hangup();
        if self.is_hung_up && self.role == Role::Owner {
            self.pass("SIGHUP");
        }
    }

    async fn handle(&mut self, heard: Heard, link_is_broken: bool) -> Option<Outcome> {
        match heard {
            Heard::Signal(_, number) if self.role == Role::Guest => return Some(Outcome::Left(number)),
            Heard::Signal(name, number) => {
                self.interrupts = if link_is_broken { self.interrupts + 1 } else { 0 };
                if self.interrupts > 1 {
                    // The first waits for the link; whoever asks twice does not want to.
                    return Some(Outcome::Left(number));
                }
                self.pass(name);
            }
            Heard::Resized => self.resize(),
            Heard::Suspend => self.suspend().await,
            Heard::Continued => {
                if std::mem::take(&mut self.stopped) {
                    self.pass("SIGCONT");
                }
                if let Some(terminal) = &self.terminal {
                    terminal.take_again();
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
                // Only others hold its streams any more, and a signal to the process would reach nobody.
                process.terminate(None).await.ok(); // They may have ended.
            } else {
                send(&process, name).await;
            }
        });
    }

    fn resize(&mut self) {
        if let Some(size) = terminal::size().filter(|_| self.process.is_tty()) {
            let process = self.process.clone();
            self.calls.spawn(async move {
                process.resize(size).await.ok(); // As above.
            });
        }
    }

    /// Makes the program draw its screen again, over what a notice of ours has covered.
    fn redraw(&mut self) {
        if let Some(size) = terminal::size() {
            let process = self.process.clone();
            self.calls.spawn(async move { redraw(&process, size).await });
        }
    }

    /// Stops the process, if it is ours, and us. Not with SIGTSTP: a process that leads its own session does not heed it.
    async fn suspend(&mut self) {
        if self.role == Role::Owner && !self.process.has_exited() {
            // Where no answer says so, it may have heard it: it goes on with us, and to be continued hurts nobody who was not stopped.
            self.stopped = true;
            time::timeout(STOP_WITHIN, send(&self.process, "SIGSTOP")).await.ok(); // We stop without it.
        }
        if let Some(terminal) = &self.terminal {
            terminal.give_back();
        }
        signals::stop_us();
    }
}

/// Sends a signal. One whose answer a cut took is sent again where twice is better than never: a program that is asked to end
/// twice ends. Of any other it is said that nobody knows.
async fn send(process: &Process, name: &'static str) {
    let tries = match name {
        "SIGINT" | "SIGTERM" | "SIGHUP" | "SIGQUIT" | "SIGSTOP" | "SIGCONT" => SIGNAL_TRIES,
        _ => 1,
    };
    for _ in 0..tries {
        // Any other error is an end: of the process, or of the session, which its events tell.
        let Err(Error::UnknownOutcome { .. }) = process.signal(name).await else { return };
    }
    let id = ids::clean(process.id().as_str());
    say::talk(format_args!(
        "exec-server: the connection broke while {name} was sent: whether `{id}` has heard it is not known"
    ));
}

/// Makes a program draw its screen again: it is told of a size that is not ours, and then of ours.
pub(crate) async fn redraw(process: &Process, size: Size) {
    let other = Size { rows: if size.rows > 1 { size.rows - 1 } else { 2 }, ..size };
    // It may have ended.
    process.resize(other).await.ok();
    // Told of both at once, it would see no other size, and nothing says when it has looked.
    time::sleep(BETWEEN_SIZES).await;
    process.resize(size).await.ok();
}
