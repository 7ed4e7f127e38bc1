//! Small programs that the fault runs start as children, as hidden modes of this program, and the blocks that they write to stdin.

use std::io;

use super::{killed_run, mcp_echo};
use crate::prelude::*;
use exec_server_harness::{
    records::{exit_code, write_raw, write_records},
    relay,
};

/// A program that a run starts as its child.
#[derive(clap::Subcommand)]
pub(super) enum ChildCommand {
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
}

impl ChildCommand {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Producer { id, count } => produce(id, count),
            Self::Flood { bytes } => flood(bytes),
            Self::Writer { url, session, process, from, again } => {
                write_blocks(&ServerAddress::parse(&url)?, &session, &process, from, &again)
            }
            Self::Relay { id } => relay::child(id),
            Self::Gated { id, count, gate } => killed_run::child(id, count, &gate),
            Self::Mcp { .. } => mcp_echo::child(),
        }
    }
}

fn produce(id: u64, count: u64) -> Result<()> {
    write_records(id, 0..count)?;
    std::process::exit(i32::try_from(exit_code(id))?)
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

/// First bytes of a block on stdin.
const BLOCK_MAGIC: &[u8; 8] = b"xtaskblk";

/// A numbered block for stdin. Its size is derived from its number and is close to the sizes of pipes and packets.
pub(super) fn block(number: u64) -> Vec<u8> {
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
pub(super) fn read_blocks(mut bytes: &[u8]) -> Result<HashMap<u64, u64>> {
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
        if let ServerMessage::Answer { id, outcome } = wire.next_message()? {
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
pub(super) fn read_writer(output: impl io::Read) -> Result<(Vec<u64>, Vec<u64>)> {
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

    #[test]
    fn a_torn_block_is_detected() {
        let mut bytes = [block(3), block(4), block(4)].concat();
        assert_eq!(read_blocks(&bytes).unwrap(), HashMap::from([(3, 1), (4, 2)]));
        bytes.remove(1000);
        assert!(read_blocks(&bytes).is_err());
    }
}
