//! Tests which entry admits whom, and whose connections are notified of a change.

use std::{cell::Cell, time::Instant};

use futures_util::FutureExt as _;

use super::*;
use crate::access::Timestamp;

fn digest(token: &str) -> TokenDigest {
    TokenDigest::of(token.as_bytes())
}

fn entry(name: &str, token: &str) -> AccessEntry {
    AccessEntry {
        name: name.to_owned(),
        sha256: Some(digest(token).to_hex()),
        san: None,
        scopes: vec!["exec".to_owned()],
        roots: Vec::new(),
        env: None,
        sandbox: None,
        created: None,
        expires: None,
        revoked: None,
    }
}

fn tokens(entries: Vec<AccessEntry>) -> TokenFile {
    TokenFile { tokens: entries, ..TokenFile::default() }
}

fn certificates(entries: Vec<AccessEntry>) -> TokenFile {
    TokenFile { certificates: entries, ..TokenFile::default() }
}

fn ended(grant: &mut Grant) -> Option<GrantEnd> {
    grant.ended().now_or_never()
}

fn named(grant: Option<Grant>) -> Option<String> {
    grant.map(|grant| grant.principal().to_string())
}

#[test]
fn all_offered_tokens_must_be_valid_and_belong_to_one_entry() {
    let mut table = AccessTable::default();
    table.apply(&tokens(vec![entry("a", "ta"), entry("b", "tb")]), 0).unwrap();
    let owner = digest("to");
    let ask = |offered: &[&str]| {
        let offered: Vec<TokenDigest> = offered.iter().map(|token| digest(token)).collect();
        named(table.by_tokens(Some(&owner), &offered, 0))
    };
    for (offered, principal) in [
        (&["ta"][..], Some("a")),
        (&["tb"], Some("b")),
        (&["to"], Some("owner")),
        (&["ta", "ta"], Some("a")),
        (&[], None),
        (&["x"], None),
        (&["ta", "tb"], None),
        (&["ta", "x"], None),
        (&["x", "ta"], None),
        (&["to", "ta"], None),
    ] {
        assert_eq!(ask(offered).as_deref(), principal, "{offered:?}");
    }
}

#[test]
fn every_candidate_is_compared_even_after_a_match() {
    for right in [0, 7, 49, 50, usize::MAX] {
        let compared = Cell::new(0);
        let found = position(0..50_usize, |at| {
            compared.set(compared.get() + 1);
            Choice::from(u8::from(at == right))
        });
        assert_eq!((found, compared.get()), ((right < 50).then_some(right), 50));
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a comparison of times")]
fn the_time_of_a_lookup_does_not_reveal_which_token_matched() {
    let mut table = AccessTable::default();
    table.apply(&tokens((0..3000).map(|n| entry(&format!("n{n}"), &format!("t{n}"))).collect()), 0).unwrap();
    let median = |token: &str| {
        let offered = [digest(token)];
        let mut times: Vec<_> = (0..51)
            .map(|_| {
                let begun = Instant::now();
                std::hint::black_box(table.by_tokens(None, &offered, 0));
                begun.elapsed()
            })
            .collect();
        times.sort();
        times[times.len() / 2]
    };
    let times = [median("t0"), median("t2999"), median("none")];
    let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    // A search that stopped at the match would be a thousand times faster for the first token.
    assert!(*most < *least * 10, "{times:?}");
}

#[test]
fn revoked_expired_changed_and_removed_entries_end_only_their_own_grants() {
    let mut table = AccessTable::default();
    let file = tokens(["a", "b", "c", "d"].map(|name| entry(name, name)).into());
    table.apply(&file, 10).unwrap();
    let mut grants = ["a", "b", "c", "d"].map(|token| table.by_tokens(None, &[digest(token)], 10).unwrap());
    assert!(grants.iter_mut().all(|grant| ended(grant).is_none()));
    let mut next = file.clone();
    next.tokens[0].revoked = Some(Timestamp(11));
    next.tokens[1].expires = Some(Timestamp(20));
    next.tokens[2].scopes = vec!["stdin".to_owned()];
    let changes = table.apply(&next, 11).unwrap();
    let [a, b, c, d] = &mut grants;
    assert_eq!(
        [ended(a), ended(b), ended(c), ended(d)],
        [Some(GrantEnd::Revoked), None, Some(GrantEnd::Changed), None]
    );
    let reported: Vec<(&str, &str)> = changes.iter().map(|change| (change.principal.as_str(), change.what)).collect();
    assert_eq!(reported, [("c", "granted"), ("a", "revoked"), ("c", "changed")]);
    assert!(table.expire(19).is_empty() && table.by_tokens(None, &[digest("b")], 19).is_some());
    assert!(
        table.by_tokens(None, &[digest("b")], 20).is_none(),
        "an expired entry gives no grants, even before `expire` runs"
    );
    assert_eq!(table.expire(20).len(), 1);
    assert_eq!((ended(b), ended(d)), (Some(GrantEnd::Expired), None));
    table.apply(&TokenFile::default(), 21).unwrap();
    assert_eq!(ended(d), Some(GrantEnd::Revoked));
}

#[test]
fn a_certificate_matches_by_fingerprint_or_name_and_one_revoked_match_refuses_it() {
    let print = "ab".repeat(32);
    let names = ["alice@example.org".to_owned(), "host.example".to_owned()];
    let certificate = Certificate { names: &names, fingerprint: &print };
    let mut table = AccessTable::default();
    let mut unlisted = table.by_certificate(&certificate, 0).unwrap();
    assert_eq!(ended(&mut unlisted), None);
    assert_eq!(unlisted.principal().as_str(), "cert:alice@example.org");
    let by_name = AccessEntry { sha256: None, san: Some("host.example".to_owned()), ..entry("host", "") };
    let by_print = AccessEntry { sha256: Some(print.clone()), ..entry("laptop", "") };
    table.apply(&certificates(vec![by_name.clone()]), 0).unwrap();
    assert_eq!(ended(&mut unlisted), Some(GrantEnd::Changed));
    assert_eq!(named(table.by_certificate(&certificate, 0)).as_deref(), Some("host"));
    table.apply(&certificates(vec![by_name.clone(), by_print.clone()]), 0).unwrap();
    assert_eq!(named(table.by_certificate(&certificate, 0)).as_deref(), Some("laptop"));
    for revoked in [0, 1] {
        let mut both = vec![by_name.clone(), by_print.clone()];
        both[revoked].revoked = Some(Timestamp(1));
        table.apply(&certificates(both), 1).unwrap();
        assert!(table.by_certificate(&certificate, 1).is_none());
    }
    // The digest of a certificate entry is not accepted as a token.
    table.apply(&certificates(vec![AccessEntry { sha256: Some(digest("x").to_hex()), ..entry("c", "") }]), 1).unwrap();
    assert!(table.by_tokens(None, &[digest("x")], 1).is_none());
}

#[test]
fn revoking_a_fingerprint_ends_the_grant_of_an_unlisted_certificate() {
    let print = "cd".repeat(32);
    let certificate = Certificate { names: &[], fingerprint: &print };
    let mut table = AccessTable::default();
    let mut grant = table.by_certificate(&certificate, 0).unwrap();
    assert_eq!(grant.principal().as_str(), format!("cert:{print}"));
    let mut revoked = AccessEntry { sha256: Some(print.clone()), revoked: Some(Timestamp(1)), ..entry("lost", "") };
    revoked.scopes.clear();
    table.apply(&certificates(vec![revoked]), 1).unwrap();
    assert_eq!(ended(&mut grant), Some(GrantEnd::Revoked));
    let mut grant = AccessTable::default().by_certificate(&certificate, 0).unwrap();
    assert_eq!(ended(&mut grant), None, "dropping the table does not end its grants");
    let mut closed = AccessTable::default();
    let mut grant = closed.by_certificate(&certificate, 0).unwrap();
    closed.apply(&TokenFile { only_listed_certificates: true, ..TokenFile::default() }, 0).unwrap();
    assert_eq!(ended(&mut grant), Some(GrantEnd::Revoked));
    assert!(closed.by_certificate(&certificate, 0).is_none());
}
