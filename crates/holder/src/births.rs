//! Starts: what was asked for, until it is a process or a failure.
//!
//! Owns the starts that have come one behind the other and are made together: while one child is on its way to exec, the next
//! is made. It does not know commands other than these; whoever obeys another one has the births before it done first.
//!
//! Failure paths: a start that fails is answered with the stage and the error, in its place among the others, and costs them
//! nothing.

use exec_server_log::SLOTS;
use exec_server_process::{Child, Spawn, SpawnError};
use exec_server_sandbox::Kit;

use crate::Spawner;
use crate::cgroup::Group;
use crate::context::Context;
use crate::holder::Holder;
use crate::process::{self, Process, StartFailure};
use crate::wire::{FromHolder, StartSpec};

/// Starts that are made together. While they are, nothing else is done: eight take two or three milliseconds, unless a program lies
/// on a disk that does not answer.
const TOGETHER_MAX: usize = 8;

/// Descriptors that a start takes: three pipes with both ends, the pidfd, two groups, a segment.
const START_FDS: u64 = 10;

/// A start that was asked for.
pub(crate) struct Wanted {
    pub(crate) req: u32,
    pub(crate) spec: StartSpec,
    pub(crate) sandbox: Option<Kit>,
}

/// A start that only its child is missing for.
struct Expected {
    spec: StartSpec,
    group: Option<Group>,
    is_confined: bool,
}

impl<S: Spawner> Holder<S> {
    /// Makes a process soon: with those that are asked for next, and before anything else is done.
    pub(crate) fn want(&mut self, wanted: Wanted) {
        // Where descriptors are scarce one must not be refused for those that others would take for a moment.
        if !self.wanted.is_empty() && !has_free_fds(&self.cx, self.wanted.len()) {
            self.give_birth();
        }
        self.wanted.push(wanted);
        if self.wanted.len() >= TOGETHER_MAX {
            self.give_birth();
        }
    }

    /// Makes the processes that are wanted, and answers.
    pub(crate) fn give_birth(&mut self) {
        if self.wanted.is_empty() {
            return;
        }
        let mut spawns = Vec::with_capacity(self.wanted.len());
        let mut all = Vec::with_capacity(self.wanted.len());
        for Wanted { req, spec, sandbox } in std::mem::take(&mut self.wanted) {
            let prepared = self.prepare(&spec, sandbox, spawns.len()).map(|(spawn, group)| {
                let is_confined = spawn.sandbox.is_some();
                spawns.push(spawn);
                Expected { spec, group, is_confined }
            });
            all.push((req, prepared));
        }
        let mut children = self.spawner.spawn_all(spawns).into_iter();
        for (req, prepared) in all {
            let process = prepared.and_then(|expected| {
                let child = children.next().expect("an answer for each that was prepared");
                self.take_in(expected, child)
            });
            match process {
                Ok(process) => {
                    let started = FromHolder::Started { req, slot: process.slot, pid: process.pid };
                    self.cx.send_with(&started, process.pidfd());
                    self.processes.insert(process.slot, process);
                }
                Err(StartFailure { stage, errno, detail }) => {
                    self.cx.send(&FromHolder::StartFailed { req, stage, errno, detail });
                }
            }
        }
    }

    /// All that comes before the child, with so many others prepared already.
    fn prepare(
        &mut self,
        spec: &StartSpec,
        sandbox: Option<Kit>,
        others: usize,
    ) -> Result<(Spawn, Option<Group>), StartFailure> {
        if self.processes.len() + others >= SLOTS as usize {
            return Err(StartFailure::exhausted("slots"));
        }
        if !has_free_fds(&self.cx, 0) {
            return Err(StartFailure::exhausted("descriptors"));
        }
        let mut spawn = process::describe(spec, self.nofile, &self.confine, self.cx.is_exclusive)?;
        spawn.sandbox = sandbox;
        spawn.ignored = self.ignored;
        let failure = |error| StartFailure::io("control group", &error);
        let group = self.cx.groups.take().map_err(failure)?;
        match group.as_ref().map_or(Ok(()), |group| group.let_in(&mut spawn)) {
            Ok(()) => Ok((spawn, group)),
            Err(error) => {
                self.cx.left_groups.extend(group);
                Err(failure(error))
            }
        }
    }

    fn take_in(&mut self, expected: Expected, child: Result<Child, SpawnError>) -> Result<Process, StartFailure> {
        let Expected { spec, group, is_confined } = expected;
        match child {
            Ok(child) => {
                // The lowest: the control block costs a page per 32 slots in use.
                let slot = (0..SLOTS).find(|slot| !self.processes.contains_key(slot));
                let slot = slot.expect("one was free for each that was prepared");
                Process::new(slot, child, (group, is_confined), spec, &mut self.cx)
                    .map_err(|error| StartFailure::io("epoll", &error))
            }
            Err(error) => {
                self.cx.left_groups.extend(group);
                Err(error.into())
            }
        }
    }
}

/// Whether enough descriptors are left for a start, beside so many others.
fn has_free_fds(cx: &Context, others: usize) -> bool {
    let taken = START_FDS.saturating_mul(others as u64);
    cx.free_fds().is_some_and(|fds| fds.free >= fds.kept.saturating_add(taken))
}
