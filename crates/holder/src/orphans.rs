//! What a server does for the children of a holder that died: ends them. They are nobody's any more, and nobody could be told of their end.

use std::os::fd::AsFd;

use exec_server_process::{TreeScope, kill_tree};
use rustix::process::{Pid, Signal, pidfd_send_signal};

/// Kills a leader and all that belongs to its group and session. The pidfd tells whether the number is still the leader's.
///
/// The kernel has killed the leader already (it dies with its parent); this reaches those it started.
pub fn kill_orphans(leader: impl AsFd, pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let scope = match pidfd_send_signal(leader, Signal::KILL) {
        Ok(()) => TreeScope::Whole,
        Err(_) => TreeScope::Remains,
    };
    kill_tree(pid, scope).ok(); // Without /proc there is nobody to be found.
}
