//! The pool of free segments: what it keeps, what it gives back, and that memory is really freed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use exec_server_log::{
    ControlBlock, LogWriter, OutputStream, RECORD_MAX, ROOM_MIN, ReleasedSegment, SEGMENT_BYTES, Segment, SegmentPool,
    memfd_of,
};

const SLOT: u32 = 7;

/// The segments of a log with records of `len` bytes. Every segment but the last is full if `len` is large.
fn segments(pool: &mut SegmentPool, count: usize, len: usize) -> Vec<Segment> {
    let control = ControlBlock::create().unwrap();
    control.reset_slot(SLOT);
    let mut writer = LogWriter::new(SLOT);
    while writer.memory_segments() <= count {
        let room = writer.room(pool).unwrap();
        let len = len.min(room.buf.len());
        writer.commit(&control, OutputStream::Stdout, len);
    }
    writer.into_segments().take(count).map(|(_, memory)| memory.unwrap()).collect()
}

/// Segments that each have one small record.
fn small_segments(pool: &mut SegmentPool, count: usize) -> Vec<Segment> {
    let control = ControlBlock::create().unwrap();
    let mut one = || {
        let mut writer = LogWriter::new(SLOT);
        writer.room(pool).unwrap();
        writer.commit(&control, OutputStream::Stdout, 1);
        writer.into_segments().next().unwrap().1.unwrap()
    };
    (0..count).map(|_| one()).collect()
}

/// How many of the segments the pool keeps.
fn kept(pool: &mut SegmentPool, segments: Vec<Segment>, in_use: usize) -> usize {
    let mut kept = 0;
    for segment in segments {
        let id = segment.id();
        match pool.recycle(segment, in_use) {
            None => kept += 1,
            Some(freed) => assert_eq!(freed, id),
        }
    }
    kept
}

#[test]
fn the_pool_keeps_half_of_the_memory_in_use_within_its_bounds() {
    for (in_use, expected) in [(0, 4), (8, 4), (10, 5), (20, 10), (32, 16), (1000, 16)] {
        let mut pool = SegmentPool::new();
        let full = segments(&mut SegmentPool::new(), 20, RECORD_MAX);
        assert_eq!(kept(&mut pool, full, in_use), expected, "{in_use} in use");
        assert_eq!(pool.trim_idle().len(), expected);
    }
}

#[test]
fn the_pool_keeps_at_most_32_small_segments() {
    let mut pool = SegmentPool::new();
    let small = small_segments(&mut SegmentPool::new(), 40);
    assert_eq!(kept(&mut pool, small, 0), 32);
}

#[test]
fn memory_that_was_full_once_counts_as_full() {
    let mut pool = SegmentPool::new();
    let full = segments(&mut pool, 4, RECORD_MAX);
    assert_eq!(kept(&mut pool, full, 0), 4);
    // Reused for one record each, the memory still has all its pages.
    let mut reused = small_segments(&mut pool, 4);
    reused.extend(small_segments(&mut SegmentPool::new(), 20));
    // A full segment leaves free what the exit and close events need, in which one small segment fits.
    assert_eq!(kept(&mut pool, reused, 0), 8);
}

#[test]
fn a_free_segment_is_reused_under_a_new_id() {
    let mut pool = SegmentPool::new();
    assert!(!pool.has_spare());
    let first = small_segments(&mut pool, 1).remove(0);
    let id = first.id();
    assert_eq!(pool.recycle(first, 0), None);
    assert!(pool.has_spare());
    let second = small_segments(&mut pool, 1).remove(0);
    assert!(!pool.has_spare());
    assert_eq!((memfd_of(second.id()), second.id()), (memfd_of(id), id + 1));
    let other = small_segments(&mut pool, 1).remove(0);
    assert_ne!(memfd_of(other.id()), memfd_of(id));
    pool.recycle(second, 0);
    assert_eq!(pool.trim_idle(), [id + 1]);
    assert!(!pool.has_spare() && pool.trim_idle().is_empty());
}

#[test]
fn a_segment_knows_its_place_in_the_log() {
    let mut pool = SegmentPool::new();
    let all = segments(&mut pool, 3, RECORD_MAX);
    let mut next_seq = 1;
    let mut offset = 0;
    for segment in &all {
        let info = segment.info();
        assert_eq!((segment.slot(), info.base_seq, info.base_offset), (SLOT, next_seq, offset));
        assert!(segment.is_sealed() && segment.last_seq() > next_seq);
        assert!(segment.output_bytes() > (SEGMENT_BYTES - 2 * ROOM_MIN) as u64);
        next_seq = segment.last_seq() + 1;
        offset += segment.output_bytes();
        assert!(std::os::fd::AsFd::as_fd(&segment.shared_fd()).try_clone_to_owned().is_ok());
    }
}

#[test]
fn only_a_sealed_segment_is_released_dropped_or_moved_to_disk() {
    let control = ControlBlock::create().unwrap();
    control.reset_slot(SLOT);
    let mut pool = SegmentPool::new();
    let mut writer = LogWriter::new(SLOT);
    assert!(!writer.has_room());
    writer.room(&mut pool).unwrap();
    writer.commit(&control, OutputStream::Stdout, 10);
    assert!(writer.has_room());
    let id = writer.take_fresh().unwrap().id;
    assert!(writer.take_fresh().is_none());
    assert!(writer.oldest_sealed_in_memory().is_none() && writer.oldest_sealed_seq().is_none());
    assert!(writer.set_on_disk(id).is_none());
    assert!(writer.drop_oldest(&control).is_none());
    assert!(matches!(writer.release(&control, id), ReleasedSegment::Unknown));
    writer.append_closed(&control, &mut pool).unwrap();
    assert!(!writer.has_room());
    assert!(writer.set_on_disk(id + 1).is_none());
    assert!(matches!(writer.release(&control, id + 1), ReleasedSegment::Unknown));
    assert_eq!(writer.set_on_disk(id).map(|memory| memory.id()), Some(id));
    assert!(writer.set_on_disk(id).is_none(), "it is on disk already");
    assert!(matches!(writer.release(&control, id), ReleasedSegment::Disk));
    assert_eq!(writer.segments().count(), 0);
}

#[test]
fn a_backed_room_has_its_pages() {
    let mut pool = SegmentPool::new();
    let mut writer = LogWriter::new(SLOT);
    let mut room = writer.room(&mut pool).unwrap();
    assert_eq!(room.backed(usize::MAX).unwrap().len(), RECORD_MAX);
    assert_eq!(room.backed(40_000).unwrap().len(), 40_000);
    let id = writer.take_fresh().unwrap().id;
    let stat = rustix::fs::fstat(writer.segment(id).unwrap().shared_fd()).unwrap();
    assert!(stat.st_blocks * 512 >= RECORD_MAX as i64, "{} blocks", stat.st_blocks);
}
