//! Processes of this machine, read from `/proc`, and the check that a run leaves no process and no file behind.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, WaitOptions};

/// All pids of the machine.
pub fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The `comm` of a process.
pub fn comm(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// The fields of `/proc/PID/stat` from the state on. The name before them may contain spaces.
pub fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit(") ").next()?.split_whitespace().map(str::to_owned).collect())
}

/// The children of a process.
pub fn children_of(parent: u32) -> Vec<u32> {
    let parent_of = |pid: u32| stat(pid)?.get(1)?.parse().ok();
    pids().filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// Processes with a path below this directory in their command line, except this one. Forks keep the command line.
pub fn with_path(folder: &Path) -> Vec<u32> {
    let needle = folder.as_os_str().as_encoded_bytes();
    let own = std::process::id();
    let has_path = |pid: u32| {
        let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        cmdline.windows(needle.len()).any(|part| part == needle)
    };
    pids().filter(|pid| *pid != own && has_path(*pid)).collect()
}

/// The first line that a program prints on its stdout, which is then closed; empty if it prints none.
pub fn first_line(child: &mut Child) -> Result<String> {
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("standard output is a pipe")?).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// Sends a signal to a process that we started, or to one of its descendants; returns whether it existed.
pub fn kill(pid: u32, signal: Signal) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::kill_process(pid, signal).is_ok())
}

/// Removes the control groups of sessions whose holders were killed, because no later server does it.
pub fn remove_groups(sessions: &Path) {
    for session in fs::read_dir(sessions).into_iter().flatten().flatten() {
        let text = fs::read_to_string(session.path().join("cgroup")).unwrap_or_default();
        for dir in text.lines().filter_map(|line| line.split_once(' ')).map(|(_, dir)| Path::new(dir)) {
            for process in fs::read_dir(dir).into_iter().flatten().flatten() {
                fs::remove_dir(process.path()).ok(); // Fails for plain files, which disappear with their directory.
            }
            fs::remove_dir(dir).ok();
            dir.parent().map(fs::remove_dir); // Fails while another group is in it.
        }
    }
}

/// Fails if an orphaned process or a file in the directory is still there after two seconds.
pub fn nothing_left(folder: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        reap()?;
        // Everything that we started has ended, so every child is an orphan that was reparented to us.
        let orphans = children_of(std::process::id());
        let processes: Vec<_> =
            orphans.into_iter().map(|pid| format!("{} {pid}", comm(pid).unwrap_or_default())).collect();
        let files: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
        if processes.is_empty() && files.is_empty() {
            println!("left behind: nothing");
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "left behind: processes {processes:?}, files {files:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Reaps orphans that have ended.
fn reap() -> Result<()> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(()),
            Err(error) => return Err(error).context("wait for orphans"),
        }
    }
}
