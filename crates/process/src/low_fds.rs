//! Low fd numbers for what a child gets, so that the cost of a start does not grow with the fds of its parent.
//!
//! A child normally begins with a copy of its parent's fd table and closes almost all of it. With a thousand children
//! the parent has some thousand fds, and the copy then takes a third of the start. A child whose fds have low numbers
//! shares the table instead (`CLONE_FILES`) until its first system call, `close_range` with `CLOSE_RANGE_UNSHARE`: it
//! copies only the numbers below the closed range.
//!
//! The kernel always assigns the lowest free number, so low numbers must be held by placeholders while no child uses
//! them.
//!
//! Failure path: if too few numbers are free, the child gets a copy of the whole table, as without this module.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use parking_lot::Mutex;
use rustix::{
    fs::{Mode, OFlags},
    io::DupFlags,
};

/// Low fd numbers that a process keeps for its children. Create it before other fds take the low numbers.
#[derive(Debug)]
pub struct LowFds {
    /// What the placeholders refer to: `/dev/null`.
    null: OwnedFd,
    /// The placeholders of the numbers that no child uses now.
    free: Mutex<Vec<OwnedFd>>,
    /// Every number of `free` is below this one.
    end: RawFd,
}

/// The low numbers of one child. Dropping it returns them.
pub(crate) struct ChildNumbers<'a> {
    low_fds: &'a LowFds,
    numbers: Vec<OwnedFd>,
    placed: usize,
}

impl LowFds {
    /// Reserves the lowest `count` free numbers from 3 up.
    pub fn reserve(count: usize) -> io::Result<Self> {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let placeholder = |_| rustix::io::fcntl_dupfd_cloexec(&null, 3);
        let free = (0..count).map(placeholder).collect::<Result<Vec<_>, _>>()?;
        let end = free.iter().map(|fd| fd.as_raw_fd() + 1).max().unwrap_or(3);
        Ok(Self { null, free: Mutex::new(free), end })
    }

    /// Takes `count` numbers for one child. `None` if fewer are free.
    pub(crate) fn take(&self, count: usize) -> Option<ChildNumbers<'_>> {
        let mut free = self.free.lock();
        let rest = free.len().checked_sub(count)?;
        Some(ChildNumbers { low_fds: self, numbers: free.split_off(rest), placed: 0 })
    }
}

impl ChildNumbers<'_> {
    /// Duplicates `fd` to the next number.
    pub(crate) fn place(&mut self, fd: BorrowedFd<'_>) -> io::Result<RawFd> {
        let number = self.numbers.get_mut(self.placed).ok_or(rustix::io::Errno::MFILE)?;
        rustix::io::dup3(fd, number, DupFlags::CLOEXEC)?;
        self.placed += 1;
        Ok(number.as_raw_fd())
    }

    /// A number above all of this child.
    pub(crate) fn end(&self) -> RawFd {
        self.low_fds.end
    }
}

impl Drop for ChildNumbers<'_> {
    fn drop(&mut self) {
        let mut numbers = std::mem::take(&mut self.numbers);
        // Our duplicate of the child's end of a pipe would hide the pipe's EOF. If it cannot be replaced, close it and
        // lose the number.
        let null = self.low_fds.null.as_fd();
        let mut at = 0;
        numbers.retain_mut(|number| {
            at += 1;
            at > self.placed || rustix::io::dup3(null, number, DupFlags::CLOEXEC).is_ok()
        });
        self.low_fds.free.lock().append(&mut numbers);
    }
}
