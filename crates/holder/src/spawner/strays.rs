//! Kills the processes that dead holders leave behind. The spawner finds them among its own children.
//!
//! Tracks which children the spawner has forked (holders and view builders). Every other child is a descendant of a
//! dead holder, which became a child of the spawner because the spawner is the nearest subreaper. Such a child is
//! killed by its pid. It has not been reaped, so the pid cannot have been reused. When the child dies, its own children
//! become children of the spawner, and SIGCHLD triggers the next round. So the kill continues until none is left.

use std::{collections::BTreeSet, fs};

use exec_server_process::descendants_of;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process};

#[derive(Default)]
pub(super) struct StrayKiller {
    /// The pids of the children that the spawner has forked and not reaped.
    forked: BTreeSet<i32>,
}

impl StrayKiller {
    /// Records a child that the spawner has forked.
    pub(super) fn register(&mut self, pid: i32) {
        self.forked.insert(pid);
    }

    /// Whether a child that the spawner forked (a holder or a view builder) is alive.
    pub(super) fn has_live_forks(&self) -> bool {
        !self.forked.is_empty()
    }

    /// Handles SIGCHLD: reaps all dead children, then kills the children that the spawner did not fork.
    pub(super) fn handle_death(&mut self) {
        while let Ok(Some((dead, _))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.forked.remove(&dead.as_raw_pid());
        }
        for child in children().into_iter().filter(|child| !self.forked.contains(child)) {
            if let Some(child) = Pid::from_raw(child) {
                // An error means that the child is dead. The next SIGCHLD reaps it.
                kill_process(child, Signal::KILL).ok();
            }
        }
    }
}

/// The children of this process, dead or alive. Uses the kernel's list if it exists, because a walk over all processes
/// costs much more.
fn children() -> Vec<i32> {
    let me = getpid().as_raw_pid();
    match fs::read_to_string(format!("/proc/self/task/{me}/children")) {
        Ok(list) => list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
        Err(_) => {
            let below = descendants_of(getpid()).unwrap_or_default();
            below.iter().filter(|member| member.parent == me).map(|member| member.pid.as_raw_pid()).collect()
        }
    }
}
