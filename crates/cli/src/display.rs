//! Formatting for people: colours, column widths, tables, sizes and ages.
//!
//! Colour is written only to a terminal that supports and wants it (`NO_COLOR`, `TERM=dumb`). Widths are terminal cells, not characters.
//! Callers must remove control characters from untrusted text before they pass it to this module.

use std::{
    env,
    io::{self, IsTerminal as _},
    time::Duration,
};

pub(crate) use clap::builder::styling::{AnsiColor, Style};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// For column titles and the most important part of a line.
pub(crate) const BOLD: Style = Style::new().bold();
/// For secondary text.
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const BLUE: Style = AnsiColor::Blue.on_default();
pub(crate) const MAGENTA: Style = AnsiColor::Magenta.on_default();
pub(crate) const CYAN: Style = AnsiColor::Cyan.on_default();

/// Whether an output stream takes colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Palette {
    is_coloured: bool,
}

impl Palette {
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { is_coloured: false };

    /// For stdout.
    pub(crate) fn of_stdout() -> Self {
        Self::new(io::stdout().is_terminal())
    }

    /// For stderr.
    pub(crate) fn of_stderr() -> Self {
        Self::new(io::stderr().is_terminal())
    }

    fn new(is_terminal: bool) -> Self {
        let is_refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { is_coloured: is_terminal && !is_refused && !is_dumb }
    }

    /// Adds the style to the text if colour is on.
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        if self.is_coloured && !text.is_empty() && style != Style::new() {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }

    /// Like `paint`, for bytes.
    pub(crate) fn paint_bytes(self, style: Style, bytes: &[u8]) -> Vec<u8> {
        if self.is_coloured && !bytes.is_empty() && style != Style::new() {
            [style.render().to_string().as_bytes(), bytes, style.render_reset().to_string().as_bytes()].concat()
        } else {
            bytes.to_vec()
        }
    }
}

/// Pads a text with spaces to the given number of cells.
pub(crate) fn pad(text: &str, cells: usize) -> String {
    format!("{text}{}", " ".repeat(cells.saturating_sub(width(text))))
}

/// The width of a text in terminal cells.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Cuts a text to at most `room` cells; an ellipsis replaces the part that is cut.
pub(crate) fn fit(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut fitted = String::new();
    // One cell is for the ellipsis.
    let mut used = 1;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > room {
            break;
        }
        fitted.push(c);
    }
    fitted.push('…');
    fitted
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TableCell {
    text: String,
    style: Style,
}

impl TableCell {
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

impl From<String> for TableCell {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

impl From<&str> for TableCell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// Formats a table. Each column is as wide as its widest cell, with two spaces between columns. The last column is cut so that a line fits
/// into `room` cells, but is never narrower than its head. A `room` of 0 cuts nothing.
pub(crate) fn table<const N: usize>(
    heads: [&str; N],
    rows: Vec<[TableCell; N]>,
    palette: Palette,
    room: usize,
) -> String {
    let heads = heads.map(|head| TableCell::styled(head, BOLD));
    let rows: Vec<[TableCell; N]> = std::iter::once(heads).chain(rows).collect();
    let widths: Vec<usize> =
        (0..N - 1).map(|column| rows.iter().map(|row| width(&row[column].text)).max().unwrap_or_default()).collect();
    let before: usize = widths.iter().map(|width| width + 2).sum();
    let last_room = room.saturating_sub(before).max(width(&rows[0][N - 1].text));
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, column) in row.iter().zip(&widths) {
            let padding = " ".repeat(column - width(&cell.text));
            line += &format!("{}{padding}  ", palette.paint(cell.style, &cell.text));
        }
        let last = &row[N - 1];
        let fitted = if room == 0 { last.text.clone() } else { fit(&last.text, last_room) };
        line += &palette.paint(last.style, &fitted);
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Bytes for a sentence: `512 B`, `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (value, unit) = scaled(bytes);
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Bytes for a column, in the style of `ls -h`: `512`, `1.5K`, `20M`.
pub(crate) fn short_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
    let (value, unit) = scaled(bytes);
    match unit {
        0 => bytes.to_string(),
        // One decimal for values below 10, as `ls -h` does.
        _ if value < 9.95 => format!("{value:.1}{}", UNITS[unit]),
        _ => format!("{value:.0}{}", UNITS[unit]),
    }
}

fn scaled(bytes: u64) -> (f64, usize) {
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < 4 {
        value /= 1024.0;
        unit += 1;
    }
    (value, unit)
}

/// An age for a column: the one or two largest units.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A point in time in the local time zone.
pub(crate) fn local_time(seconds: i64, format: &str) -> String {
    match jiff::Timestamp::from_second(seconds) {
        Ok(at) => at.to_zoned(jiff::tz::TimeZone::system()).strftime(format).to_string(),
        // The time is outside of jiff's range, which ends with the year 9999. File systems can store such times.
        Err(_) => format!("@{seconds}"),
    }
}

/// Columns of the terminal on stdout; 0 if stdout is not a terminal.
pub(crate) fn stdout_columns() -> usize {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Palette = Palette::PLAIN;
    const COLOURED: Palette = Palette { is_coloured: true };

    #[test]
    fn columns_are_measured_in_terminal_cells() {
        let rows = vec![
            ["日本".into(), "7".into(), "one two three".into()],
            [TableCell::styled("é", GREEN), "12".into(), "x".into()],
        ];
        let table = |palette, room| table(["NAME", "SIZE", "LAST"], rows.clone(), palette, room);
        assert_eq!(table(PLAIN, 0), "NAME  SIZE  LAST\n日本  7     one two three\né     12    x\n");
        assert_eq!(table(PLAIN, 20).lines().nth(1), Some("日本  7     one two…"));
        assert_eq!(table(PLAIN, 5).lines().nth(1), Some("日本  7     one…"));
        assert_eq!(table(COLOURED, 0).lines().last(), Some("\x1b[32mé\x1b[0m     12    x"));
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("日本語", 4), "日…");
    }

    #[test]
    fn ages_and_sizes_are_short() {
        let ages = [0, 59, 60, 3_599, 3_600, 86_399, 90_000].map(|s| age(Duration::from_secs(s)));
        assert_eq!(ages, ["0s", "59s", "1m", "59m", "1h00m", "23h59m", "1d01h"]);
        let sizes = [0, 1023, 1536, 10_239, 20_480, 10 << 20, u64::MAX].map(short_size);
        assert_eq!(sizes, ["0", "1023", "1.5K", "10K", "20K", "10M", "16777216T"]);
        assert_eq!([0, 1023, 1536, 2 << 30].map(size), ["0 B", "1023 B", "1.5 KiB", "2.0 GiB"]);
    }

    #[test]
    fn only_a_stream_that_takes_colour_gets_it() {
        assert_eq!(COLOURED.paint(RED, "x"), "\x1b[31mx\x1b[0m");
        assert_eq!(PLAIN.paint(RED, "x"), "x");
        assert_eq!(COLOURED.paint(Style::new(), "x"), "x");
        assert_eq!(COLOURED.paint_bytes(RED, b"x"), b"\x1b[31mx\x1b[0m");
        assert!(!Palette::new(false).is_coloured);
    }
}
