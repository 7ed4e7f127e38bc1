//! A dead leader that is being traced: its pidfd reports the death, but the holder cannot reap it. This is a separate
//! test program, because the tracer is a fork of it.

#![allow(clippy::disallowed_methods, reason = "tests wait with a deadline of their own")]
#![expect(unsafe_code, reason = "nothing that is safe forks and traces")]

mod common;

use std::{
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use exec_server_holder::{
    Holder, OsSpawner, TurnResult,
    control::{self, FromHolder, ToHolder},
};
use exec_server_log::{ControlBlock, LogStatus};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};

const MS: u64 = 1_000_000;

/// A process that traces another one and never waits for it. It ends when this value is dropped, or with the thread
/// that created it.
struct Tracer(Pid);

impl Tracer {
    fn of(pid: u32) -> Self {
        let (told, tells) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        // SAFETY: the child makes only system calls, with integers and one byte on its stack, and never returns.
        let tracer = unsafe {
            let tracer = libc::fork();
            if tracer == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let none = std::ptr::null_mut::<libc::c_void>();
                let word = u8::from(libc::ptrace(libc::PTRACE_SEIZE, pid, none, none) == 0);
                libc::write(tells.as_raw_fd(), (&raw const word).cast(), 1);
                loop {
                    libc::pause();
                }
            }
            tracer
        };
        let tracer = Self(Pid::from_raw(tracer).expect("forked"));
        let mut word = [0];
        rustix::io::read(&told, &mut word).expect("it says how it went");
        assert_eq!(word, [1], "this host forbids tracing of one's own children; without that this cannot be tested");
        tracer
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        kill_process(self.0, Signal::KILL).expect("our child");
        waitpid(Some(self.0), WaitOptions::empty()).expect("our child");
    }
}

struct TracedRig {
    holder: Holder<OsSpawner>,
    socket: OwnedFd,
    control: Option<ControlBlock>,
    pid: Option<u32>,
    now: u64,
    last: Option<TurnResult>,
    _dir: tempfile::TempDir,
}

impl TracedRig {
    /// Creates a holder with one process that sleeps.
    fn new() -> Self {
        let (holder, socket, dir) = common::holder_with_a_start(OsSpawner::default(), &["sleep", "1000"]);
        let mut rig = Self { holder, socket, control: None, pid: None, now: 0, last: None, _dir: dir };
        rig.until(|rig| rig.pid.is_some());
        rig
    }

    fn send(&self, message: &ToHolder<'_>) {
        control::send(&self.socket, message, &[]).expect("room");
    }

    fn turn(&mut self) {
        self.last = Some(self.holder.turn(self.now));
        while let Ok(Some((message, mut fds))) = control::recv(&self.socket) {
            match message {
                FromHolder::Welcome { .. } => {
                    self.control = Some(ControlBlock::open(fds.remove(0)).expect("its layout"));
                }
                FromHolder::Started { pid, .. } => self.pid = Some(pid),
                _ => {}
            }
        }
    }

    #[track_caller]
    fn until(&mut self, is_true: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        loop {
            self.turn();
            if is_true(self) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "waited too long");
        }
    }

    fn status(&self) -> LogStatus {
        self.control.as_ref().expect("welcomed").status(0)
    }

    /// Whether the leader is dead and not reaped.
    fn is_zombie(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.expect("started"))).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
    }

    /// Whether the holder would not sleep now: an event is ready or a deadline has passed.
    fn is_awake(&self) -> bool {
        let is_ready = poll(&mut [PollFd::new(&self.holder.as_fd(), PollFlags::IN)], Some(&Timespec::default()));
        let next = self.last.as_ref().and_then(|turn| turn.next_deadline_ns);
        is_ready.expect("poll") > 0 || next.is_some_and(|at| at <= self.now)
    }
}

#[test]
fn traced_dead_leader_is_reaped_by_a_timer() {
    let mut rig = TracedRig::new();
    let tracer = Tracer::of(rig.pid.expect("started"));
    rig.send(&ToHolder::Terminate { req: 2, slot: 0, grace_ms: None });
    rig.until(TracedRig::is_zombie);
    // The holder handles what is ready and then has nothing to do.
    rig.until(|rig| !rig.is_awake());
    assert!(rig.status().exited.is_none() && rig.is_zombie());
    drop(tracer);
    rig.now += 50 * MS;
    rig.until(|rig| rig.status().closed_seq.is_some());
    assert_eq!(rig.status().exited.map(|(_, exit)| exit.signal), Some(Some(9)));
}

#[test]
fn slow_end_of_a_session_does_not_look_at_its_clock() {
    let mut rig = TracedRig::new();
    let tracer = Tracer::of(rig.pid.expect("started"));
    rig.send(&ToHolder::Detach { ttl_ms: 50 });
    rig.turn();
    rig.send(&ToHolder::End { req: 2 });
    rig.until(TracedRig::is_zombie);
    // The time to live has passed, but the session is already ending.
    rig.now += 100 * MS;
    rig.turn();
    assert!(!rig.is_awake() && !rig.last.expect("turned").ended);
    drop(tracer);
    rig.now += 100 * MS;
    rig.until(|rig| rig.last.is_some_and(|turn| turn.ended));
}
