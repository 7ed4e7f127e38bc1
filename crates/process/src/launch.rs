//! The clone and what the child does before exec.
//!
//! The child shares our memory and our thread's `errno` and runs while the calling thread is stopped in the kernel
//! (`CLONE_VM | CLONE_VFORK`), so the cost does not grow with our memory. In return the child's side may only make
//! raw system calls: no allocation, no lock, no panic, no library function with hidden state. Everything it reads is
//! prepared by `spawn`; what it reports is one stage and one error number in memory that both see.

use std::{
    cell::Cell,
    ffi::CStr,
    io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::Mutex,
};

use exec_server_sandbox::InChild;
use libc::{c_char, c_int, c_long, c_void};
use rustix::process::Pid;

use crate::spawn::{Stage, User};

mod born;

/// Bytes of the child's stack, guard page included. The deepest path is some hundred bytes; debug builds need more.
const STACK_BYTES: usize = 64 * 1024;
const GUARD_BYTES: usize = 4096;
/// Bytes of a signal mask as the kernel takes it: one bit for each of 64 signals.
const MASK_BYTES: usize = 8;
/// The largest kernel `sigaction` of our targets; all zero means the default action.
const SIGACTION_BYTES: usize = 32;

/// The last stack that went out of use. The child is through with it when clone returns, so one is enough unless
/// several threads spawn at the same time; the others map their own.
static SPARE_STACK: Mutex<Option<Stack>> = Mutex::new(None);

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
            call(libc::SYS_rt_sigaction, [*signal as usize, 0, into, MASK_BYTES, 0]).is_ok()
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
    pub(crate) fn run(&self) -> Result<Started, Failure> {
        let stack = Stack::take().map_err(|source| Failure::Parent { what: "stack", source })?;
        let mut script_argv = self.script_argv.to_vec();
        let shared = Shared {
            launch: self,
            // SAFETY: `getpid` has no preconditions.
            parent: unsafe { libc::getpid() },
            script_argv: Cell::new(script_argv.as_mut_ptr()),
            must_go_home: Cell::new(false),
            has_no_handlers: Cell::new(false),
            has_begun: Cell::new(false),
            report: Cell::new(None),
        };
        let cloned = clone(&shared, &stack);
        stack.give_back();
        let (pid, pidfd) = cloned.map_err(|source| Failure::Parent { what: "process", source })?;
        match shared.report.take() {
            None => Ok(Started { pid, pidfd }),
            Some((stage, errno)) => {
                reap(pid);
                Err(Failure::Child { stage, source: io::Error::from_raw_os_error(errno) })
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
        let base =
            unsafe { libc::mmap(ptr::null_mut(), STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base };
        // SAFETY: the range is the lowest page of the mapping just made and holds no data.
        if unsafe { libc::mprotect(base, GUARD_BYTES, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    /// The address where the stack begins; it grows down. Aligned to 16 because the mapping is aligned to a page.
    fn top(&self) -> *mut c_void {
        self.base.wrapping_byte_add(STACK_BYTES)
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
        unsafe { libc::munmap(self.base, STACK_BYTES) };
    }
}

/// Clones with every signal blocked: a handler of ours must not run in the child, which shares our memory.
fn clone(shared: &Shared<'_>, stack: &Stack) -> io::Result<(Pid, OwnedFd)> {
    let (all, mut before) = (u64::MAX, 0_u64);
    // The raw call, since the C library never blocks the two signals it uses itself.
    set_mask(&all, Some(&mut before)).map_err(io::Error::from_raw_os_error)?;
    shared.has_no_handlers.set(true);
    let cloned = born::clone_into(shared.launch.home, shared, stack).or_else(|_refused| {
        // An older kernel, a filter of system calls, or a group that takes nobody: the child itself then says which.
        shared.must_go_home.set(true);
        shared.has_no_handlers.set(false);
        clone_here(shared, stack)
    });
    set_mask(&before, None).map_err(io::Error::from_raw_os_error)?;
    cloned
}

/// A child in the groups that we are in.
fn clone_here(shared: &Shared<'_>, stack: &Stack) -> io::Result<(Pid, OwnedFd)> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: c_int = -1;
    // SAFETY: `stack` is a private mapping with room for `child_main`; `shared` lives until clone returns, and with
    // CLONE_VFORK clone returns after the child has executed a program or ended; the kernel writes one int to `pidfd`.
    let pid =
        unsafe { libc::clone(child_main, stack.top(), flags, ptr::from_ref(shared).cast_mut().cast(), &raw mut pidfd) };
    match Pid::from_raw(pid.max(0)) {
        // SAFETY: the kernel made this descriptor for us in the call that made the child.
        Some(pid) => Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) })),
        None => Err(io::Error::last_os_error()),
    }
}

fn set_mask(mask: &u64, before: Option<&mut u64>) -> Result<usize, c_int> {
    let before = before.map_or(ptr::null_mut(), ptr::from_mut);
    let how = libc::SIG_SETMASK as usize;
    call(libc::SYS_rt_sigprocmask, [how, address(mask), address(before), MASK_BYTES, 0])
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

/// A pointer as an argument of [`call`]. The provenance is exposed because the kernel reads and writes through it.
fn address<T>(pointer: *const T) -> usize {
    pointer.expose_provenance()
}

/// One raw system call; the error number is read at once, for the thread's `errno` is shared with the parent.
fn call(number: c_long, args: [usize; 5]) -> Result<usize, c_int> {
    let [a, b, c, d, e] = args;
    // SAFETY: each caller passes what the call with this number takes; pointers are valid for its duration.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    if result == -1 {
        // SAFETY: the address of this thread's `errno` is always valid.
        return Err(unsafe { *libc::__errno_location() });
    }
    Ok(result as usize)
}

extern "C" fn child_main(shared: *mut c_void) -> c_int {
    // SAFETY: `clone` passed a `Shared` that outlives the child's time in this memory; the parent thread is stopped.
    let shared = unsafe { &*shared.cast_const().cast::<Shared<'_>>() };
    shared.has_begun.set(true);
    let (stage, errno) = match set_up(shared) {
        Err(failure) => failure,
        Ok(()) => (Stage::Exec, execute(shared)),
    };
    shared.report.set(Some((stage, errno)));
    // The program never began, so the code is seen by nobody: the parent reads the report and reaps.
    drop_result(call(libc::SYS_exit_group, [127, 0, 0, 0, 0]));
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
    call(libc::SYS_setsid, [0; 5]).map_err(at(Stage::Session))?;
    place_descriptors(launch).map_err(at(Stage::Descriptors))?;
    if launch.terminal {
        call(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0, 0]).map_err(at(Stage::Terminal))?;
    }
    if let Some(sandbox) = launch.sandbox {
        sandbox.enter().map_err(at(Stage::Sandbox))?;
    }
    close_others(launch.keep).map_err(at(Stage::CloseRange))?;
    set_limits(launch).map_err(at(Stage::Limits))?;
    if let Some(user) = launch.user {
        become_user(user).map_err(at(Stage::User))?;
    }
    if launch.die_with_parent {
        let (option, signal) = (libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize);
        call(libc::SYS_prctl, [option, signal, 0, 0, 0]).map_err(at(Stage::ParentDeath))?;
        // The parent may have died before the signal was armed.
        if call(libc::SYS_getppid, [0; 5]) != Ok(shared.parent as usize) {
            return Err((Stage::ParentDeath, libc::ESRCH));
        }
    }
    call(libc::SYS_chdir, [address(launch.cwd.as_ptr()), 0, 0, 0, 0]).map_err(at(Stage::Cwd))?;
    if let Some(umask) = launch.umask {
        drop_result(call(libc::SYS_umask, [umask as usize, 0, 0, 0, 0]));
    }
    let ignored = launch.ignored.filter(|_| shared.has_no_handlers.get());
    reset_signals(ignored.unwrap_or(Ignored::ANY)).map_err(at(Stage::Signals))?;
    launch.sandbox.map_or(Ok(()), |sandbox| sandbox.seal().map_err(at(Stage::Sandbox)))
}

/// Writes ourselves into each group. `0` means the writer, so that no number has to be spelt out here.
fn enter_cgroups(home: Option<RawFd>, groups: &[RawFd]) -> Result<(), c_int> {
    let enter = |file: usize| call(libc::SYS_write, [file, address(c"0".as_ptr()), 1, 0, 0]).map(drop);
    if let Some(home) = home {
        // Closed with all others.
        let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
        enter(call(libc::SYS_openat, [home as usize, address(c"cgroup.procs".as_ptr()), flags, 0, 0])?)?;
    }
    groups.iter().try_for_each(|group| enter(*group as usize))
}

fn set_limits(launch: &Launch<'_>) -> Result<(), c_int> {
    let set = |resource: u32, soft: u64, hard: u64| {
        let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
        call(libc::SYS_prlimit64, [0, resource as usize, address(&raw const limit), 0, 0]).map(drop)
    };
    if let Some((soft, hard)) = launch.nofile {
        set(libc::RLIMIT_NOFILE, soft, hard)?;
    }
    launch.limits.iter().try_for_each(|(resource, limit)| set(*resource, *limit, *limit))
}

/// The raw calls change this task alone: the C library's would try to change the parent's threads with it.
fn become_user(user: &User) -> Result<(), c_int> {
    let (uid, gid) = (user.uid as usize, user.gid as usize);
    call(libc::SYS_setgroups, [user.groups.len(), address(user.groups.as_ptr()), 0, 0, 0])?;
    call(libc::SYS_setresgid, [gid, gid, gid, 0, 0])?;
    call(libc::SYS_setresuid, [uid, uid, uid, 0, 0]).map(drop)
}

fn place_descriptors(launch: &Launch<'_>) -> Result<(), c_int> {
    let place =
        |source: RawFd, target: RawFd| call(libc::SYS_dup3, [source as usize, target as usize, 0, 0, 0]).map(drop);
    for (target, source) in (0..).zip(launch.stdio) {
        match source {
            Some(source) => place(source, target)?,
            None => {
                let path = address(c"/dev/null".as_ptr());
                let flags = libc::O_RDWR as usize;
                let opened = call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0])?;
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
            call(libc::SYS_close_range, [first, number - 1, 0, 0, 0])?;
        }
        first = number + 1;
    }
    call(libc::SYS_close_range, [first, u32::MAX as usize, 0, 0, 0]).map(drop)
}

/// Sets signals to their default and empties the mask. Asking first would cost the same number of calls.
fn reset_signals(which: Ignored) -> Result<(), c_int> {
    let default = [0_u64; SIGACTION_BYTES / 8];
    for signal in (1..=64).filter(|signal| which.has(*signal)) {
        call(libc::SYS_rt_sigaction, [signal as usize, address(default.as_ptr()), 0, MASK_BYTES, 0])?;
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
    match call(libc::SYS_execve, [address(path), address(argv), env, 0, 0]) {
        Err(errno) => errno,
        Ok(_) => 0,
    }
}
