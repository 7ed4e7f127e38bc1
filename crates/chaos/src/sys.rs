//! The two system calls of a far link that rustix has no safe function for: a new network namespace and a TUN device.
//!
//! Both belong to whoever holds their fd. The kernel removes the device and the namespace when the last fd and the last
//! process in it are gone, also after SIGKILL.

#![expect(unsafe_code, reason = "ioctl and unshare")]

use std::{
    ffi::{c_int, c_short},
    fs::File,
    io,
    os::fd::OwnedFd,
};

use rustix::{
    fs::{Mode, OFlags},
    ioctl::{Opcode, Updater, opcode},
    thread::UnshareFlags,
};

/// `TUNSETIFF` of linux/if_tun.h. The header declares the size of an int, but the argument is a `struct ifreq`.
const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);

/// Packets are IP packets without a header of the device.
const IFF_TUN: c_short = 0x0001;
const IFF_NO_PI: c_short = 0x1000;

/// `struct ifreq` of linux/if.h, with its union as flags and padding.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: c_short,
    padding: [u8; 22],
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
    let mut request = InterfaceRequest { name: [0; 16], flags: IFF_TUN | IFF_NO_PI, padding: [0; 22] };
    // The last byte stays zero: the name ends with one.
    for (to, from) in request.name[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the kernel reads and writes one `struct ifreq`, whose size and layout the type has.
    unsafe { rustix::ioctl::ioctl(&device, Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request))? };
    Ok(device)
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40, "the size of `struct ifreq` on 64-bit systems");
