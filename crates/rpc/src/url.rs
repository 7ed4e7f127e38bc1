//! Parses `[user@]host[:port][/path][?query]`, the part of a URL after its scheme.
//!
//! The grammar is the one that the `url` crate has for unknown schemes. The crate's rules for `ws` and `wss` are those
//! of browsers, which are wrong for an address that a person configures: they accept `ws:host` and backslashes, read
//! `127.1` as `127.0.0.1`, and do not tell port 80 from a missing port.
//!
//! Errors never contain the URL, because its query may hold a token.

use exec_server_protocol::path::percent_decode;
pub use url::Host;
use url::{ParseError, Url};

/// Why a URL is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.what())]
pub enum InvalidUrl {
    /// A control character, or a space at the end. `url` would remove them without an error.
    Character,
    User,
    Host,
    Port,
}

/// The parts of a URL. In the path, `.` and `..` are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlParts {
    /// The decoded name of the user.
    pub user: Option<String>,
    /// A name, or an IPv6 address in brackets. An IPv4 address counts as a name, so `127.1` stays as it is.
    pub host: Host,
    pub port: Option<u16>,
    /// Percent-encoded. Empty, or begins with a slash.
    pub path: String,
    /// Percent-encoded.
    pub query: Option<String>,
}

impl UrlParts {
    /// Parses the text after `://`. A fragment is ignored.
    pub fn parse(text: &str) -> Result<Self, InvalidUrl> {
        if text.contains(char::is_control) || text.ends_with(' ') {
            return Err(InvalidUrl::Character);
        }
        // `url` drops an empty user, password and port without an error.
        let authority = text.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.starts_with('@') || authority.contains(":@") {
            return Err(InvalidUrl::User);
        }
        if authority.ends_with(':') {
            return Err(InvalidUrl::Port);
        }
        let url = Url::parse(&format!("exec-server://{text}")).map_err(|error| match error {
            ParseError::InvalidPort => InvalidUrl::Port,
            _ => InvalidUrl::Host,
        })?;
        let user = percent_decode(url.username().as_bytes()).and_then(|user| String::from_utf8(user).ok());
        if url.password().is_some() {
            return Err(InvalidUrl::User);
        }
        Ok(Self {
            user: Some(user.ok_or(InvalidUrl::User)?).filter(|user| !user.is_empty()),
            host: url.host().filter(is_safe_host).ok_or(InvalidUrl::Host)?.to_owned(),
            port: url.port(),
            path: url.path().to_owned(),
            query: url.query().map(str::to_owned),
        })
    }
}

impl InvalidUrl {
    /// The problem. Never contains a part of the URL.
    #[must_use]
    pub const fn what(self) -> &'static str {
        match self {
            Self::Character => "the address contains a control character or ends with a space",
            Self::User => "the user name is empty, has a password or is not percent-encoded UTF-8",
            Self::Host => "the host is neither a name nor an address",
            Self::Port => "the port is not a number below 65536",
        }
    }
}

/// Whether a host is safe as an argument of a program and in a header: a name cannot look like an option, and has no
/// character with a special meaning.
fn is_safe_host(host: &Host<&str>) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    match host {
        Host::Domain(name) => !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_plain),
        Host::Ipv4(_) | Host::Ipv6(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_url_are_found() {
        for (text, host, port) in [
            ("127.0.0.1:8080", "127.0.0.1", Some(8080)),
            ("example.org", "example.org", None),
            ("127.1:80", "127.1", Some(80)),
            ("[::1]:9", "[::1]", Some(9)),
            ("[::1]", "[::1]", None),
        ] {
            let parts = UrlParts::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((parts.host.to_string().as_str(), parts.port), (host, port), "{text}");
            assert_eq!((parts.user, parts.path.as_str(), parts.query), (None, "", None), "{text}");
        }
        let parts = UrlParts::parse("me@corp@h:1/a%20b/c?d=%20&e#f").unwrap();
        assert_eq!((parts.user.as_deref(), parts.port), (Some("me@corp"), Some(1)));
        assert_eq!((parts.path.as_str(), parts.query.as_deref()), ("/a%20b/c", Some("d=%20&e")));
    }

    #[test]
    fn incomplete_authorities_are_refused() {
        for (text, error) in [
            ("", InvalidUrl::Host),
            (":80", InvalidUrl::Host),
            ("host:", InvalidUrl::Port),
            ("host:65536", InvalidUrl::Port),
            ("host:+1", InvalidUrl::Port),
            ("host:-1/", InvalidUrl::Port),
            ("[::1", InvalidUrl::Host),
            ("[::1]9", InvalidUrl::Host),
            ("[host]", InvalidUrl::Host),
            ("-host", InvalidUrl::Host),
            ("h%41", InvalidUrl::Host),
            ("h\\path", InvalidUrl::Host),
            ("/path", InvalidUrl::Host),
            ("@host:1", InvalidUrl::User),
            ("user:@host:1", InvalidUrl::User),
            ("user:word@host:1", InvalidUrl::User),
            ("ho\nst", InvalidUrl::Character),
            ("host:1 ", InvalidUrl::Character),
        ] {
            assert_eq!(UrlParts::parse(text), Err(error), "{text}");
        }
    }
}
