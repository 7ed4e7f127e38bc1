//! The wall clock, for timestamps that people read and dates that people set. Timeouts use the monotonic clock; only
//! the expiry of access is checked against this one, because it is given as a date.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::{
    Timestamp,
    civil::{Date, DateTime},
    tz::TimeZone,
};

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
    timestamp(seconds.saturating_mul(1000)).to_string()
}

/// Formats a time like `2026-11-16T04:30:00.123Z`.
pub(crate) fn show_ms(ms: u64) -> String {
    format!("{:.3}", timestamp(ms))
}

/// A time that is too late for a `Timestamp` becomes `Timestamp::MAX`, near the end of the year 9999.
fn timestamp(ms: u64) -> Timestamp {
    let timestamp = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    timestamp.unwrap_or(Timestamp::MAX)
}

/// Parses a date, or a date and time with `Z`. Fractions of a second are ignored. `None` for anything else. That
/// includes times before 1970, and times without a zone, which would mean different times on different machines.
#[must_use]
pub fn read_seconds(text: &str) -> Option<u64> {
    // TOML allows `t` or a space between date and time, and `z` at the end.
    let text = text.to_ascii_uppercase().replace(' ', "T");
    let time = match text.contains('T') {
        true => DateTime::strptime("%Y-%m-%dT%H:%M:%S%.fZ", &text),
        false => Date::strptime("%Y-%m-%d", &text).map(DateTime::from),
    };
    let time = time.and_then(|time| time.to_zoned(TimeZone::UTC)).ok()?;
    u64::try_from(time.timestamp().as_second()).ok()
}

#[cfg(test)]
mod tests {
    use super::{read_seconds, show_ms, show_seconds};

    #[test]
    fn shown_dates_are_read_back_unchanged() {
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
    fn anything_but_a_date_or_a_utc_time_is_refused() {
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
