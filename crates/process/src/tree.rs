//! Finds and kills a child and its descendants, or those that a dead child has left behind, by walking `/proc`.
//!
//! This module defines which processes belong to a tree. A process is killed through a pidfd after its start time was
//! read again, so a pid that was reused between the walk and the kill is never hit.

use std::{collections::HashSet, ffi::OsStr, fs, io, os::unix::ffi::OsStrExt};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// Maximum number of rounds of walk and kill. If the tree still grows after them, it is reported as incomplete. A
/// killed process cannot fork, so a round leaves only processes that its walk did not see. More rounds would only stall
/// the caller.
const MAX_ROUNDS: usize = 64;

/// Which processes belong to the tree of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeScope {
    /// The leader is alive or an unreaped zombie. The tree is the leader, its group, its session and all descendants.
    Whole,
    /// The leader was reaped. The tree is the rest of its group and session, with their descendants. The kernel does
    /// not reuse the pid while a member is left. So if another process has the pid, no member is left and nothing is
    /// killed.
    Remains,
}

/// The result of a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KillOutcome {
    /// Number of processes that were sent SIGKILL, without zombies.
    pub signalled: usize,
    /// Whether the last walk found no new process.
    pub complete: bool,
}

/// A process as a walk saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeMember {
    pub pid: Pid,
    /// Pid of the parent, 0 for none.
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// Whether the process has ended and waits to be reaped.
    pub is_zombie: bool,
    /// Clock ticks from boot to the start of the process. Together with the pid, this identifies it.
    pub start_ticks: u64,
}

impl TreeMember {
    /// Sends SIGKILL to the process. Returns false if it was reaped, if its pid was reused or if we may not signal it.
    pub fn kill(&self) -> io::Result<bool> {
        let pidfd = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        // The pidfd refers to one process for good. Read the start time again to check that it is the process that the
        // walk saw.
        match read_member(self.pid) {
            Some(now) if now.start_ticks == self.start_ticks => {}
            Some(_) | None => return Ok(false),
        }
        match pidfd_send_signal(&pidfd, Signal::KILL) {
            Ok(()) => Ok(true),
            // EPERM: a set-user-id program that we may not signal must not fail the whole walk.
            Err(rustix::io::Errno::SRCH | rustix::io::Errno::PERM) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Sends SIGKILL to a leader's tree until a walk finds no new process.
///
/// Do not kill the leader or its group first. Processes that have left the session are found by their chain of parents,
/// which breaks when the leader dies. A caller that sends SIGTERM first must save [`descendants_of`] the leader at that
/// time, and also kill each of them with [`TreeMember::kill`].
pub fn kill_tree(leader: Pid, scope: TreeScope) -> io::Result<KillOutcome> {
    kill_trees(&[(leader, scope)])
}

/// Like [`kill_tree`], for several leaders at once: a walk costs as much for one as for a hundred.
pub fn kill_trees(leaders: &[(Pid, TreeScope)]) -> io::Result<KillOutcome> {
    if leaders.is_empty() {
        return Ok(KillOutcome { signalled: 0, complete: true });
    }
    kill_to_fixpoint(TreeRoots::of(leaders))
}

/// Sends SIGKILL to every descendant of a process, but not to the process itself, until a walk finds no new process.
pub fn kill_descendants(ancestor: Pid) -> io::Result<KillOutcome> {
    kill_to_fixpoint(TreeRoots::below(ancestor))
}

/// The descendants of a process by their chain of parents, including zombies.
pub fn descendants_of(ancestor: Pid) -> io::Result<Vec<TreeMember>> {
    Ok(TreeRoots::below(ancestor).members(&walk()?))
}

/// The criteria by which a process belongs to the tree.
struct TreeRoots {
    /// A process whose session or process group has one of these ids belongs to the tree. Each walk adds the sessions
    /// whose leaders are in the tree: if a member forks and dies, its child loses the chain of parents, but not the
    /// session.
    group_ids: HashSet<i32>,
    /// Processes whose descendants belong to the tree.
    ancestors: HashSet<i32>,
    /// Whether the ancestors themselves belong to the tree.
    with_ancestors: bool,
    /// Pids of reaped leaders. If a process has such a pid again, the session and group with that id are not ours.
    must_be_free: HashSet<i32>,
}

impl TreeRoots {
    fn of(leaders: &[(Pid, TreeScope)]) -> Self {
        let in_scope = |wanted: TreeScope| {
            leaders.iter().filter(move |(_, scope)| *scope == wanted).map(|(leader, _)| leader.as_raw_pid())
        };
        Self {
            group_ids: leaders.iter().map(|(leader, _)| leader.as_raw_pid()).collect(),
            ancestors: in_scope(TreeScope::Whole).collect(),
            with_ancestors: true,
            must_be_free: in_scope(TreeScope::Remains).collect(),
        }
    }

    fn below(ancestor: Pid) -> Self {
        let ancestors = HashSet::from([ancestor.as_raw_pid()]);
        Self { group_ids: HashSet::new(), ancestors, with_ancestors: false, must_be_free: HashSet::new() }
    }

    fn members(&self, all: &[TreeMember]) -> Vec<TreeMember> {
        let pids = all.iter().map(|process| process.pid.as_raw_pid());
        let reused: HashSet<i32> = pids.filter(|pid| self.must_be_free.contains(pid)).collect();
        let is_ours = |id: i32| self.group_ids.contains(&id) && !reused.contains(&id);
        let mut inside: HashSet<i32> = self.ancestors.clone();
        // A parent can have a higher pid than its child, so one pass is not enough.
        loop {
            let before = inside.len();
            for process in all {
                if is_ours(process.session) || is_ours(process.group) || inside.contains(&process.parent) {
                    inside.insert(process.pid.as_raw_pid());
                }
            }
            if inside.len() == before {
                break;
            }
        }
        if !self.with_ancestors {
            inside.retain(|pid| !self.ancestors.contains(pid));
        }
        // Never kill ourselves, even if the caller is a member of the tree.
        inside.remove(&getpid().as_raw_pid());
        all.iter().filter(|process| inside.contains(&process.pid.as_raw_pid())).copied().collect()
    }

    fn add_sessions_of(&mut self, members: &[TreeMember]) {
        let leads = |process: &&TreeMember| process.session == process.pid.as_raw_pid();
        self.group_ids.extend(members.iter().filter(leads).map(|process| process.session));
    }
}

fn kill_to_fixpoint(mut roots: TreeRoots) -> io::Result<KillOutcome> {
    let mut seen: HashSet<(i32, u64)> = HashSet::new();
    let mut killed = KillOutcome::default();
    for _round in 0..MAX_ROUNDS {
        let members = roots.members(&walk()?);
        roots.add_sessions_of(&members);
        let mut is_fixpoint = true;
        for member in members {
            // A process stays visible for a moment after SIGKILL, but it can no longer fork.
            if !seen.insert((member.pid.as_raw_pid(), member.start_ticks)) {
                continue;
            }
            // Signal zombies, too: other threads of the process may still run.
            is_fixpoint = false;
            let was_hit = member.kill()?;
            killed.signalled += usize::from(was_hit && !member.is_zombie);
        }
        if is_fixpoint {
            return Ok(KillOutcome { complete: true, ..killed });
        }
    }
    Ok(killed)
}

fn walk() -> io::Result<Vec<TreeMember>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc")? {
        // Skip entries that are not processes, and processes that end during the walk.
        if let Some(member) = entry.ok().and_then(|entry| read_member(parse_pid(&entry.file_name())?)) {
            members.push(member);
        }
    }
    Ok(members)
}

fn parse_pid(name: &OsStr) -> Option<Pid> {
    Pid::from_raw(std::str::from_utf8(name.as_bytes()).ok()?.parse().ok().filter(|number| *number > 0)?)
}

fn read_member(pid: Pid) -> Option<TreeMember> {
    let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    parse_stat(pid, &stat)
}

/// Parses the fields after the name. The name is in parentheses and may itself contain parentheses, spaces and
/// newlines.
fn parse_stat(pid: Pid, stat: &[u8]) -> Option<TreeMember> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let mut next = || fields.next()?.parse().ok();
    let parent = next()?;
    let group = next()?;
    let session = next()?;
    // Field 22 of the file. Six fields are already consumed: pid, name, state, parent, group and session.
    let start_ticks = fields.nth(15)?.parse().ok()?;
    Some(TreeMember { pid, parent, group, session, is_zombie: matches!(state, "Z" | "X"), start_ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, group: i32, session: i32) -> TreeMember {
        let pid = Pid::from_raw(pid).expect("test pids are not zero");
        TreeMember { pid, parent, group, session, is_zombie: false, start_ticks: 1 }
    }

    fn roots(leader: i32, scope: TreeScope) -> TreeRoots {
        TreeRoots::of(&[(Pid::from_raw(leader).expect("test pids are not zero"), scope)])
    }

    #[track_caller]
    fn check(roots: &TreeRoots, all: &[TreeMember], expected: &[i32]) {
        let members = roots.members(all);
        let pids: Vec<i32> = members.iter().map(|member| member.pid.as_raw_pid()).collect();
        assert_eq!(pids, expected);
    }

    /// Above every pid that the kernel assigns, so that no pid of a test is the test process itself.
    const HIGH: i32 = 1 << 24;

    #[test]
    fn stat_fields_are_found_after_a_name_with_parentheses_and_newlines() {
        let stat = b"42 (a) b (c)\n) S 7 42 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 1 2 3";
        let pid = Pid::from_raw(42).expect("the pid is not zero");
        let expected = TreeMember { pid, parent: 7, group: 42, session: 40, is_zombie: false, start_ticks: 9876 };
        assert_eq!(parse_stat(pid, stat), Some(expected));
        assert_eq!(parse_stat(pid, b"42 (cut"), None);
        assert_eq!(parse_stat(pid, b"42 (a) S 7 42"), None);
    }

    #[test]
    fn whole_tree_holds_group_session_and_descendants_in_other_sessions() {
        let all = [
            process(HIGH + 9, HIGH + 11, HIGH + 9, HIGH + 9),
            process(HIGH + 10, 1, HIGH + 10, HIGH + 10),
            process(HIGH + 11, HIGH + 10, HIGH + 11, HIGH + 11),
            process(HIGH + 12, 1, HIGH + 12, HIGH + 10),
            process(HIGH + 13, 1, HIGH + 13, HIGH + 13),
        ];
        let whole = roots(HIGH + 10, TreeScope::Whole);
        check(&whole, &all, &[HIGH + 9, HIGH + 10, HIGH + 11, HIGH + 12]);
    }

    #[test]
    fn remains_are_empty_when_the_pid_was_reused() {
        let left = process(HIGH + 12, 1, HIGH + 10, HIGH + 10);
        let below = process(HIGH + 14, HIGH + 12, HIGH + 14, HIGH + 14);
        let remains = roots(HIGH + 10, TreeScope::Remains);
        check(&remains, &[left, below], &[HIGH + 12, HIGH + 14]);
        check(&remains, &[left, below, process(HIGH + 10, 1, HIGH + 10, HIGH + 10)], &[]);
    }

    #[test]
    fn a_reused_pid_of_one_leader_does_not_affect_the_other_leaders() {
        let pid = |number| Pid::from_raw(number).expect("test pids are not zero");
        let both = TreeRoots::of(&[(pid(HIGH + 10), TreeScope::Whole), (pid(HIGH + 20), TreeScope::Remains)]);
        let all = [
            process(HIGH + 10, 1, HIGH + 10, HIGH + 10),
            process(HIGH + 11, HIGH + 10, HIGH + 11, HIGH + 11),
            process(HIGH + 21, 1, HIGH + 20, HIGH + 20),
        ];
        check(&both, &all, &[HIGH + 10, HIGH + 11, HIGH + 21]);
        let stranger = process(HIGH + 20, 1, HIGH + 20, HIGH + 20);
        check(&both, &[all[0], all[1], all[2], stranger], &[HIGH + 10, HIGH + 11]);
    }

    #[test]
    fn orphan_of_a_killed_member_is_found_by_its_session() {
        let mut roots = roots(HIGH + 10, TreeScope::Whole);
        let daemon = process(HIGH + 11, HIGH + 10, HIGH + 11, HIGH + 11);
        roots.add_sessions_of(&[daemon, process(HIGH + 12, HIGH + 11, HIGH + 12, 77)]);
        let orphan = process(HIGH + 15, 1, HIGH + 15, HIGH + 11);
        let stranger = process(HIGH + 16, 1, HIGH + 16, 77);
        check(&roots, &[orphan, stranger], &[HIGH + 15]);
    }
}
