//! Reads the tokens of a request: `Authorization: Bearer …` or `?token=…`. Returns digests only, and wipes
//! its copies of the tokens.

use exec_server_protocol::path::percent_decode;
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
        .map(|(_, value)| percent_decode(value.as_bytes()).map(Zeroizing::new));
    from_header.chain(from_query).map(|credential| credential.map(|bytes| TokenDigest::of(&bytes))).collect()
}

/// The token of a Bearer credential. `None` for another scheme.
fn bearer(value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (scheme, rest) = value.split_at_checked(b"bearer".len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && rest.first() == Some(&b' ');
    is_bearer.then(|| Zeroizing::new(rest.trim_ascii().to_vec()))
}
