//! The real source of holders: the spawner makes them, the state directory is where they leave their traces.
//! Must not know sessions beyond their names; what is in a record or an info belongs to the core.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use exec_server_holder::{
    Confine, Limits,
    archive::{ARCHIVE_NAME, Clock},
    cgroup::{Root, SessionGroup},
    roll::{self, ROLL_NAME},
    spawner::{self, NewHolder, SECRET_NAME, SOCKET_NAME, SpawnerHandle},
    wire::TTL_NONE,
};
use exec_server_sandbox::{BuildError, Built, Script};
use sha2::{Digest as _, Sha256};

use super::{StateDir, place::hex, sessions};
use crate::{
    core::{ArchiveFiles, Found, Holders, LeftClock, Remains},
    process::lock,
};

/// How often and how far apart it is looked whether a killed group is empty: a second in all, and a kill takes milliseconds.
const BURIED: (u32, Duration) = (500, Duration::from_millis(2));

/// The file in a session's directory that names its control group.
const GROUP_NAME: &str = "cgroup";

/// Between the secret and the socket of a new holder lies one fork. A server killed right there is followed by another
/// that may look too early; it looks again this often, this far apart, before it calls the holder dead.
const LOOK_AGAIN: (u32, Duration) = (20, Duration::from_millis(10));

/// Settings of [`Spawned`].
#[derive(Clone, Debug, Default)]
pub struct SpawnedConfig {
    /// What a holder may use.
    pub limits: Limits,
    /// The descriptor limit before the server raised its own; children get it back.
    pub original_nofile: Option<(u64, u64)>,
    /// Where sessions get control groups; absent = they have none.
    pub cgroups: Option<Root>,
    /// What children are confined to besides; the group in it is the session's own.
    pub confine: Confine,
    /// The program that becomes a new spawner when the first has died; absent = none does.
    pub respawn: Option<PathBuf>,
    /// For a state directory that was made for this run alone: where the server is killed, the spawner removes the directory this long
    /// after the last holder has ended.
    pub remove_after: Option<Duration>,
}

/// Holders made by the spawner, with directories in a state directory.
pub struct Spawned {
    state: Arc<StateDir>,
    spawner: Mutex<Arc<SpawnerHandle>>,
    config: SpawnedConfig,
}

impl Spawned {
    /// Ties a spawner, which others may use too, to a state directory.
    pub fn new(state: Arc<StateDir>, spawner: impl Into<Arc<SpawnerHandle>>, config: SpawnedConfig) -> Self {
        let spawner = spawner.into();
        let spawned = Self { state, spawner: Mutex::new(Arc::clone(&spawner)), config };
        spawned.guard(&spawner);
        spawned
    }

    /// Has the spawner remove the state directory after a server that was killed, where nobody will use it again.
    fn guard(&self, spawner: &SpawnerHandle) {
        let Some(after) = self.config.remove_after else { return };
        let guarded = File::open(self.state.path()).and_then(|dir| spawner.guard(dir.as_fd(), after));
        if let Err(error) = guarded {
            let path = self.state.path().display();
            tracing::warn!(%path, %error, "cannot ask the spawner to remove the state directory in case this server is killed");
        }
    }

    /// The spawner, a new one where the old is dead. Blocks while one is started.
    fn spawner(&self) -> io::Result<Arc<SpawnerHandle>> {
        let mut spawner = lock(&self.spawner);
        if let Some(program) = self.config.respawn.as_deref().filter(|_| !spawner.is_alive()) {
            let whom = self.state.path().as_os_str();
            let new = spawner::exec_spawner_for(program, Some(whom)).map_err(io::Error::other)?;
            tracing::warn!(old = spawner.pid(), new = new.pid(), "the spawner died; another has taken its place");
            spawner.reap();
            self.guard(&new);
            *spawner = Arc::new(new);
        }
        Ok(spawner.clone())
    }

    /// The control group of a session, named in its directory before the holder is made: whoever finds the holder dead must
    /// also find what to end.
    fn make_group(&self, session: &str, dir: &OwnedFd) -> io::Result<SessionGroup> {
        let Some(root) = &self.config.cgroups else { return Ok(SessionGroup::default()) };
        // Everybody may read names of groups, and an id opens its session.
        let group = root.session(&hex(&Sha256::digest(session)[..8]))?;
        sessions::write_beside(dir.as_fd(), Path::new(GROUP_NAME), &group.encode())?;
        Ok(group)
    }

    fn group_of(&self, session: &str) -> SessionGroup {
        let text = self.state.open_session_dir(session).and_then(|dir| sessions::read_small(dir.as_fd(), GROUP_NAME));
        text.ok().flatten().map_or_else(SessionGroup::default, |text| SessionGroup::decode(&text))
    }

    fn find(&self, session: &str) -> io::Result<Found> {
        let dir = self.state.open_session_dir(session)?;
        if let Some(text) = sessions::read_small(dir.as_fd(), "expired")? {
            return Ok(Found::Expired(String::from_utf8_lossy(&text).into_owned()));
        }
        let Some(secret) = sessions::read_small(dir.as_fd(), SECRET_NAME)? else {
            // No holder was ever made for it.
            return record(dir.as_fd());
        };
        let Ok(secret) = <[u8; 32]>::try_from(secret) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match connect(&dir)? {
            Reached::Holder(controller) => Ok(Found::Holder { controller, secret }),
            Reached::Nobody => Ok(Found::Silent),
            Reached::Remains => remains(dir.as_fd()),
            // The server died after it wrote the secret and before a holder was there: nothing was started, so nothing is lost.
            Reached::Nothing => {
                self.state.forget_secret(session);
                record(dir.as_fd())
            }
        }
    }
}

/// A session without a holder: what the server wrote of it.
fn record(dir: BorrowedFd<'_>) -> io::Result<Found> {
    Ok(sessions::read_small(dir, "record")?.map_or(Found::Dead, Found::Record))
}

/// What a dead holder left: the output that it had spilled, of the processes that its roll names.
fn remains(dir: BorrowedFd<'_>) -> io::Result<Found> {
    let (Some(record), Some(roll)) = (sessions::read_small(dir, "record")?, roll::read(dir)?) else {
        return Ok(Found::Dead);
    };
    let mut logs = Vec::new();
    for enrolled in roll {
        let recovered = exec_server_log::survey(dir, enrolled.slot)?;
        logs.push((enrolled, recovered));
    }
    let clock = Clock::read(dir)?.map(|clock| LeftClock {
        ttl: (clock.ttl_ms != TTL_NONE).then(|| Duration::from_millis(clock.ttl_ms)),
        detached_for: clock.detached_ns.map(|since| Duration::from_nanos(monotonic_ns().saturating_sub(since))),
    });
    Ok(Found::Remains(Remains { record, logs, clock }))
}

/// The clock that holders run sessions by.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Holders for Spawned {
    fn view(&self, script: &Script) -> Result<Built, BuildError> {
        let spawner = self.spawner().map_err(|source| BuildError { what: "reach the spawner".to_owned(), source })?;
        spawner.view(script)
    }

    fn hidden(&self) -> Vec<PathBuf> {
        vec![self.state.path().to_owned()]
    }

    fn create(&self, session: &str, info: &[u8]) -> io::Result<(OwnedFd, [u8; 32])> {
        let dir = self.state.session_dir(session)?;
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        // Before the holder exists: a server that finds the holder must also find what it wants to hear.
        sessions::write_beside(dir.as_fd(), Path::new(SECRET_NAME), &secret)?;
        let made = self.make_group(session, &dir).and_then(|group| {
            self.spawner()?.create(NewHolder {
                dir,
                secret,
                info: info.to_vec(),
                limits: self.config.limits,
                original_nofile: self.config.original_nofile,
                confine: Confine { group, ..self.config.confine.clone() },
            })
        });
        if made.is_err() {
            self.unmake(session);
        }
        Ok((made?, secret))
    }

    fn scan(&self) -> io::Result<Vec<(String, Found)>> {
        let mut all = Vec::new();
        for session in self.state.session_ids()? {
            match self.look(&session) {
                Ok(found) => all.extend(found.map(|found| (session, found))),
                // One unreadable session must not keep the others from being adopted.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(dir = %self.state.path().display(), %error, "a session cannot be read and is left alone");
                }
                Err(error) => {
                    tracing::warn!(dir = %self.state.path().display(), %error, "a session cannot be read now");
                    all.push((session, Found::Silent));
                }
            }
        }
        Ok(all)
    }

    fn look(&self, session: &str) -> io::Result<Option<Found>> {
        match self.find(session) {
            // A holder whose clock just ran out, or that ended: it removed its directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    fn read_record(&self, session: &str) -> io::Result<Option<Vec<u8>>> {
        self.state.read_record(session)
    }

    fn write_record(&self, session: &str, record: &[u8]) -> io::Result<()> {
        self.state.write_record(session, record)
    }

    fn open_segment(&self, session: &str, name: &str) -> io::Result<File> {
        let dir = self.state.open_session_dir(session)?;
        sessions::open_file(dir.as_fd(), name)
    }

    fn remove_segment(&self, session: &str, name: &str) -> io::Result<()> {
        let dir = self.state.open_session_dir(session)?;
        sessions::remove_file(dir.as_fd(), name)
    }

    fn write_archive(&self, session: &str, files: &ArchiveFiles) -> io::Result<()> {
        let dir = self.state.open_session_dir(session)?;
        if files.processes.is_empty() {
            // The secret first: without it nothing but the record counts.
            sessions::remove_file(dir.as_fd(), SECRET_NAME)?;
            for name in [ROLL_NAME, ARCHIVE_NAME, SOCKET_NAME] {
                sessions::remove_file(dir.as_fd(), name)?;
            }
        } else {
            roll::write(&dir, &roll::encode(&files.processes))?;
            let since = files.detached_for.map(|long| u64::try_from(long.as_nanos()).unwrap_or(u64::MAX));
            let detached_ns = since.map(|long| monotonic_ns().saturating_sub(long));
            Clock { ttl_ms: files.ttl_ms, detached_ns }.write(&dir)?;
        }
        sessions::remove_segments(dir.as_fd(), |name| !files.segments.contains(name))
    }

    fn remove(&self, session: &str) -> io::Result<()> {
        // No wait: a holder that lives removes its group itself, and one that is dead was buried.
        let group = self.group_of(session);
        group.kill();
        group.remove();
        self.state.remove_session(session)
    }

    fn unmake(&self, session: &str) {
        let dir = self.state.open_session_dir(session);
        if let Ok(dir) = dir.as_ref()
            && roll::read(dir).is_ok_and(|roll| roll.is_some())
        {
            // The files of an archived session are found by way of its secret. With another one the holder knows that it is not wanted.
            let mut secret = [0; 32];
            let replaced = getrandom::fill(&mut secret).map_err(io::Error::other);
            let replaced = replaced.and_then(|()| sessions::write_beside(dir.as_fd(), Path::new(SECRET_NAME), &secret));
            if let Err(error) = replaced {
                tracing::warn!(%error, "the secret of a holder that is not used stays");
            }
            return self.group_of(session).remove();
        }
        // A secret without a holder would look like a holder that died, and cost the session its record.
        self.state.forget_secret(session);
        self.group_of(session).remove();
    }

    fn bury(&self, session: &str) {
        let group = self.group_of(session);
        if group == SessionGroup::default() {
            return;
        }
        group.kill();
        let (times, apart) = BURIED;
        // What does not die (in uninterruptible sleep) keeps its group; there is nothing more to be done about it.
        (0..times).any(|_| {
            group.is_empty() || {
                thread::sleep(apart);
                false
            }
        });
        group.remove();
    }

    fn is_well(&self) -> bool {
        self.config.respawn.is_none() || lock(&self.spawner).is_alive()
    }

    fn is_state_there(&self) -> bool {
        self.state.is_there()
    }

    fn placeholders(&self) -> Vec<PathBuf> {
        self.state.placeholders()
    }

    fn keep_placeholders(&self, paths: &[PathBuf]) -> io::Result<()> {
        self.state.keep_placeholders(paths)
    }

    fn mend(&self) {
        if let Err(error) = self.spawner() {
            tracing::error!(%error, "the spawner died and cannot be replaced; new sessions cannot start processes");
        }
    }
}

/// What answers where a holder should be.
enum Reached {
    Holder(OwnedFd),
    /// It lives and does not answer: never called dead, its children run.
    Nobody,
    /// Nobody listens on its socket any more.
    Remains,
    /// There is no socket: it never was.
    Nothing,
}

fn connect(dir: &OwnedFd) -> io::Result<Reached> {
    let (times, apart) = LOOK_AGAIN;
    let mut last = Reached::Nothing;
    for _ in 0..times {
        match spawner::connect(dir.as_fd()) {
            Ok(controller) => return Ok(Reached::Holder(controller)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(Reached::Remains),
            // Not bound yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => last = Reached::Nothing,
            // A full backlog.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => last = Reached::Nobody,
            Err(error) => return Err(error),
        }
        thread::sleep(apart);
    }
    Ok(last)
}
