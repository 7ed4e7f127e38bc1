//! Which addresses belong to the public internet, and a look-up of names that gives out no other.
//!
//! What is looked at is what is connected to: an address in the URL is checked as it stands there, and a name is resolved
//! once, here, by the client that connects. There is no second look-up between the two that could say something else.
//! Must not know who asks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};

/// An address that only those reach who may start processes.
#[derive(Clone, Debug, thiserror::Error)]
#[error("`{host}` is at {address}, which is not an address of the public internet")]
pub(crate) struct Private {
    host: String,
    address: IpAddr,
}

/// Refuses a URL whose host is a private address. A name is looked at when it is resolved.
pub(super) fn check_literal(url: &Url) -> Result<(), Private> {
    let host = url.host_str().unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>() {
        Ok(address) if !is_public(address) => Err(Private { host: host.to_owned(), address }),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Resolves names, and refuses those that lead to a private address, even if they lead elsewhere too.
#[derive(Clone, Copy, Debug)]
pub(super) struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let host = name.as_str();
            let found: Vec<_> = tokio::net::lookup_host((host, 0)).await?.collect();
            match found.iter().find(|address| !is_public(address.ip())) {
                Some(private) => Err(Private { host: host.to_owned(), address: private.ip() }.into()),
                None => Ok(Box::new(found.into_iter()) as Addrs),
            }
        })
    }
}

/// Whether an address is one of the public internet: neither of this host nor of a network around it, nor of a part of the
/// space that is kept for other things.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_for_protocols = a == 192 && b == 0 && c == 0;
    let is_for_measuring = a == 198 && (18..20).contains(&b);
    !(a == 0
        || a >= 240
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || is_shared
        || is_for_protocols
        || is_for_measuring)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // Addresses of the older kind in other clothes.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        // For protocols (Teredo among them), and for documents.
        [0x2001, second, ..] => second >= 0x200 && second != 0xdb8,
        [0x3fff, second, ..] => second >= 0x1000,
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use reqwest::{Url, dns::Resolve};

    use super::{Private, PublicOnly, check_literal, is_public};

    #[test]
    fn only_the_public_internet_is_public() {
        let private = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.8.9.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.1.2.3",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0.0.0.0",
            "::127.0.0.1",
            "::10.1.2.3",
            "64:ff9b::7f00:1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::",
            "2001::1",
            "2001:db8::1",
            "3fff::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "5f00::1",
            "4000::1",
        ];
        for address in private {
            assert!(!is_public(address.parse::<IpAddr>().unwrap()), "{address}");
        }
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "169.253.1.1",
            "192.0.1.1",
            "192.167.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00:1450::1",
        ];
        for address in public {
            assert!(is_public(address.parse::<IpAddr>().unwrap()), "{address}");
        }
    }

    #[test]
    fn a_private_address_is_one_however_it_is_written() {
        for host in [
            "127.0.0.1",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
            "127.1",
            "0",
            "[::1]",
            "[::ffff:7f00:1]",
            "１２７.0.0.1",
        ] {
            let url = Url::parse(&format!("http://{host}:80/")).unwrap();
            assert!(check_literal(&url).is_err(), "{host}: {url}");
        }
        for host in ["8.8.8.8", "[2606:4700::1111]", "name.example", "localhost"] {
            assert!(check_literal(&Url::parse(&format!("http://{host}/")).unwrap()).is_ok(), "{host}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_this_host_is_not_given_out() {
        let Err(error) = PublicOnly.resolve("localhost".parse().unwrap()).await else {
            panic!("localhost is this host")
        };
        assert!(error.downcast_ref::<Private>().is_some(), "{error}");
    }
}
