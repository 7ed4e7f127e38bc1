//! Children whose fds have reserved low numbers: they share the fd table of their parent until their first step.

mod common;

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    sync::Mutex,
};

use common::{PIPE, PIPE_OPEN, PTY, finish, read_until, sh, spawn, wait_exit, write_all};
use exec_server_process::{Child, LowFds, Spawn, SpawnError, StdioMode};
use rustix::pipe::PipeFlags;

/// Tests of this file count the fds of the process, so they run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn fds_of(pid: impl std::fmt::Display) -> Vec<String> {
    let listed = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives");
    let mut listed: Vec<String> =
        listed.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    listed.sort();
    listed
}

fn start(low_fds: &LowFds, spawn: Spawn) -> Result<Child, SpawnError> {
    Spawn::spawn_all(vec![spawn], Some(low_fds)).pop().expect("one result per spawn")
}

/// Many fds, so that the child's own would have high numbers.
fn many_fds() -> Vec<OwnedFd> {
    let null = fs::File::open("/dev/null").expect("the null device opens");
    (0..500).map(|_| null.try_clone().expect("a descriptor is free").into()).collect()
}

#[test]
fn a_child_has_its_three_descriptors_and_none_of_ours() {
    let _alone = ONE_AT_A_TIME.lock();
    let low_fds = LowFds::reserve(8).expect("descriptors are free");
    let _others = many_fds();
    for stdio in [PIPE_OPEN, PTY] {
        let mut child = start(&low_fds, spawn(stdio, &["cat"])).expect("cat starts");
        write_all(child.stdin().expect("input is open"), b"up\n");
        // The reply shows that the dynamic loader has closed the fds that it opened.
        let source = child.stdout().or(child.pty()).expect("an output");
        read_until(source, if stdio == PTY { "up\r\nup\r\n" } else { "up\n" });
        assert_eq!(fds_of(child.pid().as_raw_pid()), ["0", "1", "2"]);
        child.close_stdin().expect("the input ends");
        assert_eq!(finish(child).code, 0);
    }
}

#[test]
fn our_own_descriptors_stay_as_they_are() {
    let _alone = ONE_AT_A_TIME.lock();
    let low_fds = LowFds::reserve(6).expect("descriptors are free");
    let others = many_fds();
    let targets = || {
        let target = |fd: String| (fs::read_link(format!("/proc/self/fd/{fd}")).ok(), fd);
        fds_of("self")
            .into_iter()
            .map(target)
            .filter(|(target, _)| target.as_ref().is_some_and(|path| !path.starts_with("/proc")))
            .collect::<Vec<_>>()
    };
    let before = targets();
    for round in 0..60 {
        let start = |spawn: Spawn| start(&low_fds, spawn);
        match round % 4 {
            0 => assert_eq!(finish(start(sh(PIPE, "echo out; echo err >&2")).expect("sh starts")).stdout, "out\n"),
            1 => assert!(matches!(start(spawn(PIPE, &["no-such-program"])), Err(SpawnError::Exec { .. }))),
            2 => assert_eq!(finish(start(spawn(PTY, &["echo", "x"])).expect("echo starts")).pty, "x\r\n"),
            _ => {
                let missing = Spawn { cwd: c"/no/such/directory".to_owned(), ..spawn(PIPE_OPEN, &["true"]) };
                assert!(matches!(start(missing), Err(SpawnError::Cwd { .. })));
            }
        }
    }
    assert_eq!(targets(), before);
    drop(others);
}

/// The parent's ends read EOF as soon as the child is gone: no duplicate of the child's end is left with us.
#[test]
fn streams_end_with_the_child_while_the_numbers_stay_reserved() {
    let _alone = ONE_AT_A_TIME.lock();
    let low_fds = LowFds::reserve(3).expect("descriptors are free");
    for _ in 0..20 {
        let mut child = start(&low_fds, sh(PIPE_OPEN, "cat; echo end >&2")).expect("sh starts");
        child.close_stdin().expect("the input ends");
        let finished = finish(child);
        assert_eq!((finished.stderr.as_str(), finished.code), ("end\n", 0));
    }
}

#[test]
fn children_beyond_the_reserved_numbers_start_all_the_same() {
    let _alone = ONE_AT_A_TIME.lock();
    for numbers in [0, 1, 5, 24] {
        let low_fds = LowFds::reserve(numbers).expect("descriptors are free");
        let _others = many_fds();
        for _ in 0..5 {
            let kinds: [StdioMode; 3] = [PIPE, PIPE_OPEN, PTY];
            let spawns = (0..20).map(|at| spawn(kinds[at % 3], &["echo", &at.to_string()])).collect();
            for (at, child) in Spawn::spawn_all(spawns, Some(&low_fds)).into_iter().enumerate() {
                let finished = finish(child.expect("echo starts"));
                assert_eq!(format!("{}{}", finished.stdout, finished.pty).trim_end(), at.to_string());
            }
        }
    }
}

#[test]
fn declared_descriptors_do_not_collide_with_the_reserved_numbers() {
    let _alone = ONE_AT_A_TIME.lock();
    let low_fds = LowFds::reserve(12).expect("descriptors are free");
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe opens");
    for number in 3..15 {
        let extra = write.try_clone().expect("a descriptor is free");
        let spawn =
            Spawn { extra_fds: vec![(extra, number)], ..sh(PIPE, &format!("echo {number}. >/proc/self/fd/{number}")) };
        let mut child = start(&low_fds, spawn).expect("sh starts");
        read_until(read.as_fd(), &format!("{number}."));
        assert_eq!(wait_exit(&mut child).code, 0);
    }
}
