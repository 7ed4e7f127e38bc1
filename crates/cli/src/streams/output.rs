//! What the process says, on its way to our standard streams: written in the order of its numbers, and taken from the server
//! only when it is written, so that a reader that does not read holds the process back. Must not know signals or keys.

use std::{io, os::fd::AsFd, time::Duration};

use anyhow::{Context as _, anyhow};
use exec_server_client::{Event, Events, Exit, Process};
use exec_server_protocol::process::{Cause, Stream};
use rustix::fs::FileType;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _, Stderr},
    task::JoinSet,
};

use super::{Role, screen::ScreenTracker};
use crate::{codes, say};

/// How long a program may go on after its output has nowhere to go, if SIGPIPE alone does not end it.
const CLOSED_GRACE: Duration = Duration::from_secs(1);

/// How the process ended, or that nobody reads it any more.
#[derive(Debug)]
pub(crate) struct Ended {
    /// How; `None` when a guest left because nobody reads.
    pub(crate) exit: Option<Exit>,
    /// Nobody reads our standard output any more.
    pub(crate) stdout_closed: bool,
}

impl Ended {
    /// The code a shell would show. A program that a closed stdout ended is ended by SIGPIPE, whichever signal it took.
    pub(crate) fn code(&self) -> u8 {
        match &self.exit {
            Some(exit) if !(self.stdout_closed && exit.signal.is_some()) => codes::of_exit(exit),
            Some(_) | None => codes::CLOSED_PIPE,
        }
    }

    /// Says what a code alone does not tell.
    pub(crate) fn explain(&self) {
        if self.exit.as_ref().is_some_and(|exit| exit.sandbox_denied == Some(true)) {
            say::talk(
                "exec-server: the sandbox may be why the program failed; `--read DIR` and `--write DIR` allow more",
            );
        }
        match self.exit.as_ref().and_then(|exit| exit.cause) {
            Some(Cause::Timeout) => say::talk("exec-server: the program was ended: its time was over"),
            Some(Cause::IdleTimeout) => say::talk("exec-server: the program was ended: it wrote nothing for too long"),
            Some(Cause::Oom) => say::talk("exec-server: the program was ended for want of memory"),
            Some(Cause::Lost) => say::talk(
                "exec-server: the program was lost with the process that held it; how it would have ended nobody knows",
            ),
            Some(Cause::Exit | Cause::Signal | Cause::Terminated) | None => {}
        }
    }
}

/// The way out.
pub(crate) struct Output<W> {
    process: Process,
    role: Role,
    stdout: W,
    stderr: Stderr,
    screen: ScreenTracker,
    stdout_closed: bool,
    /// Our terminal is gone: the program hears that by SIGHUP, and what it still says is for nobody.
    is_hung_up: bool,
    /// Why standard output took no more, where that is worth a word.
    failed: Option<io::Error>,
    exit: Option<Exit>,
    /// What is missing up to this number is not worth a word: only the latest was asked for.
    replayed_to: u64,
    /// At most one task, which ends a program that nobody listens to.
    ending: JoinSet<()>,
}

impl<W: AsyncWrite + Unpin> Output<W> {
    pub(crate) fn new(process: Process, stdout: W, role: Role) -> Self {
        Self {
            process,
            role,
            stdout,
            stderr: tokio::io::stderr(),
            screen: ScreenTracker::default(),
            stdout_closed: false,
            is_hung_up: false,
            failed: None,
            exit: None,
            replayed_to: 0,
            ending: JoinSet::new(),
        }
    }

    /// Events up to this number are shown again as far as they are there.
    pub(crate) fn replaying_to(mut self, seq: u64) -> Self {
        self.replayed_to = seq;
        self
    }

    /// Writes everything; returns when the process has closed, or a guest has nobody left to write for.
    pub(crate) async fn run(mut self, mut events: Events) -> anyhow::Result<Ended> {
        while let Some(event) = events.next().await {
            match event {
                Event::Output { stream, bytes, .. } => self.write(stream, &bytes).await,
                Event::Gap { to_seq, .. } if to_seq <= self.replayed_to => {}
                Event::Gap { from_seq, to_seq, bytes } => say_gap(from_seq, to_seq, bytes),
                Event::Exited { exit, .. } => self.exit = Some(exit),
                Event::Closed { .. } => return self.ended(),
                Event::Failed(error) => return Err(error.into()),
            }
            if self.stdout_closed && self.role == Role::Guest {
                return self.ended();
            }
        }
        self.ended()
    }

    async fn write(&mut self, stream: Stream, bytes: &[u8]) {
        match stream {
            Stream::Stdout | Stream::Pty if !self.stdout_closed && !self.is_hung_up => {
                if stream == Stream::Pty {
                    self.screen.track(bytes);
                }
                match write_all(&mut self.stdout, bytes).await {
                    Ok(()) => {}
                    Err(error) if is_hang_up(&error, io::stdout()) => self.is_hung_up = true,
                    // A reader that has gone is no news; a full disk is.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.close_stdout(),
                    Err(error) => {
                        self.failed.get_or_insert(error);
                        self.close_stdout();
                    }
                }
            }
            // Nobody reads it any more.
            Stream::Stdout | Stream::Pty => {}
            // A program goes on without its stderr, and so do we.
            Stream::Stderr => write_all(&mut self.stderr, bytes).await.unwrap_or(()),
        }
    }

    /// Does to a program of ours what the kernel would have done: SIGPIPE; and to one that will not hear it, an end. The
    /// answers come behind output that only we can take, so they are not waited for here.
    fn close_stdout(&mut self) {
        self.stdout_closed = true;
        if self.role == Role::Guest {
            return;
        }
        let process = self.process.clone();
        self.ending.spawn(async move {
            process.signal("SIGPIPE").await.ok(); // It may have ended.
            process.terminate(Some(CLOSED_GRACE)).await.ok(); // As above.
        });
    }

    fn ended(self) -> anyhow::Result<Ended> {
        if let Some(error) = self.failed {
            return Err(error).context("write standard output");
        }
        // Who begins to read behind the exit sees no event of it; the log has learned it all the same.
        let exit = self.exit.or_else(|| self.process.exit());
        if exit.is_none() && !self.stdout_closed {
            return Err(anyhow!("the process closed without an exit code"));
        }
        Ok(Ended { exit, stdout_closed: self.stdout_closed })
    }
}

/// Says that output is missing here.
pub(crate) fn say_gap(from_seq: u64, to_seq: u64, bytes: Option<u64>) {
    match bytes {
        Some(bytes) => say::talk(format_args!("exec-server: {bytes} bytes of output are missing here")),
        None => say::talk(format_args!("exec-server: output {from_seq} to {to_seq} is missing here")),
    }
}

/// A terminal that is gone, unlike a disk that fails.
pub(super) fn is_hang_up(error: &io::Error, stream: impl AsFd) -> bool {
    let is_io = error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
    // It is no terminal any more once it is gone, but still a device.
    is_io
        && rustix::fs::fstat(stream)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
}

async fn write_all(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}
