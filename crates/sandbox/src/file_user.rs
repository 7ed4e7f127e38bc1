//! Lets a thread access files as another user (`--run-as`): with that user's fsuid, fsgid and supplementary groups, and
//! without root's capabilities.
//!
//! ```text
//!  FileUser::enter ──▶ setgroups, setfsgid, setfsuid, capset ──▶ work ──▶ ActingUser::drop restores the server's ids
//!                                                                 └── as_server(..): the server's own rights, temporarily
//! ```
//!
//! All calls are raw system calls, because the C library's `setgroups` would change every thread of the process. The
//! effective uid stays that of the server, so other processes of the user can neither signal nor trace the server.
//!
//! If a thread cannot restore its rights, the program aborts: otherwise the thread would do the server's work as the
//! user, or the user's next work as root. A new thread inherits the ids of the thread that starts it, so work that acts
//! as a user must not start threads.

use std::{cell::RefCell, io, marker::PhantomData, sync::Arc};

use crate::system::{CapabilityWords, address, capabilities, io_call, set_capabilities};

/// CAP_SETGID and CAP_SETUID, which a thread needs to restore its ids. They give no access to files.
const KEPT: u32 = 1 << 6 | 1 << 7;

/// As the argument of `setfsuid` and `setfsgid`: changes nothing, because -1 is not a valid id. The call returns the
/// current id.
const QUERY: usize = u32::MAX as usize;

thread_local! {
    /// The user that this thread acts as, and what is needed to restore its rights.
    static CURRENT: RefCell<Option<CurrentUser>> = const { RefCell::new(None) };
}

struct CurrentUser {
    user: Arc<FileUser>,
    /// Whether the groups were changed to the user's.
    has_groups: bool,
    /// The server's capabilities, if they were dropped.
    capabilities: Option<[CapabilityWords; 2]>,
}

/// The user for file operations.
#[derive(Debug, PartialEq, Eq)]
pub struct FileUser {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// Uid, gid and groups of the server.
    server: (u32, u32, Vec<u32>),
}

/// The thread acts as a [`FileUser`] until this value is dropped. Not `Send`: it must be dropped on the same thread.
#[derive(Debug)]
pub struct ActingUser {
    /// False for a nested value on a thread that already acts as a user. Dropping that one changes nothing.
    is_outer: bool,
    _not_send: PhantomData<*const ()>,
}

impl FileUser {
    /// A user by ids. Records the ids of the calling thread. Every thread that calls `enter` must have the same ids.
    pub fn new(uid: u32, gid: u32, groups: Vec<u32>) -> io::Result<Self> {
        let own_groups = rustix::process::getgroups()?.into_iter().map(rustix::process::Gid::as_raw).collect();
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw(), own_groups);
        Ok(Self { uid, gid, groups, server: own })
    }

    /// Makes this thread act as the user until the returned value is dropped.
    pub fn enter(self: &Arc<Self>) -> io::Result<ActingUser> {
        let is_outer = CURRENT.with_borrow(Option::is_none);
        if is_outer {
            let mut current = CurrentUser { user: self.clone(), has_groups: false, capabilities: None };
            let entered = current.become_user();
            // Set it even if `become_user` failed half-way, so that `restore` undoes what was changed.
            CURRENT.set(Some(current));
            if let Err(error) = entered {
                restore();
                return Err(error);
            }
        }
        Ok(ActingUser { is_outer, _not_send: PhantomData })
    }
}

impl CurrentUser {
    fn become_user(&mut self) -> io::Result<()> {
        let FileUser { uid, gid, groups, .. } = &*self.user;
        let capabilities = capabilities().map_err(io::Error::from_raw_os_error)?;
        set_groups(groups)?;
        self.has_groups = true;
        set_file_id(libc::SYS_setfsgid, *gid)?;
        // When the fsuid changes from 0, the kernel drops the capabilities for files. The others are dropped below:
        // they give access to reserved disk space, quotas and some attributes.
        set_file_id(libc::SYS_setfsuid, *uid)?;
        if *uid != 0 {
            let [low, high] = capabilities;
            let kept = CapabilityWords { effective: low.permitted & KEPT, ..low };
            let dropped = [kept, CapabilityWords { effective: 0, ..high }];
            set_capabilities(&dropped).map_err(io::Error::from_raw_os_error)?;
            self.capabilities = Some(capabilities);
        }
        Ok(())
    }

    fn restore_rights(&self) -> io::Result<()> {
        let (uid, gid, groups) = &self.user.server;
        set_file_id(libc::SYS_setfsuid, *uid)?;
        set_file_id(libc::SYS_setfsgid, *gid)?;
        if self.has_groups {
            set_groups(groups)?;
        }
        self.capabilities.as_ref().map_or(Ok(()), set_capabilities).map_err(io::Error::from_raw_os_error)
    }
}

impl Drop for ActingUser {
    fn drop(&mut self) {
        if self.is_outer {
            restore();
        }
    }
}

/// Runs work with the server's own rights, on a thread that may be acting as a user. Used to read the server's own
/// files.
pub fn as_server<T>(work: impl FnOnce() -> T) -> T {
    struct ResumeGuard(Option<Arc<FileUser>>);
    impl Drop for ResumeGuard {
        fn drop(&mut self) {
            // Runs also if the work panicked: the rest of the thread's work must run as the user.
            let resumed = self.0.take().map(|user| user.enter());
            match resumed {
                Some(Ok(acting)) => std::mem::forget(acting), // The outer `ActingUser` restores the rights.
                Some(Err(_)) => std::process::abort(),
                None => {}
            }
        }
    }
    let user = CURRENT.with_borrow(|current| current.as_ref().map(|current| current.user.clone()));
    if user.is_some() {
        restore();
    }
    let _resume = ResumeGuard(user);
    work()
}

/// Restores the server's rights of this thread. Aborts if that fails.
fn restore() {
    if CURRENT.take().is_some_and(|current| current.restore_rights().is_err()) {
        std::process::abort();
    }
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    io_call(libc::SYS_setgroups, [groups.len(), address(groups.as_ptr()), 0, 0, 0, 0]).map(drop)
}

/// `setfsuid` and `setfsgid` return the previous id and never an error. So query the id afterwards.
fn set_file_id(number: libc::c_long, id: u32) -> io::Result<()> {
    let set = |id: usize| io_call(number, [id, 0, 0, 0, 0, 0]);
    set(id as usize)?;
    let now = set(QUERY)?;
    if u32::try_from(now) == Ok(id) { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _},
        sync::mpsc,
        thread,
    };

    use super::*;

    const NOBODY: u32 = 65534;

    fn status(name: &str) -> String {
        let status = fs::read_to_string("/proc/thread-self/status").expect("read the status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of that name");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn all() -> [String; 4] {
        ["Uid:", "Gid:", "Groups:", "CapEff:"].map(status)
    }

    #[test]
    fn a_thread_accesses_files_as_the_user_and_gets_its_rights_back_afterwards() {
        assert!(rustix::process::geteuid().is_root(), "this test gives a thread another user: run it as root");
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("open it");
        let secret = dir.path().join("secret");
        fs::write(&secret, "secret").expect("write");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("close it");
        let user = Arc::new(FileUser::new(NOBODY, NOBODY, vec![NOBODY, 7]).expect("our own groups"));
        let before = all();
        let (go_tx, go_rx) = mpsc::sync_channel::<()>(0);
        let path = secret.clone();
        let other = thread::spawn(move || {
            go_rx.recv().expect("the test goes on");
            fs::read_to_string(path)
        });
        let acting = user.enter().expect("enter");
        assert_eq!(status("Uid:"), format!("0 0 0 {NOBODY}"));
        assert_eq!(status("Gid:").split(' ').next_back(), Some(NOBODY.to_string().as_str()));
        assert_eq!(status("Groups:"), format!("7 {NOBODY}"));
        assert_eq!(status("CapEff:"), "00000000000000c0");
        assert_eq!(fs::read(&secret).expect_err("root's").kind(), io::ErrorKind::PermissionDenied);
        let made = dir.path().join("made");
        fs::write(&made, "x").expect("write");
        assert_eq!(as_server(|| fs::read_to_string(&secret)).expect("the server may"), "secret");
        let inner = user.enter().expect("a second one");
        drop(inner);
        assert_eq!(fs::read(&secret).expect_err("still root's").kind(), io::ErrorKind::PermissionDenied);
        go_tx.send(()).expect("the other thread waits");
        assert_eq!(other.join().expect("joined").expect("read"), "secret", "other threads are not touched");
        drop(acting);
        assert_eq!(all(), before);
        let owner = fs::metadata(&made).expect("look at it");
        assert_eq!((owner.uid(), owner.gid()), (NOBODY, NOBODY));
    }

    #[test]
    fn a_failed_enter_changes_nothing() {
        assert!(rustix::process::geteuid().is_root(), "this test gives a thread another user: run it as root");
        // -1 is not a valid uid, so the kernel keeps the old one.
        let user = Arc::new(FileUser::new(u32::MAX, NOBODY, vec![7]).expect("our own groups"));
        let before = all();
        assert!(user.enter().is_err());
        assert_eq!(all(), before);
    }

    #[test]
    fn a_panic_restores_the_rights() {
        assert!(rustix::process::geteuid().is_root(), "this test gives a thread another user: run it as root");
        let user = Arc::new(FileUser::new(NOBODY, NOBODY, Vec::new()).expect("our own groups"));
        let before = all();
        let panicked = std::panic::catch_unwind(|| {
            let _acting = user.enter().expect("enter");
            as_server(|| panic!("half-way"));
        });
        assert!(panicked.is_err());
        assert_eq!(all(), before);
    }
}
