//! The wall clock, for timestamps that people read and dates that people set. It times nothing but the expiry of
//! access, which is given as a date.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Seconds since 1970.
#[must_use]
pub fn now_seconds() -> u64 {
    now_ms() / 1000
}

/// Formats a time like `2026-11-16T04:30:00Z`.
#[must_use]
pub fn show_seconds(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Formats a time like `2026-11-16T04:30:00.123Z`.
pub(crate) fn show_ms(ms: u64) -> String {
    let mut text = show_seconds(ms / 1000);
    text.pop();
    format!("{text}.{:03}Z", ms % 1000)
}

/// Parses a date, or a date and time with `Z`. Fractions of a second are ignored. `None` for anything else, such as a
/// time without a zone, which would mean a different time on another machine.
#[must_use]
pub fn read_seconds(text: &str) -> Option<u64> {
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, time.strip_suffix(['Z', 'z'])?),
        None => (text, "00:00:00"),
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time.split_once('.').map_or(time, |(whole, _)| whole), ':')?;
    let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_date || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_until(year, month, day);
    // Rejects days that do not exist, such as 31 February.
    (civil(days) == (year, month, day)).then_some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let mut parts =
        text.split(separator).map(|part| part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok())?);
    let found = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(found)
}

/// Days since 1970 of a Gregorian date. Years start in March here, so that the leap day is the last day of the year.
fn days_until(year: u64, month: u64, day: u64) -> u64 {
    let years = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (years / 400, years % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let years = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * years + years / 4 - years / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + years + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::{read_seconds, show_ms, show_seconds};

    #[test]
    fn dates_are_read_as_they_are_shown() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_794_803_400, "2026-11-16T04:30:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!((show_seconds(seconds).as_str(), read_seconds(text)), (text, Some(seconds)));
        }
        for day in (0..200_000).step_by(37) {
            let text = show_seconds(day * 86_400 + 12_345);
            assert_eq!(read_seconds(&text), Some(day * 86_400 + 12_345), "{text}");
        }
        assert_eq!(show_ms(1_794_803_400_007), "2026-11-16T04:30:00.007Z");
        assert_eq!(read_seconds("2026-11-16"), read_seconds("2026-11-16 00:00:00.5z"));
    }

    #[test]
    fn what_is_no_date_in_a_known_zone_is_refused() {
        for text in [
            "",
            "tomorrow",
            "2026-02-30",
            "2026-13-01",
            "2026-11-16T04:30:00",
            "2026-11-16T04:30:00+01:00",
            "2026-11-16T24:00:00Z",
            "1969-12-31",
            "+026-11-16",
            "2026-11-16-1",
            "2026-11-16T04:30Z",
        ] {
            assert_eq!(read_seconds(text), None, "{text}");
        }
    }
}
