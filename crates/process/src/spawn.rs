//! The description of a child and what is prepared for it in the parent.
//!
//! Owns the checks, the search path and the typed error; it does not know what happens between clone and exec
//! (`launch`) nor how streams are made (`streams`).

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{OwnedFd, RawFd},
    ptr,
};

use exec_server_sandbox::{InChild, Kit};

use crate::{
    child::Child,
    launch::{Failure, Ignored, Launch, Started},
    streams::{self, Source},
};

/// Where a program without a slash is looked for when the child's environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// Children that may be on their way to exec at the same time: each has a stack.
const AT_ONCE: usize = 8;

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Number of rows.
    pub rows: u16,
    /// Number of columns.
    pub cols: u16,
}

impl Default for Size {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// What a child with pipes reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// The null device: the child sees the end of its input at once.
    Null,
    /// A pipe that stays open until [`Child::close_stdin`].
    Open,
}

/// How a child is connected to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// Separate pipes for stdout and stderr.
    Pipe {
        /// What the child reads from.
        stdin: Stdin,
    },
    /// A terminal of this size for all three streams; it is the child's controlling terminal.
    Pty(Size),
}

/// Everything that decides how a child comes to life.
#[derive(Debug)]
pub struct Spawn {
    /// The program (`argv[0]`, searched in the child's `PATH` if it has no slash) and its arguments.
    pub argv: Vec<CString>,
    /// What the program sees as its own name instead of `argv[0]`; it does not change which program runs.
    pub arg0: Option<CString>,
    /// The whole environment, each entry `NAME=value`; nothing is added.
    pub env: Vec<CString>,
    /// The working directory; a missing one is an error.
    pub cwd: CString,
    /// Pipes or a terminal.
    pub stdio: Stdio,
    /// Descriptors that the child gets besides 0, 1 and 2, each with its number (3 or higher) in the child.
    pub extra_fds: Vec<(OwnedFd, RawFd)>,
    /// Soft and hard limit of open descriptors in the child; `None` leaves ours in force.
    pub nofile: Option<(u64, u64)>,
    /// The file mode mask of the child; `None` leaves ours in force.
    pub umask: Option<u32>,
    /// Kills the leader with SIGKILL when the *thread* that called [`Spawn::spawn`] ends, so call it from a thread
    /// that lives as long as the process. The kernel drops the setting when a set-user-id program is executed.
    pub die_with_parent: bool,
    /// The directory of a control group of the unified hierarchy (`O_PATH` will do) that the child is born in, so that nothing
    /// it ever starts is outside it. No lock of the kernel is waited for, as it is by one that is moved.
    pub home: Option<OwnedFd>,
    /// Open files of control groups of other hierarchies (`tasks`), which the child writes itself into before anything else.
    pub cgroups: Vec<OwnedFd>,
    /// Who the child is; `None` leaves it our user. Its streams are handed over to that user, too.
    pub user: Option<User>,
    /// Other limits of the child: the number of a resource (`RLIMIT_…`) and its soft and hard limit in one.
    pub limits: Vec<(u32, u64)>,
    /// What the child is confined to; applied before its program begins, or there is no child.
    pub sandbox: Option<Kit>,
    /// The signals that this process ignores, where it knows and changes nothing about it: only these are then set to their default,
    /// not each of them.
    pub ignored: Option<Ignored>,
    /// [`Spawn::spawn_all`] makes no other one while this one is on its way to exec. Needed where it is born in a group with a memory
    /// limit: at the limit the kernel ends everybody who shares the child's memory, us among them, unless we are stopped.
    pub alone: bool,
}

/// The user that a child runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Why no child was made. Nothing is left behind: no process, no zombie, no descriptor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// There is no program to run.
    #[error("spawn of an empty `argv`")]
    EmptyArgv,
    /// A text cannot be passed to the kernel.
    #[error("zero byte in `{what}`")]
    NulByte {
        /// The field that holds it.
        what: &'static str,
    },
    /// A declared descriptor number is below 3 or given twice.
    #[error("extra descriptor cannot be `{number}` in the child")]
    BadDescriptor {
        /// The number asked for.
        number: RawFd,
    },
    /// The parent could not get what the child needs: pipe, terminal, memory, process.
    #[error("get `{what}` for a child")]
    Resources {
        /// What was asked of the kernel.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The child could not be set up before it came to the working directory or the program.
    #[error("set up `{stage}` in the child")]
    Setup {
        /// The step that failed.
        stage: Stage,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The working directory cannot be entered.
    #[error("enter working directory `{}`", path.to_string_lossy())]
    Cwd {
        /// The directory.
        path: CString,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program cannot be executed.
    #[error("execute `{}`", program.to_string_lossy())]
    Exec {
        /// The program as it was given, before the search.
        program: CString,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A step of the child between clone and exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// `setsid`.
    Session = 1,
    /// The parent-death signal, or the parent was gone already.
    ParentDeath = 2,
    /// Placing 0, 1, 2 and the declared descriptors.
    Descriptors = 3,
    /// Making the terminal the controlling one.
    Terminal = 4,
    /// Entering the working directory.
    Cwd = 5,
    /// Closing every other descriptor.
    CloseRange = 6,
    /// The limit of open descriptors.
    Limits = 7,
    /// Dispositions and mask of signals.
    Signals = 8,
    /// Executing the program.
    Exec = 9,
    /// Entering the control groups.
    Cgroup = 10,
    /// Becoming another user.
    User = 11,
    /// Confining itself.
    Sandbox = 12,
}

impl std::fmt::Display for Stage {
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
    /// The error number of the kernel, where the kernel refused something.
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
    /// Describes a child with pipes, no input, an empty environment and `/` as working directory.
    pub fn new(argv: Vec<CString>) -> Self {
        Self {
            argv,
            arg0: None,
            env: Vec::new(),
            cwd: c"/".to_owned(),
            stdio: Stdio::Pipe { stdin: Stdin::Null },
            extra_fds: Vec::new(),
            nofile: None,
            umask: None,
            die_with_parent: false,
            home: None,
            cgroups: Vec::new(),
            user: None,
            limits: Vec::new(),
            sandbox: None,
            ignored: None,
            alone: false,
        }
    }

    /// [`Spawn::new`] for texts that may hold a zero byte.
    pub fn from_bytes(argv: impl IntoIterator<Item: Into<Vec<u8>>>) -> Result<Self, SpawnError> {
        let argv = argv.into_iter().map(|text| CString::new(text).map_err(|_nul| SpawnError::NulByte { what: "argv" }));
        Ok(Self::new(argv.collect::<Result<_, _>>()?))
    }

    /// Makes the child.
    pub fn spawn(self) -> Result<Child, SpawnError> {
        self.launch(|launch| launch.run())
    }

    /// Makes several children, in less time than one by one: they need not wait for each other's exec. The answers are in the
    /// order of `spawns`; one that fails costs the others nothing.
    pub fn spawn_all(spawns: Vec<Self>) -> Vec<Result<Child, SpawnError>> {
        let mut spawns = spawns.into_iter();
        let mut children = Vec::with_capacity(spawns.len());
        while spawns.len() > 0 {
            Self::spawn_nested(&mut spawns.by_ref().take(AT_ONCE), &mut children);
        }
        children
    }

    /// Makes the first with all others inside of its birth, so that what each child reads lives on this stack until it is born.
    fn spawn_nested(spawns: &mut impl ExactSizeIterator<Item = Self>, children: &mut Vec<Result<Child, SpawnError>>) {
        let Some(first) = spawns.next() else { return };
        if first.alone || spawns.len() == 0 {
            children.push(first.spawn());
            return Self::spawn_nested(spawns, children);
        }
        let mut others = Vec::with_capacity(spawns.len());
        let child = first.launch(|launch| launch.run_beside(|| Self::spawn_nested(spawns, &mut others)).0);
        children.push(child);
        children.append(&mut others);
        // One whose description was refused had no birth for the others to be in.
        Self::spawn_nested(spawns, children);
    }

    fn launch(self, run: impl FnOnce(&Launch<'_>) -> Result<Started, Failure>) -> Result<Child, SpawnError> {
        let program = self.argv.first().ok_or(SpawnError::EmptyArgv)?;
        let keep = kept_numbers(&self.extra_fds)?;
        // A source at or above this number is never overwritten by the placing of another one.
        let floor = keep.last().map_or(3, |highest| highest.saturating_add(1));
        let candidates = candidates(program, &self.env);
        let streams = streams::open(self.stdio, floor)?;
        if let Some(user) = &self.user {
            streams.hand_over(user)?;
        }
        let home = self.home.as_ref().map(|fd| Source::borrow(fd, floor)).transpose()?;
        let cgroups = self.cgroups.iter().map(|fd| Source::borrow(fd, floor)).collect::<Result<Vec<_>, _>>()?;
        let extra = raise_extra(&self.extra_fds, floor)?;
        let sandbox = self.sandbox.as_ref().map(|kit| Confined::new(kit, floor)).transpose()?;

        let argv = pointers(self.arg0.iter().chain(self.argv.get(usize::from(self.arg0.is_some())..).unwrap_or(&[])));
        // What `sh` gets for a script without an interpreter line: its name, the script, the script's arguments.
        let mut script_argv = vec![c"/bin/sh".as_ptr(), ptr::null()];
        script_argv.extend(pointers(self.argv.iter().skip(1)));
        let launch = Launch {
            argv: &argv,
            script_argv: &script_argv,
            env: &pointers(&self.env),
            candidates: &pointers(&candidates),
            cwd: &self.cwd,
            stdio: streams.sources(),
            extra: &extra.iter().map(|(source, number)| (source.as_raw(), *number)).collect::<Vec<_>>(),
            keep: &keep,
            terminal: matches!(self.stdio, Stdio::Pty(_)),
            nofile: self.nofile,
            umask: self.umask,
            die_with_parent: self.die_with_parent,
            home: home.as_ref().map(Source::as_raw),
            cgroups: &cgroups.iter().map(Source::as_raw).collect::<Vec<_>>(),
            user: self.user.as_ref(),
            limits: &self.limits,
            sandbox: sandbox.as_ref().map(|confined| &confined.in_child),
            ignored: self.ignored,
        };
        match run(&launch) {
            Ok(started) => Ok(Child::started(started, streams.into_ours())),
            Err(Failure::Parent { what, source }) => Err(SpawnError::Resources { what, source }),
            Err(Failure::Child { stage: Stage::Cwd, source }) => {
                Err(SpawnError::Cwd { path: self.cwd.clone(), source })
            }
            Err(Failure::Child { stage: Stage::Exec, source }) => {
                Err(SpawnError::Exec { program: program.clone(), source })
            }
            Err(Failure::Child { stage, source }) => Err(SpawnError::Setup { stage, source }),
        }
    }
}

/// A sandbox with its descriptors at numbers that nothing overwrites.
struct Confined<'a> {
    in_child: InChild,
    /// Kept open until the child has them.
    _sources: [Option<Source<'a>>; 3],
}

impl<'a> Confined<'a> {
    fn new(kit: &'a Kit, floor: RawFd) -> Result<Self, SpawnError> {
        let [user, mounts, rules] = kit.descriptors();
        let raise = |fd: Option<&'a OwnedFd>| fd.map(|fd| Source::borrow(fd, floor)).transpose();
        let sources = [raise(user)?, raise(mounts)?, raise(rules)?];
        let in_child = kit.in_child(sources.each_ref().map(|source| source.as_ref().map(Source::as_raw)));
        Ok(Self { in_child, _sources: sources })
    }
}

/// The declared numbers in ascending order.
fn kept_numbers(extra: &[(OwnedFd, RawFd)]) -> Result<Vec<RawFd>, SpawnError> {
    let mut keep: Vec<RawFd> = extra.iter().map(|(_, number)| *number).collect();
    keep.sort_unstable();
    let twice = keep.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    match keep.first().copied().filter(|lowest| *lowest < 3).or(twice) {
        Some(number) => Err(SpawnError::BadDescriptor { number }),
        None => Ok(keep),
    }
}

fn raise_extra(extra: &[(OwnedFd, RawFd)], floor: RawFd) -> Result<Vec<(Source<'_>, RawFd)>, SpawnError> {
    extra.iter().map(|(fd, number)| Ok((Source::borrow(fd, floor)?, *number))).collect()
}

/// A null-terminated array as `execve` takes it; it borrows the texts by address.
fn pointers<'a>(texts: impl IntoIterator<Item = &'a CString>) -> Vec<*const libc::c_char> {
    texts.into_iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// Every path that `execvp` would try, computed here so that the child needs no memory.
fn candidates(program: &CStr, env: &[CString]) -> Vec<CString> {
    let name = program.to_bytes();
    if name.is_empty() || name.contains(&b'/') {
        return vec![program.to_owned()];
    }
    let path = env.iter().find_map(|entry| entry.to_bytes().strip_prefix(b"PATH="));
    let directories = path.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':');
    let paths = directories.map(|directory| {
        // An empty element is the working directory; the prefix keeps a name like `-c` from being an option of `sh`.
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
