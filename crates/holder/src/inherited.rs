//! Resets state that a server inherits from its parent process but must not keep: signal dispositions, the signal mask
//! and open fds.
//!
//! Call these functions at the top of `main`, before the spawner is forked: the spawner and the holders inherit the
//! result. Children are not affected: they always start with default dispositions and an empty signal mask.

use crate::spawner::{close_range, set_disposition};

/// Ignores SIGXFSZ, so that a write beyond the file size limit fails with EFBIG and does not kill the process.
pub fn ignore_file_size_signal() {
    set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
}

/// Unblocks all signals. Some parents, such as a test runner or a helper of a shell script, start programs with signals
/// blocked. A server that inherited such a mask would ignore SIGTERM.
pub fn unblock_signals() {
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `sigemptyset` initialises the set, and only the signal mask of this thread changes.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Closes every fd above stderr. Otherwise a `flock` held by the process that starts a background server would stay
/// locked for as long as the server runs. Call this before any value in this process owns an fd.
pub fn close_descriptors() {
    close_range(3, std::os::fd::RawFd::MAX);
}
