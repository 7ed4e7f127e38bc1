//! Finds the disk segments that a dead holder left behind, orders them and determines how much of them is intact.

use std::{fs::File, io, os::fd::BorrowedFd, sync::Arc};

use rustix::fs::{Dir, Mode, OFlags, openat};

use super::{
    control::LogStatus,
    layout::SegmentHeader,
    loaded::{LoadedSegment, RecoverError},
    segment::SegmentInfo,
};

/// The part of a log that can be read after its holder died.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredLog {
    /// The consecutive segments without a hole between them, in order. Load each one with [`load`] only when it is
    /// read: together they may be larger than memory.
    pub segments: Vec<SegmentInfo>,
    /// Sequence number after the last readable event.
    pub next_seq: u64,
    /// Output bytes before `next_seq`.
    pub end_offset: u64,
    /// Events from `next_seq` up to the last one that the header of a file counts. They are damaged, missing or after a
    /// hole.
    pub torn_records: u64,
    /// Output bytes of these events.
    pub torn_bytes: u64,
    /// Files of this log that are completely unusable. How much they contained is unknown.
    pub lost_files: u64,
}

/// Name of a segment's file in the session's directory.
pub fn disk_name(slot: u32, id: u64) -> String {
    format!("{slot}-{id}.seg")
}

/// Reads one segment file of the directory.
pub fn load(dir: BorrowedFd<'_>, slot: u32, id: u64) -> Result<Arc<LoadedSegment>, RecoverError> {
    let loaded = LoadedSegment::read(&open(dir, slot, id)?)?;
    if loaded.info().id != id || loaded.slot() != slot {
        return Err(RecoverError::Header);
    }
    Ok(loaded)
}

/// Checks every record of the disk segments of `slot`. Finds the longest run of intact events that starts at the oldest
/// one.
pub fn recover(dir: BorrowedFd<'_>, slot: u32) -> io::Result<RecoveredLog> {
    collect(dir, slot, |id| load(dir, slot, id).map(|loaded| SegmentExtent::of(&loaded)))
}

/// Like `recover`, but uses only headers and file sizes, for logs that are too large to read in advance. Checks
/// records only in files that are truncated. Damage inside another file is noticed only when that file is loaded: the
/// reader then gets a gap.
pub fn survey(dir: BorrowedFd<'_>, slot: u32) -> io::Result<RecoveredLog> {
    collect(dir, slot, |id| {
        let (header, len) = LoadedSegment::read_header(&open(dir, slot, id)?)?;
        if header.id != id || header.slot != slot {
            return Err(RecoverError::Header);
        }
        if len < u64::from(header.commit) {
            return load(dir, slot, id).map(|loaded| SegmentExtent::of(&loaded));
        }
        Ok(SegmentExtent::new(&header, header.records.into(), header.output.into()))
    })
}

fn open(dir: BorrowedFd<'_>, slot: u32, id: u64) -> io::Result<File> {
    // Do not follow symlinks or block on a FIFO. The directory is ours, but its contents are checked anyway.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(File::from(openat(dir, disk_name(slot, id), flags, Mode::empty())?))
}

fn collect(
    dir: BorrowedFd<'_>,
    slot: u32,
    measure: impl Fn(u64) -> Result<SegmentExtent, RecoverError>,
) -> io::Result<RecoveredLog> {
    let mut recovered = RecoveredLog::default();
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let Some(id) = id_of(entry?.file_name().to_bytes(), slot) else {
            continue;
        };
        // Load one segment at a time and keep only its extent.
        match measure(id) {
            Ok(extent) => found.push(extent),
            Err(_) => recovered.lost_files += 1,
        }
    }
    found.sort_by_key(|extent| extent.info.base_seq);
    recovered.join(&found);
    Ok(recovered)
}

/// The extent of a segment: `next_seq` and `end_offset` cover the intact events, `written_*` all that were written.
struct SegmentExtent {
    info: SegmentInfo,
    next_seq: u64,
    end_offset: u64,
    written_seq: u64,
    written_offset: u64,
}

impl SegmentExtent {
    /// The extent of a segment of which `records` with `output` bytes are intact.
    fn new(header: &SegmentHeader, records: u64, output: u64) -> Self {
        let after = |records: u64| header.base_seq.saturating_add(records);
        let offset_after = |output: u64| header.base_offset.saturating_add(output);
        Self {
            info: header.info(),
            next_seq: after(records),
            end_offset: offset_after(output),
            written_seq: after(records.max(header.records.into())),
            written_offset: offset_after(output.max(header.output.into())),
        }
    }

    fn of(loaded: &LoadedSegment) -> Self {
        let (records, output) = loaded.totals();
        Self::new(loaded.header(), records, output)
    }
}

impl RecoveredLog {
    /// Whether everything that a closed log with this status retains can be read, up to its last event. Events missing
    /// at the beginning were taken or dropped earlier, and were counted then.
    pub fn is_whole(&self, status: &LogStatus) -> bool {
        let ends_there = self.next_seq == status.next_seq && self.end_offset == status.written;
        let is_empty = self.segments.is_empty() && status.first_seq == status.next_seq;
        status.closed_seq.is_some() && self.lost_files == 0 && self.torn_records == 0 && (ends_there || is_empty)
    }

    fn join(&mut self, found: &[SegmentExtent]) {
        let Some(first) = found.first() else {
            return;
        };
        self.next_seq = first.info.base_seq;
        self.end_offset = first.info.base_offset;
        for extent in found {
            // Events are missing before this segment.
            if extent.info.base_seq != self.next_seq || extent.info.base_offset != self.end_offset {
                break;
            }
            // This segment has no intact record.
            if extent.next_seq == extent.info.base_seq {
                break;
            }
            self.segments.push(extent.info);
            self.next_seq = extent.next_seq;
            self.end_offset = extent.end_offset;
        }
        let highest = |of: fn(&SegmentExtent) -> u64| found.iter().map(of).max().unwrap_or(0);
        self.torn_records = highest(|extent| extent.written_seq).saturating_sub(self.next_seq);
        self.torn_bytes = highest(|extent| extent.written_offset).saturating_sub(self.end_offset);
    }
}

fn id_of(name: &[u8], slot: u32) -> Option<u64> {
    let name = std::str::from_utf8(name).ok()?;
    let (file_slot, id) = name.strip_suffix(".seg")?.split_once('-')?;
    let id = id.parse().ok()?;
    // Compare the whole name: `+1` and `01` also parse, but are not names that `disk_name` makes.
    (file_slot.parse() == Ok(slot) && disk_name(slot, id) == name).then_some(id)
}
