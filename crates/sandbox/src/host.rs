//! Finds out what this host can enforce. Changes nothing.

use std::fs;

use crate::landlock;

/// The features that this host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// The Landlock ABI version. `None` without Landlock.
    pub landlock: Option<u32>,
    /// Whether system calls can be filtered with seccomp.
    pub seccomp: bool,
    /// Whether mount namespaces can be created, judged by the kernel's settings. Nothing is tried.
    pub namespaces: bool,
}

impl Host {
    pub fn detect() -> Self {
        let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let is_root = rustix::process::geteuid().is_root();
        let userns_is_off = setting("/proc/sys/user/max_user_namespaces").as_deref() == Some("0")
            || setting("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0")
            || setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1");
        Self {
            landlock: landlock::abi(),
            seccomp: setting("/proc/sys/kernel/seccomp/actions_avail").is_some(),
            namespaces: is_root || !userns_is_off,
        }
    }

    /// Whether the Landlock ABI is new enough.
    pub fn has_landlock(self) -> bool {
        self.landlock.is_some_and(|abi| abi >= landlock::NEEDED)
    }

    /// Whether every policy can be enforced for processes.
    pub fn is_complete(self) -> bool {
        self.has_landlock() && self.seccomp && self.namespaces
    }
}
