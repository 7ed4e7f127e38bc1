//! Splits a command line into words with a shell's rules for quotes and backslashes, without any expansion.
//!
//! Does not use the crate `shlex`, which treats a word that begins with `#` as the start of a comment. `stdio:connect #1` would then run
//! `connect` without its argument.

use super::target::TargetError;

/// Splits `text` at blanks.
///
/// Between single quotes every character stands for itself. Between double quotes a backslash escapes `"`, `\`, `$` and the backtick, and
/// is literal before other characters. Outside of quotes a backslash escapes any next character.
pub(super) fn split(text: &str) -> Result<Vec<String>, TargetError> {
    // No argument of a program can contain NUL.
    if text.contains('\0') {
        return Err(TargetError::new("NUL character in the command"));
    }
    let mut words = Vec::new();
    // `None` between words. `''` is a word; a run of blanks is not.
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\'' => {
                let quoted = chars.as_str().split_once('\'');
                let (quoted, rest) = quoted.ok_or(TargetError::new("single quote is not closed"))?;
                word.get_or_insert_default().push_str(quoted);
                chars = rest.chars();
            }
            '"' => double_quoted(&mut chars, word.get_or_insert_default())?,
            '\\' => match chars.next() {
                Some(char) => word.get_or_insert_default().push(char),
                None => return Err(TargetError::new("backslash at the end")),
            },
            char => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Reads up to the closing quote.
fn double_quoted(chars: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), TargetError> {
    const UNCLOSED: TargetError = TargetError::new("double quote is not closed");
    loop {
        match chars.next().ok_or(UNCLOSED)? {
            '"' => return Ok(()),
            '\\' => match chars.next().ok_or(UNCLOSED)? {
                char @ ('"' | '\\' | '$' | '`') => word.push(char),
                char => word.extend(['\\', char]),
            },
            char => word.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_split_like_a_shell_without_expansion() {
        for (text, expected) in [
            ("", Some(vec![])),
            (" \t ", Some(vec![])),
            ("a  b\tc", Some(vec!["a", "b", "c"])),
            ("'a b'c\"d e\"f\\ g", Some(vec!["a bcd ef g"])),
            ("'' \"\"", Some(vec!["", ""])),
            (r#"'\"$x`'"#, Some(vec![r#"\"$x`"#])),
            (r#""\"\\\$\`\x""#, Some(vec![r#""\$`\x"#])),
            ("$HOME ~ *; | & > `x` #c", Some(vec!["$HOME", "~", "*;", "|", "&", ">", "`x`", "#c"])),
            ("größe 'ä ö'", Some(vec!["größe", "ä ö"])),
            ("'open", None),
            ("\"open", None),
            ("\"open\\", None),
            ("end\\", None),
            ("nul\0", None),
            ("'nul\0'", None),
            ("\"nul\0\"", None),
            ("nul\\\0", None),
        ] {
            assert_eq!(
                split(text).ok(),
                expected.map(|words| words.into_iter().map(str::to_owned).collect()),
                "{text}"
            );
        }
    }
}
