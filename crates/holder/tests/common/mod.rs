//! A holder in the process of the test, shared by the test programs that have one test each.

use std::os::fd::OwnedFd;

use exec_server_holder::{
    ChildRestrictions, ChildSpawner, Holder, HolderConfig, HolderLimits,
    control::{self, StartSpec, ToHolder},
    spawner::SECRET_NAME,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const SECRET: [u8; 32] = [7; 32];

/// Creates a holder, greets it, and asks for one process. Returns the holder, the server's socket and the session's directory.
pub(crate) fn holder_with_a_start<S: ChildSpawner>(
    spawner: S,
    argv: &[&str],
) -> (Holder<S>, OwnedFd, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join(SECRET_NAME), SECRET).expect("the secret, as a server writes it");
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    let config = HolderConfig {
        dir: OwnedFd::from(std::fs::File::open(dir.path()).expect("the directory")),
        secret: SECRET,
        info: Vec::new(),
        limits: HolderLimits::default(),
        nofile: None,
        confine: ChildRestrictions::default(),
        exclusive: false,
    };
    let holder = Holder::new(config, theirs, spawner, 0).expect("a holder");
    let hello = ToHolder::Hello { version: control::VERSION, secret: SECRET, epoch: 1 };
    let argv = argv.iter().map(|word| word.as_bytes().to_vec()).collect();
    let env = vec![b"PATH=/usr/bin:/bin".to_vec()];
    let spec = StartSpec { argv, env, cwd: b"/".to_vec(), cap_bytes: 1 << 24, ..StartSpec::default() };
    for message in [hello, ToHolder::Start { req: 1, spec }] {
        control::send(&ours, &message, &[]).expect("room");
    }
    (holder, ours, dir)
}
