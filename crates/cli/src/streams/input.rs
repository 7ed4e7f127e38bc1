//! What is typed or piped into us, on its way to the process.
//!
//! Bytes of a pipe are passed as they are. On a terminal the keys that detach are looked for, and the first of them is passed on at
//! once: it may be meant for the process. Must not know signals.

use exec_server_client::Process;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

/// One read: a few times what a pipe gives at once.
const INPUT_BYTES: usize = 256 << 10;

/// Ctrl-], the key that detaches when it comes twice.
const DETACH_KEY: u8 = 0x1d;

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
        // An input that cannot be read has ended.
        let read = from.read(&mut buf).await.unwrap_or(0);
        if read == 0 {
            if input.is_raw {
                return Typed::HungUp;
            }
            if is_open && input.closes {
                to.shutdown().await.ok(); // It may have ended.
            }
            return Typed::Ended;
        }
        let detach_at = if input.has_keys { keys.find(&buf[..read]) } else { None };
        let bytes = &buf[..detach_at.unwrap_or(read)];
        // A process that takes no input is still left by the keys.
        is_open = is_open && to.write_all(bytes).await.is_ok();
        if detach_at.is_some() {
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
    was_key: bool,
}

impl Keys {
    /// Where the second one is.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|byte| {
            let is_key = *byte == DETACH_KEY;
            std::mem::replace(&mut self.was_key, is_key) && is_key
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Keys;

    #[test]
    fn the_key_detaches_when_it_comes_twice_in_a_row() {
        let find = |parts: &[&[u8]]| {
            let mut keys = Keys::default();
            parts.iter().map(|part| keys.find(part)).collect::<Vec<_>>()
        };
        assert_eq!(find(&[b"a\x1d\x1db"]), [Some(2)]);
        assert_eq!(find(&[b"\x1d", b"\x1d"]), [None, Some(0)]);
        assert_eq!(find(&[b"\x1da\x1d", b"b\x1d", b""]), [None, None, None]);
        assert_eq!(find(&[b"\x1d", b"", b"\x1d"]), [None, None, Some(0)]);
    }
}
