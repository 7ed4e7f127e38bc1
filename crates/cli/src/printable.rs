//! Escapes text from other machines so that it is safe to print on a terminal. All code that prints uses these functions, mostly through
//! `print`.
//!
//! Characters that control a terminal or reorder the text around them are escaped: control characters (C0, DEL, C1), bidirectional marks
//! and invisible characters. Errors, names and values are escaped; the output of a program (`run`, `attach`, `logs`)
//! and the content of a file (`fs cat`) are not. Text on stderr is escaped even if stderr is a pipe, because it usually
//! ends up on a terminal. On stdout, JSON (in which an escape keeps the value) and process ids are always escaped. File
//! names and the results of MCP tools are escaped only on a terminal.

use std::fmt::Write as _;

/// Whether a character controls the terminal, is invisible, or reorders other characters.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// For one line: escapes everything, line ends included.
pub(crate) fn clean(text: &str) -> String {
    escape(text, |c| !is_unsafe(c))
}

/// For several lines: keeps line ends and tabs.
pub(crate) fn clean_lines(text: &str) -> String {
    escape(text, |c| !is_unsafe(c) || matches!(c, '\n' | '\t'))
}

/// For text that we coloured: like [`clean_lines`], but keeps colour sequences. Values inside must be cleaned before.
pub(crate) fn clean_coloured(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\x1b[") {
        let (before, sequence) = rest.split_at(at);
        clean += &clean_lines(before);
        let body = &sequence[2..];
        let end = body.find(|c: char| !c.is_ascii_digit() && c != ';');
        let is_colour = end.is_some_and(|end| body[end..].starts_with('m'));
        let len = if is_colour { 2 + end.unwrap_or_default() + 1 } else { 2 };
        clean += &if is_colour { sequence[..len].to_owned() } else { clean_lines(&sequence[..len]) };
        rest = &sequence[len..];
    }
    clean + &clean_lines(rest)
}

/// For JSON: writes these characters as `\uXXXX`, which keeps the value. In JSON they can occur only inside strings.
pub(crate) fn clean_json(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unsafe(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a `String` cannot fail.
                write!(clean, "\\u{unit:04x}").ok();
            }
        } else {
            clean.push(c);
        }
    }
    clean
}

/// A JSON value on a line of its own.
pub(crate) fn json_line(value: &serde_json::Value) -> String {
    clean_json(&format!("{value}\n"))
}

fn escape(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if is_kept(c) { clean.push(c) } else { clean.extend(c.escape_default()) }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_bidirectional_marks_are_escaped() {
        assert_eq!(clean("a\x1b[2J\nb\u{202e}ü"), "a\\u{1b}[2J\\nb\\u{202e}ü");
        assert_eq!(clean("\u{9b}31m\x7f\u{61c}\u{2066}"), "\\u{9b}31m\\u{7f}\\u{61c}\\u{2066}");
        assert_eq!(clean_lines("a\n\tb\r\x07"), "a\n\tb\\r\\u{7}");
    }

    #[test]
    fn colour_sequences_are_kept_and_all_others_escaped() {
        assert_eq!(clean_coloured("\x1b[1;31mred\x1b[0m\n"), "\x1b[1;31mred\x1b[0m\n");
        assert_eq!(clean_coloured("\x1b[2J\x1b]0;t\x07\x1b["), "\\u{1b}[2J\\u{1b}]0;t\\u{7}\\u{1b}[");
        assert_eq!(clean_coloured("\x1b[31\u{9b}m"), "\\u{1b}[31\\u{9b}m");
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({"a": "\x1b\u{9b}\u{202e}\u{e0041}ü\n", "b": [1]});
        let text = clean_json(&format!("{value}\n"));
        assert!(text.trim_end().chars().all(|c| !is_unsafe(c)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("it is JSON"), value);
    }
}
