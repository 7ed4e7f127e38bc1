//! Memory that is dropped is unmapped. Alone in its program, because it reads the mappings of the whole process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use exec_server_log::{ControlBlock, LogWriter, OutputStream, SegmentPool};

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:exec-server").count()
}

#[test]
fn dropped_memory_is_unmapped() {
    {
        let control = ControlBlock::create().unwrap();
        let mut pool = SegmentPool::new();
        let mut writer = LogWriter::new(0);
        writer.room(&mut pool).unwrap();
        writer.commit(&control, OutputStream::Stdout, 1);
        assert_eq!(mappings(), 2);
    }
    assert_eq!(mappings(), 0);
}
