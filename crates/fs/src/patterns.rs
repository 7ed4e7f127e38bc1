//! Glob patterns for paths below a root. Bytes that are not UTF-8 are matched as they are.
//!
//! A sandbox parses the patterns of its policy with the same engine and settings, with one exception: it allows empty
//! alternatives, as in `{a,}`, because a pattern that denies access must not match less than it says.

use std::{ffi::OsStr, path::Path};

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};

/// Maximum bytes of one glob or regular expression. Compiling longer ones takes noticeable time.
pub const PATTERN_BYTES: usize = 8 << 10;

/// Maximum nesting of braces in a pattern. The parser is recursive.
const NESTING: usize = 32;

/// Maximum number of patterns in one list.
pub const PATTERNS: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("invalid pattern `{pattern}`: {reason}")]
    Malformed {
        /// The beginning of the pattern.
        pattern: String,
        reason: String,
    },
    #[error("the pattern has {bytes} bytes; the limit is {PATTERN_BYTES}")]
    TooLong { bytes: usize },
    #[error("there are {count} patterns; the limit is {PATTERNS}")]
    TooMany { count: usize },
}

impl PatternError {
    pub(crate) fn malformed(pattern: &str, reason: impl ToString) -> Self {
        let pattern = pattern.chars().take(64).collect();
        // A multi-line message repeats the pattern, marks the position, and has the reason in its last line. The pattern is already in the
        // error.
        let reason = reason.to_string();
        let last = reason.lines().next_back().unwrap_or_default();
        Self::Malformed { pattern, reason: last.strip_prefix("error: ").unwrap_or(last).to_owned() }
    }
}

/// A list of patterns. It matches a path if one of the patterns does.
#[derive(Debug, Clone, Default)]
pub struct Patterns {
    set: GlobSet,
}

impl Patterns {
    /// Patterns as in ignore files: a pattern without a slash matches a name at any depth, others match the path from the root. A
    /// slash at the end is ignored.
    pub fn anywhere(patterns: &[String]) -> Result<Self, PatternError> {
        if patterns.len() > PATTERNS {
            return Err(PatternError::TooMany { count: patterns.len() });
        }
        let mut builder = GlobSetBuilder::new();
        for pattern in patterns {
            let trimmed = pattern.trim_end_matches('/');
            match trimmed.strip_prefix('/') {
                Some(anchored) => builder.add(glob(anchored)?),
                None if trimmed.contains('/') => builder.add(glob(trimmed)?),
                None => builder.add(glob(&format!("**/{trimmed}"))?),
            };
        }
        let set = builder.build().map_err(|error| PatternError::malformed("", error.kind()))?;
        Ok(Self { set })
    }

    /// Whether one of the patterns matches a path relative to the root.
    #[must_use]
    pub fn is_match(&self, relative: &Path) -> bool {
        self.set.is_match(relative)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }
}

/// One pattern for whole paths below a root. It knows in which directories it can match.
#[derive(Debug, Clone)]
pub struct PathPattern {
    set: GlobSet,
    /// Leading directories without a wildcard. Empty if the pattern contains braces.
    prefix: Vec<String>,
    /// The number of components of a match. `None` if the pattern contains `**` or braces.
    depth: Option<usize>,
    /// A component of the pattern begins with a dot.
    names_hidden: bool,
}

impl PathPattern {
    /// Parses a pattern such as `src/**/*.rs`.
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
        let mut builder = GlobSetBuilder::new();
        builder.add(glob(pattern)?);
        let set = builder.build().map_err(|error| PatternError::malformed(pattern, error.kind()))?;
        let components: Vec<&str> = pattern.split('/').collect();
        // Alternatives in braces may contain slashes, so splitting at slashes would be wrong.
        let is_plain = !pattern.contains('{');
        let prefix = components[..components.len() - 1]
            .iter()
            .take_while(|component| is_plain && !component.contains(['*', '?', '[', '\\']))
            .map(ToString::to_string)
            .collect();
        let depth = (is_plain && !pattern.contains("**")).then_some(components.len());
        let names_hidden = components.iter().any(|component| component.starts_with('.'));
        Ok(Self { set, prefix, depth, names_hidden })
    }

    #[must_use]
    pub fn is_match(&self, relative: &Path) -> bool {
        self.set.is_match(relative)
    }

    /// Whether something below this directory can match.
    #[must_use]
    pub fn may_match_below(&self, relative: &Path) -> bool {
        self.depth.is_none_or(|most| relative.iter().count() < most)
            && relative.iter().zip(&self.prefix).all(|(name, expected)| name == OsStr::new(expected))
    }

    /// Whether the pattern itself names hidden files.
    #[must_use]
    pub fn names_hidden(&self) -> bool {
        self.names_hidden
    }
}

fn glob(pattern: &str) -> Result<Glob, PatternError> {
    if pattern.len() > PATTERN_BYTES {
        return Err(PatternError::TooLong { bytes: pattern.len() });
    }
    if nesting(pattern) > NESTING {
        return Err(PatternError::malformed(pattern, format_args!("braces are nested more than {NESTING} deep")));
    }
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    built.map_err(|error| PatternError::malformed(pattern, error.kind()))
}

/// Nesting depth of the braces.
fn nesting(pattern: &str) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0;
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

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

    use super::{PATTERN_BYTES, PATTERNS, PathPattern, PatternError, Patterns};

    #[test]
    fn a_pattern_without_a_slash_matches_names_at_any_depth() {
        let patterns = Patterns::anywhere(&["*.rs".into(), "/top".into(), "a/b".into()]).unwrap();
        for (path, expected) in
            [("x.rs", true), ("d/e/x.rs", true), ("top", true), ("d/top", false), ("a/b", true), ("x/a/b", false)]
        {
            assert_eq!(patterns.is_match(Path::new(path)), expected, "{path}");
        }
        assert!(!patterns.is_match(Path::new("x.rs/y")));
    }

    #[test]
    fn names_that_are_not_utf8_are_matched() {
        let pattern = PathPattern::new("*.txt").unwrap();
        assert!(pattern.is_match(Path::new(OsStr::from_bytes(b"\xff\n.txt"))));
    }

    #[test]
    fn a_path_pattern_knows_where_it_can_match() {
        let pattern = PathPattern::new("src/*/x.rs").unwrap();
        let below = |path: &str| pattern.may_match_below(Path::new(path));
        assert_eq!((below(""), below("src"), below("src/a"), below("src/a/b")), (true, true, true, false));
        assert!(!below("docs"));
        let deep = PathPattern::new("**/*.rs").unwrap();
        assert!(deep.may_match_below(Path::new("a/b/c/d")));
        assert!(deep.is_match(Path::new("x.rs")) && deep.is_match(Path::new("a/b/x.rs")));
        let braces = PathPattern::new("{a/b,c}/d").unwrap();
        assert!(braces.may_match_below(Path::new("a")) && braces.is_match(Path::new("a/b/d")));
        assert!(PathPattern::new("a/.b/*").unwrap().names_hidden());
        assert!(!PathPattern::new("a/b.c").unwrap().names_hidden());
    }

    #[test]
    fn an_invalid_pattern_is_an_error() {
        assert!(matches!(PathPattern::new("a["), Err(PatternError::Malformed { .. })));
        let long = "a".repeat(PATTERN_BYTES + 1);
        assert_eq!(PathPattern::new(&long).unwrap_err(), PatternError::TooLong { bytes: long.len() });
        let many = vec!["a".to_owned(); PATTERNS + 1];
        assert_eq!(Patterns::anywhere(&many).unwrap_err(), PatternError::TooMany { count: PATTERNS + 1 });
    }
}
