//! Whether a confined process failed because of its sandbox, as far as can be told from outside. It must not know which sandbox.
//!
//! The kernel tells nobody but the process itself what it was refused, so this is a guess, by the rule of the reference: the process
//! failed, and what it wrote has the system's words for a refusal; or the filter of system calls killed it. What the system says of
//! things that are not there is no refusal: a file that the policy hides looks like that, and so does every misspelt name.

use exec_server_process::Exited;

/// The texts of `EPERM`, `EACCES` and `EROFS`, in small letters.
const WORDS: [&[u8]; 3] = [b"operation not permitted", b"permission denied", b"read-only file system"];

/// Looks at the end, and only at a failure asks for what was written.
pub(crate) fn is_likely<W: Iterator<Item = Vec<u8>>>(exited: &Exited, written: impl FnOnce() -> W) -> bool {
    if exited.signal.map(i32::from) == Some(libc::SIGSYS) {
        return true;
    }
    exited.code != 0 && written().any(|text| has_word(&text))
}

fn has_word(text: &[u8]) -> bool {
    let begins =
        |at: usize, word: &[u8]| text.get(at..at + word.len()).is_some_and(|here| here.eq_ignore_ascii_case(word));
    (0..text.len()).any(|at| WORDS.iter().any(|word| begins(at, word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likely(code: i32, signal: Option<u8>, texts: &[&str]) -> bool {
        let exited = Exited { code, signal, user_ms: 0, system_ms: 0, max_rss_bytes: 0 };
        is_likely(&exited, || texts.iter().map(|text| text.as_bytes().to_vec()))
    }

    #[test]
    fn a_failure_that_speaks_of_a_refusal_is_one() {
        for text in
            ["sh: 1: cannot create /x: Read-only file system\n", "PERMISSION DENIED", "mount: Operation not permitted."]
        {
            assert!(likely(1, None, &["fine\n", text]), "{text}");
        }
        assert!(likely(159, Some(31), &[]), "killed by the filter");
    }

    #[test]
    fn no_other_end_is_one() {
        assert!(!likely(0, None, &["Permission denied"]), "it did not fail");
        assert!(!likely(2, None, &["cat: /none: No such file or directory", ""]), "an ordinary failure");
        assert!(!likely(137, Some(9), &["killed"]), "somebody else's signal");
        assert!(!likely(1, None, &["permission ", "denied"]), "words of different streams are no sentence");
    }
}
