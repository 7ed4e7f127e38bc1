//! Decides which addresses are public, and resolves names so that a restricted request gets only public addresses.
//! Also keeps requests of principals other than the owner away from this server's own listeners.
//!
//! The address that is checked is the address that is connected to. An address in the URL is checked as it is. A name
//! is resolved only once, by the resolver of the `reqwest` client that connects. There is no second lookup that could
//! return another address (DNS rebinding).

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _, UdpSocket},
    sync::Arc,
};

use exec_server_rpc::url::Host;
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};
use tokio::sync::Semaphore;

use super::TargetReach;

/// Most concurrent lookups of one resolver. A lookup cannot be cancelled: it occupies its thread until the system's
/// resolver gives up. File operations use the same pool of threads.
const LOOKUPS_MAX: usize = 32;

/// A private address, which is only for principals that may start processes. The error text does not contain it, so
/// that a client does not learn how a name resolves inside the network.
#[derive(Clone, Debug, thiserror::Error)]
#[error("`{host}` is not at an address of the public internet")]
pub(crate) struct PrivateTarget {
    host: String,
    /// The address, to be logged.
    pub(crate) address: IpAddr,
}

/// Refuses a URL whose host is a private address. Names are checked when they are resolved.
pub(super) fn check_literal(url: &Url) -> Result<(), PrivateTarget> {
    match literal(url) {
        Some(address) if !is_public(address) => {
            Err(PrivateTarget { host: url.host_str().unwrap_or_default().to_owned(), address })
        }
        Some(_) | None => Ok(()),
    }
}

/// The host of an HTTP URL, if it is an address. `Url::parse` has normalized spellings such as `0x7f.1`.
fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(name) => name.parse().ok(),
    }
}

/// The target is a listener of this server, which only the owner may send requests to. The error text does not contain
/// the address.
#[derive(Clone, Debug, thiserror::Error)]
#[error("`{host}` is a listener of this server")]
pub(crate) struct OwnListener {
    host: String,
}

impl OwnListener {
    pub(super) fn of(url: &Url) -> Self {
        Self { host: url.host_str().unwrap_or_default().to_owned() }
    }
}

/// Refuses a URL whose host is an address of this machine. Names are checked when they are resolved.
pub(super) fn check_not_here(url: &Url) -> Result<(), OwnListener> {
    match literal(url) {
        Some(address) if is_here(address) => Err(OwnListener::of(url)),
        Some(_) | None => Ok(()),
    }
}

/// Whether a connection to this address arrives at this machine. Asks the kernel: a socket can be bound only to a local
/// address.
fn is_here(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified() || UdpSocket::bind((address, 0)).is_ok()
}

/// Resolves names for a `reqwest` client. With `TargetReach::Public` it refuses a name that has a private address, even
/// if it has public ones too.
#[derive(Debug)]
pub(super) struct TargetResolver {
    reach: TargetReach,
    /// Refuse a name that has an address of this machine, even if it has others too.
    excludes_this_host: bool,
    slots: Arc<Semaphore>,
}

impl TargetResolver {
    pub(super) fn new(reach: TargetReach, excludes_this_host: bool) -> Self {
        Self { reach, excludes_this_host, slots: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }
}

impl Resolve for TargetResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let Self { reach, excludes_this_host, .. } = *self;
        let slots = self.slots.clone();
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let looked_up = with_permit(slots, move || {
                let found: Vec<_> = (host.as_str(), 0).to_socket_addrs()?.collect();
                Ok::<_, io::Error>((host, found))
            });
            let (host, found) = looked_up.await??;
            if excludes_this_host && found.iter().any(|address| is_here(address.ip())) {
                return Err(OwnListener { host }.into());
            }
            match found.iter().find(|address| reach == TargetReach::Public && !is_public(address.ip())) {
                Some(private) => Err(PrivateTarget { host, address: private.ip() }.into()),
                None => Ok(Box::new(found.into_iter()) as Addrs),
            }
        })
    }
}

/// Runs blocking work once there is a permit. The permit is held until the work is done, even if the future is dropped
/// before.
async fn with_permit<T: Send + 'static>(
    slots: Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let permit = slots.acquire_owned().await.map_err(io::Error::other)?;
    let working = tokio::task::spawn_blocking(move || {
        let done = work();
        drop(permit);
        done
    });
    working.await.map_err(io::Error::other)
}

/// Whether an address belongs to the public internet: not to this machine, not to a local network, and not to a range
/// reserved for other uses.
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
    let is_for_benchmarks = a == 198 && (18..20).contains(&b);
    // A public address, but inside Azure it is a service of the VM's host.
    let is_cloud_service = address == Ipv4Addr::new(168, 63, 129, 16);
    !(a == 0
        || a >= 240
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || is_shared
        || is_for_protocols
        || is_for_benchmarks
        || is_cloud_service)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // IPv6 addresses that embed an IPv4 address: IPv4-mapped, NAT64 and 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        // Ranges for protocols (such as Teredo) and for documentation.
        [0x2001, second, ..] => second >= 0x200 && second != 0xdb8,
        [0x3fff, second, ..] => second >= 0x1000,
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, sync::Arc};

    use futures_util::FutureExt as _;
    use reqwest::{Url, dns::Resolve};
    use tokio::sync::Semaphore;

    use super::{
        OwnListener, PrivateTarget, TargetReach, TargetResolver, check_literal, check_not_here, is_public, with_permit,
    };

    #[test]
    fn private_and_reserved_addresses_are_not_public() {
        let private = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.8.9.1",
            "168.63.129.16",
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
    fn private_addresses_are_refused_in_every_spelling() {
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
    async fn a_name_of_this_host_resolves_only_with_unrestricted_reach() {
        let Err(error) = TargetResolver::new(TargetReach::Public, false).resolve("localhost".parse().unwrap()).await
        else {
            panic!("localhost is this host")
        };
        let private = error.downcast_ref::<PrivateTarget>().expect("it is refused as such");
        assert!(private.address.is_loopback());
        assert!(!error.to_string().contains(&private.address.to_string()), "{error}");
        let found =
            TargetResolver::new(TargetReach::Anywhere, false).resolve("localhost".parse().unwrap()).await.unwrap();
        assert!(found.count() > 0);
    }

    #[tokio::test]
    async fn addresses_and_names_of_this_host_are_recognized() {
        for host in ["127.0.0.1", "127.9.9.9", "2130706433", "0", "0.0.0.0", "[::1]", "[::]", "[::ffff:7f00:1]"] {
            let url = Url::parse(&format!("http://{host}:80/")).unwrap();
            assert!(check_not_here(&url).is_err(), "{host}: {url}");
        }
        for host in ["8.8.8.8", "192.0.2.1", "[2001:db8::1]", "localhost"] {
            assert!(check_not_here(&Url::parse(&format!("http://{host}/")).unwrap()).is_ok(), "{host}");
        }
        let names = TargetResolver::new(TargetReach::Anywhere, true);
        let Err(error) = names.resolve("localhost".parse().unwrap()).await else { panic!("localhost is this host") };
        assert!(error.downcast_ref::<OwnListener>().is_some(), "{error}");
    }

    #[tokio::test]
    async fn an_abandoned_lookup_keeps_its_slot_until_it_is_done() {
        let slots = Arc::new(Semaphore::new(1));
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let mut abandoned = Box::pin(with_permit(slots.clone(), move || wait.recv().ok()));
        assert!(abandoned.as_mut().now_or_never().is_none());
        drop(abandoned);
        assert_eq!(slots.available_permits(), 0);
        let mut next = Box::pin(with_permit(slots.clone(), || "next"));
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!(slots.available_permits(), 0);
        drop(done);
        assert_eq!(next.await.unwrap(), "next");
    }
}
