//! Sends and receives control messages and their fds over a `SOCK_SEQPACKET` socket.
//!
//! Handles the memfd of a large message, and does not interpret the messages. All calls are non-blocking.

use std::{
    cell::RefCell,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    net::{
        self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags,
    },
};

use super::{
    DecodeError, FDS_MAX, FromHolder, LARGE_MAX, MESSAGE_MAX, ToHolder,
    codec::{Field, HEADER, LARGE, write_header},
};

/// Number of bytes of the buffer that are used for a receive: above [`MESSAGE_MAX`], so that a longer datagram is
/// reported as truncated.
const RECEIVED_MAX: usize = 64 * 1024;

/// Size of the receive buffer: above the allocator's mmap threshold, so that the buffer is a separate mapping, and only
/// the pages that messages have touched cost memory.
const BUFFER: usize = 256 * 1024;

thread_local! {
    /// One receive buffer for all holders that a thread reads from. A server has many holders, and decodes each message
    /// before it receives the next.
    static RECEIVED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One received datagram. Its bytes are in the receive buffer of the caller, unless they came in a memfd.
#[derive(Debug)]
pub struct Datagram {
    /// The fds that came with the message.
    pub fds: Vec<OwnedFd>,
    len: usize,
    large: Option<Vec<u8>>,
}

impl Datagram {
    /// The bytes of the message. `buf` must be the buffer that the datagram was received with.
    pub fn bytes<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        self.large.as_deref().or_else(|| buf.get(..self.len)).unwrap_or_default()
    }
}

/// Sends one message to a holder. Fails with `WouldBlock`, and sends nothing, if the socket is full.
pub fn send(socket: impl AsFd, message: &ToHolder<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    send_raw(socket, &bytes, fds)
}

/// Receives one message from a holder. Returns `None` at EOF.
///
/// Errors: `WouldBlock` if no message is pending, and `InvalidData` (with a [`DecodeError`] inside) for an invalid
/// message. `EMFILE` if this process has no room for the message's fds; the message then stays in the socket and can be
/// received later.
pub fn recv(socket: impl AsFd) -> io::Result<Option<(FromHolder, Vec<OwnedFd>)>> {
    RECEIVED.with_borrow_mut(|buf| {
        let Some(datagram) = recv_if_fds_fit(socket.as_fd(), buf)? else { return Ok(None) };
        let message = FromHolder::decode(datagram.bytes(buf)).map_err(invalid)?;
        Ok(Some((message, datagram.fds)))
    })
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
    let mut envelope = Vec::new();
    write_header(LARGE, &mut envelope);
    (message.len() as u64).write(&mut envelope);
    send_datagram(socket.as_fd(), &envelope, &all)
}

/// Receives one encoded message. Returns `None` at EOF. `buf` is the receive buffer, to be kept between calls.
pub fn recv_raw(socket: impl AsFd, buf: &mut Vec<u8>) -> io::Result<Option<Datagram>> {
    recv_with(socket.as_fd(), buf, RecvFlags::empty())
}

/// Receives a message, but leaves it in the socket if this process has no room for its fds. Peeks first: a plain
/// receive would make the kernel drop those fds, and a log without its segments would be lost. The peek creates its own
/// copies of the fds, so the second receive needs none.
pub(crate) fn recv_if_fds_fit(socket: BorrowedFd<'_>, buf: &mut Vec<u8>) -> io::Result<Option<Datagram>> {
    let peeked = recv_with(socket, buf, RecvFlags::PEEK);
    let must_stay = peeked.as_ref().is_err_and(|error| is_shortage(error) || error.kind() == io::ErrorKind::WouldBlock);
    let is_eof = matches!(peeked, Ok(None));
    if !must_stay && !is_eof {
        // Remove the message from the socket, even if it is invalid. The peek has already copied its bytes and fds, so
        // empty buffers are enough.
        let mut ancillary = RecvAncillaryBuffer::default();
        recvmsg(socket, &mut [], &mut ancillary, RecvFlags::DONTWAIT)?;
    }
    peeked
}

fn recv_with(socket: BorrowedFd<'_>, buf: &mut Vec<u8>, extra: RecvFlags) -> io::Result<Option<Datagram>> {
    if buf.len() < BUFFER {
        // The allocator provides zeroed pages, so no page is touched here: see `BUFFER`.
        *buf = vec![0; BUFFER];
    }
    let Some(target) = buf.get_mut(..RECEIVED_MAX) else { return Ok(None) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | extra;
    let received = recvmsg(socket, &mut [IoSliceMut::new(target)], &mut ancillary, flags)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    // EOF. No sender sends an empty message.
    if received.bytes == 0 {
        return Ok(None);
    }
    // The kernel could not install all fds. After a peek, the message is still in the socket.
    if received.flags.contains(ReturnFlags::CTRUNC) && extra.contains(RecvFlags::PEEK) {
        return Err(rustix::io::Errno::MFILE.into());
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(invalid(DecodeError::Short));
    }
    let message = target.get(..received.bytes).unwrap_or_default();
    let large = match message.get(1) {
        Some(&LARGE) => Some(load_large(message, &mut fds)?),
        Some(_) | None => None,
    };
    Ok(Some(Datagram { fds, len: received.bytes, large }))
}

/// Receives, and retries on EINTR and ECONNRESET. If the peer closed its socket without reading all of our messages,
/// the kernel reports ECONNRESET once, before the peer's last messages.
fn recvmsg(
    socket: BorrowedFd<'_>,
    into: &mut [IoSliceMut<'_>],
    ancillary: &mut RecvAncillaryBuffer<'_>,
    flags: RecvFlags,
) -> io::Result<net::RecvMsg> {
    loop {
        match net::recvmsg(socket, into, ancillary, flags) {
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            other => return Ok(other?),
        }
    }
}

/// Whether the kernel was short of fds or memory, or had too many fds in flight. The call may succeed later.
pub fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS))
}

/// Wraps a decode error in an `io::Error`.
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

/// Reads the message from the memfd that came with its envelope.
fn load_large(envelope: &[u8], fds: &mut Vec<OwnedFd>) -> io::Result<Vec<u8>> {
    let len = envelope.get(HEADER..).and_then(|rest| <[u8; 8]>::try_from(rest).ok()).map(u64::from_le_bytes);
    let len = len.and_then(|len| usize::try_from(len).ok()).filter(|&len| len <= LARGE_MAX);
    let (Some(len), false) = (len, fds.is_empty()) else { return Err(invalid(DecodeError::Short)) };
    let body = fds.remove(0);
    // Without these seals, the sender could change or shrink the memfd while it is read.
    let needed = SealFlags::SHRINK | SealFlags::WRITE;
    if !rustix::fs::fcntl_get_seals(&body).is_ok_and(|seals| seals.contains(needed)) {
        return Err(invalid(DecodeError::Value("seals")));
    }
    let mut message = vec![0; len];
    let mut at = 0;
    while let Some(rest) = message.get_mut(at..).filter(|rest| !rest.is_empty()) {
        let offset = u64::try_from(at).unwrap_or(u64::MAX);
        match rustix::io::retry_on_intr(|| rustix::io::pread(&body, &mut *rest, offset))? {
            0 => return Err(invalid(DecodeError::Short)),
            n => at += n,
        }
    }
    // The decoder rejects a nested envelope, because its kind is not a message.
    Ok(message)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn the_last_message_of_a_holder_is_received_although_it_left_messages_unread() {
        let flags = SocketFlags::CLOEXEC;
        let (server, holder) =
            net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        let mut last = Vec::new();
        FromHolder::Expired.encode(&mut last);
        send_raw(&holder, &last, &[]).expect("there is room");
        send(&server, &ToHolder::Attach, &[]).expect("there is room");
        drop(holder);
        let (message, fds) = recv(&server).expect("it can be read").expect("it is there");
        assert_eq!((message, fds.len()), (FromHolder::Expired, 0));
        assert!(recv(&server).expect("it can be read").is_none(), "the end follows");
    }
}
