//! Decides whether an unknown key is a typo of a known key rather than a key of another program.

/// Whether `key` is a typo of `known`: the same words joined in another way, or an edit distance of at most a quarter of the length of
/// `known`, and at most 2.
pub(super) fn is_nearly(key: &str, known: &str) -> bool {
    // A much longer key cannot be a typo. Returning early also avoids the cost of the comparison.
    if key.len() > known.len() + 8 {
        return false;
    }
    let (key, known) = (joined(key), joined(known));
    let most = (known.len() / 4).min(2);
    key == known || distance(key.as_bytes(), known.as_bytes()) <= most
}

/// The key in lower case, without `_` and `-`.
fn joined(key: &str) -> String {
    key.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect()
}

/// The Levenshtein distance: how many bytes must be inserted, deleted or replaced.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
