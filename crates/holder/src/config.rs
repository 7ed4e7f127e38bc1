//! What a holder is created with, and the seam where children come from.

use std::os::fd::OwnedFd;

use exec_server_process::{Child, Spawn, SpawnError, User};

use crate::cgroup::SessionGroup;

/// Everything a holder is told at its creation.
#[derive(Debug)]
pub struct Config {
    /// The session's directory, 0700: path socket, disk segments, tombstone. It must exist.
    pub dir: OwnedFd,
    /// What a controller must know.
    pub secret: [u8; 32],
    /// Opaque record of the session, given to every controller in `Welcome`.
    pub info: Vec<u8>,
    /// Bounds.
    pub limits: Limits,
    /// Limits of open descriptors that children get (soft, hard); absent = those of the holder.
    pub nofile: Option<(u64, u64)>,
    /// What its children are confined to.
    pub confine: Confine,
    /// This process is nothing but this holder: strays are reaped, and at the end every descendant dies. Must be false
    /// where other children belong to the process, as in a test.
    pub exclusive: bool,
}

/// The bounds of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time to live while detached until a controller says otherwise; [`crate::wire::TTL_NONE`] for ever.
    pub ttl_ms: u64,
    /// Disk segments of one process, in bytes.
    pub disk_quota_bytes: u64,
    /// Free space that is left on the disk in any case.
    pub free_floor_bytes: u64,
    /// The same as a share of the disk; the smaller of the two floors counts.
    pub free_floor_percent: u64,
    /// Processes and threads of one process and all that it starts, itself included.
    pub pids_max: Option<u64>,
    /// Bytes of memory of the same.
    pub memory_max: Option<u64>,
    /// How long a detached session whose processes have all closed keeps its holder: a client that comes back within it finds the logs
    /// in memory. [`crate::wire::TTL_NONE`] for ever.
    pub archive_after_ms: u64,
}

/// What children are confined to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confine {
    /// The session's control group; empty where the host has none for us.
    pub group: SessionGroup,
    /// The user that they run as; absent = the holder's own.
    pub user: Option<User>,
    /// Limits of each child where no group enforces them: a resource (`RLIMIT_…`) and its limit.
    pub rlimits: Vec<(u32, u64)>,
}

impl Default for Limits {
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

/// Where children come from: the kernel, or a script in a simulation.
pub trait Spawner {
    /// Makes a child as described.
    fn spawn(&mut self, spawn: Spawn) -> Result<Child, SpawnError>;

    /// Makes several; the answers are in their order.
    fn spawn_all(&mut self, spawns: Vec<Spawn>) -> Vec<Result<Child, SpawnError>> {
        spawns.into_iter().map(|spawn| self.spawn(spawn)).collect()
    }
}

/// Real children.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forker;

impl Spawner for Forker {
    fn spawn(&mut self, spawn: Spawn) -> Result<Child, SpawnError> {
        spawn.spawn()
    }

    fn spawn_all(&mut self, spawns: Vec<Spawn>) -> Vec<Result<Child, SpawnError>> {
        Spawn::spawn_all(spawns)
    }
}
