//! Several children that are spawned together: each has its own result, and none waits for the exec of another.

mod common;

use std::{fs, os::fd::OwnedFd, sync::mpsc, thread};

use common::{DEADLINE, PIPE, PTY, finish, run, sh, spawn, wait_until};
use exec_server_process::{Child, Spawn, SpawnError};

/// A pipe whose buffer is full.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe opens");
    let size = rustix::pipe::fcntl_setpipe_size(&write, 4096).expect("its size can be set");
    assert_eq!(rustix::io::write(&write, &vec![0; size]), Ok(size));
    (read, write)
}

/// A child that reads the pipe, so that one that is held up continues.
fn reader_of(pipe: OwnedFd) -> Spawn {
    Spawn { extra_fds: vec![(pipe, 9)], ..sh(PIPE, "head -c 4096 <&9 >/dev/null; echo read") }
}

/// The output of each child.
fn outputs(children: impl IntoIterator<Item = Result<Child, SpawnError>>) -> Vec<String> {
    children.into_iter().map(|child| finish(child.expect("it was spawned")).stdout).collect()
}

/// A child that blocks before its exec until the pipe is read: the pipe takes the place of a cgroup file, into which
/// the child writes itself.
fn held_up(pipe: OwnedFd, script: &str) -> Spawn {
    Spawn { cgroups: vec![pipe], ..sh(PIPE, script) }
}

/// Spawns children on a separate thread. If they block each other until the deadline, reads the pipe and fails the
/// test.
fn spawn_all(spawns: impl FnOnce() -> Vec<Spawn> + Send, pipe: &OwnedFd) -> Vec<Result<Child, SpawnError>> {
    // The first spawn of a process checks that the kernel clears the futex word. Only then are children spawned
    // concurrently.
    assert_eq!(run(spawn(PIPE, &["true"])).code, 0);
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        let births = scope.spawn(move || {
            let children = Spawn::spawn_all(spawns(), None);
            done.send(()).ok();
            children
        });
        let in_time = is_done.recv_timeout(DEADLINE);
        if in_time.is_err() {
            rustix::io::read(pipe, &mut [0; 4096][..]).expect("the pipe is full");
        }
        let children = births.join().expect("births do not panic");
        in_time.expect("the children did not wait for each other");
        children
    })
}

#[test]
fn each_child_has_its_own_result_in_its_own_place() {
    for _ in 0..20 {
        let describe = |number: usize| match number % 7 {
            3 => spawn(PIPE, &["no-such-program"]),
            4 => Spawn { cwd: c"/no/such/directory".to_owned(), ..spawn(PIPE, &["true"]) },
            5 => Spawn::new(Vec::new()),
            6 => spawn(PTY, &["echo", &number.to_string()]),
            _ => spawn(PIPE, &["echo", &number.to_string()]),
        };
        let children = Spawn::spawn_all((0..30).map(describe).collect(), None);
        assert_eq!(children.len(), 30);
        for (number, child) in children.into_iter().enumerate() {
            match (number % 7, child) {
                (3, Err(SpawnError::Exec { .. }))
                | (4, Err(SpawnError::Cwd { .. }))
                | (5, Err(SpawnError::EmptyArgv)) => {}
                (0..=2 | 6, Ok(child)) => {
                    let finished = finish(child);
                    assert_eq!(format!("{}{}", finished.stdout, finished.pty).trim_end(), number.to_string());
                }
                (_, other) => panic!("number {number}: {other:?}"),
            }
        }
    }
    assert!(Spawn::spawn_all(Vec::new(), None).is_empty());
}

#[test]
fn a_blocked_child_does_not_block_the_next() {
    let (read, write) = full_pipe();
    let ours = read.try_clone().expect("a descriptor is free");
    let spawns = move || vec![held_up(write, "echo written"), reader_of(read)];
    assert_eq!(outputs(spawn_all(spawns, &ours)), ["written\n", "read\n"]);
}

#[test]
fn a_child_that_must_be_alone_blocks_the_next() {
    let (read, write) = full_pipe();
    let (tell, thread) = mpsc::channel();
    let births = thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero()).expect("the test waits for it");
        assert_eq!(run(spawn(PIPE, &["true"])).code, 0);
        let held_up = Spawn { alone: true, ..held_up(write, "echo first") };
        Spawn::spawn_all(vec![held_up, sh(PIPE, "echo second")], None)
    });
    let thread = thread.recv_timeout(DEADLINE).expect("it tells");
    let children = || fs::read_to_string(format!("/proc/self/task/{thread}/children")).expect("proc is mounted");
    let is_waiting = |child: &str| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        // The child has not yet executed the shell.
        status.contains("State:\tS") && !status.contains("Name:\tsh") && !status.contains("Name:\ttrue")
    };
    wait_until("the first one waits", || children().split(' ').any(|child| !child.is_empty() && is_waiting(child)));
    // The next child would appear in less than a millisecond. These checks take tens of milliseconds.
    let most = (0..2000).map(|_| children().split_whitespace().count()).max();
    rustix::io::read(&read, &mut [0; 4096][..]).expect("the pipe is full");
    assert_eq!(most, Some(1));
    assert_eq!(outputs(births.join().expect("births do not panic")), ["first\n", "second\n"]);
}

#[test]
fn a_child_killed_before_its_exec_is_reported_as_killed() {
    let (read, write) = full_pipe();
    let spawns = move || {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        // Kills the first child of this thread as soon as it blocks.
        let script = format!(
            "read -r first others </proc/$PPID/task/{thread}/children
            until grep -q '^State:.S' /proc/$first/status; do :; done
            kill -9 $first && echo killed"
        );
        vec![held_up(write, "echo never"), sh(PIPE, &script)]
    };
    let children = spawn_all(spawns, &read);
    let mut children = children.into_iter().map(|child| finish(child.expect("both are born")));
    let first = children.next().expect("the one that was held up");
    assert_eq!((first.stdout.as_str(), first.signal), ("", Some(9)));
    assert_eq!(children.next().expect("the one that kills").stdout, "killed\n");
}

#[test]
fn a_late_failure_is_reported_and_the_others_are_spawned() {
    let (read, write) = full_pipe();
    let ours = read.try_clone().expect("a descriptor is free");
    let spawns = move || {
        let fails = Spawn { cwd: c"/no/such/directory".to_owned(), ..held_up(write, "echo never") };
        vec![fails, sh(PIPE, "echo second"), reader_of(read)]
    };
    let mut children = spawn_all(spawns, &ours).into_iter();
    assert!(matches!(children.next(), Some(Err(SpawnError::Cwd { .. }))));
    assert_eq!(outputs(children), ["second\n", "read\n"]);
}
