//! The clone and what the child does before exec.
//!
//! The child shares our memory (`CLONE_VM`), so the cost does not grow with it. In return the child's side may only make
//! raw system calls: no allocation, no lock, no panic, no library function with hidden state, `errno` included. Everything
//! it reads is prepared by `spawn`; what it reports is one stage and one error number in memory that both see.
//!
//! Meanwhile the calling thread is stopped in the kernel (`CLONE_VFORK`), or it makes further children and then waits until
//! the kernel has cleared the word that says that this one is in our memory. Exec takes longer than all that comes before
//! it, so children that are wanted at the same time are made in less time when they need not wait for each other.

use std::{
    cell::Cell,
    ffi::CStr,
    io,
    os::fd::{AsFd as _, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use exec_server_sandbox::{InChild, address, system_call};
use libc::{c_char, c_int, c_long, c_void};
use rustix::{
    io::Errno,
    process::{Pid, WaitId, WaitIdOptions},
    thread::futex,
};

use crate::spawn::{Stage, User};

mod born;

/// Bytes of the child's stack, beside its guard page. The deepest path is some hundred bytes; debug builds need more.
const STACK_BYTES: usize = 64 * 1024;
/// Bytes of a signal mask as the kernel takes it: one bit for each of 64 signals.
const MASK_BYTES: usize = 8;
/// The largest kernel `sigaction` of our targets; all zero means the default action.
const SIGACTION_BYTES: usize = 32;

/// How long to believe that a child is in our memory before it is looked at: of one that dumps core, older kernels leave the word.
const LOOK_AGAIN_NS: i64 = 50_000_000;

/// The last stack that went out of use; where several are used at the same time, the others are mapped.
static SPARE_STACK: Mutex<Option<Stack>> = Mutex::new(None);

/// The kernel was seen to clear the word of a child that executed its program. All of Linux does; what imitates it may not.
static IS_WORD_CLEARED: AtomicBool = AtomicBool::new(false);

/// All that the child needs. Pointer arrays end with a null and stay valid for the lifetime of the borrow.
pub(crate) struct Launch<'a> {
    pub(crate) argv: &'a [*const c_char],
    /// The arguments of `/bin/sh` with a free second place for the script's path.
    pub(crate) script_argv: &'a [*const c_char],
    pub(crate) env: &'a [*const c_char],
    pub(crate) candidates: &'a [*const c_char],
    pub(crate) cwd: &'a CStr,
    /// What becomes 0, 1 and 2, each at 3 or above; `None` is the null device.
    pub(crate) stdio: [Option<RawFd>; 3],
    /// Source and number in the child; no source equals a number.
    pub(crate) extra: &'a [(RawFd, RawFd)],
    /// The numbers of `extra` in ascending order.
    pub(crate) keep: &'a [RawFd],
    pub(crate) terminal: bool,
    pub(crate) nofile: Option<(u64, u64)>,
    pub(crate) umask: Option<u32>,
    pub(crate) die_with_parent: bool,
    /// The directory of the group that it is born in.
    pub(crate) home: Option<RawFd>,
    /// Open files of groups that it writes itself into.
    pub(crate) cgroups: &'a [RawFd],
    pub(crate) user: Option<&'a User>,
    /// Resource and limit.
    pub(crate) limits: &'a [(u32, u64)],
    pub(crate) sandbox: Option<&'a InChild>,
    /// The signals that we ignore, where that is known.
    pub(crate) ignored: Option<Ignored>,
}

/// A child that has executed its program.
pub(crate) struct Started {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

pub(crate) enum Failure {
    Parent { what: &'static str, source: io::Error },
    Child { stage: Stage, source: io::Error },
}

/// What parent and child share; the parent reads `report` after the child has left this memory.
struct Shared<'a> {
    launch: &'a Launch<'a>,
    parent: libc::pid_t,
    script_argv: Cell<*mut *const c_char>,
    /// The kernel could not place the child in its group: it enters it by itself.
    must_go_home: Cell<bool>,
    /// No signal has a handler in the child.
    has_no_handlers: Cell<bool>,
    /// The child came to its first instruction.
    has_begun: Cell<bool>,
    report: Cell<Option<(Stage, c_int)>>,
    /// Not zero while the child is in this memory; the kernel clears it.
    is_here: AtomicU32,
}

/// Whether the calling thread goes on while the child is in our memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parent {
    Stops,
    GoesOn,
}

/// A child that may still be in our memory: nothing of what it reads goes before it has left.
struct Present<'a> {
    shared: &'a Shared<'a>,
    child: &'a Started,
}

struct Stack {
    base: *mut c_void,
}

/// The signals that a process ignores. They are what a program would inherit: handlers are gone with exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ignored(u64);

impl Ignored {
    /// All whose action can be set.
    const ANY: Self = Self(!(1 << (libc::SIGKILL - 1)) & !(1 << (libc::SIGSTOP - 1)));

    /// Those that this process ignores now.
    pub fn now() -> Self {
        let is_ignored = |signal: &c_int| {
            let mut action = [0_u64; SIGACTION_BYTES / 8];
            let into = address(action.as_mut_ptr());
            // The handler is the first field, of the size of a pointer.
            call(libc::SYS_rt_sigaction, [*signal as usize, 0, into, MASK_BYTES, 0, 0]).is_ok()
                && action.first().copied() == Some(libc::SIG_IGN as u64)
        };
        let ignored = (1..=64).filter(|signal| Self::ANY.has(*signal)).filter(is_ignored);
        Self(ignored.fold(0, |all, signal| all | 1 << (signal - 1)))
    }

    fn has(self, signal: c_int) -> bool {
        self.0 & 1 << (signal - 1) != 0
    }
}

// SAFETY: the mapping belongs to this value alone; no thread-bound state is in it.
unsafe impl Send for Stack {}

impl Launch<'_> {
    /// Makes the child and waits for its exec.
    pub(crate) fn run(&self) -> Result<Started, Failure> {
        let mut script_argv = self.script_argv.to_vec();
        let shared = Shared::new(self, &mut script_argv);
        let stack = Stack::take().map_err(|source| Failure::Parent { what: "stack", source })?;
        let cloned = clone(&shared, &stack, Parent::Stops);
        stack.give_back();
        let child = cloned.map_err(|source| Failure::Parent { what: "process", source })?;
        let is_cleared = !shared.is_child_here();
        let outcome = shared.outcome(child);
        // The end of a child that failed clears it as well, and shows nothing.
        IS_WORD_CLEARED.fetch_or(is_cleared && outcome.is_ok(), Ordering::Relaxed);
        outcome
    }

    /// Makes the child and does something else until its exec. Where that cannot be, one comes after the other.
    pub(crate) fn run_beside<T>(&self, other: impl FnOnce() -> T) -> (Result<Started, Failure>, T) {
        let mut script_argv = self.script_argv.to_vec();
        let shared = Shared::new(self, &mut script_argv);
        let stack = IS_WORD_CLEARED.load(Ordering::Relaxed).then(Stack::take).and_then(Result::ok);
        let child = stack.as_ref().and_then(|stack| clone(&shared, stack, Parent::GoesOn).ok());
        let Some((stack, child)) = stack.zip(child) else { return (self.run(), other()) };
        let present = Present { shared: &shared, child: &child };
        let done = other();
        drop(present);
        stack.give_back();
        if shared.has_begun.get() {
            return (shared.outcome(child), done);
        }
        born::distrust();
        reap(child.pid);
        (self.run(), done)
    }
}

impl<'a> Shared<'a> {
    fn new(launch: &'a Launch<'a>, script_argv: &'a mut [*const c_char]) -> Self {
        Self {
            launch,
            // SAFETY: `getpid` has no preconditions.
            parent: unsafe { libc::getpid() },
            script_argv: Cell::new(script_argv.as_mut_ptr()),
            must_go_home: Cell::new(false),
            has_no_handlers: Cell::new(false),
            has_begun: Cell::new(false),
            report: Cell::new(None),
            is_here: AtomicU32::new(1),
        }
    }

    fn is_child_here(&self) -> bool {
        self.is_here.load(Ordering::Acquire) != 0
    }

    /// What became of a child that has left our memory.
    fn outcome(&self, child: Started) -> Result<Started, Failure> {
        let Some((stage, errno)) = self.report.take() else { return Ok(child) };
        reap(child.pid);
        Err(Failure::Child { stage, source: io::Error::from_raw_os_error(errno) })
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        while self.shared.is_child_here() {
            let look_again = futex::Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN_NS };
            // Not a private one, for the kernel wakes those that are not. Any answer but a timeout means: look at the word.
            let waited = futex::wait(&self.shared.is_here, futex::Flags::empty(), 1, Some(&look_again));
            if waited == Err(Errno::TIMEDOUT) && has_ended(self.child) {
                return;
            }
        }
    }
}

impl Stack {
    fn take() -> io::Result<Self> {
        let spare = SPARE_STACK.lock().map_or(None, |mut spare| spare.take());
        spare.map_or_else(Self::map, Ok)
    }

    fn map() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), Self::mapped_bytes(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base };
        // SAFETY: the range is the lowest page of the mapping just made and holds no data.
        if unsafe { libc::mprotect(base, rustix::param::page_size(), libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    /// The guard page and the stack above it. Pages of arm64 may be as large as the stack.
    fn mapped_bytes() -> usize {
        rustix::param::page_size().saturating_add(STACK_BYTES)
    }

    /// The address where the stack begins; it grows down. Aligned to 16 because the mapping is aligned to a page.
    fn top(&self) -> *mut c_void {
        self.base.wrapping_byte_add(Self::mapped_bytes())
    }

    fn give_back(self) {
        if let Ok(mut spare) = SPARE_STACK.lock() {
            spare.get_or_insert(self);
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this size, and no child runs on it any more.
        unsafe { libc::munmap(self.base, Self::mapped_bytes()) };
    }
}

/// Clones with every signal blocked: a handler of ours must not run in the child, which shares our memory.
fn clone(shared: &Shared<'_>, stack: &Stack, parent: Parent) -> io::Result<Started> {
    let (all, mut before) = (u64::MAX, 0_u64);
    // The raw call, since the C library never blocks the two signals it uses itself.
    set_mask(&all, Some(&mut before)).map_err(io::Error::from_raw_os_error)?;
    shared.has_no_handlers.set(true);
    let cloned = born::clone_into(shared.launch.home, shared, stack, parent).or_else(|_refused| {
        // An older kernel, a filter of system calls, or a group that takes nobody: the child itself then says which.
        shared.must_go_home.set(true);
        shared.has_no_handlers.set(false);
        match parent {
            Parent::Stops => clone_here(shared, stack),
            Parent::GoesOn => Err(io::ErrorKind::Unsupported.into()),
        }
    });
    // It was in force, so it can be set; and whoever called us must learn of the child.
    drop_result(set_mask(&before, None));
    cloned
}

/// A child in the groups that we are in; we stop, for not every C library's `clone` knows the word.
fn clone_here(shared: &Shared<'_>, stack: &Stack) -> io::Result<Started> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: c_int = -1;
    // SAFETY: `stack` is a private mapping with room for `child_main`; `shared` lives until clone returns, and with
    // CLONE_VFORK clone returns after the child has executed a program or ended; the kernel writes one int to `pidfd`.
    let pid =
        unsafe { libc::clone(child_main, stack.top(), flags, ptr::from_ref(shared).cast_mut().cast(), &raw mut pidfd) };
    match Pid::from_raw(pid.max(0)) {
        // SAFETY: the kernel made this descriptor for us in the call that made the child.
        Some(pid) => Ok(Started { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
        None => Err(io::Error::last_os_error()),
    }
}

fn set_mask(mask: &u64, before: Option<&mut u64>) -> Result<usize, c_int> {
    let before = before.map_or(ptr::null_mut(), ptr::from_mut);
    let how = libc::SIG_SETMASK as usize;
    call(libc::SYS_rt_sigprocmask, [how, address(mask), address(before), MASK_BYTES, 0, 0])
}

/// Whether a child has ended, reaped or not.
fn has_ended(child: &Started) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let found = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), options);
    matches!(found, Ok(Some(_)) | Err(Errno::CHILD))
}

/// Takes the status of a child that ended before exec. It is past its last instruction, so this is no wait.
fn reap(pid: Pid) {
    let pid = pid.as_raw_pid();
    loop {
        // SAFETY: a null status and a null usage are allowed; the pid is an unreaped child of ours.
        let waited = unsafe { libc::wait4(pid, ptr::null_mut(), 0, ptr::null_mut()) };
        // Where SIGCHLD is ignored the kernel reaps by itself and the answer is ECHILD.
        if waited == pid || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// One raw system call.
fn call(number: c_long, args: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: each caller passes what the call with this number takes; pointers are valid for its duration.
    unsafe { system_call(number, args) }
}

extern "C" fn child_main(shared: *mut c_void) -> c_int {
    // SAFETY: `clone` passed a `Shared` that outlives the child's time in this memory; nobody else touches it meanwhile, but
    // for the word, which is atomic.
    let shared = unsafe { &*shared.cast_const().cast::<Shared<'_>>() };
    shared.has_begun.set(true);
    let (stage, errno) = match set_up(shared) {
        Err(failure) => failure,
        Ok(()) => (Stage::Exec, execute(shared)),
    };
    shared.report.set(Some((stage, errno)));
    // The program never began, so the code is seen by nobody: the parent reads the report and reaps.
    drop_result(call(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]));
    127
}

/// For calls whose failure leaves nothing to do.
fn drop_result(_result: Result<usize, c_int>) {}

/// Everything before exec, in an order that matters: the groups first, so that nothing is ever outside them; the session
/// before the terminal; descriptors before the sandbox, which may hide the null device, and before the limit that could forbid
/// their numbers; the sandbox before its own descriptors are closed; limits while we may still set them;
/// the user before the parent-death signal, which a change of user disarms, and before the working directory, which is
/// entered with its rights and as the sandbox shows it; the empty mask when no handler of the parent is left to run; the filter of
/// system calls last.
fn set_up(shared: &Shared<'_>) -> Result<(), (Stage, c_int)> {
    let at = |stage: Stage| move |errno: c_int| (stage, errno);
    let launch = shared.launch;
    enter_cgroups(launch.home.filter(|_| shared.must_go_home.get()), launch.cgroups).map_err(at(Stage::Cgroup))?;
    call(libc::SYS_setsid, [0; 6]).map_err(at(Stage::Session))?;
    place_descriptors(launch).map_err(at(Stage::Descriptors))?;
    if launch.terminal {
        call(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0, 0, 0]).map_err(at(Stage::Terminal))?;
    }
    let ipc = launch.sandbox.map(InChild::enter).transpose().map_err(at(Stage::Sandbox))?;
    close_others(launch.keep).map_err(at(Stage::CloseRange))?;
    set_limits(launch).map_err(at(Stage::Limits))?;
    if let Some(user) = launch.user {
        become_user(user).map_err(at(Stage::User))?;
    }
    if launch.die_with_parent {
        let (option, signal) = (libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize);
        call(libc::SYS_prctl, [option, signal, 0, 0, 0, 0]).map_err(at(Stage::ParentDeath))?;
        // The parent may have died before the signal was armed.
        if call(libc::SYS_getppid, [0; 6]) != Ok(shared.parent as usize) {
            return Err((Stage::ParentDeath, libc::ESRCH));
        }
    }
    call(libc::SYS_chdir, [address(launch.cwd.as_ptr()), 0, 0, 0, 0, 0]).map_err(at(Stage::Cwd))?;
    if let Some(umask) = launch.umask {
        drop_result(call(libc::SYS_umask, [umask as usize, 0, 0, 0, 0, 0]));
    }
    let ignored = launch.ignored.filter(|_| shared.has_no_handlers.get());
    reset_signals(ignored.unwrap_or(Ignored::ANY)).map_err(at(Stage::Signals))?;
    match launch.sandbox.zip(ipc) {
        Some((sandbox, ipc)) => sandbox.seal(ipc).map_err(at(Stage::Sandbox)),
        None => Ok(()),
    }
}

/// Writes ourselves into each group. `0` means the writer, so that no number has to be spelt out here.
fn enter_cgroups(home: Option<RawFd>, groups: &[RawFd]) -> Result<(), c_int> {
    let enter = |file: usize| call(libc::SYS_write, [file, address(c"0".as_ptr()), 1, 0, 0, 0]).map(drop);
    if let Some(home) = home {
        // Closed with all others.
        let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
        enter(call(libc::SYS_openat, [home as usize, address(c"cgroup.procs".as_ptr()), flags, 0, 0, 0])?)?;
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

/// The raw calls change this task alone: the C library's would try to change the parent's threads with it.
fn become_user(user: &User) -> Result<(), c_int> {
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
                // Where our own 0 is closed the new descriptor is in place already. Any other number is either
                // overwritten below or closed with the rest.
                if opened as RawFd != target {
                    place(opened as RawFd, target)?;
                }
            }
        }
    }
    launch.extra.iter().try_for_each(|(source, number)| place(*source, *number))
}

/// Closes every number from 3 up that is not in `keep`.
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

/// Sets signals to their default and empties the mask. Asking first would cost the same number of calls.
fn reset_signals(which: Ignored) -> Result<(), c_int> {
    let default = [0_u64; SIGACTION_BYTES / 8];
    for signal in (1..=64).filter(|signal| which.has(*signal)) {
        call(libc::SYS_rt_sigaction, [signal as usize, address(default.as_ptr()), 0, MASK_BYTES, 0, 0])?;
    }
    set_mask(&0, None).map(drop)
}

/// Tries the candidates as `execvp` does and returns the error number that says most.
fn execute(shared: &Shared<'_>) -> c_int {
    let launch = shared.launch;
    let env = address(launch.env.as_ptr());
    let mut denied = false;
    let mut last = libc::ENOENT;
    for candidate in launch.candidates.iter().filter(|candidate| !candidate.is_null()) {
        last = exec(*candidate, launch.argv.as_ptr(), env);
        if last == libc::ENOEXEC {
            let script_argv = shared.script_argv.get();
            // SAFETY: the array has at least three places and belongs to this launch alone.
            unsafe { *script_argv.add(1) = *candidate };
            return exec(c"/bin/sh".as_ptr(), script_argv, env);
        }
        match last {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return last,
        }
    }
    // A file that may not be executed says more than the absence in later directories.
    if denied { libc::EACCES } else { last }
}

fn exec(path: *const c_char, argv: *const *const c_char, env: usize) -> c_int {
    match call(libc::SYS_execve, [address(path), address(argv), env, 0, 0, 0]) {
        Err(errno) => errno,
        Ok(_) => 0,
    }
}
