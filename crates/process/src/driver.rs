//! A child that a test simulates: the same [`Child`](crate::Child), with a script behind it instead of a process.
//!
//! The streams are real fds, so code that polls a child works unchanged. All ends are nonblocking, so one thread can
//! drive both sides.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
};

use parking_lot::Mutex;
use rustix::{
    event::{EventfdFlags, eventfd},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    pipe::{PipeFlags, pipe_with},
    process::Pid,
};

use crate::{
    child::ChildExit,
    spawn::{StdinMode, StdioMode, TerminalSize},
    streams::ParentStreams,
};

/// The EOF character of a scripted terminal.
const EOF_CHARACTER: u8 = 4;

/// The next scripted pid. Counts down from `i32::MAX`: the kernel assigns at most 2^22.
static NEXT_PID: AtomicI32 = AtomicI32::new(i32::MAX);

/// The script's side of a [`Child`](crate::Child). Clones control the same child.
///
/// By default, SIGKILL, SIGTERM, SIGINT, SIGHUP and SIGQUIT end the child and close its streams. All other signals are
/// only recorded. [`ScriptDriver::on_signal`] replaces this for all signals except SIGKILL.
#[derive(Clone, Debug)]
pub struct ScriptDriver {
    script: Arc<ChildScript>,
}

type SignalHook = Box<dyn FnMut(&ScriptDriver, i32) + Send>;

/// The state that child and driver share.
pub(crate) struct ChildScript {
    pid: Pid,
    exit_fd: OwnedFd,
    state: Mutex<ScriptState>,
}

#[derive(Default)]
struct ScriptState {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    pty: Option<OwnedFd>,
    is_canonical: bool,
    exited: Option<ChildExit>,
    signals: Vec<i32>,
    resizes: Vec<TerminalSize>,
    hook: Option<SignalHook>,
}

impl ScriptDriver {
    pub fn pid(&self) -> Pid {
        self.script.pid
    }

    /// Writes as much to stdout as fits. `WouldBlock` if nothing fits, `BrokenPipe` if stdout is closed.
    pub fn write_stdout(&self, bytes: &[u8]) -> io::Result<usize> {
        write(&self.script.state.lock().stdout, bytes)
    }

    /// Writes to stderr, like [`ScriptDriver::write_stdout`].
    pub fn write_stderr(&self, bytes: &[u8]) -> io::Result<usize> {
        write(&self.script.state.lock().stderr, bytes)
    }

    /// Writes to the terminal, like [`ScriptDriver::write_stdout`].
    pub fn write_pty(&self, bytes: &[u8]) -> io::Result<usize> {
        write(&self.script.state.lock().pty, bytes)
    }

    /// Reads the bytes that were written to the child's stdin or terminal. Returns 0 if either side has closed it, and
    /// `WouldBlock` if it is empty.
    pub fn read_stdin(&self, buf: &mut [u8]) -> io::Result<usize> {
        let state = self.script.state.lock();
        match state.stdin.as_ref().or(state.pty.as_ref()) {
            Some(fd) => Ok(rustix::io::read(fd, buf)?),
            None => Ok(0),
        }
    }

    /// Closes the reading end of stdin: a write to it then fails with `EPIPE`.
    pub fn close_stdin(&self) {
        self.script.state.lock().stdin = None;
    }

    pub fn close_stdout(&self) {
        self.script.state.lock().stdout = None;
    }

    pub fn close_stderr(&self) {
        self.script.state.lock().stderr = None;
    }

    pub fn close_all(&self) {
        self.script.state.lock().close_all();
    }

    /// Ends the child with an exit code. The streams stay open, as if a grandchild held them. Only the first end
    /// counts.
    pub fn exit(&self, code: i32) {
        self.end(code, None);
    }

    /// Ends the child by a signal, like [`ScriptDriver::exit`].
    pub fn die(&self, signal: u8) {
        self.end(128 + i32::from(signal), Some(signal));
    }

    pub fn has_exited(&self) -> bool {
        self.script.state.lock().exited.is_some()
    }

    /// Sets the terminal to canonical mode (the default) or raw mode.
    pub fn set_canonical(&self, is_canonical: bool) {
        self.script.state.lock().is_canonical = is_canonical;
    }

    /// Every signal that was sent to the child so far.
    pub fn signals(&self) -> Vec<i32> {
        self.script.state.lock().signals.clone()
    }

    /// Every size that the terminal had so far, including the initial one.
    pub fn resizes(&self) -> Vec<TerminalSize> {
        self.script.state.lock().resizes.clone()
    }

    /// Sets a hook that decides what signals do while the child lives. SIGKILL still ends the child, after the hook
    /// ran.
    pub fn on_signal(&self, hook: impl FnMut(&ScriptDriver, i32) + Send + 'static) {
        self.script.state.lock().hook = Some(Box::new(hook));
    }

    fn end(&self, code: i32, signal: Option<u8>) {
        let mut state = self.script.state.lock();
        if state.exited.is_none() {
            state.exited = Some(ChildExit { code, signal, user_ms: 0, system_ms: 0, max_rss_bytes: 0 });
            rustix::io::write(&self.script.exit_fd, &1_u64.to_ne_bytes())
                .expect("an eventfd that was never written accepts 1");
        }
    }
}

impl ChildScript {
    pub(crate) fn open(stdio: StdioMode) -> io::Result<(Arc<Self>, ParentStreams, ScriptDriver)> {
        let mut ours = ParentStreams::default();
        let mut state = ScriptState { is_canonical: true, ..ScriptState::default() };
        let pipe = || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        match stdio {
            StdioMode::Pipe { stdin } => {
                if stdin == StdinMode::Open {
                    let (read, write) = pipe()?;
                    (state.stdin, ours.stdin) = (Some(read), Some(write));
                }
                let (read, write) = pipe()?;
                (ours.stdout, state.stdout) = (Some(read), Some(write));
                let (read, write) = pipe()?;
                (ours.stderr, state.stderr) = (Some(read), Some(write));
            }
            StdioMode::Pty(size) => {
                // A socket pair carries bytes both ways like a terminal, but without a line discipline.
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let (master, slave) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                (ours.pty, state.pty) = (Some(master), Some(slave));
                state.resizes.push(size);
            }
        }
        let script = Arc::new(Self {
            pid: Pid::from_raw(NEXT_PID.fetch_sub(1, Ordering::Relaxed)).expect("scripted pids stay far above zero"),
            exit_fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            state: Mutex::new(state),
        });
        let driver = ScriptDriver { script: Arc::clone(&script) };
        Ok((script, ours, driver))
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn exit_fd(&self) -> BorrowedFd<'_> {
        self.exit_fd.as_fd()
    }

    pub(crate) fn exited(&self) -> Option<ChildExit> {
        self.state.lock().exited
    }

    pub(crate) fn eof_character(&self) -> Option<u8> {
        self.state.lock().is_canonical.then_some(EOF_CHARACTER)
    }

    pub(crate) fn resize(&self, size: TerminalSize) {
        self.state.lock().resizes.push(size);
    }

    /// Records a signal and applies it. The hook runs without the lock, because it may call methods of the driver.
    pub(crate) fn signal(self: &Arc<Self>, signal: i32) {
        let driver = ScriptDriver { script: Arc::clone(self) };
        let mut state = self.state.lock();
        state.signals.push(signal);
        // The default applies after the exit, where it only closes the streams, and to a signal that the hook sends.
        let hook = if state.exited.is_none() { state.hook.take() } else { None };
        drop(state);
        let ends = match hook {
            Some(mut hook) => {
                hook(&driver, signal);
                // If the hook installed a new hook, keep the new one.
                self.state.lock().hook.get_or_insert(hook);
                signal == libc::SIGKILL
            }
            None => matches!(signal, libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT),
        };
        if let (true, Ok(signal)) = (ends, u8::try_from(signal)) {
            driver.die(signal);
            driver.close_all();
        }
    }
}

impl fmt::Debug for ChildScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildScript").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl ScriptState {
    fn close_all(&mut self) {
        (self.stdin, self.stdout, self.stderr, self.pty) = (None, None, None, None);
    }
}

fn write(stream: &Option<OwnedFd>, bytes: &[u8]) -> io::Result<usize> {
    match stream {
        Some(fd) => Ok(rustix::io::write(fd, bytes)?),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    }
}
