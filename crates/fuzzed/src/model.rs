//! A naive JSON parser: one recursive function per rule of RFC 8259. Keys are compared by their unescaped text. Does not depend on the
//! message format.

use exec_server_protocol::limits;

/// The members of the outermost object: name and text of the value.
pub(crate) type Members<'a> = Vec<(String, &'a str)>;

/// The members of a text that is one object within the limits and without duplicate keys. `None` for any other text.
pub(crate) fn object(text: &str) -> Option<Members<'_>> {
    let mut reader = JsonReader { text, at: 0, values: 0 };
    reader.space();
    let members = if reader.peek() == Some(b'{') { reader.object(1)? } else { return None };
    reader.space();
    (reader.at == text.len() && reader.values <= limits::VALUES).then_some(members)
}

struct JsonReader<'a> {
    text: &'a str,
    at: usize,
    values: usize,
}

impl<'a> JsonReader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|byte| b" \t\r\n".contains(&byte)) {
            self.at += 1;
        }
    }

    fn expect(&mut self, word: &str) -> Option<()> {
        self.text[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn value(&mut self, depth: usize) -> Option<&'a str> {
        self.space();
        let start = self.at;
        match self.peek()? {
            b'{' => drop(self.object(depth + 1)?),
            b'[' => self.array(depth + 1)?,
            b'"' => {
                self.values += 1;
                self.string()?;
            }
            b't' => self.word("true")?,
            b'f' => self.word("false")?,
            b'n' => self.word("null")?,
            _ => self.number()?,
        }
        Some(&self.text[start..self.at])
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.values += 1;
        self.expect(word)
    }

    fn object(&mut self, depth: usize) -> Option<Members<'a>> {
        self.enter(depth)?;
        let mut members: Members<'a> = Vec::new();
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Some(members);
        }
        loop {
            self.space();
            let key = self.string()?;
            self.space();
            self.expect(":")?;
            let value = self.value(depth)?;
            if members.iter().any(|(other, _)| *other == key) {
                return None;
            }
            members.push((key, value));
            self.space();
            if self.peek()? == b'}' {
                self.at += 1;
                return Some(members);
            }
            self.expect(",")?;
        }
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.enter(depth)?;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Some(());
        }
        loop {
            self.value(depth)?;
            self.space();
            if self.peek()? == b']' {
                self.at += 1;
                return Some(());
            }
            self.expect(",")?;
        }
    }

    fn enter(&mut self, depth: usize) -> Option<()> {
        self.at += 1;
        self.values += 1;
        (depth <= limits::DEPTH).then_some(())
    }

    fn string(&mut self) -> Option<String> {
        self.expect("\"")?;
        let mut units: Vec<u16> = Vec::new();
        loop {
            let character = self.text[self.at..].chars().next()?;
            self.at += character.len_utf8();
            match character {
                '"' => return String::from_utf16(&units).ok(),
                '\\' => units.push(self.escape()?),
                '\0'..='\x1f' => return None,
                plain => units.extend_from_slice(plain.encode_utf16(&mut [0; 2])),
            }
        }
    }

    fn escape(&mut self) -> Option<u16> {
        let byte = self.peek()?;
        self.at += 1;
        Some(match byte {
            b'"' | b'\\' | b'/' => u16::from(byte),
            b'b' => 8,
            b'f' => 12,
            b'n' => 10,
            b'r' => 13,
            b't' => 9,
            b'u' => {
                let digits = self.text.get(self.at..self.at + 4)?;
                self.at += 4;
                let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                is_hex.then(|| u16::from_str_radix(digits, 16).ok())??
            }
            _ => return None,
        })
    }

    fn number(&mut self) -> Option<()> {
        self.values += 1;
        self.expect("-");
        if self.expect("0").is_none() {
            self.digits()?;
        }
        if self.expect(".").is_some() {
            self.digits()?;
        }
        if self.expect("e").or_else(|| self.expect("E")).is_some() {
            let _sign = self.expect("+").or_else(|| self.expect("-"));
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }
}
