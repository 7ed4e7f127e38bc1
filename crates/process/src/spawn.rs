//! The description of a child, and the parent's preparation of the spawn.
//!
//! This module checks the description, searches `PATH` and defines the typed error. `launch` does the clone and the
//! exec, `streams` opens the pipes or the terminal.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{OwnedFd, RawFd},
    ptr,
};

use exec_server_sandbox::{ChildKit, Kit};

use crate::{
    child::Child,
    launch::{IgnoredSignals, Launch, LaunchFailure, StartedChild},
    low_fds::LowFds,
    streams::{self, PassedFd, SourceNumbers},
};

/// Search path for a program without a slash if the child's environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// Maximum number of children between clone and exec at the same time. Each needs a stack.
const BATCH_MAX: usize = 8;

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// Where a child with pipes reads its stdin from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdinMode {
    /// `/dev/null`: the child sees EOF at once.
    Null,
    /// A pipe that stays open until [`Child::close_stdin`].
    Open,
}

/// How a child's standard streams are connected to the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdioMode {
    /// Separate pipes for stdout and stderr.
    Pipe { stdin: StdinMode },
    /// A terminal of this size for all three streams. It is the child's controlling terminal.
    Pty(TerminalSize),
}

/// The description of a child.
#[derive(Debug)]
pub struct Spawn {
    /// The program (`argv[0]`, searched in the child's `PATH` if it has no slash) and its arguments.
    pub argv: Vec<CString>,
    /// Replaces `argv[0]` in the arguments that the program sees. Does not change which program runs.
    pub arg0: Option<CString>,
    /// The whole environment, each entry `NAME=value`. Nothing is added.
    pub env: Vec<CString>,
    /// The working directory. If it is missing, the spawn fails.
    pub cwd: CString,
    pub stdio: StdioMode,
    /// Fds that the child gets besides 0, 1 and 2, each with its number (3 or higher) in the child.
    pub extra_fds: Vec<(OwnedFd, RawFd)>,
    /// Soft and hard `RLIMIT_NOFILE` of the child. `None`: inherit ours.
    pub nofile: Option<(u64, u64)>,
    /// The umask of the child. `None`: inherit ours.
    pub umask: Option<u32>,
    /// Kills the leader with SIGKILL when the *thread* that called [`Spawn::spawn`] ends (`PR_SET_PDEATHSIG`). So call
    /// `spawn` from a thread that lives as long as the calling process. The kernel clears the setting when the child
    /// executes a set-user-id program.
    pub die_with_parent: bool,
    /// The directory of a cgroup v2 (an `O_PATH` fd is enough) in which the child is created, so that none of its
    /// descendants starts outside the group. This is also faster than moving the child into the cgroup later: a move
    /// waits for a lock of the whole host.
    pub cgroup_dir: Option<OwnedFd>,
    /// Open `tasks` files of cgroups in other hierarchies. The child writes itself into them before anything else.
    pub cgroups: Vec<OwnedFd>,
    /// The user of the child. `None`: our user. The child's ends of its streams then belong to this user, too.
    pub user: Option<ChildUser>,
    /// Other limits of the child: the resource (`RLIMIT_…`) and one value for the soft and the hard limit.
    pub limits: Vec<(u32, u64)>,
    /// The sandbox of the child. It is applied before exec. If that fails, the spawn fails.
    pub sandbox: Option<Kit>,
    /// The signals that this process ignores, if the caller knows them and does not change them. A child that `clone3`
    /// has created then resets only these signals to their default action. Any other child resets every signal.
    pub ignored: Option<IgnoredSignals>,
    /// [`Spawn::spawn_all`] starts no other child while this one is on its way to exec. Set it if the child is created
    /// in a cgroup with a memory limit: at the limit, the OOM killer could select the child and kill every process that
    /// shares its memory, including us. The OOM killer does not select a child whose parent is stopped (`CLONE_VFORK`).
    pub alone: bool,
}

/// The ids that a child gets for its user and groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildUser {
    pub uid: u32,
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// Why a spawn failed. A failed spawn leaves no process, zombie or fd behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    #[error("spawn of an empty `argv`")]
    EmptyArgv,
    /// A string contains a zero byte and cannot be passed to the kernel.
    #[error("zero byte in `{what}`")]
    NulByte {
        /// The field with the zero byte.
        what: &'static str,
    },
    /// The number of an extra fd is below 3 or given twice.
    #[error("extra descriptor cannot be `{number}` in the child")]
    BadDescriptor { number: RawFd },
    /// The parent could not get a resource for the child: pipe, terminal, memory or process.
    #[error("get `{what}` for a child")]
    Resources { what: &'static str, source: io::Error },
    /// A step in the child failed, other than the change of directory and the exec.
    #[error("set up `{stage}` in the child")]
    Setup { stage: SpawnStage, source: io::Error },
    #[error("enter working directory `{}`", path.to_string_lossy())]
    Cwd { path: CString, source: io::Error },
    #[error("execute `{}`", program.to_string_lossy())]
    Exec {
        /// The program as given, before the `PATH` search.
        program: CString,
        source: io::Error,
    },
}

/// A step of the child between clone and exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnStage {
    /// `setsid`.
    Session,
    /// Setting the parent-death signal. Also used if the parent was already dead.
    ParentDeath,
    /// Placing fds 0, 1, 2 and the declared ones.
    Descriptors,
    /// Acquiring the controlling terminal.
    Terminal,
    Cwd,
    /// Closing all other fds.
    CloseRange,
    /// Setting resource limits.
    Limits,
    /// Resetting signal dispositions and the signal mask.
    Signals,
    Exec,
    Cgroup,
    /// Changing the user.
    User,
    /// Applying the sandbox.
    Sandbox,
}

impl std::fmt::Display for SpawnStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Session => "session",
            Self::ParentDeath => "parent death signal",
            Self::Descriptors => "descriptors",
            Self::Terminal => "controlling terminal",
            Self::Cwd => "working directory",
            Self::CloseRange => "close of other descriptors",
            Self::Limits => "limits",
            Self::Signals => "signals",
            Self::Exec => "program",
            Self::Cgroup => "control groups",
            Self::User => "user",
            Self::Sandbox => "sandbox",
        })
    }
}

impl SpawnError {
    /// The errno, if a system call failed.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::EmptyArgv | Self::NulByte { .. } | Self::BadDescriptor { .. } => None,
            Self::Resources { source, .. }
            | Self::Setup { source, .. }
            | Self::Cwd { source, .. }
            | Self::Exec { source, .. } => source.raw_os_error(),
        }
    }
}

impl Spawn {
    /// A child with pipes, stdin from `/dev/null`, an empty environment and `/` as working directory.
    pub fn new(argv: Vec<CString>) -> Self {
        Self {
            argv,
            arg0: None,
            env: Vec::new(),
            cwd: c"/".to_owned(),
            stdio: StdioMode::Pipe { stdin: StdinMode::Null },
            extra_fds: Vec::new(),
            nofile: None,
            umask: None,
            die_with_parent: false,
            cgroup_dir: None,
            cgroups: Vec::new(),
            user: None,
            limits: Vec::new(),
            sandbox: None,
            ignored: None,
            alone: false,
        }
    }

    /// Like [`Spawn::new`], for byte strings. Fails if one contains a zero byte.
    pub fn from_bytes(argv: impl IntoIterator<Item: Into<Vec<u8>>>) -> Result<Self, SpawnError> {
        let argv = argv.into_iter().map(|text| CString::new(text).map_err(|_nul| SpawnError::NulByte { what: "argv" }));
        Ok(Self::new(argv.collect::<Result<_, _>>()?))
    }

    /// Starts the child.
    pub fn spawn(self) -> Result<Child, SpawnError> {
        self.launch(None, |launch| launch.run())
    }

    /// Starts several children. This is faster than one by one, because they do not wait for each other's exec. The
    /// results are in the order of `spawns`. If one spawn fails, the others still succeed.
    ///
    /// With `low_fds`, a start costs the same however many fds this process has.
    pub fn spawn_all(spawns: Vec<Self>, low_fds: Option<&LowFds>) -> Vec<Result<Child, SpawnError>> {
        let mut spawns = spawns.into_iter();
        let mut children = Vec::with_capacity(spawns.len());
        while spawns.len() > 0 {
            Self::spawn_nested(&mut spawns.by_ref().take(BATCH_MAX), low_fds, &mut children);
        }
        children
    }

    /// Starts the first child and starts all others while it is on its way to exec. The recursion keeps everything that
    /// a child reads alive on this stack until its exec.
    fn spawn_nested(
        spawns: &mut impl ExactSizeIterator<Item = Self>,
        low_fds: Option<&LowFds>,
        children: &mut Vec<Result<Child, SpawnError>>,
    ) {
        let Some(first) = spawns.next() else { return };
        if first.alone || spawns.len() == 0 {
            children.push(first.launch(low_fds, |launch| launch.run()));
            return Self::spawn_nested(spawns, low_fds, children);
        }
        let mut others = Vec::with_capacity(spawns.len());
        let spawn_others = || Self::spawn_nested(spawns, low_fds, &mut others);
        let child = first.launch(low_fds, |launch| launch.run_concurrently(spawn_others).0);
        children.push(child);
        children.append(&mut others);
        // If preparing the first child failed (invalid description, or no pipe or terminal), the closure above did not run
        // and `spawns` still holds the others: start them now. Otherwise `spawns` is empty and this does nothing.
        Self::spawn_nested(spawns, low_fds, children);
    }

    fn launch(
        self,
        low_fds: Option<&LowFds>,
        run: impl FnOnce(&Launch<'_>) -> Result<StartedChild, LaunchFailure>,
    ) -> Result<Child, SpawnError> {
        let program = self.argv.first().ok_or(SpawnError::EmptyArgv)?;
        let keep = kept_numbers(&self.extra_fds)?;
        // A source fd at or above this number cannot be overwritten when another fd is placed.
        let floor = keep.last().map_or(3, |highest| highest.saturating_add(1));
        let candidates = candidates(program, &self.env);
        let streams = streams::open(self.stdio, floor)?;
        if let Some(user) = &self.user {
            streams.change_owner(user)?;
        }
        let kit_fds = self.sandbox.as_ref().map(Kit::descriptors).unwrap_or_default();
        let passed = streams.count() + self.cgroups.len() + kit_fds.iter().flatten().count();
        // A declared fd could have the same number as a low fd, so a child with declared fds gets no low ones.
        let low_fds = low_fds.filter(|_| self.extra_fds.is_empty());
        let mut numbers =
            low_fds.and_then(|low_fds| low_fds.take(passed)).map_or(SourceNumbers::From(floor), SourceNumbers::Low);
        let stdio = streams.sources(&mut numbers)?;
        let cgroups = self.cgroups.iter().map(|fd| PassedFd::borrow(fd, &mut numbers));
        let cgroups = cgroups.collect::<Result<Vec<_>, _>>()?;
        let sandbox = self.sandbox.as_ref().map(|kit| RaisedSandbox::new(kit, &mut numbers)).transpose()?;
        // Only we use it: the kernel creates the child in the cgroup, or a child with a copy of our fd table enters it.
        let cgroup_dir = self.cgroup_dir.as_ref().map(|fd| PassedFd::borrow(fd, &mut SourceNumbers::From(floor)));
        let cgroup_dir = cgroup_dir.transpose()?;
        let extra = self.extra_fds.iter().map(|(fd, number)| Ok((PassedFd::borrow(fd, &mut numbers)?, *number)));
        let extra = extra.collect::<Result<Vec<_>, SpawnError>>()?;

        let arg0 = self.arg0.as_ref().unwrap_or(program);
        let argv = pointers([arg0].into_iter().chain(self.argv.iter().skip(1)));
        // Arguments of `sh` for a script without an interpreter line: its name, the script (null until the child knows
        // its path), the script's arguments.
        let mut script_argv = vec![c"/bin/sh".as_ptr(), ptr::null()];
        script_argv.extend(pointers(self.argv.iter().skip(1)));
        let launch = Launch {
            argv: &argv,
            script_argv: &script_argv,
            env: &pointers(&self.env),
            candidates: &pointers(&candidates),
            cwd: &self.cwd,
            stdio,
            extra: &extra.iter().map(|(source, number)| (source.as_raw(), *number)).collect::<Vec<_>>(),
            keep: &keep,
            terminal: matches!(self.stdio, StdioMode::Pty(_)),
            nofile: self.nofile,
            umask: self.umask,
            die_with_parent: self.die_with_parent,
            cgroup_dir: cgroup_dir.as_ref().map(PassedFd::as_raw),
            cgroups: &cgroups.iter().map(PassedFd::as_raw).collect::<Vec<_>>(),
            user: self.user.as_ref(),
            limits: &self.limits,
            sandbox: sandbox.as_ref().map(|raised| &raised.in_child),
            ignored: self.ignored,
            sources_end: numbers.end(),
        };
        match run(&launch) {
            Ok(started) => Ok(Child::started(started, streams.into_parent())),
            Err(LaunchFailure::Parent { what, source }) => Err(SpawnError::Resources { what, source }),
            Err(LaunchFailure::Child { stage: SpawnStage::Cwd, source }) => {
                Err(SpawnError::Cwd { path: self.cwd.clone(), source })
            }
            Err(LaunchFailure::Child { stage: SpawnStage::Exec, source }) => {
                Err(SpawnError::Exec { program: program.clone(), source })
            }
            Err(LaunchFailure::Child { stage, source }) => Err(SpawnError::Setup { stage, source }),
        }
    }
}

/// A sandbox whose fds have numbers that no fd of the child overwrites.
struct RaisedSandbox<'a> {
    in_child: ChildKit,
    /// Keeps the fds open until the exec.
    _sources: [Option<PassedFd<'a>>; 3],
}

impl<'a> RaisedSandbox<'a> {
    fn new(kit: &'a Kit, numbers: &mut SourceNumbers<'_>) -> Result<Self, SpawnError> {
        let [user, mounts, rules] = kit.descriptors();
        let mut pass = |fd: Option<&'a OwnedFd>| fd.map(|fd| PassedFd::borrow(fd, numbers)).transpose();
        let sources = [pass(user)?, pass(mounts)?, pass(rules)?];
        let in_child = kit.in_child(sources.each_ref().map(|source| source.as_ref().map(PassedFd::as_raw)));
        Ok(Self { in_child, _sources: sources })
    }
}

/// The declared fd numbers in ascending order. Fails if a number is below 3 or given twice.
fn kept_numbers(extra: &[(OwnedFd, RawFd)]) -> Result<Vec<RawFd>, SpawnError> {
    let mut keep: Vec<RawFd> = extra.iter().map(|(_, number)| *number).collect();
    keep.sort_unstable();
    let twice = keep.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    match keep.first().copied().filter(|lowest| *lowest < 3).or(twice) {
        Some(number) => Err(SpawnError::BadDescriptor { number }),
        None => Ok(keep),
    }
}

/// A null-terminated array for `execve`. It contains only the addresses of the strings, so they must outlive it.
fn pointers<'a>(texts: impl IntoIterator<Item = &'a CString>) -> Vec<*const libc::c_char> {
    texts.into_iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// Every path that `execvp` would try, in order. Computed in the parent, because the child must not allocate.
fn candidates(program: &CStr, env: &[CString]) -> Vec<CString> {
    let name = program.to_bytes();
    if name.is_empty() || name.contains(&b'/') {
        return vec![program.to_owned()];
    }
    let path = env.iter().find_map(|entry| entry.to_bytes().strip_prefix(b"PATH="));
    let directories = path.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':');
    let paths = directories.map(|directory| {
        // An empty element means the working directory. The `./` prefix keeps `sh` from reading a name like `-c` as an
        // option.
        let directory = if directory.is_empty() { b"." } else { directory };
        CString::new([directory, b"/", name].concat()).expect("parts of C strings hold no zero byte")
    });
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(program: &CStr, env: &[&CStr], expected: &[&CStr]) {
        let env: Vec<CString> = env.iter().map(|entry| (*entry).to_owned()).collect();
        assert_eq!(candidates(program, &env), expected);
    }

    #[test]
    fn program_without_slash_is_searched_in_the_path_of_the_child() {
        check(c"ls", &[c"A=b", c"PATH=/x:/y"], &[c"/x/ls", c"/y/ls"]);
        check(c"ls", &[c"MYPATH=/x"], &[c"/bin/ls", c"/usr/bin/ls"]);
        check(c"ls", &[c"PATH=:/y:"], &[c"./ls", c"/y/ls", c"./ls"]);
        check(c"ls", &[c"PATH=/x", c"PATH=/y"], &[c"/x/ls"]);
        check(c"./ls", &[c"PATH=/x"], &[c"./ls"]);
        check(c"", &[c"PATH=/x"], &[c""]);
    }

    #[test]
    fn declared_numbers_are_unique_and_above_the_streams() {
        let fd = || OwnedFd::from(std::fs::File::open("/dev/null").expect("the null device opens"));
        let check = |numbers: &[RawFd]| {
            let extra: Vec<_> = numbers.iter().map(|number| (fd(), *number)).collect();
            kept_numbers(&extra).map_err(|error| match error {
                SpawnError::BadDescriptor { number } => number,
                other => panic!("unexpected error: {other}"),
            })
        };
        assert_eq!(check(&[9, 3]), Ok(vec![3, 9]));
        assert_eq!(check(&[2]), Err(2));
        assert_eq!(check(&[-1, 4]), Err(-1));
        assert_eq!(check(&[7, 4, 7]), Err(7));
    }
}
