//! Spawns from a process in an unusual state. Each test forks, so that the test process itself does not change.
//!
//! The parent never spawns in this binary: if another thread held a lock of the crate, it would stay locked in the
//! fork.

#![expect(unsafe_code, reason = "fork has no safe wrapper")]

mod common;

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
};

use common::{PIPE, PIPE_OPEN, PTY, is_gone, number_after, read_until, run, spawn, wait_until};
use exec_server_process::SpawnError;

/// Runs the body in a fork. Returns the fork's pid and a pipe with its report.
fn in_fork(body: impl FnOnce(BorrowedFd<'_>)) -> (libc::pid_t, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).expect("a pipe opens");
    // SAFETY: no other thread of this binary holds a lock that the body takes. The C library resets its own locks in a
    // fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(read);
        let result = catch_unwind(AssertUnwindSafe(|| body(write.as_fd())));
        // SAFETY: `_exit` ends the fork without running the exit handlers of the test harness.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    assert!(pid > 0, "fork works");
    (pid, read)
}

fn reap(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the pid is our unreaped child, and the status is valid for a write.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

#[test]
fn child_dies_with_its_parent() {
    for stdio in [PIPE, PTY] {
        let (parent, report) = in_fork(|report| {
            let mut spawn = spawn(stdio, &["sleep", "1000"]);
            spawn.die_with_parent = true;
            let child = spawn.spawn().expect("sleep starts");
            common::write_all(report, format!("child={}.", child.pid().as_raw_pid()).as_bytes());
            loop {
                // SAFETY: `pause` only waits for a signal, here the SIGKILL of the test.
                unsafe { libc::pause() };
            }
        });
        let child = number_after(&read_until(report.as_fd(), "."), "child");
        assert!(!is_gone(child));
        // SAFETY: the pid is our unreaped child.
        assert_eq!(unsafe { libc::kill(parent, libc::SIGKILL) }, 0);
        reap(parent);
        wait_until("the end of the child", || is_gone(child));
    }
}

#[test]
fn parent_without_standard_descriptors_spawns_correctly() {
    let (parent, report) = in_fork(|report| {
        // Move it above the fd numbers that the spawn will use.
        let report = rustix::io::fcntl_dupfd_cloexec(report, 100).expect("a descriptor is free");
        // SAFETY: nothing in this fork uses the standard fds after this.
        (0..3).for_each(|fd| assert_eq!(unsafe { libc::close(fd) }, 0));
        let mut text = String::new();
        for stdio in [PIPE, PIPE_OPEN, PTY] {
            let mut spawn = spawn(stdio, &["/bin/sh", "-c", "echo out; echo err >&2; ls -1 /proc/$$/fd; :"]);
            let extra = std::fs::File::open("/dev/null").expect("the null device opens");
            text += &format!("{} ", extra.as_raw_fd());
            spawn.extra_fds = vec![(extra.into(), 3)];
            let finished = run(spawn);
            text += &format!("{}|{}|{};", finished.stdout, finished.stderr, finished.pty).replace("\r\n", " ");
        }
        common::write_all(report.as_fd(), text.replace('\n', " ").as_bytes());
        common::write_all(report.as_fd(), b".");
    });
    let text = read_until(report.as_fd(), ".");
    assert_eq!(reap(parent), 0);
    let pipes = "0 out 0 1 2 3 |err |;";
    assert_eq!(text, format!("{pipes}{pipes}0 ||out err 0 1 2 3 ;."));
}

#[test]
fn failed_spawns_leave_no_descriptor_and_no_process() {
    let (parent, report) = in_fork(|report| {
        let open = || std::fs::read_dir("/proc/self/fd").expect("proc is mounted").count();
        let attempt = |round: usize| {
            let mut spawn = spawn([PIPE, PIPE_OPEN, PTY][round % 3], &["no-such-program"]);
            if round.is_multiple_of(2) {
                spawn.cwd = c"/no/such/directory".to_owned();
            }
            if round.is_multiple_of(5) {
                spawn.nofile = Some((2, 1));
            }
            let null = std::fs::File::open("/dev/null").expect("the null device opens");
            spawn.extra_fds = vec![(null.into(), 40)];
            let error = spawn.spawn().expect_err("every attempt is broken");
            use SpawnError::{Cwd, Exec, Setup};
            assert!(matches!(error, Cwd { .. } | Exec { .. } | Setup { .. }), "{error:?}");
        };
        attempt(0);
        let before = open();
        (0..100).for_each(attempt);
        assert_eq!(open(), before);
        // SAFETY: the call checks for any child without blocking and without a status.
        let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        assert_eq!((waited, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ECHILD)));
        (0..20).for_each(|round| drop(run(common::sh([PIPE, PTY][round % 2], "echo x"))));
        assert_eq!(open(), before);
        common::write_all(report, b"clean.");
    });
    assert_eq!(read_until(report.as_fd(), "."), "clean.");
    assert_eq!(reap(parent), 0);
}
