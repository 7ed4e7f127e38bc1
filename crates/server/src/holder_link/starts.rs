//! Replies to starts, and the withdrawal of starts that the holder does not answer in time.
//!
//! ```text
//!  asked ──6 sweeps without a reply──▶ withdrawn ──holder: not started──▶ id free
//!                                          └──holder: started──▶ killed, id free
//! ```
//! If the message of a withdrawn start is still queued here, it is dropped and the process id is free at once.
//! Otherwise the id stays reserved until the holder replies: a retry with the same id must not run beside the first
//! start.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use exec_server_holder::control::{self, StartStage, ToHolder};

use super::{HolderLink, ReplyWaiter};
use crate::{
    error::Failure,
    process::{CountedOutput, Process, ProcessInit, ProcessMeta},
    pump::Reply,
    session::{Session, StartGate},
};

/// A pending start fails in its sixth sweep, 5 to 6 s after it was sent: there is one sweep per second.
const START_SWEEPS: u32 = 6;

/// The least time in which `START_SWEEPS` sweeps happen. Used in the error text.
const START_WITHIN: Duration = Duration::from_secs(5);

impl HolderLink {
    /// Handles the answer to a start; `leader` is the pidfd of the process. Returns the process, unless the request is
    /// unknown.
    pub(super) fn handle_started(
        self: &Arc<Self>,
        session: &Session,
        req: u32,
        slot: u32,
        pid: u32,
        leader: Option<OwnedFd>,
    ) -> Option<Arc<Process>> {
        let control = self.control().ok()?; // Always there: `hello` has set it.
        let Some(ReplyWaiter::Start { meta, gate, reply, reserved, .. }) = self.take_waiter(req) else { return None };
        drop(reserved); // The fd of the leader has taken its place.
        let session_id = self.session.clone();
        let init = ProcessInit { session: session_id, meta, pid, slot, leader, counted: CountedOutput::default() };
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

    /// Handles the answer that a process could not be started.
    pub(super) fn handle_start_failed(
        &self,
        session: &Session,
        req: u32,
        stage: StartStage,
        errno: i32,
        detail: &[u8],
    ) {
        let Some(ReplyWaiter::Start { meta, gate, reply, confined, search_path, .. }) = self.take_waiter(req) else {
            return;
        };
        session.handle_start_failed(&meta.process_id, &gate);
        let Some(reply) = reply else { return };
        let failure = Failure::start(&meta, search_path, stage, errno, detail);
        let failure = match confined {
            Some(confined) => confined.explain(failure),
            None => failure,
        };
        session.record_failed(&meta.process_id, &failure);
        reply.fail(&failure);
    }

    /// Fails and withdraws the starts that the holder has not answered in time. Called once a second.
    pub(crate) fn withdraw_overdue(&self, session: &Session) {
        let mut overdue = Vec::new();
        for (req, waiter) in &mut self.waiters.lock().waiting {
            if let ReplyWaiter::Start { reply: Some(_), sweeps, .. } = waiter {
                *sweeps += 1;
                if *sweeps >= START_SWEEPS {
                    overdue.push(*req);
                }
            }
        }
        for req in overdue {
            // `None` if the holder has answered since the check above.
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

    /// Marks a pending start as withdrawn. The holder may still start the process, so the id stays reserved until the
    /// holder reports whether it did.
    fn withdraw(&self, req: u32) -> Option<(ProcessMeta, StartGate, Reply)> {
        let mut waiters = self.waiters.lock();
        let ReplyWaiter::Start { meta, gate, reply, confined, .. } = waiters.waiting.get_mut(&req)? else {
            return None;
        };
        let reply = reply.take()?;
        gate.withdraw();
        *confined = None; // A withdrawn start needs no explanation of its failure.
        Some((meta.clone(), gate.clone(), reply))
    }

    /// Drops a queued start message. Returns false if it was already sent.
    fn dequeue_start(&self, req: u32) -> bool {
        let mut unsent = self.unsent.lock();
        let before = unsent.len();
        unsent.retain(|message| message.req != Some(req));
        unsent.len() < before
    }
}
