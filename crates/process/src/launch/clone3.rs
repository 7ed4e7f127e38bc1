//! `clone3` for a child that is created in its cgroup and without our signal handlers.
//!
//! Moving a process into a cgroup waits for a lock of the whole host (`cgroup_threadgroup_rwsem`), which takes
//! milliseconds if no process was moved recently. Creating the process in the cgroup avoids the lock.
//!
//! The C library has no function for `clone3`, hence the few instructions here: the child starts on its own stack,
//! calls `child_main` and never returns.

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use libc::{c_int, c_long, c_void};
use rustix::process::Pid;

use exec_server_sandbox::address;

use super::{ChildStack, LaunchShared, ParentMode, StartedChild};

/// `CLONE_CLEAR_SIGHAND`, Linux 5.5: resets handlers to the default action. Ignored signals stay ignored.
const CLEAR_SIGHAND: u64 = 1 << 32;

/// `CLONE_INTO_CGROUP`, Linux 5.7.
const INTO_CGROUP: u64 = 1 << 33;

/// Whether `clone3` is unusable: the kernel does not have it, seccomp hides it, or the kernel kills the new child. This
/// does not change later.
static IS_UNUSABLE: AtomicBool = AtomicBool::new(false);

/// `struct clone_args` as of Linux 5.7, 88 bytes.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Starts a child in the cgroup whose directory is `cgroup_dir`, or in our own cgroups.
pub(super) fn clone_into(
    cgroup_dir: Option<RawFd>,
    shared: &LaunchShared<'_>,
    stack: &ChildStack,
    parent: ParentMode,
) -> io::Result<StartedChild> {
    if IS_UNUSABLE.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut pidfd: c_int = -1;
    let vfork = if parent == ParentMode::Stops { libc::CLONE_VFORK } else { 0 };
    let files = if shared.shares_fds.get() { libc::CLONE_FILES } else { 0 };
    let flags = libc::CLONE_VM | libc::CLONE_PIDFD | libc::CLONE_CHILD_CLEARTID | vfork | files;
    let args = CloneArgs {
        flags: u64::from(flags.unsigned_abs()) | CLEAR_SIGHAND | cgroup_dir.map_or(0, |_| INTO_CGROUP),
        pidfd: address(&raw mut pidfd) as u64,
        child_tid: address(shared.child_present.as_ptr()) as u64,
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        stack: address(stack.base) as u64,
        stack_size: ChildStack::mapped_bytes() as u64,
        cgroup: cgroup_dir.map_or(0, |cgroup_dir| u64::from(cgroup_dir.unsigned_abs())),
        ..CloneArgs::default()
    };
    // SAFETY: `args` describes a private stack with room for `child_main`, an int to write to, and the futex word of
    // `shared`. They live until the child has executed a program or ended, for which CLONE_VFORK or the caller waits.
    let result = unsafe { clone3(&args, ptr::from_ref(shared).cast_mut().cast()) };
    let Some(pid) = i32::try_from(result).ok().filter(|pid| *pid > 0).and_then(Pid::from_raw) else {
        let errno = i32::try_from(-result).unwrap_or(libc::EIO);
        IS_UNUSABLE.fetch_or(errno == libc::ENOSYS, Ordering::Relaxed);
        return Err(io::Error::from_raw_os_error(errno));
    };
    // SAFETY: the kernel created this fd for us in the call that created the child.
    let child = StartedChild { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } };
    // If the calling thread continues, the caller checks later whether the child has begun.
    if parent == ParentMode::Stops && !shared.has_started.get() {
        disable();
        super::reap(pid);
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(child)
}

/// Disables `clone3` after a child did not reach its first instruction. Some kernels (seen on 6.18) compare the kill
/// counter of the child's cgroup with that of our cgroup, instead of reading the same counter twice. They kill the
/// child if the two differ.
pub(super) fn disable() {
    IS_UNUSABLE.store(true, Ordering::Relaxed);
}

/// The system call. Returns the child's pid or a negative errno.
///
/// # Safety
///
/// `args` must request `CLONE_VM` with a separate stack for the child. `shared` must point to what `child_main` takes.
/// Both must live until the child has left this memory.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3(args: &CloneArgs, shared: *mut c_void) -> c_long {
    let result;
    // SAFETY: the parent's registers are unchanged, except for those named here. The child has its own stack, aligned
    // to 16 as `call` requires, and `child_main` never returns. `rcx` and `r11` are not late outputs, so no input is in
    // them.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {shared}",
            "call {run}",
            "ud2",
            "2:",
            shared = in(reg) shared,
            run = in(reg) super::child_main as extern "C" fn(*mut c_void) -> c_int,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") ptr::from_ref(args),
            in("rsi") size_of::<CloneArgs>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

/// The aarch64 version of the call above.
///
/// # Safety
///
/// The same as for the x86-64 version.
#[cfg(target_arch = "aarch64")]
unsafe fn clone3(args: &CloneArgs, shared: *mut c_void) -> c_long {
    let result;
    // SAFETY: as for the x86-64 version. The kernel changes no register of the parent except `x0`.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, {shared}",
            "blr {run}",
            "brk #1",
            "2:",
            shared = in(reg) shared,
            run = in(reg) super::child_main as extern "C" fn(*mut c_void) -> c_int,
            inlateout("x0") ptr::from_ref(args) => result,
            in("x1") size_of::<CloneArgs>(),
            in("x8") libc::SYS_clone3,
        );
    }
    result
}
