//! Extracts the subject alternative names of a certificate: they identify a client, or the host names of our server.
//!
//! Parses only as much DER as this extension needs. It makes no trust decision: a client's certificate comes here after
//! its chain was verified, and our own comes from our file. A malformed certificate has no names.
//!
//! It is written by hand because of build time. x509-parser would add 18 crates, among them nom, time and num-bigint,
//! and about 25 s of CPU time to a debug build, for this one extension. webpki, which rustls uses to parse the
//! certificate, gives no access to e-mail names.

use std::net::IpAddr;

/// ASN.1 tags on the path to the extension.
const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
/// `[3]`, the extensions of a certificate.
const EXTENSIONS: u8 = 0xa3;
/// OID 2.5.29.17, subjectAltName.
const ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// Longest name of a principal. Bounded because it is written to records and logs.
const NAME_MAX_BYTES: usize = 256;

/// A subject alternative name of a kind that we use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CertificateName {
    /// `[1]`, an e-mail address.
    Email(String),
    /// `[2]`, a host name.
    Dns(String),
    /// `[6]`, such as a SPIFFE id.
    Uri(String),
    /// `[7]`, an IP address.
    Ip(IpAddr),
}

/// The names of a certificate, in order.
pub(super) fn of(certificate: &[u8]) -> Vec<CertificateName> {
    find(certificate).unwrap_or_default()
}

/// The names of a client certificate, in order of preference: URIs, then host names, then e-mail addresses. Names that
/// are too long for a principal are left out.
pub(super) fn client_names(certificate: &[u8]) -> Vec<String> {
    let mut names: Vec<(u8, String)> = of(certificate)
        .into_iter()
        .filter_map(|name| match name {
            CertificateName::Uri(uri) => Some((0, uri)),
            CertificateName::Dns(dns) => Some((1, dns)),
            CertificateName::Email(email) => Some((2, email)),
            CertificateName::Ip(_) => None,
        })
        .filter(|(_, name)| name.len() <= NAME_MAX_BYTES)
        .collect();
    // The sort is stable: names of one kind keep the certificate's order.
    names.sort_by_key(|(kind, _)| *kind);
    names.into_iter().map(|(_, name)| name).collect()
}

fn find(certificate: &[u8]) -> Option<Vec<CertificateName>> {
    let (certificate, _) = expect(certificate, SEQUENCE)?;
    let (mut fields, _) = expect(certificate, SEQUENCE)?;
    let extensions = loop {
        let (tag, field, rest) = element(fields)?;
        fields = rest;
        if tag == EXTENSIONS {
            break field;
        }
    };
    let (mut extensions, _) = expect(extensions, SEQUENCE)?;
    loop {
        let (extension, rest) = expect(extensions, SEQUENCE)?;
        extensions = rest;
        let (id, mut fields) = expect(extension, OBJECT_ID)?;
        if id != ALTERNATIVE_NAME {
            continue;
        }
        // A BOOLEAN may precede the value: whether the extension is critical.
        let value = loop {
            let (tag, value, rest) = element(fields)?;
            fields = rest;
            if tag == OCTET_STRING {
                break value;
            }
        };
        return Some(general_names(expect(value, SEQUENCE)?.0));
    }
}

fn general_names(mut list: &[u8]) -> Vec<CertificateName> {
    let mut names = Vec::new();
    while let Some((tag, value, rest)) = element(list) {
        list = rest;
        let text = || {
            let is_plain = !value.is_empty() && value.iter().all(u8::is_ascii_graphic);
            is_plain.then(|| String::from_utf8_lossy(value).into_owned())
        };
        let name = match tag {
            0x81 => text().map(CertificateName::Email),
            0x82 => text().map(|name| CertificateName::Dns(name.to_ascii_lowercase())),
            0x86 => text().map(CertificateName::Uri),
            0x87 => ip(value).map(CertificateName::Ip),
            _ => None,
        };
        names.extend(name);
    }
    names
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok()
}

/// The content of an element with this tag, and the bytes after it.
fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(bytes)?;
    (found == tag).then_some((content, rest))
}

/// Tag and content of the first element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk::<2>()?;
    let (size, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Long form: the low bits are the number of length bytes. Four are more than any certificate needs.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |size, byte| size << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(size)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn certificate(names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = names;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn uri(name: &str) -> SanType {
        SanType::URI(name.try_into().unwrap())
    }

    fn email(name: &str) -> SanType {
        SanType::Rfc822Name(name.try_into().unwrap())
    }

    #[test]
    fn client_names_are_ordered_by_uri_then_host_then_email() {
        let check = |names: Vec<SanType>, expected: &[&str]| assert_eq!(client_names(&certificate(names)), expected);
        check(
            vec![email("a@b"), dns("X.example"), uri("spiffe://c/d"), uri("spiffe://a")],
            &["spiffe://c/d", "spiffe://a", "x.example", "a@b"],
        );
        check(vec![email("a@b"), dns("X.example")], &["x.example", "a@b"]);
        check(vec![email("a@b")], &["a@b"]);
        check(vec![SanType::IpAddress("127.0.0.1".parse().unwrap())], &[]);
        check(Vec::new(), &[]);
        check(vec![uri(&"x".repeat(300))], &[]);
    }

    #[test]
    fn parsing_a_truncated_or_corrupted_certificate_does_not_panic() {
        let whole = certificate(vec![dns("x.example"), SanType::IpAddress("::1".parse().unwrap())]);
        assert_eq!(of(&whole), [CertificateName::Dns("x.example".into()), CertificateName::Ip("::1".parse().unwrap())]);
        for at in 0..whole.len() {
            assert_eq!(of(&whole[..at]), []);
            for byte in [0, 0x7f, 0x80, 0x84, 0x85, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                of(&changed);
            }
        }
    }
}
