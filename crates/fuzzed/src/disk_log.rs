//! Fuzz target: recovery of a log from damaged files on disk.
//!
//! Recovery must return a prefix of the written records, byte for byte. As long as all headers are intact, the prefix and the counted loss
//! together must be the whole log. A file with arbitrary content must be either a typed error or a valid prefix.

use std::{
    fs::{self, File},
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    path::{Path, PathBuf},
};

use exec_server_log::{
    Cursor, LoadedSegment, LogEvent, ReadStep, RecoveredLog, SegmentChain, SegmentInfo, disk_name, load, recover,
    survey,
};
use tempfile::TempDir;

use crate::{
    log_maker::{self, MadeLog, SLOT, stamp},
    weight,
};

/// If the first byte is even, the rest is the content of a file. If it is odd, the rest consists of record lengths and then damages of four
/// bytes each.
pub fn check(data: &[u8]) {
    match data {
        [choice, rest @ ..] if choice % 2 == 0 => any_file(rest),
        [_, count, rest @ ..] => damaged(usize::from(*count), rest),
        _ => {}
    }
}

fn any_file(bytes: &[u8]) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(disk_name(SLOT, 1));
    fs::write(&path, bytes).unwrap();
    let loaded = weight::within(2 * bytes.len() + 4096, || LoadedSegment::read(&File::open(&path).unwrap()));
    let recovered = recovered(dir.path());
    let Ok(loaded) = loaded else {
        assert_eq!((recovered.segments.len(), recovered.lost_files), (0, 1));
        return;
    };
    assert!(loaded.next_seq() >= loaded.info().base_seq);
    if (loaded.info().id, loaded.slot()) == (1, SLOT) && !recovered.segments.is_empty() {
        assert_eq!(recovered.next_seq, loaded.next_seq());
        assert_eq!(recovered.end_offset, loaded.end_offset());
    }
}

fn damaged(count: usize, rest: &[u8]) {
    let (lengths, damages) = rest.split_at(rest.len().min(2 * count));
    let lengths = lengths.as_chunks::<2>().0.iter().map(|pair| usize::from(u16::from_le_bytes(*pair)));
    let mut made = log_maker::make(lengths);
    let dir = TempDir::new().unwrap();
    let segments = spill(&mut made, dir.path());
    let mut is_header_hurt = false;
    for damage in damages.as_chunks::<4>().0 {
        is_header_hurt |= hurt(&path(dir.path(), &segments, damage[0]), *damage);
    }
    let recovered = recovered(dir.path());
    // `survey` reads only the headers. It may count damaged records at the end as valid, but it must never find less than `recover`.
    let surveyed = survey(File::open(dir.path()).unwrap().as_fd(), SLOT).unwrap();
    assert!(surveyed.segments.starts_with(&recovered.segments) && surveyed.next_seq >= recovered.next_seq);
    assert_eq!(surveyed.lost_files, recovered.lost_files);
    // If nothing was recovered, skip the comparison.
    if !recovered.segments.is_empty() {
        assert_eq!(read(dir.path(), &recovered, &made), (recovered.next_seq, recovered.end_offset));
    }
    if !is_header_hurt {
        assert_eq!(recovered.lost_files, 0);
        assert_eq!(recovered.next_seq + recovered.torn_records, made.writer.next_seq());
        assert_eq!(recovered.end_offset + recovered.torn_bytes, made.writer.written());
    }
}

fn recovered(dir: &Path) -> RecoveredLog {
    recover(File::open(dir).unwrap().as_fd(), SLOT).unwrap()
}

fn path(dir: &Path, segments: &[SegmentInfo], choice: u8) -> PathBuf {
    dir.join(disk_name(SLOT, segments[usize::from(choice) % segments.len()].id))
}

/// Writes every segment to disk, as the holder's thread does.
fn spill(made: &mut MadeLog, dir: &Path) -> Vec<SegmentInfo> {
    let mut bytes = Vec::new();
    while let Some(segment) = made.writer.oldest_sealed_in_memory() {
        segment.encode_for_disk(&mut bytes);
        let id = segment.id();
        fs::write(dir.join(disk_name(SLOT, id)), &bytes).unwrap();
        made.writer.set_on_disk(id).unwrap();
    }
    made.writer.segments().collect()
}

/// Applies one damage to a file. Returns whether it may have touched the header, or removed the file.
fn hurt(path: &Path, [_, kind, low, high]: [u8; 4]) -> bool {
    let Ok(file) = File::options().read(true).write(true).open(path) else { return false };
    let len = file.metadata().unwrap().len();
    let at = (u64::from(low) | u64::from(high) << 8) * len / 65536;
    match kind % 4 {
        0 => file.set_len(at).unwrap(),
        1 => {
            let mut byte = [0];
            file.read_at(&mut byte, at).unwrap();
            file.write_at(&[byte[0] ^ 1 << (kind / 4 % 8)], at).unwrap();
        }
        // A part of the file that never reached the disk.
        2 => drop(file.write_at(&[0; 512][..usize::try_from((len - at).min(512)).unwrap()], at).unwrap()),
        _ => {
            fs::remove_file(path).unwrap();
            return true;
        }
    }
    at < 64
}

/// Reads the recovered segments through a chain and compares them with the written records.
fn read(dir: &Path, recovered: &RecoveredLog, made: &MadeLog) -> (u64, u64) {
    let dir = File::open(dir).unwrap();
    let mut chain = SegmentChain::new();
    recovered.segments.iter().for_each(|info| chain.push_disk(*info));
    let first = recovered.segments.first().map_or(1, |info| info.base_seq);
    let mut cursor = Cursor::after(first - 1);
    let mut expected = first;
    loop {
        match chain.read(&mut cursor) {
            ReadStep::Record(record) => {
                assert_eq!(record.seq, expected);
                expected += 1;
                let len = usize::try_from(record.seq - 1).ok().and_then(|at| made.lengths.get(at));
                match (record.event, len) {
                    (LogEvent::Output { bytes, .. }, Some(len)) => {
                        assert_eq!(bytes.len(), *len);
                        assert!(bytes.iter().all(|byte| *byte == stamp(record.seq)));
                    }
                    (LogEvent::Exited(_), None) => assert_eq!(record.seq, made.lengths.len() as u64 + 1),
                    (LogEvent::Closed { .. }, None) => assert_eq!(record.seq, made.lengths.len() as u64 + 2),
                    (event, len) => panic!("{event:?} where {len:?} bytes were written"),
                }
            }
            ReadStep::NeedsLoad(id) => assert!(chain.set_loaded(id, load(dir.as_fd(), SLOT, id).unwrap())),
            ReadStep::End => return (cursor.next_seq(), cursor.offset().unwrap_or(0)),
            other => panic!("a prefix has no {other:?}"),
        }
    }
}
