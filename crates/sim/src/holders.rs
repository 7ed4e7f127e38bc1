//! Provides the holders of a simulated server: the real holder logic with scripted children, on this thread, driven by its file
//! descriptors.
//!
//! Owns the holders and the session directories in a temporary state directory. As in production, holders outlive servers: the next server
//! finds them with [`core::Holders::scan`] through their path sockets.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use exec_server_holder::{ChildRestrictions, Holder, HolderConfig, HolderLimits, spawner};
use exec_server_server::core::{self, FoundSession};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketFlags, SocketType},
};
use tokio::{io::Interest, sync::Notify};

use crate::{child::ScriptSpawner, idle_gate::IdleGate, prelude::*};

/// How many turns a holder may take at one instant of the simulated clock before it counts as spinning.
const TURNS_MAX: u32 = 100_000;

/// How many process slots and segments per slot `fill_disk` blocks. More than a world uses.
const SLOTS: u32 = 10;
const SEGMENTS: u64 = 12;

/// All holders of a world.
pub struct Holders {
    root: tempfile::TempDir,
    limits: HolderLimits,
    gate: IdleGate,
    state: Mutex<HoldersState>,
    /// Notified when `pending` has a new entry.
    pending_added: Notify,
    /// How many disk segments the server has opened.
    loads: AtomicU64,
}

#[derive(Default)]
struct HoldersState {
    /// By session id. Ids are opaque, so everything is sorted by `order`.
    sessions: BTreeMap<String, HolderEntry>,
    pending: VecDeque<PendingHolder>,
    created: u64,
}

#[derive(Clone)]
struct HolderEntry {
    order: u64,
    dir: PathBuf,
    record: Option<Vec<u8>>,
    secret: Option<[u8; 32]>,
    is_alive: bool,
    /// Notified when the holder must die.
    death: Arc<Notify>,
}

/// A holder that was requested but does not run yet. This models the time that a fork takes.
struct PendingHolder {
    session: String,
    death: Arc<Notify>,
    order: u64,
    config: HolderConfig,
    controller: OwnedFd,
}

impl Holders {
    /// Creates an empty state directory without holders.
    pub fn new(limits: HolderLimits, gate: IdleGate) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            root: tempfile::tempdir()?,
            limits,
            gate,
            state: Mutex::default(),
            pending_added: Notify::new(),
            loads: AtomicU64::new(0),
        }))
    }

    /// The directory for a client's files. It does not exist yet.
    pub fn files_dir(&self, client: &str) -> std::path::PathBuf {
        self.root.path().join("desks").join(client)
    }

    /// Starts requested holders and drives them until they end.
    pub async fn run_pending(self: Arc<Self>, context: WorldContext) {
        loop {
            let pending = self.state.lock().pending.pop_front();
            match pending {
                Some(pending) => {
                    let (holders, holder_context) = (self.clone(), context.clone());
                    context.spawn(async move { holders.run_holder(pending, holder_context).await });
                }
                None => self.pending_added.notified().await,
            }
        }
    }

    /// The number of running holders.
    pub fn alive(&self) -> usize {
        self.state.lock().sessions.values().filter(|entry| entry.is_alive).count()
    }

    /// Kills a session's holder and its children, like SIGKILL. Returns false if there is none.
    pub fn kill(&self, session: &str) -> bool {
        let state = self.state.lock();
        let alive = state.sessions.get(session).filter(|entry| entry.is_alive);
        alive.inspect(|entry| entry.death.notify_one()).is_some()
    }

    /// Makes the disk of a session refuse new segments, or accept them again. A directory blocks the name of each segment file.
    pub fn fill_disk(&self, session: &str, is_full: bool) {
        let Some(dir) = self.state.lock().sessions.get(session).map(|entry| entry.dir.clone()) else { return };
        for (slot, id) in (0..SLOTS).flat_map(|slot| (0..SEGMENTS).map(move |id| (slot, id))) {
            let path = dir.join(exec_server_log::disk_name(slot, id));
            // Ignore errors: an existing segment stays, and a missing directory need not be removed.
            let done = if is_full { std::fs::create_dir(path) } else { std::fs::remove_dir(path) };
            done.ok();
        }
    }

    /// How many disk segments were read back.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    async fn run_holder(self: Arc<Self>, pending: PendingHolder, context: WorldContext) {
        let PendingHolder { session, order, config, controller, death } = pending;
        context.trace.line(format_args!("holder {order} begins"));
        let spawner = ScriptSpawner::new(context.clone());
        let children = spawner.children();
        let driven = tokio::select! {
            biased;
            () = death.notified() => {
                context.trace.count(Branch::HolderDeath);
                Ok(())
            }
            driven = drive(config, controller, spawner, &context) => driven,
        };
        children.mark_lost(&context.records);
        if let Err(error) = driven {
            violation!(context.trace, Health, "holder {order} failed: {error}");
        }
        if let Some(entry) = self.state.lock().sessions.get_mut(&session) {
            entry.is_alive = false;
        }
        context.trace.line(format_args!("holder {order} ended"));
    }

    /// The directory of an existing session.
    fn dir(&self, session: &str) -> io::Result<PathBuf> {
        self.state.lock().sessions.get(session).map(|entry| entry.dir.clone()).ok_or(io::ErrorKind::NotFound.into())
    }

    /// The entry of a session. Creates it if necessary.
    fn entry(&self, session: &str) -> io::Result<HolderEntry> {
        let mut state = self.state.lock();
        if let Some(entry) = state.sessions.get(session) {
            return Ok(entry.clone());
        }
        state.created += 1;
        let order = state.created;
        let dir = self.root.path().join(order.to_string());
        std::fs::create_dir(&dir)?;
        let entry = HolderEntry { order, dir, record: None, secret: None, is_alive: false, death: Arc::default() };
        state.sessions.insert(session.to_owned(), entry.clone());
        Ok(entry)
    }

    fn find(entry: &HolderEntry) -> io::Result<FoundSession> {
        if let Ok(text) = std::fs::read_to_string(entry.dir.join(spawner::TOMBSTONE_NAME)) {
            return Ok(FoundSession::Expired(text));
        }
        match (entry.secret, &entry.record) {
            (Some(secret), _) if entry.is_alive => {
                Ok(FoundSession::Holder { controller: spawner::connect(open_dir(&entry.dir)?.as_fd())?, secret })
            }
            (None, Some(record)) => Ok(FoundSession::Record(record.clone())),
            (Some(_) | None, _) => Ok(FoundSession::Lost),
        }
    }
}

impl core::Holders for Holders {
    fn create(&self, session: &str, record: &[u8]) -> io::Result<(OwnedFd, [u8; 32])> {
        let entry = self.entry(session)?;
        let mut secret = [7; 32];
        secret[..8].copy_from_slice(&entry.order.to_le_bytes());
        std::fs::write(entry.dir.join(spawner::SECRET_NAME), secret)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let config = HolderConfig {
            dir: open_dir(&entry.dir)?,
            secret,
            info: record.to_vec(),
            limits: self.limits,
            nofile: None,
            confine: ChildRestrictions::default(),
            exclusive: false,
        };
        let mut state = self.state.lock();
        if let Some(entry) = state.sessions.get_mut(session) {
            (entry.secret, entry.is_alive) = (Some(secret), true);
        }
        let (session, order, death) = (session.to_owned(), entry.order, entry.death);
        state.pending.push_back(PendingHolder { session, order, config, controller: theirs, death });
        drop(state);
        self.pending_added.notify_one();
        Ok((ours, secret))
    }

    fn scan(&self) -> io::Result<Vec<(String, FoundSession)>> {
        self.gate.wait_until_idle();
        let mut entries: Vec<(String, HolderEntry)> = self.state.lock().sessions.clone().into_iter().collect();
        entries.sort_by_key(|(_, entry)| entry.order);
        let found = entries.into_iter().map(|(id, entry)| Self::find(&entry).map(|found| (id, found)));
        // Skip a holder that ends during the scan: it cannot be adopted.
        Ok(found.filter_map(Result::ok).collect())
    }

    fn inspect(&self, session: &str) -> io::Result<Option<FoundSession>> {
        self.gate.wait_until_idle();
        let entry = self.state.lock().sessions.get(session).cloned();
        Ok(entry.and_then(|entry| Self::find(&entry).ok()))
    }

    fn read_record(&self, session: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.state.lock().sessions.get(session).and_then(|entry| entry.record.clone()))
    }

    fn write_record(&self, session: &str, record: &[u8]) -> io::Result<()> {
        self.gate.wait_until_idle();
        self.entry(session)?;
        if let Some(entry) = self.state.lock().sessions.get_mut(session) {
            entry.record = Some(record.to_vec());
        }
        Ok(())
    }

    fn open_segment(&self, session: &str, name: &str) -> io::Result<File> {
        self.gate.wait_until_idle();
        self.loads.fetch_add(1, Ordering::Relaxed);
        File::open(self.dir(session)?.join(name))
    }

    fn remove_segment(&self, session: &str, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.dir(session)?.join(name))
    }

    fn remove(&self, session: &str) -> io::Result<()> {
        // The holder may still be ending. Its further files are removed with the directory.
        let entry = self.state.lock().sessions.remove(session).ok_or(io::ErrorKind::NotFound)?;
        std::fs::remove_dir_all(entry.dir)
    }
}

/// Turns a holder whenever its file descriptors or deadlines require it, until its session has ended.
async fn drive(
    config: HolderConfig,
    controller: OwnedFd,
    spawner: ScriptSpawner,
    context: &WorldContext,
) -> io::Result<()> {
    let mut holder = Holder::new(config, controller, spawner, context.now_ns())?;
    let ready = exec_server_rpc::register(holder.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
    let (mut last_ns, mut turns) = (0, 0);
    loop {
        let now_ns = context.now_ns();
        turns = if now_ns == last_ns { turns + 1 } else { 0 };
        last_ns = now_ns;
        if turns > TURNS_MAX {
            return Err(io::Error::other("it spins: time stands still and it never rests"));
        }
        let turn = holder.turn(now_ns);
        if turn.ended {
            return Ok(());
        }
        // Wait for the disk without advancing the simulated time, so that its real speed does not matter.
        holder.wait_for_disk();
        if is_readable(holder.as_fd())? {
            tokio::task::yield_now().await;
            continue;
        }
        let due = async {
            match turn.next_deadline_ns {
                Some(at) => tokio::time::sleep_until(context.instant(at)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            readable = ready.readable() => readable?.clear_ready(),
            () = due => {}
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::default()))? > 0)
}

fn open_dir(path: &std::path::Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
