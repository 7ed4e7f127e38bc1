//! Checks of the state directory: permissions, contents, file system, and the server that uses it. Creates and changes nothing.

use std::{
    ffi::OsStr,
    fs::{self, File, Metadata},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::Path,
};

use super::{CheckOutcome, Finding, fine, missing, weak};

/// Output is spilled to the state directory. With less free space than this, it fills up soon.
const LITTLE_SPACE: u64 = 1 << 30;

/// The file system type that `statfs` reports for tmpfs.
const TMPFS: i64 = 0x0102_1994;

/// All checks that depend on a state directory.
pub(super) fn check(dir: &Path) -> Vec<Finding> {
    let mut outcomes = vec![("state directory", permissions(dir)), ("space for output", space(dir))];
    outcomes.extend(token(dir).map(|outcome| ("token", outcome)));
    outcomes.push(("server", server(dir)));
    outcomes.into_iter().map(|(what, outcome)| Finding { what, outcome }).collect()
}

fn permissions(dir: &Path) -> CheckOutcome {
    const OTHER: &str = "name another with `--state-dir`";
    let shown = dir.display();
    match fs::metadata(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fine(format!("`{shown}` does not exist yet; the first start creates it"))
        }
        Err(error) => missing(format!("`{shown}`: {error}"), OTHER),
        Ok(found) if !found.is_dir() => missing(format!("`{shown}` is not a directory"), OTHER),
        Ok(found) if is_ours_alone(&found) => fine(format!("`{shown}`, accessible only to you")),
        Ok(found) => missing(
            format!("`{shown}` has mode {:o} and owner {}", found.mode() & 0o777, found.uid()),
            "change the owner to yourself and the mode to 0700: a server refuses a directory that others can access",
        ),
    }
}

fn is_ours_alone(found: &Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0
}

/// Free space at the directory, or at its nearest existing ancestor if it does not exist yet.
fn space(dir: &Path) -> CheckOutcome {
    let there = dir.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    let (Ok(space), Ok(kind)) = (rustix::fs::statvfs(there), rustix::fs::statfs(there)) else {
        return weak("unknown", "");
    };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let seen = format!("{} MiB free", free >> 20);
    if kind.f_type == TMPFS {
        return weak(
            format!("{seen}, in memory (tmpfs)"),
            "put the state directory on a disk, or limit the output stored in it with `--disk-per-process`",
        );
    }
    if free < LITTLE_SPACE {
        return weak(
            seen,
            "free some space: when the disk is full, a detached process blocks, or with `dropOldest` loses output",
        );
    }
    fine(seen)
}

fn token(dir: &Path) -> Option<CheckOutcome> {
    let found = fs::metadata(dir.join("token")).ok()?;
    Some(if is_ours_alone(&found) {
        fine("accessible only to you")
    } else {
        missing(
            format!("mode {:o}, owner {}", found.mode() & 0o777, found.uid()),
            "change the owner to yourself and the mode to 0600, or remove the file: the next start creates a new token",
        )
    })
}

/// Checks whether a server has locked the directory and still runs the same program file as we do, and counts the holders.
fn server(dir: &Path) -> CheckOutcome {
    let sessions = fs::read_dir(dir.join("sessions")).into_iter().flatten().filter_map(Result::ok);
    let holders = sessions.filter(|session| session.path().join("sock").exists()).count();
    let holders = format!("{holders} {}", if holders == 1 { "holder" } else { "holders" });
    let Some(pid) = pid_with_lock(dir) else {
        if let Some(pid) = find_by_command_line(dir) {
            return missing(
                format!(
                    "process {pid} serves `{}`, but the directory was removed or replaced while it ran",
                    dir.display()
                ),
                "its processes keep running, but no other server will find them: restore the directory, or stop the server",
            );
        }
        return fine(format!("none runs here; {holders}"));
    };
    let seen = format!("process {pid}; {holders}");
    match (fs::metadata(format!("/proc/{pid}/exe")), fs::metadata("/proc/self/exe")) {
        (Ok(theirs), Ok(ours)) if (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()) => fine(seen),
        (Ok(_), Ok(_)) => weak(
            format!("{seen}; it runs another program file than this one"),
            "after an upgrade: restart it; its processes keep running",
        ),
        _ => fine(seen),
    }
}

/// Finds a server of our user by its command line: the first argument is `serve`, and `--state-dir` and this absolute
/// path follow as two words. A server started with a relative path, with `--state-dir=PATH` or without the flag is not
/// found.
fn find_by_command_line(dir: &Path) -> Option<u32> {
    let us = rustix::process::geteuid().as_raw();
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut pids = processes.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())));
    let serves_dir = |process: &Path| {
        let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
        let names_dir =
            words.windows(2).any(|pair| pair[0] == b"--state-dir" && Path::new(OsStr::from_bytes(pair[1])) == dir);
        // The spawner is a fork of the server, and the holders are forks of the spawner. They have the server's command
        // line until they overwrite it with a process title, and keep it if that fails. They set `comm` before the title.
        let comm = fs::read(process.join("comm")).unwrap_or_default();
        words.get(1) == Some(&&b"serve"[..])
            && names_dir
            && !comm.starts_with(b"exec-holder")
            && !comm.starts_with(b"exec-spawner")
    };
    // Read the uid from `status`: the `/proc` files of a non-dumpable process belong to root, not to its user.
    let is_ours = |process: &Path| {
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let uid = status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))?
            .split_whitespace()
            .nth(1)?
            .parse::<u32>()
            .ok()?;
        Some(uid == us)
    };
    pids.find(|(_, process)| serves_dir(process) && is_ours(process) == Some(true)).map(|(pid, _)| pid)
}

/// The pid of the process that has locked a state directory, from `/proc/locks`.
fn pid_with_lock(dir: &Path) -> Option<u32> {
    let lock = File::open(dir.join("lock")).and_then(|file| file.metadata()).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // The field `file` is `MAJOR:MINOR:INODE`. Compare only the inode: the kernel prints the device of the super block,
    // which differs from `st_dev` on btrfs, and on overlayfs with layers on several file systems.
    let inode = format!(":{}", lock.ino());
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = fields.as_slice() else { return None };
        file.ends_with(&inode).then(|| pid.parse().ok()).flatten()
    })
}
