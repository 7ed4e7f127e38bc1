//! The environment that a child starts with: name, program, directory, fds, signals and limits. Also typed spawn
//! failures.

#![expect(unsafe_code, reason = "signal masks and dispositions have no safe wrapper")]

mod common;

use std::{
    fs,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use common::{PIPE, PIPE_OPEN, PTY, c_string, finish, pipe_with, read_until, run, sh, spawn, write_all, write_script};
use exec_server_process::{IgnoredSignals, Spawn, SpawnError, SpawnStage, StdioMode};

fn output(spawn: Spawn) -> String {
    let finished = run(spawn);
    format!("{}{}{}", finished.stdout, finished.stderr, finished.pty).replace("\r\n", "\n")
}

#[test]
fn arg0_changes_the_name_and_not_the_program() {
    for stdio in [PIPE, PTY] {
        let mut spawn = spawn(stdio, &["cat", "/proc/self/cmdline"]);
        spawn.arg0 = Some(c"renamed".to_owned());
        assert_eq!(output(spawn), "renamed\0/proc/self/cmdline\0");
    }
}

#[test]
fn missing_cwd_is_a_typed_error() {
    for stdio in [PIPE, PTY] {
        let mut spawn = spawn(stdio, &["true"]);
        spawn.cwd = c"/no/such/directory".to_owned();
        let error = spawn.spawn().expect_err("the directory does not exist");
        let SpawnError::Cwd { path, source } = error else { panic!("unexpected: {error:?}") };
        assert_eq!((path.as_c_str(), source.raw_os_error()), (c"/no/such/directory", Some(libc::ENOENT)));
    }
}

#[test]
fn program_starts_in_the_given_directory() {
    let directory = tempfile::tempdir().expect("a directory is made");
    let path = directory.path().canonicalize().expect("it has a path");
    write_script(&path.join("here"), "#!/bin/sh\npwd\n");
    for (stdio, program) in [(PIPE, "./here"), (PTY, "./here"), (PIPE, "pwd")] {
        let mut spawn = spawn(stdio, &[program]);
        spawn.cwd = c_string(path.to_str().expect("the path is UTF-8"));
        assert_eq!(output(spawn).trim_end(), path.to_str().expect("the path is UTF-8"));
    }
}

#[test]
fn absent_path_means_the_default_path() {
    for stdio in [PIPE, PTY] {
        let mut spawn = spawn(stdio, &["echo", "found"]);
        spawn.env.clear();
        assert_eq!(output(spawn), "found\n");
    }
}

#[test]
fn the_path_of_the_child_decides() {
    let directory = tempfile::tempdir().expect("a directory is made");
    let path = directory.path().to_str().expect("the path is UTF-8");
    write_script(&directory.path().join("echo"), "#!/bin/sh\nprintf mine\n");
    let mut spawn = spawn(PIPE, &["echo", "found"]);
    spawn.env = vec![c_string(format!("PATH=/no/such:{path}:/bin"))];
    assert_eq!(output(spawn), "mine");
}

#[test]
fn file_that_may_not_be_executed_is_named_over_an_absent_one() {
    let directory = tempfile::tempdir().expect("a directory is made");
    let path = directory.path().to_str().expect("the path is UTF-8");
    fs::write(directory.path().join("plain-file"), "x").expect("a file is written");
    let mut spawn = spawn(PIPE, &["plain-file"]);
    spawn.env = vec![c_string(format!("PATH={path}:/bin"))];
    let error = spawn.spawn().expect_err("the file has no execute bit");
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    assert_eq!(error.to_string(), "execute `plain-file`");
}

#[test]
fn exec_failure_is_typed_and_not_exit_127() {
    for stdio in [PIPE, PIPE_OPEN, PTY] {
        let error = spawn(stdio, &["no-such-program"]).spawn().expect_err("the program does not exist");
        let SpawnError::Exec { program, source } = error else { panic!("unexpected: {error:?}") };
        assert_eq!((program.as_c_str(), source.raw_os_error()), (c"no-such-program", Some(libc::ENOENT)));
    }
    assert!(matches!(Spawn::new(Vec::new()).spawn(), Err(SpawnError::EmptyArgv)));
    assert!(matches!(Spawn::from_bytes(["a\0b"]), Err(SpawnError::NulByte { what: "argv" })));
}

#[test]
fn refused_limit_is_a_setup_error() {
    let mut spawn = spawn(PIPE, &["true"]);
    spawn.nofile = Some((20, 10));
    let error = spawn.spawn().expect_err("the soft limit is above the hard one");
    assert!(matches!(error, SpawnError::Setup { stage: SpawnStage::Limits, .. }), "{error:?}");
}

#[test]
fn script_without_interpreter_line_is_run_by_sh() {
    let directory = tempfile::tempdir().expect("a directory is made");
    let path = directory.path().join("script");
    write_script(&path, "echo \"$# $1 $2\"\n");
    for stdio in [PIPE, PTY] {
        let script = path.to_str().expect("the path is UTF-8");
        assert_eq!(output(spawn(stdio, &[script, "one", "two words"])), "2 one two words\n");
    }
}

#[test]
fn exit_codes_are_the_same_with_pipes_and_on_a_terminal() {
    for stdio in [PIPE, PTY] {
        let check = |script: &str, code: i32, signal: Option<u8>| {
            let finished = run(sh(stdio, script));
            assert_eq!((finished.code, finished.signal), (code, signal), "{script}");
        };
        check("exit 0", 0, None);
        check("exit 255", 255, None);
        check("kill -TERM $$", 143, Some(15));
        check("kill -KILL $$", 137, Some(9));
        check("kill -INT $$", 130, Some(2));
        check("exit 130", 130, None);
    }
}

#[test]
fn signal_mask_and_dispositions_are_reset() {
    // SAFETY: zeroed sets are valid. The calls change only the mask of this thread and one disposition that no other
    // test in this binary uses.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signal(libc::SIGUSR2, libc::SIG_IGN);
    }
    let blocked = fs::read_to_string("/proc/thread-self/status").expect("proc is mounted");
    for stdio in [PIPE, PTY] {
        for ignored in [None, Some(IgnoredSignals::now())] {
            let status = output(Spawn { ignored, ..spawn(stdio, &["cat", "/proc/self/status"]) });
            for field in ["SigBlk", "SigIgn", "SigCgt"] {
                let line = format!("{field}:\t0000000000000000");
                assert!(status.contains(&line), "{status}");
            }
        }
    }
    let after = fs::read_to_string("/proc/thread-self/status").expect("proc is mounted");
    let mask = |status: &str| status.lines().find(|line| line.starts_with("SigBlk")).map(str::to_owned);
    assert_eq!(mask(&blocked), mask(&after));
}

#[test]
fn a_directory_that_is_not_a_control_group_is_a_typed_error() {
    let cgroup_dir = OwnedFd::from(fs::File::open("/").expect("the root opens"));
    let error = Spawn { cgroup_dir: Some(cgroup_dir), ..spawn(PIPE, &["true"]) }.spawn().expect_err("it is no group");
    let SpawnError::Setup { stage, source } = error else { panic!("unexpected: {error:?}") };
    assert_eq!((stage, source.raw_os_error()), (SpawnStage::Cgroup, Some(libc::ENOENT)));
}

#[test]
fn umask_and_descriptor_limits_are_set_in_the_child_only() {
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    for stdio in [PIPE, PTY] {
        let mut spawn = sh(stdio, "umask; ulimit -Sn; ulimit -Hn");
        (spawn.umask, spawn.nofile) = (Some(0o027), Some((77, 99)));
        assert_eq!(output(spawn), "0027\n77\n99\n");
    }
    let after = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    assert_eq!((before.current, before.maximum), (after.current, after.maximum));
}

#[test]
fn declared_descriptors_may_swap_their_numbers() {
    // Each source has the target number of the other.
    let (first, second) = (pipe_with(b"first\n"), pipe_with(b"second\n"));
    let numbers = (first.as_raw_fd(), second.as_raw_fd());
    let mut spawn = spawn(PIPE, &["cat", &format!("/dev/fd/{}", numbers.0), &format!("/dev/fd/{}", numbers.1)]);
    spawn.extra_fds = vec![(first, numbers.1), (second, numbers.0)];
    assert_eq!(output(spawn), "second\nfirst\n");
}

#[test]
fn bad_descriptor_numbers_are_refused() {
    let fd = || OwnedFd::from(fs::File::open("/dev/null").expect("the null device opens"));
    for extra in [vec![(fd(), 1)], vec![(fd(), 5), (fd(), 5)]] {
        let mut spawn = spawn(PIPE, &["true"]);
        spawn.extra_fds = extra;
        assert!(matches!(spawn.spawn(), Err(SpawnError::BadDescriptor { .. })));
    }
}

/// Checks the child's fds while it waits for input.
fn check_descriptors(stdio: StdioMode, extra: Option<i32>) {
    let mut spawn = spawn(stdio, &["cat"]);
    let mut expected = vec!["0".to_owned(), "1".to_owned(), "2".to_owned()];
    if let Some(number) = extra {
        spawn.extra_fds = vec![(fs::File::open("/dev/null").expect("the null device opens").into(), number)];
        expected.push(number.to_string());
    }
    let mut child = spawn.spawn().expect("cat starts");
    // The reply shows that the dynamic loader has closed the fds that it opened.
    write_all(child.stdin().expect("input is open"), b"up\n");
    let source = child.stdout().or(child.pty()).expect("an output");
    // A terminal echoes the input, so the second copy is the reply.
    read_until(source, if stdio == PTY { "up\r\nup\r\n" } else { "up\n" });
    let listed = fs::read_dir(format!("/proc/{}/fd", child.pid().as_raw_pid())).expect("the child lives");
    let mut listed: Vec<String> =
        listed.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    listed.sort();
    assert_eq!(listed, expected);
    child.close_stdin().expect("the input ends");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn child_has_exactly_its_descriptors_under_parallel_spawns() {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Open and close fds without the close-on-exec flag during the spawns.
        let noise = scope.spawn(|| {
            let null = fs::File::open("/dev/null").expect("the null device opens");
            while !is_done.load(Ordering::Relaxed) {
                let leaky = rustix::io::dup(&null).expect("a descriptor is free");
                drop(leaky);
            }
        });
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                scope.spawn(move || {
                    for round in 0..250 {
                        let stdio = if round % 10 == 0 { PTY } else { PIPE_OPEN };
                        check_descriptors(stdio, (worker == 0).then_some(9));
                    }
                })
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        is_done.store(true, Ordering::Relaxed);
        noise.join().expect("the noise ends");
        assert_eq!(failed, 0);
    });
}
