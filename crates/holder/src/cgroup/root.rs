//! Finds where a server may create control groups, and what they can enforce there.
//!
//! Reads `/proc/self/cgroup` and `/proc/self/mountinfo`, and enables controllers for child groups. Never changes a
//! group that contains foreign processes: our own processes are moved to another group only if they are alone in
//! theirs.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{CgroupHierarchy, EnforcedLimits, SessionCgroup, create_if_missing};

/// Group for the server and its holders, if the group in which the server was started must contain only groups: the
/// kernel passes controllers down only from a group without processes.
const SUPERVISOR: &str = "supervisor";

/// Maximum attempts to create a session's group while the end of another session removes the parent directory.
const ATTEMPTS_MAX: usize = 16;

/// The parent directories for the groups of all sessions of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupRoot {
    dirs: Vec<(CgroupHierarchy, PathBuf)>,
    controllers: Vec<&'static str>,
    enforced: EnforcedLimits,
}

/// The directories of the group that this process is in.
#[derive(Debug, Default, PartialEq, Eq)]
struct OwnCgroup {
    unified: Option<PathBuf>,
    pids: Option<PathBuf>,
}

/// Finds where this process can create a directory `name` for the groups of its sessions. `None` if the host does not
/// let us create any group.
pub fn find_root(name: &str) -> Option<CgroupRoot> {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let own = OwnCgroup::parse(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
    CgroupRoot::below(own, name)
}

impl OwnCgroup {
    fn parse(cgroup: &str, mountinfo: &str) -> Self {
        // A line of `cgroup` is `HIERARCHY:CONTROLLERS:PATH`. In the line of version 2, CONTROLLERS is empty.
        let path_of = |is_wanted: &dyn Fn(&str) -> bool| {
            cgroup.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':');
                let controllers = fields.nth(1)?;
                is_wanted(controllers).then(|| fields.next())?
            })
        };
        // A line of `mountinfo` is `ID PARENT DEVICE ROOT MOUNTPOINT … - TYPE SOURCE OPTIONS`.
        let dir = |kind: &str, option: &str, path: Option<&str>| {
            let path = path?;
            mountinfo.lines().find_map(|line| {
                let (left, right) = line.split_once(" - ")?;
                let mut left = left.split(' ').skip(3);
                let (root, point) = (left.next()?, left.next()?);
                let mut right = right.split(' ');
                let is_kind = right.next()? == kind;
                let options = right.nth(1)?;
                let is_wanted = is_kind && (option.is_empty() || options.split(',').any(|word| word == option));
                // The path of a group outside the mounted tree starts with `/..`.
                let below = path.strip_prefix(root.trim_end_matches('/'))?.trim_start_matches('/');
                (is_wanted && !below.starts_with("..")).then(|| Path::new(point).join(below))
            })
        };
        let has_pids = |controllers: &str| controllers.split(',').any(|word| word == "pids");
        Self { unified: dir("cgroup2", "", path_of(&str::is_empty)), pids: dir("cgroup", "pids", path_of(&has_pids)) }
    }
}

impl CgroupRoot {
    fn below(own: OwnCgroup, name: &str) -> Option<Self> {
        let mut dirs = Vec::new();
        let mut controllers = Vec::new();
        let mut enforced = EnforcedLimits::default();
        if let Some(base) = own.unified.map(without_supervisor) {
            let dir = base.join(name);
            // `cgroup.kill` exists only if this kernel can kill a group. Check the new group, because the root group
            // has no such file.
            if create_if_missing(&dir).is_ok() && dir.join("cgroup.kill").exists() {
                controllers = enable_controllers(&base);
                enforced = EnforcedLimits {
                    kill: true,
                    pids: controllers.contains(&"pids"),
                    memory: controllers.contains(&"memory"),
                };
                dirs.push((CgroupHierarchy::Unified, dir));
            }
        }
        if let Some(base) = own.pids.filter(|_| !enforced.pids) {
            let dir = base.join(name);
            if create_if_missing(&dir).is_ok() && dir.join("pids.current").exists() {
                enforced.pids = true;
                dirs.push((CgroupHierarchy::Pids, dir));
            }
        }
        let root = Self { dirs, controllers, enforced };
        // The directories were created only as a test. The first session creates them again. So a server that is killed
        // before then leaves none.
        root.remove();
        (!root.dirs.is_empty()).then_some(root)
    }

    pub fn enforced(&self) -> EnforcedLimits {
        self.enforced
    }

    /// Creates the group of a session.
    pub fn session(&self, name: &str) -> io::Result<SessionCgroup> {
        let mut made = Vec::new();
        for (hierarchy, root) in &self.dirs {
            let dir = root.join(name);
            if let Err(error) = self.create_session(*hierarchy, root, &dir) {
                SessionCgroup::new(made).remove();
                return Err(error);
            }
            made.push((*hierarchy, dir));
        }
        Ok(SessionCgroup::new(made))
    }

    fn create_session(&self, hierarchy: CgroupHierarchy, root: &Path, dir: &Path) -> io::Result<()> {
        let enable_all = |dir: &Path| match hierarchy {
            CgroupHierarchy::Unified => self.controllers.iter().try_for_each(|controller| enable(dir, controller)),
            CgroupHierarchy::Pids => Ok(()),
        };
        let mut last = Ok(());
        for _ in 0..ATTEMPTS_MAX {
            create_if_missing(root)?;
            enable_all(root)?;
            last = create_if_missing(dir);
            // ENOENT: a session that ended at the same time removed the empty parent directory. Try again.
            if !last.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                break;
            }
        }
        last?;
        enable_all(dir)
    }

    /// Removes the directories, unless a session still uses them.
    pub fn remove(&self) {
        for (_, dir) in &self.dirs {
            fs::remove_dir(dir).ok();
        }
    }
}

/// The parent of our group if we are in the supervisor group, otherwise our group.
fn without_supervisor(own: PathBuf) -> PathBuf {
    match (own.file_name().is_some_and(|name| name == SUPERVISOR), own.parent()) {
        (true, Some(parent)) => parent.to_owned(),
        _ => own,
    }
}

/// Enables the controllers of a group for its child groups. Returns those that could be enabled.
fn enable_controllers(base: &Path) -> Vec<&'static str> {
    let has = fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
    let wanted = ["pids", "memory"].into_iter().filter(|name| has.split_whitespace().any(|word| word == *name));
    let mut was_moved = false;
    wanted
        .filter(|controller| match enable(base, controller) {
            // EBUSY: the group contains processes.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) && !was_moved => {
                was_moved = true;
                move_aside(base).is_ok() && enable(base, controller).is_ok()
            }
            other => other.is_ok(),
        })
        .collect()
}

fn enable(dir: &Path, controller: &str) -> io::Result<()> {
    let file = dir.join("cgroup.subtree_control");
    if fs::read_to_string(&file)?.split_whitespace().any(|word| word == controller) {
        return Ok(());
    }
    fs::write(file, format!("+{controller}"))
}

/// Moves this process and its children out of a group that contains no other process, into the supervisor group below
/// it.
fn move_aside(base: &Path) -> io::Result<()> {
    let me = std::process::id();
    let is_ours = |pid: &u32| {
        *pid == me || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent_pid(&stat) == Some(me))
    };
    let listed = fs::read_to_string(base.join("cgroup.procs"))?;
    let pids: Vec<u32> = listed.lines().filter_map(|line| line.parse().ok()).collect();
    if !pids.iter().all(is_ours) {
        return Err(Errno::BUSY.into());
    }
    let dir = base.join(SUPERVISOR);
    create_if_missing(&dir)?;
    pids.iter().try_for_each(|pid| fs::write(dir.join("cgroup.procs"), pid.to_string()))
}

/// Parses the parent's pid from `/proc/PID/stat`.
fn parent_pid(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "30 1 0:26 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
                          31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                          32 1 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn check(cgroup: &str, mountinfo: &str, unified: Option<&str>, pids: Option<&str>) {
        let expected = OwnCgroup { unified: unified.map(PathBuf::from), pids: pids.map(PathBuf::from) };
        assert_eq!(OwnCgroup::parse(cgroup, mountinfo), expected, "{cgroup}");
    }

    #[test]
    fn our_own_group_is_found_on_v1_v2_and_hybrid_hosts() {
        check("8:pids:/\n4:memory:/x\n0::/", HYBRID, Some("/sys/fs/cgroup/unified"), Some("/sys/fs/cgroup/pids"));
        check(
            "0::/system.slice/exec.service",
            "29 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate",
            Some("/sys/fs/cgroup/system.slice/exec.service"),
            None,
        );
        // A container that sees a part of the tree as its root.
        check("0::/box/a", "29 23 0:26 /box /cg ro - cgroup2 cgroup rw", Some("/cg/a"), None);
        check("0::/../other", "29 23 0:26 / /cg rw - cgroup2 cgroup rw", None, None);
        check("8:pids,cpu:/d", "1 1 0:1 / /p rw - cgroup c rw,cpu,pids", None, Some("/p/d"));
        check("", "", None, None);
    }

    #[test]
    fn no_process_is_moved_out_of_a_group_with_foreign_processes() {
        let base = tempfile::tempdir().expect("a directory");
        fs::write(base.path().join("cgroup.procs"), format!("{}\n1\n", std::process::id())).expect("write");
        assert!(move_aside(base.path()).is_err());
        assert!(!base.path().join(SUPERVISOR).exists());
    }

    #[test]
    fn a_server_that_was_moved_aside_finds_the_group_it_was_started_in() {
        assert_eq!(without_supervisor("/a/supervisor".into()), Path::new("/a"));
        assert_eq!(without_supervisor("/a/b".into()), Path::new("/a/b"));
    }
}
