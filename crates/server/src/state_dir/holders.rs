//! The real source of holders: the spawner makes them, the state directory is where they leave their traces.
//! Must not know sessions beyond their names; what is in a record or an info belongs to the core.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use exec_server_holder::{
    Limits,
    spawner::{self, NewHolder, SpawnerHandle},
};

use super::{StateDir, sessions};
use crate::core::{Found, Holders};

/// Between the secret and the socket of a new holder lies one fork. A server killed right there is followed by another
/// that may look too early; it looks again this often, this far apart, before it calls the holder dead.
const LOOK_AGAIN: (u32, Duration) = (20, Duration::from_millis(10));

/// Settings of [`Spawned`].
#[derive(Clone, Debug)]
pub struct SpawnedConfig {
    /// What a holder may use.
    pub limits: Limits,
    /// The descriptor limit before the server raised its own; children get it back.
    pub original_nofile: Option<(u64, u64)>,
}

/// Holders made by the spawner, with directories in a state directory.
pub struct Spawned {
    state: Arc<StateDir>,
    spawner: Arc<SpawnerHandle>,
    config: SpawnedConfig,
}

impl Spawned {
    /// Ties a spawner, which others may use too, to a state directory.
    pub fn new(state: Arc<StateDir>, spawner: impl Into<Arc<SpawnerHandle>>, config: SpawnedConfig) -> Self {
        Self { state, spawner: spawner.into(), config }
    }

    fn look(&self, session: &str) -> io::Result<Found> {
        let dir = self.state.open_session_dir(session)?;
        if let Some(text) = sessions::read_small(dir.as_fd(), "expired")? {
            return Ok(Found::Expired(String::from_utf8_lossy(&text).into_owned()));
        }
        let secret = sessions::read_small(dir.as_fd(), "secret")?;
        let Some(secret) = secret else {
            // No holder was ever made for it.
            let record = sessions::read_small(dir.as_fd(), "record")?;
            return Ok(record.map_or(Found::Dead, Found::Record));
        };
        let Ok(secret) = <[u8; 32]>::try_from(secret) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let controller = connect(&dir)?;
        Ok(controller.map_or(Found::Dead, |controller| Found::Holder { controller, secret }))
    }
}

impl Holders for Spawned {
    fn create(&self, session: &str, info: &[u8]) -> io::Result<(OwnedFd, [u8; 32])> {
        let dir = self.state.session_dir(session)?;
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        // Before the holder exists: a server that finds the holder must also find what it wants to hear.
        sessions::write_beside(dir.as_fd(), Path::new("secret"), &secret)?;
        let made = self.spawner.create(NewHolder {
            dir,
            secret,
            info: info.to_vec(),
            limits: self.config.limits,
            original_nofile: self.config.original_nofile,
        });
        if made.is_err() {
            // A secret without a holder would look like a holder that died, and cost the session its record.
            self.state.forget_secret(session);
        }
        Ok((made?, secret))
    }

    fn scan(&self) -> io::Result<Vec<(String, Found)>> {
        let mut all = Vec::new();
        for session in self.state.session_ids()? {
            match self.look(&session) {
                Ok(found) => all.push((session, found)),
                // A holder whose clock just ran out, or that ended: it removed its directory.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // One unreadable session must not keep the others from being adopted.
                Err(error) => {
                    tracing::warn!(dir = %self.state.path().display(), %error, "a session cannot be read and is left alone");
                }
            }
        }
        Ok(all)
    }

    fn write_record(&self, session: &str, record: &[u8]) -> io::Result<()> {
        self.state.write_record(session, record)
    }

    fn open_segment(&self, session: &str, name: &str) -> io::Result<File> {
        let dir = self.state.open_session_dir(session)?;
        sessions::open_file(dir.as_fd(), name)
    }

    fn remove(&self, session: &str) -> io::Result<()> {
        self.state.remove_session(session)
    }
}

/// Connects to the holder of a session; `None` when nobody listens there.
fn connect(dir: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let (times, apart) = LOOK_AGAIN;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..times {
        match spawner::connect(dir.as_fd()) {
            Ok(controller) => return Ok(Some(controller)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            // Not bound yet, or alive with a full backlog.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock) => last = error,
            Err(error) => return Err(error),
        }
        thread::sleep(apart);
    }
    match last.kind() {
        io::ErrorKind::NotFound => Ok(None),
        // Alive but not answering: never called dead, its children run.
        _ => Err(last),
    }
}
