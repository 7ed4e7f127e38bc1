//! Parses the values of `--listen`. Resolves no names and does not use the network.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use exec_server_rpc::url::{Host, InvalidUrl, UrlParts};

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenUrl {
    /// `ws://IP:PORT`. With port 0 the kernel chooses a port.
    Ws(SocketAddr),
    /// `wss://IP:PORT`: WebSocket over TLS.
    Wss(SocketAddr),
    /// `unix:///path`.
    Unix(PathBuf),
    /// `stdio` or `stdio://`: newline-delimited JSON on standard input and output.
    Stdio,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenUrlError {
    /// The text has none of the forms that the error lists.
    #[error("`{text}` is none of `ws://IP:PORT`, `wss://IP:PORT`, `unix:///path`, `stdio`")]
    Unknown { text: String },
    /// Host names are refused, because they may resolve to another address later.
    #[error("`{text}` has no IP address; host names other than `localhost` are not accepted in `ws://IP:PORT`")]
    HostName { text: String },
    /// The port is missing, not a number, or above 65535.
    #[error("`{text}` has no valid port; write `ws://IP:PORT`, with port 0 for any free one")]
    Port { text: String },
    /// The URL has a path other than `/`, a query, a fragment or a user name.
    #[error("`{text}` has more than an address; write `ws://IP:PORT` alone")]
    Path { text: String },
    /// The socket's path is not absolute.
    #[error("`{text}` has no absolute path; write `unix:///path`")]
    SocketPath { text: String },
}

impl Default for ListenUrl {
    /// Loopback with any free port.
    fn default() -> Self {
        Self::Ws(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }
}

impl FromStr for ListenUrl {
    type Err = ListenUrlError;

    fn from_str(text: &str) -> Result<Self, ListenUrlError> {
        let owned = || text.to_owned();
        if matches!(text, "stdio" | "stdio://") {
            return Ok(Self::Stdio);
        }
        if let Some(path) = text.strip_prefix("unix://") {
            let is_file = path.starts_with('/') && !path.ends_with('/') && !path.contains('\0');
            return if is_file {
                Ok(Self::Unix(path.into()))
            } else {
                Err(ListenUrlError::SocketPath { text: owned() })
            };
        }
        match text.split_once("://") {
            Some(("ws", rest)) => address(text, rest).map(Self::Ws),
            Some(("wss", rest)) => address(text, rest).map(Self::Wss),
            Some(_) | None => Err(ListenUrlError::Unknown { text: owned() }),
        }
    }
}

impl fmt::Display for ListenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ws(address) => write!(f, "ws://{address}"),
            Self::Wss(address) => write!(f, "wss://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Stdio => f.write_str("stdio"),
        }
    }
}

fn address(text: &str, rest: &str) -> Result<SocketAddr, ListenUrlError> {
    let text = || text.to_owned();
    if rest.strip_suffix('/').unwrap_or(rest).contains(['/', '?', '#', '@']) {
        return Err(ListenUrlError::Path { text: text() });
    }
    let url = UrlParts::parse(rest).map_err(|error| match error {
        InvalidUrl::Host => ListenUrlError::HostName { text: text() },
        InvalidUrl::Port => ListenUrlError::Port { text: text() },
        InvalidUrl::Character | InvalidUrl::User => ListenUrlError::Unknown { text: text() },
    })?;
    let ip = match url.host {
        // The only host name that means the same address everywhere.
        Host::Domain(name) if name == "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        // `UrlParts` reports an IPv4 address as a name, and never as `Host::Ipv4`.
        Host::Domain(name) => name.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        Host::Ipv4(ip) => Some(ip.into()),
        Host::Ipv6(ip) => Some(ip.into()),
    };
    let ip = ip.ok_or_else(|| ListenUrlError::HostName { text: text() })?;
    let port = url.port.ok_or_else(|| ListenUrlError::Port { text: text() })?;
    Ok(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::{ListenUrl, ListenUrlError};

    #[test]
    fn accepts_ip_addresses_socket_paths_and_stdio() {
        for (text, shown) in [
            ("ws://127.0.0.1:0", "ws://127.0.0.1:0"),
            ("ws://127.0.0.1:0/", "ws://127.0.0.1:0"),
            ("ws://0.0.0.0:65535", "ws://0.0.0.0:65535"),
            ("ws://localhost:80", "ws://127.0.0.1:80"),
            ("ws://[::1]:80", "ws://[::1]:80"),
            ("ws://[::ffff:127.0.0.1]:80", "ws://[::ffff:127.0.0.1]:80"),
            ("wss://[::]:443", "wss://[::]:443"),
            ("unix:///run/x.sock", "unix:///run/x.sock"),
            ("stdio", "stdio"),
            ("stdio://", "stdio"),
        ] {
            assert_eq!(text.parse::<ListenUrl>().unwrap().to_string(), shown);
        }
        assert_eq!(ListenUrl::default().to_string(), "ws://127.0.0.1:0");
    }

    #[test]
    fn refuses_other_urls_with_a_specific_reason() {
        type Expected = fn(&ListenUrlError) -> bool;
        let cases: [(&str, Expected); 18] = [
            ("ws://example.test:80", |e| matches!(e, ListenUrlError::HostName { .. })),
            ("ws://example.com:80", |e| matches!(e, ListenUrlError::HostName { .. })),
            ("ws://127.1:80", |e| matches!(e, ListenUrlError::HostName { .. })),
            ("ws://::1:80", |e| matches!(e, ListenUrlError::HostName { .. })),
            ("ws://[127.0.0.1]:80", |e| matches!(e, ListenUrlError::HostName { .. })),
            ("ws://:80", |e| matches!(e, ListenUrlError::HostName { .. })),
            ("ws://127.0.0.1", |e| matches!(e, ListenUrlError::Port { .. })),
            ("ws://127.0.0.1:", |e| matches!(e, ListenUrlError::Port { .. })),
            ("ws://127.0.0.1:65536", |e| matches!(e, ListenUrlError::Port { .. })),
            ("ws://127.0.0.1:+80", |e| matches!(e, ListenUrlError::Port { .. })),
            ("ws://[::1]", |e| matches!(e, ListenUrlError::Port { .. })),
            ("ws://127.0.0.1:80/path", |e| matches!(e, ListenUrlError::Path { .. })),
            ("ws://u@127.0.0.1:80", |e| matches!(e, ListenUrlError::Path { .. })),
            ("wss://example.test:80", |e| matches!(e, ListenUrlError::HostName { .. })),
            ("unix://relative", |e| matches!(e, ListenUrlError::SocketPath { .. })),
            ("unix:///dir/", |e| matches!(e, ListenUrlError::SocketPath { .. })),
            ("http://127.0.0.1:80", |e| matches!(e, ListenUrlError::Unknown { .. })),
            ("", |e| matches!(e, ListenUrlError::Unknown { .. })),
        ];
        for (text, expected) in cases {
            let error = text.parse::<ListenUrl>().unwrap_err();
            assert!(expected(&error), "{text}: {error}");
        }
    }
}
