//! Writes the Prometheus text format, version 0.0.4: families, samples, labels.

use std::fmt::Write as _;

/// The labels of a sample, and its value.
type Sample<'a> = (&'a [(&'a str, &'a str)], u64);

#[derive(Debug, Default)]
pub(crate) struct MetricsText(String);

impl MetricsText {
    /// Adds a family of counters.
    pub(crate) fn counter(&mut self, name: &str, help: &str, samples: &[Sample<'_>]) {
        self.family(name, help, "counter", samples);
    }

    /// Adds a family of gauges.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, samples: &[Sample<'_>]) {
        self.family(name, help, "gauge", samples);
    }

    fn family(&mut self, name: &str, help: &str, kind: &str, samples: &[Sample<'_>]) {
        self.begin(name, help, kind);
        for (labels, value) in samples {
            self.sample(name, labels, &value.to_string());
        }
    }

    /// Adds the HELP and TYPE lines of a family.
    pub(crate) fn begin(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a `String` does not fail.
        write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n").ok();
    }

    /// Adds one sample. Nothing is escaped: all names, labels and values are constants of this server.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        self.0.push_str(name);
        for (at, (label, word)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            write!(self.0, "{before}{label}=\"{word}\"").ok();
        }
        let after = if labels.is_empty() { "" } else { "}" };
        writeln!(self.0, "{after} {value}").ok();
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}

/// Converts microseconds to seconds without rounding.
pub(crate) fn seconds(us: u64) -> String {
    let (whole, rest) = (us / 1_000_000, us % 1_000_000);
    let text = format!("{whole}.{rest:06}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        for (us, text) in [(0, "0"), (100, "0.0001"), (1_000_000, "1"), (10_000_202, "10.000202")] {
            assert_eq!(seconds(us), text);
        }
    }

    #[test]
    fn a_family_has_its_head_once() {
        let mut text = MetricsText::default();
        text.gauge("a", "Of a.", &[(&[("x", "1"), ("y", "2")], 3), (&[], 4)]);
        assert_eq!(text.finish(), "# HELP a Of a.\n# TYPE a gauge\na{x=\"1\",y=\"2\"} 3\na 4\n");
    }
}
