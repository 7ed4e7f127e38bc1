//! The figures of a run that passed: named numbers, printed on one line.
//!
//! Every line begins with the number of injected and survived faults, the bytes checked, and the worst recovery time; `-` if a run has no
//! such figure.

use std::fmt::{self, Display};

use crate::prelude::*;

/// The figures that every line begins with.
const FIRST: [&str; 4] = ["injected", "survived", "bytes", "worst_ms"];

/// The figures of a finished run.
#[derive(Default)]
pub(super) struct Figures(Vec<(&'static str, String)>);

impl Figures {
    /// Sets a figure. The first four have a fixed place; the others follow in the order in which they were set.
    pub(super) fn set(mut self, name: &'static str, value: impl Display) -> Self {
        self.0.push((name, value.to_string()));
        self
    }

    /// The figures of a run in which this many faults were injected and all were survived.
    pub(super) fn survived(injected: u64) -> Self {
        Self::default().set("injected", injected).set("survived", injected)
    }

    /// The result of a run with one line.
    pub(super) fn only_line(self) -> Result<Vec<Self>> {
        Ok(vec![self])
    }

    /// Records the worst time and the 99th percentile.
    pub(super) fn times(self, times: &mut [f64]) -> Self {
        times.sort_by(f64::total_cmp);
        let (worst, p99) = (worst(times), percentile(times, 99));
        self.set("worst_ms", format!("{worst:.1}")).set("p99_ms", format!("{p99:.1}"))
    }

    /// A figure, or `-` if it is not set.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(own, _)| *own == name).map_or("-", |(_, value)| value)
    }
}

impl Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = self.0.iter().filter(|(name, _)| !FIRST.contains(name)).map(|(name, value)| (*name, value.as_str()));
        let all = FIRST.iter().map(|name| (*name, self.get(name))).chain(rest);
        f.write_str(&all.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "))
    }
}

/// A percentile of sorted values.
pub(super) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// The largest value; 0 if there is none.
pub(super) fn worst(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Fails a run whose times break a promise.
pub(super) fn ensure_p99(times: &[f64], limit_ms: f64, what: &str) -> Result<()> {
    let p99 = percentile(times, 99);
    ensure!(p99 <= limit_ms, "{what}: p99 is {p99:.1} ms, promised {limit_ms} ms");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_begins_with_the_same_figures() {
        let figures = Figures::survived(7).set("parallel", 3).times(&mut [5.0, 1.0]);
        assert_eq!(figures.to_string(), "injected=7 survived=7 bytes=- worst_ms=5.0 parallel=3 p99_ms=5.0");
    }
}
