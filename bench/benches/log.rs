//! Cost of appending to a log and reading it, in real shared memory.
//!
//! One record is too little to count by percents, so there are many in each: 1000 small ones in one segment, and 64 large ones in
//! five, with the changes of segments in between. The bytes themselves are the kernel's business, which reads a pipe into the room.

use std::hint::black_box;

use exec_server_log::{
    ControlBlock, Cursor, LogEvent, LogRecord, LogWriter, MappedSegment, OutputStream, ReadStep, SegmentChain,
    SegmentPool,
};
use gungraun::prelude::*;

const SLOT: u32 = 0;

/// The log of a process, and what is to be appended to it.
struct Appending {
    control: ControlBlock,
    pool: SegmentPool,
    writer: LogWriter,
    records: usize,
    len: usize,
}

fn appending(records: usize, len: usize) -> Appending {
    let control = ControlBlock::create().expect("memory for a control block");
    control.reset_slot(SLOT);
    let mut appending = Appending { control, pool: SegmentPool::new(), writer: LogWriter::new(SLOT), records: 1, len };
    // The first one, with which the first segment begins, is not what every record costs.
    appending.append();
    appending.records = records;
    appending
}

impl Appending {
    /// Appends all, and returns how many bytes the log had room for.
    fn append(&mut self) -> usize {
        let mut appended = 0;
        for _ in 0..self.records {
            let room = self.writer.room(&mut self.pool).expect("memory for a segment");
            let len = self.len.min(room.buf.len());
            self.writer.commit(&self.control, OutputStream::Stdout, len);
            appended += len;
        }
        appended
    }
}

#[library_benchmark]
#[bench::bytes_100_times_1000(args = (1000, 100), setup = appending)]
#[bench::kib_64_times_64(args = (64, 64 * 1024), setup = appending)]
fn append(mut appending: Appending) -> (usize, Appending) {
    (black_box(&mut appending).append(), appending)
}

/// A reader's picture of such a log.
fn written(records: usize, len: usize) -> SegmentChain {
    let mut appending = appending(records - 1, len);
    appending.append();
    let mut chain = SegmentChain::new();
    while let Some(info) = appending.writer.take_fresh() {
        let segment = appending.writer.segment(info.id).expect("nothing was released");
        let fd = segment.shared_fd().try_clone().expect("a descriptor more");
        chain.push_memory(info, MappedSegment::map(fd).expect("a segment of ours"));
    }
    chain
}

#[library_benchmark]
#[bench::bytes_100_times_1000(args = (1000, 100), setup = written)]
#[bench::kib_64_times_64(args = (64, 64 * 1024), setup = written)]
fn read(chain: SegmentChain) -> (usize, SegmentChain) {
    let mut cursor = Cursor::start();
    let mut bytes = 0;
    loop {
        match black_box(&chain).read(&mut cursor) {
            ReadStep::Record(LogRecord { event: LogEvent::Output { bytes: read, .. }, .. }) => bytes += read.len(),
            ReadStep::End => return (bytes, chain),
            other => panic!("not what was written: {other:?}"),
        }
    }
}

library_benchmark_group!(name = writer, benchmarks = [append]);
library_benchmark_group!(name = cursor, benchmarks = [read]);
main!(library_benchmark_groups = [writer, cursor]);
