//! Makes the kernel's own file systems read-only in the view of a process, and covers the host's message queues.
//!
//! If the server runs as root, its children could write `/proc/sys/kernel/core_pattern`: the kernel runs the program
//! named there outside of every sandbox. Landlock cannot deny it inside a granted directory, and dropping capabilities
//! does not stop root there. So the mounts are made read-only. They are found in `mountinfo` and not by path, because a
//! host may have a second `/proc`, for example in a chroot.
//!
//! A mount of POSIX message queues shows the queues of the IPC namespace in which it was mounted. So a new IPC
//! namespace does not hide them.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx},
    io::Errno,
};

use crate::system;

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

/// Where such file systems are mounted. Every mount below is made read-only too, regardless of its type.
const KERNEL_PLACES: [&str; 2] = ["/proc", "/sys"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MountTreatment {
    ReadOnly,
    Cover,
}

/// A mount to protect, from a line of `mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct KernelMount {
    id: u64,
    path: PathBuf,
    treatment: MountTreatment,
}

/// Opens `/proc` before the root is replaced, because the view may not contain it.
pub(crate) fn open_proc() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/proc", flags, Mode::empty())?)
}

/// Protects every such mount that can be reached from the root directory of this process, which is the root of the
/// view.
pub(crate) fn protect(proc: BorrowedFd<'_>) -> io::Result<()> {
    for mount in find(&read_mounts(proc)?) {
        // Skip mounts that cannot be reached: those under another mount, and those in a directory that this user cannot
        // enter.
        let place = match system::open_path(CWD, &mount.path) {
            Ok(place) => place,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => continue,
                _ => return Err(error),
            },
        };
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

fn read_mounts(proc: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::openat(proc, "self/mountinfo", flags, Mode::empty())?);
    let mut text = Vec::new();
    io::Read::read_to_end(&mut file, &mut text)?;
    Ok(text)
}

/// The mounts to protect. A line is `id parent device root path options [tags…] - type source options`.
fn find(mountinfo: &[u8]) -> Vec<KernelMount> {
    let parse = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
        let id = std::str::from_utf8(fields.first()?).ok()?.parse().ok()?;
        let path = unescape(fields.get(4)?);
        let kind = std::str::from_utf8(fields.get(separator + 1)?).ok()?;
        let is_kernel =
            || KERNEL_FILE_SYSTEMS.contains(&kind) || KERNEL_PLACES.iter().any(|place| path.starts_with(place));
        let treatment = match kind {
            "mqueue" => MountTreatment::Cover,
            _ if is_kernel() => MountTreatment::ReadOnly,
            _ => return None,
        };
        Some(KernelMount { id, path, treatment })
    };
    mountinfo.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// In `mountinfo`, space, tab, newline and backslash are three octal digits after a backslash.
fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match digits {
            Some(digits) => {
                out.push(digits.iter().fold(0, |value: u8, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    Path::new(&OsString::from_vec(out)).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_mounts_are_found_by_type_and_by_place() {
        let text = b"21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            22 21 0:20 / /proc rw,nosuid shared:2 master:3 - proc proc rw\n\
            23 22 0:21 / /proc/cpuinfo rw - fuse.lxcfs lxcfs rw\n\
            24 21 0:22 / /srv/a\\040b\\134c/proc rw - proc none rw\n\
            25 21 0:23 / /dev/mqueue rw - mqueue mqueue rw\n\
            26 21 0:24 / /process rw - tmpfs tmpfs rw\n\
            broken\n";
        let mount = |id, path: &str, treatment| KernelMount { id, path: path.into(), treatment };
        assert_eq!(
            find(text),
            [
                mount(22, "/proc", MountTreatment::ReadOnly),
                mount(23, "/proc/cpuinfo", MountTreatment::ReadOnly),
                mount(24, "/srv/a b\\c/proc", MountTreatment::ReadOnly),
                mount(25, "/dev/mqueue", MountTreatment::Cover),
            ]
        );
    }
}
