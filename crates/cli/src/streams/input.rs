//! Forwards our stdin to the process.
//!
//! Bytes of a pipe are passed unchanged. On a terminal, the module looks for the detach key, which detaches when pressed twice. The first
//! key press is held back until the next key shows what it was, but only for a short time, because it may be meant for the process.
//!
//! Failure paths: a process that takes no more input is not an error. If our stdin cannot be read or forwarded, the process never gets EOF,
//! because the program would take partial input for complete input.

use std::{io, time::Duration};

use bytes::Bytes;
use exec_server_client::{Error, Generation, Process, Stdin};
use exec_server_protocol::failure::Kind;
use exec_server_rpc::StandardInput;
use rustix::event::{self, PollFd, PollFlags, Timespec};
use tokio::{io::AsyncWriteExt as _, time};

use super::output::is_hang_up;
use crate::codes;

/// Ctrl-], the key that detaches when it comes twice.
const DETACH_KEY: u8 = 0x1d;

/// How long the first key press is held: long enough to press it again, short enough not to be noticed in an editor that uses the key.
const HELD_FOR: Duration = Duration::from_millis(500);

/// While the process does not read: the time until our stdin is first checked for a hang-up, and the time between further checks.
const FIRST_CHECK_AFTER: Duration = Duration::from_secs(1);
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// How our stdin is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InputMode {
    /// Whether it is read and forwarded.
    pub(crate) is_read: bool,
    pub(crate) at_eof: AtEof,
    /// Whether the detach keys are active.
    pub(crate) has_keys: bool,
    /// Whether it is a raw terminal, for which EOF means a hang-up.
    pub(crate) is_raw: bool,
}

/// What EOF on our stdin means for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtEof {
    /// Its stdin is closed, after all bytes were confirmed.
    Close,
    /// Its stdin stays open, because other clients may still write.
    KeepOpen,
    /// The caller ends the process and closes its stdin. So EOF is reported at once, even while the process does not read.
    Report,
}

#[derive(Debug)]
pub(crate) enum InputEnd {
    /// There is no more input.
    Eof,
    /// The process takes no more input.
    Closed(io::Error),
    /// The detach keys were pressed.
    Detach,
    /// The terminal has gone.
    HungUp,
    /// Our stdin cannot be read: the process has received only a part of the input and does not know that.
    Unreadable(io::Error),
    /// The input cannot be forwarded: again, the process has received only a part of it.
    Refused(io::Error),
}

/// Forwards our stdin until EOF or the detach keys. `generation` tells how the server reports a closed stdin.
pub(crate) async fn forward(process: Process, input: InputMode, generation: Generation) -> InputEnd {
    if !input.is_read {
        return InputEnd::Eof;
    }
    let mut to = ProcessStdin { stdin: process.stdin(), generation, closed: None, has_unconfirmed: false };
    let mut keys = DetachKeys::default();
    let mut from = StandardInput::stdin();
    loop {
        // With detach keys, continue to read even if the process takes no input: the keys must still work.
        if !input.has_keys
            && let Some(error) = to.closed
        {
            return InputEnd::Closed(error);
        }
        let reading =
            async { if keys.is_held { time::timeout(HELD_FOR, from.read()).await } else { Ok(from.read().await) } };
        // Both are cancel-safe. `settle` comes first, so that a failed write is reported now: a user who waits for an answer types nothing
        // more.
        let read = tokio::select! {
            biased;
            settled = to.settle(), if to.has_unconfirmed => match settled {
                Ok(()) => continue,
                Err(error) => return InputEnd::Refused(error),
            },
            read = reading => read,
        };
        let mut is_detached = false;
        let passed = match read {
            Ok(Err(_)) if input.is_raw => return InputEnd::HungUp,
            Ok(Err(_)) if input.at_eof == AtEof::Report => return InputEnd::Eof,
            Ok(Err(error)) if !is_hang_up(&error, io::stdin()) => return InputEnd::Unreadable(error),
            Ok(Ok(bytes)) if bytes.is_empty() && input.is_raw => return InputEnd::HungUp,
            Ok(Ok(bytes)) if bytes.is_empty() && input.at_eof == AtEof::Report => return InputEnd::Eof,
            Ok(Ok(bytes)) if !bytes.is_empty() && !input.has_keys => bytes,
            Ok(Ok(bytes)) if !bytes.is_empty() => {
                is_detached = keys.scan(&bytes);
                Bytes::copy_from_slice(&keys.passed)
            }
            Ok(Ok(_) | Err(_)) => {
                return match to.end(input.at_eof == AtEof::Close).await {
                    Ok(()) => InputEnd::Eof,
                    Err(error) => InputEnd::Refused(error),
                };
            }
            Err(_) => Bytes::copy_from_slice(keys.release()),
        };
        // A process that does not read blocks this write, and EOF on our stdin would go unnoticed.
        let passed = tokio::select! {
            biased;
            passed = to.pass(passed) => passed,
            () = hung_up(), if input.at_eof == AtEof::Report => return InputEnd::Eof,
        };
        if let Err(error) = passed {
            return InputEnd::Refused(error);
        }
        if is_detached {
            return InputEnd::Detach;
        }
    }
}

/// Waits until the writing end of our stdin is closed, even if there are still bytes to read. The first check comes later than the others,
/// to give a reading process time to take a piece. Cancel-safe.
async fn hung_up() {
    let mut pause = FIRST_CHECK_AFTER;
    loop {
        time::sleep(pause).await;
        pause = CHECK_EVERY;
        let stdin = io::stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::RDHUP)];
        let seen = event::poll(&mut polled, Some(&Timespec::default()));
        // `poll` reports `HUP` without being asked for it. A failed `poll` does not count as a hang-up.
        if seen.is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP) {
            return;
        }
    }
}

/// The stdin of the process. The process or another client may close it first; that is not an error.
struct ProcessStdin {
    stdin: Stdin,
    generation: Generation,
    /// Set once the stdin takes no more bytes: the reason.
    closed: Option<io::Error>,
    /// Whether bytes were written that the server has not confirmed yet.
    has_unconfirmed: bool,
}

impl ProcessStdin {
    async fn pass(&mut self, bytes: Bytes) -> io::Result<()> {
        if self.closed.is_some() {
            return Ok(());
        }
        self.has_unconfirmed = true;
        let passed = self.stdin.write_bytes(bytes).await;
        self.check(passed)
    }

    /// Waits until all bytes are confirmed. Cancel-safe.
    async fn settle(&mut self) -> io::Result<()> {
        let settled = self.stdin.flush().await;
        self.has_unconfirmed = false;
        self.check(settled)
    }

    /// Handles EOF. With `closes`, closes the stdin of the process after all bytes were confirmed.
    async fn end(&mut self, closes: bool) -> io::Result<()> {
        if self.closed.is_none() {
            self.settle().await?;
        }
        if self.closed.is_some() || !closes {
            return Ok(());
        }
        match self.stdin.shutdown().await {
            // An older server cannot close a stdin, and the process's terminal has no EOF character in raw mode. The
            // program continues without EOF.
            Err(error) if is_unsupported(&error) => Ok(()),
            closed => self.check(closed),
        }
    }

    /// Records a closed stdin; returns all other errors.
    fn check(&mut self, passed: io::Result<()>) -> io::Result<()> {
        match passed {
            Err(error) if self.is_closed(&error) => {
                self.closed = Some(error);
                self.has_unconfirmed = false;
                Ok(())
            }
            other => other,
        }
    }

    fn is_closed(&self, error: &io::Error) -> bool {
        match client_error(error) {
            // The event stream ends with the same error, and it is reported there.
            Some(Error::Disconnected { .. } | Error::SessionLost { .. }) => true,
            // A V0 server has no specific error for a closed stdin.
            Some(Error::Server { .. }) if self.generation == Generation::V0 => true,
            Some(error) => codes::is_gone(error) || error.server_kind() == Some(Kind::StdinClosed),
            None => matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::NotFound),
        }
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    client_error(error).map_or(error.kind() == io::ErrorKind::Other, |error| matches!(error, Error::Protocol(_)))
}

/// The client library's error inside an `io::Error`.
fn client_error(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|source| source.downcast_ref())
}

/// Detects the key pressed twice, however the bytes are split.
#[derive(Debug, Default)]
struct DetachKeys {
    /// The last byte was the key.
    is_held: bool,
    /// The bytes to forward.
    passed: Vec<u8>,
}

impl DetachKeys {
    /// Processes input. Returns true when the key comes for the second time; nothing after it is forwarded.
    fn scan(&mut self, bytes: &[u8]) -> bool {
        self.passed.clear();
        for byte in bytes {
            let is_key = *byte == DETACH_KEY;
            if self.is_held && is_key {
                return true;
            }
            if std::mem::replace(&mut self.is_held, is_key) {
                self.passed.push(DETACH_KEY);
            }
            if !is_key {
                self.passed.push(*byte);
            }
        }
        false
    }

    /// No second key press came in time, so the first one is forwarded to the process.
    fn release(&mut self) -> &[u8] {
        self.is_held = false;
        self.passed.clear();
        self.passed.push(DETACH_KEY);
        &self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::DetachKeys;

    #[test]
    fn the_key_detaches_when_pressed_twice_and_is_forwarded_otherwise() {
        let scan = |parts: &[&[u8]]| {
            let mut keys = DetachKeys::default();
            parts.iter().map(|part| if keys.scan(part) { None } else { Some(keys.passed.clone()) }).collect::<Vec<_>>()
        };
        let passed = |text: &[u8]| Some(text.to_vec());
        assert_eq!(scan(&[b"a\x1d\x1db"]), [None]);
        assert_eq!(scan(&[b"a\x1d", b"\x1d"]), [passed(b"a"), None]);
        assert_eq!(scan(&[b"\x1da\x1d", b"b\x1d", b""]), [passed(b"\x1da"), passed(b"\x1db"), passed(b"")]);
        let mut keys = DetachKeys::default();
        assert!(!keys.scan(b"x\x1d") && keys.is_held);
        assert_eq!(keys.release(), b"\x1d");
        assert!(!keys.scan(b"\x1d"));
    }
}
