//! A holder that has no memory for the output it reads. This is a separate test program, because it removes access to
//! the pages of the only log in the process.

#![allow(clippy::disallowed_methods, reason = "tests wait with a deadline of their own")]
#![expect(unsafe_code, reason = "pages are taken away and given back")]

mod common;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use exec_server_holder::{
    ChildSpawner,
    control::{self, FromHolder},
};
use exec_server_log::{BlockReason, ControlBlock, LogStatus, SEGMENT_BYTES};
use exec_server_process::{Child, ScriptDriver, Spawn, SpawnError};
use rustix::mm::{MprotectFlags, mprotect};

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
fn missing_memory_for_a_page_does_not_end_the_stream() {
    let script = OneScript::default();
    let (mut holder, ours, _dir) = common::holder_with_a_start(script.clone(), &["script"]);
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
    assert_eq!(driver.write_stdout(b"more").expect("the pipe is open"), 4);
    protect(segment, MprotectFlags::READ | MprotectFlags::WRITE);
    until(1_000_000_000, &|status| status.written == 6 + 3 * PAGE as u64 + 4);
    driver.exit(0);
    driver.close_all();
    until(1_000_000_000, &|status| status.closed_seq.is_some());
}
