//! Self-describing data: what a producer writes, and how a reader distinguishes loss, repetition and reordering in it.
//!
//! The oracle of the fault runs and of `run` over ssh. It does not rely on sequence numbers of the server.

use anyhow::{Context, Result, ensure};

/// The path of this program, to start it as a child.
pub fn program() -> Result<String> {
    let path = std::env::current_exe()?;
    path.into_os_string().into_string().ok().context("the path of this program is not UTF-8")
}

/// Bytes of one record: the producer's id and a counter, both little-endian.
pub const RECORD: u64 = 16;

/// A prime number, so that most writes end inside a record.
const PIECE: usize = 65_521;

/// The exit code of the producer with this id.
pub fn exit_code(id: u64) -> i64 {
    i64::try_from(id % 200).unwrap_or_default() + 1
}

/// Writes these records of the producer to stdout.
pub fn write_records(id: u64, counters: std::ops::Range<u64>) -> Result<()> {
    let mut block = Vec::with_capacity(1 << 20);
    let mut next = counters.start;
    while next < counters.end {
        block.clear();
        while next < counters.end && block.len() < 1 << 20 {
            block.extend_from_slice(&id.to_le_bytes());
            block.extend_from_slice(&next.to_le_bytes());
            next += 1;
        }
        for piece in block.chunks(PIECE) {
            write_raw(piece)?;
        }
    }
    Ok(())
}

/// Bypasses the line buffer of the standard library, which would split writes at newlines.
pub fn write_raw(mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), bytes))?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Reads the records of one producer and counts errors in them.
pub struct Records {
    id: u64,
    expected: u64,
    partial: Vec<u8>,
    /// Counters that were skipped and have not arrived since.
    missing: Vec<std::ops::Range<u64>>,
    pub repeated: u64,
    pub reordered: u64,
    pub foreign: u64,
}

impl Records {
    pub fn new(id: u64) -> Self {
        Self { id, expected: 0, partial: Vec::new(), missing: Vec::new(), repeated: 0, reordered: 0, foreign: 0 }
    }

    pub fn push(&mut self, mut bytes: &[u8]) {
        let size = RECORD as usize;
        if !self.partial.is_empty() {
            let take = bytes.len().min(size - self.partial.len());
            self.partial.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if self.partial.len() < size {
                return;
            }
            let whole = std::mem::take(&mut self.partial);
            self.record(&whole);
        }
        let mut records = bytes.chunks_exact(size);
        for record in &mut records {
            self.record(record);
        }
        self.partial.extend_from_slice(records.remainder());
    }

    fn record(&mut self, record: &[u8]) {
        let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes of a record"));
        let (id, counter) = (word(0), word(8));
        if id != self.id {
            self.foreign += 1;
        } else if counter == self.expected {
            self.expected += 1;
        } else if counter > self.expected {
            self.missing.push(self.expected..counter);
            self.expected = counter + 1;
        } else if let Some(at) = self.missing.iter().position(|range| range.contains(&counter)) {
            let range = self.missing.swap_remove(at);
            self.missing
                .extend([range.start..counter, counter + 1..range.end].into_iter().filter(|part| !part.is_empty()));
            self.reordered += 1;
        } else {
            self.repeated += 1;
        }
    }

    /// Fails with the number of each kind of error, unless exactly `count` records came in order.
    pub fn finish(&self, count: u64) -> Result<()> {
        let jumped: u64 = self.missing.iter().map(|range| range.end - range.start).sum();
        let lost = jumped + count.saturating_sub(self.expected);
        let whole = lost == 0 && self.repeated == 0 && self.reordered == 0 && self.foreign == 0;
        ensure!(
            whole && self.partial.is_empty() && self.expected == count,
            "producer {}: {lost} records lost, {} repeated, {} reordered, {} not its own, {} bytes over, {} of {count} seen",
            self.id,
            self.repeated,
            self.reordered,
            self.foreign,
            self.partial.len(),
            self.expected,
        );
        Ok(())
    }

    /// As `finish`, for output of this many bytes that may end inside a record.
    pub fn finish_torn(mut self, bytes: u64) -> Result<()> {
        self.partial.clear();
        self.finish(bytes / RECORD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(counters: &[u64]) -> Records {
        let mut records = Records::new(7);
        let bytes: Vec<u8> =
            counters.iter().flat_map(|counter| [7_u64.to_le_bytes(), counter.to_le_bytes()]).flatten().collect();
        for piece in bytes.chunks(5) {
            records.push(piece);
        }
        records
    }

    #[test]
    fn records_in_order_pass_however_they_are_cut() {
        records(&[0, 1, 2, 3]).finish(4).unwrap();
    }

    #[test]
    fn loss_repetition_and_reordering_are_distinguished() {
        let lost = records(&[0, 2, 3]);
        assert!(lost.finish(4).unwrap_err().to_string().contains(": 1 records lost, 0 repeated, 0 reordered"));
        let repeated = records(&[0, 1, 1, 2, 3]);
        assert!(repeated.finish(4).unwrap_err().to_string().contains(": 0 records lost, 1 repeated, 0 reordered"));
        let reordered = records(&[0, 2, 1, 3]);
        assert!(reordered.finish(4).unwrap_err().to_string().contains(": 0 records lost, 0 repeated, 1 reordered"));
        let short = records(&[0, 1]);
        assert!(short.finish(4).unwrap_err().to_string().contains(": 2 records lost"));
    }
}
