//! Small wrappers for system calls that have no safe wrapper elsewhere.
//!
//! `call`, `system_call` and the capability functions neither allocate nor take a lock, so a child may use them between
//! clone and exec.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

use libc::{c_int, c_long};

/// A raw system call.
pub(crate) fn call(number: c_long, args: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: all callers pass valid arguments for this number, and pointers that are valid for the duration of the
    // call.
    unsafe { system_call(number, args) }
}

/// A raw system call, mainly for a child between clone and exec. The C library would store `errno` in thread-local
/// memory, which such a child shares with the parent that continues to run.
///
/// # Safety
///
/// The arguments must be valid for the system call with this number.
pub unsafe fn system_call(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Result<usize, c_int> {
    let result: isize;
    // SAFETY: the call changes only the declared registers and the memory that the arguments give it. The caller
    // guarantees the arguments.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "svc #0",
            inlateout("x0") a => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            in("x8") number,
            options(nostack),
        );
    }
    // The kernel returns errors as -4095 to -1.
    match c_int::try_from(result) {
        Ok(error @ -4095..=-1) => Err(-error),
        _ => Ok(result.cast_unsigned()),
    }
}

/// A pointer as an argument of a system call. Exposes the provenance, because the kernel reads and writes through the
/// pointer.
pub fn address<T>(pointer: *const T) -> usize {
    pointer.expose_provenance()
}

/// Like `call`, but with an `io::Error`.
pub(crate) fn io_call(number: c_long, args: [usize; 6]) -> io::Result<usize> {
    call(number, args).map_err(io::Error::from_raw_os_error)
}

/// A system call that returns a new fd.
pub(crate) fn fd_call(number: c_long, args: [usize; 6]) -> io::Result<OwnedFd> {
    let fd = io_call(number, args)?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just created this fd, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The kernel's `__user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct CapabilityWords {
    pub(crate) effective: u32,
    pub(crate) permitted: u32,
    pub(crate) inheritable: u32,
}

/// The header of the capability calls: `_LINUX_CAPABILITY_VERSION_3`, with two 32-bit words for each set, and the pid.
const CAPABILITY_HEADER: [u32; 2] = [0x2008_0522, 0];

/// The capabilities of this thread, the lower half first.
pub(crate) fn capabilities() -> Result<[CapabilityWords; 2], c_int> {
    let header = CAPABILITY_HEADER;
    let mut words = [CapabilityWords::default(); 2];
    let data = address(std::ptr::from_mut(&mut words).cast_const());
    call(libc::SYS_capget, [address(header.as_ptr()), data, 0, 0, 0, 0])?;
    Ok(words)
}

pub(crate) fn set_capabilities(words: &[CapabilityWords; 2]) -> Result<(), c_int> {
    let header = CAPABILITY_HEADER;
    call(libc::SYS_capset, [address(header.as_ptr()), address(words.as_ptr()), 0, 0, 0, 0]).map(drop)
}

/// A detached clone of the mounts at and below an fd.
pub(crate) fn clone_tree(at: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // OPEN_TREE_CLONE is 1.
    let flags = libc::AT_EMPTY_PATH as usize | libc::AT_RECURSIVE as usize | 1 | libc::O_CLOEXEC as usize;
    fd_call(libc::SYS_open_tree, [at.as_raw_fd() as usize, address(c"".as_ptr()), flags, 0, 0, 0])
}

/// Mounts the tree behind one fd onto the object behind another.
pub(crate) fn attach(tree: BorrowedFd<'_>, at: BorrowedFd<'_>) -> io::Result<()> {
    // MOVE_MOUNT_F_EMPTY_PATH and MOVE_MOUNT_T_EMPTY_PATH.
    let flags = 0x4 | 0x40;
    let empty = address(c"".as_ptr());
    io_call(libc::SYS_move_mount, [tree.as_raw_fd() as usize, empty, at.as_raw_fd() as usize, empty, flags, 0])
        .map(drop)
}

/// Sets attributes (`MOUNT_ATTR_…`) of a mount, and of the mounts below it if `is_recursive`.
pub(crate) fn set_attributes(mount: BorrowedFd<'_>, attributes: u64, is_recursive: bool) -> io::Result<()> {
    // The kernel's `mount_attr`: attributes to set, attributes to clear, propagation, user namespace.
    let request: [u64; 4] = [attributes, 0, 0, 0];
    let flags = libc::AT_EMPTY_PATH | if is_recursive { libc::AT_RECURSIVE } else { 0 };
    let fd = mount.as_raw_fd() as usize;
    let args = [fd, address(c"".as_ptr()), flags as usize, address(request.as_ptr()), size_of_val(&request), 0];
    io_call(libc::SYS_mount_setattr, args).map(drop)
}

/// A new, detached mount of a file system that needs no disk.
pub(crate) fn new_tree(kind: &CStr, options: &[(&CStr, &CStr)], attributes: u64) -> io::Result<OwnedFd> {
    // FSOPEN_CLOEXEC, FSCONFIG_SET_STRING and FSMOUNT_CLOEXEC are 1, FSCONFIG_CMD_CREATE is 6.
    let context = fd_call(libc::SYS_fsopen, [address(kind.as_ptr()), 1, 0, 0, 0, 0])?;
    let fd = context.as_raw_fd() as usize;
    for (key, value) in options {
        io_call(libc::SYS_fsconfig, [fd, 1, address(key.as_ptr()), address(value.as_ptr()), 0, 0])?;
    }
    io_call(libc::SYS_fsconfig, [fd, 6, 0, 0, 0, 0])?;
    fd_call(libc::SYS_fsmount, [fd, 1, attributes as usize, 0, 0, 0])
}

/// A new tmpfs whose root directory has this mode.
pub(crate) fn tmpfs(mode: &CStr) -> io::Result<OwnedFd> {
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    // 1 MiB: it contains only mount points and links.
    new_tree(c"tmpfs", &[(c"mode", mode), (c"size", c"1m")], attributes)
}

/// A new devpts instance.
pub(crate) fn terminals() -> io::Result<OwnedFd> {
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    new_tree(c"devpts", &[(c"mode", c"620"), (c"ptmxmode", c"666")], attributes)
}

/// Opens a path with O_PATH and refuses symbolic links in all components. An absolute path starts at the root, a
/// relative one at `from`.
pub(crate) fn open_path(from: BorrowedFd<'_>, path: &std::path::Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, ResolveFlags};
    // `openat2` refuses an empty path. Here it means `from` itself.
    let path = if path.as_os_str().is_empty() { std::path::Path::new(".") } else { path };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::io::retry_on_intr(|| rustix::fs::openat2(from, path, flags, Mode::empty(), resolve)).map_err(Into::into)
}
