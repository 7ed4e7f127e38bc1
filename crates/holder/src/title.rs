//! The title of this process in `ps`: what it is and whose, instead of the command line that it was forked with.
//!
//! The kernel shows the memory that held the arguments and, where that does not end in a NUL byte, what follows: the environment. Both are
//! overwritten. Nothing here or in a fork of this process uses either again: children get theirs with their start. So no variable of the
//! server can be read from a holder, either.
//!
//! Failure path: where `/proc` is not as expected the old command line stays.

use crate::spawner::ARGUMENT;

/// Room for a title in the environment of a program that has no other: longer than all words of a title.
pub(crate) const ROOM: (&str, &str) =
    ("EXEC_SERVER_TITLE", "                                                                ");

/// What the spawner calls itself, before the arguments of the program that it was forked from.
const SPAWNER: &[u8] = b"exec-server spawner:";

/// Where the kernel finds command line and environment.
#[derive(Debug, PartialEq, Eq)]
struct Area {
    start: usize,
    /// Up to the end of the environment where that follows, else of the arguments.
    len: usize,
}

/// The title of a spawner: with the arguments of its program, which say what it serves.
pub(crate) fn set_spawner() {
    set(&[SPAWNER, &arguments()].concat());
}

/// The title of the holder of a session with this directory, `STATE/sessions/ID`. An id opens its session, so only its beginning shows.
pub(crate) fn set_holder(dir: &std::path::Path) {
    let id = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    set(&[b"exec-server holder ", id.get(..8).unwrap_or_default().as_bytes(), b":", &arguments()].concat());
}

/// The arguments of the program that this process was forked from, each behind a blank.
fn arguments() -> Vec<u8> {
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    if let Some(title) = line.strip_prefix(SPAWNER) {
        return title.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
    }
    // A spawner that was started by path has its own argument first, which the title says already.
    let is_told = |argument: &&[u8]| !argument.is_empty() && *argument != ARGUMENT.as_bytes();
    let arguments = line.split(|byte| *byte == 0).filter(is_told);
    arguments.flat_map(|argument| [b" ", argument].concat()).collect()
}

fn set(title: &[u8]) {
    let stat = std::fs::read_to_string("/proc/self/stat").ok();
    let Some(area) = stat.as_deref().and_then(area) else { return };
    // SAFETY: this process has a single thread here, and uses no variable from now on: none points to the memory that is overwritten.
    unsafe { libc::clearenv() };
    let len = title.len().min(area.len - 1);
    // SAFETY: the kernel says that this memory, of the first stack, holds arguments and environment: it is mapped and writable for the
    // life of the process. No reference to it exists: arguments are copied when they are read, and the environment was cleared.
    unsafe {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(area.start);
        std::ptr::write_bytes(start, 0, area.len);
        std::ptr::copy_nonoverlapping(title.as_ptr(), start, len);
    }
}

/// Reads fields 48 to 51 of `/proc/PID/stat`: the addresses of the arguments and of the environment.
fn area(stat: &str) -> Option<Area> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(45).map(str::parse::<usize>);
    let mut address = || fields.next()?.ok();
    let (arg_start, arg_end, env_start, env_end) = (address()?, address()?, address()?, address()?);
    let end = if env_start == arg_end && env_end > env_start { env_end } else { arg_end };
    (arg_start != 0 && end > arg_start).then_some(Area { start: arg_start, len: end - arg_start })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_area_ends_with_the_environment_where_that_follows_the_arguments() {
        let stat = |addresses: &str| format!("1 (a) b) S{} {addresses} 0\n", " 7".repeat(44));
        assert_eq!(area(&stat("100 120 120 200")), Some(Area { start: 100, len: 100 }));
        assert_eq!(area(&stat("100 120 128 200")), Some(Area { start: 100, len: 20 }));
        for bad in ["0 0 0 0", "100 100 0 0", "100 x 0 0", "100"] {
            assert_eq!(area(&stat(bad)), None, "{bad}");
        }
    }
}
