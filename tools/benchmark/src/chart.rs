//! The chart for `docs/reference/benchmarks.md`: bars side by side, as hand-written SVG.
//!
//! Defines sizes and colours. All colours are mid-tones without a background, so that they are readable on light and dark pages.

use super::table::{Bar, short};
use crate::prelude::*;

const WIDTH: f64 = 760.0;
/// Where the bars begin, and the length of the longest; the rest of the width is for its value.
const LEFT: f64 = 200.0;
const LONGEST: f64 = 450.0;

/// Heights of a bar with its gap, of a title, and of the gap before it.
const BAR: f64 = 22.0;
const TITLE: f64 = 26.0;
const GAP: f64 = 18.0;

/// A bar longer than this multiple of our shortest one is cut, because ours would be too small to see beside it.
const CUT: f64 = 8.0;

const TEXT: &str = "#77818c";

impl BarOwner {
    /// The colour of its bars and its name.
    fn legend(self) -> (&'static str, &'static str) {
        match self {
            Self::Ours => ("#2f81f7", "exec-server"),
            Self::Machine => ("#8b949e", "the machine itself"),
            Self::Ssh => ("#d29922", "OpenSSH"),
            Self::Rsync => ("#3fb950", "rsync"),
            Self::Peer => ("#a371f7", "another server"),
        }
    }
}

/// Draws all charts, one below the other.
pub(super) fn draw(charts: &[Bars]) -> String {
    let mut body = String::new();
    let mut y = 6.0;
    for chart in charts.iter().filter(|chart| !chart.bars.is_empty()) {
        y = draw_one(&mut body, chart, y) + GAP;
    }
    let all = [BarOwner::Ours, BarOwner::Machine, BarOwner::Ssh, BarOwner::Rsync, BarOwner::Peer];
    let shown =
        all.into_iter().filter(|whose| charts.iter().any(|chart| chart.bars.iter().any(|bar| bar.whose == *whose)));
    let mut x = LEFT;
    for (colour, name) in shown.map(BarOwner::legend) {
        rect(&mut body, [x, y, 12.0, 12.0], colour);
        text(&mut body, (x + 18.0, y + 10.5), "start", "", name);
        x += 38.0 + 7.0 * name.len() as f64;
    }
    let height = y + 22.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"13\">\n{body}</svg>\n"
    )
}

/// Returns the y coordinate where the chart ends.
fn draw_one(body: &mut String, chart: &Bars, mut y: f64) -> f64 {
    let is_rate = chart.unit.ends_with("/s");
    let better = if is_rate { "more is better" } else { "less is better" };
    y += TITLE;
    let title = format!("{}, {} ({better})", chart.title.replace('`', ""), chart.unit);
    text(body, (0.0, y - 9.0), "start", " font-weight=\"600\" font-size=\"14\"", &title);
    let most = scale(&chart.bars, is_rate);
    for bar in &chart.bars {
        let length = (bar.value / most * LONGEST).clamp(2.0, LONGEST);
        let weight = if bar.whose == BarOwner::Ours { " font-weight=\"600\"" } else { "" };
        text(body, (LEFT - 10.0, y + 13.0), "end", weight, &bar.label.replace('`', ""));
        rect(body, [LEFT, y + 1.0, length, BAR - 6.0], bar.whose.legend().0);
        if bar.value > most {
            cut(body, LEFT + length, y);
        }
        text(body, (LEFT + length + 8.0, y + 13.0), "start", weight, &short(bar.value));
        y += BAR;
    }
    y
}

/// The value of the longest bar. For rates nothing is cut, so that a result better than ours is shown in full.
fn scale(bars: &[Bar], is_rate: bool) -> f64 {
    let most = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let ours = bars.iter().filter(|bar| bar.whose == BarOwner::Ours).map(|bar| bar.value).fold(f64::MAX, f64::min);
    if is_rate { most } else { most.min(ours * CUT) }
}

fn rect(body: &mut String, [x, y, width, height]: [f64; 4], colour: &str) {
    *body += &format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" fill=\"{colour}\"/>\n"
    );
}

/// Two slanted lines that mark a bar as cut.
fn cut(body: &mut String, end: f64, y: f64) {
    let height = BAR - 4.0;
    for x in [end - 26.0, end - 19.0] {
        let from = y + height;
        *body += &format!("<path d=\"M{x:.1} {from:.1} l6 -{height:.1}\" stroke=\"#fff\" stroke-width=\"2.5\"/>\n");
    }
}

fn text(body: &mut String, (x, y): (f64, f64), anchor: &str, more: &str, what: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    *body += &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{TEXT}\"{more}>{what}</text>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_much_longer_than_ours_is_cut_and_keeps_its_value() {
        let chart = Bars::new("Start", "ms")
            .bar("fork & exec", BarOwner::Machine, Some(0.5))
            .bar("exec-server", BarOwner::Ours, Some(1.0))
            .bar("OpenSSH", BarOwner::Ssh, Some(150.0))
            .bar("none", BarOwner::Peer, None);
        let svg = draw(&[chart]);
        assert!(svg.contains(">150<") && svg.contains("<path ") && svg.contains("fork &amp; exec"));
        assert!(svg.contains(&format!("width=\"{:.1}\"", LONGEST / CUT)));
        assert!(!svg.contains("another server"));
    }
}
