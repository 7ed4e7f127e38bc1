//! Signals that a command of this program handles itself instead of being ended or stopped by them.

use std::{future, io, process};

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalEvent {
    /// A signal to pass on: its name and number.
    Signal(&'static str, u8),
    /// SIGWINCH: the terminal size has changed.
    Resized,
    /// SIGTSTP: a request to stop, as by Ctrl-Z.
    Suspend,
    /// SIGCONT: we continue. Another program may have used our terminal in the meantime.
    Continued,
}

/// Receives the signals that its constructor registers. From then on they no longer end or stop this program, even after this value is
/// dropped: Tokio keeps its handlers.
pub(crate) struct SignalStream {
    streams: Vec<(Signal, SignalEvent)>,
}

impl SignalStream {
    /// Registers all handlers.
    pub(crate) fn new() -> io::Result<Self> {
        let Self { mut streams } = Self::for_ending()?;
        for (number, name) in [(Number::QUIT, "SIGQUIT"), (Number::USR1, "SIGUSR1"), (Number::USR2, "SIGUSR2")] {
            streams.push(register_named(number, name)?);
        }
        streams.push((register(Number::WINCH)?, SignalEvent::Resized));
        streams.push((register(Number::TSTP)?, SignalEvent::Suspend));
        streams.push((register(Number::CONT)?, SignalEvent::Continued));
        Ok(Self { streams })
    }

    /// Handles only the signals that ask a program to end; all others keep their default action.
    pub(crate) fn for_ending() -> io::Result<Self> {
        let mut streams = Vec::new();
        for (number, name) in [(Number::INT, "SIGINT"), (Number::TERM, "SIGTERM"), (Number::HUP, "SIGHUP")] {
            // If our parent set SIGHUP to be ignored, as `nohup` does, it stays ignored.
            if number != Number::HUP || !ignores_hangup() {
                streams.push(register_named(number, name)?);
            }
        }
        Ok(Self { streams })
    }

    /// Waits for the next signal. Cancel-safe.
    pub(crate) async fn next(&mut self) -> SignalEvent {
        future::poll_fn(|cx| {
            for (signal, event) in &mut self.streams {
                if signal.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*event);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Waits for the next signal that is to be passed on, and returns its number. Stops this process on SIGTSTP. Cancel-safe.
    pub(crate) async fn next_number(&mut self) -> u8 {
        loop {
            match self.next().await {
                SignalEvent::Signal(_, number) => return number,
                SignalEvent::Suspend => stop_us(),
                SignalEvent::Resized | SignalEvent::Continued => {}
            }
        }
    }

    /// For the server commands: waits for the first signal that asks this program to end. The next one then ends it at once.
    pub(crate) async fn shutdown(&mut self) {
        self.next_number().await;
        let second = Self::for_ending();
        // The task has no owner: it runs until the process exits.
        #[expect(clippy::disallowed_methods, reason = "this task ends only with the program")]
        tokio::spawn(async move {
            if let Ok(mut second) = second {
                second.next_number().await;
                process::exit(1);
            }
        });
    }
}

/// Stops this process until it receives SIGCONT. Uses SIGSTOP, because SIGTSTP has a handler.
pub(crate) fn stop_us() {
    // Signalling one's own process cannot fail.
    rustix::process::kill_process(rustix::process::getpid(), Number::STOP).ok();
}

/// Whether SIGHUP (signal 1) was ignored when this process was started.
pub(crate) fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

fn register_named(number: Number, name: &'static str) -> io::Result<(Signal, SignalEvent)> {
    let small = u8::try_from(number.as_raw()).unwrap_or_default();
    Ok((register(number)?, SignalEvent::Signal(name, small)))
}

fn register(number: Number) -> io::Result<Signal> {
    signal(SignalKind::from_raw(number.as_raw()))
}
