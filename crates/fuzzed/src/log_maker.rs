//! Builds a log like a holder does, with records of given lengths.

use exec_server_log::{ControlBlock, Exit, LogWriter, OutputStream, SegmentPool};

pub(crate) const SLOT: u32 = 3;

/// The log of a closed process: its writer, and the lengths of its output records. Record `seq` has the length `lengths[seq - 1]`.
pub(crate) struct MadeLog {
    pub(crate) writer: LogWriter,
    pub(crate) lengths: Vec<usize>,
}

/// The byte that record `seq` is filled with.
pub(crate) fn stamp(seq: u64) -> u8 {
    (seq % 251) as u8
}

/// Appends one record per length (at least one byte each), then the exit and the close.
pub(crate) fn make(lengths: impl Iterator<Item = usize>) -> MadeLog {
    let control = ControlBlock::create().unwrap();
    control.reset_slot(SLOT);
    let (mut pool, mut writer) = (SegmentPool::new(), LogWriter::new(SLOT));
    let mut kept = Vec::new();
    for (at, len) in lengths.enumerate() {
        let room = writer.room(&mut pool).unwrap();
        let len = len.clamp(1, room.buf.len());
        room.buf[..len].fill(stamp(at as u64 + 1));
        writer.commit(&control, if at % 2 == 0 { OutputStream::Stdout } else { OutputStream::Stderr }, len);
        kept.push(len);
    }
    writer.append_exited(&control, &mut pool, Exit::default()).unwrap();
    writer.append_closed(&control, &mut pool).unwrap();
    MadeLog { writer, lengths: kept }
}
