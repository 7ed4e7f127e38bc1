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
    ControlBlock, Cursor, Exit, LoadedSegment, LogEvent, LogWriter, OutputStream, RECORD_MAX, ReadStep, RecoverError,
    RecoveredLog, SEGMENT_BYTES, SegmentChain, SegmentInfo, SegmentPool, disk_name, load, recover,
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
        Self { dir, segments: writer.segments().collect(), next_seq: writer.next_seq(), written: writer.written() }
    }

    fn path(&self, index: usize) -> PathBuf {
        let id = self.segments[index].id;
        self.dir.path().join(disk_name(SLOT, id))
    }

    fn recover(&self) -> RecoveredLog {
        let dir = File::open(self.dir.path()).unwrap();
        recover(dir.as_fd(), SLOT).unwrap()
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
