//! The disk segments that a dead holder left behind: names, order and what of them holds together. Serves no reader.

use std::{fs::File, io, os::fd::BorrowedFd, sync::Arc};

use rustix::fs::{Dir, Mode, OFlags, openat};

use crate::{
    control::Status,
    layout::SegmentHeader,
    loaded::{Loaded, RecoverError},
    segment::{Place, SegmentInfo},
};

/// What is left of a log whose holder died.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The segments that follow on each other without a hole, in order. Load each with [`load`] when it is read: together they
    /// may be larger than memory.
    pub segments: Vec<SegmentInfo>,
    /// Number after the last event that can be read.
    pub next_seq: u64,
    /// Output bytes up to there.
    pub end_offset: u64,
    /// Events known to have been on disk beyond that.
    pub torn_records: u64,
    /// Output bytes known to have been on disk beyond that.
    pub torn_bytes: u64,
    /// Files of this log of which nothing can be used: not even how much they had.
    pub lost_files: u64,
}

/// Name of the file of a segment in the session's directory.
pub fn disk_name(slot: u32, id: u64) -> String {
    format!("{slot}-{id}.seg")
}

/// Reads one segment file of the directory.
pub fn load(dir: BorrowedFd<'_>, slot: u32, id: u64) -> Result<Arc<Loaded>, RecoverError> {
    let loaded = Loaded::read(&open(dir, slot, id)?)?;
    if loaded.info().id != id || loaded.slot() != slot {
        return Err(RecoverError::Header);
    }
    Ok(loaded)
}

/// Checks every record of the disk segments of `slot` and gives the longest run of whole events from the oldest one on.
pub fn recover(dir: BorrowedFd<'_>, slot: u32) -> io::Result<Recovered> {
    collect(dir, slot, |id| load(dir, slot, id).map(|loaded| Extent::of(&loaded)))
}

/// The same by headers and sizes, for logs that are too large to be read before they are asked for: records are checked only where a
/// file is cut short. One that is damaged inside is noticed when it is loaded, and read as a gap.
pub fn survey(dir: BorrowedFd<'_>, slot: u32) -> io::Result<Recovered> {
    collect(dir, slot, |id| {
        let (header, len) = Loaded::read_header(&open(dir, slot, id)?)?;
        if header.id != id || header.slot != slot {
            return Err(RecoverError::Header);
        }
        if len < u64::from(header.commit) {
            return load(dir, slot, id).map(|loaded| Extent::of(&loaded));
        }
        Ok(Extent::by_header(&header))
    })
}

fn open(dir: BorrowedFd<'_>, slot: u32, id: u64) -> io::Result<File> {
    // No link is followed and no fifo waited for: the directory is ours, its contents are checked all the same.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(File::from(openat(dir, disk_name(slot, id), flags, Mode::empty())?))
}

fn collect(
    dir: BorrowedFd<'_>,
    slot: u32,
    measure: impl Fn(u64) -> Result<Extent, RecoverError>,
) -> io::Result<Recovered> {
    let mut recovered = Recovered::default();
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let Some(id) = id_of(entry?.file_name().to_bytes(), slot) else {
            continue;
        };
        // One at a time: only the measures are kept.
        match measure(id) {
            Ok(extent) => found.push(extent),
            Err(_) => recovered.lost_files += 1,
        }
    }
    found.sort_by_key(|extent| extent.info.base_seq);
    recovered.join(&found);
    Ok(recovered)
}

/// How far a segment reaches: in whole events, and as it was written.
struct Extent {
    info: SegmentInfo,
    next_seq: u64,
    end_offset: u64,
    written_seq: u64,
    written_offset: u64,
}

impl Extent {
    fn of(loaded: &Loaded) -> Self {
        Self {
            info: loaded.info(),
            next_seq: loaded.next_seq(),
            end_offset: loaded.end_offset(),
            written_seq: loaded.next_seq().saturating_add(loaded.torn_records()),
            written_offset: loaded.end_offset().saturating_add(loaded.torn_bytes()),
        }
    }
}

impl Extent {
    fn by_header(header: &SegmentHeader) -> Self {
        let next_seq = header.base_seq.saturating_add(u64::from(header.records));
        let end_offset = header.base_offset.saturating_add(u64::from(header.output));
        Self {
            info: SegmentInfo {
                id: header.id,
                base_seq: header.base_seq,
                base_offset: header.base_offset,
                place: Place::Disk,
                sealed: true,
            },
            next_seq,
            end_offset,
            written_seq: next_seq,
            written_offset: end_offset,
        }
    }
}

impl Recovered {
    /// Whether everything that a closed log with this status retains can be read: no event is missing at its end. What is missing at
    /// its beginning was taken or dropped, and counted then.
    pub fn is_whole(&self, status: &Status) -> bool {
        let ends_there = self.next_seq == status.next_seq && self.end_offset == status.written;
        let is_empty = self.segments.is_empty() && status.first_seq == status.next_seq;
        status.closed_seq.is_some() && self.lost_files == 0 && self.torn_records == 0 && (ends_there || is_empty)
    }

    fn join(&mut self, found: &[Extent]) {
        let Some(first) = found.first() else {
            return;
        };
        self.next_seq = first.info.base_seq;
        self.end_offset = first.info.base_offset;
        for extent in found {
            if extent.info.base_seq != self.next_seq || extent.info.base_offset != self.end_offset {
                break;
            }
            if extent.next_seq == extent.info.base_seq {
                break;
            }
            self.segments.push(extent.info);
            self.next_seq = extent.next_seq;
            self.end_offset = extent.end_offset;
        }
        let end = |of: fn(&Extent) -> u64| found.iter().map(of).max().unwrap_or(0);
        self.torn_records = end(|extent| extent.written_seq).saturating_sub(self.next_seq);
        self.torn_bytes = end(|extent| extent.written_offset).saturating_sub(self.end_offset);
    }
}

fn id_of(name: &[u8], slot: u32) -> Option<u64> {
    let name = std::str::from_utf8(name).ok()?;
    let (file_slot, id) = name.strip_suffix(".seg")?.split_once('-')?;
    let id = id.parse().ok()?;
    // Compared as a whole: `+1` and `01` parse as well, and would name another file.
    (file_slot.parse() == Ok(slot) && disk_name(slot, id) == name).then_some(id)
}
