//! Processes of a test, seen from outside: the leak check, signals and memory. It identifies processes by a mark in their arguments that
//! only this test's servers have, and never ends a process by name.

use std::{collections::BTreeSet, fs, path::Path};

use exec_server_workspace::processes::{pids, stat, with_path};
use rustix::process::{Pid, Signal, kill_process};

use crate::{signal, state, wait_for};

/// The live processes whose arguments contain `mark`: server, spawner and holders, which are forks and keep the arguments.
pub fn marked(mark: &str) -> BTreeSet<u32> {
    with_path(Path::new(mark)).into_iter().filter(|pid| is_alive(*pid)).collect()
}

/// The live descendants of `roots`, without `roots` themselves.
pub fn descendants(roots: &BTreeSet<u32>) -> BTreeSet<u32> {
    let parents: Vec<(u32, u32)> = pids().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = BTreeSet::new();
    loop {
        let before = found.len();
        for (pid, parent) in &parents {
            if (roots.contains(parent) || found.contains(parent)) && !roots.contains(pid) {
                found.insert(*pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Waits until none of `pids` is alive.
pub fn wait_gone(what: &str, pids: &BTreeSet<u32>) {
    wait_for(&format!("end of {what}: {pids:?}"), || !pids.iter().any(|pid| is_alive(*pid)));
}

/// Waits until a process has ended.
pub fn wait_pid_gone(pid: u32) {
    wait_gone("a process", &BTreeSet::from([pid]));
}

/// Whether the process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != "Z" && state != "X")
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.get(1)?.parse().ok()
}

/// Sends a signal to a process of this test.
pub fn send_signal(pid: u32, signal: Signal) {
    kill_process(raw(pid), signal).expect("signal a process of this test");
}

/// Sends SIGKILL.
pub fn kill(pid: u32) {
    send_signal(pid, Signal::KILL);
}

/// Sends SIGSTOP and waits until the process is stopped.
pub fn stop(pid: u32) {
    send_signal(pid, Signal::STOP);
    wait_for("a process to stand still", || state(pid).is_some_and(|state| state == "T"));
}

/// A stopped process. Dropping it sends SIGCONT.
pub struct Stopped(pub u32);

impl Stopped {
    pub fn new(pid: u32) -> Self {
        stop(pid);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// Resident memory of a kind in bytes: `RssAnon` is a process's own memory; the logs that it maps are `RssShmem`.
pub fn resident(pid: u32, kind: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find(|line| line.starts_with(kind)).expect("a line of this kind");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

pub(crate) fn raw(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).expect("a process id is not zero")
}
