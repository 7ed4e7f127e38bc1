//! The proxies from the server's environment: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, in lower or
//! upper case. Read once.

use std::{ffi::OsString, net::IpAddr};

use reqwest::Url;

/// A proxy variable that cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    #[error("the proxy in `{variable}` is not a URL; correct it and restart the server")]
    Unreadable { variable: String },
    #[error("the proxy in `{variable}` uses `{scheme}`; only http and https proxies are supported")]
    Scheme { variable: String, scheme: String },
}

#[derive(Debug, Default)]
pub(super) struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    direct: Vec<ProxyExemption>,
}

pub(super) type Proxy = Result<Url, ProxyError>;

/// Hosts that are reached without a proxy (`no_proxy`).
#[derive(Debug, PartialEq, Eq)]
enum ProxyExemption {
    Everything,
    /// A domain and all its subdomains.
    Domain(String),
    /// A network: its address and prefix length.
    Network(IpAddr, u8),
}

impl Proxies {
    pub(super) fn read(environment: &[(OsString, OsString)]) -> Self {
        // The lower-case variable wins, as in other HTTP clients.
        let variable = |name: &str| {
            [name.to_owned(), name.to_ascii_uppercase()].into_iter().find_map(|name| {
                let (_, value) = environment.iter().find(|(known, _)| *known == *name)?;
                value.to_str().map(str::trim).filter(|value| !value.is_empty()).map(|value| (name.clone(), value))
            })
        };
        let proxy =
            |name: &str| variable(name).or_else(|| variable("all_proxy")).map(|(name, value)| parse(name, value));
        let direct = variable("no_proxy").map_or_else(Vec::new, |(_, list)| {
            list.split([',', ' ']).map(str::trim).filter(|item| !item.is_empty()).map(parse_direct).collect()
        });
        Self { http: proxy("http_proxy"), https: proxy("https_proxy"), direct }
    }

    /// The proxy for a URL. `None` if there is none or it cannot be used.
    pub(super) fn find(&self, url: &Url) -> Option<&Url> {
        self.of(url).and_then(|proxy| proxy.as_ref().ok())
    }

    /// Refuses a URL whose proxy cannot be used. Connecting directly would ignore the user's configuration.
    pub(super) fn check(&self, url: &Url) -> Result<(), ProxyError> {
        match self.of(url) {
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// The proxy that is configured for a URL, even if it cannot be used.
    pub(super) fn of(&self, url: &Url) -> Option<&Proxy> {
        let proxy = if url.scheme() == "https" { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !self.is_direct(url.host_str().unwrap_or_default()))
    }

    /// Whether `no_proxy` names this host.
    fn is_direct(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let address = bare.parse::<IpAddr>().ok();
        self.direct.iter().any(|direct| match direct {
            ProxyExemption::Everything => true,
            ProxyExemption::Domain(domain) => {
                let below = bare.strip_suffix(domain.as_str());
                below.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            ProxyExemption::Network(network, bits) => {
                address.is_some_and(|address| is_within(address, *network, *bits))
            }
        })
    }
}

fn parse(variable: String, value: &str) -> Proxy {
    let with_scheme = if value.contains("://") { value.to_owned() } else { format!("http://{value}") };
    match Url::parse(&with_scheme) {
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            Err(ProxyError::Scheme { variable, scheme: url.scheme().to_owned() })
        }
        Ok(url) if url.host_str().is_some() => Ok(url),
        Ok(_) | Err(_) => Err(ProxyError::Unreadable { variable }),
    }
}

fn parse_direct(item: &str) -> ProxyExemption {
    if item == "*" {
        return ProxyExemption::Everything;
    }
    let (base, bits) = match item.split_once('/') {
        Some((base, bits)) => (base, bits.parse().ok()),
        None => (item, None),
    };
    match base.trim_matches(['[', ']']).parse::<IpAddr>() {
        // Without a valid prefix length, only this address.
        Ok(address) => ProxyExemption::Network(address, bits.unwrap_or(u8::MAX)),
        Err(_) => {
            // The hosts of parsed URLs are in lower case too.
            let name = item.strip_prefix('*').unwrap_or(item);
            ProxyExemption::Domain(name.trim_start_matches('.').to_ascii_lowercase())
        }
    }
}

/// Whether the first `bits` bits are the same. With 0 bits, `checked_shr` returns `None` for both, so all addresses of
/// the network's family match.
fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let shift = 32u32.saturating_sub(u32::from(bits));
            address.to_bits().checked_shr(shift) == network.to_bits().checked_shr(shift)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let shift = 128u32.saturating_sub(u32::from(bits));
            address.to_bits().checked_shr(shift) == network.to_bits().checked_shr(shift)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use reqwest::Url;

    use super::{Proxies, ProxyError};

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        let variables: Vec<(OsString, OsString)> =
            variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        Proxies::read(&variables)
    }

    fn through(proxies: &Proxies, url: &str) -> Option<String> {
        proxies.find(&Url::parse(url).unwrap()).map(Url::to_string)
    }

    #[test]
    fn each_scheme_uses_its_own_proxy_or_all_proxy() {
        let some =
            proxies(&[("http_proxy", "http://small:1"), ("HTTP_PROXY", "http://large:1"), ("ALL_PROXY", "rest:2")]);
        assert_eq!(through(&some, "http://a/").as_deref(), Some("http://small:1/"));
        assert_eq!(through(&some, "https://a/").as_deref(), Some("http://rest:2/"));
        assert_eq!(through(&proxies(&[("http_proxy", " ")]), "http://a/"), None);
        assert_eq!(through(&proxies(&[]), "https://a/"), None);
    }

    #[test]
    fn hosts_in_no_proxy_are_reached_directly() {
        let no_proxy = "localhost, .inner.example,*.other.example,10.0.0.0/8,192.168.1.7,[fd00::]/8";
        let some = proxies(&[("all_proxy", "p:1"), ("NO_PROXY", no_proxy)]);
        for (host, is_direct) in [
            ("localhost", true),
            ("inner.example", true),
            ("a.inner.example", true),
            ("winner.example", false),
            ("a.other.example", true),
            ("10.200.1.1", true),
            ("11.0.0.1", false),
            ("192.168.1.7", true),
            ("192.168.1.8", false),
            ("[fd12::1]", true),
            ("[fe80::1]", false),
            ("LOCALHOST", true),
        ] {
            assert_eq!(through(&some, &format!("http://{host}/")).is_none(), is_direct, "{host}");
        }
        assert_eq!(through(&proxies(&[("all_proxy", "p:1"), ("no_proxy", "*")]), "http://a/"), None);
        assert!(through(&proxies(&[("all_proxy", "p:1"), ("no_proxy", "0.0.0.0/0")]), "http://8.8.8.8/").is_none());
    }

    #[test]
    fn an_unusable_proxy_is_an_error_and_is_not_bypassed() {
        let url = Url::parse("http://a/").unwrap();
        let socks = proxies(&[("all_proxy", "socks5://p:1")]);
        assert!(matches!(socks.check(&url), Err(ProxyError::Scheme { scheme, .. }) if scheme == "socks5"));
        assert!(matches!(proxies(&[("http_proxy", "http://")]).check(&url), Err(ProxyError::Unreadable { .. })));
        assert!(proxies(&[("http_proxy", "p:1")]).check(&url).is_ok());
    }
}
