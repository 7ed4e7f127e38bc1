//! What a process tells the metrics: differences of what its holder publishes, so that the byte path pays nothing.

use std::sync::atomic::Ordering;

use super::Process;

impl Process {
    /// A reader was told of a gap.
    pub(crate) fn told_gap(&self, bytes: u64) {
        self.link().metrics.gaps.inc();
        self.link().metrics.gap_bytes.add(bytes);
    }

    /// Tells the metrics what was written and dropped since the last time. Whoever comes first counts it: no byte is counted twice.
    pub(crate) fn count(&self) {
        let (status, metrics) = (self.status(), self.link().metrics.clone());
        let now = [status.written, status.dropped];
        for ((counted, now), counter) in
            self.counted.iter().zip(now).zip([&metrics.output_bytes, &metrics.dropped_bytes])
        {
            counter.add(now.saturating_sub(counted.fetch_max(now, Ordering::Relaxed)));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.count();
    }
}
