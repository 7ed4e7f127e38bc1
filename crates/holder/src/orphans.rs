//! Kills the processes that a dead holder leaves behind. The server calls this: without the holder, their output and
//! exit status can no longer be reported.

use std::os::fd::BorrowedFd;

use exec_server_process::{TreeScope, kill_trees};
use rustix::process::{Pid, Signal, pidfd_send_signal};

/// Kills the leaders and all members of their process groups and sessions. Each leader is given by its pidfd and its
/// pid: a signal through the pidfd shows whether the pid still belongs to the leader.
///
/// The kernel has already killed the leaders, because they die with their parent. This call reaches their descendants.
pub fn kill_orphans<'a>(leaders: impl Iterator<Item = (BorrowedFd<'a>, u32)>) {
    let trees: Vec<(Pid, TreeScope)> = leaders
        .filter_map(|(leader, pid)| {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
            let is_unreaped = pidfd_send_signal(leader, Signal::KILL).is_ok();
            Some((pid, if is_unreaped { TreeScope::Whole } else { TreeScope::Remains }))
        })
        .collect();
    kill_trees(&trees).ok(); // An error is ignored: the server cannot do more without `/proc`.
}
