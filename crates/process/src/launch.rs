//! The clone, and the child's steps before exec.
//!
//! The child shares our memory (`CLONE_VM`), so the cost of a spawn does not depend on our memory size. In return, the
//! child may only make raw system calls: no allocation, no lock, no panic and no library function with hidden state,
//! including `errno`. `spawn` prepares everything that the child reads. The child reports a failure as one stage and
//! one errno in shared memory.
//!
//! The child shares our address space until its exec or exit. During this time, the calling thread is in one of two
//! modes:
//!
//! - It is stopped in the kernel (`CLONE_VFORK`).
//! - It continues and starts more children. Then it waits on a futex word, which the kernel clears at the child's exec
//!   or exit (`CLONE_CHILD_CLEARTID`).
//!
//! Exec takes longer than all the steps before it, so several children start faster in the second mode.

use std::{
    cell::Cell,
    ffi::CStr,
    io,
    os::fd::{AsFd as _, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use exec_server_sandbox::{ChildKit, address, system_call};
use libc::{c_char, c_int, c_long, c_void};
use parking_lot::Mutex;
use rustix::{
    io::Errno,
    process::{Pid, WaitId, WaitIdOptions},
    thread::futex,
};

use crate::spawn::{ChildUser, SpawnStage};

mod clone3;

/// Size of the child's stack, without its guard page. The deepest call path needs a few hundred bytes, and more in
/// debug builds.
const STACK_BYTES: usize = 64 * 1024;
/// Size of a signal mask in the kernel: one bit for each of 64 signals.
const MASK_BYTES: usize = 8;
/// Size of the largest kernel `sigaction` of our targets. All zeros means the default action.
const SIGACTION_BYTES: usize = 32;

/// How long to wait on the futex word before checking whether the child is dead. Older kernels do not clear the word if
/// the child dumps core.
const CHECK_AGAIN_NS: i64 = 50_000_000;

/// One unused stack, kept for the next child. If several stacks are needed at the same time, the others are unmapped
/// after use.
static SPARE_STACK: Mutex<Option<ChildStack>> = Mutex::new(None);

/// Whether the kernel was seen to clear the futex word at exec. Linux always does, but an emulation of Linux may not.
/// Then a wait on the word would last as long as the child's program.
static IS_WORD_CLEARED: AtomicBool = AtomicBool::new(false);

/// Everything that the child needs. Pointer arrays end with a null pointer and stay valid for the lifetime of the
/// borrow.
pub(crate) struct Launch<'a> {
    pub(crate) argv: &'a [*const c_char],
    /// The arguments of `/bin/sh`, which runs a script without an interpreter line (ENOEXEC). The child replaces the
    /// second element with the path of the script.
    pub(crate) script_argv: &'a [*const c_char],
    pub(crate) env: &'a [*const c_char],
    /// The paths to try, in the order of `PATH`.
    pub(crate) candidates: &'a [*const c_char],
    pub(crate) cwd: &'a CStr,
    /// The sources of fds 0, 1 and 2, each numbered 3 or above. `None`: `/dev/null`.
    pub(crate) stdio: [Option<RawFd>; 3],
    /// Pairs of source fd and target fd. No source is also a target, so `dup3` never overwrites a source.
    pub(crate) extra: &'a [(RawFd, RawFd)],
    /// The target fds of `extra` in ascending order.
    pub(crate) keep: &'a [RawFd],
    /// Fd 0 is a terminal, which becomes the controlling terminal.
    pub(crate) terminal: bool,
    pub(crate) nofile: Option<(u64, u64)>,
    pub(crate) umask: Option<u32>,
    pub(crate) die_with_parent: bool,
    /// The directory of the cgroup in which the child is created.
    pub(crate) cgroup_dir: Option<RawFd>,
    /// Open `tasks` files of version 1 cgroups. The child enters each group by writing 0.
    pub(crate) cgroups: &'a [RawFd],
    pub(crate) user: Option<&'a ChildUser>,
    /// Pairs of a resource and the value of both its limits, soft and hard.
    pub(crate) limits: &'a [(u32, u64)],
    pub(crate) sandbox: Option<&'a ChildKit>,
    /// The signals that we ignore, if known.
    pub(crate) ignored: Option<IgnoredSignals>,
    /// All sources are below this fd number, so the child needs no copy of the fds from there up. `None`: the sources
    /// may have any numbers.
    pub(crate) sources_end: Option<RawFd>,
}

/// A child that was cloned. When `Launch::run` returns it, it has executed its program.
pub(crate) struct StartedChild {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

pub(crate) enum LaunchFailure {
    Parent { what: &'static str, source: io::Error },
    Child { stage: SpawnStage, source: io::Error },
}

/// The state that parent and child share. The parent reads `report` after the child has left this memory.
struct LaunchShared<'a> {
    launch: &'a Launch<'a>,
    parent: libc::pid_t,
    script_argv: Cell<*mut *const c_char>,
    /// The kernel could not create the child in its cgroup, so the child must enter it.
    must_enter_cgroup: Cell<bool>,
    /// The child was created without signal handlers (`CLONE_CLEAR_SIGHAND`), so only ignored signals need a reset.
    has_no_handlers: Cell<bool>,
    /// The child was created with our fd table and not with a copy (`CLONE_FILES`). It must change no fd before it has
    /// its own.
    shares_fds: Cell<bool>,
    /// The child has reached its first instruction.
    has_started: Cell<bool>,
    report: Cell<Option<(SpawnStage, c_int)>>,
    /// Nonzero while the child is in this memory. The kernel clears it.
    child_present: AtomicU32,
}

/// Whether the calling thread continues while the child is in our memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParentMode {
    Stops,
    Continues,
}

/// A child that may still be in our memory. `drop` blocks until the child has left, so that the memory that the child
/// reads is not freed before, even on a panic.
struct ChildInMemory<'a> {
    shared: &'a LaunchShared<'a>,
    child: &'a StartedChild,
}

struct ChildStack {
    base: *mut c_void,
}

/// The signals that a process ignores. Exec preserves them, whereas it resets handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IgnoredSignals(u64);

impl IgnoredSignals {
    /// All signals whose action can be set: every signal except SIGKILL and SIGSTOP.
    const ALL: Self = Self(!(1 << (libc::SIGKILL - 1)) & !(1 << (libc::SIGSTOP - 1)));

    /// The signals that this process ignores now.
    pub fn now() -> Self {
        let is_ignored = |signal: &c_int| {
            let mut action = [0_u64; SIGACTION_BYTES / 8];
            let into = address(action.as_mut_ptr());
            // The handler is the first field and has the size of a pointer.
            call(libc::SYS_rt_sigaction, [*signal as usize, 0, into, MASK_BYTES, 0, 0]).is_ok()
                && action.first().copied() == Some(libc::SIG_IGN as u64)
        };
        let ignored = (1..=64).filter(|signal| Self::ALL.has(*signal)).filter(is_ignored);
        Self(ignored.fold(0, |all, signal| all | 1 << (signal - 1)))
    }

    fn has(self, signal: c_int) -> bool {
        self.0 & 1 << (signal - 1) != 0
    }
}

// SAFETY: the mapping belongs to this value alone and contains no thread-bound state.
unsafe impl Send for ChildStack {}

impl Launch<'_> {
    /// Starts the child and waits for its exec.
    pub(crate) fn run(&self) -> Result<StartedChild, LaunchFailure> {
        let mut script_argv = self.script_argv.to_vec();
        let shared = LaunchShared::new(self, &mut script_argv);
        let stack = ChildStack::take().map_err(|source| LaunchFailure::Parent { what: "stack", source })?;
        let cloned = clone(&shared, &stack, ParentMode::Stops);
        stack.release();
        let child = cloned.map_err(|source| LaunchFailure::Parent { what: "process", source })?;
        let outcome = shared.outcome(child);
        // The exit of a failed child clears the word as well, so it proves nothing about exec.
        IS_WORD_CLEARED.fetch_or(outcome.is_ok() && !shared.is_child_present(), Ordering::Relaxed);
        outcome
    }

    /// Starts the child and calls `other` while the child is on its way to exec. If that is not possible, waits for the
    /// exec and then calls `other`.
    pub(crate) fn run_concurrently<T>(&self, other: impl FnOnce() -> T) -> (Result<StartedChild, LaunchFailure>, T) {
        let mut script_argv = self.script_argv.to_vec();
        let shared = LaunchShared::new(self, &mut script_argv);
        let stack = IS_WORD_CLEARED.load(Ordering::Relaxed).then(ChildStack::take).and_then(Result::ok);
        let child = stack.as_ref().and_then(|stack| clone(&shared, stack, ParentMode::Continues).ok());
        let Some((stack, child)) = stack.zip(child) else { return (self.run(), other()) };
        let present = ChildInMemory { shared: &shared, child: &child };
        let done = other();
        drop(present);
        // The child has left its stack: `drop(present)` has waited for that.
        stack.release();
        if shared.has_started.get() {
            return (shared.outcome(child), done);
        }
        // The kernel killed the child before its first instruction. Start it again without `clone3`.
        clone3::disable();
        reap(child.pid);
        (self.run(), done)
    }
}

impl<'a> LaunchShared<'a> {
    fn new(launch: &'a Launch<'a>, script_argv: &'a mut [*const c_char]) -> Self {
        Self {
            launch,
            // SAFETY: `getpid` has no preconditions.
            parent: unsafe { libc::getpid() },
            script_argv: Cell::new(script_argv.as_mut_ptr()),
            must_enter_cgroup: Cell::new(false),
            has_no_handlers: Cell::new(false),
            shares_fds: Cell::new(false),
            has_started: Cell::new(false),
            report: Cell::new(None),
            child_present: AtomicU32::new(1),
        }
    }

    fn is_child_present(&self) -> bool {
        self.child_present.load(Ordering::Acquire) != 0
    }

    /// The result of a child that has left our memory.
    fn outcome(&self, child: StartedChild) -> Result<StartedChild, LaunchFailure> {
        let Some((stage, errno)) = self.report.take() else { return Ok(child) };
        reap(child.pid);
        Err(LaunchFailure::Child { stage, source: io::Error::from_raw_os_error(errno) })
    }
}

impl Drop for ChildInMemory<'_> {
    fn drop(&mut self) {
        while self.shared.is_child_present() {
            let check_again = futex::Timespec { tv_sec: 0, tv_nsec: CHECK_AGAIN_NS };
            // Do not use a private futex: the kernel's wake-up is not private. After any result except a timeout, check
            // the word again.
            let waited = futex::wait(&self.shared.child_present, futex::Flags::empty(), 1, Some(&check_again));
            if waited == Err(Errno::TIMEDOUT) && has_ended(self.child) {
                return;
            }
        }
    }
}

impl ChildStack {
    fn take() -> io::Result<Self> {
        let spare = SPARE_STACK.lock().take();
        spare.map_or_else(Self::map, Ok)
    }

    fn map() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses does not touch existing memory.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), Self::mapped_bytes(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base };
        // SAFETY: the range is the lowest page of the mapping just made. It contains no data.
        if unsafe { libc::mprotect(base, rustix::param::page_size(), libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    /// Size of the guard page and the stack above it. On arm64, a page can be as large as the stack.
    fn mapped_bytes() -> usize {
        rustix::param::page_size().saturating_add(STACK_BYTES)
    }

    /// The address where the stack begins, which grows down. The address is aligned to 16, because the mapping is
    /// page-aligned.
    fn top(&self) -> *mut c_void {
        self.base.wrapping_byte_add(Self::mapped_bytes())
    }

    /// Keeps the stack for the next child. If one is kept already, unmaps this one.
    fn release(self) {
        SPARE_STACK.lock().get_or_insert(self);
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and has this size. No child runs on it now.
        unsafe { libc::munmap(self.base, Self::mapped_bytes()) };
    }
}

/// Creates the child. Every signal is blocked during this time, because our signal handlers must not run in the child,
/// which shares our memory. The child inherits the full mask and clears it after it has reset the handlers.
fn clone(shared: &LaunchShared<'_>, stack: &ChildStack, parent: ParentMode) -> io::Result<StartedChild> {
    let mut before = 0_u64;
    // Use the raw system call: the C library never blocks the signals that it uses itself.
    set_mask(&u64::MAX, Some(&mut before)).map_err(io::Error::from_raw_os_error)?;
    shared.has_no_handlers.set(true);
    shared.shares_fds.set(shared.launch.sources_end.is_some());
    let cloned = clone3::clone_into(shared.launch.cgroup_dir, shared, stack, parent).or_else(|_refused| {
        // The kernel is too old, seccomp rejects the call, or the cgroup accepts no process. In the last case, the
        // child gets the errno when it enters the cgroup.
        shared.must_enter_cgroup.set(true);
        shared.has_no_handlers.set(false);
        shared.shares_fds.set(false);
        match parent {
            ParentMode::Stops => clone_in_own_cgroups(shared, stack),
            ParentMode::Continues => Err(io::ErrorKind::Unsupported.into()),
        }
    });
    // Ignore the result: restoring a valid mask cannot fail, and the caller must get the child anyway.
    drop_result(set_mask(&before, None));
    cloned
}

/// Starts a child in our own cgroups. The calling thread stops, because not every C library's `clone` supports
/// `CLONE_CHILD_CLEARTID`.
fn clone_in_own_cgroups(shared: &LaunchShared<'_>, stack: &ChildStack) -> io::Result<StartedChild> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: c_int = -1;
    // SAFETY: `stack` is a private mapping with room for `child_main`. `shared` lives until clone returns, and with
    // CLONE_VFORK clone returns after the child has executed a program or ended. The kernel writes one int to `pidfd`.
    let pid =
        unsafe { libc::clone(child_main, stack.top(), flags, ptr::from_ref(shared).cast_mut().cast(), &raw mut pidfd) };
    match Pid::from_raw(pid.max(0)) {
        // SAFETY: the kernel created this fd for us in the call that created the child.
        Some(pid) => Ok(StartedChild { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
        None => Err(io::Error::last_os_error()),
    }
}

fn set_mask(mask: &u64, before: Option<&mut u64>) -> Result<usize, c_int> {
    let before = before.map_or(ptr::null_mut(), ptr::from_mut);
    let how = libc::SIG_SETMASK as usize;
    call(libc::SYS_rt_sigprocmask, [how, address(mask), address(before), MASK_BYTES, 0, 0])
}

/// Whether a child has ended, reaped or not.
fn has_ended(child: &StartedChild) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let found = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), options);
    // ECHILD: the kernel has reaped the child by itself, because SIGCHLD is ignored.
    matches!(found, Ok(Some(_)) | Err(Errno::CHILD))
}

/// Reaps a child that ended before exec. The child is past its last instruction, so this does not block for long.
fn reap(pid: Pid) {
    let pid = pid.as_raw_pid();
    loop {
        // SAFETY: status and usage may be null. The pid is an unreaped child of this process.
        let waited = unsafe { libc::wait4(pid, ptr::null_mut(), 0, ptr::null_mut()) };
        // If SIGCHLD is ignored, the kernel reaps the child by itself and `wait4` fails with ECHILD.
        if waited == pid || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// One raw system call.
fn call(number: c_long, args: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: each caller passes the arguments that the call with this number takes. Pointers are valid for its
    // duration.
    unsafe { system_call(number, args) }
}

extern "C" fn child_main(shared: *mut c_void) -> c_int {
    // SAFETY: `clone` passed a `LaunchShared` that outlives the child's time in this memory. During that time the
    // parent accesses only the futex word, which is atomic.
    let shared = unsafe { &*shared.cast_const().cast::<LaunchShared<'_>>() };
    shared.has_started.set(true);
    let (stage, errno) = match set_up(shared) {
        Err(failure) => failure,
        Ok(()) => (SpawnStage::Exec, execute(shared)),
    };
    shared.report.set(Some((stage, errno)));
    // The program never started, so the exit code does not matter: the parent reads the report and reaps the child.
    drop_result(call(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]));
    127
}

/// Ignores the result of a system call whose failure needs no reaction.
fn drop_result(_result: Result<usize, c_int>) {}

/// Everything before exec. The order matters:
///
/// - our own fd table before anything that opens or closes an fd;
/// - cgroups first, so that nothing ever runs outside them;
/// - the session before the terminal;
/// - fds before the sandbox, which may hide `/dev/null`, and before `RLIMIT_NOFILE`, which could forbid their numbers;
/// - the sandbox before `close_others`, which closes the fds that the sandbox uses;
/// - limits before the user, who may not have the right to raise them;
/// - the user before the parent-death signal, which a change of user clears, and before the working directory, which is
///   entered with the rights of that user and as the sandbox shows it;
/// - the empty signal mask after the parent's handlers are reset;
/// - the seccomp filter last.
fn set_up(shared: &LaunchShared<'_>) -> Result<(), (SpawnStage, c_int)> {
    let at = |stage: SpawnStage| move |errno: c_int| (stage, errno);
    let launch = shared.launch;
    if let Some(end) = launch.sources_end.filter(|_| shared.shares_fds.get()) {
        leave_shared_fds(end).map_err(at(SpawnStage::Descriptors))?;
    }
    enter_cgroups(launch.cgroup_dir.filter(|_| shared.must_enter_cgroup.get()), launch.cgroups)
        .map_err(at(SpawnStage::Cgroup))?;
    call(libc::SYS_setsid, [0; 6]).map_err(at(SpawnStage::Session))?;
    place_descriptors(launch).map_err(at(SpawnStage::Descriptors))?;
    if launch.terminal {
        call(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0, 0, 0]).map_err(at(SpawnStage::Terminal))?;
    }
    let ipc = launch.sandbox.map(ChildKit::enter).transpose().map_err(at(SpawnStage::Sandbox))?;
    close_others(launch.keep).map_err(at(SpawnStage::CloseRange))?;
    set_limits(launch).map_err(at(SpawnStage::Limits))?;
    if let Some(user) = launch.user {
        become_user(user).map_err(at(SpawnStage::User))?;
    }
    if launch.die_with_parent {
        call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0, 0, 0])
            .map_err(at(SpawnStage::ParentDeath))?;
        // The parent may have died before the signal was set.
        if call(libc::SYS_getppid, [0; 6]) != Ok(shared.parent as usize) {
            return Err((SpawnStage::ParentDeath, libc::ESRCH));
        }
    }
    call(libc::SYS_chdir, [address(launch.cwd.as_ptr()), 0, 0, 0, 0, 0]).map_err(at(SpawnStage::Cwd))?;
    if let Some(umask) = launch.umask {
        drop_result(call(libc::SYS_umask, [umask as usize, 0, 0, 0, 0, 0]));
    }
    // Exec would reset handlers by itself, but a signal between the empty mask and exec would still run one.
    let ignored = launch.ignored.filter(|_| shared.has_no_handlers.get());
    reset_signals(ignored.unwrap_or(IgnoredSignals::ALL)).map_err(at(SpawnStage::Signals))?;
    match launch.sandbox.zip(ipc) {
        Some((sandbox, ipc)) => sandbox.seal(ipc).map_err(at(SpawnStage::Sandbox)),
        None => Ok(()),
    }
}

/// Gives the child its own fd table, with only the fds below `end`.
fn leave_shared_fds(end: RawFd) -> Result<(), c_int> {
    let flags = libc::CLOSE_RANGE_UNSHARE as usize;
    match call(libc::SYS_close_range, [end as usize, u32::MAX as usize, flags, 0, 0, 0]) {
        // An emulation of Linux without the flag: copy the whole table.
        Err(libc::EINVAL | libc::ENOSYS) => call(libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0]),
        other => other,
    }
    .map(drop)
}

/// Moves the child into each cgroup. The kernel reads `0` as the pid of the writer, so no number has to be formatted
/// here.
fn enter_cgroups(cgroup_dir: Option<RawFd>, groups: &[RawFd]) -> Result<(), c_int> {
    let enter = |file: usize| call(libc::SYS_write, [file, address(c"0".as_ptr()), 1, 0, 0, 0]).map(drop);
    if let Some(cgroup_dir) = cgroup_dir {
        // `close_others` closes this fd.
        let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
        enter(call(libc::SYS_openat, [cgroup_dir as usize, address(c"cgroup.procs".as_ptr()), flags, 0, 0, 0])?)?;
    }
    groups.iter().try_for_each(|group| enter(*group as usize))
}

fn set_limits(launch: &Launch<'_>) -> Result<(), c_int> {
    let set = |resource: u32, soft: u64, hard: u64| {
        let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
        call(libc::SYS_prlimit64, [0, resource as usize, address(&raw const limit), 0, 0, 0]).map(drop)
    };
    if let Some((soft, hard)) = launch.nofile {
        set(libc::RLIMIT_NOFILE, soft, hard)?;
    }
    launch.limits.iter().try_for_each(|(resource, limit)| set(*resource, *limit, *limit))
}

/// Uses raw system calls, which change only this task. The C library's functions would also try to change the parent's
/// threads.
fn become_user(user: &ChildUser) -> Result<(), c_int> {
    let (uid, gid) = (user.uid as usize, user.gid as usize);
    call(libc::SYS_setgroups, [user.groups.len(), address(user.groups.as_ptr()), 0, 0, 0, 0])?;
    call(libc::SYS_setresgid, [gid, gid, gid, 0, 0, 0])?;
    call(libc::SYS_setresuid, [uid, uid, uid, 0, 0, 0]).map(drop)
}

fn place_descriptors(launch: &Launch<'_>) -> Result<(), c_int> {
    let place =
        |source: RawFd, target: RawFd| call(libc::SYS_dup3, [source as usize, target as usize, 0, 0, 0, 0]).map(drop);
    for (target, source) in (0..).zip(launch.stdio) {
        match source {
            Some(source) => place(source, target)?,
            None => {
                let path = address(c"/dev/null".as_ptr());
                let flags = libc::O_RDWR as usize;
                let opened = call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0])?;
                // If our own fd `target` is closed, the new fd already has this number. Any other number is overwritten
                // below or closed by `close_others`.
                if opened as RawFd != target {
                    place(opened as RawFd, target)?;
                }
            }
        }
    }
    launch.extra.iter().try_for_each(|(source, target)| place(*source, *target))
}

/// Closes every fd from 3 up that is not in `keep`.
fn close_others(keep: &[RawFd]) -> Result<(), c_int> {
    let mut first: usize = 3;
    for number in keep {
        let number = *number as usize;
        if first < number {
            call(libc::SYS_close_range, [first, number - 1, 0, 0, 0, 0])?;
        }
        first = number + 1;
    }
    call(libc::SYS_close_range, [first, u32::MAX as usize, 0, 0, 0, 0]).map(drop)
}

/// Resets the signals in `which` to their default action and clears the mask. Checking the action first would cost as
/// many system calls.
fn reset_signals(which: IgnoredSignals) -> Result<(), c_int> {
    let default = [0_u64; SIGACTION_BYTES / 8];
    for signal in (1..=64).filter(|signal| which.has(*signal)) {
        call(libc::SYS_rt_sigaction, [signal as usize, address(default.as_ptr()), 0, MASK_BYTES, 0, 0])?;
    }
    set_mask(&0, None).map(drop)
}

/// Tries the candidates as `execvp` does. Returns the most informative errno.
fn execute(shared: &LaunchShared<'_>) -> c_int {
    let launch = shared.launch;
    let env = address(launch.env.as_ptr());
    let mut denied = false;
    let mut last = libc::ENOENT;
    for candidate in launch.candidates.iter().filter(|candidate| !candidate.is_null()) {
        last = exec(*candidate, launch.argv.as_ptr(), env);
        if last == libc::ENOEXEC {
            let script_argv = shared.script_argv.get();
            // SAFETY: the array has at least three elements and belongs to this launch alone.
            unsafe { *script_argv.add(1) = *candidate };
            return exec(c"/bin/sh".as_ptr(), script_argv, env);
        }
        match last {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return last,
        }
    }
    // A file that exists but may not be executed is more informative than ENOENT in later directories.
    if denied { libc::EACCES } else { last }
}

fn exec(path: *const c_char, argv: *const *const c_char, env: usize) -> c_int {
    // `execve` returns only if it has failed.
    call(libc::SYS_execve, [address(path), address(argv), env, 0, 0, 0]).err().unwrap_or(0)
}
