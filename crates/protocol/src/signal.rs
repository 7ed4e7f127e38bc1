//! Signal names and numbers. The numbers are those of Linux on x86-64 and arm64, which agree.

use std::borrow::Cow;

/// POSIX names without `SIG` of the signals from 1 on, in order.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// Other names of some signals.
const ALIASES: [(&str, i32); 3] = [("IOT", 6), ("CLD", 17), ("POLL", 29)];

/// The first realtime signal that a program may use. glibc reserves 32 and 33.
const RTMIN: i32 = 34;
/// The last realtime signal.
const RTMAX: i32 = 64;

/// Returns the number of a signal name: `interrupt`, a POSIX name with or without `SIG`, `RTMIN+n` or `RTMAX-n`, in upper or lower case.
#[must_use]
pub fn number(name: &str) -> Option<i32> {
    // All names are much shorter. The check avoids a copy of a very long input.
    if name.len() > 16 {
        return None;
    }
    let upper = name.to_ascii_uppercase();
    if upper == "INTERRUPT" {
        return Some(2);
    }
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = (1..).zip(NAMES).find(|(_, known)| *known == short).map(|(number, _)| number);
    let alias = || ALIASES.iter().find(|(known, _)| *known == short).map(|(_, number)| *number);
    named.or_else(alias).or_else(|| realtime(short))
}

/// Returns the POSIX name of a signal number, for example `SIGKILL`. A number without a name is returned as digits.
#[must_use]
pub fn name(number: u8) -> Cow<'static, str> {
    if let Some(short) = usize::from(number).checked_sub(1).and_then(|at| NAMES.get(at)) {
        return Cow::Owned(format!("SIG{short}"));
    }
    match i32::from(number) {
        RTMIN => Cow::Borrowed("SIGRTMIN"),
        RTMAX => Cow::Borrowed("SIGRTMAX"),
        n if n > RTMIN && n < RTMAX => Cow::Owned(format!("SIGRTMIN+{}", n - RTMIN)),
        n => Cow::Owned(n.to_string()),
    }
}

fn realtime(short: &str) -> Option<i32> {
    let number = if let Some(rest) = short.strip_prefix("RTMIN") {
        RTMIN + distance(rest, '+')?
    } else {
        RTMAX - distance(short.strip_prefix("RTMAX")?, '-')?
    };
    (RTMIN..=RTMAX).contains(&number).then_some(number)
}

fn distance(rest: &str, sign: char) -> Option<i32> {
    if rest.is_empty() {
        return Some(0);
    }
    let digits = rest.strip_prefix(sign)?;
    let plain = !digits.is_empty() && digits.len() <= 2 && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::{name, number};

    #[test]
    fn signal_names_parse_in_every_form() {
        for (text, expected) in [
            ("interrupt", Some(2)),
            ("SIGTERM", Some(15)),
            ("TERM", Some(15)),
            ("sigterm", Some(15)),
            ("Kill", Some(9)),
            ("CLD", Some(17)),
            ("SIGRTMIN", Some(34)),
            ("RTMIN+3", Some(37)),
            ("SIGRTMAX-1", Some(63)),
            ("RTMAX", Some(64)),
            ("RTMIN+31", None),
            ("RTMIN+-1", None),
            ("RTMIN3", None),
            ("9", None),
            ("", None),
            ("SIG", None),
            ("SIGSIGTERM", None),
            ("TERM ", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
        assert_eq!(number(&"K".repeat(10_000)), None);
    }

    #[test]
    fn every_signal_name_parses_back_to_its_number() {
        for n in (1..=31).chain(34..=64) {
            assert_eq!(number(&name(n)), Some(i32::from(n)));
        }
        assert_eq!(name(9), "SIGKILL");
        assert_eq!(name(33), "33");
    }
}
