//! Sends the whole state of the session to a new controller: each process with its segments in order, then
//! `Ready`.
//!
//! `Adoption` keeps the position in this list. Nothing else in the session changes until `Ready`, so the controller
//! gets a consistent snapshot. The holder sends only as fast as the controller reads, and drops a controller that stops
//! reading for [`STALL_NS`].

use std::collections::BTreeMap;

use exec_server_log::Segment;

use crate::{
    context::SessionContext,
    control::FromHolder,
    process::{self, Process},
};

/// How long the controller may stop reading. Children are not read during this time.
const STALL_NS: u64 = 10_000_000_000;

pub(crate) struct Adoption {
    slot: u32,
    /// Number of segments of `slot` already sent. `None` until the process itself is sent.
    segments: Option<usize>,
    stalls_at: u64,
}

impl Adoption {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { slot: 0, segments: None, stalls_at: now_ns.saturating_add(STALL_NS) }
    }

    pub(crate) fn deadline_ns(&self) -> u64 {
        self.stalls_at
    }

    /// Sends as much as the socket accepts. Returns true when everything has been sent.
    pub(crate) fn turn(&mut self, processes: &BTreeMap<u32, Process>, cx: &mut SessionContext) -> bool {
        if cx.controller.is_congested() {
            if cx.now_ns >= self.stalls_at {
                cx.controller.mark_lost();
            }
            return false;
        }
        self.stalls_at = cx.now_ns.saturating_add(STALL_NS);
        while !cx.controller.is_congested() {
            let Some((slot, process)) = processes.range(self.slot..).next() else {
                cx.send(&FromHolder::Ready);
                return true;
            };
            self.slot = *slot;
            match self.segments {
                None => {
                    cx.send_with(&FromHolder::Process(Box::new(process.info())), process.pidfd());
                    self.segments = Some(0);
                }
                Some(sent) => self.send_segments(process, sent, cx),
            }
        }
        false
    }

    fn send_segments(&mut self, process: &Process, sent: usize, cx: &mut SessionContext) {
        for (number, info) in process.writer.segments().enumerate().skip(sent) {
            if cx.controller.is_congested() {
                self.segments = Some(number);
                return;
            }
            let fd = process.writer.segment(info.id).map(Segment::shared_fd);
            process::announce(process.slot, &info, fd, cx);
        }
        self.slot = self.slot.saturating_add(1);
        self.segments = None;
    }
}
