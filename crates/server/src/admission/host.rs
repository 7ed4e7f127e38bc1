//! Checks the `Host` header of a request against DNS rebinding: a web page whose own name resolves to our address still
//! sends its own name in `Host`.
//!
//! Only the name is compared, because behind `ssh -L`, a published container port or a proxy, the client dials another
//! port than ours. The port counts only if `--allow-host` has one. Resolves no names.

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use exec_server_rpc::url::{Host, UrlParts};

use crate::{listen::exposure::is_loopback, tls::OwnNames};

/// The port to assume if a Host header has none, to compare it with an allowed name that has a port.
const DEFAULT_PORT: u16 = 80;
const DEFAULT_TLS_PORT: u16 = 443;

/// The names by which one listener may be addressed.
#[derive(Clone, Copy)]
pub(super) struct ListenerHosts<'a> {
    /// The local address of the listener.
    pub(super) local: SocketAddr,
    /// The names from `--allow-host`.
    pub(super) allowed: &'a [AllowedHost],
    /// The names in our certificate, if the connection has TLS.
    pub(super) certified: Option<&'a OwnNames>,
}

/// A name from `--allow-host`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    name: String,
    /// `None`: any port. A proxy in front of the server has a port we do not know.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a host name, with or without a port")]
pub struct AllowedHostError {
    text: String,
}

impl FromStr for AllowedHost {
    type Err = AllowedHostError;

    fn from_str(text: &str) -> Result<Self, AllowedHostError> {
        let (name, port) = split(text).ok_or_else(|| AllowedHostError { text: text.to_owned() })?;
        Ok(Self { name: name.to_ascii_lowercase(), port })
    }
}

/// Whether the Host headers of a request name this server. There must be exactly one Host header.
pub(super) fn is_ours<'a>(mut headers: impl Iterator<Item = &'a [u8]>, ours: &ListenerHosts<'_>) -> bool {
    let (Some(host), None) = (headers.next(), headers.next()) else {
        return false;
    };
    let Some((name, port)) = std::str::from_utf8(host).ok().and_then(split) else {
        return false;
    };
    let port = port.unwrap_or(if ours.certified.is_some() { DEFAULT_TLS_PORT } else { DEFAULT_PORT });
    let is_allowed = ours.allowed.iter().any(|allowed| {
        let has_port = allowed.port.is_none_or(|allowed| allowed == port);
        has_port && allowed.name.eq_ignore_ascii_case(&name)
    });
    let is_certified = ours.certified.is_some_and(|names| names.has(&name));
    is_allowed || is_certified || is_local(&name, ours.local.ip())
}

/// `localhost`, a loopback address, or the address that the listener is bound to.
fn is_local(name: &str, bound: IpAddr) -> bool {
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    name.parse::<IpAddr>()
        .is_ok_and(|ip| is_loopback(ip) || (!bound.is_unspecified() && ip.to_canonical() == bound.to_canonical()))
}

/// Splits `name`, `name:port`, `[v6]` or `[v6]:port`. The name is returned without brackets. `None` for any other form.
fn split(host: &str) -> Option<(String, Option<u16>)> {
    if host.contains(['/', '?', '#', '@']) {
        return None;
    }
    let parts = UrlParts::parse(host).ok()?;
    let name = match parts.host {
        Host::Domain(name) => name,
        Host::Ipv4(ip) => ip.to_string(),
        Host::Ipv6(ip) => ip.to_string(),
    };
    Some((name, parts.port))
}
