//! What a program inherits from whoever started it, and a server must not keep: ignored or blocked signals, and descriptors.
//!
//! Call these at the top of `main`, before the spawner is forked: it and the holders inherit the result. Children get every signal at its
//! default and an empty mask, whatever is done here. It must not know who calls it.

use crate::spawner::{close_range, disposition};

/// Ignores SIGXFSZ: a write beyond the file size limit then fails with EFBIG instead of killing the process.
pub fn ignore_file_size_signal() {
    disposition(libc::SIGXFSZ, libc::SIG_IGN);
}

/// Unblocks all signals. A caller that blocks some, such as a test runner or a shell script's helper, would otherwise make a server that
/// no SIGTERM ends.
pub fn unblock_signals() {
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is initialised by `sigemptyset`, and only the mask of this thread changes.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Closes every descriptor above standard error. A `flock` that the caller of a background server holds would otherwise stay taken as long
/// as the server runs. Call it before any value of this process owns a descriptor.
pub fn close_descriptors() {
    close_range(3, std::os::fd::RawFd::MAX);
}
