//! A holder that has no memory for the output it reads. This is a separate test program, because it removes access to
//! the pages of the only log in the process.

#![allow(clippy::disallowed_methods, reason = "tests wait with a deadline of their own")]
#![expect(unsafe_code, reason = "pages are taken away and given back")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exec_server_holder::control::{self, FromHolder, StartSpec, ToHolder};
use exec_server_holder::spawner::SECRET_NAME;
use exec_server_holder::{ChildRestrictions, ChildSpawner, Holder, HolderConfig, HolderLimits};
use exec_server_log::{BlockReason, ControlBlock, LogStatus, SEGMENT_BYTES};
use exec_server_process::{Child, ScriptDriver, Spawn, SpawnError};
use rustix::mm::{MprotectFlags, mprotect};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const SECRET: [u8; 32] = [7; 32];
const PAGE: usize = 4096;

#[derive(Clone, Default)]
struct OneScript(Arc<Mutex<Option<ScriptDriver>>>);

impl ChildSpawner for OneScript {
    fn spawn(&mut self, spawn: Spawn) -> Result<Child, SpawnError> {
        let (child, driver) =
            Child::scripted(spawn.stdio).map_err(|source| SpawnError::Resources { what: "script", source })?;
        *self.0.lock().expect("no test panics with it") = Some(driver);
        Ok(child)
    }
}

/// The address at which the holder has mapped its segment. The holder's mapping is the writable one.
fn segment() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let mut segments = maps.lines().filter(|line| line.contains("exec-server-log") && line.contains(" rw-s "));
    let line = segments.next().expect("a segment");
    assert!(segments.next().is_none(), "{maps}");
    usize::from_str_radix(line.split('-').next().expect("an address"), 16).expect("an address")
}

/// Removes or restores access to all pages of the segment except the first.
fn protect(segment: usize, flags: MprotectFlags) {
    let start = std::ptr::with_exposed_provenance_mut(segment + PAGE);
    // SAFETY: the pages belong to the holder's mapping. Only this thread uses them, and it does not access them now.
    unsafe { mprotect(start, SEGMENT_BYTES - PAGE, flags).expect("mapped") }
}

#[test]
fn want_of_a_page_is_no_end_of_the_stream() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join(SECRET_NAME), SECRET).expect("the secret, as a server writes it");
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    let config = HolderConfig {
        dir: OwnedFd::from(File::open(dir.path()).expect("the directory")),
        secret: SECRET,
        info: Vec::new(),
        limits: HolderLimits::default(),
        nofile: None,
        confine: ChildRestrictions::default(),
        exclusive: false,
    };
    let script = OneScript::default();
    let mut holder = Holder::new(config, theirs, script.clone(), 0).expect("a holder");
    let send = |message: &ToHolder<'_>| control::send(&ours, message, &[]).expect("room");
    send(&ToHolder::Hello { version: control::VERSION, secret: SECRET, epoch: 1 });
    let argv = vec![b"script".to_vec()];
    let spec = StartSpec { argv, cwd: b"/".to_vec(), cap_bytes: 1 << 24, ..StartSpec::default() };
    send(&ToHolder::Start { req: 1, spec });
    let mut control = None;
    let mut until = |now_ns: u64, is_true: &dyn Fn(LogStatus) -> bool| {
        let start = Instant::now();
        loop {
            holder.turn(now_ns);
            while let Ok(Some((message, mut fds))) = control::recv(&ours) {
                if matches!(message, FromHolder::Welcome { .. }) {
                    control = Some(ControlBlock::open(fds.remove(0)).expect("its layout"));
                }
            }
            if control.as_ref().is_some_and(|control| is_true(control.status(0))) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "waited too long");
        }
    };
    until(0, &|status| status.next_seq == 1);
    let driver = script.0.lock().expect("no test panics with it").clone().expect("started");
    assert_eq!(driver.write_stdout(b"before").expect("room"), 6);
    until(0, &|status| status.written == 6);
    let segment = segment();
    protect(segment, MprotectFlags::empty());
    assert_eq!(driver.write_stdout(&[b'x'; 3 * PAGE]).expect("room"), 3 * PAGE);
    until(0, &|status| status.blocked == BlockReason::MemoryCap);
    assert_eq!(driver.write_stdout(b"more").expect("nobody has closed it"), 4);
    protect(segment, MprotectFlags::READ | MprotectFlags::WRITE);
    until(1_000_000_000, &|status| status.written == 6 + 3 * PAGE as u64 + 4);
    driver.exit(0);
    driver.close_all();
    until(1_000_000_000, &|status| status.closed_seq.is_some());
}
