//! Guesses whether a confined process failed because of its sandbox.
//!
//! The kernel reports a denied operation only to the process itself, so the holder can only guess. It uses the
//! heuristic of the reference implementation. Either the process failed and its output contains the error text of a
//! denied operation, or the seccomp filter killed it. `ENOENT` texts do not count: a file that the policy hides
//! produces one, but so does every misspelt name.

use exec_server_process::ChildExit;

/// The error texts of `EPERM`, `EACCES` and `EROFS`, in lower case.
const DENIAL_TEXTS: [&[u8]; 3] = [b"operation not permitted", b"permission denied", b"read-only file system"];

/// Checks the exit status first, and calls `outputs` only if the process failed. `outputs` yields the last output of
/// each stream.
pub(crate) fn is_denial_likely<W: Iterator<Item = Vec<u8>>>(exited: &ChildExit, outputs: impl FnOnce() -> W) -> bool {
    if exited.signal.map(i32::from) == Some(libc::SIGSYS) {
        return true;
    }
    exited.code != 0 && outputs().any(|text| has_denial_text(&text))
}

fn has_denial_text(text: &[u8]) -> bool {
    let begins =
        |at: usize, word: &[u8]| text.get(at..at + word.len()).is_some_and(|here| here.eq_ignore_ascii_case(word));
    (0..text.len()).any(|at| DENIAL_TEXTS.iter().any(|word| begins(at, word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likely(code: i32, signal: Option<u8>, texts: &[&str]) -> bool {
        let exited = ChildExit { code, signal, user_ms: 0, system_ms: 0, max_rss_bytes: 0 };
        is_denial_likely(&exited, || texts.iter().map(|text| text.as_bytes().to_vec()))
    }

    #[test]
    fn a_failure_with_the_text_of_a_denied_operation_is_a_likely_denial() {
        for text in
            ["sh: 1: cannot create /x: Read-only file system\n", "PERMISSION DENIED", "mount: Operation not permitted."]
        {
            assert!(likely(1, None, &["fine\n", text]), "{text}");
        }
        assert!(likely(159, Some(31), &[]), "killed by the filter");
    }

    #[test]
    fn other_failures_and_successes_are_not_likely_denials() {
        assert!(!likely(0, None, &["Permission denied"]), "it did not fail");
        assert!(!likely(2, None, &["cat: /none: No such file or directory", ""]), "an ordinary failure");
        assert!(!likely(137, Some(9), &["killed"]), "a signal other than SIGSYS");
        assert!(!likely(1, None, &["permission ", "denied"]), "a text must be within one stream");
    }
}
