//! The system calls of a far link that rustix has no safe function for: a new network namespace, a TUN device, and its settings.
//!
//! Both belong to whoever holds their fd. The kernel removes the device and the namespace when the last fd and the last
//! process in it are gone, also after SIGKILL.

#![expect(unsafe_code, reason = "ioctl and unshare")]

use std::{
    ffi::{c_int, c_short},
    fs::File,
    io,
    net::Ipv4Addr,
    os::fd::OwnedFd,
};

use rustix::{
    fs::{Mode, OFlags},
    ioctl::{Opcode, Setter, Updater, opcode},
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    thread::UnshareFlags,
};

/// `TUNSETIFF` of linux/if_tun.h. The header declares the size of an int, but the argument is a `struct ifreq`.
const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);

/// Packets are IP packets without a header of the device.
const IFF_TUN: c_short = 0x0001;
const IFF_NO_PI: c_short = 0x1000;

/// Requests of linux/sockios.h that set one property of an interface.
const SIOCSIFFLAGS: Opcode = 0x8914;
const SIOCSIFADDR: Opcode = 0x8916;
const SIOCSIFDSTADDR: Opcode = 0x8918;
const SIOCSIFMTU: Opcode = 0x8922;
const SIOCSIFTXQLEN: Opcode = 0x8943;

const IFF_UP: c_short = 0x0001;

/// `AF_INET`, the first member of a `struct sockaddr_in`.
const INET: u16 = 2;

/// `struct ifreq` of linux/if.h, with its union as bytes.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    value: [u8; 24],
}

impl InterfaceRequest {
    fn new(name: &str, value: &[u8]) -> Self {
        let mut request = Self { name: [0; 16], value: [0; 24] };
        // The last byte stays zero: the name ends with one.
        for (to, from) in request.name[..15].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        request.value[..value.len()].copy_from_slice(value);
        request
    }
}

/// A property of a network interface.
#[derive(Clone, Copy)]
pub(crate) enum InterfaceSetting {
    Address(Ipv4Addr),
    /// The other end of a point-to-point interface.
    Peer(Ipv4Addr),
    Mtu(c_int),
    /// Packets that wait in the kernel for a reader of the device.
    QueueLength(c_int),
    Up,
}

/// Moves this thread into a new network namespace and returns the fd of the namespace.
pub(crate) fn new_network() -> io::Result<OwnedFd> {
    // SAFETY: the flag affects only the network of this thread. The fd table, for which the function is unsafe, stays
    // shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)? };
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

/// Creates a TUN device with this name in the network namespace of this thread. Reads and writes of the fd do not block.
pub(crate) fn tun(name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let mut request = InterfaceRequest::new(name, &(IFF_TUN | IFF_NO_PI).to_ne_bytes());
    // SAFETY: the kernel reads and writes one `struct ifreq`, whose size and layout the type has.
    unsafe { rustix::ioctl::ioctl(&device, Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request))? };
    Ok(device)
}

/// Changes an interface in the network namespace of this thread.
pub(crate) fn configure(name: &str, setting: InterfaceSetting) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let value = match setting {
        InterfaceSetting::Address(address) | InterfaceSetting::Peer(address) => {
            [&INET.to_ne_bytes()[..], &[0; 2], &address.octets()].concat()
        }
        InterfaceSetting::Mtu(number) | InterfaceSetting::QueueLength(number) => number.to_ne_bytes().to_vec(),
        InterfaceSetting::Up => IFF_UP.to_ne_bytes().to_vec(),
    };
    let request = InterfaceRequest::new(name, &value);
    // SAFETY: each of these requests makes the kernel read one `struct ifreq`, whose size and layout the type has.
    let done = unsafe {
        match setting {
            InterfaceSetting::Address(_) => rustix::ioctl::ioctl(&socket, Setter::<SIOCSIFADDR, _>::new(request)),
            InterfaceSetting::Peer(_) => rustix::ioctl::ioctl(&socket, Setter::<SIOCSIFDSTADDR, _>::new(request)),
            InterfaceSetting::Mtu(_) => rustix::ioctl::ioctl(&socket, Setter::<SIOCSIFMTU, _>::new(request)),
            InterfaceSetting::QueueLength(_) => rustix::ioctl::ioctl(&socket, Setter::<SIOCSIFTXQLEN, _>::new(request)),
            InterfaceSetting::Up => rustix::ioctl::ioctl(&socket, Setter::<SIOCSIFFLAGS, _>::new(request)),
        }
    };
    Ok(done?)
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40, "the size of `struct ifreq` on 64-bit systems");
