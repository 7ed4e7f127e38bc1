//! The spawner: a process forked at the top of `main`, which forks one holder per session and builds views of the file
//! system (`view`).
//!
//! This module creates holders: fork, `setsid`, fds, signals and process attributes. The spawner stays single-threaded,
//! so its forks may allocate and run any code. A program that already has threads, such as one that embeds exec-server
//! as a library, cannot fork the spawner: it starts the spawner as a separate program by path (`exec`).
//!
//! The spawner is a subreaper: the descendants of a dead holder become children of the spawner, even if they have
//! called `setsid`. The spawner kills them.
//!
//! Failure paths:
//! - The server ends: holders continue. The spawner reads EOF and exits. If the state directory was created for that
//!   server alone, the spawner first waits until the last holder has ended, and removes the directory
//!   (`directory_guard`).
//! - The spawner dies: holders do not need it, and the server starts another.
//! - Forking or setting up a holder fails: the controller's end of the socket pair reads EOF before any `Welcome`.

mod directory_guard;
mod exec;
mod holder_request;
mod strays;
mod view;

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    panic::{AssertUnwindSafe, catch_unwind},
};

use exec_server_process::LowFds;
use rustix::{
    event::{PollFd, PollFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

use self::{directory_guard::DirectoryGuard, strays::StrayKiller};
use crate::{Holder, HolderConfig, OsSpawner, control, inherited, reap, run, title};

pub use exec::{ARGUMENT, ExecError, exec_spawner, exec_spawner_for, serve_stdin};

/// Name of the file in the state directory that a server locks.
pub const LOCK_NAME: &str = "lock";

/// Name of the path socket in a session's directory.
pub const SOCKET_NAME: &str = "sock";

/// Name of the secret file in a session's directory. The server writes it before it creates the holder, and removes or
/// replaces it if it cannot use the holder.
pub const SECRET_NAME: &str = "secret";

/// Name of the tombstone in a session's directory, which says when the session expired.
pub const TOMBSTONE_NAME: &str = "expired";

/// How long a request waits for a spawner that is busy forking: far longer than any fork, so that only a stopped
/// spawner causes an error.
const SEND_TIMEOUT_S: i64 = 5;

/// Maximum number of fd numbers that a holder reserves for children on their way to exec: enough for four to six of the
/// eight children of a batch. A child that finds too few free begins with a copy of the holder's fd table.
const LOW_FDS_MAX: usize = 12;

/// The server's handle of its spawner. Dropping it ends the spawner. Holders continue.
#[derive(Debug)]
pub struct SpawnerHandle {
    socket: OwnedFd,
    pid: i32,
}

/// Forks the spawner. Call it before any thread exists and before any secret is read, because the memory is copied into
/// the holders.
pub fn fork_spawner() -> io::Result<SpawnerHandle> {
    let (ours, theirs) = socket_pair()?;
    let pid = fork_serving(theirs, |_| Ok(()))?;
    Ok(SpawnerHandle { socket: ours, pid })
}

/// Forks a process that calls `before_serving` and then serves as the spawner on `socket`. Returns only in the caller,
/// with the pid of that process.
fn fork_serving(socket: OwnedFd, before_serving: impl FnOnce(&OwnedFd) -> io::Result<()>) -> io::Result<i32> {
    // SAFETY: the caller guarantees a single thread, so the child may use everything that the parent could.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let serving = AssertUnwindSafe(|| before_serving(&socket).map(|()| serve(socket)));
            // A panic must not unwind into the copy of the caller's `main`.
            let is_served = matches!(catch_unwind(serving), Ok(Ok(())));
            // SAFETY: ends this process without running the exit handlers of the program that it was forked from.
            unsafe { libc::_exit(i32::from(!is_served)) }
        }
        pid => Ok(pid),
    }
}

/// Connects to the holder's path socket in this session directory.
pub fn connect(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &socket_address(dir, SOCKET_NAME)?)?;
    Ok(socket)
}

impl SpawnerHandle {
    /// Requests a holder, and returns the controller's end of its socket pair. Returns as soon as the request is sent:
    /// success or failure shows on that socket.
    ///
    /// `config.nofile` is `RLIMIT_NOFILE` as it was before the server raised its own. `config.exclusive` is ignored:
    /// the process of a forked holder serves nothing else, so the holder is always exclusive.
    pub fn create(&self, config: &HolderConfig) -> io::Result<OwnedFd> {
        let (ours, theirs) = socket_pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        self.send_request(&holder_request::encode(config), &[theirs.as_fd(), config.dir.as_fd()])?;
        Ok(ours)
    }

    fn send_request(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            match control::send_raw(&self.socket, message, fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_writable()?,
                other => return other,
            }
        }
    }

    /// Whether the spawner's end of the socket is open.
    pub fn is_alive(&self) -> bool {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // `poll` reports POLLHUP even if no event is requested.
        let mut socket = [PollFd::new(&self.socket, PollFlags::empty())];
        // If `poll` fails, assume that the spawner is alive. The next send shows whether it is.
        !rustix::event::poll(&mut socket, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Reaps the spawner if it is dead and a child of this process.
    pub fn reap(&self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.pid) {
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG).ok();
        }
    }

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

/// The address of a socket in a session's directory. It goes through the directory's fd, because the path itself may
/// exceed the limit of 108 bytes.
pub(crate) fn socket_address(dir: BorrowedFd<'_>, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))?)
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The main loop of the spawner.
fn serve(socket: OwnedFd) {
    set_thread_name(c"exec-spawner");
    title::set_spawner();
    for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGTERM, libc::SIGPIPE, libc::SIGXFSZ] {
        set_disposition(signal, libc::SIG_IGN);
    }
    set_disposition(libc::SIGCHLD, libc::SIG_DFL);
    // A spawner that was started by path may have inherited blocked signals. Holders inherit the mask.
    inherited::unblock_signals();
    let Ok(socket) = isolate([socket]).map(|[socket]| socket) else { return };
    let Ok(signals) = become_guardian() else { return };
    let mut strays = StrayKiller::default();
    let mut guards = Vec::new();
    // Keep one buffer for the life of the spawner. When glibc frees a large buffer, it raises its mmap threshold. The
    // next buffer would then come from the heap, and zeroing it would touch every page. Holders would inherit that
    // state.
    let mut buf = Vec::new();
    loop {
        let mut ready = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        let polled = rustix::event::poll(&mut ready, None);
        if polled.is_err_and(|error| error != rustix::io::Errno::INTR) {
            return;
        }
        let [has_request, has_signal] = ready.map(|fd| !fd.revents().is_empty());
        if has_signal {
            // One read of 128 bytes (`signalfd_siginfo`) consumes one signal. A further signal only causes another
            // check.
            rustix::io::read(&signals, &mut [0; 128]).ok();
            strays.handle_death();
        }
        if !has_request {
            continue;
        }
        match control::recv_raw(&socket, &mut buf) {
            Ok(Some(mut datagram)) => {
                let fds = std::mem::take(&mut datagram.fds);
                let request = datagram.bytes(&buf).to_vec();
                // Wipe the secret, so that the next holder does not inherit it with the buffer.
                buf.iter_mut().take(request.len()).for_each(|byte| *byte = 0);
                let forked = match request.get(1) {
                    Some(&directory_guard::KIND) => {
                        guards.extend(DirectoryGuard::read(request.get(2..).unwrap_or_default(), fds));
                        None
                    }
                    Some(&view::KIND) => view::fork_view(request.get(2..).unwrap_or_default(), fds),
                    // `holder_request::KIND`: a server sends no other kind.
                    Some(_) | None => fork_holder(request, fds),
                };
                if let Some(pid) = forked {
                    strays.register(pid);
                }
            }
            Ok(None) => return directory_guard::run_after_server(guards, &mut strays, &signals),
            // A bad request has no further effect. Its fds are closed.
            Err(_) => {}
        }
    }
}

/// Prepares the spawner to kill what dead holders leave behind, and returns a signalfd for SIGCHLD. Orphaned
/// descendants become children of the spawner. Processes of the same user cannot read its memory, which has contained
/// the secrets of holders.
fn become_guardian() -> io::Result<OwnedFd> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    reap::child_signals()
}

/// Forks a holder. Returns only in the spawner, with the holder's pid.
fn fork_holder(mut request: Vec<u8>, fds: Vec<OwnedFd>) -> Option<i32> {
    let Ok([controller, dir]) = <[OwnedFd; 2]>::try_from(fds) else { return None };
    let decoded = holder_request::decode(&request, dir);
    request.fill(0);
    drop(request);
    let Ok(mut config) = decoded else { return None };
    // SAFETY: the spawner has a single thread, so the child may use everything that the parent could. If the fork
    // fails, `controller` is dropped here and the server sees EOF.
    match unsafe { libc::fork() } {
        0 => {}
        pid => return (pid > 0).then_some(pid),
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let [controller, dir] = become_holder(controller, config.dir)?;
        config.dir = dir;
        let spawner = OsSpawner { low_fds: reserve_low_fds() };
        let holder = Holder::new(config, controller, spawner, run::monotonic_ns())?;
        run::run(holder);
        io::Result::Ok(())
    }));
    if outcome.is_err() {
        // The kernel kills the leaders when this process dies (`PR_SET_PDEATHSIG`), but not their descendants.
        reap::kill_all();
        std::process::abort();
    }
    // SAFETY: ends this process without running the exit handlers of the program that it was forked from.
    unsafe { libc::_exit(0) }
}

/// Reserves fd numbers for children. A small `RLIMIT_NOFILE` allows fewer.
fn reserve_low_fds() -> Option<LowFds> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = LOW_FDS_MAX.min(usize::try_from(limit / 64).unwrap_or(usize::MAX));
    // Without them, starts are slower.
    LowFds::reserve(count).ok()
}

/// Turns this fork of the spawner into an independent process.
fn become_holder(controller: OwnedFd, dir: OwnedFd) -> io::Result<[OwnedFd; 2]> {
    rustix::process::setsid()?;
    set_thread_name(c"exec-holder");
    for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGTERM, libc::SIGCHLD] {
        set_disposition(signal, libc::SIG_DFL);
    }
    set_disposition(libc::SIGPIPE, libc::SIG_IGN);
    inherited::ignore_file_size_signal();
    let [controller, dir] = isolate([controller, dir])?;
    if let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())) {
        title::set_holder(&path);
    }
    rustix::process::chdir("/")?;
    // Orphaned descendants become children of this process, and processes of the same user cannot read its memory.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    // An error is ignored: the current limit stays, and bounds the number of processes.
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).ok();
    Ok([controller, dir])
}

/// Puts `/dev/null` on fds 0 to 2 and closes all other fds except the given ones, which are moved above 2.
fn isolate<const N: usize>(fds: [OwnedFd; N]) -> io::Result<[OwnedFd; N]> {
    let mut raised = Vec::with_capacity(N);
    for fd in fds {
        raised.push(rustix::io::fcntl_dupfd_cloexec(&fd, 3)?);
    }
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    for number in 0..3 {
        // SAFETY: plain system call. No value in this process owns fds 0 to 2.
        if unsafe { libc::dup2(null.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // Drop `null` here: after `close_range`, its drop would close a number that is no longer its own. If it got one of
    // the numbers 0 to 2, it must stay open.
    if null.as_raw_fd() < 3 {
        std::mem::forget(null)
    } else {
        drop(null)
    }
    let mut numbers: Vec<RawFd> = raised.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.sort_unstable();
    let mut from = 3;
    for number in numbers {
        close_range(from, number - 1);
        from = number + 1;
    }
    close_range(from, RawFd::MAX);
    <[OwnedFd; N]>::try_from(raised).map_err(|_| rustix::io::Errno::INVAL.into())
}

/// Closes the fds from `first` to `last`. Does nothing for an empty range.
pub(crate) fn close_range(first: RawFd, last: RawFd) {
    if first <= last {
        // SAFETY: plain system call. No value in this process owns an fd in the range: the caller excludes the fds that
        // are in use.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

fn set_thread_name(name: &std::ffi::CStr) {
    // An error is ignored: the name is only for people who look at `ps`.
    rustix::thread::set_name(name).ok();
}

pub(crate) fn set_disposition(signal: i32, handler: libc::sighandler_t) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all-zero bytes are a valid `sigaction` with an empty mask. `SIG_IGN` and `SIG_DFL` run no code of ours.
    unsafe {
        (*action.as_mut_ptr()).sa_sigaction = handler;
        libc::sigaction(signal, action.as_ptr(), std::ptr::null_mut());
    }
}
