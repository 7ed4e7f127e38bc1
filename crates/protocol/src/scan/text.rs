//! JSON tokens: strings, numbers, literals and whitespace. Keys are compared by their unescaped text. Does not depend on objects or arrays.

use std::{hash::Hasher, str::Chars};

use super::ScanError;

/// The text of a message and a position in it.
pub(super) struct JsonText<'a> {
    text: &'a str,
    pub(super) at: usize,
}

/// The content of a string without its quotes, as positions in the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeySpan {
    start: usize,
    end: usize,
    escaped: bool,
}

impl KeySpan {
    /// Length as written, escapes included, in bytes.
    pub(super) fn len(self) -> usize {
        self.end - self.start
    }
}

impl<'a> JsonText<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes().get(self.at).copied()
    }

    /// The error for a byte that must not be here, or for the end of the text.
    pub(super) fn unexpected(&self) -> ScanError {
        if self.peek().is_some() { ScanError::Syntax { at: self.at } } else { ScanError::End }
    }

    pub(super) fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    pub(super) fn literal(&mut self, word: &'static [u8]) -> Result<(), ScanError> {
        for &expected in word {
            if self.peek() != Some(expected) {
                return Err(self.unexpected());
            }
            self.at += 1;
        }
        Ok(())
    }

    pub(super) fn number(&mut self) -> Result<(), ScanError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), ScanError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Scans a string, from its opening quote to behind its closing quote.
    pub(super) fn string(&mut self) -> Result<KeySpan, ScanError> {
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            self.at += plain_prefix(&self.bytes()[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    let key = KeySpan { start, end: self.at, escaped };
                    self.at += 1;
                    return Ok(key);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return Err(self.unexpected()),
            }
        }
    }

    fn escape(&mut self) -> Result<(), ScanError> {
        let start = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 1;
                Ok(())
            }
            Some(b'u') => {
                self.at += 1;
                // A surrogate pair encodes one character. A lone surrogate is invalid, because a Rust string cannot hold it.
                let is_character = match self.hex4()? {
                    0xD800..=0xDBFF => {
                        self.literal(b"\\u")?;
                        matches!(self.hex4()?, 0xDC00..=0xDFFF)
                    }
                    unit => !matches!(unit, 0xDC00..=0xDFFF),
                };
                if is_character { Ok(()) } else { Err(ScanError::Syntax { at: start }) }
            }
            _ => Err(self.unexpected()),
        }
    }

    /// Reads the four digits of `\uXXXX`.
    fn hex4(&mut self) -> Result<u32, ScanError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit * 16 + digit.ok_or_else(|| self.unexpected())?;
            self.at += 1;
        }
        Ok(unit)
    }

    /// Whether two keys are equal after unescaping.
    pub(super) fn same_key(&self, a: KeySpan, b: KeySpan) -> bool {
        let (a_text, b_text) = (self.inside(a), self.inside(b));
        if a.escaped || b.escaped { unescaped(a_text).eq(unescaped(b_text)) } else { a_text == b_text }
    }

    /// Whether a key, after unescaping, equals `name`.
    pub(super) fn is_key(&self, key: KeySpan, name: &str) -> bool {
        if key.escaped { unescaped(self.inside(key)).eq(name.chars()) } else { self.inside(key) == name }
    }

    /// Hashes the unescaped text of a key. All spellings of a key get the same hash, because both branches pass pieces of equal size to the
    /// hasher.
    pub(super) fn hash_key(&self, key: KeySpan, mut hasher: impl Hasher) -> u64 {
        const PIECE: usize = 64;
        let inside = self.inside(key);
        if !key.escaped {
            for piece in inside.as_bytes().chunks(PIECE) {
                hasher.write(piece);
            }
            return hasher.finish();
        }
        let mut piece = [0; PIECE];
        let mut filled = 0;
        for character in unescaped(inside) {
            for &byte in character.encode_utf8(&mut [0; 4]).as_bytes() {
                piece[filled] = byte;
                filled += 1;
                if filled == PIECE {
                    hasher.write(&piece);
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            hasher.write(&piece[..filled]);
        }
        hasher.finish()
    }

    fn inside(&self, key: KeySpan) -> &'a str {
        &self.text[key.start..key.end]
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }
}

/// The characters of a valid string's content, with escapes resolved.
fn unescaped(inside: &str) -> impl Iterator<Item = char> {
    let mut chars = inside.chars();
    std::iter::from_fn(move || {
        let first = chars.next()?;
        if first != '\\' {
            return Some(first);
        }
        Some(match chars.next()? {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let high = unit(&mut chars);
                let mut code = high;
                if (0xD800..0xDC00).contains(&high) {
                    chars.nth(1);
                    code = 0x10000 + ((high - 0xD800) << 10) + unit(&mut chars).wrapping_sub(0xDC00);
                }
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            other => other,
        })
    })
}

/// The number that the next four hexadecimal digits encode.
fn unit(chars: &mut Chars<'_>) -> u32 {
    chars.take(4).fold(0, |unit, c| unit * 16 + c.to_digit(16).unwrap_or(0))
}

/// Length of the prefix without quotes, backslashes and control characters. Checks eight bytes at a time.
fn plain_prefix(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let (words, tail) = bytes.as_chunks::<8>();
    for (n, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let quote = (word ^ (ONES * u64::from(b'"'))).wrapping_sub(ONES);
        let backslash = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
        // A borrow can set a wrong mark above a real match, but never below it. So the lowest mark is always correct.
        let quote = quote & !(word ^ (ONES * u64::from(b'"')));
        let backslash = backslash & !(word ^ (ONES * u64::from(b'\\')));
        let marks = (control | quote | backslash) & HIGHS;
        if marks != 0 {
            return n * 8 + (marks.trailing_zeros() / 8) as usize;
        }
    }
    let special = |&b: &u8| b < 0x20 || b == b'"' || b == b'\\';
    bytes.len() - tail.len() + tail.iter().position(special).unwrap_or(tail.len())
}
