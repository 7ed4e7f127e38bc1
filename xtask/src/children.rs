//! Small programs that the fault runs and the benchmark start as children, as hidden modes of xtask.
//!
//! Defines self-describing data: what a producer writes and how a reader distinguishes loss, repetition and reordering, and what a stdin
//! writer sends and how the received data is checked. Does not rely on sequence numbers of the server.

use std::{
    collections::HashMap,
    io::{self, BufRead as _},
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;

use crate::{
    bare, bench, faults,
    wire::{ServerAddress, ServerMessage, WireClient, hello},
};

/// A hidden mode.
#[derive(clap::Subcommand)]
pub(crate) enum ChildCommand {
    /// Writes COUNT records of process ID and exits with a code made from ID.
    Producer { id: u64, count: u64 },
    /// Writes BYTES zeroes as fast as it can.
    Flood { bytes: u64 },
    /// Resumes a session and writes numbered blocks to a process's stdin until it is killed.
    Writer { url: String, session: String, process: String, from: u64, again: Vec<u64> },
    /// Copies standard input to standard output, numbers its steps on standard error and checks its input.
    Relay { id: u64 },
    /// Writes COUNT records of process ID, of which the second half waits for the file GATE.
    Gated { id: u64, count: u64, gate: String },
    /// An MCP server on standard streams with one tool; a MARK only shows that it is alive.
    Mcp { mark: Option<String> },
    /// Measures fork, exec and wait on request, one batch a line of standard input.
    Bare,
    /// Hands bytes on between standard input, a socket, and `cat` at its END, through so many MORE of its kind.
    Hop { more: u32, end: bench::ChainEnd },
}

impl ChildCommand {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Producer { id, count } => produce(id, count),
            Self::Flood { bytes } => flood(bytes),
            Self::Writer { url, session, process, from, again } => {
                write_blocks(&ServerAddress::parse(&url)?, &session, &process, from, &again)
            }
            Self::Relay { id } => faults::relay::child(id),
            Self::Gated { id, count, gate } => faults::left::child(id, count, &gate),
            Self::Mcp { .. } => faults::tools::child(),
            Self::Bare => bare::serve(),
            Self::Hop { more, end } => bench::hop(more, end),
        }
    }
}

/// The path of this program, to start it as a child.
pub(crate) fn program() -> Result<String> {
    let path = std::env::current_exe()?;
    path.into_os_string().into_string().ok().context("the path of xtask is not UTF-8")
}

/// Bytes of one record: the producer's id and a counter, both little-endian.
pub(crate) const RECORD: u64 = 16;

/// A prime number, so that most writes end inside a record.
const PIECE: usize = 65_521;

/// The exit code of the producer with this id.
pub(crate) fn exit_code(id: u64) -> i64 {
    i64::try_from(id % 200).unwrap_or_default() + 1
}

fn produce(id: u64, count: u64) -> Result<()> {
    write_records(id, 0..count)?;
    std::process::exit(i32::try_from(exit_code(id))?)
}

/// Writes these records of the producer to stdout.
pub(crate) fn write_records(id: u64, counters: std::ops::Range<u64>) -> Result<()> {
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

fn flood(bytes: u64) -> Result<()> {
    let block = vec![0; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        let part = usize::try_from(left.min(1 << 16))?;
        write_raw(&block[..part])?;
        left -= part as u64;
    }
    Ok(())
}

/// Bypasses the line buffer of the standard library, which would split writes at newlines.
fn write_raw(mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), bytes))?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Reads the records of one producer and counts errors in them.
pub(crate) struct Records {
    id: u64,
    expected: u64,
    partial: Vec<u8>,
    /// Counters that were skipped and have not arrived since.
    missing: Vec<std::ops::Range<u64>>,
    pub(crate) repeated: u64,
    pub(crate) reordered: u64,
    pub(crate) foreign: u64,
}

impl Records {
    pub(crate) fn new(id: u64) -> Self {
        Self { id, expected: 0, partial: Vec::new(), missing: Vec::new(), repeated: 0, reordered: 0, foreign: 0 }
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
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
    pub(crate) fn finish(&self, count: u64) -> Result<()> {
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
}

/// First bytes of a block on stdin.
const BLOCK_MAGIC: &[u8; 8] = b"xtaskblk";

/// A numbered block for stdin. Its size is derived from its number and is close to the sizes of pipes and packets.
pub(crate) fn block(number: u64) -> Vec<u8> {
    let size = match number % 16 {
        0 => 150_000,
        1 | 2 => 65_536 + number as usize % 3,
        3 => 4096,
        _ => 16 + number as usize % 700,
    };
    let mut bytes = Vec::with_capacity(size + 24);
    bytes.extend_from_slice(BLOCK_MAGIC);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&(size as u64).to_le_bytes());
    bytes.resize(24 + size, number as u8);
    bytes
}

/// How often each block occurs in the received data; fails if a block is torn.
pub(crate) fn read_blocks(mut bytes: &[u8]) -> Result<HashMap<u64, u64>> {
    let mut seen = HashMap::new();
    while !bytes.is_empty() {
        ensure!(bytes.len() >= 24 && bytes.starts_with(BLOCK_MAGIC), "a block begins inside another");
        let number = u64::from_le_bytes(bytes[8..16].try_into()?);
        let whole = block(number);
        ensure!(bytes.starts_with(&whole), "block {number} is torn");
        bytes = &bytes[whole.len()..];
        *seen.entry(number).or_insert(0) += 1;
    }
    Ok(seen)
}

/// Blocks in flight at once.
const IN_FLIGHT: usize = 4;

/// Prints `s N` before block N is sent and `a N` when the server accepted it. Blocks in `again` are retries and come first.
fn write_blocks(address: &ServerAddress, session: &str, process: &str, from: u64, again: &[u64]) -> Result<()> {
    let (mut wire, _) = WireClient::open(address, &hello(Some(session)))?;
    let mut flying = HashMap::new();
    let mut numbers = again.iter().copied().chain(from..);
    loop {
        while flying.len() < IN_FLIGHT {
            let number = numbers.next().context("numbers do not end")?;
            print_number('s', number)?;
            let params = json!({ "processId": process, "writeId": format!("w{number}"), "chunk": STANDARD.encode(block(number)) });
            flying.insert(wire.send("process/write", &params)?, number);
        }
        if let ServerMessage::Answer { id, outcome } = wire.next()? {
            let status = outcome?;
            ensure!(status["status"] == "accepted", "a write was answered {status}");
            print_number('a', flying.remove(&id).context("an answer to no request")?)?;
        }
    }
}

/// Writes one line with one system call, so that a kill leaves the line whole or absent.
fn print_number(what: char, number: u64) -> Result<()> {
    write_raw(format!("{what} {number}\n").as_bytes())
}

/// Parses the writer's lines: the numbers it sent, and those that were accepted.
pub(crate) fn read_writer(output: impl io::Read) -> Result<(Vec<u64>, Vec<u64>)> {
    let (mut sent, mut accepted) = (Vec::new(), Vec::new());
    for line in io::BufReader::new(output).lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("s", number)) => sent.push(number.parse()?),
            Some(("a", number)) => accepted.push(number.parse()?),
            _ => bail!("the writer said `{line}`"),
        }
    }
    Ok((sent, accepted))
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
    fn loss_repetition_and_reordering_are_told_apart() {
        let lost = records(&[0, 2, 3]);
        assert!(lost.finish(4).unwrap_err().to_string().contains(": 1 records lost, 0 repeated, 0 reordered"));
        let repeated = records(&[0, 1, 1, 2, 3]);
        assert!(repeated.finish(4).unwrap_err().to_string().contains(": 0 records lost, 1 repeated, 0 reordered"));
        let reordered = records(&[0, 2, 1, 3]);
        assert!(reordered.finish(4).unwrap_err().to_string().contains(": 0 records lost, 0 repeated, 1 reordered"));
        let short = records(&[0, 1]);
        assert!(short.finish(4).unwrap_err().to_string().contains(": 2 records lost"));
    }

    #[test]
    fn a_torn_block_is_seen() {
        let mut bytes = [block(3), block(4), block(4)].concat();
        assert_eq!(read_blocks(&bytes).unwrap(), HashMap::from([(3, 1), (4, 2)]));
        bytes.remove(1000);
        assert!(read_blocks(&bytes).is_err());
    }
}
