//! Writes the Prometheus text format, version 0.0.4: families, samples, labels.

use std::fmt::{Display, Write as _};

#[derive(Debug, Default)]
pub(super) struct MetricsText(pub(super) String);

impl MetricsText {
    /// Adds a counter.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.begin(name, help, "counter");
        self.sample(name, &[], &value.to_string());
    }

    /// Adds a gauge.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.begin(name, help, "gauge");
        self.sample(name, &[], &value.to_string());
    }

    /// Adds a family of samples that differ in the value of one label.
    pub(super) fn family<L: Display>(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        label: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) {
        self.begin(name, help, kind);
        for (word, value) in samples {
            self.sample(name, &[(label, &word.to_string())], &value.to_string());
        }
    }

    /// Adds the HELP and TYPE lines of a family.
    pub(super) fn begin(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a `String` does not fail.
        write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n").ok();
    }

    /// Adds one sample. Nothing is escaped: all names, labels and values are constants of this server.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        self.0.push_str(name);
        for (at, (label, word)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            write!(self.0, "{before}{label}=\"{word}\"").ok();
        }
        let after = if labels.is_empty() { "" } else { "}" };
        writeln!(self.0, "{after} {value}").ok();
    }
}

/// Converts microseconds to seconds without rounding.
pub(super) fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
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
    fn help_and_type_lines_appear_once_per_family() {
        let mut text = MetricsText::default();
        text.begin("a", "Of a.", "gauge");
        text.sample("a", &[("x", "1"), ("y", "2")], "3");
        text.sample("a", &[], "4");
        text.family("b", "Of b.", "counter", "x", [(1, 3), (2, 4)]);
        let b = "# HELP b Of b.\n# TYPE b counter\nb{x=\"1\"} 3\nb{x=\"2\"} 4\n";
        assert_eq!(text.0, format!("# HELP a Of a.\n# TYPE a gauge\na{{x=\"1\",y=\"2\"}} 3\na 4\n{b}"));
    }
}
