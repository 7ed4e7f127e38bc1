//! What a server does for the children of a holder that died: ends them. They are nobody's any more, and nobody could be told of their end.

use std::os::fd::BorrowedFd;

use exec_server_process::{TreeScope, kill_trees};
use rustix::process::{Pid, Signal, pidfd_send_signal};

/// Kills leaders and all that belongs to their groups and sessions. A leader's pidfd tells whether the number is still its own.
///
/// The kernel has killed the leaders already (they die with their parent); this reaches those they started.
pub fn kill_orphans<'a>(leaders: impl Iterator<Item = (BorrowedFd<'a>, u32)>) {
    let trees: Vec<(Pid, TreeScope)> = leaders
        .filter_map(|(leader, pid)| {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
            let is_there = pidfd_send_signal(leader, Signal::KILL).is_ok();
            Some((pid, if is_there { TreeScope::Whole } else { TreeScope::Remains }))
        })
        .collect();
    kill_trees(&trees).ok(); // Without /proc there is nobody to be found.
}
