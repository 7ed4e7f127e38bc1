//! How child processes are confined: limits, control groups and another user. Turns flags into settings and warns about limits that this
//! host cannot enforce.

use std::{ffi::OsString, path::Path, sync::Arc};

use anyhow::{Context as _, bail};
use exec_server_holder::{
    ChildRestrictions, ChildUser, HolderLimits,
    cgroup::{self, EnforcedLimits},
};
use exec_server_sandbox::FileUser;
use exec_server_server::state_dir::{SpawnedHoldersConfig, shared_name};
use rustix::process::Resource;

use crate::args;

/// Default limit of processes and threads per command: far above what programs use, far below what a host can run.
pub(crate) const PIDS_MAX: u64 = 4096;

/// Variables of the server's user that would be wrong for the user of `--run-as`.
const USER_SPECIFIC: [&str; 3] = ["XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "MAIL"];

/// A user of the host, looked up in `/etc/passwd` and `/etc/group`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunAs {
    user: ChildUser,
    /// Name, home and shell; `None` for a bare uid without an entry.
    entry: Option<PasswdEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PasswdEntry {
    name: String,
    home: String,
    shell: String,
}

/// The settings of holders, from the flags and the abilities of the host.
pub(crate) fn settings(
    args: &args::ServeArgs,
    run_as: Option<&RunAs>,
    state_dir: &Path,
    original_nofile: Option<(u64, u64)>,
) -> SpawnedHoldersConfig {
    let cgroups = cgroup::find_root(&shared_name(state_dir));
    let enforced = cgroups.as_ref().map(cgroup::CgroupRoot::enforced).unwrap_or_default();
    tracing::debug!(?enforced, "control groups");
    let pids_max = args.max_pids.0;
    let memory_max = args.max_memory.0;
    // RLIMIT_NPROC counts all processes of the Unix user. Only a `--max-pids` other than the default is worth this side effect.
    let chosen_pids = pids_max.filter(|pids| *pids != PIDS_MAX);
    SpawnedHoldersConfig {
        limits: HolderLimits { pids_max, memory_max, ..args.bounds.holder_limits() },
        original_nofile,
        cgroups,
        confine: ChildRestrictions {
            user: run_as.map(|run_as| run_as.user.clone()),
            rlimits: fallback_rlimits(enforced, chosen_pids, memory_max, run_as),
            ..ChildRestrictions::default()
        },
        // A new spawner runs the binary of this server even if its file was replaced: both must be the same build.
        respawn: Some("/proc/self/exe".into()),
        remove_after: None,
    }
}

/// Per-process rlimits that replace those requested limits that no control group enforces.
fn fallback_rlimits(
    enforced: EnforcedLimits,
    pids: Option<u64>,
    memory: Option<u64>,
    run_as: Option<&RunAs>,
) -> Vec<(u32, u64)> {
    let mut limits = Vec::new();
    if let Some(pids) = pids.filter(|_| !enforced.pids) {
        let is_root = run_as.map_or_else(|| rustix::process::geteuid().as_raw(), |run_as| run_as.user.uid) == 0;
        let root_note = if is_root { "; it does not bind root, so nothing is enforced" } else { "" };
        tracing::warn!(
            "no control group for `--max-pids`: RLIMIT_NPROC counts all processes of the user instead{root_note}"
        );
        limits.push((Resource::Nproc as u32, pids));
    }
    if let Some(memory) = memory.filter(|_| !enforced.memory) {
        tracing::warn!("no control group for `--max-memory`: RLIMIT_DATA bounds each process by itself instead");
        limits.push((Resource::Data as u32, memory));
    }
    limits
}

impl RunAs {
    /// Parses `USER[:GROUP]`, each a name or a number.
    pub(crate) fn find(text: &str) -> anyhow::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("`--run-as` needs a server that runs as root");
        }
        let read = |file: &str| std::fs::read_to_string(file).with_context(|| format!("read `{file}`"));
        Self::parse(text, &read("/etc/passwd")?, &read("/etc/group")?)
    }

    fn parse(text: &str, passwd: &str, group: &str) -> anyhow::Result<Self> {
        // passwd(5): name, password, uid, gid, comment, home, shell. group(5): name, password, gid, members.
        let (user, named_group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let fields = |line: &str| -> Vec<String> { line.split(':').map(str::to_owned).collect() };
        let known = passwd.lines().map(fields).find(|line| line.len() >= 7 && (line[0] == user || line[2] == user));
        let groups: Vec<Vec<String>> = group.lines().map(fields).filter(|line| line.len() >= 4).collect();
        let group_id = |group: &str| -> anyhow::Result<u32> {
            let by_name = groups.iter().find(|line| line[0] == group).and_then(|line| line[2].parse().ok());
            by_name.or_else(|| group.parse().ok()).with_context(|| format!("no group `{group}`"))
        };
        let Some(known) = known else {
            let uid = user.parse().ok().with_context(|| format!("no user `{user}`"))?;
            let group = named_group.with_context(|| {
                format!("user `{user}` has no entry in /etc/passwd; give its group too, as USER:GROUP")
            })?;
            return Ok(Self { user: ChildUser { uid, gid: group_id(group)?, groups: Vec::new() }, entry: None });
        };
        let number = |field: &str| field.parse().with_context(|| format!("read the entry of `{user}` in /etc/passwd"));
        let gid = named_group.map_or_else(|| number(&known[3]), group_id)?;
        let is_member = |line: &&Vec<String>| line[3].split(',').any(|member| member == known[0]);
        let mut ids: Vec<u32> = groups.iter().filter(is_member).filter_map(|line| line[2].parse().ok()).collect();
        ids.push(gid);
        ids.sort_unstable();
        ids.dedup();
        let shell = if known[6].is_empty() { "/bin/sh" } else { &known[6] };
        let entry = PasswdEntry { name: known[0].clone(), home: known[5].clone(), shell: shell.to_owned() };
        Ok(Self { user: ChildUser { uid: number(&known[2])?, gid, groups: ids }, entry: Some(entry) })
    }

    /// The same user, for file methods.
    pub(crate) fn file_user(&self) -> anyhow::Result<Arc<FileUser>> {
        let ChildUser { uid, gid, groups } = self.user.clone();
        let user = Arc::new(FileUser::new(uid, gid, groups).context("read our own groups")?);
        // Try it now: on a host that forbids changing the user, every file request would fail later. The guard changes back.
        drop(user.enter().context("switch to the user of `--run-as` for file access")?);
        Ok(user)
    }

    /// The server's environment with the variables of this user. Environment policies inherit from it.
    pub(crate) fn environment(&self, server: Vec<(OsString, OsString)>) -> Vec<(OsString, OsString)> {
        let entry = self.entry.iter();
        let own: Vec<(OsString, OsString)> = entry
            .flat_map(|entry| {
                [("HOME", &entry.home), ("USER", &entry.name), ("LOGNAME", &entry.name), ("SHELL", &entry.shell)]
            })
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let is_kept =
            |name: &OsString| !own.iter().any(|(known, _)| known == name) && !USER_SPECIFIC.iter().any(|of| name == of);
        let mut all: Vec<(OsString, OsString)> = server.into_iter().filter(|(name, _)| is_kept(name)).collect();
        all.extend(own);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/bash\nworker:x:1005:100:W:/home/worker:\nbroken\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:\ndocker:x:999:other,worker\nbuild:x:50:worker\n";

    fn parse(text: &str) -> Result<ChildUser, String> {
        RunAs::parse(text, PASSWD, GROUP).map(|run_as| run_as.user).map_err(|error| error.to_string())
    }

    #[test]
    fn users_are_found_by_name_and_number_with_their_groups() {
        let worker = ChildUser { uid: 1005, gid: 100, groups: vec![50, 100, 999] };
        assert_eq!(parse("worker"), Ok(worker.clone()));
        assert_eq!(parse("1005"), Ok(worker));
        assert_eq!(parse("worker:docker").map(|user| user.gid), Ok(999));
        assert_eq!(parse("77:88"), Ok(ChildUser { uid: 77, gid: 88, groups: Vec::new() }));
        assert_eq!(
            parse("77"),
            Err("user `77` has no entry in /etc/passwd; give its group too, as USER:GROUP".to_owned())
        );
        assert_eq!(parse("nobody-here"), Err("no user `nobody-here`".to_owned()));
        assert_eq!(parse("worker:none"), Err("no group `none`".to_owned()));
    }

    #[test]
    fn the_environment_is_that_of_the_user() {
        let run_as = RunAs::parse("worker", PASSWD, GROUP).expect("found");
        let server = [("HOME", "/root"), ("XDG_RUNTIME_DIR", "/run/user/0"), ("PATH", "/bin")];
        let got = run_as.environment(server.map(|(name, value)| (name.into(), value.into())).to_vec());
        let got: Vec<String> =
            got.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
        assert_eq!(got, ["PATH=/bin", "HOME=/home/worker", "USER=worker", "LOGNAME=worker", "SHELL=/bin/sh"]);
    }
}
