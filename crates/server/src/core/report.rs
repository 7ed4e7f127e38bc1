//! Metrics and readiness: inspects sessions and processes when the metrics page is requested.
//!
//! Output bytes are counted from what holders publish in shared memory anyway, so the path of an output byte costs
//! nothing extra.

use std::sync::{Arc, atomic::Ordering};

use exec_server_log::BlockReason;

use super::Core;
use crate::{
    admission::{AdmissionCounts, AdmissionReporter},
    metrics::{Metrics, MetricsSnapshot},
    session::Session,
};

impl AdmissionReporter for Core {
    fn refused(&self, status: u16) {
        self.metrics.refused(status);
    }

    fn is_ready(&self) -> bool {
        !self.state_lost.load(Ordering::Relaxed)
    }

    fn page(&self, admission: AdmissionCounts) -> String {
        let mut snapshot = MetricsSnapshot {
            draining: self.is_draining(),
            audit_lost: self.config.audit.lost(),
            admission: [
                ("refused", admission.refused),
                ("stalled", admission.stalled),
                ("evicted", admission.evicted),
                ("slowed", admission.slowed),
            ],
            connections: self.peers.by_id.lock().len() as u64,
            ..MetricsSnapshot::default()
        };
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        for session in sessions {
            if session.attached().is_some() {
                snapshot.sessions_attached += 1;
            } else {
                snapshot.sessions_detached += 1;
            }
            for process in session.processes() {
                process.count_output();
                if process.log().has_ended() {
                    snapshot.processes_ended += 1;
                    continue;
                }
                snapshot.processes_running += 1;
                match process.status().blocked {
                    BlockReason::No => {}
                    BlockReason::MemoryCap => snapshot.blocked_memory += 1,
                    BlockReason::Quota => snapshot.blocked_quota += 1,
                    BlockReason::DiskFull => snapshot.blocked_disk += 1,
                }
            }
        }
        self.metrics.render(&snapshot)
    }
}

impl Core {
    /// The server's counters.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}
