//! The text format of Prometheus, version 0.0.4: families, samples, labels. Must not know what is counted.

use std::fmt::Write as _;

/// Labels of a sample, and its value.
type Sample<'a> = (&'a [(&'a str, &'a str)], u64);

/// A page of metrics under construction.
#[derive(Debug, Default)]
pub(crate) struct Text(String);

impl Text {
    /// A family of numbers that only grow.
    pub(crate) fn counter(&mut self, name: &str, help: &str, samples: &[Sample<'_>]) {
        self.family(name, help, "counter", samples);
    }

    /// A family of numbers that go up and down.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, samples: &[Sample<'_>]) {
        self.family(name, help, "gauge", samples);
    }

    fn family(&mut self, name: &str, help: &str, kind: &str, samples: &[Sample<'_>]) {
        self.begin(name, help, kind);
        for (labels, value) in samples {
            self.sample(name, labels, &value.to_string());
        }
    }

    /// The two lines that a family begins with.
    pub(crate) fn begin(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string does not fail.
        write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n").ok();
    }

    /// One line. Names, labels and values are our own words: nothing in them needs an escape.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        self.0.push_str(name);
        for (at, (label, word)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            write!(self.0, "{before}{label}=\"{word}\"").ok();
        }
        let after = if labels.is_empty() { "" } else { "}" };
        writeln!(self.0, "{after} {value}").ok();
    }

    /// The whole page.
    pub(crate) fn finish(self) -> String {
        self.0
    }
}

/// Microseconds as seconds, exactly.
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
        let mut text = Text::default();
        text.gauge("a", "Of a.", &[(&[("x", "1"), ("y", "2")], 3), (&[], 4)]);
        assert_eq!(text.finish(), "# HELP a Of a.\n# TYPE a gauge\na{x=\"1\",y=\"2\"} 3\na 4\n");
    }
}
