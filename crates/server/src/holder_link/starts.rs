//! Replies to starts, and the withdrawal of starts that the holder does not answer in time.
//!
//! ```text
//!  asked ──6 sweeps without a reply──▶ withdrawn ──holder: not started──▶ name free
//!                                          └──holder: started──▶ killed, name free
//! ```
//! If the start message is still queued, it is dropped and the name is free at once. Otherwise the name stays reserved
//! until the holder replies: a retry with the same id must not run beside the first start.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use exec_server_holder::control::{self, StartStage, ToHolder};

use super::{HolderLink, ReplyWaiter};
use crate::{
    error::Failure,
    process::{CountedOutput, Process, ProcessInit, ProcessMeta},
    pump::Reply,
    session::{Session, StartGate},
};

/// Number of sweeps, one per second, after which a pending start fails: after 5 to 6 s.
const START_SWEEPS: u32 = 6;

/// The same limit as a time. Used in the error text.
const START_WITHIN: Duration = Duration::from_secs(5);

/// A process that the holder has started.
pub(super) struct StartedProcess {
    pub(super) slot: u32,
    pub(super) pid: u32,
    /// pidfd of the process.
    pub(super) leader: Option<OwnedFd>,
}

/// Why the holder could not start a process.
pub(super) struct StartError<'a> {
    pub(super) stage: StartStage,
    pub(super) errno: i32,
    pub(super) detail: &'a [u8],
}

impl HolderLink {
    /// Handles the answer to a start. Returns the process, unless the request is unknown.
    pub(super) fn handle_started(
        self: &Arc<Self>,
        session: &Session,
        req: u32,
        started: StartedProcess,
    ) -> Option<Arc<Process>> {
        let control = self.control().ok()?;
        let (meta, gate, reserved, reply) = match self.take_waiter(req) {
            Some(ReplyWaiter::Start { meta, gate, reply, reserved, .. }) => (meta, gate, reserved, Some(reply)),
            Some(ReplyWaiter::Withdrawn { meta, gate, reserved, .. }) => (meta, gate, reserved, None),
            Some(ReplyWaiter::Stdin(_) | ReplyWaiter::Forget { .. } | ReplyWaiter::Done(_)) | None => return None,
        };
        drop(reserved); // The fd of the leader has taken its place.
        let init = ProcessInit {
            session: self.session.clone(),
            meta,
            pid: started.pid,
            slot: started.slot,
            leader: started.leader,
            counted: CountedOutput::default(),
        };
        let process = Arc::new(Process::new(init, self.clone(), control));
        self.metrics.started.inc();
        if let Some(reply) = reply {
            session.handle_started(&process, &gate);
            // Answer first: the outgoing queue keeps the order, so the client gets the answer before the output.
            reply.started(&process);
            session.follow_new(&process);
        } else {
            session.handle_started_late(&process, &gate);
        }
        Some(process)
    }

    pub(super) fn handle_start_failed(&self, session: &Session, req: u32, error: StartError<'_>) {
        match self.take_waiter(req) {
            Some(ReplyWaiter::Withdrawn { meta, gate, .. }) => session.handle_start_failed(&meta.process_id, &gate),
            Some(ReplyWaiter::Start { meta, gate, reply, confined, search_path, .. }) => {
                session.handle_start_failed(&meta.process_id, &gate);
                let failure = Failure::start(&meta, search_path, error.stage, error.errno, error.detail);
                let failure = match confined {
                    Some(confined) => confined.explain(failure),
                    None => failure,
                };
                session.record_failed(&meta.process_id, &failure);
                reply.fail(&failure);
            }
            Some(ReplyWaiter::Stdin(_) | ReplyWaiter::Forget { .. } | ReplyWaiter::Done(_)) | None => {}
        }
    }

    /// Fails and withdraws the starts that the holder has not answered in time. Called once a second.
    pub(crate) fn withdraw_overdue(&self, session: &Session) {
        let overdue: Vec<u32> = {
            let mut waiters = self.waiters.lock();
            waiters.starts.values_mut().for_each(|sweeps| *sweeps += 1);
            waiters.starts.iter().filter(|(_, sweeps)| **sweeps >= START_SWEEPS).map(|(req, _)| *req).collect()
        };
        for req in overdue {
            // `None` if the holder has answered in between.
            let Some((meta, gate, reply)) = self.withdraw(req) else { continue };
            let failure = Failure::HolderSilent {
                program: meta.program(),
                session: self.session.to_string(),
                waited: START_WITHIN,
            };
            session.record_failed(&meta.process_id, &failure);
            if self.dequeue_start(req) {
                self.take_waiter(req);
                session.handle_start_failed(&meta.process_id, &gate);
            } else if self.supports(control::WITHDRAWALS) {
                self.send(&ToHolder::Withdraw { req });
            }
            reply.fail(&failure);
        }
    }

    /// Replaces a pending start by a withdrawn one. The holder may still start the process, so the name becomes free when the
    /// holder reports a failure or the process was killed.
    fn withdraw(&self, req: u32) -> Option<(ProcessMeta, StartGate, Reply)> {
        // One lock for both steps: the link's task handles the holder's answer on another thread, and must find one of the two.
        let mut waiters = self.waiters.lock();
        waiters.starts.remove(&req);
        match waiters.waiting.remove(&req)? {
            ReplyWaiter::Start { meta, gate, reply, reserved, session, .. } => {
                gate.withdraw();
                let withdrawn = ReplyWaiter::Withdrawn { meta: meta.clone(), gate: gate.clone(), reserved, session };
                waiters.waiting.insert(req, withdrawn);
                Some((meta, gate, reply))
            }
            other => {
                waiters.waiting.insert(req, other);
                None
            }
        }
    }

    /// Drops a queued start message. Returns false if it was already sent.
    fn dequeue_start(&self, req: u32) -> bool {
        let mut unsent = self.unsent.lock();
        let before = unsent.len();
        unsent.retain(|message| message.start != Some(req));
        unsent.len() < before
    }
}
