//! The only unsafe code of the crate: calls for which neither rustix nor Tokio has a safe wrapper.
//!
//! Each function is a safe wrapper of one call.

#![expect(unsafe_code, reason = "options of sockets and the allocator, and the registration of a descriptor")]

use std::{
    io, mem,
    os::fd::{AsRawFd as _, OwnedFd},
    ptr,
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    net::TcpStream,
};

pub(crate) fn set_notsent_lowat(socket: &TcpStream, bytes: u32) -> io::Result<()> {
    // SAFETY: the fd is open while `socket` is borrowed. Pointer and length describe `bytes`, which lives across the
    // call. The kernel only reads it.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            ptr::from_ref(&bytes).cast(),
            mem::size_of::<u32>() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn last_ack_ms(socket: &TcpStream) -> Option<u32> {
    // SAFETY: `tcp_info` consists of integers only, for which all zeros is a valid value.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the fd is open while `socket` is borrowed. `len` is the size of `info`, and the kernel writes at most
    // that many bytes of plain integers. Both live across the call.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            ptr::from_mut(&mut info).cast(),
            &mut len,
        )
    };
    // An older kernel fills only the beginning of `info`, and then may not report this field.
    let end = mem::offset_of!(libc::tcp_info, tcpi_last_ack_recv) + mem::size_of::<u32>();
    (status == 0 && len as usize >= end).then_some(info.tcpi_last_ack_recv)
}

/// Registers an fd with the runtime, so that its readiness can be awaited. Calls on the fd must not block: either the
/// fd is nonblocking, or each call has a flag such as `MSG_DONTWAIT`.
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open until it is dropped and always returns the same number. The `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// Makes the allocator of this process keep up to `bytes` of freed memory for reuse. By default, glibc returns larger blocks to the kernel,
/// so each buffer of a fast transfer costs page faults again. Does nothing with another libc.
pub fn keep_freed_memory(bytes: u32) {
    #[cfg(target_env = "gnu")]
    {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        // SAFETY: mallopt has no memory-safety requirements. It may be called at any time and takes the lock of the allocator.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, bytes);
            libc::mallopt(libc::M_TRIM_THRESHOLD, bytes);
        }
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}
