//! A child played by a test: the same [`Child`](crate::Child) with a script behind it instead of a process.
//!
//! The streams are real descriptors, so whatever polls a child works unchanged. Owns what the script has seen and
//! decided; it does not know who reads the streams. Every end is nonblocking: both sides can live on one thread.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
};

use rustix::{
    event::{EventfdFlags, eventfd},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    pipe::{PipeFlags, pipe_with},
    process::Pid,
};

use crate::{
    child::Exited,
    spawn::{Size, Stdin, Stdio},
    streams::Ours,
};

/// The end-of-file character of a scripted terminal.
const EOF_CHARACTER: u8 = 4;

/// The next scripted pid. It counts down from the top of the type: the kernel gives out at most 2^22.
static NEXT_PID: AtomicI32 = AtomicI32::new(i32::MAX);

/// The script's side of a [`Child`](crate::Child). Clones play the same child.
///
/// Signals do what they do to a process without handlers: SIGKILL, SIGTERM, SIGINT, SIGHUP and SIGQUIT end it and
/// close its streams, others are only recorded. [`Driver::on_signal`] replaces that for all but SIGKILL.
#[derive(Clone, Debug)]
pub struct Driver {
    script: Arc<Script>,
}

type Hook = Box<dyn FnMut(&Driver, i32) + Send>;

/// What child and driver share.
pub(crate) struct Script {
    pid: Pid,
    exit_fd: OwnedFd,
    state: Mutex<State>,
}

struct State {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    pty: Option<OwnedFd>,
    is_canonical: bool,
    exited: Option<Exited>,
    signals: Vec<i32>,
    resizes: Vec<Size>,
    hook: Option<Hook>,
}

impl Driver {
    /// The scripted pid of the child.
    pub fn pid(&self) -> Pid {
        self.script.pid
    }

    /// Writes to stdout as much as fits; `WouldBlock` when nothing does, `BrokenPipe` when it is closed.
    pub fn write_stdout(&self, bytes: &[u8]) -> io::Result<usize> {
        write(&self.script.state().stdout, bytes)
    }

    /// Writes to stderr, like [`Driver::write_stdout`].
    pub fn write_stderr(&self, bytes: &[u8]) -> io::Result<usize> {
        write(&self.script.state().stderr, bytes)
    }

    /// Writes to the terminal, like [`Driver::write_stdout`].
    pub fn write_pty(&self, bytes: &[u8]) -> io::Result<usize> {
        write(&self.script.state().pty, bytes)
    }

    /// Reads what was written to the child's stdin or terminal; 0 when it is closed, `WouldBlock` when it is empty.
    pub fn read_stdin(&self, buf: &mut [u8]) -> io::Result<usize> {
        let state = self.script.state();
        match state.stdin.as_ref().or(state.pty.as_ref()) {
            Some(fd) => Ok(rustix::io::read(fd, buf)?),
            None => Ok(0),
        }
    }

    /// Stops reading stdin: whoever writes to it gets `EPIPE`.
    pub fn close_stdin(&self) {
        self.script.state().stdin = None;
    }

    /// Closes stdout.
    pub fn close_stdout(&self) {
        self.script.state().stdout = None;
    }

    /// Closes stderr.
    pub fn close_stderr(&self) {
        self.script.state().stderr = None;
    }

    /// Closes the terminal.
    pub fn close_pty(&self) {
        self.script.state().pty = None;
    }

    /// Closes every stream.
    pub fn close_all(&self) {
        self.script.state().close_all();
    }

    /// Ends the child with a code. Streams stay open, as when a grandchild holds them; the first end counts.
    pub fn exit(&self, code: i32) {
        self.end(code, None);
    }

    /// Ends the child by a signal, like [`Driver::exit`].
    pub fn die(&self, signal: u8) {
        self.end(128 + i32::from(signal), Some(signal));
    }

    /// Whether the child has ended.
    pub fn has_exited(&self) -> bool {
        self.script.state().exited.is_some()
    }

    /// Sets the terminal to canonical mode, which is the default, or to raw mode.
    pub fn set_canonical(&self, is_canonical: bool) {
        self.script.state().is_canonical = is_canonical;
    }

    /// Every signal sent to the child so far.
    pub fn signals(&self) -> Vec<i32> {
        self.script.state().signals.clone()
    }

    /// Every size that the terminal was given so far.
    pub fn resizes(&self) -> Vec<Size> {
        self.script.state().resizes.clone()
    }

    /// Decides what signals do while the child lives. SIGKILL ends it after the hook has seen it.
    pub fn on_signal(&self, hook: impl FnMut(&Driver, i32) + Send + 'static) {
        self.script.state().hook = Some(Box::new(hook));
    }

    fn end(&self, code: i32, signal: Option<u8>) {
        let mut state = self.script.state();
        if state.exited.is_none() {
            state.exited = Some(Exited { code, signal, user_ms: 0, system_ms: 0, max_rss_bytes: 0 });
            rustix::io::write(&self.script.exit_fd, &1_u64.to_ne_bytes())
                .expect("a fresh event counter takes the number one");
        }
    }
}

impl Script {
    pub(crate) fn open(stdio: Stdio) -> io::Result<(Arc<Self>, Ours, Driver)> {
        let mut ours = Ours::default();
        let mut state = State {
            stdin: None,
            stdout: None,
            stderr: None,
            pty: None,
            is_canonical: true,
            exited: None,
            signals: Vec::new(),
            resizes: Vec::new(),
            hook: None,
        };
        let pipe = || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        match stdio {
            Stdio::Pipe { stdin } => {
                if stdin == Stdin::Open {
                    let (read, write) = pipe()?;
                    (state.stdin, ours.stdin) = (Some(read), Some(write));
                }
                let (read, write) = pipe()?;
                (ours.stdout, state.stdout) = (Some(read), Some(write));
                let (read, write) = pipe()?;
                (ours.stderr, state.stderr) = (Some(read), Some(write));
            }
            Stdio::Pty(size) => {
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
        let driver = Driver { script: Arc::clone(&script) };
        Ok((script, ours, driver))
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn exit_fd(&self) -> BorrowedFd<'_> {
        self.exit_fd.as_fd()
    }

    pub(crate) fn exited(&self) -> Option<Exited> {
        self.state().exited
    }

    pub(crate) fn eof_character(&self) -> Option<u8> {
        self.state().is_canonical.then_some(EOF_CHARACTER)
    }

    pub(crate) fn resize(&self, size: Size) {
        self.state().resizes.push(size);
    }

    /// Records a signal and lets it act. The hook runs without the lock, so that it may use the driver.
    pub(crate) fn signal(self: &Arc<Self>, signal: i32) {
        let driver = Driver { script: Arc::clone(self) };
        let mut state = self.state();
        state.signals.push(signal);
        let hook = if state.exited.is_none() { state.hook.take() } else { None };
        drop(state);
        let ends = match hook {
            Some(mut hook) => {
                hook(&driver, signal);
                // A hook that installed its successor keeps it.
                self.state().hook.get_or_insert(hook);
                signal == libc::SIGKILL
            }
            None => matches!(signal, libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT),
        };
        if let (true, Ok(signal)) = (ends, u8::try_from(signal)) {
            driver.die(signal);
            driver.close_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A hook that panicked has failed its test already; the state is plain data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl State {
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
