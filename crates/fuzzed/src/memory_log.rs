//! Fuzz target: corrupt segments in memory. A reader must always move forward, never read outside the segment, and reach an end.

use std::os::fd::OwnedFd;

use exec_server_log::{
    Cursor, LogEvent, MappedSegment, RECORD_MAX, ReadStep, SEGMENT_BYTES, SegmentChain, SegmentInfo,
};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::log_maker;

/// Input: cursor (8 bytes), `base_seq` and `base_offset` of a second segment (8 bytes each), then writes of 6 bytes: position (2), value
/// (4).
pub fn check(data: &[u8]) {
    let Some((fields, writes)) = data.split_first_chunk::<24>() else { return };
    let number = |at: usize| u64::from_le_bytes(fields[at..at + 8].try_into().unwrap());
    let mut made = log_maker::make([10, 100, 1000, 8, 5000, 64, 1].into_iter());
    let info = made.writer.take_fresh().unwrap();
    let mut bytes = Vec::new();
    made.writer.segment(info.id).unwrap().encode_for_disk(&mut bytes);
    for write in writes.as_chunks::<6>().0 {
        let [low, high, value @ ..] = *write;
        // The first 16 bytes are checked when the segment is mapped, so leave them intact.
        let at = 16 + usize::from(u16::from_le_bytes([low, high])) % (bytes.len() - 20);
        bytes[at..at + 4].copy_from_slice(&value);
    }
    let mapping = MappedSegment::map(memfd(&bytes)).unwrap();
    let mut chain = SegmentChain::new();
    chain.push_memory(info, mapping.clone());
    chain.push_memory(SegmentInfo { id: info.id + 1, base_seq: number(8), base_offset: number(16), ..info }, mapping);
    walk(&chain, number(0));
    walk(&chain, 0);
    chain.retained_bytes(u64::MAX);
    chain.take_up_to(number(0), 0);
    walk(&chain, 0);
    chain.remove(info.id);
    walk(&chain, number(8));
}

/// Reads to the end, starting after the sequence number `after`.
fn walk(chain: &SegmentChain, after: u64) {
    let mut cursor = Cursor::after(after);
    let mut steps = 0;
    loop {
        let before = cursor;
        let peeked = chain.peek_len(&cursor);
        match chain.read(&mut cursor) {
            ReadStep::Record(record) => {
                assert_eq!(record.seq, before.next_seq());
                let len = if let LogEvent::Output { bytes, .. } = record.event { bytes.len() } else { 0 };
                assert!(len <= RECORD_MAX && peeked == Some(len));
            }
            ReadStep::Gap { from_seq, to_seq, .. } => {
                assert_eq!(from_seq, before.next_seq());
                assert!(to_seq >= from_seq);
            }
            ReadStep::End | ReadStep::Damaged(_) => {
                assert_eq!(cursor.next_seq(), before.next_seq());
                return;
            }
            ReadStep::NeedsLoad(id) => panic!("segment {id} is not on disk"),
        }
        assert!(cursor.next_seq() > before.next_seq() || before.next_seq() == u64::MAX);
        steps += 1;
        // Two segments of 1 MiB have at most 2 x 43,688 records, and a gap before each of the two.
        assert!(steps < 100_000);
    }
}

fn memfd(bytes: &[u8]) -> OwnedFd {
    let fd = rustix::fs::memfd_create("fuzzed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, SEGMENT_BYTES as u64).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, bytes, 0).unwrap(), bytes.len());
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fd
}
