//! Programs that a test starts: run to their end with a timeout, killed when the test fails.

use std::{
    io::{Read, Write},
    ops::{Deref, DerefMut},
    os::fd::AsFd,
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Signal,
};

use exec_server_workspace::processes::stat;

use crate::{processes::raw, wait_for};

/// Sends a signal to a process that this test started; does nothing if the process has gone.
pub fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(raw(pid), signal).ok();
}

/// A program that a test has started. Dropping it kills the program, also when the test fails.
pub struct Running(Child);

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have ended already.
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}

pub fn spawn(command: &mut Command) -> Running {
    Running(command.spawn().expect("start a program"))
}

/// Runs a command to its end, with a timeout.
pub fn finish(mut command: Command) -> Output {
    finish_child(spawn(&mut command))
}

/// Waits for the end of a program, with a timeout, and collects its output.
pub fn finish_child(mut child: Running) -> Output {
    fn collect(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
        thread::spawn(move || {
            let mut all = Vec::new();
            if let Some(mut from) = from {
                from.read_to_end(&mut all).expect("read the output");
            }
            all
        })
    }
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let status = end_of(&mut child);
    Output {
        status,
        stdout: stdout.join().expect("the reader does not panic"),
        stderr: stderr.join().expect("the reader does not panic"),
    }
}

/// Runs a command with `input` on its stdin.
pub fn finish_with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = spawn(command.stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    thread::scope(|scope| {
        // Ignore errors: the program may close its stdin early.
        scope.spawn(move || stdin.write_all(input).ok());
        finish_child(child)
    })
}

/// Waits for the end of a program, with a timeout.
pub fn end_of(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_for("end of exec-server", || {
        status = child.try_wait().expect("wait for exec-server");
        status.is_some()
    });
    status.expect("the wait ended with a status")
}

/// The state letter of a process, as in `ps`.
pub fn state(pid: u32) -> Option<String> {
    stat(pid)?.into_iter().next()
}

/// Reads until the output contains `text`.
pub fn read_until(from: &mut (impl Read + AsFd), text: &str) -> String {
    let mut all = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&all).contains(text) {
        let wait = Timespec { tv_sec: 20, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&wait)).expect("wait for output");
        assert_eq!(ready, 1, "nothing came after: {}", String::from_utf8_lossy(&all));
        assert_eq!(from.read(&mut byte).expect("read"), 1, "ended at: {}", String::from_utf8_lossy(&all));
        all.push(byte[0]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
