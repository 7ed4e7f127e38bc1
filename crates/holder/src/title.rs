//! Sets the title of this process in `ps`: its role and session instead of the command line that it was forked with.
//!
//! `/proc/PID/cmdline` shows the memory that held the arguments. If the last byte of that memory is not NUL, the kernel
//! reads on into the environment, which follows it. So a title may be longer than the arguments were, and this module
//! overwrites arguments and environment. Neither this process nor a fork of it reads them again: children get their
//! arguments and environment with their start request. A side effect is that the server's environment cannot be read
//! from a holder.
//!
//! Failure path: if `/proc` has an unexpected format, the old command line stays.

use crate::spawner::ARGUMENT;

/// An environment variable that reserves room for the title in a program with an otherwise empty environment. It is
/// longer than the fixed words of any title.
pub(crate) const TITLE_ROOM: (&str, &str) =
    ("EXEC_SERVER_TITLE", "                                                                ");

/// Start of the spawner's title. The arguments of the program that the spawner was forked from follow.
const SPAWNER: &[u8] = b"exec-server spawner:";

/// The memory that the kernel shows as command line and environment.
#[derive(Debug, PartialEq, Eq)]
struct TitleArea {
    start: usize,
    /// Up to the end of the environment if the environment follows the arguments, otherwise up to the end of the
    /// arguments.
    len: usize,
}

/// Sets the title of a spawner. It contains the arguments of the spawner's program, which show what the spawner serves.
pub(crate) fn set_spawner() {
    set(&[SPAWNER, &arguments()].concat());
}

/// Sets the title of a holder from its session directory, `STATE/sessions/ID`. Shows only the first 8 characters of the
/// id, because a client of the same principal can resume the session with the full id.
pub(crate) fn set_holder(dir: &std::path::Path) {
    let id = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    set(&[b"exec-server holder ", id.get(..8).unwrap_or_default().as_bytes(), b":", &arguments()].concat());
}

/// The arguments of the program that this process was forked from, each with a leading space.
fn arguments() -> Vec<u8> {
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    if let Some(title) = line.strip_prefix(SPAWNER) {
        return title.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
    }
    // Skip the argument `--spawner` of a spawner that was started by path: the title already contains that word.
    let is_shown = |argument: &&[u8]| !argument.is_empty() && *argument != ARGUMENT.as_bytes();
    let arguments = line.split(|byte| *byte == 0).filter(is_shown);
    arguments.flat_map(|argument| [b" ", argument].concat()).collect()
}

fn set(title: &[u8]) {
    let stat = std::fs::read_to_string("/proc/self/stat").ok();
    let Some(area) = stat.as_deref().and_then(area) else { return };
    // SAFETY: this process has a single thread here and reads no environment variable from now on, so no pointer into
    // the memory that is overwritten below is used again.
    unsafe { libc::clearenv() };
    // Leave at least one NUL behind the title, as the kernel does behind the last argument.
    let len = title.len().min(area.len - 1);
    // SAFETY: the kernel reports this memory, on the initial stack, as holding arguments and environment. It stays
    // mapped and writable for the life of the process. No reference to it exists: arguments are copied when they are
    // read, and the environment was cleared above.
    unsafe {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(area.start);
        std::ptr::write_bytes(start, 0, area.len);
        std::ptr::copy_nonoverlapping(title.as_ptr(), start, len);
    }
}

/// Parses fields 48 to 51 of `/proc/PID/stat`: the start and end addresses of the arguments and of the environment.
fn area(stat: &str) -> Option<TitleArea> {
    // The program name in parentheses may contain anything, so count from the last `)`. Field 3 follows it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(45).map(str::parse::<usize>);
    let mut address = || fields.next()?.ok();
    let (arg_start, arg_end, env_start, env_end) = (address()?, address()?, address()?, address()?);
    let end = if env_start == arg_end && env_end > env_start { env_end } else { arg_end };
    (arg_start != 0 && end > arg_start).then_some(TitleArea { start: arg_start, len: end - arg_start })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_area_includes_an_environment_that_follows_the_arguments() {
        let stat = |addresses: &str| format!("1 (a) b) S{} {addresses} 0\n", " 7".repeat(44));
        assert_eq!(area(&stat("100 120 120 200")), Some(TitleArea { start: 100, len: 100 }));
        assert_eq!(area(&stat("100 120 128 200")), Some(TitleArea { start: 100, len: 20 }));
        for bad in ["0 0 0 0", "100 100 0 0", "100 x 0 0", "100"] {
            assert_eq!(area(&stat(bad)), None, "{bad}");
        }
    }
}
