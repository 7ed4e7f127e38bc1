//! The entries that are currently in force, and the grants made from them. Pure: the caller passes the file's contents
//! and the time.

use std::{collections::BTreeMap, sync::Arc};

use subtle::{Choice, ConditionallySelectable as _};

use super::{
    Certificate, Grant, GrantEnd, Rights,
    file::{AccessEntry, TokenFile, TokenFileError},
    grant::GrantRevoker,
};
use crate::{core::Principal, state_dir::TokenDigest};

/// A change of an entry, to be logged and recorded in the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessChange {
    pub principal: String,
    /// `granted`, `revoked`, `expired` or `changed`.
    pub what: &'static str,
}

#[derive(Debug, Default)]
pub(super) struct AccessTable {
    listed: Vec<ListedEntry>,
    only_listed_certificates: bool,
    /// Connected certificates that are not listed, by fingerprint. Kept so that a later revocation can end their
    /// connections.
    unlisted: BTreeMap<String, UnlistedCertificate>,
}

#[derive(Debug)]
struct ListedEntry {
    is_token: bool,
    entry: AccessEntry,
    /// Decoded once. The digest of a certificate is never compared with a token.
    digest: TokenDigest,
    rights: Arc<Rights>,
    revoker: GrantRevoker,
    /// Why the entry has ended. Once this is set, the end is not reported again.
    ended: Option<GrantEnd>,
}

#[derive(Debug)]
struct UnlistedCertificate {
    names: Vec<String>,
    revoker: GrantRevoker,
}

impl ListedEntry {
    fn new(is_token: bool, entry: &AccessEntry, now: u64) -> Result<Self, TokenFileError> {
        let mut listed = Self {
            is_token,
            // An entry for a certificate by name has no digest. No token hashes to zeros.
            digest: entry.digest().unwrap_or_else(TokenDigest::of_no_token),
            rights: Arc::new(entry.rights()?),
            entry: entry.clone(),
            revoker: GrantRevoker::new(),
            ended: None,
        };
        listed.ended = listed.end_by(now);
        Ok(listed)
    }

    /// Why the entry is no longer valid at `now`.
    fn end_by(&self, now: u64) -> Option<GrantEnd> {
        if self.entry.revoked.is_some() {
            return Some(GrantEnd::Revoked);
        }
        self.entry.expires.is_some_and(|expires| expires.0 <= now).then_some(GrantEnd::Expired)
    }

    /// Whether it is the same token or certificate with the same principal and rights. The expiry date may differ.
    fn is_same(&self, other: &Self) -> bool {
        self.has_same_key(other) && self.entry.name == other.entry.name && self.rights == other.rights
    }

    fn has_same_key(&self, other: &Self) -> bool {
        self.is_token == other.is_token
            && (&self.entry.sha256, &self.entry.san) == (&other.entry.sha256, &other.entry.san)
    }

    fn matches(&self, certificate: &Certificate<'_>) -> bool {
        !self.is_token
            && (self.entry.sha256.as_deref().is_some_and(|print| print.eq_ignore_ascii_case(certificate.fingerprint))
                || self.entry.san.as_ref().is_some_and(|san| certificate.names.contains(san)))
    }

    fn grant(&self, now: u64) -> Option<Grant> {
        let is_valid = self.ended.or_else(|| self.end_by(now)).is_none();
        is_valid.then(|| self.revoker.grant(Principal::named(&self.entry.name), self.rights.clone()))
    }

    fn change(&self, what: &'static str) -> AccessChange {
        AccessChange { principal: self.entry.name.clone(), what }
    }
}

impl AccessTable {
    /// Replaces the entries with those of `file`. Connections whose entry was removed, revoked or changed are notified
    /// at once.
    pub(super) fn apply(&mut self, file: &TokenFile, now: u64) -> Result<Vec<AccessChange>, TokenFileError> {
        // Convert all entries first, so that an invalid file changes nothing.
        let mut next: Vec<ListedEntry> =
            file.all().map(|(is_token, entry)| ListedEntry::new(is_token, entry, now)).collect::<Result<_, _>>()?;
        let mut changes = Vec::new();
        let before = std::mem::take(&mut self.listed);
        for new in next.iter().filter(|new| new.ended.is_none()) {
            if !before.iter().any(|old| old.is_same(new) && old.ended.is_none()) {
                changes.push(new.change("granted"));
            }
        }
        for mut old in before.into_iter().filter(|old| old.ended.is_none()) {
            let has_successor = next.iter().any(|new| new.has_same_key(&old) && new.ended.is_none());
            let why = match next.iter_mut().find(|new| new.is_same(&old)) {
                Some(new) if new.ended.is_none() => {
                    // Nothing to report. The grants of the old entry now belong to the new one.
                    std::mem::swap(&mut new.revoker, &mut old.revoker);
                    continue;
                }
                Some(new) => new.ended.unwrap_or(GrantEnd::Revoked),
                None if has_successor => GrantEnd::Changed,
                None => GrantEnd::Revoked,
            };
            old.revoker.end(why);
            changes.push(old.change(why.as_str()));
        }
        self.listed = next;
        self.only_listed_certificates = file.only_listed_certificates;
        self.check_unlisted();
        Ok(changes)
    }

    /// Ends the entries that have expired by `now`.
    pub(super) fn expire(&mut self, now: u64) -> Vec<AccessChange> {
        let mut changes = Vec::new();
        for listed in self.listed.iter_mut().filter(|listed| listed.ended.is_none()) {
            if let Some(why) = listed.end_by(now) {
                listed.ended = Some(why);
                listed.revoker.end(why);
                changes.push(listed.change(why.as_str()));
            }
        }
        changes
    }

    /// The grant for these tokens. All of them must be valid and belong to the same entry, so that the result does not
    /// depend on the order in which tokens are compared.
    pub(super) fn by_tokens(&self, owner: Option<&TokenDigest>, offered: &[TokenDigest], now: u64) -> Option<Grant> {
        // The owner's digest comes last, so that the indexes of the others are the same as in the list of tokens.
        let known = || self.listed.iter().filter(|listed| listed.is_token).map(|listed| &listed.digest).chain(owner);
        let mut found = offered.iter().map(|digest| position(known(), |known| known.ct_matches(digest)));
        let first = found.next()??;
        let mut agree = true;
        for other in found {
            agree &= other == Some(first);
        }
        match self.listed.iter().filter(|listed| listed.is_token).nth(first) {
            _ if !agree => None,
            Some(listed) => listed.grant(now),
            None => Some(Grant::owner()),
        }
    }

    /// The grant for this certificate. A certificate that is not listed gets all rights. Its principal is `cert:` and
    /// its first name, or `cert:` and its fingerprint if it has no name. The prefix keeps it apart from the owner and
    /// from principals in the file.
    pub(super) fn by_certificate(&mut self, certificate: &Certificate<'_>, now: u64) -> Option<Grant> {
        let mut listed: Vec<&ListedEntry> = self.listed.iter().filter(|listed| listed.matches(certificate)).collect();
        // A revoked entry wins over all other entries that match.
        if listed.iter().any(|listed| listed.end_by(now) == Some(GrantEnd::Revoked)) {
            return None;
        }
        // An entry by fingerprint is more specific than one by name.
        listed.sort_by_key(|listed| listed.entry.sha256.is_none());
        if let Some(listed) = listed.first() {
            return listed.grant(now);
        }
        if self.only_listed_certificates {
            return None;
        }
        self.unlisted.retain(|_, unlisted| unlisted.revoker.is_in_use());
        let unlisted = self
            .unlisted
            .entry(certificate.fingerprint.to_owned())
            .or_insert_with(|| UnlistedCertificate { names: certificate.names.to_vec(), revoker: GrantRevoker::new() });
        let name = certificate.names.first().map_or(certificate.fingerprint, String::as_str);
        Some(unlisted.revoker.grant(Principal::named(&format!("cert:{name}")), Arc::new(Rights::all())))
    }

    /// Applies a new file to certificates that are connected without being listed: ends their grants if the file now
    /// names them or accepts only listed certificates.
    fn check_unlisted(&mut self) {
        let listed = &self.listed;
        let only_listed = self.only_listed_certificates;
        self.unlisted.retain(|fingerprint, unlisted| {
            let certificate = Certificate { names: &unlisted.names, fingerprint };
            let mut found = listed.iter().filter(|listed| listed.matches(&certificate)).peekable();
            let is_named = found.peek().is_some();
            if found.any(|listed| listed.entry.revoked.is_some()) || (only_listed && !is_named) {
                unlisted.revoker.end(GrantEnd::Revoked);
            } else if is_named {
                unlisted.revoker.end(GrantEnd::Changed);
            } else {
                return true;
            }
            false
        });
    }
}

/// The index of the match. Compares all candidates even after a match, so that the time does not reveal which one
/// matched.
fn position<T>(candidates: impl Iterator<Item = T>, mut matches: impl FnMut(T) -> Choice) -> Option<usize> {
    let mut found = u64::MAX;
    for (at, candidate) in candidates.enumerate() {
        found.conditional_assign(&(at as u64), matches(candidate));
    }
    usize::try_from(found).ok().filter(|_| found != u64::MAX)
}

#[cfg(test)]
mod tests;
