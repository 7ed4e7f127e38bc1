//! A process without a holder: its last known status, and the made-up end if the holder did not write one.
//!
//! A holder that archived a session ([`Process::archive`]) wrote all logs with their ends. A holder that died may not
//! have.

use std::sync::Arc;

use exec_server_holder::manifest::ManifestEntry;
use exec_server_log::{ControlBlock, LogStatus, RecoveredLog, SegmentLocation};

use super::{LogPosition, LostEnd, Process, ProcessInit};
use crate::holder_link::HolderLink;

/// Where the status of a process comes from.
pub(super) enum StatusSource {
    /// The block shared with the holder.
    Shared(Arc<ControlBlock>),
    /// No holder: the last known status, and the offset up to which the output can be read.
    LastKnown { status: LogStatus, end_offset: u64 },
}

impl Process {
    /// Creates a process whose holder was found dead. Readers get what it spilled, then a gap for what is known to be
    /// missing, then an end with the cause `lost`. Output that the holder read after its last note of the log's
    /// position cannot be counted.
    pub(crate) fn from_dead_holder(
        init: ProcessInit,
        link: Arc<HolderLink>,
        known: LogStatus,
        recovered: &RecoveredLog,
    ) -> Self {
        let on_disk = (
            recovered.next_seq.saturating_add(recovered.torn_records),
            recovered.end_offset.saturating_add(recovered.torn_bytes),
        );
        let first_seq = recovered.segments.first().map_or(known.next_seq, |info| info.base_seq);
        let status = LogStatus {
            next_seq: known.next_seq.max(on_disk.0).max(1),
            written: known.written.max(on_disk.1),
            first_seq,
            ..known
        };
        let taken = LogPosition { seq: known.released_seq, offset: known.released_offset };
        let status_source = StatusSource::LastKnown { status, end_offset: recovered.end_offset };
        let process = Self::with_status_source(init, link, status_source, taken);
        {
            let mut chain = process.chain();
            recovered.segments.iter().for_each(|info| chain.push_disk(*info));
            // Makes the chain report a gap after the last segment. It covers the events and bytes that were in memory, as
            // far as they are known.
            chain.forget_below(status.next_seq, status.written);
        }
        process.set_lost_end(status);
        process
    }

    pub(super) fn published_status(&self) -> LogStatus {
        match &*self.status_source.read() {
            StatusSource::Shared(control) => control.status(self.slot),
            StatusSource::LastKnown { status, .. } => *status,
        }
    }

    /// Whether the process has closed and all retained parts of its log are on disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.status().closed_seq.is_some()
            && self.chain().segments().all(|segment| segment.location == SegmentLocation::Disk)
    }

    /// Handles a holder that archived the session: gives up everything that was shared with it.
    pub(crate) fn archive(&self, link: Arc<HolderLink>) {
        let status = self.published_status();
        let left = StatusSource::LastKnown { status, end_offset: status.written };
        *self.status_source.write() = left;
        *self.link.lock() = link;
        *self.leader.lock() = None;
        self.fail_stdin();
        self.wake();
    }

    /// Connects the process to a new holder, which maintains its files. Releases segments that the holder knows but
    /// that have been taken since.
    pub(crate) fn rejoin(&self, link: Arc<HolderLink>, known: &Self) {
        let ours: Vec<u64> = self.chain().segments().map(|segment| segment.id).collect();
        let theirs: Vec<u64> = known.chain().segments().map(|segment| segment.id).collect();
        for taken in theirs.into_iter().filter(|id| !ours.contains(id)) {
            link.release(self.slot, taken);
        }
        *self.link.lock() = link;
    }

    /// The process's entry in the manifest, and the names of its segment files.
    pub(crate) fn manifest_entry(&self) -> (ManifestEntry, Vec<String>) {
        let files = self.chain().segments().map(|segment| exec_server_log::disk_name(self.slot, segment.id)).collect();
        let meta = serde_json::to_vec(&self.meta).expect("a record of strings and numbers serializes");
        (ManifestEntry { slot: self.slot, pid: self.pid, status: self.status(), meta }, files)
    }

    /// Records that output was released: the log now begins at this number and offset, or is empty. Does nothing if a
    /// holder keeps the status.
    pub(super) fn note_released(&self, first: Option<(u64, u64)>) {
        if let StatusSource::LastKnown { status, .. } = &mut *self.status_source.write() {
            let (seq, offset) = first.unwrap_or((status.next_seq, status.written));
            status.first_seq = seq;
            status.released_seq = status.released_seq.max(seq.saturating_sub(1));
            status.released_offset = status.released_offset.max(offset);
        }
    }

    /// Whether it is unknown how much the process wrote.
    pub(crate) fn is_uncounted(&self) -> bool {
        matches!(*self.status_source.read(), StatusSource::LastKnown { .. }) && self.lost.get().is_some()
    }

    /// Output bytes that can still be read.
    pub(crate) fn retained_bytes(&self) -> u64 {
        let left = match &*self.status_source.read() {
            StatusSource::Shared(_) => None,
            StatusSource::LastKnown { end_offset, .. } => Some(*end_offset),
        };
        let end = left.unwrap_or_else(|| self.status().written);
        self.chain().retained_bytes(end)
    }

    /// Makes up the end events that the holder did not write.
    pub(super) fn set_lost_end(&self, status: LogStatus) {
        if status.closed_seq.is_none() {
            let exited_seq = status.exited.is_none().then_some(status.next_seq);
            let closed_seq = status.next_seq + u64::from(exited_seq.is_some());
            self.lost.set(LostEnd { exited_seq, closed_seq }).ok(); // Already set: the first end stays.
        }
    }
}
