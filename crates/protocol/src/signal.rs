//! Signal names and numbers. The numbers are those of Linux on x86-64 and arm64, which agree.

use std::borrow::Cow;

/// POSIX names without `SIG`, and their numbers. If a number has several names, `name` returns the first one.
const SIGNALS: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// The first realtime signal that a program may use. libc reserves 32 and 33.
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
    if let Some((_, number)) = SIGNALS.iter().find(|(known, _)| *known == short) {
        return Some(*number);
    }
    realtime(short)
}

/// Returns the POSIX name of a signal number, for example `SIGKILL`. A number without a name is returned as digits.
#[must_use]
pub fn name(number: u8) -> Cow<'static, str> {
    let number = i32::from(number);
    if let Some((short, _)) = SIGNALS.iter().find(|(_, known)| *known == number) {
        return Cow::Owned(format!("SIG{short}"));
    }
    match number {
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
    fn names_are_read_in_every_form() {
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
    fn every_written_name_is_read_back() {
        for n in (1..=31).chain(34..=64) {
            assert_eq!(number(&name(n)), Some(i32::from(n)));
        }
        assert_eq!(name(9), "SIGKILL");
        assert_eq!(name(33), "33");
    }
}
