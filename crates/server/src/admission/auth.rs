//! Reads the tokens of a request: `Authorization: Bearer …` or `?token=…`. Returns digests only, and wipes
//! its copies of the tokens.

use zeroize::Zeroizing;

use super::http::HttpRequest;
use crate::state_dir::TokenDigest;

/// Digests of all tokens that a request offers. `None` if one of them is malformed: then the whole request counts as
/// unauthorized.
pub(super) fn offered_tokens(request: &HttpRequest<'_>) -> Option<Vec<TokenDigest>> {
    let from_header = request.values("authorization").map(bearer);
    let from_query = request
        .query()
        .split('&')
        .filter_map(|pair| pair.split_once('=').filter(|(name, _)| *name == "token"))
        .map(|(_, value)| percent_decode(value.as_bytes()));
    from_header.chain(from_query).map(|credential| credential.map(|bytes| TokenDigest::of(&bytes))).collect()
}

/// The token of a Bearer credential. `None` for another scheme.
fn bearer(value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (scheme, rest) = value.split_at_checked(b"bearer".len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && rest.first() == Some(&b' ');
    is_bearer.then(|| Zeroizing::new(rest.trim_ascii().to_vec()))
}

/// Returns `None` if an escape is malformed.
fn percent_decode(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let mut decoded = Zeroizing::new(Vec::with_capacity(text.len()));
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            decoded.push(*byte);
            continue;
        }
        let [high, low, after @ ..] = after else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let value = digit(*high)? * 16 + digit(*low)?;
        decoded.push(u8::try_from(value).ok()?);
        rest = after;
    }
    Some(decoded)
}
