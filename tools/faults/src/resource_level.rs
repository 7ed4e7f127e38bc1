//! Fds and memory of a server before a fault, and the check that they return to that level afterwards.
use crate::prelude::*;
use exec_server_harness::server;

/// Memory that allocator and tables may keep after load. The log of one session is as large, so a leaked session is detected.
const KEPT_KIB: u64 = 16 << 10;

/// How long a server may take to release resources: its pools give memory back after seconds.
const WITHIN: Duration = Duration::from_secs(15);

/// How long nothing may change for a level to count as steady.
const STEADY: Duration = Duration::from_millis(200);

/// The fds and memory of a server at one time.
pub(super) struct ResourceLevel {
    pid: u32,
    descriptors: u64,
    memory_kib: u64,
    /// How much more memory it may have afterwards.
    kept_kib: u64,
}

impl ResourceLevel {
    /// The current level.
    pub(super) fn of(pid: u32) -> Self {
        Self { pid, descriptors: server::descriptors(pid), memory_kib: server::own_memory_kib(pid), kept_kib: KEPT_KIB }
    }

    /// The level after a first session, which creates what every server has from then on: threads, and the spawner's answer.
    pub(super) fn after_first_session(pid: u32, address: &ServerAddress) -> Result<Self> {
        let (mut wire, _) = WireClient::session(address)?;
        wire.start("first", &["/bin/true"])?;
        wire.end_session()?;
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

    /// The same for a server that may keep more memory.
    pub(super) fn keeping(self, kept_kib: u64) -> Self {
        Self { kept_kib, ..self }
    }

    /// Waits until the server is back at this level.
    pub(super) fn wait_back(&self) -> Result<()> {
        let Self { descriptors, memory_kib, .. } = *self;
        let mut now = Self::of(self.pid);
        let waited = try_until("the server is back at its level", WITHIN, || {
            now = Self::of(self.pid);
            ensure!(now.descriptors > 0, "the server has ended");
            Ok(now.descriptors <= descriptors && now.memory_kib <= memory_kib + self.kept_kib)
        });
        let Self { descriptors: fds, memory_kib: kib, .. } = now;
        waited
            .map(drop)
            .with_context(|| format!("{fds} descriptors, {descriptors} before; {kib} KiB, {memory_kib} before"))
    }
}
