//! A process without a holder: its last known status, and the synthetic end if the holder did not write one.
//!
//! A holder that archived a session ([`Process::archive`]) wrote all logs with their ends. A holder that died may not
//! have.

use std::sync::Arc;

use exec_server_holder::manifest::ManifestEntry;
use exec_server_log::{LogStatus, RecoveredLog};
use exec_server_session::LogPosition;

use super::{HolderSide, Process, ProcessInit, log::StatusSource};
use crate::holder_link::HolderLink;

impl Process {
    /// Creates a process from the files of a holder that died or that archived its session. Readers get what is on
    /// disk, then a gap for what is known to be missing, if any. If the holder did not record the end, a synthetic end
    /// is added, with the cause `lost` unless the exit status is known. The gap does not count output that was appended
    /// after the holder last wrote the manifest and that never reached the disk.
    pub(crate) fn from_dead_holder(
        init: ProcessInit,
        link: Arc<HolderLink>,
        known: LogStatus,
        recovered: &RecoveredLog,
    ) -> Self {
        let next_on_disk = recovered.next_seq.saturating_add(recovered.torn_records);
        let written_on_disk = recovered.end_offset.saturating_add(recovered.torn_bytes);
        let first_seq = recovered.segments.first().map_or(known.next_seq, |info| info.base_seq);
        let status = LogStatus {
            next_seq: known.next_seq.max(next_on_disk).max(1), // Numbers begin at 1.
            written: known.written.max(written_on_disk),
            first_seq,
            ..known
        };
        let taken = LogPosition { seq: known.released_seq, offset: known.released_offset };
        let status_source = StatusSource::LastKnown { status, end_offset: recovered.end_offset };
        let process = Self::with_status_source(init, link, status_source, taken);
        let mut log = process.log();
        recovered.segments.iter().for_each(|info| log.chain.push_disk(*info));
        // Makes the chain report a gap after the last segment. It covers the events and bytes that were in memory, as
        // far as they are known. The call removes no segment.
        log.chain.forget_below(status.next_seq, status.written);
        log.set_lost_end();
        drop(log);
        process
    }

    /// Handles a holder that archived the session: gives up everything that was shared with it.
    pub(crate) fn archive(&self, link: Arc<HolderLink>) {
        self.log().detach_source();
        *self.holder.lock() = HolderSide { link, leader: None };
        self.fail_stdin();
        self.log().wake();
    }

    /// Connects a process of an archived session to the session's new holder, which has read the manifest and maintains
    /// the log files from now on. `reported` is the same process as the holder read it. If a segment was taken after
    /// the server wrote that manifest, `reported` still lists the segment: ask the new holder to release it.
    pub(crate) fn rejoin(&self, link: Arc<HolderLink>, reported: &Self) {
        let ours: Vec<u64> = self.log().chain.segments().map(|segment| segment.id).collect();
        let theirs: Vec<u64> = reported.log().chain.segments().map(|segment| segment.id).collect();
        for taken in theirs.into_iter().filter(|id| !ours.contains(id)) {
            link.release(self.slot, taken);
        }
        self.holder.lock().link = link;
    }

    /// The process's entry in the manifest, and the names of its segment files.
    pub(crate) fn manifest_entry(&self) -> (ManifestEntry, Vec<String>) {
        let meta = serde_json::to_vec(&self.meta).expect("a record of strings and numbers serializes");
        let log = self.log();
        let files = log.chain.segments().map(|segment| exec_server_log::disk_name(self.slot, segment.id)).collect();
        (ManifestEntry { slot: self.slot, pid: self.pid, status: log.status(), meta }, files)
    }
}
