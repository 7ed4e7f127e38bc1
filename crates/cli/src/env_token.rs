//! Removes the token from the environment, so that no other process ever inherits or shows it.
//!
//! `/proc/PID/environ` shows the block that the kernel created at exec, even after the program changes its variables. The spawner and all
//! holders are forks of this process and inherit that block. So the bytes are overwritten in the block itself, before the first fork,
//! through `/proc/self/mem`, which needs no unsafe code. Until the fork the value is kept in a memfd, which the spawner closes. No copy of
//! the value stays in memory that a fork inherits.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::FileExt,
};

use anyhow::{Context as _, anyhow};
use rustix::fs::MemfdFlags;
use zeroize::Zeroizing;

pub(crate) const NAME: &str = "EXEC_SERVER_TOKEN";

/// The fields of `/proc/self/stat` with the bounds of the block, counted from 1 as in proc(5).
const ENV_START_FIELD: usize = 50;
const ENV_END_FIELD: usize = 51;

/// The token, stored in a memfd outside the memory of this process.
pub(crate) struct StoredToken(File);

impl StoredToken {
    /// Reads the token back. Call it after the fork.
    pub(crate) fn read(mut self) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut value = Zeroizing::new(Vec::with_capacity(4096));
        self.0.rewind()?;
        self.0.read_to_end(&mut value)?;
        Ok(value)
    }
}

/// Removes the variable, in upper case, lower case or mixed, and returns the value of the one in upper case. Changes nothing if the
/// variable is not set.
pub(crate) fn take() -> anyhow::Result<Option<StoredToken>> {
    let is_there = std::env::vars_os().any(|(name, _)| name.eq_ignore_ascii_case(NAME));
    if !is_there {
        return Ok(None);
    }
    scrub().with_context(|| format!("cannot hide `{NAME}` from other processes; unset it and pass `--token-file`"))
}

fn scrub() -> anyhow::Result<Option<StoredToken>> {
    let (start, end) = block()?;
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    let size = usize::try_from(end - start)?;
    let mut block = Zeroizing::new(vec![0; size]);
    memory.read_exact_at(&mut block, start)?;
    let mut stored = None;
    for entry in entries(&block) {
        let bytes = &block[entry.clone()];
        let Some(at) = bytes.iter().position(|byte| *byte == b'=') else { continue };
        let name = &bytes[..at];
        let value = &bytes[at + 1..];
        if !name.eq_ignore_ascii_case(NAME.as_bytes()) {
            continue;
        }
        if name == NAME.as_bytes() {
            let mut file = File::from(rustix::fs::memfd_create("exec-server-token", MemfdFlags::CLOEXEC)?);
            file.write_all(value)?;
            stored = Some(StoredToken(file));
        }
        // The entry then starts with NUL, so it is empty and no longer a variable.
        memory.write_all_at(&vec![0; bytes.len()], start + entry.start as u64)?;
    }
    let is_left = std::env::vars_os().any(|(name, _)| name.eq_ignore_ascii_case(NAME));
    if is_left {
        return Err(anyhow!("the variable is not in the environment block that the kernel set up"));
    }
    Ok(stored)
}

/// The ranges of the entries in the block, each without its terminating NUL.
fn entries(block: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut start = 0;
    block
        .split(|byte| *byte == 0)
        .map(|entry| {
            let range = start..start + entry.len();
            start = range.end + 1;
            range
        })
        .filter(|range| !range.is_empty())
        .collect()
}

/// The address range into which the kernel put the environment at exec.
fn block() -> anyhow::Result<(u64, u64)> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The command name in parentheses may itself contain blanks and parentheses, so split at the last `)`. The rest starts with field 3.
    let (_, rest) = stat.rsplit_once(')').context("read `/proc/self/stat`")?;
    let field = |number: usize| -> anyhow::Result<u64> {
        let text = rest.split_whitespace().nth(number - 3).context("read `/proc/self/stat`")?;
        Ok(text.parse()?)
    };
    let start = field(ENV_START_FIELD)?;
    let end = field(ENV_END_FIELD)?;
    // The kernel reports zero if it hides the addresses.
    if start == 0 || end < start {
        return Err(anyhow!("the kernel does not report the address of the environment block"));
    }
    Ok((start, end))
}

#[cfg(test)]
mod tests {
    use super::entries;

    #[test]
    fn entries_are_split_at_nul_and_empty_ones_are_skipped() {
        assert_eq!(entries(b"A=1\0BC=\0\0D=2\0"), [0..3, 4..7, 9..12]);
        assert!(entries(b"").is_empty());
    }
}
