//! Moves control messages and their descriptors over a `SOCK_SEQPACKET` socket.
//!
//! Knows the socket and the memfd of a large message, not what the messages mean. All calls are non-blocking.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::codec::{HEADER, LARGE};
use super::{DecodeError, FromHolder, ToHolder, FDS_MAX, LARGE_MAX, MESSAGE_MAX, VERSION};

/// Size of the receive buffer: above [`MESSAGE_MAX`], so that a longer datagram shows as cut off.
const BUFFER: usize = 64 * 1024;

/// One received datagram; its bytes are in the buffer that was passed.
#[derive(Debug)]
pub struct Datagram {
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// Sends one message to a holder. `WouldBlock` when the socket is full: nothing was sent.
pub fn send(socket: impl AsFd, message: &ToHolder<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    send_raw(socket, &bytes, fds)
}

/// Receives one message of a holder; `None` at end of file, `WouldBlock` when nothing is there, `InvalidData` (with a
/// [`DecodeError`] inside) for what is no message. `buf` is the receive buffer, kept from call to call.
pub fn recv(socket: impl AsFd, buf: &mut Vec<u8>) -> io::Result<Option<(FromHolder, Vec<OwnedFd>)>> {
    let Some(datagram) = recv_raw(socket, buf)? else { return Ok(None) };
    Ok(Some((FromHolder::decode(buf).map_err(invalid)?, datagram.fds)))
}

/// Sends an encoded message, in a sealed memfd if it is too large for a datagram.
pub fn send_raw(socket: impl AsFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if message.len() <= MESSAGE_MAX {
        return send_datagram(socket.as_fd(), message, fds);
    }
    if message.len() > LARGE_MAX || fds.len() >= FDS_MAX {
        return Err(rustix::io::Errno::MSGSIZE.into());
    }
    let body = sealed_memfd(message)?;
    let mut all = vec![body.as_fd()];
    all.extend_from_slice(fds);
    #[expect(clippy::cast_possible_truncation, reason = "layout numbers are small")]
    let mut envelope = vec![VERSION as u8, LARGE];
    envelope.extend_from_slice(&u64::try_from(message.len()).unwrap_or(u64::MAX).to_le_bytes());
    send_datagram(socket.as_fd(), &envelope, &all)
}

/// Receives one encoded message into `buf`, which then holds exactly its bytes; `None` at end of file.
pub fn recv_raw(socket: impl AsFd, buf: &mut Vec<u8>) -> io::Result<Option<Datagram>> {
    // A large message grew the buffer: give that memory back now.
    if buf.capacity() > BUFFER {
        *buf = Vec::new();
    }
    buf.resize(BUFFER, 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buf)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(invalid(DecodeError::Short));
    }
    buf.truncate(received.bytes);
    if buf.get(1) == Some(&LARGE) {
        load_large(buf, &mut fds)?;
    }
    Ok(Some(Datagram { fds }))
}

/// Wraps a decode error for the callers that deal in `io::Error`.
pub(crate) fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn send_datagram(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::MSGSIZE.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match net::sendmsg(socket, &[IoSlice::new(message)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}

fn sealed_memfd(body: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("message", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut at = 0;
    while let Some(rest) = body.get(at..).filter(|rest| !rest.is_empty()) {
        at += rustix::io::retry_on_intr(|| rustix::io::write(&fd, rest))?;
    }
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(fd)
}

/// Replaces the envelope in `buf` by the message in its memfd.
fn load_large(buf: &mut Vec<u8>, fds: &mut Vec<OwnedFd>) -> io::Result<()> {
    let len = buf.get(HEADER..).and_then(|rest| <[u8; 8]>::try_from(rest).ok()).map(u64::from_le_bytes);
    let len = len.and_then(|len| usize::try_from(len).ok()).filter(|&len| len <= LARGE_MAX);
    let (Some(len), false) = (len, fds.is_empty()) else { return Err(invalid(DecodeError::Short)) };
    let body = fds.remove(0);
    // Without these seals the sender could change or shrink the text while it is read.
    let needed = SealFlags::SHRINK | SealFlags::WRITE;
    if !rustix::fs::fcntl_get_seals(&body).is_ok_and(|seals| seals.contains(needed)) {
        return Err(invalid(DecodeError::Value("seals")));
    }
    buf.clear();
    buf.resize(len, 0);
    let mut at = 0;
    while let Some(rest) = buf.get_mut(at..).filter(|rest| !rest.is_empty()) {
        let offset = u64::try_from(at).unwrap_or(u64::MAX);
        match rustix::io::retry_on_intr(|| rustix::io::pread(&body, &mut *rest, offset))? {
            0 => return Err(invalid(DecodeError::Short)),
            n => at += n,
        }
    }
    // A large message inside a large message would recurse.
    if buf.get(1) == Some(&LARGE) { Err(invalid(DecodeError::Kind(LARGE))) } else { Ok(()) }
}
