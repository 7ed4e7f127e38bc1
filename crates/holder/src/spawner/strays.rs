//! Kills the processes that dead holders leave behind. The spawner finds them among its own children.
//!
//! Tracks which children of the spawner it forked itself (holders and view builders). Every other child is a descendant
//! of a dead holder: it became our child because the spawner is the nearest subreaper. It is killed by its pid while it
//! is our unreaped child, so the pid cannot have been reused. When it dies, its own children become ours, and SIGCHLD
//! triggers the next round. So the kill continues until none is left.

use std::collections::BTreeSet;
use std::fs;

use exec_server_process::descendants_of;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process};

#[derive(Default)]
pub(super) struct StrayKiller {
    holders: BTreeSet<i32>,
}

impl StrayKiller {
    /// Records a child that the spawner has forked.
    pub(super) fn register(&mut self, holder: i32) {
        self.holders.insert(holder);
    }

    /// Whether a child that the spawner forked is alive.
    pub(super) fn has_holders(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Handles SIGCHLD: reaps all dead children, then kills the children that the spawner did not fork.
    pub(super) fn handle_death(&mut self) {
        while let Ok(Some((dead, _))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.holders.remove(&dead.as_raw_pid());
        }
        for child in children().into_iter().filter(|child| !self.holders.contains(child)) {
            if let Some(child) = Pid::from_raw(child) {
                // An error means that the child is dead. The next SIGCHLD reaps it.
                kill_process(child, Signal::KILL).ok();
            }
        }
    }
}

/// Our children, dead or alive. Uses the kernel's list if it exists, because a walk over all processes costs much more.
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
