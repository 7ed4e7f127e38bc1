//! Parsers for values of flags: sizes, durations, times-to-live, variables, numbers.

use std::time::Duration;

use exec_server_protocol::limits;
use exec_server_server::access::SandboxFloor;

use crate::limits::LimitValue;

/// The maximum of `--concurrent-requests`, which is also the maximum of waiting starts.
pub(super) const CONCURRENT_MAX: usize = limits::STARTS_WAITING;

const FORMS: &str = "must be like 500ms, 30s, 10m, 24h, 30d or a number of seconds";
const SIZE_FORMS: &str = "must be like 0, 512KiB, 16MiB, 1GiB or a number of bytes";
const TTL_FORMS: &str = "must be like 30s, 10m, 24h, 30d, a number of seconds, or none";

/// A time-to-live; `None` means unlimited. A newtype, because clap treats an `Option` as an optional flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ttl(pub(crate) Option<Duration>);

/// A limit; `None` means unlimited. A newtype, because clap treats an `Option` as an optional flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound(pub(crate) Option<u64>);

/// A number of processes, or `none`.
pub(super) fn pids(text: &str) -> Result<Bound, &'static str> {
    match (text, text.parse::<u64>()) {
        ("none", _) => Ok(Bound(None)),
        // The kernel's maximum for pids.
        (_, Ok(number @ 1..=4_194_304)) => Ok(Bound(Some(number))),
        _ => Err("must be an integer from 1 to 4194304, or none"),
    }
}

/// A size, or `none`.
pub(super) fn bytes(text: &str) -> Result<Bound, &'static str> {
    if text == "none" {
        return Ok(Bound(None));
    }
    match size(text)? {
        // A program cannot start with less, so every start would fail.
        0..1_048_576 => Err("must be at least 1MiB"),
        bytes => Ok(Bound(Some(bytes))),
    }
}

/// A number of at least 1. A number above the maximum means the maximum.
pub(super) fn concurrent(text: &str) -> Result<usize, &'static str> {
    match text.parse::<u128>() {
        Ok(0) | Err(_) => Err("must be an integer of at least 1"),
        Ok(number) => Ok(usize::try_from(number).map_or(CONCURRENT_MAX, |number| number.min(CONCURRENT_MAX))),
    }
}

pub(super) fn ttl(text: &str) -> Result<Ttl, &'static str> {
    if text == "none" {
        return Ok(Ttl(None));
    }
    if text.ends_with("ms") {
        return Err(TTL_FORMS);
    }
    match units(text, TTL_FORMS, "is too long; use none")? {
        Duration::ZERO => Err("must not be zero"),
        total => Ok(Ttl(Some(total))),
    }
}

/// A duration that may be zero.
pub(super) fn duration_or_zero(text: &str) -> Result<Duration, &'static str> {
    units(text, FORMS, "is too long")
}

/// A duration above zero.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    match duration_or_zero(text)? {
        Duration::ZERO => Err("must not be zero"),
        duration => Ok(duration),
    }
}

/// An interval of at least 200 ms.
pub(super) fn interval(text: &str) -> Result<Duration, &'static str> {
    let every = duration(text)?;
    if every < Duration::from_millis(200) { Err("must be at least 200ms") } else { Ok(every) }
}

pub(super) fn variable(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("must be NAME=value"),
    }
}

/// A variable with its value, or the name of a variable of this program's environment, whose value is taken.
pub(super) fn variable_or_ours(text: &str) -> Result<(String, String), String> {
    if text.contains('=') {
        return variable(text).map_err(ToOwned::to_owned);
    }
    let name = variable_name(text)?;
    match std::env::var_os(&name).and_then(|value| value.into_string().ok()) {
        Some(value) => Ok((name, value)),
        None => Err(format!("`{name}` is not set in this environment, or is not UTF-8; write {name}=value")),
    }
}

/// A variable with its value, or its name alone.
pub(super) fn variable_or_name(text: &str) -> Result<(String, Option<String>), &'static str> {
    match text.split_once('=') {
        Some(_) => variable(text).map(|(name, value)| (name, Some(value))),
        None => variable_name(text).map(|name| (name, None)),
    }
}

/// The name of a variable.
pub(super) fn variable_name(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.contains(['=', '*', '?']) {
        return Err("must be the name of a variable");
    }
    Ok(text.to_owned())
}

/// A signal as in kill(1): a name with or without `SIG`, or a number. A number is translated into the name.
pub(super) fn signal(text: &str) -> Result<String, &'static str> {
    let name = match text.parse::<u8>() {
        Ok(number @ 1..=64) => exec_server_protocol::signal::name(number).into_owned(),
        Ok(_) | Err(_) => text.to_owned(),
    };
    match exec_server_protocol::signal::number(&name) {
        Some(_) => Ok(name),
        None => Err("must be the name of a signal, such as TERM, SIGINT or USR1, or its number"),
    }
}

/// Sizes from `least` to `most` bytes.
pub(super) fn size_within(least: u64, most: u64) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync {
    move |text| within(size(text)?, least, most, LimitValue::Bytes)
}

/// Durations from `least` to `most`.
pub(super) fn time_within(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync {
    move |text| within(duration_or_zero(text)?, least, most, LimitValue::Time)
}

/// Whole numbers from `least` to `most`.
pub(super) fn count_within(least: u64, most: u64) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse().map_err(|_| format!("must be a whole number from {least} to {most}"))?;
        within(number, least, most, LimitValue::Count)
    }
}

fn within<T: PartialOrd>(value: T, least: T, most: T, to_value: fn(T) -> LimitValue) -> Result<T, String> {
    if value < least || value > most {
        return Err(format!("must be from {} to {}", to_value(least), to_value(most)));
    }
    Ok(value)
}

/// A number of bytes, optionally with a binary unit. Decimal units are refused, because MB is ambiguous.
fn size(text: &str) -> Result<u64, &'static str> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(SIZE_FORMS),
    };
    let number: u64 = number.parse().map_err(|_| SIZE_FORMS)?;
    number.checked_mul(1 << shift).ok_or(SIZE_FORMS)
}

/// The name of a scope.
pub(super) fn scope(text: &str) -> Result<String, &'static str> {
    match exec_server_protocol::method::Scope::find(text) {
        Some(scope) => Ok(scope.as_str().to_owned()),
        None => Err("must be one of exec, stdin, signal, fs-read, fs-write, http, metrics"),
    }
}

/// A sandbox floor.
pub(super) fn floor(text: &str) -> Result<SandboxFloor, &'static str> {
    match text {
        "required" => Ok(SandboxFloor::Required),
        "offline" => Ok(SandboxFloor::Offline),
        _ => Err("must be required or offline"),
    }
}

/// A number and its unit; a bare number is seconds.
fn units(text: &str, forms: &'static str, too_long: &'static str) -> Result<Duration, &'static str> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return Err(forms),
    };
    let number: u64 = number.parse().map_err(|_| forms)?;
    // 32 bits of seconds are 136 years, so adding a duration to a clock never overflows.
    let most_ms = u64::from(u32::MAX) * 1000;
    number.checked_mul(unit_ms).filter(|total| *total <= most_ms).map(Duration::from_millis).ok_or(too_long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, seconds) in [("30", 30), ("30s", 30), ("10m", 600), ("24h", 86_400), ("30d", 2_592_000)] {
            assert_eq!(ttl(text), Ok(Ttl(Some(Duration::from_secs(seconds)))));
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        assert_eq!(ttl("none"), Ok(Ttl(None)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "0", "s", "0s", "-1s", "1w", "1.5h", "99999999999999999999d", "1 h"] {
            assert!(ttl(bad).is_err() && duration(bad).is_err(), "{bad}");
        }
        assert!(ttl("5ms").is_err() && duration("none").is_err());
        assert_eq!(duration_or_zero("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn every_scope_is_named_by_help_and_error() {
        let mut command = <super::super::Cli as clap::CommandFactory>::command();
        let create = command.find_subcommand_mut("token").and_then(|token| token.find_subcommand_mut("create"));
        let help = create.expect("`token create`").render_long_help().to_string();
        let line = help.lines().find(|line| line.trim_start().starts_with("Scopes: ")).expect("the line about scopes");
        let error = scope("nonsense").unwrap_err();
        for scope in exec_server_protocol::method::Scope::ALL {
            assert!(line.contains(scope.as_str()) && error.contains(scope.as_str()), "{scope:?}: {line} {error}");
        }
    }

    #[test]
    fn sizes_have_binary_units_and_a_range() {
        for (text, bytes) in
            [("0", 0), ("1500", 1500), ("7B", 7), ("512KiB", 512 << 10), ("16MiB", 16 << 20), ("1TiB", 1 << 40)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "MiB", "16MB", "16M", "-1", "1.5GiB", "99999999999TiB", "16 MiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        let small = size_within(3 << 20, 1 << 30);
        assert_eq!(small("3MiB"), Ok(3 << 20));
        assert_eq!(small("1MiB"), Err("must be from 3MiB to 1GiB".to_owned()));
        let short = time_within(Duration::from_millis(100), Duration::from_secs(60));
        assert_eq!(short("0s"), Err("must be from 100ms to 1m".to_owned()));
        assert_eq!(count_within(1, 9)("10"), Err("must be from 1 to 9".to_owned()));
        assert!(count_within(1, 9)("x").is_err());
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, name) in [("TERM", "TERM"), ("SIGINT", "SIGINT"), ("usr1", "usr1"), ("9", "SIGKILL")] {
            assert_eq!(signal(text).as_deref(), Ok(name));
        }
        for bad in ["", "0", "65", "NOPE", "SIG"] {
            assert!(signal(bad).is_err(), "{bad}");
        }
    }
}
