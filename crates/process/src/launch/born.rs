//! `clone3`: of a child that is born in its control group, and without a handler of ours.
//!
//! A process that is moved into a group waits for a lock of the whole host, for milliseconds where nobody has moved one lately; one
//! that is born there does not. The C library has no function for the call, hence the few instructions here: the child begins on a
//! stack of its own, calls `child_main` and never comes back to them.

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use libc::{c_int, c_long, c_void};
use rustix::process::Pid;

use exec_server_sandbox::address;

use super::{Parent, Shared, Stack, Started};

/// `CLONE_CLEAR_SIGHAND`, Linux 5.5: handlers become the default, what is ignored stays so.
const CLEAR_SIGHAND: u64 = 1 << 32;

/// `CLONE_INTO_CGROUP`, Linux 5.7.
const INTO_CGROUP: u64 = 1 << 33;

/// The kernel does not have the call, or a filter hides it, or it kills what is born; it will not be otherwise later.
static IS_MISSING: AtomicBool = AtomicBool::new(false);

/// `struct clone_args` as of Linux 5.7, 88 bytes.
#[repr(C)]
#[derive(Default)]
struct Args {
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

/// A child in the group whose directory `home` is, or in those that we are in.
pub(super) fn clone_into(
    home: Option<RawFd>,
    shared: &Shared<'_>,
    stack: &Stack,
    parent: Parent,
) -> io::Result<Started> {
    if IS_MISSING.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut pidfd: c_int = -1;
    let stop = if parent == Parent::Stops { libc::CLONE_VFORK } else { 0 };
    let flags = libc::CLONE_VM | libc::CLONE_PIDFD | libc::CLONE_CHILD_CLEARTID | stop;
    let args = Args {
        flags: u64::from(flags.unsigned_abs()) | CLEAR_SIGHAND | home.map_or(0, |_| INTO_CGROUP),
        pidfd: address(&raw mut pidfd) as u64,
        child_tid: address(shared.is_here.as_ptr()) as u64,
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        stack: address(stack.base) as u64,
        stack_size: Stack::mapped_bytes() as u64,
        cgroup: home.map_or(0, |home| u64::from(home.unsigned_abs())),
        ..Args::default()
    };
    // SAFETY: `args` describes a private stack with room for `child_main`, an int to write to, and the word of `shared`; these live
    // until the child has executed a program or ended, which CLONE_VFORK or the caller waits for.
    let result = unsafe { clone3(&args, ptr::from_ref(shared).cast_mut().cast()) };
    let Some(pid) = i32::try_from(result).ok().filter(|pid| *pid > 0).and_then(Pid::from_raw) else {
        let errno = i32::try_from(-result).unwrap_or(libc::EIO);
        IS_MISSING.store(errno == libc::ENOSYS, Ordering::Relaxed);
        return Err(io::Error::from_raw_os_error(errno));
    };
    // SAFETY: the kernel made this descriptor for us in the call that made the child.
    let child = Started { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } };
    // Where we go on, whether it has begun is known later.
    if parent == Parent::Stops && !shared.has_begun.get() {
        distrust();
        super::reap(pid);
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(child)
}

/// A child did not come to its first instruction. Some kernels (seen on 6.18) compare how often the child's group was killed with
/// how often ours was, instead of twice the same, and kill a child where the numbers differ.
pub(super) fn distrust() {
    IS_MISSING.store(true, Ordering::Relaxed);
}

/// The call; its result is the child's number or a negative error number.
///
/// # Safety
///
/// `args` must ask for `CLONE_VM` with a stack of its own for the child, and `shared` be what `child_main` takes; both must live until
/// the child has left this memory.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3(args: &Args, shared: *mut c_void) -> c_long {
    let result;
    // SAFETY: the parent's registers come back as they were, but for those named here. The child has a stack of its own, aligned to
    // 16 as `call` needs it, and `child_main` ends it. `rcx` and `r11` are no late outputs, so that no input is in them.
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
            in("rsi") size_of::<Args>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

/// As above.
///
/// # Safety
///
/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn clone3(args: &Args, shared: *mut c_void) -> c_long {
    let result;
    // SAFETY: as above; the kernel changes no register of the parent but `x0`.
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
            in("x1") size_of::<Args>(),
            in("x8") libc::SYS_clone3,
        );
    }
    result
}
