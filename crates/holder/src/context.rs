//! What all processes of a session share: the control block, memory, disk, the way to the controller, the time of this turn.
//!
//! Owns these parts and the small acts that need two of them. It does not know processes.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use exec_server_log::{Control, Pool, Segment};
use rustix::event::EventfdFlags;
use rustix::process::Resource;

use crate::Config;
use crate::cgroup::{Group, Groups};
use crate::controller::{Controller, Sending};
use crate::lent::Lent;
use crate::poller::Poller;
use crate::spill::Spill;
use crate::wire::{FromHolder, Status};

/// How long free segments are kept for reuse after the last one came back.
const TRIM_NS: u64 = 2_000_000_000;

/// Descriptors that children and their output leave free: for a new controller, the disk and the reading of `/proc`. Less where the limit
/// itself is small.
const FREE_FDS: u64 = 64;

/// How many descriptors there are.
pub(crate) struct Fds {
    /// From the lowest free number to the limit: the kernel gives out the lowest first, so that those at the top are free.
    pub(crate) free: u64,
    /// Those of them that are kept for others than children.
    pub(crate) kept: u64,
}

pub(crate) struct Context {
    pub(crate) control: Control,
    /// Wakes the server's reader; written where the log says so.
    pub(crate) eventfd: Arc<OwnedFd>,
    pub(crate) pool: Pool,
    pub(crate) lent: Lent,
    pub(crate) spill: Spill,
    pub(crate) controller: Controller,
    /// Control groups of the processes.
    pub(crate) groups: Groups,
    /// Groups of processes that closed in this turn; looked at when the reader has been woken.
    pub(crate) left_groups: Vec<Group>,
    /// The descriptors of all children, apart from the rest so that they can be left alone as a whole.
    pub(crate) children: Poller,
    /// A client is attached: a full log blocks instead of going to disk.
    pub(crate) is_attached: bool,
    /// This process is nothing but a holder: every descendant belongs to the session.
    pub(crate) is_exclusive: bool,
    /// Time of this turn.
    pub(crate) now_ns: u64,
    /// A deadline of a process was set since deadlines were last collected.
    pub(crate) has_new_deadline: bool,
    /// A process is to be killed at the end of this turn.
    pub(crate) has_kills: bool,
    /// A process came, ended or went since the roll was last written.
    pub(crate) is_roll_stale: bool,
    /// The server's reader waits for something that this turn has appended.
    is_wake_due: bool,
    trim_at: Option<u64>,
}

impl Context {
    pub(crate) fn new(config: &Config, now_ns: u64) -> io::Result<Self> {
        Ok(Self {
            control: Control::create()?,
            eventfd: Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            pool: Pool::new(),
            lent: Lent::default(),
            spill: Spill::new(&config.dir, config.limits)?,
            controller: Controller::default(),
            groups: Groups::new(config.confine.group.clone(), config.limits),
            left_groups: Vec::new(),
            children: Poller::new()?,
            is_attached: false,
            is_exclusive: config.exclusive,
            now_ns,
            has_new_deadline: false,
            has_kills: false,
            is_roll_stale: true,
            is_wake_due: false,
            trim_at: None,
        })
    }

    pub(crate) fn send(&mut self, message: &FromHolder) {
        self.send_with(message, None);
    }

    pub(crate) fn send_with(&mut self, message: &FromHolder, fd: Option<Arc<OwnedFd>>) {
        // A message wakes the server as well, which looks at the logs after each.
        self.is_wake_due &= self.controller.send(message, fd.as_slice()) != Sending::Sent;
    }

    /// Answers a request, if whoever asked is still there.
    pub(crate) fn done(&mut self, req: Option<u32>, status: Status) {
        if let Some(req) = req {
            self.send(&FromHolder::Done { req, status });
        }
    }

    /// Notes that the server's reader is to be woken where the log asked for it.
    pub(crate) fn wake(&mut self, is_due: bool) {
        self.is_wake_due |= is_due;
    }

    /// Wakes the server's reader, once for all that this turn has appended: an exit and its close then travel together.
    pub(crate) fn ring(&mut self) {
        if std::mem::take(&mut self.is_wake_due) {
            // A full counter means that a wake-up is pending already.
            rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes()).ok();
        }
    }

    /// Takes back the groups of processes that have closed.
    pub(crate) fn take_groups(&mut self) {
        for group in std::mem::take(&mut self.left_groups) {
            self.groups.give_back(group);
        }
    }

    /// Takes the memory of a segment that has left its log.
    pub(crate) fn dispose(&mut self, segment: Segment) {
        let freed = self.lent.dispose(&mut self.pool, segment);
        self.retire(freed);
    }

    pub(crate) fn handle_return(&mut self, id: u64) {
        let freed = self.lent.handle_return(&mut self.pool, id);
        self.retire(freed);
    }

    /// Frees spare memory when it has not been needed for a while.
    pub(crate) fn trim(&mut self) {
        if self.trim_at.is_some_and(|at| self.now_ns >= at) {
            self.trim_at = None;
            self.spill.trim();
            for segment in self.pool.trim_idle() {
                self.send(&FromHolder::Retired { segment });
            }
        }
    }

    /// When something is due that is done in every turn, whatever else rests.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.trim_at.into_iter().chain(self.controller.deadline_ns(self.now_ns)).min()
    }

    /// How many descriptors are left; `None` where there is not one. Three system calls.
    pub(crate) fn free_fds(&self) -> Option<Fds> {
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let lowest = rustix::io::fcntl_dupfd_cloexec(&self.eventfd, 0).ok()?;
        let lowest = u64::from(lowest.as_raw_fd().unsigned_abs());
        Some(Fds { free: limit.saturating_sub(lowest), kept: FREE_FDS.min(limit / 4) })
    }

    /// The two descriptors that go with `Welcome`.
    pub(crate) fn shared_fds(&self) -> [Arc<OwnedFd>; 2] {
        [self.control.shared_fd(), Arc::clone(&self.eventfd)]
    }

    fn retire(&mut self, freed: Option<u64>) {
        self.trim_at = Some(self.now_ns.saturating_add(TRIM_NS));
        if let Some(segment) = freed {
            self.send(&FromHolder::Retired { segment });
        }
    }
}
