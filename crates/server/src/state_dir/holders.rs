//! `Holders` for a real server: the spawner creates the holders, and their files are in the state directory. Session
//! records are opaque bytes here; the core defines them.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use exec_server_holder::{
    ChildRestrictions, HolderConfig, HolderLimits,
    archive_file::{ARCHIVE_NAME, LeaseClock},
    cgroup::{CgroupRoot, SessionCgroup},
    control::TTL_NONE,
    manifest::{self, MANIFEST_NAME},
    spawner::{self, SECRET_NAME, SOCKET_NAME, SpawnerHandle},
};
use exec_server_sandbox::{BuildError, BuiltView, ViewScript};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::{StateDir, if_exists, sessions};
use crate::{
    core::{ArchiveFiles, DeadHolder, FoundSession, Holders, SavedClock},
    session::short_id,
};

/// After a kill, how many times and how far apart to check that a control group is empty: one second in all. A kill
/// usually takes milliseconds.
const KILL_CHECKS: (u32, Duration) = (500, Duration::from_millis(2));

const GROUP_NAME: &str = "cgroup";

/// How many times and how far apart to try to connect to a holder whose socket is missing, or whose backlog is full:
/// 0.2 s in all. After that, a holder without a socket counts as never created. The wait is for a holder that was
/// forked just before the last server was killed, and that has not bound its socket yet.
const CONNECT_RETRIES: (u32, Duration) = (20, Duration::from_millis(10));

/// Settings of [`SpawnedHolders`].
#[derive(Clone, Debug, Default)]
pub struct SpawnedHoldersConfig {
    /// Resource limits of each holder.
    pub limits: HolderLimits,
    /// RLIMIT_NOFILE (soft, hard) before the server raised its own limit. Children get these values.
    pub original_nofile: Option<(u64, u64)>,
    /// Where sessions get their control groups. `None`: sessions have no control group.
    pub cgroups: Option<CgroupRoot>,
    /// The restrictions of children. Their `group` is replaced with the group of the session.
    pub confine: ChildRestrictions,
    /// The program to start as a new spawner when the old one has died. `None`: a dead spawner is not replaced.
    pub respawn: Option<PathBuf>,
    /// Set if the state directory was made for this run alone. If the server is killed, the spawner removes the
    /// directory this long after the last holder has ended.
    pub remove_after: Option<Duration>,
}

/// Creates holders through the spawner and keeps their directories in a state directory.
pub struct SpawnedHolders {
    state: Arc<StateDir>,
    spawner: Mutex<Arc<SpawnerHandle>>,
    config: SpawnedHoldersConfig,
}

impl SpawnedHolders {
    /// Prepares the creation of holders in a state directory. Other state directories may share the spawner.
    pub fn new(state: Arc<StateDir>, spawner: impl Into<Arc<SpawnerHandle>>, config: SpawnedHoldersConfig) -> Self {
        let spawner = spawner.into();
        let spawned = Self { state, spawner: Mutex::new(Arc::clone(&spawner)), config };
        spawned.arrange_removal(&spawner);
        spawned
    }

    /// If `remove_after` is set, tells the spawner to remove the state directory should this server be killed.
    fn arrange_removal(&self, spawner: &SpawnerHandle) {
        let Some(after) = self.config.remove_after else { return };
        let guarded = File::open(self.state.path()).and_then(|dir| spawner.guard(dir.as_fd(), after));
        if let Err(error) = guarded {
            let path = self.state.path().display();
            tracing::warn!(%path, %error, "cannot ask the spawner to remove the state directory in case this server is killed");
        }
    }

    /// The spawner, replaced first if it has died. Blocks while a new one starts.
    fn spawner(&self) -> io::Result<Arc<SpawnerHandle>> {
        let mut spawner = self.spawner.lock();
        if let Some(program) = self.config.respawn.as_deref().filter(|_| !spawner.is_alive()) {
            // Shown by `ps`.
            let served = self.state.path().as_os_str();
            let new = spawner::exec_spawner_for(program, Some(served)).map_err(io::Error::other)?;
            tracing::warn!(old = spawner.pid(), new = new.pid(), "the spawner died and was replaced");
            spawner.reap();
            self.arrange_removal(&new);
            *spawner = Arc::new(new);
        }
        Ok(spawner.clone())
    }

    /// Creates the control group of a session. Its path is written to the session's directory before the holder is
    /// created, so that a server that finds the holder dead also finds the group to kill.
    fn make_group(&self, session: &str, dir: &OwnedFd) -> io::Result<SessionCgroup> {
        let Some(root) = &self.config.cgroups else { return Ok(SessionCgroup::default()) };
        // The name is a hash of the session id: all users can read group names, and the id gives access to the session.
        let group = root.session(&hex::encode(&Sha256::digest(session)[..8]))?;
        sessions::write_beside(dir.as_fd(), Path::new(GROUP_NAME), &group.encode())?;
        Ok(group)
    }

    /// The control group of a session. Without a readable file this is the empty group, for which kill and remove do
    /// nothing.
    fn group_of(&self, session: &str) -> SessionCgroup {
        let text = self.state.open_session_dir(session).and_then(|dir| sessions::read_small(dir.as_fd(), GROUP_NAME));
        text.ok().flatten().map_or_else(SessionCgroup::default, |text| SessionCgroup::decode(&text))
    }

    fn find(&self, session: &str) -> io::Result<FoundSession> {
        let dir = self.state.open_session_dir(session)?;
        if let Some(text) = sessions::read_small(dir.as_fd(), "expired")? {
            return Ok(FoundSession::Expired(String::from_utf8_lossy(&text).into_owned()));
        }
        let Some(secret) = sessions::read_small(dir.as_fd(), SECRET_NAME)? else {
            // No holder was created for this session, or all its processes were forgotten after the holder had left.
            return find_record(dir.as_fd());
        };
        let Ok(secret) = <[u8; 32]>::try_from(secret) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match connect(&dir)? {
            ConnectOutcome::Holder(controller) => Ok(FoundSession::Holder { controller, secret }),
            ConnectOutcome::Busy => Ok(FoundSession::Silent),
            ConnectOutcome::Dead => read_dead_holder(dir.as_fd()),
            // The server died after it wrote the secret and before the holder existed. No process was started, so
            // nothing is lost.
            ConnectOutcome::NoSocket => {
                self.state.forget_secret(session);
                find_record(dir.as_fd())
            }
        }
    }
}

/// The record of a session that has no holder. Without a record, the session is lost.
fn find_record(dir: BorrowedFd<'_>) -> io::Result<FoundSession> {
    Ok(sessions::read_small(dir, "record")?.map_or(FoundSession::Lost, FoundSession::Record))
}

/// Collects the files of a dead holder: the spilled logs of the processes that its process list (`manifest`) names.
fn read_dead_holder(dir: BorrowedFd<'_>) -> io::Result<FoundSession> {
    let (Some(record), Some(manifest)) = (sessions::read_small(dir, "record")?, manifest::read(dir)?) else {
        return Ok(FoundSession::Lost);
    };
    let mut logs = Vec::new();
    for enrolled in manifest {
        let recovered = exec_server_log::survey(dir, enrolled.slot)?;
        logs.push((enrolled, recovered));
    }
    let clock = LeaseClock::read(dir)?.map(|clock| SavedClock {
        ttl: (clock.ttl_ms != TTL_NONE).then(|| Duration::from_millis(clock.ttl_ms)),
        detached_for: clock.detached_ns.map(|since| Duration::from_nanos(monotonic_ns().saturating_sub(since))),
    });
    Ok(FoundSession::DeadHolder(DeadHolder { record, logs, clock }))
}

/// CLOCK_MONOTONIC, the clock by which holders expire sessions.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl Holders for SpawnedHolders {
    fn view(&self, script: &ViewScript) -> Result<BuiltView, BuildError> {
        let spawner = self.spawner().map_err(|source| BuildError { what: "reach the spawner".to_owned(), source })?;
        spawner.view(script)
    }

    fn hidden(&self) -> Vec<PathBuf> {
        vec![self.state.path().to_owned()]
    }

    fn create(&self, session: &str, record: &[u8]) -> io::Result<(OwnedFd, [u8; 32])> {
        let dir = self.state.session_dir(session)?;
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        // Write the secret before the holder exists: a server that finds the holder also needs its secret.
        sessions::write_beside(dir.as_fd(), Path::new(SECRET_NAME), &secret)?;
        let made = self.make_group(session, &dir).and_then(|group| {
            self.spawner()?.create(&HolderConfig {
                dir,
                secret,
                info: record.to_vec(),
                limits: self.config.limits,
                nofile: self.config.original_nofile,
                confine: ChildRestrictions { group, ..self.config.confine.clone() },
                exclusive: true,
            })
        });
        if made.is_err() {
            self.undo_create(session);
        }
        Ok((made?, secret))
    }

    fn scan(&self) -> io::Result<Vec<(String, FoundSession)>> {
        let mut all = Vec::new();
        for session in self.state.session_ids()? {
            match self.inspect(&session) {
                Ok(found) => all.extend(found.map(|found| (session, found))),
                // One unreadable session must not keep the others from being adopted.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(dir = %self.state.path().display(), session = short_id(&session), %error, "the session cannot be read and is left alone");
                }
                // The error may be temporary (EMFILE), so the session is tried again like one whose holder is silent.
                Err(error) => {
                    tracing::warn!(dir = %self.state.path().display(), session = short_id(&session), %error, "the session cannot be read now and is tried again");
                    all.push((session, FoundSession::Silent));
                }
            }
        }
        Ok(all)
    }

    fn inspect(&self, session: &str) -> io::Result<Option<FoundSession>> {
        // `None`: the session expired just now, or its holder ended. The holder has removed the directory.
        if_exists(self.find(session))
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
            // Remove the secret first: without a secret, `find` looks only at the record.
            sessions::remove_file(dir.as_fd(), SECRET_NAME)?;
            for name in [MANIFEST_NAME, ARCHIVE_NAME, SOCKET_NAME] {
                sessions::remove_file(dir.as_fd(), name)?;
            }
        } else {
            manifest::write(&dir, &manifest::encode(&files.processes))?;
            let since = files.detached_for.map(|long| u64::try_from(long.as_nanos()).unwrap_or(u64::MAX));
            let detached_ns = since.map(|long| monotonic_ns().saturating_sub(long));
            LeaseClock { ttl_ms: files.ttl_ms, detached_ns }.write(&dir)?;
        }
        sessions::remove_segments(dir.as_fd(), |name| !files.segments.contains(name))
    }

    fn remove(&self, session: &str) -> io::Result<()> {
        // No need to wait for the kill: a live holder removes its group itself, and for a dead one `kill_cgroup` has
        // already waited.
        let group = self.group_of(session);
        group.kill();
        group.remove();
        self.state.remove_session(session)
    }

    fn undo_create(&self, session: &str) {
        let dir = self.state.open_session_dir(session);
        if let Ok(dir) = dir.as_ref()
            && manifest::read(dir).is_ok_and(|manifest| manifest.is_some())
        {
            // The session is archived, and `find` reaches its files only if there is a secret. So replace the secret
            // instead of removing it. A holder that finds another secret than its own knows that it is not needed.
            let mut secret = [0; 32];
            let replaced = getrandom::fill(&mut secret).map_err(io::Error::other);
            let replaced = replaced.and_then(|()| sessions::write_beside(dir.as_fd(), Path::new(SECRET_NAME), &secret));
            if let Err(error) = replaced {
                tracing::warn!(session = short_id(session), %error, "cannot replace the secret of an unused holder");
            }
            return self.group_of(session).remove();
        }
        // Remove the secret: with a secret and the socket of a dead holder, `find` would report the session as lost.
        self.state.forget_secret(session);
        self.group_of(session).remove();
    }

    fn kill_cgroup(&self, session: &str) {
        let group = self.group_of(session);
        if group == SessionCgroup::default() {
            return;
        }
        group.kill();
        let (times, apart) = KILL_CHECKS;
        // Processes in uninterruptible sleep do not die and keep their group. Nothing more can be done about them.
        for _ in 0..times {
            if group.is_empty() {
                break;
            }
            thread::sleep(apart);
        }
        group.remove();
    }

    fn can_create_holders(&self) -> bool {
        // Without `respawn` a dead spawner is not replaced, so `repair` has nothing to do.
        self.config.respawn.is_none() || self.spawner.lock().is_alive()
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

    fn repair(&self) {
        if let Err(error) = self.spawner() {
            tracing::error!(%error, "the spawner died and cannot be replaced; new sessions cannot start processes");
        }
    }
}

/// The result of connecting to the socket in a session's directory.
enum ConnectOutcome {
    Holder(OwnedFd),
    /// The holder lives but does not accept the connection. It must not count as dead, because its children run.
    Busy,
    /// The socket exists, but no process listens on it: the holder is dead.
    Dead,
    /// The directory has no socket: the holder was never created.
    NoSocket,
}

fn connect(dir: &OwnedFd) -> io::Result<ConnectOutcome> {
    let (times, apart) = CONNECT_RETRIES;
    let mut last = ConnectOutcome::NoSocket;
    for _ in 0..times {
        match spawner::connect(dir.as_fd()) {
            Ok(controller) => return Ok(ConnectOutcome::Holder(controller)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(ConnectOutcome::Dead),
            // The holder has not bound its socket yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => last = ConnectOutcome::NoSocket,
            // The backlog of the holder's socket is full.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => last = ConnectOutcome::Busy,
            Err(error) => return Err(error),
        }
        thread::sleep(apart);
    }
    Ok(last)
}
