//! What dead holders leave behind: the spawner finds it among its own children and kills it.
//!
//! Owns which children of the spawner are holders. Every other child was started by a holder that is dead now, or by
//! something below it, and has come to us because the holder's own parent is the nearest subreaper. It is killed by its
//! number while it is our unreaped child, so that no stranger is ever hit. Its own children come to us when it is dead,
//! which is told like every death; so the kill goes on until nobody is left.

use std::collections::BTreeSet;
use std::fs;

use exec_server_process::descendants_of;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process};

#[derive(Default)]
pub(super) struct Strays {
    holders: BTreeSet<i32>,
}

impl Strays {
    /// A holder was forked.
    pub(super) fn know(&mut self, holder: i32) {
        self.holders.insert(holder);
    }

    /// Whether a holder lives.
    pub(super) fn has_holders(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Some child has died: reaps all that are dead, then kills what is not a holder.
    pub(super) fn handle_death(&mut self) {
        while let Ok(Some((dead, _))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.holders.remove(&dead.as_raw_pid());
        }
        for child in children().into_iter().filter(|child| !self.holders.contains(child)) {
            if let Some(child) = Pid::from_raw(child) {
                // Dead already: the next notice reaps it.
                kill_process(child, Signal::KILL).ok();
            }
        }
    }
}

/// Our children, dead or alive. The kernel's own list where there is one, for a walk over all processes costs much more.
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
