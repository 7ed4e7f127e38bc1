//! The spawner: a process forked at the top of `main` that forks one holder per session, and makes views of the files (`view`).
//!
//! Owns how a holder comes to life: fork, session, descriptors, signals, process attributes. It does not know what a
//! holder does. It is single-threaded for its whole life, so that a fork of it may allocate and run anything. Where threads
//! exist already, it is a program of its own instead, started by path (`exec`).
//!
//! It is a subreaper: what a dead holder leaves behind becomes its child, whoever started it and in whatever session, and
//! is killed there.
//!
//! Failure paths: the server ends, the spawner reads end of file and ends, or first removes a state directory that was made for that
//! server alone (`guard`); holders stay. The spawner ends: holders need
//! nothing of it, and the server starts another. A fork or the set-up of a holder fails: the controller's end of its socket
//! pair reads end of file before any `Welcome`.

mod exec;
mod guard;
mod request;
mod strays;
mod view;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use self::guard::Guard;
use self::strays::Strays;
use crate::wire;
use crate::{Confine, Forker, Holder, Limits, inherited, reap, run, title};

pub use exec::{ARGUMENT, ExecError, exec_spawner, exec_spawner_for, serve_stdin};

/// Name of the file that a server locks, in its state directory.
pub const LOCK_NAME: &str = "lock";

/// Name of the path socket in a session's directory.
pub const SOCKET_NAME: &str = "sock";

/// Name of the file with the secret in a session's directory. The server writes it before it makes the holder, and removes it
/// where it could not go on with one.
pub const SECRET_NAME: &str = "secret";

/// Name of the file that says when a session expired, in its directory.
pub const TOMBSTONE_NAME: &str = "expired";

/// How long [`SpawnerHandle::create`] waits for a spawner that is busy forking: far above any fork, so that only a
/// stopped spawner is an error.
const SEND_TIMEOUT_S: i64 = 5;

/// The server's end of its spawner. Dropping it ends the spawner; holders stay.
#[derive(Debug)]
pub struct SpawnerHandle {
    socket: OwnedFd,
    pid: i32,
}

/// A holder to be made.
#[derive(Debug)]
pub struct NewHolder {
    /// The session's directory, made by the caller, 0700.
    pub dir: OwnedFd,
    /// What a controller must know.
    pub secret: [u8; 32],
    /// Opaque record of the session.
    pub info: Vec<u8>,
    /// Bounds of the holder.
    pub limits: Limits,
    /// Limits of open descriptors that children get (soft, hard), as they were before the server raised its own.
    pub original_nofile: Option<(u64, u64)>,
    /// What the children are confined to.
    pub confine: Confine,
}

/// Forks the spawner. Call it before any thread exists and before any secret is read: its memory is copied into holders.
pub fn fork_spawner() -> io::Result<SpawnerHandle> {
    let (ours, theirs) = pair()?;
    let pid = fork_serving(theirs, |_| Ok(()))?;
    Ok(SpawnerHandle { socket: ours, pid })
}

/// Forks a process that is the spawner on `socket`, after its first words; returns its id in the caller only.
fn fork_serving(socket: OwnedFd, first: impl FnOnce(&OwnedFd) -> io::Result<()>) -> io::Result<i32> {
    // SAFETY: the caller promises a single thread, so the child may use everything the parent could.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let life = AssertUnwindSafe(|| first(&socket).map(|()| serve(socket)));
            // A panic must not unwind into the copy of the caller's `main`.
            let code = i32::from(!matches!(catch_unwind(life), Ok(Ok(()))));
            // SAFETY: ends this process without the exit handlers of the program it was forked from.
            unsafe { libc::_exit(code) }
        }
        pid => Ok(pid),
    }
}

/// Connects to the path socket of the holder whose session directory this is.
pub fn connect(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &address(dir, SOCKET_NAME)?)?;
    Ok(socket)
}

impl SpawnerHandle {
    /// Asks for a holder; the answer is the controller's end of its socket pair. Returns as soon as the spawner has been
    /// told: what becomes of it shows on that socket.
    pub fn create(&self, new: NewHolder) -> io::Result<OwnedFd> {
        let (ours, theirs) = pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        self.ask(&request::encode(&new), &[theirs.as_fd(), new.dir.as_fd()])?;
        Ok(ours)
    }

    fn ask(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            match wire::send_raw(&self.socket, message, fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_writable()?,
                other => return other,
            }
        }
    }

    /// Whether the spawner still listens.
    pub fn is_alive(&self) -> bool {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut socket = [PollFd::new(&self.socket, PollFlags::empty())];
        // A poll that fails tells nothing; sending will.
        !rustix::event::poll(&mut socket, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Takes the status of a dead spawner that was our own child.
    pub fn reap(&self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid) {
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG).ok();
        }
    }

    /// Process id of the spawner.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn wait_writable(&self) -> io::Result<()> {
        let timeout = rustix::event::Timespec { tv_sec: SEND_TIMEOUT_S, tv_nsec: 0 };
        match rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&timeout)) {
            Ok(0) => Err(rustix::io::Errno::TIMEDOUT.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The address of a socket in a session's directory, through the directory's descriptor: its own path may exceed the 108 bytes allowed.
pub(crate) fn address(dir: BorrowedFd<'_>, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))?)
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The life of the spawner.
fn serve(socket: OwnedFd) {
    name(c"exec-spawner");
    title::set_spawner();
    for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGTERM, libc::SIGPIPE, libc::SIGXFSZ] {
        disposition(signal, libc::SIG_IGN);
    }
    disposition(libc::SIGCHLD, libc::SIG_DFL);
    // Also where this was started by path: holders inherit the mask.
    inherited::unblock_signals();
    let Ok(socket) = isolate([socket]).map(|[socket]| socket) else { return };
    let Ok(signals) = become_guardian() else { return };
    let mut strays = Strays::default();
    let mut guards = Vec::new();
    // One for the life of the spawner: a large buffer that is freed teaches the allocator to take the next from its heap,
    // where every page of it counts, and holders inherit that.
    let mut buf = Vec::new();
    loop {
        let mut ready = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        let polled = rustix::event::poll(&mut ready, None);
        if polled.is_err_and(|error| error != rustix::io::Errno::INTR) {
            return;
        }
        let [is_asked, is_told] = ready.map(|fd| !fd.revents().is_empty());
        if is_told {
            // One read takes one notice; more of them only mean another look.
            rustix::io::read(&signals, &mut [0; 128]).ok();
            strays.handle_death();
        }
        if !is_asked {
            continue;
        }
        match wire::recv_raw(&socket, &mut buf) {
            Ok(Some(mut datagram)) => {
                let fds = std::mem::take(&mut datagram.fds);
                let request = datagram.bytes(&buf).to_vec();
                // The next holder must not find the secret of this one.
                buf.iter_mut().take(request.len()).for_each(|byte| *byte = 0);
                let forked = match request.get(1) {
                    Some(&guard::KIND) => {
                        guards.extend(Guard::read(request.get(2..).unwrap_or_default(), fds));
                        None
                    }
                    Some(&view::KIND) => view::fork_view(request.get(2..).unwrap_or_default(), fds),
                    Some(_) | None => fork_holder(request, fds),
                };
                if let Some(ours) = forked {
                    strays.know(ours);
                }
            }
            Ok(None) => return guard::outlive_server(guards, &mut strays, &signals),
            // A bad request costs itself only; its descriptors are closed.
            Err(_) => {}
        }
    }
}

/// What the spawner has that its forks do not need: the end of its children is told, their leavings come to it, and nobody of
/// our user looks into its memory, which has held secrets of holders.
fn become_guardian() -> io::Result<OwnedFd> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    reap::child_signals()
}

/// Forks a holder; gives its id in the spawner only.
fn fork_holder(mut request: Vec<u8>, fds: Vec<OwnedFd>) -> Option<i32> {
    let Ok([controller, dir]) = <[OwnedFd; 2]>::try_from(fds) else { return None };
    let decoded = request::decode(&request, dir);
    request.fill(0);
    drop(request);
    let Ok(mut config) = decoded else { return None };
    // SAFETY: the spawner has a single thread, so the child may use everything the parent could. A failed fork shows to
    // the server as end of file when `controller` is dropped here.
    match unsafe { libc::fork() } {
        0 => {}
        pid => return (pid > 0).then_some(pid),
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let [controller, dir] = become_holder(controller, config.dir)?;
        config.dir = dir;
        let holder = Holder::new(config, controller, Forker, run::monotonic_ns())?;
        run::run(holder);
        io::Result::Ok(())
    }));
    if outcome.is_err() {
        // Leaders die with us; what they left behind does not.
        reap::kill_all();
        std::process::abort();
    }
    // SAFETY: ends this process without the exit handlers of the program it was forked from.
    unsafe { libc::_exit(0) }
}

/// Turns this fork of the spawner into a process of its own.
fn become_holder(controller: OwnedFd, dir: OwnedFd) -> io::Result<[OwnedFd; 2]> {
    rustix::process::setsid()?;
    name(c"exec-holder");
    for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGTERM, libc::SIGCHLD] {
        disposition(signal, libc::SIG_DFL);
    }
    disposition(libc::SIGPIPE, libc::SIG_IGN);
    inherited::ignore_file_size_signal();
    let [controller, dir] = isolate([controller, dir])?;
    if let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())) {
        title::set_holder(&path);
    }
    rustix::process::chdir("/")?;
    // Strays of our children become ours, and nobody of our uid may look into our memory.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Refused is no reason to fail: the present limit stays and bounds the number of processes.
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).ok();
    Ok([controller, dir])
}

/// Puts the null device on 0 to 2 and closes every descriptor but those given, which may get new numbers.
fn isolate<const N: usize>(fds: [OwnedFd; N]) -> io::Result<[OwnedFd; N]> {
    let mut kept = Vec::with_capacity(N);
    for fd in fds {
        kept.push(rustix::io::fcntl_dupfd_cloexec(&fd, 3)?);
    }
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    for number in 0..3 {
        // SAFETY: plain system call; 0 to 2 belong to nobody in this process.
        if unsafe { libc::dup2(null.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // An `OwnedFd` below would be closed twice if it were dropped after the ranges; 0 to 2 themselves must stay.
    if null.as_raw_fd() < 3 {
        std::mem::forget(null)
    } else {
        drop(null)
    }
    let mut numbers: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.sort_unstable();
    let mut from = 3;
    for number in numbers {
        close_range(from, number - 1);
        from = number + 1;
    }
    close_range(from, RawFd::MAX);
    <[OwnedFd; N]>::try_from(kept).map_err(|_| rustix::io::Errno::INVAL.into())
}

pub(crate) fn close_range(first: RawFd, last: RawFd) {
    if first <= last {
        // SAFETY: plain system call. No value in this process owns a descriptor in a closed range: the caller has kept
        // those that are used.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

fn name(name: &std::ffi::CStr) {
    // Only for people who look at `ps`.
    rustix::thread::set_name(name).ok();
}

pub(crate) fn disposition(signal: i32, handler: libc::sighandler_t) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all-zero bytes are a valid `sigaction` with an empty mask; `SIG_IGN` and `SIG_DFL` run no code of ours.
    unsafe {
        (*action.as_mut_ptr()).sa_sigaction = handler;
        libc::sigaction(signal, action.as_ptr(), std::ptr::null_mut());
    }
}
