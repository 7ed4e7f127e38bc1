//! Helpers for runs about descendants: programs that leave their session and their parents, ignore all signals that can be ignored, and are
//! identified by a unique number in their arguments; and checks for what is left of them.

use anyhow::Context as _;

use crate::prelude::*;

/// A unique number for one lot of daemons: a duration for `sleep` that no other process uses.
pub(super) fn mark(lot: u64) -> String {
    format!("1000000.{}{lot:06}", std::process::id())
}

/// A script that starts daemons, prints `up`, and continues with `then`.
pub(super) fn script(mark: &str, count: u64, then: &str) -> String {
    format!(
        "trap '' HUP INT QUIT TERM USR1 USR2; i=0; while [ $i -lt {count} ]; do \
         (setsid sleep {mark} </dev/null >/dev/null 2>&1 &); i=$((i+1)); done; echo up; {then}"
    )
}

/// The number of live daemons of a lot.
pub(super) fn alive(mark: &str) -> u64 {
    alive_of(&[mark])[0]
}

/// The number of live daemons of each lot, from one scan of all processes.
pub(super) fn alive_of(marks: &[&str]) -> Vec<u64> {
    let mut alive = vec![0; marks.len()];
    for pid in processes::pids() {
        // `setsid` execs `sleep` in the same process, so the last argument is the mark in both.
        let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_its = |mark: &&str| cmdline.split(|byte| *byte == 0).any(|argument| argument == mark.as_bytes());
        if let Some(at) = marks.iter().position(is_its)
            && state(pid).is_some_and(|(state, _)| state != "Z")
        {
            alive[at] += 1;
        }
    }
    alive
}

/// Waits until a lot has this many daemons.
pub(super) fn wait_alive(mark: &str, count: u64) -> Result<()> {
    wait_until("all daemons are up", Duration::from_secs(30), || alive(mark) >= count)
        .with_context(|| format!("{} of {count} daemons came up", alive(mark)))
}

/// Waits until no daemon of a lot is left; returns the milliseconds since `since`, or an error after `limit`.
pub(super) fn until_gone(mark: &str, since: Instant, limit: Duration) -> Result<f64> {
    loop {
        let left = alive(mark);
        let took = since.elapsed();
        if left == 0 {
            return Ok(took.as_secs_f64() * 1e3);
        }
        ensure!(took < limit, "{left} daemons are alive after {took:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The number of unreaped dead children of these processes.
pub(super) fn zombies(parents: &[u32]) -> u64 {
    let is_theirs = |pid: u32| state(pid).is_some_and(|(state, parent)| state == "Z" && parents.contains(&parent));
    processes::pids().filter(|pid| is_theirs(*pid)).count() as u64
}

/// State and parent of a process.
fn state(pid: u32) -> Option<(String, u32)> {
    let mut fields = processes::stat(pid)?.into_iter();
    Some((fields.next()?, fields.next()?.parse().ok()?))
}

/// Waits until `count` returns at most this number.
pub(super) fn settle(what: &str, at_most: u64, count: impl Fn() -> u64) -> Result<()> {
    wait_until("the count is as before", Duration::from_secs(5), || count() <= at_most)
        .with_context(|| format!("{what}: {}, at first {at_most}", count()))
}
