//! Whether a key is nearly another: a slip of the pen rather than a key of somebody else.
//! Must not know any key.

/// Whether a key is a slip for a known one: another way of joining its words, or up to two letters in eight.
pub(super) fn is_nearly(key: &str, known: &str) -> bool {
    // What is longer is none, and would cost.
    if key.len() > known.len() + 8 {
        return false;
    }
    let (key, known) = (joined(key), joined(known));
    let most = (known.len() / 4).min(2);
    key == known || distance(key.as_bytes(), known.as_bytes()) <= most
}

/// Without case and what joins words.
fn joined(key: &str) -> String {
    key.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect()
}

/// How many letters must be put in, left out or replaced.
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
