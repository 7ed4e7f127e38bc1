//! Who may come in, and what they may do then.
//!
//! The door asks [`Access`] with what a peer offers (tokens, a certificate) and gets a [`Grant`] or nothing. Peers for whom the
//! kernel vouches (a Unix socket of the owner's uid, standard streams) have [`Grant::owner`] without asking.
//!
//! Must not know HTTP, TLS, methods by name, or sessions.

mod grant;

pub use grant::{Ended, Grant, Rights};

use crate::{core::Principal, state_dir::TokenDigest};

/// A client's certificate as far as access looks at it; the TLS library has verified it before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate<'a> {
    /// Its subject alternative names, in their order.
    pub names: &'a [String],
    /// SHA-256 of its DER, 64 lower-case hexadecimal digits.
    pub fingerprint: &'a str,
}

/// Everyone who may come in.
#[derive(Debug, Default)]
pub struct Access {
    /// The owner's own token.
    owner: Option<TokenDigest>,
    /// Nobody has to prove anything.
    is_open: bool,
}

impl Access {
    /// Lets in the bearers of the owner's token.
    #[must_use]
    pub fn new(owner: TokenDigest) -> Self {
        Self { owner: Some(owner), is_open: false }
    }

    /// Lets in everybody who reaches the socket, as the owner.
    #[must_use]
    pub fn open() -> Self {
        Self { owner: None, is_open: true }
    }

    /// What somebody gets who offers nothing; `None` where something must be offered.
    #[must_use]
    pub fn anybody(&self) -> Option<Grant> {
        self.is_open.then(Grant::owner)
    }

    /// What the bearer of these tokens gets. All that are offered must be right and mean the same principal: a wrong one beside a right
    /// one is not let in by the order in which they are looked at.
    #[must_use]
    pub fn by_tokens(&self, offered: &[TokenDigest]) -> Option<Grant> {
        let mut right = 0_usize;
        // No early end: how many were looked at must not depend on which was right.
        for digest in offered {
            right += usize::from(self.owner.is_some_and(|owner| owner.matches(digest)));
        }
        (!offered.is_empty() && right == offered.len()).then(Grant::owner)
    }

    /// What the holder of this certificate gets. Its principal is its first name, else its fingerprint, behind `cert:`: no certificate
    /// can be taken for the owner or for a token's name.
    #[must_use]
    pub fn by_certificate(&self, certificate: &Certificate<'_>) -> Option<Grant> {
        let name = certificate.names.first().map_or(certificate.fingerprint, String::as_str);
        Some(Grant::lasting(Principal::named(&format!("cert:{name}")), Rights::all()))
    }
}
