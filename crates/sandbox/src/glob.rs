//! Which paths of this host a pattern matches now.
//!
//! What a pattern means is `globset`'s word, with the settings that `fs/glob` has: `*`, `?` and `[..]` stay within a name, `**` crosses
//! names, `{a,b}` is either, a backslash takes the next sign as it is. Two things are stricter here, since a pattern that denies must not
//! mean less than it says: an empty alternative of a brace counts, and what cannot be read is an error. A search is bounded in
//! the number of names it looks at, and in depth where somebody says so; links are names like any other and are not followed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::paths;

/// Names that all searches of a policy may look at: about a second of work.
pub(crate) const NAMES_MAX: usize = 100_000;

/// Bytes of one pattern: beyond it compiling takes noticeable time.
const BYTES_MAX: usize = 8 << 10;

/// Levels of braces in a pattern.
const NESTING_MAX: usize = 32;

/// Why nothing is found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The search was given up: the pattern means more than can be enforced.
    TooMuch,
    /// A directory on its way is closed to us, but not to whoever it belongs to, which we are.
    Closed(PathBuf),
    /// It is no pattern, for this reason.
    Malformed(String),
}

/// Every path below the fixed part that an absolute pattern matches; what lies in a match is not looked at. Of `budget` it takes a name
/// for each that it looks at.
pub(crate) fn find(pattern: &str, depth: Option<usize>, budget: &mut usize) -> Result<Vec<PathBuf>, Trouble> {
    // As paths are written: no part is empty or a dot.
    let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let matcher = matcher(&format!("/{}", parts.join("/")))?;
    let is_fixed = |part: &&&str| !part.contains(['*', '?', '[', ']', '{', '}', '\\']);
    let fixed = parts.iter().take_while(is_fixed).count();
    let base: PathBuf = Path::new("/").join(parts[..fixed].join("/"));
    if fixed == parts.len() {
        return Ok(vec![base]);
    }
    // Alternatives may hold slashes, and then parts are not what they seem.
    let is_open = pattern.contains(['{', '}']) || pattern.contains("**");
    let most = if is_open { usize::MAX } else { parts.len() - fixed };
    search(&base, &matcher, depth.unwrap_or(usize::MAX).min(most), budget)
}

/// As a set of one: a set reports a pattern that its engine cannot compile, a single matcher panics.
fn matcher(pattern: &str) -> Result<GlobSet, Trouble> {
    if pattern.len() > BYTES_MAX {
        return Err(Trouble::Malformed(format!("it has {} bytes; the limit is {BYTES_MAX}", pattern.len())));
    }
    if nesting(pattern) > NESTING_MAX {
        return Err(Trouble::Malformed(format!("braces are nested more than {NESTING_MAX} deep")));
    }
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).empty_alternates(true).build();
    let set = built.and_then(|glob| GlobSetBuilder::new().add(glob).build());
    set.map_err(|error| {
        // A parser draws the pattern, and says on the last line what is wrong.
        let reason = error.kind().to_string();
        Trouble::Malformed(reason.lines().next_back().unwrap_or_default().to_owned())
    })
}

/// How deep braces are in braces. Reading a pattern takes a call for each level.
fn nesting(pattern: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = pattern.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn search(base: &Path, matcher: &GlobSet, depth: usize, budget: &mut usize) -> Result<Vec<PathBuf>, Trouble> {
    let mut found = Vec::new();
    let mut open = vec![(base.to_owned(), 0)];
    while let Some((dir, above)) = open.pop() {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && paths::is_ours(&dir) => {
                return Err(Trouble::Closed(dir));
            }
            // What cannot be listed here cannot be listed by the one to be confined either.
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            *budget = budget.checked_sub(1).ok_or(Trouble::TooMuch)?;
            let path = entry.path();
            if matcher.is_match(&path) {
                found.push(path);
            } else if above + 1 < depth && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push((path, above + 1));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(part: &str, name: &str) -> bool {
        matcher(&format!("/d/{part}")).expect("a pattern").is_match(Path::new("/d").join(name))
    }

    #[test]
    fn signs_stand_for_what_they_should() {
        for (part, yes, no) in [
            ("*.env", &["a.env", ".env"][..], &["a.envs", "env", "a/b.env"][..]),
            ("a?c", &["abc"], &["ac", "abbc", "a/c"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x"]),
            ("[!a]x", &["bx"], &["ax"]),
            ("a*b*c", &["abc", "aXbYc", "abbcc"], &["acb", "ab"]),
            ("\\*", &["*"], &["a"]),
            ("\\{a,b\\}", &["{a,b}"], &["a"]),
            ("{a,b{c,d}}", &["a", "bc", "bd"], &["b", "c"]),
            ("x{,.env}", &["x", "x.env"], &["xenv"]),
            ("**/x", &["x", "a/b/x"], &["ax"]),
        ] {
            for name in yes {
                assert!(matches(part, name), "{part} {name}");
            }
            for name in no {
                assert!(!matches(part, name), "{part} {name}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_denies_nothing_in_silence() {
        for pattern in ["/x/[", "/x/{a", "/x/a}"] {
            assert!(matches!(find(pattern, None, &mut 10), Err(Trouble::Malformed(_))), "{pattern}");
        }
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
            let mut found = find(&format!("{}/{pattern}", base.display()), depth, &mut 20).expect("found");
            found.sort();
            found.iter().map(|path| path.strip_prefix(base).expect("below").display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(find("**/*.env", Some(3)), ["a/b/z.env", "a/y.env", "x.env"]);
        assert_eq!(find("**/*.env", None), ["a/b/c/deep.env", "a/b/z.env", "a/y.env", "x.env"]);
        assert_eq!(find("*.env", None), ["x.env"]);
        assert_eq!(find("a/{b,note}", None), ["a/b", "a/note"]);
        assert_eq!(find("a/**", None), ["a/b", "a/note", "a/y.env"]);
        let pattern = format!("{}/**/*.env", base.display());
        assert_eq!(super::find(&pattern, None, &mut 7), Err(Trouble::TooMuch), "there are eight names");
    }

    proptest! {
        #[test]
        fn a_name_matches_itself(name in "[a-z][a-z.]{0,12}") {
            prop_assert!(matches(&name, &name));
        }
    }
}
