//! Leaving the session to its files: when every process of a detached session has closed, the rest of their logs goes to disk and the
//! holder ends. The server serves the files, and makes another holder when a process is started in the session.
//!
//! ```text
//!            all closed, detached              on disk               roll and clock written        no server, or it said `Leave`
//!  Waiting ───────── after a while ──▶ Spilling ──────▶ Writing ───────────────────────▶ Told ──────────────▶ the holder ends
//!     ▲                                   │                │                             │
//!     └───────── attached, a start, a server that does not know archives ────────────────┘
//! ```
//!
//! Owns the steps and their order; segments and files are written by [`spill`](crate::spill). Every step before the last can be given
//! up: what is on disk then is a spilled log like any other.
//!
//! Failure paths: a full disk or quota keeps the holder, which tries again later. A kill before the last segment is written loses what
//! any killed holder loses; a kill after it loses nothing, because the roll that came with the segments names every process as closed.
//! A session with descendants that outlived their process keeps its holder, because they would die with it. So does one whose processes
//! took writes with a `writeId`, because a repeated write is answered from the holder's ledger.

use exec_server_session::{State, Ttl};

use crate::Spawner;
use crate::archive::Clock;
use crate::holder::Holder;
use crate::process::{Phase, Process};
use crate::reap;
use crate::wire::{FromHolder, TTL_NONE};

/// Where the archive has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// Not long enough yet.
    #[default]
    Waiting,
    /// Segments are on their way to disk.
    Spilling,
    /// Roll and clock are on their way to disk.
    Writing,
    /// All is on disk. The server, if there is one, was told; it is told again at this time.
    Told { again_at: u64 },
}

#[derive(Default)]
pub(crate) struct Archiving {
    /// The last server serves sessions without holders.
    is_allowed: bool,
    step: Step,
    /// When the next step may be taken, for those that wait for the clock.
    due_at: Option<u64>,
}

impl Archiving {
    /// A server of its own age has taken over; it says itself whether it allows archives.
    pub(crate) fn handle_new_controller(&mut self) {
        self.is_allowed = false;
    }

    pub(crate) fn allow(&mut self) {
        self.is_allowed = true;
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        match self.step {
            Step::Waiting => self.due_at,
            Step::Told { again_at } => Some(again_at),
            Step::Spilling | Step::Writing => None,
        }
    }
}

impl<S: Spawner> Holder<S> {
    /// Takes the steps that are possible in this turn. True: everything is on disk and nobody needs this holder.
    pub(crate) fn archive(&mut self) -> bool {
        if !self.may_archive() {
            self.give_up_archive();
            return false;
        }
        let now_ns = self.cx.now_ns;
        match self.archiving.step {
            Step::Waiting => {
                let after_ns = self.archive_after_ns();
                let due_at = *self.archiving.due_at.get_or_insert(now_ns.saturating_add(after_ns));
                if now_ns >= due_at && self.has_room_on_disk() {
                    self.archiving.step = Step::Spilling;
                    self.spill_for_archive();
                } else if now_ns >= due_at {
                    self.archiving.due_at = Some(now_ns.saturating_add(after_ns.max(RETRY_NS)));
                }
                false
            }
            Step::Spilling => {
                self.spill_for_archive();
                false
            }
            Step::Writing => false,
            // Connections that wait at the door come first: the next server may be among them.
            Step::Told { .. } if !self.cx.controller.is_connected() => !self.door.has_candidates(),
            Step::Told { again_at } => {
                if now_ns >= again_at {
                    self.tell_archived();
                }
                false
            }
        }
    }

    /// The server has agreed: nothing that it sent before is left to do but what is under way to disk.
    pub(crate) fn handle_leave(&mut self) {
        self.is_leaving = matches!(self.archiving.step, Step::Told { .. }) && self.may_archive();
        if !self.is_leaving {
            self.cx.send(&FromHolder::Staying);
        }
    }

    /// Roll and clock are written, or could not be.
    pub(crate) fn handle_archive_written(&mut self, is_written: bool) {
        if self.archiving.step != Step::Writing {
            return;
        }
        if is_written {
            self.tell_archived();
        } else {
            self.give_up_archive();
        }
    }

    fn tell_archived(&mut self) {
        let again_at = self.cx.now_ns.saturating_add(self.archive_after_ns().max(RETRY_NS));
        self.archiving.step = Step::Told { again_at };
        self.cx.send(&FromHolder::Archived);
    }

    /// Whether nothing but its files is left of the session, for now.
    fn may_archive(&self) -> bool {
        self.archiving.is_allowed
            && self.limits.archive_after_ms != TTL_NONE
            && self.ending.is_none()
            && self.may_work()
            && matches!(self.lease.state(), State::Detached { .. })
            && !self.processes.is_empty()
            && self.processes.values().all(|process| process.phase == Phase::Closed && !process.input.has_ledger())
            && !(self.cx.is_exclusive && reap::has_children())
    }

    fn archive_after_ns(&self) -> u64 {
        self.limits.archive_after_ms.saturating_mul(1_000_000)
    }

    /// Whether the quota of each process has room for what it has in memory, and no other holder has this session.
    fn has_room_on_disk(&self) -> bool {
        let is_within = |process: &Process| {
            let (on_disk, in_memory) = (process.writer.disk_segments(), process.writer.memory_segments());
            in_memory == 0 || !self.cx.spill.is_quota_full(on_disk + in_memory - 1)
        };
        self.processes.values().all(is_within) && self.door.is_secret_in(self.dir())
    }

    /// Sends the next segment to disk, and the roll and the clock behind the last.
    fn spill_for_archive(&mut self) {
        if !self.cx.spill.is_idle() {
            return;
        }
        let in_memory = self.processes.values().find_map(|process| {
            let segment = process.writer.oldest_sealed_in_memory()?;
            Some((process.slot, segment))
        });
        if let Some((slot, segment)) = in_memory {
            return self.cx.spill.begin(slot, segment, self.cx.now_ns);
        }
        let detached_ns = match self.lease.state() {
            State::Detached { since_ns } => Some(since_ns),
            State::Attached { .. } | State::Expired => None,
        };
        let ttl_ms = match self.lease.ttl() {
            Ttl::Nanos(ns) => ns / 1_000_000,
            Ttl::None => TTL_NONE,
        };
        let roll = self.roll();
        self.cx.spill.begin_archive(roll, Clock { ttl_ms, detached_ns });
        self.archiving.step = Step::Writing;
    }

    fn give_up_archive(&mut self) {
        if matches!(self.archiving.step, Step::Writing | Step::Told { .. }) {
            self.cx.spill.end_archive();
        }
        self.archiving = Archiving { is_allowed: self.archiving.is_allowed, ..Archiving::default() };
    }
}

/// The shortest time between two tries, and between two messages about an archive that the server has not answered.
const RETRY_NS: u64 = 1_000_000_000;
