//! Fuzz target: the packets between server and holder, in both directions, also over a real socket.
//!
//! A packet that decodes must survive encoding and decoding again. Other packets must give a typed error. Neither may allocate more than a
//! small multiple of the packet's size.

use std::os::fd::{AsFd as _, OwnedFd};

use exec_server_holder::{
    control::{self, FromHolder, ToHolder},
    manifest,
    tombstone::Tombstone,
};
use rustix::{
    fs::{MemfdFlags, SealFlags},
    net::{AddressFamily, SendFlags, SocketFlags, SocketType},
};

use crate::weight;

pub fn check(data: &[u8]) {
    // An empty string in a list takes 4 bytes of the packet and 24 bytes of memory. While a list grows, the old allocation may exist too.
    let limit = 24 * data.len() + 4096;
    if let Ok(message) = weight::within(limit, || ToHolder::decode(data)) {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        assert_eq!(ToHolder::decode(&encoded), Ok(message));
    }
    if let Ok(message) = weight::within(limit, || FromHolder::decode(data)) {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        assert_eq!(FromHolder::decode(&encoded), Ok(message));
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Some(stone) = Tombstone::decode(text)
    {
        assert_eq!(Tombstone::decode(&stone.encode()), Some(stone));
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Some(processes) = manifest::decode(text)
    {
        assert_eq!(manifest::decode(&manifest::encode(&processes)), Some(processes));
    }
    over_a_socket(data);
}

/// Sends the packet over a socket: by itself, and as a body in a memfd that another packet announces.
fn over_a_socket(data: &[u8]) {
    if data.is_empty() || data.len() > control::MESSAGE_MAX {
        return;
    }
    let (near, far) = pair();
    rustix::net::send(&near, data, SendFlags::DONTWAIT).unwrap();
    let expected = FromHolder::decode(data).ok();
    let received = control::recv(&far);
    if data.get(1) == Some(&255) {
        assert!(received.is_err(), "a body in a memfd that did not come");
    } else {
        assert_eq!(received.ok().flatten().map(|(message, _)| message), expected);
    }
    assert!(control::recv(&far).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    let body = memfd(data);
    let mut envelope = vec![1, 255];
    envelope.extend_from_slice(&(data.len() as u64).to_le_bytes());
    send_with(&near, &envelope, &body);
    let received = control::recv(&far).ok().flatten().map(|(message, _)| message);
    assert!(received.is_none() || received == expected);
}

fn send_with(socket: &OwnedFd, bytes: &[u8], fd: &OwnedFd) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut ancillary, SendFlags::DONTWAIT).unwrap();
}

fn memfd(bytes: &[u8]) -> OwnedFd {
    let fd = rustix::fs::memfd_create("fuzzed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, bytes, 0).unwrap(), bytes.len());
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}
