//! Children with pipes.

mod common;

use std::os::fd::{AsFd, OwnedFd};

use common::{
    PIPE, PIPE_OPEN, finish, is_reaped, number_after, pipe_with, read_until, run, sh, spawn, wait_exit, wait_until,
    write_all,
};
use exec_server_process::{CloseStdinOutcome, TerminalSize};

#[test]
fn pipe_process_round_trips_stdin() {
    let mut child = spawn(PIPE_OPEN, &["cat"]).spawn().expect("cat starts");
    write_all(child.stdin().expect("stdin is open"), b"round trip\n");
    assert_eq!(read_until(child.stdout().expect("a pipe"), "\n"), "round trip\n");
    assert_eq!(child.close_stdin().expect("a pipe closes"), CloseStdinOutcome::Closed);
    assert_eq!(child.close_stdin().expect("a second close is harmless"), CloseStdinOutcome::NotOpen);
    let finished = finish(child);
    assert_eq!((finished.code, finished.signal), (0, None));
}

#[test]
fn pipe_drains_stderr_without_stdout_activity() {
    // More than a pipe holds, so the child ends only if its stderr is read.
    let finished = run(sh(PIPE, "head -c 200000 /dev/zero | tr '\\0' x >&2"));
    assert_eq!((finished.stdout.len(), finished.stderr.len(), finished.code), (0, 200_000, 0));
}

#[test]
fn pipe_process_can_expose_split_stdout_and_stderr() {
    let finished = run(sh(PIPE, "echo out; echo err >&2; exit 4"));
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str(), finished.code), ("out\n", "err\n", 4));
}

#[test]
fn pipe_without_stdin_reads_the_null_device() {
    let finished = run(sh(PIPE, "readlink /proc/self/fd/0; wc -c"));
    assert_eq!(finished.stdout.split_whitespace().collect::<Vec<_>>(), ["/dev/null", "0"]);
}

#[test]
fn pipe_process_detaches_from_parent_session() {
    let child = sh(PIPE, "echo $$; cut -d' ' -f5,6 /proc/$$/stat; tty").spawn().expect("sh starts");
    let pid = child.pid().as_raw_pid().to_string();
    let stdout = finish(child).stdout;
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines, [pid.as_str(), &format!("{pid} {pid}"), "not a tty"]);
    // Compare as text: in a pid namespace our own session may be outside of it, and its id is then 0.
    let stat = std::fs::read_to_string("/proc/self/stat").expect("our own entry");
    let ours = stat.rsplit(") ").next().and_then(|fields| fields.split(' ').nth(3)).expect("a session");
    assert_ne!(pid, ours);
}

#[test]
fn pipe_terminate_aborts_detached_readers() {
    // The writer is in another session and holds our pipe. The pipe reaches EOF only after the kill.
    let script = "setsid sh -c 'echo inner=$$; while :; do echo tick; sleep 0.01; done' & wait";
    let mut child = sh(PIPE, script).spawn().expect("sh starts");
    let text = read_until(child.stdout().expect("a pipe"), "tick");
    let inner = number_after(&text, "inner");
    let killed = child.kill_tree().expect("the walk works");
    assert!(killed.complete && killed.signalled >= 1, "{killed:?}");
    assert_eq!(wait_exit(&mut child).signal, Some(9));
    wait_until("the end of the inner session", || common::is_gone(inner));
    finish(child);
}

#[test]
fn pipe_terminate_reaps_child() {
    let mut child = spawn(PIPE, &["sleep", "1000"]).spawn().expect("sleep starts");
    assert_eq!(child.try_wait().expect("the child can be waited for"), None);
    child.signal_group(libc::SIGKILL).expect("the group is there");
    let exited = wait_exit(&mut child);
    assert_eq!((exited.code, exited.signal), (137, Some(9)));
    assert!(is_reaped(child.pid()));
    assert_eq!(child.try_wait().expect("the answer is kept"), Some(exited));
}

#[test]
fn pipe_drop_reaps_child() {
    let child = sh(PIPE, "trap '' TERM HUP INT; sleep 1000").spawn().expect("sh starts");
    let pid = child.pid();
    drop(child);
    assert!(is_reaped(pid));
}

#[test]
fn dropping_a_reaped_child_signals_no_process() {
    let mut child = sh(PIPE, "sleep 1000 & echo bg=$!").spawn().expect("sh starts");
    let background = number_after(&read_until(child.stdout().expect("a pipe"), "\n"), "bg");
    let leader = child.pid();
    wait_exit(&mut child);
    drop(child);
    assert!(!common::is_gone(background));
    let scope = exec_server_process::TreeScope::Remains;
    let killed = exec_server_process::kill_tree(leader, scope).expect("the walk works");
    assert_eq!((killed.signalled, killed.complete), (1, true));
    wait_until("the end of the background job", || common::is_gone(background));
}

#[test]
fn pipe_spawn_no_stdin_can_preserve_inherited_fds() {
    let read = pipe_with(b"declared\n");
    // One number far above the others, and one that is probably in use here.
    let duplicate: OwnedFd = read.as_fd().try_clone_to_owned().expect("a descriptor is free");
    let mut spawn = sh(PIPE, "head -n 1 /dev/fd/33; ls -v /proc/$$/fd; :");
    spawn.extra_fds = vec![(read, 33), (duplicate, 4)];
    let stdout = run(spawn).stdout;
    assert_eq!(stdout, "declared\n0\n1\n2\n4\n33\n");
}

#[test]
fn resize_of_pipes_is_refused() {
    let child = spawn(PIPE, &["true"]).spawn().expect("true starts");
    let error = child.resize(TerminalSize { rows: 1, cols: 1 }).expect_err("pipes have no size");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    finish(child);
}

#[test]
fn stdin_of_a_dead_child_is_a_broken_pipe() {
    let mut child = spawn(PIPE_OPEN, &["true"]).spawn().expect("true starts");
    wait_exit(&mut child);
    let stdin = child.stdin().expect("stdin is open on our side");
    // A child of another test that is between fork and exec can briefly hold a copy of the read end.
    wait_until("the broken pipe", || rustix::io::write(stdin, b"late") == Err(rustix::io::Errno::PIPE));
}

#[test]
fn usage_of_a_busy_child_is_reported() {
    let mut child = sh(PIPE, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done").spawn().expect("sh starts");
    let exited = wait_exit(&mut child);
    assert!(exited.user_ms + exited.system_ms > 0, "{exited:?}");
    assert!(exited.max_rss_bytes > 100_000, "{exited:?}");
}
