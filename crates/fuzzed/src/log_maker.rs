//! A log as a holder writes it, with records of chosen lengths, and what is in it. Knows neither disk nor damage.

use exec_server_log::{Control, Exit, Pool, Stream, Writer};

pub(crate) const SLOT: u32 = 3;

/// The log of a process that has closed: its writer, and the records by number: (kind, bytes).
pub(crate) struct Made {
    pub(crate) writer: Writer,
    pub(crate) lengths: Vec<usize>,
}

/// The byte that fills record `seq`.
pub(crate) fn stamp(seq: u64) -> u8 {
    (seq % 251) as u8
}

/// Appends a record per length (zero: one byte), then exit and close.
pub(crate) fn make(lengths: impl Iterator<Item = usize>) -> Made {
    let control = Control::create().unwrap();
    control.reset_slot(SLOT);
    let (mut pool, mut writer) = (Pool::new(), Writer::new(SLOT));
    let mut kept = Vec::new();
    for (at, len) in lengths.enumerate() {
        let room = writer.room(&mut pool).unwrap();
        let len = len.clamp(1, room.buf.len());
        room.buf[..len].fill(stamp(at as u64 + 1));
        writer.commit(&control, if at % 2 == 0 { Stream::Stdout } else { Stream::Stderr }, len);
        kept.push(len);
    }
    writer.append_exited(&control, &mut pool, Exit::default()).unwrap();
    writer.append_closed(&control, &mut pool).unwrap();
    Made { writer, lengths: kept }
}
