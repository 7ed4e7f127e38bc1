//! Recovery of the files of a dead holder. After any truncation or bit flip, the result is a contiguous prefix of the
//! log, and the loss is counted.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::{self, File},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, symlink},
    },
    path::PathBuf,
};

use exec_server_log::{
    BlockReason, ControlBlock, Cursor, Exit, LoadedSegment, LogEvent, LogStatus, LogWriter, OutputStream, RECORD_MAX,
    ReadStep, RecoverError, RecoveredLog, ReleasedSegment, SEGMENT_BYTES, SegmentChain, SegmentInfo, SegmentPool,
    disk_name, load, recover, survey,
};
use proptest::prelude::*;
use tempfile::TempDir;

const SLOT: u32 = 3;

/// A closed log of several segments that are all on disk, as a dead holder leaves it.
struct DiskLog {
    dir: TempDir,
    segments: Vec<SegmentInfo>,
    next_seq: u64,
    written: u64,
    status: LogStatus,
}

impl DiskLog {
    fn write(records: u64, len: usize) -> Self {
        let control = ControlBlock::create().unwrap();
        control.reset_slot(SLOT);
        let mut pool = SegmentPool::new();
        let mut writer = LogWriter::new(SLOT);
        for seq in 1..=records {
            let room = writer.room(&mut pool).unwrap();
            let len = len.min(room.buf.len());
            room.buf[..len].fill(seq as u8);
            writer.commit(&control, OutputStream::Stdout, len);
        }
        writer.append_exited(&control, &mut pool, Exit::default()).unwrap();
        writer.append_closed(&control, &mut pool).unwrap();
        let dir = TempDir::new().unwrap();
        let mut bytes = Vec::new();
        while let Some(segment) = writer.oldest_sealed_in_memory() {
            segment.encode_for_disk(&mut bytes);
            let id = segment.id();
            fs::write(dir.path().join(disk_name(SLOT, id)), &bytes).unwrap();
            writer.set_on_disk(id).unwrap();
        }
        Self {
            dir,
            segments: writer.segments().collect(),
            next_seq: writer.next_seq(),
            written: writer.written(),
            status: control.status(SLOT),
        }
    }

    fn path(&self, index: usize) -> PathBuf {
        let id = self.segments[index].id;
        self.dir.path().join(disk_name(SLOT, id))
    }

    fn recover(&self) -> RecoveredLog {
        let dir = File::open(self.dir.path()).unwrap();
        recover(dir.as_fd(), SLOT).unwrap()
    }

    fn survey(&self) -> RecoveredLog {
        let dir = File::open(self.dir.path()).unwrap();
        survey(dir.as_fd(), SLOT).unwrap()
    }

    /// Reads the recovered segments through a chain. Returns the sequence number and offset after the last event.
    fn read(&self, recovered: &RecoveredLog) -> (u64, u64) {
        let dir = File::open(self.dir.path()).unwrap();
        let mut chain = SegmentChain::new();
        for info in &recovered.segments {
            chain.push_disk(*info);
        }
        let start = recovered.segments.first().map_or(1, |info| info.base_seq);
        let mut cursor = Cursor::after(start - 1);
        loop {
            match chain.read(&mut cursor) {
                ReadStep::Record(record) => {
                    if let LogEvent::Output { bytes, .. } = record.event {
                        let stamp = record.seq as u8;
                        assert!(bytes.iter().all(|byte| *byte == stamp));
                    }
                }
                ReadStep::NeedsLoad(id) => {
                    assert!(chain.set_loaded(id, load(dir.as_fd(), SLOT, id).unwrap()));
                }
                ReadStep::End => return (cursor.next_seq(), cursor.offset().unwrap_or(0)),
                other => panic!("a prefix has no {other:?}"),
            }
        }
    }

    /// Checks that the recovered part is a prefix, and that prefix and loss add up to the whole log.
    fn check(&self, recovered: &RecoveredLog) {
        assert_eq!(self.read(recovered), (recovered.next_seq.max(1), recovered.end_offset));
        assert_eq!(recovered.next_seq + recovered.torn_records, self.next_seq, "{recovered:?}");
        assert_eq!(recovered.end_offset + recovered.torn_bytes, self.written);
    }
}

#[test]
fn a_whole_log_is_recovered_whole() {
    let disk = DiskLog::write(50, RECORD_MAX);
    assert!(disk.segments.len() > 2);
    let recovered = disk.recover();
    assert_eq!(recovered.segments, disk.segments);
    assert_eq!((recovered.torn_records, recovered.torn_bytes), (0, 0));
    assert_eq!(recovered.lost_files, 0);
    disk.check(&recovered);
    assert_eq!(disk.survey(), recovered);
    assert!(recovered.is_whole(&disk.status));
}

/// Everything that `restore` must refuse, one at a time.
#[test]
fn a_log_is_whole_only_if_it_is_closed_and_nothing_is_missing() {
    let disk = DiskLog::write(50, RECORD_MAX);
    let whole = disk.recover();
    let open = LogStatus { closed_seq: None, ..disk.status };
    let longer = LogStatus { next_seq: disk.next_seq + 1, ..disk.status };
    let larger = LogStatus { written: disk.written + 1, ..disk.status };
    for status in [open, longer, larger] {
        assert!(!whole.is_whole(&status), "{status:?}");
    }
    assert!(!RecoveredLog { lost_files: 1, ..whole.clone() }.is_whole(&disk.status));
    assert!(!RecoveredLog { torn_records: 1, ..whole.clone() }.is_whole(&disk.status));
    let nothing = RecoveredLog::default();
    assert!(!nothing.is_whole(&disk.status), "its events are missing");
    let taken = LogStatus { first_seq: disk.next_seq, ..disk.status };
    assert!(nothing.is_whole(&taken), "all its events were taken");
    assert!(!RecoveredLog { end_offset: 1, ..whole }.is_whole(&taken));
}

#[test]
fn a_restored_log_continues_with_the_same_segments_and_counters() {
    let disk = DiskLog::write(50, RECORD_MAX);
    let recovered = disk.recover();
    let control = ControlBlock::create().unwrap();
    let mut writer = LogWriter::restore(&control, SLOT, &disk.status, &recovered).unwrap();
    assert_eq!(control.status(SLOT), disk.status);
    assert_eq!(writer.segments().collect::<Vec<_>>(), disk.segments);
    assert_eq!((writer.next_seq(), writer.written()), (disk.next_seq, disk.written));
    assert_eq!((writer.memory_segments(), writer.disk_segments()), (0, disk.segments.len()));
    assert!(!writer.has_room() && writer.oldest_sealed_in_memory().is_none());
    assert_eq!(writer.oldest_sealed_seq(), Some(disk.segments[1].base_seq - 1));
    let dropped = writer.drop_oldest(&control).unwrap();
    assert_eq!((dropped.id, dropped.bytes), (disk.segments[0].id, disk.segments[1].base_offset));
    for (at, segment) in disk.segments.iter().enumerate().skip(1) {
        assert!(matches!(writer.release(&control, segment.id), ReleasedSegment::Disk));
        let next =
            disk.segments.get(at + 1).map_or((disk.next_seq, disk.written), |next| (next.base_seq, next.base_offset));
        let status = control.status(SLOT);
        assert_eq!((status.released_seq + 1, status.released_offset), next);
        assert_eq!((status.first_seq, status.dropped), (next.0, dropped.bytes));
    }
}

#[test]
fn a_restored_log_keeps_what_was_released_and_dropped_before() {
    let disk = DiskLog::write(50, RECORD_MAX);
    let before = &disk.segments[1];
    fs::remove_file(disk.path(0)).unwrap();
    let status = LogStatus {
        first_seq: before.base_seq,
        released_seq: before.base_seq - 1,
        released_offset: before.base_offset,
        dropped: 17,
        blocked: BlockReason::Quota,
        ..disk.status
    };
    let control = ControlBlock::create().unwrap();
    let recovered = disk.recover();
    assert!(LogWriter::restore(&control, SLOT, &LogStatus { closed_seq: None, ..status }, &recovered).is_none());
    LogWriter::restore(&control, SLOT, &status, &recovered).unwrap();
    // A new holder reads again, so nothing is blocked.
    assert_eq!(control.status(SLOT), LogStatus { blocked: BlockReason::No, ..status });
}

#[test]
fn a_survey_reads_records_only_of_truncated_files() {
    let disk = DiskLog::write(50, RECORD_MAX);
    let whole = disk.recover();
    let mut bytes = fs::read(disk.path(0)).unwrap();
    bytes[1000] ^= 1;
    fs::write(disk.path(0), &bytes).unwrap();
    assert_eq!(disk.survey(), whole);
    assert_ne!(disk.recover(), whole);
    bytes.pop();
    fs::write(disk.path(0), &bytes).unwrap();
    assert_eq!(disk.survey(), disk.recover());
    bytes.truncate(63);
    fs::write(disk.path(0), &bytes).unwrap();
    assert_eq!((disk.survey(), disk.survey().lost_files), (disk.recover(), 1));
}

#[test]
fn the_loss_of_a_torn_file_is_counted() {
    let disk = DiskLog::write(10, 1000);
    let mut bytes = fs::read(disk.path(0)).unwrap();
    // The header, three records, and a part of the fourth.
    bytes.truncate(64 + 3 * 1024 + 500);
    fs::write(disk.path(0), &bytes).unwrap();
    let dir = File::open(disk.dir.path()).unwrap();
    let loaded = load(dir.as_fd(), SLOT, disk.segments[0].id).unwrap();
    assert_eq!((loaded.slot(), loaded.info()), (SLOT, disk.segments[0]));
    assert_eq!((loaded.next_seq(), loaded.end_offset()), (4, 3000));
    // Seven outputs, the exit and the close.
    assert_eq!((loaded.torn_records(), loaded.torn_bytes()), (9, 7000));
    bytes = fs::read(disk.path(0)).unwrap();
    fs::write(disk.dir.path().join(disk_name(SLOT + 1, disk.segments[0].id)), &bytes).unwrap();
    assert!(matches!(load(dir.as_fd(), SLOT + 1, disk.segments[0].id), Err(RecoverError::Header)));
    assert_eq!(survey(dir.as_fd(), SLOT + 1).unwrap(), RecoveredLog { lost_files: 1, ..RecoveredLog::default() });
}

#[test]
fn bytes_after_the_commit_are_no_part_of_the_log() {
    let disk = DiskLog::write(10, 1000);
    let whole = disk.recover();
    let mut bytes = fs::read(disk.path(0)).unwrap();
    bytes.extend_from_slice(&[1; 100]);
    fs::write(disk.path(0), &bytes).unwrap();
    assert_eq!((disk.recover(), disk.survey()), (whole.clone(), whole));
}

#[test]
fn a_missing_segment_ends_the_prefix_and_the_rest_is_counted() {
    let disk = DiskLog::write(50, RECORD_MAX);
    fs::remove_file(disk.path(1)).unwrap();
    let recovered = disk.recover();
    assert_eq!(recovered.segments, disk.segments[..1]);
    disk.check(&recovered);
}

#[test]
fn a_damaged_header_loses_its_file_and_ends_the_prefix() {
    let disk = DiskLog::write(50, RECORD_MAX);
    let file = File::options().write(true).open(disk.path(1)).unwrap();
    file.write_all_at(&[0xff], 30).unwrap();
    let recovered = disk.recover();
    assert_eq!(recovered.segments, disk.segments[..1]);
    assert_eq!(recovered.lost_files, 1);
    disk.check(&recovered);
}

#[test]
fn other_files_of_the_directory_are_left_alone() {
    let disk = DiskLog::write(3, 10);
    let base = disk.dir.path();
    let id = disk.segments[0].id;
    for name in ["sock", "4-1.seg", "3-+1.seg", "3-01.seg", "3-.seg", "03-1.seg"] {
        fs::write(base.join(name), b"not ours").unwrap();
    }
    let recovered = disk.recover();
    assert_eq!((recovered.segments.len(), recovered.lost_files), (1, 0));
    symlink(base.join(disk_name(SLOT, id)), base.join("3-99.seg")).unwrap();
    fs::copy(disk.path(0), base.join("3-98.seg")).unwrap();
    let recovered = disk.recover();
    assert_eq!(
        (recovered.segments.len(), recovered.lost_files),
        (1, 2),
        "a link and a copy under another id are no segments"
    );
}

#[test]
fn an_empty_directory_recovers_to_nothing() {
    let dir = TempDir::new().unwrap();
    let fd = File::open(dir.path()).unwrap();
    assert_eq!(recover(fd.as_fd(), SLOT).unwrap(), RecoveredLog::default());
}

#[test]
fn what_is_no_segment_file_is_a_typed_error() {
    let disk = DiskLog::write(3, 10);
    let bytes = fs::read(disk.path(0)).unwrap();
    let read = |bytes: &[u8]| {
        let path = disk.dir.path().join("probe");
        fs::write(&path, bytes).unwrap();
        LoadedSegment::read(&File::open(&path).unwrap())
    };
    assert!(matches!(read(&[]), Err(RecoverError::Short { found: 0 })));
    assert!(matches!(read(&bytes[..63]), Err(RecoverError::Short { found: 63 })));
    assert!(matches!(read(&[0; 100]), Err(RecoverError::Magic)));
    let mut layout = bytes.clone();
    layout[8] = 9;
    assert!(matches!(read(&layout), Err(RecoverError::Layout { found: 9, .. })));
    let mut header = bytes.clone();
    header[40] ^= 1;
    assert!(matches!(read(&header), Err(RecoverError::Header)));
    assert!(matches!(read(&vec![0; SEGMENT_BYTES + 1]), Err(RecoverError::Size { .. })));
    let dir = File::open(disk.dir.path()).unwrap();
    assert!(matches!(LoadedSegment::read(&dir), Err(RecoverError::Size { .. })));
    assert!(read(&bytes).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_truncated_file_yields_a_contiguous_prefix(index in 0..3_usize, permille in 0..1000_u64) {
        let disk = DiskLog::write(400, 6000);
        prop_assert!(disk.segments.len() >= 3);
        let file = File::options().write(true).open(disk.path(index)).unwrap();
        let len = file.metadata().unwrap().len();
        // Truncate after the header only. Another test covers a damaged header.
        file.set_len(64 + (len - 64) * permille / 1000).unwrap();
        let recovered = disk.recover();
        prop_assert!(recovered.torn_records > 0);
        prop_assert_eq!(recovered.lost_files, 0);
        prop_assert_eq!(&disk.survey(), &recovered);
        disk.check(&recovered);
    }

    #[test]
    fn a_flipped_bit_yields_a_contiguous_prefix(index in 0..3_usize, permille in 0..1000_u64, bit in 0..8_u32) {
        let disk = DiskLog::write(400, 6000);
        let path = disk.path(index);
        let mut bytes = fs::read(&path).unwrap();
        let at = 64 + usize::try_from((bytes.len() as u64 - 64) * permille / 1000).unwrap();
        bytes[at] ^= 1 << bit;
        fs::write(&path, &bytes).unwrap();
        let recovered = disk.recover();
        // 6000 is a multiple of 8, so records have no padding and every bit matters.
        prop_assert!(recovered.torn_records > 0);
        disk.check(&recovered);
    }
}
