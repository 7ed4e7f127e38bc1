//! Counts the idioms of our early prose in comments and documents. One hit proves nothing; a file with many needs rewriting.

/// Hits per hundred lines of prose above which a file is refused.
const PERCENT_MAX: usize = 5;

/// A file with fewer hits is never refused, so that a short file may have one.
const HITS_MIN: usize = 3;

/// Files that are above the limit, each with the reason. Entries may only be removed.
const ALLOWED: &[(&str, &str)] = &[("crates/cli/tests/COVERAGE.md", "quotes the claims of tests")];

const PHRASES: &[&str] = &[
    "nobody",
    "somebody",
    "anybody",
    "whoever",
    "whatever",
    "any more",
    "for ever",
    "meanwhile",
    "likewise",
    "so many",
    "of its own",
    "of their own",
];

/// Subjects that hide who acts, at the beginning of a sentence.
const OPENERS: &[&str] = &["what", "who"];

const PASSIVE_VERBS: &[&str] = &["is", "are", "was", "were", "be"];

const PASSIVE_ENDS: &[&str] = &["told", "said", "heard", "asked"];

/// Words after ", for" that make it a reason.
const CAUSAL_WORDS: &[&str] = &["it", "they", "that", "this", "the", "there", "one"];

/// Adds a line for a file with too many idioms, and for an entry of the allow-list that is not needed.
pub(super) fn check(name: &str, text: &str, broken: &mut Vec<String>) {
    let Some(prose) = prose(name, text) else { return };
    let hits = prose.iter().filter(|line| has_idiom(line)).count();
    let is_above = hits >= HITS_MIN && hits * 100 > prose.len() * PERCENT_MAX;
    let is_allowed = ALLOWED.iter().any(|(allowed, _)| *allowed == name);
    if is_above && !is_allowed {
        broken.push(format!("{name}: {hits} of {} lines of prose have an idiom of our early prose", prose.len()));
    }
    if is_allowed && !is_above {
        broken.push(format!("{name}: needs no exception among the idioms"));
    }
}

/// The comment lines of a source file, or the lines of a document.
fn prose<'a>(name: &str, text: &'a str) -> Option<Vec<&'a str>> {
    if name.ends_with(".rs") {
        let comments = text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
        return Some(comments.map(|comment| comment.trim_start_matches(['/', '!']).trim()).collect());
    }
    name.ends_with(".md").then(|| text.lines().filter(|line| !line.trim().is_empty()).collect())
}

fn has_idiom(line: &str) -> bool {
    let line = line.to_lowercase();
    let words: Vec<&str> =
        line.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty()).collect();
    let has_phrase = PHRASES.iter().any(|phrase| {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        words.windows(phrase.len()).any(|window| window == phrase)
    });
    let has_passive = words.windows(2).any(|pair| PASSIVE_VERBS.contains(&pair[0]) && PASSIVE_ENDS.contains(&pair[1]));
    let has_opener = line.split(['.', ':', ';']).any(|sentence| {
        let first = sentence.trim_start().split(' ').next().unwrap_or_default();
        OPENERS.contains(&first) && !line.contains('?')
    });
    let is_causal = line.match_indices(", for ").any(|(at, found)| {
        let next = line[at + found.len()..].split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        CAUSAL_WORDS.contains(&next)
    });
    has_phrase || has_passive || has_opener || is_causal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idioms_are_found_as_words() {
        for line in [
            "Nobody waits for it.",
            "the client is told so",
            "Closed. What is left stays",
            "kept, for it may come back",
            "Whoever comes again",
            "a directory of its own",
        ] {
            assert!(has_idiom(line), "{line}");
        }
        for line in
            ["The server reports the gap.", "whatsoever", "waits for the holder", "What happens on EOF?", "anybodys"]
        {
            assert!(!has_idiom(line), "{line}");
        }
    }

    #[test]
    fn a_file_with_many_is_named_and_an_exception_must_be_needed() {
        let mut broken = Vec::new();
        check("crates/x/src/a.rs", "//! Nobody.\n//! Somebody.\n// Whoever.\nfn f() {}\n", &mut broken);
        check("docs/a.md", "Plain.\n\nNobody.\n", &mut broken);
        check("crates/cli/tests/COVERAGE.md", "Plain.\n", &mut broken);
        assert_eq!(
            broken,
            [
                "crates/x/src/a.rs: 3 of 3 lines of prose have an idiom of our early prose",
                "crates/cli/tests/COVERAGE.md: needs no exception among the idioms"
            ]
        );
    }
}
