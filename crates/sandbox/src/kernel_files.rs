//! Makes the kernel's own file systems read-only in the view of a process, and covers the host's message queues.
//!
//! If the server runs as root, its children could write `/proc/sys/kernel/core_pattern`: the kernel runs the program
//! named there outside of every sandbox. Landlock cannot deny a file inside a granted directory, and root can write it
//! even without capabilities. So these mounts are made read-only. They are found in `mountinfo` and not only by path,
//! because a host may have a second `/proc`, for example in a chroot.
//!
//! A mount of POSIX message queues shows the queues of the IPC namespace in which it was mounted. So a new IPC
//! namespace does not hide them.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd as _, BorrowedFd},
    path::PathBuf,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx},
    io::Errno,
};

use crate::{
    mountinfo::{self, MountInfo},
    system,
};

/// File systems whose files are settings or state of the kernel.
const KERNEL_FILE_SYSTEMS: [&str; 16] = [
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "debugfs",
    "tracefs",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "configfs",
    "efivarfs",
    "pstore",
    "bpf",
    "binfmt_misc",
    "fusectl",
    "resctrl",
];

/// Where the kernel's file systems are usually mounted. Every mount at or below these paths is made read-only, of any
/// type except message queues.
const KERNEL_DIRS: [&str; 2] = ["/proc", "/sys"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MountTreatment {
    ReadOnly,
    /// Mount an empty directory over it.
    Cover,
}

/// A mount to protect, from a line of `mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct KernelMount {
    id: u64,
    path: PathBuf,
    treatment: MountTreatment,
}

/// Protects all mounts that `find` returns and that can be reached from the root directory of this process, which is
/// the root of the view. `proc` is the host's `/proc`.
pub(crate) fn protect(proc: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(proc, "self/mountinfo", flags, Mode::empty())?);
    let mut table = Vec::new();
    file.read_to_end(&mut table)?;
    for mount in find(&table) {
        // Skip mounts that cannot be reached: those that a later mount hides, and those in a directory that this user
        // cannot enter.
        let place = match system::open_path(CWD, &mount.path) {
            Ok(place) => place,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => continue,
                _ => return Err(error),
            },
        };
        // Another mount id: a later mount on this path, or on a directory above it, hides this mount.
        if statx(&place, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id != mount.id {
            continue;
        }
        match mount.treatment {
            MountTreatment::ReadOnly => system::set_attributes(place.as_fd(), libc::MOUNT_ATTR_RDONLY, false)?,
            MountTreatment::Cover => {
                let cover = system::tmpfs(c"0555")?;
                system::set_attributes(cover.as_fd(), libc::MOUNT_ATTR_RDONLY, false)?;
                system::attach(cover.as_fd(), place.as_fd())?;
            }
        }
    }
    Ok(())
}

/// The mounts to protect.
fn find(table: &[u8]) -> impl Iterator<Item = KernelMount> {
    mountinfo::parse(table).filter_map(|MountInfo { id, at: path, kind, .. }| {
        let is_kernel = || KERNEL_FILE_SYSTEMS.contains(&&*kind) || KERNEL_DIRS.iter().any(|dir| path.starts_with(dir));
        let treatment = match &*kind {
            "mqueue" => MountTreatment::Cover,
            _ if is_kernel() => MountTreatment::ReadOnly,
            _ => return None,
        };
        Some(KernelMount { id, path, treatment })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_mounts_are_found_by_type_and_by_path() {
        let text = b"21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            22 21 0:20 / /proc rw,nosuid shared:2 master:3 - proc proc rw\n\
            23 22 0:21 / /proc/cpuinfo rw - fuse.lxcfs lxcfs rw\n\
            24 21 0:22 / /srv/a\\040b\\134c/proc rw - proc none rw\n\
            25 21 0:23 / /dev/mqueue rw - mqueue mqueue rw\n\
            26 21 0:24 / /process rw - tmpfs tmpfs rw\n\
            broken\n";
        let mount = |id, path: &str, treatment| KernelMount { id, path: path.into(), treatment };
        assert_eq!(
            find(text).collect::<Vec<_>>(),
            [
                mount(22, "/proc", MountTreatment::ReadOnly),
                mount(23, "/proc/cpuinfo", MountTreatment::ReadOnly),
                mount(24, "/srv/a b\\c/proc", MountTreatment::ReadOnly),
                mount(25, "/dev/mqueue", MountTreatment::Cover),
            ]
        );
    }
}
