//! Audit records of a session's processes: each start before it happens, and each end once, no matter how it is
//! noticed.

use tokio::sync::MutexGuard;

use super::{ProcessLaunch, Session, short_id};
use crate::{
    audit::{Audit, AuditRecord},
    error::Failure,
    holder_link::ProcessSlots,
    process::Process,
    pump,
};

impl Session {
    fn audit(&self) -> Audit {
        self.core.upgrade().map(|core| core.config.audit.clone()).unwrap_or_default()
    }

    /// An audit record about this session.
    pub(crate) fn audit_record(&self, event: &'static str) -> AuditRecord {
        let principal = Some(self.principal.to_string());
        let session = Some(short_id(&self.id).to_owned());
        AuditRecord { principal, session, ..AuditRecord::of(event) }
    }

    /// An audit record about a process of this session.
    fn process_audit_record(&self, event: &'static str, process: &str) -> AuditRecord {
        AuditRecord { process: Some(process.to_owned()), ..self.audit_record(event) }
    }

    /// Records a start before it happens. In strict mode it waits until the record is on disk; the returned guard keeps
    /// starts in the order of their records until it is dropped.
    pub(super) async fn record_start(&self, launch: &ProcessLaunch) -> Result<Option<MutexGuard<'_, ()>>, Failure> {
        let audit = self.audit();
        let meta = &launch.meta;
        let record = AuditRecord {
            peer: Some(launch.peer.to_string()),
            method: Some(meta.dialect.start_method()),
            cwd: Some(meta.cwd.clone()),
            tty: Some(meta.tty),
            sandbox: Some(if launch.confinement.is_some() { "linuxSeccomp" } else { "none" }),
            ..self.process_audit_record("process.start", &meta.process_id).argv(&meta.argv)
        };
        // `AuditRecord::argv` knows only what it truncates itself. If `meta.argv` was truncated before, `meta` has the
        // original size.
        let record = AuditRecord { argv_bytes: meta.argv_bytes.or(record.argv_bytes), ..record };
        if !audit.is_strict() {
            audit.record(record);
            return Ok(None);
        }
        let turn = self.recording.lock().await;
        if audit.commit(record).await { Ok(Some(turn)) } else { Err(Failure::AuditUnavailable) }
    }

    /// Records that the process runs.
    pub(super) fn record_running(&self, process: &Process) {
        self.audit()
            .record(AuditRecord { pid: Some(process.pid), ..self.process_audit_record("process.run", process.id()) });
    }

    /// Records that the start failed.
    pub(crate) fn record_failed(&self, process: &str, failure: &Failure) {
        let reason = Some(failure.kind().as_str().to_owned());
        self.audit().record(AuditRecord { reason, ..self.process_audit_record("process.fail", process) });
    }

    /// Records the end of a process, once. `fallback_cause` is the cause if neither an exit status nor the loss of the
    /// holder is known. If none of the three is known, the process counts as running and gets no record.
    pub(crate) fn record_end(&self, process: &Process, fallback_cause: Option<&'static str>) {
        let Some(end) = process.log().take_end(fallback_cause) else { return };
        // The name of the cause on the wire.
        let cause = end.exit.map(|exit| pump::wire_cause(exit.cause)).map(|cause| {
            let word = serde_json::to_value(cause).ok();
            word.and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
        });
        self.audit().record(AuditRecord {
            pid: Some(process.pid),
            exit_code: end.exit.map(|exit| exit.code),
            signal: end
                .exit
                .and_then(|exit| exit.signal)
                .map(|signal| exec_server_protocol::signal::name(signal).into_owned()),
            cause: cause.or_else(|| end.cause.map(str::to_owned)),
            ..self.process_audit_record("process.exit", process.id())
        });
    }

    /// Marks ends that the audit log already contains, so that this server does not record them again.
    pub(super) fn mark_recorded_ends(&self, audit: &Audit, processes: &ProcessSlots) {
        for process in processes.values() {
            if audit.has_exit(short_id(&self.id), process.id(), process.pid) {
                process.log().is_end_recorded = true;
            }
        }
    }
}
