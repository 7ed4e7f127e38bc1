//! Who may come in, and what they may do then.
//!
//! The door asks [`Access`] with what a peer offers (tokens, a certificate) and gets a [`Grant`] or nothing. Peers for whom the
//! kernel vouches (a Unix socket of the owner's uid, standard streams) have [`Grant::owner`] without asking.
//!
//! ```text
//!                    ┌── the owner's token: everything, never taken back
//!  Access ◀── door   ├── `table`: the entries in force ◀── `file`: tokens.toml ◀── exec-server token, or an editor
//!    │               └── certificates that nobody listed
//!    └──▶ Grant: principal, rights ──▶ connection; ended when its entry is revoked, expires, changes or goes
//! ```
//!
//! The file is looked at four times a second. One that cannot be used changes nothing and is complained about; one that is gone is an empty
//! one. The sessions of a principal that was revoked stay, detached, until their own time is over: a revocation keeps people out and ends no
//! work, and whoever gets a new token under the old name finds them again.
//!
//! Must not know HTTP, TLS, methods by name, or sessions.

mod file;
mod grant;
mod table;

pub use file::{Entry, FileError, Moment, TokenFile};
pub use grant::{Ended, Floor, Grant, Rights};
pub use table::Change;

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, mpsc::RecvTimeoutError},
    thread,
    time::Duration,
};

use tokio::sync::mpsc;

use self::table::Table;
use crate::{process::lock, state_dir::TokenDigest, wall_clock};

/// How often the file and the expiry dates are looked at. With the farewell of a connection it makes less than a second.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// News that may wait to be told: more make the thread that looks wait.
const NEWS_WAITING: usize = 64;

/// What the thread that looks needs: the reading of a file of a few hundred entries.
const STACK_BYTES: usize = 256 << 10;

/// A client's certificate as far as access looks at it; the TLS library has verified it before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate<'a> {
    /// Its subject alternative names, in their order.
    pub names: &'a [String],
    /// SHA-256 of its DER, 64 lower-case hexadecimal digits.
    pub fingerprint: &'a str,
}

/// Everyone who may come in.
#[derive(Debug, Default)]
pub struct Access {
    /// The owner's own token.
    owner: Option<TokenDigest>,
    /// Nobody has to prove anything.
    is_open: bool,
    file: Option<PathBuf>,
    table: Mutex<Table>,
    /// The file as it was when it was last looked at, good or not.
    seen: Mutex<Option<Stamp>>,
}

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    id: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What a look at the file found.
#[derive(Debug)]
pub enum News {
    /// Somebody's access changed.
    Changed(Change),
    /// The file cannot be used; what was in force stays so.
    Broken(FileError),
}

impl Access {
    /// Lets in the bearers of the owner's token.
    #[must_use]
    pub fn new(owner: TokenDigest) -> Self {
        Self { owner: Some(owner), ..Self::default() }
    }

    /// Lets in everybody who reaches the socket, as the owner.
    #[must_use]
    pub fn open() -> Self {
        Self { is_open: true, ..Self::default() }
    }

    /// Lets in those of a token file as well. A file that is not there yet is an empty one; one that cannot be used is an error.
    pub fn with_file(mut self, path: &Path) -> Result<Self, FileError> {
        self.file = Some(path.to_owned());
        match self.look().into_iter().find_map(|news| match news {
            News::Broken(error) => Some(error),
            News::Changed(_) => None,
        }) {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }

    /// What somebody gets who offers nothing; `None` where something must be offered.
    #[must_use]
    pub fn anybody(&self) -> Option<Grant> {
        self.is_open.then(Grant::owner)
    }

    /// What the bearer of these tokens gets. All that are offered must be right and mean the same.
    #[must_use]
    pub fn by_tokens(&self, offered: &[TokenDigest]) -> Option<Grant> {
        lock(&self.table).by_tokens(self.owner.as_ref(), offered, wall_clock::now_seconds())
    }

    /// What the holder of this certificate gets; `None` where it was revoked, or only those in the file may come.
    #[must_use]
    pub fn by_certificate(&self, certificate: &Certificate<'_>) -> Option<Grant> {
        lock(&self.table).by_certificate(certificate, wall_clock::now_seconds())
    }

    /// Looks at the file and the clock for ever. What is found is in force when `tell` hears of it.
    ///
    /// On a thread of its own, which ends with the returned future: a file system may be slow, and a thread of the runtime that wakes another one
    /// four times a second is taken by the kernel for one that serves many, and put on another processor than the client it answers.
    pub fn watch<T: Fn(News)>(self: Arc<Self>, tell: T) -> io::Result<impl Future<Output = ()> + use<T>> {
        let (news_tx, mut news_rx) = mpsc::channel(NEWS_WAITING);
        // Nothing is ever sent: its end is the word.
        let (alive_tx, alive_rx) = std::sync::mpsc::sync_channel::<()>(0);
        thread::Builder::new().name("access".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            while alive_rx.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                for news in self.look() {
                    if news_tx.blocking_send(news).is_err() {
                        return;
                    }
                }
            }
        })?;
        Ok(async move {
            let _alive_tx = alive_tx;
            while let Some(news) = news_rx.recv().await {
                tell(news);
            }
        })
    }

    fn look(&self) -> Vec<News> {
        let now = wall_clock::now_seconds();
        let mut news: Vec<News> = Vec::new();
        if let Some(path) = &self.file {
            let stamp = stamp(path).ok();
            let mut seen = lock(&self.seen);
            if *seen != stamp {
                match TokenFile::read(path).and_then(|file| lock(&self.table).apply(&file.unwrap_or_default(), now)) {
                    Ok(changes) => news.extend(changes.into_iter().map(News::Changed)),
                    Err(error) => news.push(News::Broken(error)),
                }
                *seen = stamp;
            }
        }
        news.extend(lock(&self.table).expire(now).into_iter().map(News::Changed));
        news
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let metadata = fs::metadata(path)?;
    Ok(Stamp {
        id: (metadata.dev(), metadata.ino()),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        // Also when only mode or owner change.
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}
