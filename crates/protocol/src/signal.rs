//! Names of signals. The numbers are Linux's on x86-64 and arm64, which agree. It must not know who is signalled.

use std::borrow::Cow;

/// POSIX name without `SIG`, and number; where one number has several names the first one is written.
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

/// The first realtime signal a program may use; libc keeps 32 and 33 for itself.
const RTMIN: i32 = 34;
/// The last realtime signal.
const RTMAX: i32 = 64;

/// The number for `interrupt` or a POSIX name, with or without `SIG`, in any case; `RTMIN+n` and `RTMAX-n` too.
#[must_use]
pub fn number(name: &str) -> Option<i32> {
    // The longest name is far shorter; this keeps a huge input from being copied.
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

/// The POSIX name of a number, for example `SIGKILL`; numbers without a name are written as digits.
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
