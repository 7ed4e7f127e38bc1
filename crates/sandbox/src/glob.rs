//! Finds the paths on this host that a glob pattern matches.
//!
//! Patterns have the syntax of `globset`, with the same settings as `fs/glob`: `*`, `?` and `[..]` match within a name,
//! `**` crosses directories, `{a,b}` is an alternative, and a backslash escapes the next character. One setting
//! differs: empty alternatives in braces are allowed, because a pattern that denies must not match less than it says.
//!
//! A search is bounded in the number of names, and optionally in depth. Symbolic links are matched like other names and
//! not followed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::paths;

/// The maximum number of names that all searches of a policy may look at: about a second of work.
pub(crate) const NAMES_MAX: usize = 100_000;

/// The maximum length of a pattern. Compiling a longer one takes noticeable time.
const BYTES_MAX: usize = 8 << 10;

/// The maximum nesting of braces in a pattern.
const NESTING_MAX: usize = 32;

/// Why a search failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GlobError {
    /// The search exceeded its budget: the pattern covers more than can be enforced.
    TooMuch,
    /// A directory cannot be listed, but we own it, so the sandboxed process could change its mode.
    Closed(PathBuf),
    /// The pattern is invalid. The text is the reason.
    Malformed(String),
}

/// All paths that an absolute pattern matches. Does not search below a match, because a rule covers everything below
/// its path. Each name that the search looks at takes one from `budget`.
pub(crate) fn find(pattern: &str, depth: Option<usize>, budget: &mut usize) -> Result<Vec<PathBuf>, GlobError> {
    // Normalize the pattern as paths are: without empty components and dots.
    let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let matcher = matcher(&format!("/{}", parts.join("/")))?;
    let is_literal = |part: &&&str| !part.contains(['*', '?', '[', ']', '{', '}', '\\']);
    let literals = parts.iter().take_while(is_literal).count();
    let base: PathBuf = Path::new("/").join(parts[..literals].join("/"));
    if literals == parts.len() {
        return Ok(vec![base]);
    }
    // Braces may contain slashes, and `**` crosses directories. Then the number of components does not bound the depth.
    let is_unbounded = pattern.contains(['{', '}']) || pattern.contains("**");
    let most = if is_unbounded { usize::MAX } else { parts.len() - literals };
    search(&base, &matcher, depth.unwrap_or(usize::MAX).min(most), budget)
}

/// Compiles a pattern as a set of one: a set returns an error for a pattern that the regex engine cannot compile, where
/// a single matcher would panic.
fn matcher(pattern: &str) -> Result<GlobSet, GlobError> {
    if pattern.len() > BYTES_MAX {
        return Err(GlobError::Malformed(format!("it has {} bytes; the limit is {BYTES_MAX}", pattern.len())));
    }
    if nesting(pattern) > NESTING_MAX {
        return Err(GlobError::Malformed(format!("braces are nested more than {NESTING_MAX} deep")));
    }
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).empty_alternates(true).build();
    let set = built.and_then(|glob| GlobSetBuilder::new().add(glob).build());
    set.map_err(|error| {
        // Some error texts have several lines that show the pattern. The last line has the reason.
        let reason = error.kind().to_string();
        GlobError::Malformed(reason.lines().next_back().unwrap_or_default().to_owned())
    })
}

/// How deep braces are nested. The parser recurses once per level.
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

fn search(base: &Path, matcher: &GlobSet, depth: usize, budget: &mut usize) -> Result<Vec<PathBuf>, GlobError> {
    let mut found = Vec::new();
    let mut open = vec![(base.to_owned(), 0)];
    while let Some((dir, above)) = open.pop() {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && paths::is_ours(&dir) => {
                return Err(GlobError::Closed(dir));
            }
            // If we cannot list the directory, the sandboxed process cannot either.
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            *budget = budget.checked_sub(1).ok_or(GlobError::TooMuch)?;
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
    fn each_wildcard_matches_the_documented_names() {
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
    fn a_malformed_pattern_is_an_error() {
        for pattern in ["/x/[", "/x/{a", "/x/a}"] {
            assert!(matches!(find(pattern, None, &mut 10), Err(GlobError::Malformed(_))), "{pattern}");
        }
    }

    #[test]
    fn a_search_finds_matches_up_to_its_depth_and_within_its_budget() {
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
        assert_eq!(super::find(&pattern, None, &mut 7), Err(GlobError::TooMuch), "there are eight names");
    }

    proptest! {
        #[test]
        fn a_name_matches_itself(name in "[a-z][a-z.]{0,12}") {
            prop_assert!(matches(&name, &name));
        }
    }
}
