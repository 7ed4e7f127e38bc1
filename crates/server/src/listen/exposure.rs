//! Refuses configurations that would expose the server to a network without protection. The check runs before the first
//! socket is bound.

use std::net::IpAddr;

use super::ListenUrl;

/// Authentication of TCP clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredAuth {
    /// Clients must offer a token.
    Token,
    /// Clients need no token. Without `--client-ca`, every client that can connect is admitted.
    None,
}

/// The flags that apply to all listeners.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExposureTerms {
    /// `--auth`, if given. By default a token is required, except from clients with a certificate.
    pub auth: Option<RequiredAuth>,
    /// Both `--tls-cert` and `--tls-key` were given.
    pub has_certificate: bool,
    /// `--client-ca` was given: clients of `wss://` must present a certificate.
    pub asks_for_certificates: bool,
    pub insecure_plaintext: bool,
}

impl ExposureTerms {
    /// Whether a listener requires a token.
    pub fn asks_for_token(&self, url: &ListenUrl) -> bool {
        match (url, self.auth) {
            (ListenUrl::Unix(_) | ListenUrl::Stdio, _) | (_, Some(RequiredAuth::None)) => false,
            (_, Some(RequiredAuth::Token)) | (ListenUrl::Ws(_), None) => true,
            (ListenUrl::Wss(_), None) => !self.asks_for_certificates,
        }
    }

    /// Whether a listener admits every client that can connect.
    pub fn is_open(&self, url: &ListenUrl) -> bool {
        match url {
            ListenUrl::Ws(_) => !self.asks_for_token(url),
            ListenUrl::Wss(_) => !self.asks_for_token(url) && !self.asks_for_certificates,
            ListenUrl::Unix(_) | ListenUrl::Stdio => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExposureError {
    /// `--auth none` on a listener that other machines can reach.
    #[error(
        "`{url}` is reachable from other machines: `--auth none` is allowed only on loopback and Unix sockets, or with `--client-ca`"
    )]
    NoAuth { url: ListenUrl },
    /// The token would cross a network in clear text, and `--insecure-plaintext` was not given.
    #[error(
        "`{url}` is reachable from other machines and has no TLS: use `wss://` with `--tls-cert` and `--tls-key`, or pass `--insecure-plaintext` if a TLS proxy stands in front of it"
    )]
    Plaintext { url: ListenUrl },
    /// A `wss://` listener without a certificate.
    #[error("`{url}` needs a certificate: pass `--tls-cert` and `--tls-key`")]
    NoCertificate { url: ListenUrl },
    /// A certificate that no listener uses. The user may believe that TLS is on.
    #[error("`--tls-cert` is given, but no listener is `wss://`")]
    UnusedCertificate,
}

/// Checks every listener. The error names the first one that must not be used like this.
pub fn check(listeners: &[ListenUrl], terms: &ExposureTerms) -> Result<(), ExposureError> {
    for url in listeners {
        let (address, has_tls) = match *url {
            ListenUrl::Ws(address) => (address, false),
            ListenUrl::Wss(address) => (address, true),
            ListenUrl::Unix(_) | ListenUrl::Stdio => continue,
        };
        if has_tls && !terms.has_certificate {
            return Err(ExposureError::NoCertificate { url: url.clone() });
        }
        if is_loopback(address.ip()) {
            continue;
        }
        // The order matters: `--insecure-plaintext` must not replace authentication.
        if terms.is_open(url) {
            return Err(ExposureError::NoAuth { url: url.clone() });
        }
        if !has_tls && !terms.insecure_plaintext {
            return Err(ExposureError::Plaintext { url: url.clone() });
        }
    }
    if terms.has_certificate && !listeners.iter().any(|url| matches!(url, ListenUrl::Wss(_))) {
        return Err(ExposureError::UnusedCertificate);
    }
    Ok(())
}

/// Whether only this machine can reach an address. `::ffff:127.0.0.1` counts as 127.0.0.1.
pub(crate) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::{ExposureError, ExposureTerms, ListenUrl, RequiredAuth, check};

    const LOCAL: [&str; 4] = ["127.0.0.1:0", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"];
    const OPEN: [&str; 8] = [
        "0.0.0.0:0",
        "[::]:80",
        "10.0.0.1:80",
        "192.168.1.1:80",
        "[fe80::1]:80",
        "[::ffff:0.0.0.0]:80",
        "[::ffff:10.0.0.1]:80",
        "[::2]:80",
    ];

    /// All combinations of the flags.
    fn all_terms() -> impl Iterator<Item = ExposureTerms> {
        (0..24).map(|n| ExposureTerms {
            auth: [None, Some(RequiredAuth::Token), Some(RequiredAuth::None)][n % 3],
            has_certificate: n / 3 % 2 == 1,
            asks_for_certificates: n / 6 % 2 == 1,
            insecure_plaintext: n / 12 == 1,
        })
    }

    /// The expected result for one listener, independent of the implementation.
    fn expected(has_tls: bool, is_reachable: bool, terms: &ExposureTerms) -> &'static str {
        let has_token = terms.auth != Some(RequiredAuth::None);
        match (has_tls, is_reachable) {
            (true, _) if !terms.has_certificate => "certificate",
            (false, true) if !has_token => "auth",
            (false, true) if !terms.insecure_plaintext => "plaintext",
            (true, true) if !has_token && !terms.asks_for_certificates => "auth",
            (false, _) if terms.has_certificate => "unused",
            _ => "fine",
        }
    }

    #[test]
    fn listeners_beyond_loopback_need_authentication_and_encryption() {
        for terms in all_terms() {
            for (addresses, is_reachable) in [(&LOCAL[..], false), (&OPEN[..], true)] {
                for (address, scheme) in addresses.iter().flat_map(|address| [(address, "ws"), (address, "wss")]) {
                    let url: ListenUrl = format!("{scheme}://{address}").parse().unwrap();
                    // The listener under test comes second, to show that not only the first is checked.
                    let word = match check(&["unix:///x".parse().unwrap(), url.clone()], &terms) {
                        Ok(()) => "fine",
                        Err(ExposureError::NoAuth { .. }) => "auth",
                        Err(ExposureError::Plaintext { .. }) => "plaintext",
                        Err(ExposureError::NoCertificate { .. }) => "certificate",
                        Err(ExposureError::UnusedCertificate) => "unused",
                    };
                    assert_eq!(word, expected(scheme == "wss", is_reachable, &terms), "{url} {terms:?}");
                }
            }
        }
    }

    #[test]
    fn a_client_certificate_replaces_the_token_unless_both_are_required() {
        let [ws, wss, unix] =
            ["ws://[::1]:1", "wss://[::1]:1", "unix:///x"].map(|url| url.parse::<ListenUrl>().unwrap());
        for terms in all_terms() {
            assert_eq!(terms.asks_for_token(&ws), terms.auth != Some(RequiredAuth::None));
            let is_replaced = terms.asks_for_certificates && terms.auth.is_none();
            assert_eq!(terms.asks_for_token(&wss), terms.auth != Some(RequiredAuth::None) && !is_replaced);
            assert!(!terms.asks_for_token(&unix) && !terms.is_open(&unix));
        }
    }

    #[test]
    fn refusals_name_the_flags_that_help() {
        let open = ["ws://0.0.0.0:1".parse().unwrap()];
        let text = check(&open, &ExposureTerms::default()).unwrap_err().to_string();
        assert!(text.contains("--insecure-plaintext") && text.contains("--tls-cert"), "{text}");
        let none =
            ExposureTerms { auth: Some(RequiredAuth::None), insecure_plaintext: true, ..ExposureTerms::default() };
        let text = check(&open, &none).unwrap_err().to_string();
        assert!(text.contains("--auth none"), "{text}");
        let text = check(&["wss://[::1]:1".parse().unwrap()], &ExposureTerms::default()).unwrap_err().to_string();
        assert!(text.contains("--tls-cert") && text.contains("--tls-key"), "{text}");
    }
}
