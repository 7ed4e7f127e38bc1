//! Moves control messages and their descriptors over a `SOCK_SEQPACKET` socket.
//!
//! Knows the socket and the memfd of a large message, not what the messages mean. All calls are non-blocking.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::codec::{HEADER, LARGE};
use super::{DecodeError, FDS_MAX, FromHolder, LARGE_MAX, MESSAGE_MAX, ToHolder, VERSION};

/// Bytes of the buffer that are received into: above [`MESSAGE_MAX`], so that a longer datagram shows as cut off.
const RECEIVED_MAX: usize = 64 * 1024;

/// Size of the receive buffer: above the allocator's threshold for pages of its own, so that only the pages that messages
/// have touched cost memory.
const BUFFER: usize = 256 * 1024;

thread_local! {
    /// Receives for every holder that a thread listens to: a server has many, and each one's messages are decoded before the next is asked for.
    static RECEIVED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One received datagram; its bytes are in the buffer that was passed, unless they came in a memfd.
#[derive(Debug)]
pub struct Datagram {
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
    len: usize,
    large: Option<Vec<u8>>,
}

impl Datagram {
    /// The message; `buf` is the buffer that it was received with.
    pub fn bytes<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        self.large.as_deref().or_else(|| buf.get(..self.len)).unwrap_or_default()
    }
}

/// Sends one message to a holder. `WouldBlock` when the socket is full: nothing was sent.
pub fn send(socket: impl AsFd, message: &ToHolder<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    send_raw(socket, &bytes, fds)
}

/// Receives one message of a holder; `None` at end of file, `WouldBlock` when nothing is there, `InvalidData` (with a
/// [`DecodeError`] inside) for what is no message, `EMFILE` when there is no room for its descriptors: it then stays and can
/// be asked for again.
pub fn recv(socket: impl AsFd) -> io::Result<Option<(FromHolder, Vec<OwnedFd>)>> {
    RECEIVED.with_borrow_mut(|buf| {
        let Some(datagram) = recv_or_leave(socket.as_fd(), buf)? else { return Ok(None) };
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
    #[expect(clippy::cast_possible_truncation, reason = "layout numbers are small")]
    let mut envelope = vec![VERSION as u8, LARGE];
    envelope.extend_from_slice(&u64::try_from(message.len()).unwrap_or(u64::MAX).to_le_bytes());
    send_datagram(socket.as_fd(), &envelope, &all)
}

/// Receives one encoded message; `None` at end of file. `buf` is the receive buffer, kept from call to call.
pub fn recv_raw(socket: impl AsFd, buf: &mut Vec<u8>) -> io::Result<Option<Datagram>> {
    recv_with(socket.as_fd(), buf, RecvFlags::empty())
}

/// Looks before it takes: the kernel drops the descriptors of a message for which a process has no room, and a log without its
/// segments would be lost. What was looked at comes with descriptors of its own, so the taking needs none.
pub(crate) fn recv_or_leave(socket: BorrowedFd<'_>, buf: &mut Vec<u8>) -> io::Result<Option<Datagram>> {
    let looked = recv_with(socket, buf, RecvFlags::PEEK);
    let is_left = looked.as_ref().is_err_and(|error| is_shortage(error) || error.kind() == io::ErrorKind::WouldBlock);
    if !is_left && !matches!(looked, Ok(None)) {
        // What the message is too short for, and the descriptors, are let go with it.
        let mut ancillary = RecvAncillaryBuffer::default();
        recvmsg(socket, &mut [], &mut ancillary, RecvFlags::DONTWAIT)?;
    }
    looked
}

fn recv_with(socket: BorrowedFd<'_>, buf: &mut Vec<u8>, extra: RecvFlags) -> io::Result<Option<Datagram>> {
    if buf.len() < BUFFER {
        // Zeroed by the allocator, not by us: see `BUFFER`.
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
    if received.bytes == 0 {
        return Ok(None);
    }
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

/// Tries again where a call was interrupted, or the peer went with words of ours unread: the kernel says that once, before what the peer
/// said last.
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

/// Whether the kernel was short of descriptors or memory, or has too many descriptors in flight: what failed may succeed later.
pub fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS))
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

/// The message in the memfd that came with its envelope.
fn load_large(envelope: &[u8], fds: &mut Vec<OwnedFd>) -> io::Result<Vec<u8>> {
    let len = envelope.get(HEADER..).and_then(|rest| <[u8; 8]>::try_from(rest).ok()).map(u64::from_le_bytes);
    let len = len.and_then(|len| usize::try_from(len).ok()).filter(|&len| len <= LARGE_MAX);
    let (Some(len), false) = (len, fds.is_empty()) else { return Err(invalid(DecodeError::Short)) };
    let body = fds.remove(0);
    // Without these seals the sender could change or shrink the text while it is read.
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
    // An envelope inside an envelope is refused by the decoder: its kind is no message.
    Ok(message)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn the_last_words_of_a_holder_are_heard_although_it_left_words_unread() {
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
