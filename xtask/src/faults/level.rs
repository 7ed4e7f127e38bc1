//! Descriptors and memory of a server before a fault, and that it comes back to them afterwards.
//!
//! Must not know what happens in between.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{
    server,
    wire::{self, Address, Wire},
};

/// What allocator and tables keep of a busy time. A session's log alone has as much, so that one that is left is seen.
const KEPT_KIB: u64 = 16 << 10;

/// How long a server may take to let go: its pools give memory back after seconds.
const WITHIN: Duration = Duration::from_secs(15);

/// How long nothing may change for a level to be one.
const STEADY: Duration = Duration::from_millis(200);

/// What a server had.
pub(super) struct Level {
    pid: u32,
    descriptors: u64,
    memory_kib: u64,
    /// How much more memory it may have afterwards.
    kept_kib: u64,
}

impl Level {
    /// As it is now.
    pub(super) fn of(pid: u32) -> Self {
        Self { pid, descriptors: server::descriptors(pid), memory_kib: server::own_memory_kib(pid), kept_kib: KEPT_KIB }
    }

    /// As it is behind a first session, with which come what every server has only from then on: threads, and a spawner's answer.
    pub(super) fn after_first_session(pid: u32, address: &Address) -> Result<Self> {
        let (mut wire, _) = Wire::session(address)?;
        wire.call("process/start", &wire::start("first", &["/bin/true"]))?;
        wire.call("session/end", &json!({}))?;
        drop(wire);
        let (mut level, mut since) = (Self::of(pid), Instant::now());
        while since.elapsed() < STEADY {
            thread::sleep(Duration::from_millis(10));
            let now = Self::of(pid);
            if now.descriptors != level.descriptors {
                since = Instant::now();
            }
            level = now;
        }
        Ok(level)
    }

    /// The same for a server that may keep more.
    pub(super) fn keeping(self, kept_kib: u64) -> Self {
        Self { kept_kib, ..self }
    }

    /// Until nothing is left of what came since.
    pub(super) fn wait_back(&self) -> Result<()> {
        let until = Instant::now() + WITHIN;
        loop {
            let now = Self::of(self.pid);
            ensure!(now.descriptors > 0, "the server has ended");
            if now.descriptors <= self.descriptors && now.memory_kib <= self.memory_kib + self.kept_kib {
                return Ok(());
            }
            ensure!(
                Instant::now() < until,
                "{} descriptors, {} before; {} KiB, {} before",
                now.descriptors,
                self.descriptors,
                now.memory_kib,
                self.memory_kib
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}
