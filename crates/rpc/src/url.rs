//! Parses the parts of a server's URL.
//!
//! It works on text only and opens nothing. Errors never contain the URL, because its query may hold a token.

/// Why a URL is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct InvalidUrl {
    /// The problem. Never contains a part of the URL.
    pub what: &'static str,
}

/// Splits `host:port`. An IPv6 address is in brackets, which are removed.
pub fn split_authority(authority: &str, default_port: u16) -> Result<(&str, u16), InvalidUrl> {
    if authority.contains('@') {
        return Err(InvalidUrl { what: "user in the authority" });
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or(InvalidUrl { what: "bracket is not closed" })?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if host.is_empty() {
        return Err(InvalidUrl { what: "host is empty" });
    }
    match port.strip_prefix(':') {
        // Rust parses `+1` as a number, but other implementations do not.
        Some(port) if port.starts_with('+') => Err(InvalidUrl { what: "port is not a number below 65536" }),
        Some(port) => match port.parse() {
            Ok(port) => Ok((host, port)),
            Err(_) => Err(InvalidUrl { what: "port is not a number below 65536" }),
        },
        None if port.is_empty() => Ok((host, default_port)),
        None => Err(InvalidUrl { what: "text after the bracket" }),
    }
}

/// Returns the target of a request line, which always starts with a slash.
pub fn origin_form(target: &str) -> String {
    if target.starts_with('/') { target.to_owned() } else { format!("/{target}") }
}

/// Decodes `%XX`, which stands for one byte.
pub fn percent_decode(text: &str) -> Result<Vec<u8>, InvalidUrl> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|&digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(InvalidUrl { what: "`%` without two hexadecimal digits" });
        };
        bytes.push((high * 16 + low) as u8);
        rest = &tail[2..];
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_give_host_and_port() {
        for (authority, expected) in [
            ("127.0.0.1:8080", Some(("127.0.0.1", 8080))),
            ("example.org", Some(("example.org", 80))),
            ("[::1]:9", Some(("::1", 9))),
            ("[::1]", Some(("::1", 80))),
            ("", None),
            (":80", None),
            ("host:", None),
            ("host:65536", None),
            ("host:+1", None),
            ("[::1", None),
            ("[::1]9", None),
            ("user@host:1", None),
        ] {
            assert_eq!(split_authority(authority, 80).ok(), expected, "{authority}");
        }
    }

    #[test]
    fn percent_escapes_stand_for_bytes() {
        assert_eq!(percent_decode("/a%3Fb%ff").unwrap(), b"/a?b\xff");
        assert!(percent_decode("/a%3").is_err());
        assert!(percent_decode("/a%zz").is_err());
    }
}
