//! Shared by the tests: short descriptions of children, and waits for a condition with a deadline.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::disallowed_methods, reason = "tests wait in real time, for real children")]

use std::{
    ffi::CString,
    io::ErrorKind,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use exec_server_process::{Child, ChildExit, Pid, Spawn, StdinMode, StdioMode, TerminalSize};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long anything may take before the test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) const PIPE: StdioMode = StdioMode::Pipe { stdin: StdinMode::Null };
pub(crate) const PIPE_OPEN: StdioMode = StdioMode::Pipe { stdin: StdinMode::Open };
pub(crate) const PTY: StdioMode = StdioMode::Pty(TerminalSize { rows: 24, cols: 80 });

/// The output of a child and how it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FinishedChild {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) pty: String,
    pub(crate) code: i32,
    pub(crate) signal: Option<u8>,
}

pub(crate) fn spawn(stdio: StdioMode, argv: &[&str]) -> Spawn {
    let mut spawn = Spawn::from_bytes(argv.iter().copied()).expect("test arguments hold no zero byte");
    spawn.stdio = stdio;
    spawn.env = vec![c"PATH=/usr/local/bin:/usr/bin:/bin".to_owned()];
    spawn
}

pub(crate) fn sh(stdio: StdioMode, script: &str) -> Spawn {
    spawn(stdio, &["/bin/sh", "-c", script])
}

/// Writes an executable file, in a separate process. If we wrote it ourselves, a child that another test is spawning
/// could hold our write fd until its exec. Executing the file would then fail with `ETXTBSY`.
pub(crate) fn write_script(path: &std::path::Path, text: &str) {
    let path = path.to_str().expect("test paths are UTF-8");
    let script = r#"printf %s "$2" >"$1" && chmod 755 "$1""#;
    assert_eq!(run(spawn(PIPE, &["/bin/sh", "-c", script, "sh", path, text])).code, 0);
}

pub(crate) fn c_string(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).expect("test texts hold no zero byte")
}

/// Runs a child to its end.
pub(crate) fn run(spawn: Spawn) -> FinishedChild {
    finish(spawn.spawn().expect("the child starts"))
}

/// Reads every stream to its end and reaps.
pub(crate) fn finish(mut child: Child) -> FinishedChild {
    let (mut stdout, mut stderr, mut pty) = (Vec::new(), Vec::new(), Vec::new());
    let exited = if let Some(master) = child.pty() {
        let master = master.try_clone_to_owned().expect("a descriptor is free");
        // The slave is held until the reap, so wait for output and exit together.
        wait_until("the end of the leader", || {
            read_available(master.as_fd(), &mut pty);
            child.try_wait().expect("the child can be waited for").is_some()
        });
        child.release_slave();
        read_to_end(master.as_fd(), &mut pty);
        wait_exit(&mut child)
    } else {
        let (out, err) = (child.take_stdout().expect("a pipe"), child.take_stderr().expect("a pipe"));
        let mut is_open = [true, true];
        wait_until("the end of both pipes", || {
            is_open = [
                is_open[0] && read_available(out.as_fd(), &mut stdout),
                is_open[1] && read_available(err.as_fd(), &mut stderr),
            ];
            is_open == [false, false]
        });
        wait_exit(&mut child)
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("test children write UTF-8");
    let ChildExit { code, signal, .. } = exited;
    FinishedChild { stdout: text(stdout), stderr: text(stderr), pty: text(pty), code, signal }
}

pub(crate) fn wait_exit(child: &mut Child) -> ChildExit {
    let exit_fd = child.exit_fd().try_clone_to_owned().expect("a descriptor is free");
    wait_readable(exit_fd.as_fd());
    child.try_wait().expect("the child can be waited for").expect("a readable exit descriptor means the end")
}

/// Reads until `needle` has arrived. Returns everything read so far.
pub(crate) fn read_until(fd: BorrowedFd<'_>, needle: &str) -> String {
    let mut bytes = Vec::new();
    wait_until(needle, || {
        let is_open = read_available(fd, &mut bytes);
        let found = String::from_utf8_lossy(&bytes).contains(needle);
        assert!(found || is_open, "the stream ended after {:?}", String::from_utf8_lossy(&bytes));
        found
    });
    String::from_utf8(bytes).expect("test children write UTF-8")
}

pub(crate) fn read_to_end(fd: BorrowedFd<'_>, bytes: &mut Vec<u8>) {
    wait_until("the end of the stream", || !read_available(fd, bytes));
}

/// Reads the available bytes. Returns false at EOF.
pub(crate) fn read_available(fd: BorrowedFd<'_>, bytes: &mut Vec<u8>) -> bool {
    let mut buf = [0; 4096];
    loop {
        match rustix::io::read(fd, &mut buf) {
            Ok(0) | Err(rustix::io::Errno::IO) => return false,
            Ok(len) => bytes.extend_from_slice(&buf[..len]),
            Err(errno) if std::io::Error::from(errno).kind() == ErrorKind::WouldBlock => return true,
            Err(errno) => panic!("read failed: {errno}"),
        }
    }
}

pub(crate) fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) {
    wait_until("room for input", || {
        match rustix::io::write(fd, bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(rustix::io::Errno::AGAIN) => {}
            Err(errno) => panic!("write failed: {errno}"),
        }
        bytes.is_empty()
    });
}

pub(crate) fn wait_readable(fd: BorrowedFd<'_>) {
    let limit = Timespec::try_from(DEADLINE).expect("the deadline is small");
    let ready = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)).expect("poll works");
    assert_eq!(ready, 1, "the descriptor did not become readable in time");
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_reached() {
        assert!(start.elapsed() < DEADLINE, "timed out waiting for {what}");
        pause();
    }
}

/// Lets other processes run between two checks.
fn pause() {
    let limit = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    poll(&mut [], Some(&limit)).ok(); // If interrupted, the next check comes earlier.
}

/// Whether the process has ended. An unreaped zombie counts as ended.
pub(crate) fn is_gone(pid: i32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|fields| fields.trim_start().starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}

/// Whether nothing is left of the process, not even a zombie.
pub(crate) fn is_reaped(pid: Pid) -> bool {
    !std::path::Path::new(&format!("/proc/{}", pid.as_raw_pid())).exists()
}

/// The number after `name=` in the text.
pub(crate) fn number_after(text: &str, name: &str) -> i32 {
    let (_, rest) = text.split_once(&format!("{name}=")).expect("the name is in the text");
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().expect("a number follows the name")
}

/// The read end of a pipe that has this text and then EOF.
pub(crate) fn pipe_with(text: &[u8]) -> std::os::fd::OwnedFd {
    let (read, write) = rustix::pipe::pipe().expect("a pipe opens");
    rustix::io::write(&write, text).expect("the pipe has room");
    read
}

/// An interactive shell on a terminal, with the prompt `ready> `.
pub(crate) fn interactive_shell() -> Spawn {
    let mut spawn = spawn(PTY, &["/bin/sh", "-i"]);
    spawn.env.push(c"PS1=ready> ".to_owned());
    spawn
}

/// A child that runs this script on a terminal and has written `needle`.
pub(crate) fn on_terminal(script: &str, needle: &str) -> Child {
    let child = sh(PTY, script).spawn().expect("sh starts");
    read_until(child.pty().expect("a terminal"), needle);
    child
}
