//! Kills the processes that a leader leaves behind.

mod common;

use common::{PIPE, PIPE_OPEN, is_gone, number_after, read_until, sh, wait_exit, wait_until};
use exec_server_process::{TreeScope, descendants_of, kill_descendants, kill_tree};

#[test]
fn daemon_in_its_own_session_is_found_while_its_parent_chain_lives() {
    // The daemon has left group and session. Its parent, which also has its own session, still runs.
    let script = "setsid sh -c 'setsid sh -c \"echo daemon=\\$\\$.; sleep 1000; :\" & wait' & wait";
    let mut child = sh(PIPE, script).spawn().expect("sh starts");
    let daemon = number_after(&read_until(child.stdout().expect("a pipe"), "."), "daemon");
    let members = descendants_of(child.pid()).expect("the walk works");
    let found = members.iter().find(|member| member.pid.as_raw_pid() == daemon).expect("the daemon is a descendant");
    assert_eq!((found.session, found.is_zombie), (daemon, false));
    let killed = kill_tree(child.pid(), TreeScope::Whole).expect("the walk works");
    assert!(killed.complete && killed.signalled >= 3, "{killed:?}");
    assert_eq!(wait_exit(&mut child).signal, Some(9));
    wait_until("the end of the tree", || members.iter().all(|member| is_gone(member.pid.as_raw_pid())));
}

#[test]
fn group_of_an_exited_unreaped_leader_can_be_signalled() {
    let child = sh(PIPE, "sleep 1000 & echo bg=$!.").spawn().expect("sh starts");
    let background = number_after(&read_until(child.stdout().expect("a pipe"), "."), "bg");
    common::wait_readable(child.exit_fd());
    assert!(!is_gone(background));
    child.signal_group(libc::SIGTERM).expect("the zombie pins its group");
    wait_until("the end of the background job", || is_gone(background));
}

#[test]
fn reaped_leader_is_never_signalled_but_its_remains_are_killed() {
    // One job is in the leader's group, one in another group of its session.
    let script = "sleep 1000 & near=$!; set -m; sleep 1001 & echo near=$near far=$! done.; exit 0";
    let mut child = sh(PIPE, script).spawn().expect("sh starts");
    let text = read_until(child.stdout().expect("a pipe"), "done.");
    let (near, far) = (number_after(&text, "near"), number_after(&text, "far"));
    wait_exit(&mut child);
    let error = child.signal_group(libc::SIGKILL).expect_err("the leader was reaped");
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    assert!(!is_gone(near) && !is_gone(far));
    let killed = child.kill_tree().expect("the walk works");
    assert_eq!((killed.signalled, killed.complete), (2, true));
    wait_until("the end of the jobs", || is_gone(near) && is_gone(far));
    let again = child.kill_tree().expect("the walk works");
    assert!(again.complete, "{again:?}");
}

#[test]
fn tree_that_keeps_forking_dies() {
    let script = "echo up.; i=0; while [ $i -lt 500 ]; do sleep 1000 & i=$((i+1)); done; wait";
    let mut child = sh(PIPE, script).spawn().expect("sh starts");
    read_until(child.stdout().expect("a pipe"), "up.");
    let killed = child.kill_tree().expect("the walk works");
    assert!(killed.complete, "{killed:?}");
    wait_exit(&mut child);
    // The pipe reaches EOF only when every process that holds it is gone.
    let mut rest = Vec::new();
    common::read_to_end(child.stdout().expect("a pipe"), &mut rest);
}

#[test]
fn descendants_are_killed_without_their_ancestor() {
    let script = "setsid sleep 1000 & sleep 1001 & echo up.; wait; read line; exit 5";
    let mut child = sh(PIPE_OPEN, script).spawn().expect("sh starts");
    read_until(child.stdout().expect("a pipe"), "up.");
    wait_until("both jobs", || descendants_of(child.pid()).expect("the walk works").len() == 2);
    let killed = kill_descendants(child.pid()).expect("the walk works");
    assert_eq!((killed.signalled, killed.complete), (2, true));
    common::write_all(child.stdin().expect("input is open"), b"go\n");
    assert_eq!(wait_exit(&mut child).code, 5);
}
