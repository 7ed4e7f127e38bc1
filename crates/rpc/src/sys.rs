//! The only unsafe code of the crate: calls that neither rustix nor tokio offers as safe ones.
//!
//! Each function is a safe wrapper of one call. Knows nothing of what it is called for.

#![expect(unsafe_code, reason = "socket options that rustix lacks, and the registration of a descriptor")]

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
    // SAFETY: the descriptor is open while `socket` is borrowed; the pointer and the length describe `bytes`, which
    // lives across the call; the kernel only reads it.
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
    // SAFETY: `tcp_info` consists of integers only, for which all zeroes is a value.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed; `len` is the size of `info`, and the kernel writes
    // at most that many bytes of plain integers; both live across the call.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            ptr::from_mut(&mut info).cast(),
            &mut len,
        )
    };
    let end = mem::offset_of!(libc::tcp_info, tcpi_last_ack_recv) + mem::size_of::<u32>();
    (status == 0 && len as usize >= end).then_some(info.tcpi_last_ack_recv)
}

/// Registers a descriptor with the runtime, so that its readiness can be awaited. It should be nonblocking.
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open until it is dropped, always gives the same number, and the `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
