//! The metrics of the server and their text at `/metrics`.
//!
//! Counting adds to a relaxed atomic. It takes no lock and looks up no label. Gauges (sessions, processes) are computed
//! when the page is requested. Labels come from fixed lists, so that a peer cannot make the page grow. The page shows
//! no ids, names, paths or arguments.

mod text;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use exec_server_protocol::{
    failure::Kind,
    method::{METHODS, Method},
};

use self::text::MetricsText;

/// Upper bounds of the latency buckets, in microseconds: from a typical response over loopback to a delay that a person
/// notices.
const BUCKETS_US: [u64; 12] = [100, 250, 500, 1000, 2500, 5000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000];

/// HTTP statuses that admission answers with. Any other status is counted after the last entry.
const STATUSES: [u16; 9] = [400, 401, 403, 404, 405, 426, 429, 431, 503];

/// A counter that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The latency histogram of one method.
#[derive(Debug, Default)]
struct Latency {
    /// One counter per bucket, plus one for everything above.
    buckets: [Counter; BUCKETS_US.len() + 1],
    sum_us: Counter,
}

impl Latency {
    fn observe(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS_US.iter().position(|end| us <= *end).unwrap_or(BUCKETS_US.len());
        self.buckets[bucket].inc();
        self.sum_us.add(us);
    }
}

/// A counter or histogram for each entry of a fixed list. A wrapper, because `Default` is missing for long arrays.
#[derive(Debug)]
struct PerEntry<T, const N: usize>([T; N]);

impl<T: Default, const N: usize> Default for PerEntry<T, N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| T::default()))
    }
}

/// All counters, since the start of this server.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connections that were admitted.
    pub connections: Counter,
    /// Refusals by admission, in the order of [`STATUSES`]. The last entry is for any other status.
    refused: [Counter; STATUSES.len() + 1],
    /// Connections closed because the peer no longer responded.
    pub dead_peers: Counter,
    /// Bytes received on all connections, including framing.
    pub received_bytes: Counter,
    /// Bytes sent on all connections, including framing.
    pub sent_bytes: Counter,
    /// Output that holders have read from their children.
    pub output_bytes: Counter,
    /// Output that holders dropped, so that the child could continue.
    pub dropped_bytes: Counter,
    /// Bytes written to the stdin of children.
    pub stdin_bytes: Counter,
    /// Gaps reported to readers, counted once per reader.
    pub gaps: Counter,
    pub gap_bytes: Counter,
    /// Log segments of 1 MiB that were written to disk.
    pub spilled_segments: Counter,
    pub started: Counter,
    pub sessions: Counter,
    pub resumed: Counter,
    /// Sessions that expired before a client resumed them.
    pub expired: Counter,
    /// Sessions of earlier servers whose holders were adopted.
    pub adopted: Counter,
    /// Sessions that were not adopted yet when the starting server stopped waiting for them. They are adopted later if
    /// possible.
    pub adoption_failures: Counter,
    /// Holders whose link ended unexpectedly, mostly because they died. Their processes were killed.
    pub holders_lost: Counter,
    /// In the order of `METHODS`.
    latencies: PerEntry<Latency, { METHODS.len() }>,
    /// In the order of `Kind::ALL`.
    errors: PerEntry<Counter, { Kind::ALL.len() }>,
}

/// Values that are computed when the page is requested.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MetricsSnapshot {
    pub(crate) connections: u64,
    pub(crate) sessions_attached: u64,
    pub(crate) sessions_detached: u64,
    pub(crate) processes_running: u64,
    pub(crate) processes_ended: u64,
    pub(crate) blocked_memory: u64,
    pub(crate) blocked_quota: u64,
    pub(crate) blocked_disk: u64,
    pub(crate) draining: bool,
    pub(crate) audit_lost: u64,
    /// The counters of admission, each with a fixed label.
    pub(crate) admission: [(&'static str, u64); 4],
}

impl Metrics {
    /// Records the latency of an answered request.
    pub(crate) fn answered(&self, method: Method, took: Duration) {
        self.latencies.0[method as usize].observe(took);
    }

    /// Counts an error response, also for a message that was not a valid request.
    pub(crate) fn failed(&self, kind: Kind) {
        if let Some(counter) = self.errors.0.get(kind as usize) {
            counter.inc();
        }
    }

    /// Counts a connection that admission refused.
    pub(crate) fn refused(&self, status: u16) {
        let index = STATUSES.iter().position(|known| *known == status).unwrap_or(STATUSES.len());
        self.refused[index].inc();
    }

    /// The page in the Prometheus text format.
    pub(crate) fn render(&self, snapshot: &MetricsSnapshot) -> String {
        let mut text = MetricsText::default();
        text.family(
            "exec_server_build_info",
            "Build information.",
            "gauge",
            "version",
            [(env!("CARGO_PKG_VERSION"), 1)],
        );
        self.render_connections(&mut text, snapshot);
        self.render_sessions(&mut text, snapshot);
        self.render_bytes(&mut text);
        self.render_requests(&mut text);
        text.0
    }

    fn render_connections(&self, text: &mut MetricsText, snapshot: &MetricsSnapshot) {
        text.gauge("exec_server_connections", "Open connections.", snapshot.connections);
        text.counter("exec_server_connections_total", "Connections that were admitted.", self.connections.get());
        let statuses = STATUSES.iter().map(u16::to_string).chain(["other".to_owned()]);
        text.family(
            "exec_server_refused_total",
            "Requests refused before a connection was admitted, by HTTP status.",
            "counter",
            "status",
            statuses.zip(self.refused.iter().map(Counter::get)),
        );
        text.counter(
            "exec_server_dead_peers_total",
            "Connections dropped because the peer was silent.",
            self.dead_peers.get(),
        );
        text.family(
            "exec_server_door_total",
            "Connections dropped or delayed before authentication, by outcome.",
            "counter",
            "outcome",
            snapshot.admission,
        );
        text.gauge("exec_server_draining", "1 while the server shuts down.", u64::from(snapshot.draining));
    }

    fn render_sessions(&self, text: &mut MetricsText, snapshot: &MetricsSnapshot) {
        text.family(
            "exec_server_sessions",
            "Sessions, by whether a connection is attached.",
            "gauge",
            "state",
            [("attached", snapshot.sessions_attached), ("detached", snapshot.sessions_detached)],
        );
        for (name, help, counter) in [
            ("exec_server_sessions_total", "Sessions created.", &self.sessions),
            ("exec_server_sessions_resumed_total", "Sessions resumed by a connection.", &self.resumed),
            ("exec_server_sessions_expired_total", "Sessions that expired while detached.", &self.expired),
            ("exec_server_sessions_adopted_total", "Sessions taken over from earlier servers.", &self.adopted),
            ("exec_server_adoption_failures_total", "Sessions not taken over at startup.", &self.adoption_failures),
            ("exec_server_holders_lost_total", "Holders that died; their processes were killed.", &self.holders_lost),
            ("exec_server_processes_started_total", "Processes started.", &self.started),
        ] {
            text.counter(name, help, counter.get());
        }
        text.counter(
            "exec_server_audit_lost_total",
            "Records that could not be written to the audit log.",
            snapshot.audit_lost,
        );
        text.family(
            "exec_server_processes",
            "Processes, running or ended and retained.",
            "gauge",
            "state",
            [("running", snapshot.processes_running), ("ended", snapshot.processes_ended)],
        );
        text.family(
            "exec_server_processes_blocked",
            "Processes blocked because their output is not read, by the limit reached.",
            "gauge",
            "reason",
            [("memory", snapshot.blocked_memory), ("quota", snapshot.blocked_quota), ("disk", snapshot.blocked_disk)],
        );
    }

    fn render_bytes(&self, text: &mut MetricsText) {
        for (name, help, counter) in [
            ("exec_server_received_bytes_total", "Bytes from peers, framing included.", &self.received_bytes),
            ("exec_server_sent_bytes_total", "Bytes to peers, framing included.", &self.sent_bytes),
            ("exec_server_output_bytes_total", "Output bytes read from processes.", &self.output_bytes),
            (
                "exec_server_output_dropped_bytes_total",
                "Output bytes dropped by the overflow policy.",
                &self.dropped_bytes,
            ),
            ("exec_server_stdin_bytes_total", "Bytes written to the stdin of processes.", &self.stdin_bytes),
            ("exec_server_gaps_total", "Gaps reported to readers.", &self.gaps),
            ("exec_server_gap_bytes_total", "Bytes of the gaps reported to readers.", &self.gap_bytes),
            ("exec_server_spilled_segments_total", "Log segments (1 MiB) spilled to disk.", &self.spilled_segments),
        ] {
            text.counter(name, help, counter.get());
        }
    }

    fn render_requests(&self, text: &mut MetricsText) {
        text.begin(
            "exec_server_request_seconds",
            "Time from a request to its answer, including the time that a read waits for output.",
            "histogram",
        );
        for (method, latency) in METHODS.iter().zip(&self.latencies.0) {
            let mut below = 0;
            for (end, bucket) in BUCKETS_US.iter().zip(&latency.buckets) {
                below += bucket.get();
                let labels = [("method", method.name), ("le", &text::seconds(*end))];
                text.sample("exec_server_request_seconds_bucket", &labels, &below.to_string());
            }
            // Add to the values that were read above. Other threads keep counting, and the total must not be less than
            // a bucket.
            let all = below + latency.buckets[BUCKETS_US.len()].get();
            let infinite = [("method", method.name), ("le", "+Inf")];
            text.sample("exec_server_request_seconds_bucket", &infinite, &all.to_string());
            let labels = [("method", method.name)];
            text.sample("exec_server_request_seconds_sum", &labels, &text::seconds(latency.sum_us.get()));
            text.sample("exec_server_request_seconds_count", &labels, &all.to_string());
        }
        let kinds = Kind::ALL.iter().zip(self.errors.0.iter().map(Counter::get));
        text.family("exec_server_errors_total", "Error answers, by kind.", "counter", "kind", kinds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_counts_in_its_own_bucket_and_all_larger_ones() {
        let metrics = Metrics::default();
        for us in [100, 101, 5_000_000, 5_000_001] {
            metrics.answered(Method::ProcessStart, Duration::from_micros(us));
        }
        let text = metrics.render(&MetricsSnapshot::default());
        let line = |le: &str| format!("exec_server_request_seconds_bucket{{method=\"process/start\",le=\"{le}\"}}");
        for (le, count) in [("0.0001", 1), ("0.00025", 2), ("1", 2), ("5", 3), ("+Inf", 4)] {
            assert!(text.contains(&format!("{} {count}\n", line(le))), "{le}: {text}");
        }
        assert!(text.contains("exec_server_request_seconds_count{method=\"process/start\"} 4\n"));
        assert!(text.contains("exec_server_request_seconds_sum{method=\"process/start\"} 10.000202\n"), "{text}");
    }

    #[test]
    fn kinds_and_statuses_are_counted_under_their_own_label() {
        let metrics = Metrics::default();
        for kind in Kind::ALL {
            metrics.failed(*kind);
        }
        metrics.refused(401);
        metrics.refused(418);
        let text = metrics.render(&MetricsSnapshot::default());
        assert!(
            Kind::ALL.iter().all(|kind| text.contains(&format!("exec_server_errors_total{{kind=\"{kind}\"}} 1\n")))
        );
        assert!(text.contains("exec_server_refused_total{status=\"401\"} 1\n"));
        assert!(text.contains("exec_server_refused_total{status=\"other\"} 1\n"));
    }
}
