//! The rows of the table and their statistics: medians of interleaved ratios, and their spread.
//!
//! Lanes take turns round by round. A ratio compares two lanes of the same round. A target is met if the median of the ratios meets it.

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// The figures that a lane measured in one round, in its own order.
pub(super) type FigureValues = Vec<f64>;

/// One side of a comparison. The argument says whether this is the first round, which warms caches, checks every byte and is not counted.
pub(super) struct BenchLane<'a> {
    name: String,
    run: Box<dyn FnMut(bool) -> Result<FigureValues> + 'a>,
}

impl<'a> BenchLane<'a> {
    pub(super) fn new(name: impl Into<String>, run: impl FnMut(bool) -> Result<FigureValues> + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// The figures of all lanes, round by round.
#[derive(Default)]
pub(super) struct Contest {
    lanes: Vec<(String, Vec<FigureValues>)>,
}

impl Contest {
    /// Runs every lane in every round; each round begins with another lane. With 0 rounds, the first one is counted, too: a short run has
    /// no time to repeat lanes that mostly wait.
    pub(super) fn hold(rounds: u32, mut lanes: Vec<BenchLane<'_>>) -> Result<Self> {
        let mut measured: Vec<Vec<FigureValues>> = lanes.iter().map(|_| Vec::new()).collect();
        for round in 0..=rounds as usize {
            for turn in 0..lanes.len() {
                let at = (turn + round) % lanes.len();
                let lane = &mut lanes[at];
                let figures = (lane.run)(round == 0).with_context(|| lane.name.clone())?;
                if round > 0 || rounds == 0 {
                    measured[at].push(figures);
                }
            }
        }
        Ok(Self { lanes: lanes.into_iter().map(|lane| lane.name).zip(measured).collect() })
    }

    /// One figure of a lane in every round; `None` if there is no such lane.
    pub(super) fn figure(&self, lane: &str, index: usize) -> Option<Vec<f64>> {
        let (_, rounds) = self.lanes.iter().find(|(name, _)| name == lane)?;
        Some(rounds.iter().map(|figures| figures[index]).collect())
    }

    /// The median of a figure of a lane.
    pub(super) fn median(&self, lane: &str, index: usize) -> Option<f64> {
        self.figure(lane, index).map(median)
    }

    /// A row with the ratios of one figure of two lanes; the note has the absolute values. If a lane is missing the note says why.
    pub(super) fn row(&self, name: impl Into<String>, pair: Pair<'_>) -> Row {
        let Pair { ours, beside, unit } = pair;
        let row = Row::new(name, "x");
        let Some(ours) = self.figure(ours.0, ours.1) else { return row.note("not offered") };
        let Some(beside) = self.figure(beside.0, beside.1) else { return row.note(format!("without {}", beside.0)) };
        let ratios = ours.iter().zip(&beside).map(|(ours, beside)| ours / beside).collect();
        let note = format!("{} against {} {unit}", short(median(ours)), short(median(beside)));
        row.values(ratios).note(note)
    }
}

/// Two figures to compare: lane and index of each.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) ours: (&'a str, usize),
    pub(super) beside: (&'a str, usize),
    pub(super) unit: &'a str,
}

/// The limit for a value.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

/// Median, 10th and 90th percentile, and number of values.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) count: usize,
}

/// One line of the table.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Row {
    /// The group that measured it; set by `run`.
    #[serde(default)]
    pub(super) group: String,
    pub(super) name: String,
    /// `None` if there was nothing to measure; the note says why.
    pub(super) value: Option<Spread>,
    pub(super) unit: String,
    pub(super) target: Option<Target>,
    /// The absolute figures behind the value.
    pub(super) note: String,
}

impl Row {
    pub(super) fn new(name: impl Into<String>, unit: &str) -> Self {
        Self { name: name.into(), unit: unit.to_owned(), ..Self::default() }
    }

    pub(super) fn values(mut self, values: Vec<f64>) -> Self {
        self.value = (!values.is_empty()).then(|| Spread {
            low: quantile(&values, 0.1),
            high: quantile(&values, 0.9),
            count: values.len(),
            median: median(values),
        });
        self
    }

    pub(super) fn at_most(mut self, most: f64) -> Self {
        self.target = Some(Target::AtMost(most));
        self
    }

    pub(super) fn at_least(mut self, least: f64) -> Self {
        self.target = Some(Target::AtLeast(least));
        self
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    pub(super) fn verdict(&self) -> &'static str {
        let holds = match (self.value, self.target) {
            (None, _) | (_, None) => return "-",
            (Some(value), Some(Target::AtMost(most))) => value.median <= most,
            (Some(value), Some(Target::AtLeast(least))) => value.median >= least,
        };
        if holds { "pass" } else { "miss" }
    }

    /// Value, spread and target as text.
    pub(super) fn texts(&self) -> [String; 3] {
        let unit = &self.unit;
        let value = self.value.map_or_else(|| "-".to_owned(), |value| format!("{} {unit}", short(value.median)));
        let spread = self.value.filter(|value| value.count > 1);
        let spread = spread.map_or_else(String::new, |value| format!("{}..{}", short(value.low), short(value.high)));
        let target = match self.target {
            None => "-".to_owned(),
            Some(Target::AtMost(most)) => format!("≤ {most} {unit}"),
            Some(Target::AtLeast(least)) => format!("≥ {least} {unit}"),
        };
        [value, spread, target].map(|text| text.trim_end().to_owned())
    }
}

/// Whose bar it is in the chart.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum BarOwner {
    Ours,
    Machine,
    Ssh,
    Rsync,
    Peer,
}

/// One bar of the chart.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) whose: BarOwner,
    pub(super) value: f64,
}

/// Bars that are compared with each other.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Bars {
    #[serde(default)]
    pub(super) group: String,
    pub(super) title: String,
    pub(super) unit: String,
    pub(super) bars: Vec<Bar>,
}

impl Bars {
    pub(super) fn new(title: &str, unit: &str) -> Self {
        Self { group: String::new(), title: title.to_owned(), unit: unit.to_owned(), bars: Vec::new() }
    }

    /// Adds a bar if there is a value.
    pub(super) fn bar(mut self, label: &str, whose: BarOwner, value: Option<f64>) -> Self {
        self.bars.extend(value.map(|value| Bar { label: label.to_owned(), whose, value }));
        self
    }
}

/// The results of a group.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    pub(super) charts: Vec<Bars>,
}

impl From<Vec<Row>> for Report {
    fn from(rows: Vec<Row>) -> Self {
        Self { rows, charts: Vec::new() }
    }
}

/// Prints the table.
pub(super) fn print(rows: &[Row]) {
    let heads = ["what", "value", "p10..p90", "target", "", "figures"];
    let lines: Vec<[String; 6]> = rows
        .iter()
        .map(|row| {
            let [value, spread, target] = row.texts();
            [row.name.clone(), value, spread, target, row.verdict().to_owned(), row.note.clone()]
        })
        .collect();
    let width =
        |at: usize| lines.iter().map(|line| line[at].chars().count()).chain([heads[at].len()]).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    for line in std::iter::once(heads.map(str::to_owned)).chain(lines) {
        let [what, value, spread, target, verdict, note] = &line;
        println!(
            "{what:<0$}  {value:>1$}  {spread:>2$}  {target:>3$}  {verdict:<4$}  {note}",
            widths[0], widths[1], widths[2], widths[3], widths[4]
        );
    }
}

/// Microseconds of each of `count` turns.
pub(super) fn micros(count: u32, mut turn: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let begun = Instant::now();
        turn()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// The median; there must be at least one value.
pub(super) fn median(values: Vec<f64>) -> f64 {
    quantile(&values, 0.5)
}

/// A quantile, interpolated between two values if necessary.
pub(super) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = part * (sorted.len() - 1) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

/// Formats a number: three decimals for very small values, none for large ones.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        ..0.1 => format!("{value:.3}"),
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_by_the_median_of_the_ratios() {
        let row = Row::new("r", "x").values(vec![9.0, 1.0, 1.1, 1.2, 1.0]).at_most(1.1);
        assert_eq!(row.verdict(), "pass");
        assert_eq!(row.clone().at_least(1.2).verdict(), "miss");
        assert_eq!(row.texts()[2], "≤ 1.1 x");
        assert_eq!(Row::new("r", "x").at_most(1.0).verdict(), "-");
    }

    #[test]
    fn ratios_compare_lanes_of_one_round_and_ignore_the_first_round() {
        let mut at = 0.0;
        let slow = BenchLane::new("slow", |is_first| {
            at += 1.0;
            Ok(vec![if is_first { 1000.0 } else { at * 2.0 }])
        });
        let mut other = 0.0;
        let fast = BenchLane::new("fast", |_| {
            other += 1.0;
            Ok(vec![other])
        });
        let contest = Contest::hold(9, vec![slow, fast]).unwrap();
        let row = contest.row("r", Pair { ours: ("slow", 0), beside: ("fast", 0), unit: "µs" });
        let value = row.value.unwrap();
        assert_eq!((value.median, value.low, value.high, value.count), (2.0, 2.0, 2.0, 9));
        let none = contest.row("r", Pair { ours: ("slow", 0), beside: ("none", 0), unit: "µs" });
        assert_eq!((none.verdict(), &*none.note), ("-", "without none"));
        let only = Contest::hold(0, vec![BenchLane::new("only", |is_first| Ok(vec![f64::from(is_first)]))]).unwrap();
        assert_eq!(only.figure("only", 0), Some(vec![1.0]));
        let none = contest.row("r", Pair { ours: ("none", 0), beside: ("fast", 0), unit: "µs" });
        assert_eq!((none.verdict(), &*none.note), ("-", "not offered"));
    }

    #[test]
    fn quantiles_lie_between_values() {
        let values: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        assert_eq!((quantile(&values, 0.1), quantile(&values, 0.5), quantile(&values, 0.99)), (1.0, 5.0, 9.9));
    }
}
