//! The entries that are in force now, and the grants that came from them. Pure: files and clocks are handed in.
//! Must not read anything.

use std::{collections::BTreeMap, sync::Arc};

use subtle::{Choice, ConditionallySelectable as _};

use super::{
    Certificate, Ended, Grant, Rights,
    file::{Entry, FileError, TokenFile},
    grant::Recall,
};
use crate::{core::Principal, state_dir::TokenDigest};

/// Something in the table that changed, to be told to people and to the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whom it is about.
    pub principal: String,
    /// `granted`, `revoked`, `expired` or `changed`.
    pub what: &'static str,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    listed: Vec<Listed>,
    only_listed_certificates: bool,
    /// Certificates that nobody listed and that are connected, by fingerprint: a later revocation must reach them.
    unlisted: BTreeMap<String, Unlisted>,
}

#[derive(Debug)]
struct Listed {
    is_token: bool,
    entry: Entry,
    /// Read once. A certificate's is never compared with a token.
    digest: TokenDigest,
    rights: Arc<Rights>,
    recall: Recall,
    /// Set when its end was told.
    ended: Option<Ended>,
}

#[derive(Debug)]
struct Unlisted {
    names: Vec<String>,
    recall: Recall,
}

impl Listed {
    fn new(is_token: bool, entry: &Entry, now: u64) -> Result<Self, FileError> {
        let mut listed = Self {
            is_token,
            // A certificate by name has none; nothing hashes to zeros.
            digest: entry.digest().unwrap_or_else(TokenDigest::nobody),
            rights: Arc::new(entry.rights()?),
            entry: entry.clone(),
            recall: Recall::new(),
            ended: None,
        };
        listed.ended = listed.over(now);
        Ok(listed)
    }

    fn over(&self, now: u64) -> Option<Ended> {
        if self.entry.revoked.is_some() {
            return Some(Ended::Revoked);
        }
        self.entry.expires.is_some_and(|expires| expires.0 <= now).then_some(Ended::Expired)
    }

    /// The same token or certificate, for the same principal and rights. Its expiry may have moved.
    fn is_same(&self, other: &Self) -> bool {
        self.is_key_of(other) && self.entry.name == other.entry.name && self.rights == other.rights
    }

    fn is_key_of(&self, other: &Self) -> bool {
        self.is_token == other.is_token
            && (&self.entry.sha256, &self.entry.san) == (&other.entry.sha256, &other.entry.san)
    }

    fn is_of(&self, certificate: &Certificate<'_>) -> bool {
        !self.is_token
            && (self.entry.sha256.as_deref().is_some_and(|print| print.eq_ignore_ascii_case(certificate.fingerprint))
                || self.entry.san.as_ref().is_some_and(|san| certificate.names.contains(san)))
    }

    fn grant(&self, now: u64) -> Option<Grant> {
        let good = self.ended.or_else(|| self.over(now)).is_none();
        good.then(|| self.recall.grant(Principal::named(&self.entry.name), self.rights.clone()))
    }

    fn change(&self, what: &'static str) -> Change {
        Change { principal: self.entry.name.clone(), what }
    }
}

impl Table {
    /// Puts another file in force. Connections whose entry is gone, revoked or grants something else hear of it at once.
    pub(super) fn apply(&mut self, file: &TokenFile, now: u64) -> Result<Vec<Change>, FileError> {
        let mut next: Vec<Listed> =
            file.all().map(|(is_token, entry)| Listed::new(is_token, entry, now)).collect::<Result<_, _>>()?;
        let mut changes = Vec::new();
        let before = std::mem::take(&mut self.listed);
        for new in next.iter().filter(|new| new.ended.is_none()) {
            if !before.iter().any(|old| old.is_same(new) && old.ended.is_none()) {
                changes.push(new.change("granted"));
            }
        }
        for mut old in before.into_iter().filter(|old| old.ended.is_none()) {
            let is_elsewhere = next.iter().any(|new| new.is_key_of(&old) && new.ended.is_none());
            let why = match next.iter_mut().find(|new| new.is_same(&old)) {
                Some(new) if new.ended.is_none() => {
                    // Nothing to tell: its connections go on under the new entry.
                    std::mem::swap(&mut new.recall, &mut old.recall);
                    continue;
                }
                Some(new) => new.ended.unwrap_or(Ended::Revoked),
                None if is_elsewhere => Ended::Changed,
                None => Ended::Revoked,
            };
            old.recall.end(why);
            changes.push(old.change(why.word()));
        }
        self.listed = next;
        self.only_listed_certificates = file.only_listed_certificates;
        self.look_at_unlisted();
        Ok(changes)
    }

    /// Ends what has expired by now.
    pub(super) fn expire(&mut self, now: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        for listed in self.listed.iter_mut().filter(|listed| listed.ended.is_none()) {
            if let Some(why) = listed.over(now) {
                listed.ended = Some(why);
                listed.recall.end(why);
                changes.push(listed.change(why.word()));
            }
        }
        changes
    }

    /// What the bearer of these tokens gets. All that are offered must be right and mean the same: a wrong one beside a right one is not
    /// let in by the order in which they are looked at.
    pub(super) fn by_tokens(&self, owner: Option<&TokenDigest>, offered: &[TokenDigest], now: u64) -> Option<Grant> {
        // The owner's comes last, so that the others are at the places they have in the list.
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

    /// What the holder of this certificate gets. Where nothing is said about it: everything, as the principal `cert:` and its first name, else
    /// its fingerprint. So no certificate can be taken for the owner or for somebody in the file.
    pub(super) fn by_certificate(&mut self, certificate: &Certificate<'_>, now: u64) -> Option<Grant> {
        let mut listed: Vec<&Listed> = self.listed.iter().filter(|listed| listed.is_of(certificate)).collect();
        // Whatever else grants it something.
        if listed.iter().any(|listed| listed.over(now) == Some(Ended::Revoked)) {
            return None;
        }
        // The fingerprint says more than a name.
        listed.sort_by_key(|listed| listed.entry.sha256.is_none());
        if let Some(listed) = listed.first() {
            return listed.grant(now);
        }
        if self.only_listed_certificates {
            return None;
        }
        self.unlisted.retain(|_, unlisted| unlisted.recall.is_in_use());
        let unlisted = self
            .unlisted
            .entry(certificate.fingerprint.to_owned())
            .or_insert_with(|| Unlisted { names: certificate.names.to_vec(), recall: Recall::new() });
        let name = certificate.names.first().map_or(certificate.fingerprint, String::as_str);
        Some(unlisted.recall.grant(Principal::named(&format!("cert:{name}")), Arc::new(Rights::all())))
    }

    /// A file that names a certificate, or closes the door to those it does not name, counts for those that are in, too.
    fn look_at_unlisted(&mut self) {
        let (listed, only_listed) = (&self.listed, self.only_listed_certificates);
        self.unlisted.retain(|fingerprint, unlisted| {
            let certificate = Certificate { names: &unlisted.names, fingerprint };
            let mut found = listed.iter().filter(|listed| listed.is_of(&certificate)).peekable();
            let is_named = found.peek().is_some();
            if found.any(|listed| listed.entry.revoked.is_some()) || (only_listed && !is_named) {
                unlisted.recall.end(Ended::Revoked);
            } else if is_named {
                unlisted.recall.end(Ended::Changed);
            } else {
                return true;
            }
            false
        });
    }
}

/// Where the match is. Looks at every candidate whatever it finds: how long it takes says nothing about which one was right.
fn position<T>(candidates: impl Iterator<Item = T>, mut matches: impl FnMut(T) -> Choice) -> Option<usize> {
    let mut found = u64::MAX;
    for (at, candidate) in candidates.enumerate() {
        found.conditional_assign(&(at as u64), matches(candidate));
    }
    usize::try_from(found).ok().filter(|_| found != u64::MAX)
}

#[cfg(test)]
mod tests;
