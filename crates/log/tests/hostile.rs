//! Invalid shared memory: opening it is a typed error. If it is opened anyway, reading it does not panic, does not loop
//! forever and stays inside the mapping.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::fd::OwnedFd;

use exec_server_log::{
    BlockReason, ControlBlock, Cursor, LogStatus, LogWriter, MappedSegment, OpenError, OutputStream, RECORD_MAX,
    ReadStep, SEGMENT_BYTES, SLOTS, SegmentChain, SegmentInfo, SegmentPool,
};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

fn memfd(bytes: &[u8], len: usize, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len as u64).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, bytes, 0).unwrap(), bytes.len());
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// A segment with `records` records of `len` bytes, as bytes and as info.
fn segment(records: usize, len: usize) -> (Vec<u8>, SegmentInfo) {
    let control = ControlBlock::create().unwrap();
    control.reset_slot(0);
    let mut pool = SegmentPool::new();
    let mut writer = LogWriter::new(0);
    for _ in 0..records {
        writer.room(&mut pool).unwrap();
        writer.commit(&control, OutputStream::Stdout, len);
    }
    let info = writer.take_fresh().unwrap();
    let mut bytes = Vec::new();
    writer.segment(info.id).unwrap().encode_for_disk(&mut bytes);
    (bytes, info)
}

#[test]
fn a_descriptor_that_is_no_sealed_segment_is_a_typed_error() {
    let (bytes, _) = segment(3, 10);
    let map = |len, seals| MappedSegment::map(memfd(&bytes, len, seals));
    assert!(map(SEGMENT_BYTES, SIZE_SEALS).is_ok());
    let unsealed = [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW];
    for seals in unsealed {
        assert!(matches!(map(SEGMENT_BYTES, seals), Err(OpenError::NotSealed)));
    }
    assert!(matches!(map(SEGMENT_BYTES - 1, SIZE_SEALS), Err(OpenError::Size { .. })));
    assert!(matches!(map(2 * SEGMENT_BYTES, SIZE_SEALS), Err(OpenError::Size { .. })));
    let zero = memfd(&[], SEGMENT_BYTES, SIZE_SEALS);
    assert!(matches!(MappedSegment::map(zero), Err(OpenError::Magic { found: 0 })));
    let mut newer = bytes.clone();
    newer[8] = 2;
    assert!(matches!(
        MappedSegment::map(memfd(&newer, SEGMENT_BYTES, SIZE_SEALS)),
        Err(OpenError::Layout { found: 2, .. })
    ));
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(MappedSegment::map(file.into()), Err(OpenError::NotSealed)));
}

#[test]
fn a_descriptor_that_is_no_control_block_is_a_typed_error() {
    let control = ControlBlock::create().unwrap();
    let len = usize::try_from(rustix::fs::fstat(control.shared_fd()).unwrap().st_size).unwrap();
    let open = |len, seals| ControlBlock::open(memfd(&[], len, seals)).err();
    assert!(matches!(open(4096, SIZE_SEALS), Some(OpenError::Size { .. })));
    assert!(matches!(open(len, SealFlags::empty()), Some(OpenError::NotSealed)));
    assert!(matches!(open(len, SIZE_SEALS), Some(OpenError::Magic { found: 0 })));
    let mut header = [0_u8; 16];
    rustix::io::pread(control.shared_fd(), &mut header, 0).unwrap();
    // Bytes of the layout and of the slot count.
    for at in [8, 12, 15] {
        let mut other = header;
        other[at] ^= 4;
        let opened = ControlBlock::open(memfd(&other, len, SIZE_SEALS));
        assert!(matches!(opened.err(), Some(OpenError::Layout { .. })));
    }
}

#[test]
fn a_reader_cannot_write_to_a_segment() {
    let control = ControlBlock::create().unwrap();
    control.reset_slot(0);
    let mut pool = SegmentPool::new();
    let mut writer = LogWriter::new(0);
    writer.room(&mut pool).unwrap();
    writer.commit(&control, OutputStream::Stdout, 5);
    let info = writer.take_fresh().unwrap();
    let fd = writer.segment(info.id).unwrap().shared_fd();
    assert_eq!(rustix::io::pwrite(&fd, b"x", 64), Err(rustix::io::Errno::PERM));
    assert_eq!(ftruncate(&fd, 0), Err(rustix::io::Errno::PERM));
}

#[test]
fn a_slot_out_of_range_reads_as_never_used() {
    let control = ControlBlock::create().unwrap();
    for slot in [SLOTS, u32::MAX] {
        control.reset_slot(slot);
        control.set_blocked(slot, BlockReason::Quota);
        assert_eq!(control.status(slot), LogStatus::default());
        assert_eq!(control.next_seq(slot), 0);
        assert!(!control.arm_slot(slot, 0) && !control.notify(slot));
    }
    control.reset_slot(SLOTS - 1);
    control.set_blocked(SLOTS - 1, BlockReason::DiskFull);
    let status = control.status(SLOTS - 1);
    assert_eq!((status.next_seq, status.blocked), (1, BlockReason::DiskFull));
}

#[test]
fn a_damaged_segment_is_a_gap_to_the_next_and_damaged_at_the_end() {
    let (mut bytes, info) = segment(10, 100);
    // The sequence number of the fourth record. Each record has 24 bytes of header and 104 of payload.
    bytes[64 + 3 * 128 + 16] ^= 0x40;
    let mapping = MappedSegment::map(memfd(&bytes, SEGMENT_BYTES, SIZE_SEALS)).unwrap();
    let mut chain = SegmentChain::new();
    chain.push_memory(info, mapping.clone());
    let mut cursor = Cursor::start();
    for seq in 1..=3 {
        assert!(matches!(chain.read(&mut cursor), ReadStep::Record(record) if record.seq == seq));
    }
    assert_eq!(chain.read(&mut cursor), ReadStep::Damaged(info.id));
    assert_eq!(chain.read(&mut cursor), ReadStep::Damaged(info.id));
    assert_eq!(chain.peek_len(&cursor), None);
    chain.push_memory(SegmentInfo { id: info.id + 1, base_seq: 11, base_offset: 1000, ..info }, mapping);
    assert_eq!(chain.read(&mut cursor), ReadStep::Gap { from_seq: 4, to_seq: 10, bytes: 700 });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_segment_makes_a_reader_panic_or_loop(
        len in prop_oneof![1..200_usize, Just(RECORD_MAX)],
        writes in prop::collection::vec((0..4096_usize, any::<[u8; 4]>()), 0..6),
        commit in prop::option::of(any::<u32>()),
        base_seq in prop_oneof![Just(1_u64), any::<u64>()],
        base_offset in prop_oneof![Just(0_u64), any::<u64>()],
        after in prop_oneof![Just(0_u64), 0..20_u64, any::<u64>()],
    ) {
        let (mut bytes, info) = segment(12, len);
        for (at, value) in writes {
            // Leave the first 16 bytes intact: they are checked when the segment is mapped.
            let at = 16 + at % (bytes.len() - 20);
            bytes[at..at + 4].copy_from_slice(&value);
        }
        if let Some(commit) = commit {
            bytes[40..44].copy_from_slice(&commit.to_le_bytes());
        }
        let mapping = MappedSegment::map(memfd(&bytes, SEGMENT_BYTES, SIZE_SEALS)).unwrap();
        let mut chain = SegmentChain::new();
        chain.push_memory(info, mapping.clone());
        chain.push_memory(SegmentInfo { id: 999, base_seq, base_offset, ..info }, mapping);
        let mut cursor = Cursor::after(after);
        let mut steps = 0;
        loop {
            chain.peek_len(&cursor);
            match chain.read(&mut cursor) {
                ReadStep::Record(_) | ReadStep::Gap { .. } => steps += 1,
                ReadStep::End | ReadStep::Damaged(_) => break,
                ReadStep::NeedsLoad(_) => prop_assert!(false, "nothing is on disk"),
            }
            // Two segments of 1 MiB have at most 2 x 43,688 records, plus a gap before each segment.
            prop_assert!(steps < 100_000);
        }
        chain.retained_bytes(u64::MAX);
        chain.take_up_to(u64::MAX, 0);
        chain.remove(info.id);
        chain.read(&mut cursor);
    }
}
