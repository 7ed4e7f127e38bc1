//! Runs one command and prints its output: `run [-t] PROGRAM [ARGUMENT]...`.
//!
//! With pipes, the command's stdout and stderr go to ours. With `-t` it gets a terminal of 24 by 80. Our exit code is
//! that of the child. One thread polls the streams and the exit fd, as any program built on this crate does.

use std::{
    env, io,
    io::Write,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    process::ExitCode,
};

use exec_server_process::{ChildExit, Spawn, SpawnError, StdioMode, TerminalSize};
use rustix::event::{PollFd, PollFlags, poll};

type Sink = Box<dyn Write>;

fn main() -> ExitCode {
    match run() {
        Ok(exited) => ExitCode::from(u8::try_from(exited.code).unwrap_or(u8::MAX)),
        Err(error) => {
            eprintln!("run: {error}{}", error.source().map(|cause| format!(": {cause}")).unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ChildExit, Box<dyn std::error::Error>> {
    let mut args: Vec<Vec<u8>> = env::args_os().skip(1).map(OsStringExt::into_vec).collect();
    let is_terminal = args.first().is_some_and(|arg| arg == b"-t");
    if is_terminal {
        args.remove(0);
    }
    let mut spawn = Spawn::from_bytes(args)?;
    spawn.env = environment()?;
    spawn.cwd = c".".to_owned();
    if is_terminal {
        spawn.stdio = StdioMode::Pty(TerminalSize::default());
    }
    let mut child = spawn.spawn()?;

    let mut streams: Vec<(OwnedFd, Sink)> = Vec::new();
    streams.extend(child.take_stdout().map(|fd| (fd, Box::new(io::stdout()) as Sink)));
    streams.extend(child.take_stderr().map(|fd| (fd, Box::new(io::stderr()) as Sink)));
    streams.extend(child.take_pty().map(|fd| (fd, Box::new(io::stdout()) as Sink)));
    let mut exited = None;
    while exited.is_none() || !streams.is_empty() {
        let mut ready: Vec<PollFd<'_>> = streams.iter().map(|(fd, _)| PollFd::new(fd, PollFlags::IN)).collect();
        if exited.is_none() {
            ready.push(PollFd::from_borrowed_fd(child.exit_fd(), PollFlags::IN));
        }
        poll(&mut ready, None)?;
        // Check the exit first and the streams afterwards, so that no output from before the exit is missed.
        if exited.is_none() {
            exited = child.try_wait()?;
        }
        if exited.is_some() {
            child.release_slave();
        }
        let mut open = Vec::new();
        for (fd, mut sink) in streams {
            if copy(fd.as_fd(), &mut sink)? {
                open.push((fd, sink));
            }
        }
        streams = open;
    }
    exited.ok_or_else(|| "the loop ends with the child".into())
}

/// Copies the available bytes. Returns false at the end of the stream.
fn copy(fd: impl AsFd, sink: &mut Sink) -> io::Result<bool> {
    let mut buf = [0; 16 * 1024];
    loop {
        match rustix::io::read(&fd, &mut buf) {
            // EIO: no process has the terminal open.
            Ok(0) | Err(rustix::io::Errno::IO) => return Ok(false),
            Ok(len) => sink.write_all(&buf[..len])?,
            Err(rustix::io::Errno::AGAIN) => {
                sink.flush()?;
                return Ok(true);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn environment() -> Result<Vec<std::ffi::CString>, SpawnError> {
    let entries = env::vars_os().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
    entries.map(|entry| std::ffi::CString::new(entry).map_err(|_nul| SpawnError::NulByte { what: "env" })).collect()
}
