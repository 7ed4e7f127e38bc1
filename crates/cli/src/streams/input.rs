//! What is typed or piped into us, on its way to the process.
//!
//! Bytes of a pipe are passed as they are. On a terminal the key that detaches when it comes twice is looked for: the first one
//! is held until the next key tells what it was, but not for long, because it may be meant for the process. Must not know
//! signals.

use std::time::Duration;

use exec_server_client::Process;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    time,
};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// Nothing more comes, or nothing more is taken.
    Ended,
    /// By the keys.
    Detach,
    /// The terminal is gone, and whoever sat there.
    HungUp,
}

/// Carries our input to its end, or to the keys.
pub(super) async fn forward(process: Process, mut from: impl AsyncRead + Unpin, input: Input) -> Typed {
    if !input.is_read {
        return Typed::Ended;
    }
    let mut to = process.stdin();
    let mut keys = Keys::default();
    let mut is_open = true;
    let mut buf = vec![0; INPUT_BYTES];
    loop {
        // Reading is cancel safe. An input that cannot be read has ended.
        let read = if keys.is_held {
            time::timeout(HELD_FOR, from.read(&mut buf)).await.map(|read| read.unwrap_or(0))
        } else {
            Ok(from.read(&mut buf).await.unwrap_or(0))
        };
        let mut is_detached = false;
        let passed = match read {
            Ok(0) if input.is_raw => return Typed::HungUp,
            Ok(0) => {
                if is_open && input.closes {
                    to.shutdown().await.ok(); // It may have ended.
                }
                return Typed::Ended;
            }
            Ok(count) if !input.has_keys => &buf[..count],
            Ok(count) => {
                is_detached = keys.look(&buf[..count]);
                &keys.passed
            }
            Err(_) => keys.let_go(),
        };
        // A process that takes no input is still left by the keys.
        is_open = is_open && to.write_all(passed).await.is_ok();
        if is_detached {
            return Typed::Detach;
        }
        if !is_open && !input.has_keys {
            return Typed::Ended;
        }
    }
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
