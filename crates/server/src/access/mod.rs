//! Authenticates peers and decides their rights.
//!
//! Admission passes what a peer offers (tokens, a certificate) to [`Access`] and gets a [`Grant`] or `None`. Peers that
//! the kernel authenticates (a Unix socket with the owner's uid, standard streams) get [`Grant::owner`] directly.
//!
//! ```text
//!                         ┌── the owner's token: all rights, never revoked
//!  admission ──▶ Access ──┼── `table`: the current entries ◀── `file`: tokens.toml ◀── exec-server token, or an editor
//!                  │      └── certificates that are not listed
//!                  └──▶ Grant: principal, rights ──▶ connection; ended when its entry is revoked, expires, changes or is removed
//! ```
//!
//! The file is checked four times a second. An invalid file is reported and changes nothing. A missing file counts as
//! empty.
//!
//! Revoking a principal locks it out but ends no work: its sessions stay, detached, until they expire. A new token
//! under the old name can resume them.

mod file;
mod grant;
mod table;

pub use file::{AccessEntry, Timestamp, TokenFile, TokenFileError};
pub use grant::{Grant, GrantEnd, Rights, SandboxFloor};
pub use table::AccessChange;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc::RecvTimeoutError},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use self::table::AccessTable;
use crate::{
    state_dir::{
        TokenDigest,
        private::{self, FileStamp},
    },
    wall_clock,
};

/// How often to check the file and the expiry dates. Including the time to close a connection, a revocation takes
/// effect in less than a second.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// Capacity of the queue of updates. When it is full, the watching thread waits.
const UPDATES_WAITING: usize = 64;

/// Stack of the watching thread, which only reads and parses the file.
const STACK_BYTES: usize = 256 << 10;

/// The parts of a client certificate that access control uses. The TLS library has already verified the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate<'a> {
    /// The subject alternative names, in the order of the certificate.
    pub names: &'a [String],
    /// SHA-256 of the DER, 64 lower-case hexadecimal digits.
    pub fingerprint: &'a str,
}

/// Everything that authenticates clients: the owner's token, the token file and certificates.
#[derive(Debug, Default)]
pub struct Access {
    owner: Option<TokenDigest>,
    /// No authentication is required: a client without a certificate acts as the owner.
    is_open: bool,
    file: Option<PathBuf>,
    table: Mutex<AccessTable>,
    /// The stamp of the file at the last check, whether the file was valid or not.
    seen: Mutex<FileStamp>,
}

/// The outcome of a check of the file and the expiry dates.
#[derive(Debug)]
pub enum AccessUpdate {
    Changed(AccessChange),
    /// The file is invalid. The previous entries stay in force.
    Broken(TokenFileError),
}

impl Access {
    /// Admits clients that offer the owner's token.
    #[must_use]
    pub fn new(owner: TokenDigest) -> Self {
        Self { owner: Some(owner), ..Self::default() }
    }

    /// Admits all clients that can connect. A client without a certificate acts as the owner.
    #[must_use]
    pub fn open() -> Self {
        Self { is_open: true, ..Self::default() }
    }

    /// Also admits the clients in a token file. A missing file counts as empty; an invalid one is an error.
    pub fn with_file(mut self, path: &Path) -> Result<Self, TokenFileError> {
        self.file = Some(path.to_owned());
        for update in self.check() {
            if let AccessUpdate::Broken(error) = update {
                return Err(error);
            }
        }
        Ok(self)
    }

    /// The grant of a client without a certificate if no authentication is required, else `None`.
    #[must_use]
    pub fn open_grant(&self) -> Option<Grant> {
        self.is_open.then(Grant::owner)
    }

    /// The grant of a client that offers these tokens. All of them must be valid and belong to the same entry.
    #[must_use]
    pub fn by_tokens(&self, offered: &[TokenDigest]) -> Option<Grant> {
        self.table.lock().by_tokens(self.owner.as_ref(), offered, wall_clock::now_seconds())
    }

    /// The grant of a client with this certificate. `None` if its entry is revoked or expired, or if it is not listed
    /// and only listed certificates are accepted.
    #[must_use]
    pub fn by_certificate(&self, certificate: &Certificate<'_>) -> Option<Grant> {
        self.table.lock().by_certificate(certificate, wall_clock::now_seconds())
    }

    /// Checks the file and the expiry dates until the returned future is dropped. A change is already in force when
    /// `on_update` is called with it.
    ///
    /// The checks run on a separate thread, which ends with the future, for two reasons. A file system may be slow. And
    /// the kernel's scheduler assumes that a thread which often wakes others serves many of them. If a thread of the
    /// runtime woke another one for each check, the scheduler would move the runtime's thread away from the CPU of the
    /// client that it answers.
    pub fn watch<T: Fn(AccessUpdate)>(self: Arc<Self>, on_update: T) -> io::Result<impl Future<Output = ()> + use<T>> {
        let (update_tx, mut update_rx) = mpsc::channel(UPDATES_WAITING);
        // Nothing is sent on this channel. It disconnects when the future is dropped, which ends the thread.
        let (alive_tx, alive_rx) = std::sync::mpsc::sync_channel::<()>(0);
        thread::Builder::new().name("access".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            while alive_rx.recv_timeout(CHECK_EVERY) == Err(RecvTimeoutError::Timeout) {
                for update in self.check() {
                    if update_tx.blocking_send(update).is_err() {
                        return;
                    }
                }
            }
        })?;
        Ok(async move {
            let _alive_tx = alive_tx;
            while let Some(update) = update_rx.recv().await {
                on_update(update);
            }
        })
    }

    fn check(&self) -> Vec<AccessUpdate> {
        let now = wall_clock::now_seconds();
        let mut updates: Vec<AccessUpdate> = Vec::new();
        if let Some(path) = &self.file {
            let stamp = private::stamp(path);
            let mut seen = self.seen.lock();
            if *seen != stamp {
                match TokenFile::read(path).and_then(|file| self.table.lock().apply(&file.unwrap_or_default(), now)) {
                    Ok(changes) => updates.extend(changes.into_iter().map(AccessUpdate::Changed)),
                    Err(error) => updates.push(AccessUpdate::Broken(error)),
                }
                *seen = stamp;
            }
        }
        updates.extend(self.table.lock().expire(now).into_iter().map(AccessUpdate::Changed));
        updates
    }
}
