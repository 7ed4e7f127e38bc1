//! What is typed or piped into us, on its way to the process.
//!
//! Bytes of a pipe are passed as they are. On a terminal the key that detaches when it comes twice is looked for: the first one
//! is held until the next key tells what it was, but not for long, because it may be meant for the process. Failure paths: a
//! process that takes no more is no trouble; input that could not be read, or not be passed on, is never told as its end, or
//! a program would take a part for the whole. Must not know signals.

use std::{io, time::Duration};

use exec_server_client::{Error, Generation, Process, Stdin};
use exec_server_protocol::failure::Kind;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    time,
};

use super::output::is_hang_up;
use crate::codes;

/// One read: a few times what a pipe gives at once.
const INPUT_BYTES: usize = 256 << 10;

/// Ctrl-], the key that detaches when it comes twice.
const DETACH_KEY: u8 = 0x1d;

/// How long the first one is held: long enough to press it again, too short to be missed in an editor that uses it.
const HELD_FOR: Duration = Duration::from_millis(500);

/// What is done with our standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    /// It is read and passed on.
    pub(crate) is_read: bool,
    /// Its end closes the process's.
    pub(crate) closes: bool,
    /// The keys that detach are heeded.
    pub(crate) has_keys: bool,
    /// It is a raw terminal, which ends only when it is gone.
    pub(crate) is_raw: bool,
}

/// How the reading ended.
#[derive(Debug)]
pub(super) enum Typed {
    /// Nothing more comes, or nothing more is taken.
    Ended,
    /// By the keys.
    Detach,
    /// The terminal is gone, and whoever sat there.
    HungUp,
    /// By trouble: the process has a part of it, and does not know that.
    Failed(anyhow::Error),
}

/// Carries our input to its end, or to the keys; `generation` says how the server speaks of an input that is closed.
pub(super) async fn forward(
    process: Process,
    mut from: impl AsyncRead + Unpin,
    input: Input,
    generation: Generation,
) -> Typed {
    if !input.is_read {
        return Typed::Ended;
    }
    let mut to = Line { stdin: process.stdin(), generation, is_open: true, is_under_way: false };
    let mut keys = Keys::default();
    let mut buf = vec![0; INPUT_BYTES];
    loop {
        let reading = async {
            if keys.is_held {
                time::timeout(HELD_FOR, from.read(&mut buf)).await
            } else {
                Ok(from.read(&mut buf).await)
            }
        };
        // Both are cancel safe. What came to grief on its way is told now: whoever waits for an answer to it never types again.
        let read = tokio::select! {
            biased;
            settled = to.settle(), if to.is_under_way => match settled {
                Ok(()) => continue,
                Err(error) => return failed("pass standard input on", error),
            },
            read = reading => read,
        };
        let mut is_detached = false;
        let passed = match read {
            Ok(Ok(0) | Err(_)) if input.is_raw => return Typed::HungUp,
            Ok(Err(error)) if !is_hang_up(&error, io::stdin()) => return failed("read standard input", error),
            Ok(Ok(0) | Err(_)) => {
                return match to.end(input.closes).await {
                    Ok(()) => Typed::Ended,
                    Err(error) => failed("pass standard input on", error),
                };
            }
            Ok(Ok(count)) if !input.has_keys => &buf[..count],
            Ok(Ok(count)) => {
                is_detached = keys.look(&buf[..count]);
                &keys.passed
            }
            Err(_) => keys.let_go(),
        };
        if let Err(error) = to.pass(passed).await {
            return failed("pass standard input on", error);
        }
        if is_detached {
            return Typed::Detach;
        }
        // A process that takes no input is still left by the keys.
        if !to.is_open && !input.has_keys {
            return Typed::Ended;
        }
    }
}

fn failed(what: &'static str, error: io::Error) -> Typed {
    Typed::Failed(anyhow::Error::new(error).context(what))
}

/// The way to the process's input. It is closed by whoever says so first; only that is no error.
struct Line {
    stdin: Stdin,
    generation: Generation,
    is_open: bool,
    /// Something was passed on that is not known to have arrived.
    is_under_way: bool,
}

impl Line {
    async fn pass(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_open {
            return Ok(());
        }
        self.is_under_way = true;
        let passed = self.stdin.write_all(bytes).await;
        self.judge(passed)
    }

    /// Waits until all has arrived. Cancel safe.
    async fn settle(&mut self) -> io::Result<()> {
        let settled = self.stdin.flush().await;
        self.is_under_way = false;
        self.judge(settled)
    }

    /// Nothing more comes; `closes` tells the process so, behind all that was passed on.
    async fn end(&mut self, closes: bool) -> io::Result<()> {
        if self.is_open {
            self.settle().await?;
        }
        if !self.is_open || !closes {
            return Ok(());
        }
        match self.stdin.shutdown().await {
            // Neither an older server nor a raw terminal knows an end of input: the program goes on without one.
            Err(error) if is_untold(&error) => Ok(()),
            closed => self.judge(closed),
        }
    }

    /// Leaves the errors that mean more than an input that is closed.
    fn judge(&mut self, passed: io::Result<()>) -> io::Result<()> {
        match passed {
            Err(error) if self.is_closed(&error) => {
                (self.is_open, self.is_under_way) = (false, false);
                Ok(())
            }
            other => other,
        }
    }

    fn is_closed(&self, error: &io::Error) -> bool {
        match of_client(error) {
            // Its events end with the same error, which is told there.
            Some(Error::Disconnected { .. } | Error::SessionLost { .. }) => true,
            // It has no other word for it.
            Some(Error::Server { .. }) if self.generation == Generation::V0 => true,
            Some(error) => codes::is_gone(error) || error.server_kind() == Some(Kind::StdinClosed),
            None => matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::NotFound),
        }
    }
}

fn is_untold(error: &io::Error) -> bool {
    match of_client(error) {
        Some(error) => matches!(error, Error::Protocol(_)),
        None => error.kind() == io::ErrorKind::Other,
    }
}

/// The library's own error inside of one.
fn of_client(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|source| source.downcast_ref())
}

/// Looks for the key that comes twice, however the bytes are cut.
#[derive(Debug, Default)]
struct Keys {
    /// The last byte was the key.
    is_held: bool,
    /// What is to be passed on.
    passed: Vec<u8>,
}

impl Keys {
    /// Sorts what was typed; true when the key came for the second time. Nothing after it is passed on.
    fn look(&mut self, bytes: &[u8]) -> bool {
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

    /// No second one came: the first was meant for the process.
    fn let_go(&mut self) -> &[u8] {
        self.is_held = false;
        self.passed.clear();
        self.passed.push(DETACH_KEY);
        &self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::Keys;

    #[test]
    fn the_key_detaches_when_it_comes_twice_and_is_passed_on_otherwise() {
        let look = |parts: &[&[u8]]| {
            let mut keys = Keys::default();
            parts.iter().map(|part| if keys.look(part) { None } else { Some(keys.passed.clone()) }).collect::<Vec<_>>()
        };
        let passed = |text: &[u8]| Some(text.to_vec());
        assert_eq!(look(&[b"a\x1d\x1db"]), [None]);
        assert_eq!(look(&[b"a\x1d", b"\x1d"]), [passed(b"a"), None]);
        assert_eq!(look(&[b"\x1da\x1d", b"b\x1d", b""]), [passed(b"\x1da"), passed(b"\x1db"), passed(b"")]);
        let mut keys = Keys::default();
        assert!(!keys.look(b"x\x1d") && keys.is_held);
        assert_eq!(keys.let_go(), b"\x1d");
        assert!(!keys.look(b"\x1d"));
    }
}
