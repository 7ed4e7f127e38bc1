//! Builds views of the file system (mount namespaces with restricted content) in a short-lived fork of the spawner. The
//! fork has a single thread, so it may change its namespaces. It briefly becomes dumpable, because otherwise it could
//! not write its own files in `/proc`.
//!
//! Failure paths: if a step fails, the answer names the step. If the fork dies, the answer is EOF.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
};

use exec_server_sandbox::{BuildError, BuiltView, ViewScript, build};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{SpawnerHandle, holder_request::LAYOUT, isolate, set_thread_name, socket_pair};
use crate::control;

/// The request kind of a view. The others are `holder_request::KIND` and `directory_guard::KIND`.
pub(super) const KIND: u8 = 2;

/// Time limit for the mounts. Thousands of mounts take about a second.
const WITHIN_S: i64 = 10;

// First byte of an answer.
const MADE: u8 = 1;
const MADE_WITH_USER: u8 = 2;
const FAILED: u8 = 3;

impl SpawnerHandle {
    /// Requests a view, and blocks until it is built.
    pub fn view(&self, script: &ViewScript) -> Result<BuiltView, BuildError> {
        let failed = |source: io::Error| BuildError { what: "ask the spawner for a view".to_owned(), source };
        let (ours, theirs) = socket_pair().map_err(failed)?;
        let mut message = vec![LAYOUT, KIND];
        message.extend(script.encode());
        self.send_request(&message, &[theirs.as_fd()]).map_err(failed)?;
        drop(theirs);
        let within = Timespec { tv_sec: WITHIN_S, tv_nsec: 0 };
        let wait = || rustix::event::poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(&within));
        if rustix::io::retry_on_intr(wait).map_err(|errno| failed(errno.into()))? == 0 {
            return Err(failed(rustix::io::Errno::TIMEDOUT.into()));
        }
        let mut buf = Vec::new();
        let answer = control::recv_raw(&ours, &mut buf).map_err(failed)?;
        let Some(mut answer) = answer else { return Err(failed(io::ErrorKind::UnexpectedEof.into())) };
        let mut fds = std::mem::take(&mut answer.fds);
        match (answer.bytes(&buf), fds.len()) {
            ([MADE], 2) => Ok(BuiltView { user: None, root: fds.remove(1), mounts: fds.remove(0) }),
            ([MADE_WITH_USER], 3) => {
                Ok(BuiltView { root: fds.remove(2), mounts: fds.remove(1), user: Some(fds.remove(0)) })
            }
            ([FAILED, a, b, c, d, what @ ..], _) => Err(BuildError {
                what: String::from_utf8_lossy(what).into_owned(),
                source: io::Error::from_raw_os_error(i32::from_le_bytes([*a, *b, *c, *d])),
            }),
            _ => Err(failed(io::ErrorKind::InvalidData.into())),
        }
    }
}

/// Forks a process that builds a view. Returns only in the spawner, with the pid of that process.
pub(super) fn fork_view(request: &[u8], fds: Vec<OwnedFd>) -> Option<i32> {
    let Ok([reply]) = <[OwnedFd; 1]>::try_from(fds) else { return None };
    let script = ViewScript::decode(request)?;
    // SAFETY: the spawner has a single thread, so the child may use everything that the parent could. If the fork
    // fails, `reply` is dropped here and the server sees EOF.
    match unsafe { libc::fork() } {
        0 => {}
        pid => return (pid > 0).then_some(pid),
    }
    // On a panic the server sees EOF.
    catch_unwind(AssertUnwindSafe(|| answer(&script, reply))).ok();
    // SAFETY: ends this process without running the exit handlers of the program that it was forked from.
    unsafe { libc::_exit(0) }
}

fn answer(script: &ViewScript, reply: OwnedFd) {
    set_thread_name(c"exec-view");
    let Ok([reply]) = isolate([reply]) else { return };
    // An error is ignored: if the answer cannot be sent, the server is gone.
    match build(script) {
        Ok(BuiltView { user: None, mounts, root }) => {
            control::send_raw(&reply, &[MADE], &[mounts.as_fd(), root.as_fd()])
        }
        Ok(BuiltView { user: Some(user), mounts, root }) => {
            control::send_raw(&reply, &[MADE_WITH_USER], &[user.as_fd(), mounts.as_fd(), root.as_fd()])
        }
        Err(BuildError { what, source }) => {
            let mut message = vec![FAILED];
            message.extend(source.raw_os_error().unwrap_or(0).to_le_bytes());
            message.extend(what.bytes().take(1024));
            control::send_raw(&reply, &message, &[])
        }
    }
    .ok();
}
