//! State that all processes of a session share: the control block, segment memory, the disk, the connection to the
//! controller and the time of the current turn.
//!
//! Also contains the small operations that need two of these parts. Does not depend on `Process`.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::Arc,
};

use exec_server_log::{ControlBlock, Segment, SegmentPool};
use rustix::{event::EventfdFlags, process::Resource};

use crate::{
    HolderConfig,
    cgroup::{ProcessCgroup, ProcessCgroups},
    control::{CommandStatus, FromHolder},
    controller::{Controller, SendOutcome},
    lent_segments::LentSegments,
    poller::Poller,
    spill::Spill,
};

/// How long free segments are kept for reuse after the last one was returned.
const TRIM_NS: u64 = 2_000_000_000;

/// Number of fds that children and their output must leave free: for a new controller, spill files and `/proc` reads. A
/// small `RLIMIT_NOFILE` makes it smaller ([`SessionContext::free_fds`]).
const FREE_FDS: u64 = 64;

/// How many fds are available.
pub(crate) struct FdBudget {
    /// Number of fds from the lowest free one up to the limit. The kernel hands out the lowest number first, so all
    /// numbers above the lowest free one are assumed to be free.
    pub(crate) free: u64,
    /// How many of the free fds are reserved, that is, not for children and their output.
    pub(crate) reserved: u64,
}

pub(crate) struct SessionContext {
    pub(crate) control: ControlBlock,
    /// Wakes the server's reader. Written only when the log says that a reader sleeps.
    pub(crate) eventfd: Arc<OwnedFd>,
    pub(crate) pool: SegmentPool,
    pub(crate) lent_segments: LentSegments,
    pub(crate) spill: Spill,
    pub(crate) controller: Controller,
    pub(crate) cgroups: ProcessCgroups,
    /// Control groups of processes that closed in this turn. Handled after the reader is woken, to keep the wake-up
    /// fast.
    pub(crate) released_cgroups: Vec<ProcessCgroup>,
    /// Watches the fds of all children. A separate epoll instance, so that the holder can ignore all of them at once.
    pub(crate) children: Poller,
    /// A client is attached: a full log blocks its child and does not spill to disk.
    pub(crate) is_attached: bool,
    /// This process serves only as a holder, so every descendant belongs to the session.
    pub(crate) is_exclusive: bool,
    /// Time of the current turn.
    pub(crate) now_ns: u64,
    /// A process deadline was set since the deadlines were last collected.
    pub(crate) has_new_deadline: bool,
    /// At least one process is to be killed at the end of this turn.
    pub(crate) has_kills: bool,
    /// The manifest must be written again. For example, a process started, ended or was forgotten.
    pub(crate) is_manifest_stale: bool,
    /// The server's reader sleeps and waits for something that this turn has appended.
    is_wake_due: bool,
    trim_at: Option<u64>,
}

impl SessionContext {
    pub(crate) fn new(config: &HolderConfig, now_ns: u64) -> io::Result<Self> {
        Ok(Self {
            control: ControlBlock::create()?,
            eventfd: Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            pool: SegmentPool::new(),
            lent_segments: LentSegments::default(),
            spill: Spill::new(&config.dir, config.limits)?,
            controller: Controller::default(),
            cgroups: ProcessCgroups::new(config.confine.group.clone(), config.limits),
            released_cgroups: Vec::new(),
            children: Poller::new()?,
            is_attached: false,
            is_exclusive: config.exclusive,
            now_ns,
            has_new_deadline: false,
            has_kills: false,
            is_manifest_stale: true,
            is_wake_due: false,
            trim_at: None,
        })
    }

    pub(crate) fn send(&mut self, message: &FromHolder) {
        self.send_with(message, None);
    }

    pub(crate) fn send_with(&mut self, message: &FromHolder, fd: Option<Arc<OwnedFd>>) {
        // A message wakes the server too: the server reads the logs after each message.
        self.is_wake_due &= self.controller.send(message, fd.as_slice()) != SendOutcome::Sent;
    }

    /// Answers a request, if the controller that sent it is still connected.
    pub(crate) fn send_done(&mut self, req: Option<u32>, status: CommandStatus) {
        if let Some(req) = req {
            self.send(&FromHolder::Done { req, status });
        }
    }

    /// Records that the server's reader must be woken, if the log reported that it sleeps.
    pub(crate) fn request_wake(&mut self, is_due: bool) {
        self.is_wake_due |= is_due;
    }

    /// Wakes the server's reader once for everything appended since the last call, so that `Exited` and the `Closed`
    /// after it cause one wake-up.
    pub(crate) fn wake_reader(&mut self) {
        if std::mem::take(&mut self.is_wake_due) {
            // EAGAIN means that the counter is full, so a wake-up is already pending.
            rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes()).ok();
        }
    }

    /// Takes back the control groups of processes that have closed.
    pub(crate) fn recycle_cgroups(&mut self) {
        for group in std::mem::take(&mut self.released_cgroups) {
            self.cgroups.release(group);
        }
    }

    /// Takes a segment that has left its log. Its memory is reused, or freed if it must not be reused: see
    /// [`LentSegments`].
    pub(crate) fn dispose(&mut self, segment: Segment) {
        let freed = self.lent_segments.dispose(&mut self.pool, segment);
        self.retire(freed);
    }

    /// Handles `Return`: the controller no longer reads this segment.
    pub(crate) fn handle_return(&mut self, id: u64) {
        let freed = self.lent_segments.handle_return(&mut self.pool, id);
        self.retire(freed);
    }

    /// Frees spare memory that has not been needed for a while.
    pub(crate) fn trim(&mut self) {
        if self.trim_at.take_if(|at| self.now_ns >= *at).is_some() {
            self.spill.trim();
            for segment in self.pool.trim_idle() {
                self.send(&FromHolder::Retired { segment });
            }
        }
    }

    /// Deadline of the work that every turn does, even while other work is suspended.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.trim_at.into_iter().chain(self.controller.deadline_ns(self.now_ns)).min()
    }

    /// How many fds are left. `None` if none is left. Costs three system calls.
    pub(crate) fn free_fds(&self) -> Option<FdBudget> {
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // The copy gets the lowest free number, and is closed again here.
        let lowest = rustix::io::fcntl_dupfd_cloexec(&self.eventfd, 0).ok()?;
        let lowest = u64::from(lowest.as_raw_fd().unsigned_abs());
        Some(FdBudget { free: limit.saturating_sub(lowest), reserved: FREE_FDS.min(limit / 4) })
    }

    /// The two fds that go with `Welcome`.
    pub(crate) fn shared_fds(&self) -> [Arc<OwnedFd>; 2] {
        [self.control.shared_fd(), Arc::clone(&self.eventfd)]
    }

    /// Schedules the next trim. If memory was freed, tells the controller the id of its last segment.
    fn retire(&mut self, freed: Option<u64>) {
        self.trim_at = Some(self.now_ns.saturating_add(TRIM_NS));
        if let Some(segment) = freed {
            self.send(&FromHolder::Retired { segment });
        }
    }
}
