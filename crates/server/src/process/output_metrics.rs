//! Counts a process's output for the metrics. It uses differences of what the holder publishes, so the path of an
//! output byte costs nothing extra.

use std::sync::atomic::Ordering;

use super::Process;

impl Process {
    /// Counts a gap that was reported to a reader.
    pub(crate) fn count_gap(&self, bytes: u64) {
        self.link().metrics.gaps.inc();
        self.link().metrics.gap_bytes.add(bytes);
    }

    /// Adds what was written and dropped since the last call. `fetch_max` makes sure that concurrent callers count no
    /// byte twice.
    pub(crate) fn count_output(&self) {
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
        self.count_output();
    }
}
