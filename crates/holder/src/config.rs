//! The configuration of a holder, and the `ChildSpawner` trait, which lets a simulation replace real children.

use std::os::fd::OwnedFd;

use exec_server_process::{Child, ChildUser, LowFds, Spawn, SpawnError};

use crate::cgroup::SessionCgroup;

/// The configuration that a holder gets when it is created.
#[derive(Debug)]
pub struct HolderConfig {
    /// The session's directory, mode 0700. Contains the path socket, disk segments and the tombstone. Must exist.
    pub dir: OwnedFd,
    /// A controller must present this secret in `Hello`.
    pub secret: [u8; 32],
    /// Opaque record of the session. Every controller gets it in `Welcome`.
    pub info: Vec<u8>,
    pub limits: HolderLimits,
    /// `RLIMIT_NOFILE` of the children (soft, hard). `None`: the children inherit the holder's limits.
    pub nofile: Option<(u64, u64)>,
    pub confine: ChildRestrictions,
    /// True if this process serves no other purpose than this holder. The holder then reaps strays, and kills every
    /// descendant at the end of the session. Must be false if other code in the process has children, as in a test.
    pub exclusive: bool,
}

/// Time and resource limits of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderLimits {
    /// Time to live of a detached session, until a controller sets another. [`crate::control::TTL_NONE`]: no limit.
    pub ttl_ms: u64,
    /// Maximum size of the disk segments of one process.
    pub disk_quota_bytes: u64,
    /// Free space that the holder always leaves on the disk.
    pub free_floor_bytes: u64,
    /// The same floor as a percentage of the disk's size. The smaller of the two floors applies.
    pub free_floor_percent: u64,
    /// Maximum number of processes and threads in one process tree, including its root.
    pub pids_max: Option<u64>,
    /// Maximum memory of one process tree, in bytes.
    pub memory_max: Option<u64>,
    /// How long the holder keeps running after its session is detached and all processes have closed. A client that
    /// reconnects within this time finds the logs in memory. [`crate::control::TTL_NONE`]: the holder never leaves.
    pub archive_after_ms: u64,
}

/// Restrictions that apply to all children.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildRestrictions {
    /// The session's control group. Empty if the host does not let us create one.
    pub group: SessionCgroup,
    /// The user that children run as. `None`: the holder's own user.
    pub user: Option<ChildUser>,
    /// Resource limits of each child, for hosts without a control group that enforces them: the resource (`RLIMIT_…`)
    /// and one value for the soft and the hard limit.
    pub rlimits: Vec<(u32, u64)>,
}

impl Default for HolderLimits {
    fn default() -> Self {
        Self {
            ttl_ms: 10 * 60 * 1000,
            disk_quota_bytes: 1 << 30,
            free_floor_bytes: 256 << 20,
            free_floor_percent: 5,
            pids_max: None,
            memory_max: None,
            archive_after_ms: 2_000,
        }
    }
}

/// Creates children: real ones (`OsSpawner`) or scripted ones in a simulation.
pub trait ChildSpawner {
    /// Spawns one child.
    fn spawn(&mut self, spawn: Spawn) -> Result<Child, SpawnError>;

    /// Spawns several children. The results are in the order of `spawns`.
    fn spawn_all(&mut self, spawns: Vec<Spawn>) -> Vec<Result<Child, SpawnError>> {
        spawns.into_iter().map(|spawn| self.spawn(spawn)).collect()
    }
}

/// Spawns real children.
#[derive(Debug, Default)]
pub struct OsSpawner {
    /// Numbers for the fds of the children. `None`: each child begins with a copy of our fd table.
    pub low_fds: Option<LowFds>,
}

impl ChildSpawner for OsSpawner {
    fn spawn(&mut self, spawn: Spawn) -> Result<Child, SpawnError> {
        spawn.spawn()
    }

    fn spawn_all(&mut self, spawns: Vec<Spawn>) -> Vec<Result<Child, SpawnError>> {
        Spawn::spawn_all(spawns, self.low_fds.as_ref())
    }
}
