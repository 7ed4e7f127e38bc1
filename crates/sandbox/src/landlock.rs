//! Landlock rulesets: rules that the kernel enforces for a thread and all its descendants.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
};

use crate::{
    rules::Access,
    system::{address, call, fd_call, io_call},
};

const READ: u64 = EXECUTE | READ_FILE | READ_DIR;
const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
/// Rename and link between directories, since ABI 2.
const REFER: u64 = 1 << 13;
/// Since ABI 3.
const TRUNCATE: u64 = 1 << 14;
/// `ioctl` on devices, since ABI 5.
const IOCTL_DEV: u64 = 1 << 15;
/// All access rights of ABI 1.
const FIRST: u64 = (1 << 13) - 1;
/// All access rights that a ruleset with `restricts_files` denies by default.
const HANDLED: u64 = FIRST | REFER | TRUNCATE | IOCTL_DEV;
/// The access rights that apply to a file that is not a directory.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
/// Restricts abstract Unix sockets and signals to the process that applied the ruleset and its descendants, since
/// ABI 6.
const SCOPES: u64 = 3;

/// The ABI that has all rights and scopes above (Linux 6.12). With an older ABI, a process could send signals to the
/// server.
pub(crate) const NEEDED: u32 = 6;

/// The Landlock ABI of the kernel. `None` if Landlock is missing or disabled.
pub(crate) fn abi() -> Option<u32> {
    // LANDLOCK_CREATE_RULESET_VERSION.
    let version = call(libc::SYS_landlock_create_ruleset, [0, 0, 1, 0, 0, 0]).ok()?;
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// The kernel's `landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed: u64,
    parent: i32,
}

/// Creates a ruleset, which is not applied yet. It always restricts signals and abstract sockets. With
/// `restricts_files` it also denies all access to files that `allow` does not grant. The kernel must have at least ABI
/// `NEEDED`.
pub(crate) fn ruleset(restricts_files: bool) -> io::Result<OwnedFd> {
    // Handled accesses to files and to the network, and scopes.
    let request: [u64; 3] = [if restricts_files { HANDLED } else { 0 }, 0, SCOPES];
    fd_call(libc::SYS_landlock_create_ruleset, [address(request.as_ptr()), size_of_val(&request), 0, 0, 0, 0])
}

/// Allows access to the object behind an fd and everything below it, in a ruleset that restricts files.
pub(crate) fn allow(ruleset: BorrowedFd<'_>, place: BorrowedFd<'_>, access: Access, is_dir: bool) -> io::Result<()> {
    let wanted = match access {
        Access::Read => READ,
        // Device nodes would give access to devices outside of the policy.
        Access::Write => HANDLED & !(MAKE_CHAR | MAKE_BLOCK),
        Access::Deny => return Ok(()),
    };
    // The kernel refuses rights for directories in a rule for a file.
    let allowed = if is_dir { wanted } else { wanted & OF_FILES };
    let rule = PathBeneathAttr { allowed, parent: place.as_raw_fd() };
    // LANDLOCK_RULE_PATH_BENEATH.
    let args = [ruleset.as_raw_fd() as usize, 1, address(&raw const rule), 0, 0, 0];
    io_call(libc::SYS_landlock_add_rule, args).map(drop)
}
