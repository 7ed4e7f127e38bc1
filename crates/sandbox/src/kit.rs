//! Confines a child between clone and exec.
//!
//! A [`Kit`] is made where the policy is known, and can be passed to another process as fds. [`ChildKit`] is the part
//! that runs in the child: it makes only raw system calls, allocates nothing and takes no lock.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd},
    path::Path,
};

use libc::{c_int, sock_filter};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::{
    build::BuiltView,
    filter, landlock,
    rules::{Access, AccessRules},
    script::{self, ViewPurpose},
    system::{address, call, capabilities, set_capabilities},
};

/// CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP and NET_BIND_SERVICE. Some of the
/// others could bypass a view.
const KEPT_CAPABILITIES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10;

/// What a kit restricts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedKit {
    pub files: bool,
    pub network: bool,
}

/// Everything that a child needs to confine itself.
#[derive(Debug)]
pub struct Kit {
    user: Option<OwnedFd>,
    mounts: OwnedFd,
    rules: OwnedFd,
    applied: AppliedKit,
}

#[derive(Debug, thiserror::Error)]
pub enum KitError {
    #[error(
        "this kernel has no Landlock, which keeps a process from accessing others; boot it with `landlock` in `lsm=`"
    )]
    NoLandlock,
    /// The Landlock ABI is too old: it does not keep a process from signalling others.
    #[error(
        "this kernel has Landlock ABI {abi}, which does not keep a process from signalling others; ABI {} (Linux 6.12) is needed",
        landlock::NEEDED
    )]
    OldLandlock { abi: u32 },
    /// A Landlock rule for this path could not be made. For `/`, this can also mean that the ruleset could not be made.
    #[error("cannot make a Landlock rule for `{}`: {source}", path.display())]
    Rule { path: std::path::PathBuf, source: io::Error },
}

impl Kit {
    /// Checks that this host has what a kit needs.
    pub fn check_host() -> Result<(), KitError> {
        check_landlock(landlock::abi())
    }

    /// Makes the kit for these rules. `view` must have been built for the same rules.
    pub fn new(
        rules: &AccessRules,
        purpose: ViewPurpose,
        is_network_restricted: bool,
        view: BuiltView,
    ) -> Result<Self, KitError> {
        Self::check_host()?;
        let restricts_files = purpose != ViewPurpose::WholeSystem;
        let refused = |path: &Path, source| KitError::Rule { path: path.to_owned(), source };
        let set = landlock::ruleset(restricts_files).map_err(|source| refused(Path::new("/"), source))?;
        let granted = script::fitted(rules, purpose);
        let granted = granted.rules.iter().filter(|(_, rule)| restricts_files && rule.access != Access::Deny);
        for (path, rule) in granted {
            // Open the path in the view, not on the host: the view has its own devpts.
            let place = match open_in(view.root.as_fd(), path) {
                Ok(place) => place,
                // Removed since the policy was evaluated, so there is nothing to grant.
                Err(rustix::io::Errno::NOENT) => continue,
                Err(error) => return Err(refused(path, error.into())),
            };
            landlock::allow(set.as_fd(), place.as_fd(), rule.access, rule.is_dir)
                .map_err(|source| refused(path, source))?;
        }
        let applied = AppliedKit { files: restricts_files, network: is_network_restricted };
        Ok(Self { user: view.user, mounts: view.mounts, rules: set, applied })
    }

    pub fn applied(&self) -> AppliedKit {
        self.applied
    }

    /// The kit in parts, to be passed to another process: a byte of flags, and the fds.
    pub fn parts(&self) -> (u8, Vec<BorrowedFd<'_>>) {
        let AppliedKit { files, network } = self.applied;
        let flags = u8::from(self.user.is_some()) | u8::from(files) << 1 | u8::from(network) << 2;
        let fds = self.descriptors().into_iter().flatten();
        (flags, fds.map(|fd| fd.as_fd()).collect())
    }

    /// Makes a kit from the result of `Self::parts`. `None` if the flags and the fds do not match.
    pub fn from_parts(flags: u8, fds: Vec<OwnedFd>) -> Option<Self> {
        let [has_user, files, network] = [0, 1, 2].map(|at| flags >> at & 1 == 1);
        let mut fds = fds.into_iter();
        let user = if has_user { Some(fds.next()?) } else { None };
        let (mounts, rules) = (fds.next()?, fds.next()?);
        // There are three flags.
        let is_valid = fds.next().is_none() && flags < 8;
        is_valid.then_some(Self { user, mounts, rules, applied: AppliedKit { files, network } })
    }

    /// The fds: user namespace, mount namespace, Landlock ruleset.
    pub fn descriptors(&self) -> [Option<&OwnedFd>; 3] {
        [self.user.as_ref(), Some(&self.mounts), Some(&self.rules)]
    }

    /// The part that runs in the child. `fds` are those of `Self::descriptors` in the child.
    pub fn in_child(&self, fds: [Option<RawFd>; 3]) -> ChildKit {
        let filters = [Ipc::Own, Ipc::Refused].map(|ipc| filter::program(self.applied.network, ipc));
        ChildKit { fds, filters }
    }
}

fn check_landlock(landlock: Option<u32>) -> Result<(), KitError> {
    match landlock {
        None => Err(KitError::NoLandlock),
        Some(abi) if abi < landlock::NEEDED => Err(KitError::OldLandlock { abi }),
        Some(_) => Ok(()),
    }
}

fn open_in(view: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::IN_ROOT;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::fs::openat2(view, path, flags, Mode::empty(), resolve))
}

/// The part of a [`Kit`] that runs in the child.
#[derive(Debug)]
pub struct ChildKit {
    /// User namespace, mount namespace, Landlock ruleset.
    fds: [Option<RawFd>; 3],
    /// Indexed by [`Ipc`]. Prepared in advance, because the child must not allocate.
    filters: [&'static [sock_filter]; 2],
}

/// How a process is kept from the System V IPC objects and message queues of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipc {
    /// It has a new IPC namespace, which its descendants share.
    Own,
    /// The system calls are refused, because the host cannot create an IPC namespace (not built in, or at its limit).
    Refused,
}

impl ChildKit {
    /// Enters the view, drops capabilities and applies the Landlock rules. Call it before fds are closed and the user
    /// is changed.
    ///
    /// The IPC namespace is created here and not with the view, because all starts with the same policy share a view,
    /// even those of different sessions.
    pub fn enter(&self) -> Result<Ipc, c_int> {
        let [user, mounts, rules] = self.fds;
        for (namespace, kind) in [(user, libc::CLONE_NEWUSER), (mounts, libc::CLONE_NEWNS)] {
            if let Some(fd) = namespace {
                call(libc::SYS_setns, [fd as usize, kind as usize, 0, 0, 0, 0])?;
            }
        }
        let ipc = match call(libc::SYS_unshare, [libc::CLONE_NEWIPC as usize, 0, 0, 0, 0, 0]) {
            Ok(_) => Ipc::Own,
            // Out of memory says nothing about what the host supports: let the start fail.
            Err(libc::ENOMEM) => return Err(libc::ENOMEM),
            Err(_) => Ipc::Refused,
        };
        drop_capabilities()?;
        call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0])?;
        if let Some(rules) = rules {
            call(libc::SYS_landlock_restrict_self, [rules as usize, 0, 0, 0, 0, 0])?;
        }
        Ok(ipc)
    }

    /// Installs the seccomp filter. Must be the last step before exec.
    pub fn seal(&self, ipc: Ipc) -> Result<(), c_int> {
        let filter = self.filters[ipc as usize];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SECCOMP_SET_MODE_FILTER.
        call(libc::SYS_seccomp, [1, 0, address(&raw const program), 0, 0, 0]).map(drop)
    }
}

/// Drops all capabilities but those in `KEPT_CAPABILITIES`.
fn drop_capabilities() -> Result<(), c_int> {
    let mut words = capabilities()?;
    for (half, kept) in words.iter_mut().zip([KEPT_CAPABILITIES as u32, (KEPT_CAPABILITIES >> 32) as u32]) {
        half.effective &= kept;
        half.permitted &= kept;
        half.inheritable = 0;
    }
    set_capabilities(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_landlock_abi_that_is_too_old_is_refused() {
        assert!(matches!(check_landlock(None), Err(KitError::NoLandlock)));
        for release in 1..landlock::NEEDED {
            let error = check_landlock(Some(release)).expect_err("it does not restrict signals");
            assert!(error.to_string().contains(&format!("Landlock ABI {release},")), "{error}");
        }
        for release in [landlock::NEEDED, landlock::NEEDED + 1] {
            assert!(check_landlock(Some(release)).is_ok());
        }
    }
}
