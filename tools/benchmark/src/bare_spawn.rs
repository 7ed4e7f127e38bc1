//! The baseline for a spawn: fork, exec and wait with plain system calls in a small process, with and without a terminal.
//!
//! Contains the only unsafe code of the tools. Runs as a child mode, freshly exec'd and single-threaded, so that the fork copies almost
//! nothing. Does not use the server or the wire protocol.

#![expect(unsafe_code, reason = "fork and execve are what is measured")]

use std::{ffi::CString, io, os::fd::AsRawFd as _, ptr};

use rustix::pty::OpenptFlags;

use crate::prelude::*;

/// Answers each line `pipe N` or `tty N` with one line of N times in nanoseconds, and `rate N K` with the total time of N spawns, K at
/// once.
pub(super) fn serve() -> Result<()> {
    let program = CString::new(super::TRUE)?;
    for line in io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let times = match words[..] {
            ["pipe", count] => times(count.parse()?, || plain(&program))?,
            ["tty", count] => times(count.parse()?, || terminal(&program))?,
            ["rate", count, at_once] => {
                let (count, at_once) = (count.parse()?, at_once.parse()?);
                times(1, || many(&program, count, at_once))?
            }
            _ => bail!("no such measurement: `{line}`"),
        };
        println!("{}", times.join(" "));
        io::stdout().flush()?;
    }
    Ok(())
}

/// The time of each turn in nanoseconds.
fn times(count: u32, mut turn: impl FnMut() -> Result<()>) -> Result<Vec<String>> {
    let mut times = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        turn()?;
        times.push(begun.elapsed().as_nanos().to_string());
    }
    Ok(times)
}

/// Spawns `count` processes and keeps `at_once` of them running.
fn many(program: &CString, count: u32, at_once: u32) -> Result<()> {
    for started in 0..count {
        if started >= at_once {
            wait(None)?;
        }
        fork_exec(program, None)?;
    }
    for _ in 0..count.min(at_once) {
        wait(None)?;
    }
    Ok(())
}

fn plain(program: &CString) -> Result<()> {
    let pid = fork_exec(program, None)?;
    wait(Some(pid))
}

fn terminal(program: &CString) -> Result<()> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let slave = rustix::fs::open(name, flags, rustix::fs::Mode::empty())?;
    let pid = fork_exec(program, Some(&slave))?;
    drop(slave);
    let mut buffer = [0; 256];
    // Reading the master fails with EIO once the child has closed the terminal.
    while rustix::io::read(&master, &mut buffer).is_ok_and(|count| count > 0) {}
    wait(Some(pid))
}

fn fork_exec(program: &CString, slave: Option<&OwnedFd>) -> Result<libc::pid_t> {
    let argv = [program.as_ptr(), ptr::null()];
    let envp = [ptr::null()];
    // SAFETY: this process has one thread, so the child may call any function; it only makes system calls and leaves by `execve` or
    // `_exit`. `argv` and `envp` are null-terminated and outlive the call, `program` is a C string.
    let pid = unsafe { libc::fork() };
    if pid != 0 {
        return if pid < 0 { Err(io::Error::last_os_error().into()) } else { Ok(pid) };
    }
    // SAFETY: as above; the fds are open, and 0 to 2 may be replaced in the child.
    unsafe {
        if let Some(slave) = slave {
            libc::setsid();
            libc::ioctl(slave.as_raw_fd(), libc::TIOCSCTTY, 0);
            for fd in 0..3 {
                libc::dup2(slave.as_raw_fd(), fd);
            }
        }
        libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr());
        libc::_exit(127)
    }
}

/// Waits for this child, or for any.
fn wait(pid: Option<libc::pid_t>) -> Result<()> {
    let options = rustix::process::WaitOptions::empty();
    let ended = match pid {
        Some(pid) => rustix::process::waitpid(rustix::process::Pid::from_raw(pid), options)?,
        None => rustix::process::wait(options)?,
    };
    let (_, status) = ended.context("waited for the child")?;
    if status.exit_status() != Some(0) {
        bail!("the bare child ended with {status:?}");
    }
    Ok(())
}
