//! The path of a start from its reserved name to the holder.
//!
//! ```text
//!  name reserved ──▶ waits for a permit ──▶ admitted ──▶ sandbox, audit, holder ──▶ the holder's answer
//!                    └── the connection's ──┘            └──────── the core's ────────┘
//! ```
//! A queued start belongs to its connection and is cancelled with it: nothing starts for a peer that has disconnected
//! or lost its permission. Once admitted, the start belongs to the core and survives a disconnect. Failure path: if the
//! start fails before the holder has it, its process id becomes free, and the requests that wait for this start continue.

use std::{future::poll_fn, sync::Arc, task::Poll};

use exec_server_holder::control::SANDBOXES;

use super::{ProcessLaunch, Session, StartGate};
use crate::{descriptors::ReservedFd, environment, error::Failure, holder_link::ReplyWaiter, pump::Reply, sandbox};

impl Session {
    /// Hands a reserved start to the holder. The answer is sent when the process runs or has failed to start.
    pub(crate) async fn start(self: &Arc<Self>, launch: ProcessLaunch, gate: StartGate, reply: Reply) {
        let mut name = ReservedName { session: self, id: &launch.meta.process_id, gate: &gate, is_kept: false };
        let reply = reply.take_start_permit().await;
        let reserved = match self.admit(&launch, &gate) {
            Ok(reserved) => reserved,
            Err(failure) => {
                drop(name);
                return reply.fail(&failure);
            }
        };
        name.is_kept = true;
        drop(name);
        let session = self.clone();
        let mut task = Box::pin(async move { session.hand_over(launch, gate, reserved, reply).await });
        // Poll once here, so that starts keep their order. If the task is not done, the core takes it over: a
        // connection that ends while the holder is being created must not cancel the creation or leak the reserved id.
        if poll_fn(|cx| Poll::Ready(task.as_mut().poll(cx))).await.is_pending()
            && let Some(core) = self.core.upgrade()
        {
            core.spawn(task);
        }
    }

    /// Admits a start that has a start permit: checks the limits, and reserves an fd for the pidfd of the leader. The
    /// limits are checked this late so that queued starts do not count against them.
    fn admit(&self, launch: &ProcessLaunch, gate: &StartGate) -> Result<ReservedFd, Failure> {
        let Some(core) = self.core.upgrade().filter(|core| !core.is_draining()) else { return Err(Failure::Draining) };
        let most = core.config.processes_max;
        let state = self.state.lock();
        if state.is_running_limit_reached(most) {
            return Err(Failure::TooMany { what: "running processes in this session", most });
        }
        let reserved =
            ReservedFd::new().map_err(|source| Failure::Resources { program: launch.meta.program(), source })?;
        gate.begin();
        Ok(reserved)
    }

    async fn hand_over(
        self: &Arc<Self>,
        mut launch: ProcessLaunch,
        gate: StartGate,
        reserved: ReservedFd,
        reply: Reply,
    ) {
        let prepared = async {
            let confined = sandbox::confine(self.core.upgrade(), &mut launch).await?;
            // With a strict audit log, held until the end of this function, so that starts reach the holder in the order
            // of their audit records.
            let record_order = self.record_start(&launch).await?;
            let link = self.link().await?;
            if confined.is_some() && !link.supports(SANDBOXES) {
                let what = "the holder of this session is from an earlier release and supports no sandboxes; open a new session".to_owned();
                return Err(Failure::NotEnforceable { what });
            }
            Ok((link, record_order, confined))
        };
        let (link, _record_order, confined) = match prepared.await {
            Ok(prepared) => prepared,
            Err(failure) => {
                self.record_failed(&launch.meta.process_id, &failure);
                self.handle_start_failed(&launch.meta.process_id, &gate);
                return reply.fail(&failure);
            }
        };
        let ProcessLaunch { meta, spec, .. } = launch;
        let search_path = environment::search_path(&meta.program(), &spec.env);
        let waiter = ReplyWaiter::Start {
            meta,
            gate,
            reply: Some(reply),
            confined: confined.clone(),
            reserved,
            session: Arc::downgrade(self),
            sweeps: 0,
            search_path,
        };
        link.start(waiter, spec, confined);
    }

    /// Handles a failed start: frees the name.
    pub(crate) fn handle_start_failed(&self, id: &str, gate: &StartGate) {
        let mut state = self.state.lock();
        if state.is_starting(id, gate) {
            state.processes.remove(id);
        }
        gate.close();
    }
}

/// A reserved name whose start is not admitted yet. Dropping it frees the name.
struct ReservedName<'a> {
    session: &'a Session,
    id: &'a str,
    gate: &'a StartGate,
    is_kept: bool,
}

impl Drop for ReservedName<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.session.handle_start_failed(self.id, self.gate);
        }
    }
}
