//! Test support: a holder and its controller on one thread. The test runs both in turns and sets the time. Shared by
//! all test files of this program.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::{Mode, OFlags},
    net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair},
};

use crate::prelude::*;
use exec_server_holder::{
    ChildRestrictions, ChildSpawner, Holder, TurnResult,
    control::{self, AnnouncedSegment},
};
use exec_server_log::{
    self as log, ControlBlock, Cursor, Exit, LogEvent, LogStatus, MappedSegment, ReadStep, SegmentChain,
    SegmentLocation,
};
use exec_server_process::{Child, Spawn, SpawnError};

pub(crate) const SECRET: [u8; 32] = [7; 32];
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const MIB: u64 = 1 << 20;

/// Creates scripted or real children.
#[derive(Clone, Default)]
pub(crate) struct TestSpawner {
    pub(crate) drivers: Arc<Mutex<Vec<ScriptDriver>>>,
    is_real: bool,
}

impl ChildSpawner for TestSpawner {
    fn spawn(&mut self, spawn: Spawn) -> Result<Child, SpawnError> {
        if self.is_real {
            return spawn.spawn();
        }
        let (child, driver) =
            Child::scripted(spawn.stdio).map_err(|source| SpawnError::Resources { what: "script", source })?;
        self.drivers.lock().expect("no test panics with it").push(driver);
        Ok(child)
    }
}

/// A server's view of one log.
#[derive(Default)]
pub(crate) struct LogView {
    chain: SegmentChain,
    cursor: Option<Cursor>,
    pub(crate) bytes: Vec<u8>,
    /// The kinds of events in order. Consecutive outputs count once.
    pub(crate) order: Vec<&'static str>,
    pub(crate) exit: Option<Exit>,
    pub(crate) closed: Option<(u64, u64)>,
    pub(crate) gap_bytes: u64,
}

struct LentMapping(Arc<MappedSegment>);

impl AsRef<MappedSegment> for LentMapping {
    fn as_ref(&self) -> &MappedSegment {
        &self.0
    }
}

/// The controller's side.
pub(crate) struct TestServer {
    pub(crate) socket: OwnedFd,
    dir: OwnedFd,
    pub(crate) inbox: VecDeque<FromHolder>,
    pub(crate) control: Option<ControlBlock>,
    pub(crate) logs: BTreeMap<u32, LogView>,
    pub(crate) is_lost: bool,
    pub(crate) pidfds: usize,
    next_req: u32,
}

pub(crate) struct HolderRig {
    pub(crate) holder: Holder<TestSpawner>,
    pub(crate) server: TestServer,
    pub(crate) source: TestSpawner,
    pub(crate) now: u64,
    /// Added to the time in each round of `until`.
    pub(crate) tick: u64,
    pub(crate) last: TurnResult,
    pub(crate) dir: tempfile::TempDir,
}

pub(crate) fn spec() -> StartSpec {
    StartSpec { argv: vec![b"script".to_vec()], cwd: b"/".to_vec(), cap_bytes: 16 * MIB, ..StartSpec::default() }
}

pub(crate) fn shell(script: &str) -> StartSpec {
    StartSpec {
        argv: ["sh", "-c", script].map(|arg| arg.as_bytes().to_vec()).to_vec(),
        env: vec![b"PATH=/usr/bin:/bin".to_vec()],
        ..spec()
    }
}

impl TestServer {
    pub(crate) fn new(socket: OwnedFd, dir: OwnedFd) -> Self {
        Self {
            socket,
            dir,
            inbox: VecDeque::new(),
            control: None,
            logs: BTreeMap::new(),
            is_lost: false,
            pidfds: 0,
            next_req: 1,
        }
    }

    pub(crate) fn send(&mut self, message: &ToHolder<'_>) {
        control::send(&self.socket, message, &[]).expect("the holder reads");
    }

    pub(crate) fn hello(&mut self, epoch: u64) {
        self.send(&ToHolder::Hello { version: control::VERSION, secret: SECRET, epoch });
    }

    pub(crate) fn req(&mut self) -> u32 {
        self.next_req += 1;
        self.next_req
    }

    /// Receives all pending messages and reads every log to its end.
    pub(crate) fn absorb(&mut self) {
        while !self.is_lost {
            match control::recv(&self.socket) {
                Ok(Some((message, fds))) => self.take(message, fds),
                Ok(None) => self.is_lost = true,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("receive: {error}"),
            }
        }
        let dir = self.dir.try_clone().expect("descriptors");
        for (slot, log) in &mut self.logs {
            log.read(*slot, &dir);
        }
    }

    fn take(&mut self, message: FromHolder, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        match &message {
            FromHolder::Welcome { .. } => {
                self.control = Some(ControlBlock::open(fds.next().expect("control memfd")).expect("its layout"));
                fds.next().expect("eventfd");
                self.inbox.push_back(message);
            }
            FromHolder::Segment(info) => {
                let location = if info.on_disk { SegmentLocation::Disk } else { SegmentLocation::Memory };
                let chain = &mut self.logs.entry(info.slot).or_default().chain;
                let AnnouncedSegment { id, base_seq, base_offset, sealed, .. } = *info;
                let known = log::SegmentInfo { id, base_seq, base_offset, location, sealed };
                match fds.next() {
                    Some(fd) => {
                        chain.push_memory(known, Arc::new(LentMapping(MappedSegment::map(fd).expect("a segment"))))
                    }
                    None => chain.push_disk(known),
                }
            }
            FromHolder::Spilled { slot, segment } => {
                self.logs.entry(*slot).or_default().chain.set_on_disk(*segment);
                self.send(&ToHolder::Return { segment: *segment });
                self.inbox.push_back(message);
            }
            FromHolder::Dropped { slot, segment } => {
                self.logs.entry(*slot).or_default().chain.remove(*segment);
                self.send(&ToHolder::Return { segment: *segment });
                self.inbox.push_back(message);
            }
            FromHolder::Started { slot, .. } => {
                self.logs.insert(*slot, LogView::default());
                self.pidfds += fds.len();
                self.inbox.push_back(message);
            }
            FromHolder::Process(_) => {
                self.pidfds += fds.len();
                self.inbox.push_back(message);
            }
            _ => self.inbox.push_back(message),
        }
    }

    /// Releases and returns all segments that have been read completely.
    pub(crate) fn release(&mut self, slot: u32) {
        let log = self.logs.get_mut(&slot).expect("a known slot");
        let seq = log.cursor.as_ref().map_or(0, |cursor| cursor.next_seq() - 1);
        for segment in log.chain.take_up_to(seq, 0) {
            self.send(&ToHolder::Release { slot, segment });
            self.send(&ToHolder::Return { segment });
        }
    }

    /// Continues to read where another server stopped. The mappings of that server are gone.
    pub(crate) fn resume(&mut self, old: Self) {
        for (slot, log) in old.logs {
            self.logs.insert(slot, LogView { chain: SegmentChain::new(), ..log });
        }
    }

    pub(crate) fn log(&self, slot: u32) -> &LogView {
        self.logs.get(&slot).expect("a known slot")
    }
}

impl LogView {
    /// Number of segments that are known and not released.
    pub(crate) fn segments(&self) -> usize {
        self.chain.segments().count()
    }

    /// Ids of the known segments.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.chain.segments().map(|info| info.id).collect()
    }

    fn read(&mut self, slot: u32, dir: &OwnedFd) {
        let cursor = self.cursor.get_or_insert_with(Cursor::start);
        loop {
            let load = match self.chain.read(cursor) {
                ReadStep::Record(record) => {
                    match record.event {
                        LogEvent::Output { bytes, .. } => {
                            self.bytes.extend_from_slice(bytes);
                            if self.order.last() != Some(&"output") {
                                self.order.push("output");
                            }
                        }
                        LogEvent::Exited(exit) => {
                            self.exit = Some(exit);
                            self.order.push("exited");
                        }
                        LogEvent::Closed { written, dropped } => {
                            self.closed = Some((written, dropped));
                            self.order.push("closed");
                        }
                    }
                    continue;
                }
                ReadStep::Gap { bytes, .. } => {
                    self.gap_bytes += bytes;
                    continue;
                }
                ReadStep::End => return,
                ReadStep::NeedsLoad(id) => id,
                ReadStep::Damaged(id) => panic!("segment {id} is damaged"),
            };
            match log::load(dir.as_fd(), slot, load) {
                Ok(loaded) => assert!(self.chain.set_loaded(load, loaded)),
                // The holder has dropped the segment, and its message is on its way.
                Err(_) => self.chain.remove(load),
            }
        }
    }
}

impl HolderRig {
    pub(crate) fn scripted() -> Self {
        Self::build(HolderLimits { ttl_ms: 1000, ..HolderLimits::default() })
    }

    pub(crate) fn real() -> Self {
        let limits = HolderLimits { ttl_ms: control::TTL_NONE, ..HolderLimits::default() };
        let source = TestSpawner { is_real: true, ..TestSpawner::default() };
        let mut rig = Self::confined(source, limits, ChildRestrictions::default());
        rig.tick = MS;
        rig
    }

    /// With scripted children, without an end, and with this much room on the disk.
    pub(crate) fn limited(quota: u64) -> Self {
        let limits = HolderLimits { disk_quota_bytes: quota, free_floor_bytes: 0, ..HolderLimits::default() };
        Self::build(HolderLimits { ttl_ms: control::TTL_NONE, ..limits })
    }

    /// With scripted children.
    pub(crate) fn build(limits: HolderLimits) -> Self {
        Self::confined(TestSpawner::default(), limits, ChildRestrictions::default())
    }

    pub(crate) fn confined(source: TestSpawner, limits: HolderLimits, confine: ChildRestrictions) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(exec_server_holder::spawner::SECRET_NAME), SECRET)
            .expect("the secret, as a server writes it");
        let (ours, theirs) = pair();
        let config = HolderConfig { limits, confine, ..config(open_dir(&dir)) };
        let holder = Holder::new(config, theirs, source.clone(), 0).expect("a holder");
        let server = TestServer::new(ours, open_dir(&dir));
        let last = TurnResult { next_deadline_ns: None, ended: false };
        let mut rig = Self { holder, server, source, now: 0, tick: 0, last, dir };
        rig.server.hello(1);
        rig.until_message(|message| matches!(message, FromHolder::Ready));
        rig.server.send(&ToHolder::Attach);
        rig.turn();
        rig
    }

    /// Runs one turn at this time.
    pub(crate) fn turn_at(&mut self, now: u64) {
        self.now = now;
        self.turn();
    }

    /// The status of a log in the shared control memory.
    pub(crate) fn status(&self, slot: u32) -> LogStatus {
        self.server.control.as_ref().expect("welcomed").status(slot)
    }

    /// Whether no event is ready for the holder.
    pub(crate) fn is_idle(&self) -> bool {
        let holder = self.holder.as_fd();
        let mut polled = [PollFd::new(&holder, PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&Timespec::default())).expect("polled") == 0
    }

    /// Ends the last scripted child with exit code 0 and closes its streams.
    #[track_caller]
    pub(crate) fn end_process(&mut self, slot: u32) {
        self.driver().exit(0);
        self.driver().close_all();
        self.until_closed(slot);
    }

    /// Sends requests without reading the answers, until the holder stops reading: socket and queue are full.
    pub(crate) fn flood_with_requests(&mut self) {
        for req in 0..100_000_u32 {
            let is_refused = || control::send(&self.server.socket, &ToHolder::Forget { req, slot: 9 }, &[]).is_err();
            if is_refused() {
                self.holder.turn(0);
                if is_refused() {
                    return;
                }
            }
        }
    }

    /// Lets a new server adopt the session and waits until it knows all processes.
    #[track_caller]
    pub(crate) fn adopt_until_ready(&mut self, epoch: u64) {
        drop(self.adopt(epoch));
        self.until_message(|message| matches!(message, FromHolder::Ready));
    }

    pub(crate) fn turn(&mut self) {
        self.last = self.holder.turn(self.now);
        self.server.absorb();
    }

    /// Runs turns of both until `is_true`.
    #[track_caller]
    pub(crate) fn until(&mut self, mut is_true: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        loop {
            self.turn();
            if is_true(self) {
                return;
            }
            assert!(!self.last.ended, "the holder ended");
            assert!(start.elapsed() < Duration::from_secs(20), "waited too long");
            self.now += self.tick;
            let wait = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
            rustix::event::poll(&mut [PollFd::new(&self.holder.as_fd(), PollFlags::IN)], Some(&wait)).ok();
        }
    }

    /// Waits for the close of a log.
    #[track_caller]
    pub(crate) fn until_closed(&mut self, slot: u32) -> &LogView {
        self.until(|rig| rig.server.log(slot).closed.is_some());
        self.server.log(slot)
    }

    /// Waits for the first message that matches. Drops the messages before it.
    #[track_caller]
    pub(crate) fn until_message(&mut self, mut is_it: impl FnMut(&FromHolder) -> bool) -> FromHolder {
        self.until_some(|message| is_it(&message).then_some(message))
    }

    /// Waits for the first message of which `pick` makes something. Drops the messages before it.
    #[track_caller]
    pub(crate) fn until_some<T>(&mut self, mut pick: impl FnMut(FromHolder) -> Option<T>) -> T {
        let mut found = None;
        self.until(|rig| {
            while found.is_none()
                && let Some(message) = rig.server.inbox.pop_front()
            {
                found = pick(message);
            }
            found.is_some()
        });
        found.expect("found above")
    }

    /// Starts a process and returns its slot.
    #[track_caller]
    pub(crate) fn start(&mut self, spec: StartSpec) -> u32 {
        let req = self.server.req();
        self.server.send(&ToHolder::Start { req, spec });
        self.until_some(|message| match message {
            FromHolder::Started { req: answered, slot, .. } if answered == req => Some(slot),
            FromHolder::StartFailed { req: answered, .. } if answered == req => panic!("not started: {message:?}"),
            _ => None,
        })
    }

    pub(crate) fn driver(&self) -> ScriptDriver {
        self.source.drivers.lock().expect("no test panics with it").last().expect("a child").clone()
    }

    /// Sends a request and returns the status of the answer.
    #[track_caller]
    pub(crate) fn request(&mut self, message: impl FnOnce(u32) -> ToHolder<'static>) -> CommandStatus {
        let req = self.server.req();
        self.server.send(&message(req));
        self.answer(req)
    }

    #[track_caller]
    pub(crate) fn answer(&mut self, req: u32) -> CommandStatus {
        self.until_some(|message| match message {
            FromHolder::Done { req: answered, status } if answered == req => Some(status),
            _ => None,
        })
    }

    /// Waits for the answer to a write.
    #[track_caller]
    pub(crate) fn written(&mut self, req: u32) -> (WriteStatus, u64) {
        self.until_some(|message| match message {
            FromHolder::Written { req: answered, status, done } if answered == req => Some((status, done)),
            _ => None,
        })
    }

    /// Connects a second server over the path socket, which adopts the session. Returns the old server.
    #[track_caller]
    pub(crate) fn adopt(&mut self, epoch: u64) -> TestServer {
        let dir = open_dir(&self.dir);
        let socket = exec_server_holder::spawner::connect(dir.as_fd()).expect("the path socket");
        let mut server = TestServer::new(socket, dir);
        server.hello(epoch);
        std::mem::replace(&mut self.server, server)
    }

    /// Names of the files in the session's directory, except the secret, which belongs to the server.
    pub(crate) fn files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.dir.path()) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| name != exec_server_holder::spawner::SECRET_NAME);
        names.sort();
        names
    }

    /// Disconnects the server, so that the next turn notices. Closing our socket would not be enough: a child of
    /// another test may hold a copy of it until its exec.
    pub(crate) fn lose_server(&mut self) {
        shutdown(&self.server.socket, Shutdown::Both).expect("a connected socket");
        let (gone, _other) = rustix::pipe::pipe().expect("a pipe");
        self.server.socket = gone;
        self.server.is_lost = true;
    }
}

/// A default configuration for a holder in this directory.
pub(crate) fn config(dir: OwnedFd) -> HolderConfig {
    HolderConfig {
        dir,
        secret: SECRET,
        info: b"record".to_vec(),
        limits: HolderLimits::default(),
        nofile: None,
        confine: ChildRestrictions::default(),
        exclusive: false,
    }
}

/// The socket pair for a holder's first connection: our end and the holder's.
pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
}

pub(crate) fn open_dir(dir: &tempfile::TempDir) -> OwnedFd {
    rustix::fs::open(dir.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("the directory")
}

/// Test data whose bytes depend on their position.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7 + n / 4099) as u8).collect()
}
