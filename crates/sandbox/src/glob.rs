//! Patterns of paths: what they match, and which paths of this host they match now.
//!
//! `*`, `?` and `[..]` stay within a name, `**` crosses names, `{a,b}` is either, a backslash takes the next sign as it is.
//! A search is bounded in depth and in the number of names it looks at; links are names like any other and are not followed.

use std::{
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Alternatives that the braces of one pattern may stand for.
const ALTERNATIVES_MAX: usize = 64;

/// Names that one search looks at: about a second of work.
const NAMES_MAX: usize = 100_000;

/// How deep a search goes where nobody says.
pub(crate) const DEPTH: usize = 8;

/// A search that was given up: the pattern means more than can be enforced.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMuch;

/// One alternative of a pattern, cut at its first part with a special sign.
struct Split {
    base: PathBuf,
    rest: Vec<Vec<u8>>,
}

/// Every path below the fixed part that an absolute pattern matches; what lies in a match is not looked at.
pub(crate) fn find(pattern: &str, depth: Option<usize>) -> Result<Vec<PathBuf>, TooMuch> {
    let mut found = Vec::new();
    let mut seen = 0;
    for alternative in alternatives(pattern)? {
        let Split { base, rest } = split(&alternative);
        if rest.is_empty() {
            found.push(base);
            continue;
        }
        let fixed = if rest.iter().any(|part| part == b"**") { usize::MAX } else { rest.len() };
        search(&base, &rest, depth.unwrap_or(DEPTH).min(fixed), &mut seen, &mut found)?;
    }
    Ok(found)
}

/// Whether a path below the fixed part matches, part by part.
fn matches(rest: &[Vec<u8>], names: &[&[u8]]) -> bool {
    match rest.split_first() {
        None => names.is_empty(),
        Some((part, after)) if part == b"**" => (0..=names.len()).any(|skip| matches(after, &names[skip..])),
        Some((part, after)) => {
            names.split_first().is_some_and(|(name, below)| name_matches(part, name) && matches(after, below))
        }
    }
}

fn search(
    base: &Path,
    rest: &[Vec<u8>],
    depth: usize,
    seen: &mut usize,
    found: &mut Vec<PathBuf>,
) -> Result<(), TooMuch> {
    let mut open = vec![(base.to_owned(), Vec::<Vec<u8>>::new())];
    while let Some((dir, names)) = open.pop() {
        // What cannot be listed here cannot be listed by the one to be confined either.
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            *seen += 1;
            if *seen > NAMES_MAX {
                return Err(TooMuch);
            }
            let mut names = names.clone();
            names.push(entry.file_name().as_bytes().to_vec());
            let path = entry.path();
            if matches(rest, &names.iter().map(Vec::as_slice).collect::<Vec<_>>()) {
                found.push(path);
            } else if names.len() < depth && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push((path, names));
            }
        }
    }
    Ok(())
}

fn split(pattern: &str) -> Split {
    let mut base = PathBuf::from("/");
    let mut rest = Vec::new();
    for part in pattern.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if rest.is_empty() && !part.contains(['*', '?', '[', '\\']) {
            base.push(part);
        } else {
            rest.push(part.as_bytes().to_vec());
        }
    }
    Split { base, rest }
}

/// The pattern without braces, in all its alternatives. An unclosed brace is a sign like any other.
fn alternatives(pattern: &str) -> Result<Vec<String>, TooMuch> {
    let mut done = Vec::new();
    let mut open = vec![pattern.to_owned()];
    while let Some(next) = open.pop() {
        if open.len() + done.len() >= ALTERNATIVES_MAX {
            return Err(TooMuch);
        }
        let Some((start, end)) = innermost_braces(&next) else {
            done.push(next);
            continue;
        };
        let inner = &next[start + 1..end];
        open.extend(inner.split(',').map(|choice| format!("{}{choice}{}", &next[..start], &next[end + 1..])));
    }
    done.sort();
    done.dedup();
    Ok(done)
}

/// The first closing brace and the last opening one before it; what a backslash takes as it is counts for neither.
fn innermost_braces(pattern: &str) -> Option<(usize, usize)> {
    let (mut start, mut is_taken) = (None, false);
    for (at, sign) in pattern.char_indices() {
        match sign {
            _ if is_taken => is_taken = false,
            '\\' => is_taken = true,
            '{' => start = Some(at),
            '}' => {
                if let Some(start) = start {
                    return Some((start, at));
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether a name matches one part of a pattern.
fn name_matches(part: &[u8], name: &[u8]) -> bool {
    // The last star, and how much of the name it has taken: enough, since a later star makes earlier ones forget.
    let (mut at, mut taken) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if let Some((width, is_match)) = part.get(at).map(|_| sign(&part[at..], name.get(taken).copied())) {
            if part[at] == b'*' {
                star = Some((at, taken));
                at += 1;
                continue;
            }
            if taken < name.len() && is_match {
                at += width;
                taken += 1;
                continue;
            }
        } else if taken == name.len() {
            return true;
        }
        match star {
            Some((back, from)) if from < name.len() => {
                star = Some((back, from + 1));
                (at, taken) = (back + 1, from + 1);
            }
            _ => return false,
        }
    }
}

/// How long the first sign of a pattern is, and whether it stands for this byte.
fn sign(part: &[u8], byte: Option<u8>) -> (usize, bool) {
    match part {
        [b'?', ..] => (1, byte.is_some()),
        [b'\\', literal, ..] => (2, byte == Some(*literal)),
        [b'[', set @ ..] => match set.iter().skip(1).position(|&sign| sign == b']') {
            Some(end) => (end + 3, byte.is_some_and(|byte| in_set(&set[..=end], byte))),
            None => (1, byte == Some(b'[')),
        },
        [literal, ..] => (1, byte == Some(*literal)),
        [] => (0, false),
    }
}

fn in_set(set: &[u8], byte: u8) -> bool {
    let (is_negated, mut set) = match set {
        [b'!' | b'^', rest @ ..] if !rest.is_empty() => (true, rest),
        _ => (false, set),
    };
    let mut is_in = false;
    while let Some((&first, rest)) = set.split_first() {
        if let [b'-', last, after @ ..] = rest {
            is_in |= (first..=*last).contains(&byte);
            set = after;
        } else {
            is_in |= first == byte;
            set = rest;
        }
    }
    is_in != is_negated
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn signs_stand_for_what_they_should() {
        for (part, yes, no) in [
            ("*.env", &["a.env", ".env"][..], &["a.envs", "env"][..]),
            ("a?c", &["abc"], &["ac", "abbc"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x"]),
            ("[!a]x", &["bx"], &["ax"]),
            ("a*b*c", &["abc", "aXbYc", "abbcc"], &["acb", "ab"]),
            ("\\*", &["*"], &["a"]),
            ("[", &["["], &["a"]),
            ("\\{a,b\\}", &["{a,b}"], &["a"]),
        ] {
            for name in yes {
                assert!(name_matches(part.as_bytes(), name.as_bytes()), "{part} {name}");
            }
            for name in no {
                assert!(!name_matches(part.as_bytes(), name.as_bytes()), "{part} {name}");
            }
        }
    }

    #[test]
    fn braces_are_either_and_escaped_ones_are_themselves() {
        let mut both = alternatives("/x/{a,b{c,d}}").expect("few");
        both.sort();
        assert_eq!(both, ["/x/a", "/x/bc", "/x/bd"]);
        assert_eq!(alternatives("/x/\\{a,b\\}").expect("one"), ["/x/\\{a,b\\}"]);
        assert_eq!(alternatives(&"{a,b}".repeat(10)), Err(TooMuch));
    }

    #[test]
    fn a_search_finds_names_at_every_depth_up_to_its_own() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let base = dir.path();
        fs::create_dir_all(base.join("a/b/c")).expect("directories");
        for file in ["x.env", "a/y.env", "a/b/z.env", "a/b/c/deep.env", "a/note"] {
            fs::write(base.join(file), "").expect("file");
        }
        let find = |pattern: &str, depth| {
            let mut found = find(&format!("{}/{pattern}", base.display()), depth).expect("found");
            found.sort();
            found.iter().map(|path| path.strip_prefix(base).expect("below").display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(find("**/*.env", Some(3)), ["a/b/z.env", "a/y.env", "x.env"]);
        assert_eq!(find("**/*.env", None), ["a/b/c/deep.env", "a/b/z.env", "a/y.env", "x.env"]);
        assert_eq!(find("*.env", None), ["x.env"]);
        assert_eq!(find("a/{b,note}", None), ["a/b", "a/note"]);
        assert_eq!(find("a/**", None), ["a/b", "a/note", "a/y.env"]);
    }

    proptest! {
        #[test]
        fn a_name_matches_itself_and_every_pattern_ends(name in "[a-z.]{0,12}", part in "[a-c*?\\[\\]!-]{0,12}") {
            prop_assert!(name_matches(name.as_bytes(), name.as_bytes()));
            name_matches(part.as_bytes(), name.as_bytes());
        }
    }
}
