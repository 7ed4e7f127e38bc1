//! Property tests of the lease, the ledger and the retention against models that are too simple to be wrong.

use exec_server_session::{
    FollowerId, FollowerKind, LEDGER_KEYS_MAX, Lease, LeaseState, LogPosition, Retention, StdinLedger, Ttl,
    UnknownWrite, WriteBegin, WriteProgress,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum LeaseOp {
    Attach { conn: u64 },
    Detach { conn: u64 },
    SetTtl(Option<u64>),
    Used,
    Unused,
    Wait(u64),
}

fn lease_op() -> impl Strategy<Value = LeaseOp> {
    prop_oneof![
        (0..4_u64).prop_map(|conn| LeaseOp::Attach { conn }),
        (0..4_u64).prop_map(|conn| LeaseOp::Detach { conn }),
        proptest::option::of(0..200_u64).prop_map(LeaseOp::SetTtl),
        Just(LeaseOp::Used),
        Just(LeaseOp::Unused),
        (0..150_u64).prop_map(LeaseOp::Wait),
    ]
}

/// The model keeps only the history and replays all of it each time.
fn naive(history: &[(u64, LeaseOp)], ttl: u64) -> LeaseState {
    let mut holder = None;
    let mut since = 0;
    let mut ttl = Some(ttl);
    let mut dead = false;
    let mut used = false;
    for (now, op) in history {
        dead |= holder.is_none() && !used && ttl.is_some_and(|ttl| *now >= since + ttl);
        match op {
            LeaseOp::Attach { conn } if !dead => holder = Some(*conn),
            LeaseOp::Detach { conn } if holder == Some(*conn) => (holder, since) = (None, *now),
            LeaseOp::SetTtl(new) => ttl = *new,
            LeaseOp::Used => used = true,
            LeaseOp::Unused => (used, since) = (false, if holder.is_none() { *now } else { since }),
            LeaseOp::Attach { .. } | LeaseOp::Detach { .. } | LeaseOp::Wait(_) => {}
        }
    }
    match holder {
        _ if dead => LeaseState::Expired,
        Some(conn) => LeaseState::Attached { conn },
        None => LeaseState::Detached { since_ns: since },
    }
}

fn ttl_of(ttl: Option<u64>) -> Ttl {
    ttl.map_or(Ttl::None, Ttl::Nanos)
}

proptest! {
    #[test]
    fn lease_agrees_with_a_replay_of_its_history(ops in proptest::collection::vec(lease_op(), 0..60)) {
        let mut lease = Lease::new(Ttl::Nanos(100), 0);
        let mut now = 0;
        let mut history = Vec::new();
        let mut ttl = Some(100);
        let mut is_used = false;
        for op in ops {
            if let LeaseOp::Wait(ns) = op {
                now += ns;
            }
            lease.poll_expired(now);
            let before = lease;
            match op {
                LeaseOp::Attach { conn } => lease.handle_attach(conn, now),
                LeaseOp::Detach { conn } => {
                    prop_assert_eq!(lease.handle_detach(conn, now), before.state() == LeaseState::Attached { conn });
                }
                LeaseOp::SetTtl(new) => {
                    ttl = new;
                    lease.set_ttl(ttl_of(new));
                }
                LeaseOp::Used => {
                    is_used = true;
                    lease.handle_used();
                }
                LeaseOp::Unused => {
                    is_used = false;
                    lease.handle_unused(now);
                }
                LeaseOp::Wait(_) => {}
            }
            history.push((now, op));
            // Like the holder, the model checks for expiry on every operation and whenever time advances.
            prop_assert_eq!(lease.state(), naive(&history, 100));
            prop_assert_eq!((lease.ttl(), lease.is_used()), (ttl_of(ttl), is_used));
            prop_assert_eq!(lease.is_attached(), matches!(lease.state(), LeaseState::Attached { .. }));
            let deadline = match lease.state() {
                LeaseState::Detached { since_ns } if !is_used => ttl.map(|ttl| since_ns + ttl),
                LeaseState::Detached { .. } | LeaseState::Attached { .. } | LeaseState::Expired => None,
            };
            prop_assert_eq!(lease.deadline_ns(), deadline);
        }
    }

    #[test]
    fn ledger_agrees_with_a_list_of_all_writes(ops in proptest::collection::vec((0..40_u8, 0..3_u64, 0..8_u64, 0..3_u32), 0..200)) {
        let mut ledger = StdinLedger::default();
        let mut model: Vec<(u8, u64, u64, Option<u32>)> = Vec::new();
        for (name, total, n, digest) in ops {
            // An older sender gives no digest. Its writes are compared by length only.
            let key = [name; 16];
            let total = total * 4;
            let digest = digest.checked_sub(1);
            let expected = match model.iter().find(|(known, ..)| *known == name) {
                None => WriteBegin::New,
                Some((_, known, ..)) if *known != total => WriteBegin::Mismatch { total: *known },
                Some((.., Some(known))) if digest.is_some_and(|digest| digest != *known) => WriteBegin::Mismatch { total },
                Some((_, known, done, _)) if done == known => WriteBegin::Done,
                Some((_, _, done, _)) => WriteBegin::Continue { done: *done },
            };
            if expected == WriteBegin::New {
                model.push((name, total, 0, digest));
            }
            prop_assert_eq!(ledger.begin(key, total, digest), expected);
            let entry = model.iter_mut().find(|(known, ..)| *known == name).expect("begun above");
            entry.2 = (entry.2 + n).min(entry.1);
            prop_assert_eq!(ledger.advance(key, n), Ok(entry.2));
            prop_assert_eq!(ledger.progress(key), Some(WriteProgress { total: entry.1, done: entry.2, digest: entry.3 }));
        }
        prop_assert_eq!((ledger.len(), ledger.is_empty()), (model.len(), model.is_empty()));
        prop_assert_eq!((ledger.advance([99; 16], 1), ledger.progress([99; 16])), (Err(UnknownWrite), None));
    }
}

#[test]
fn ledger_forgets_the_oldest_key_beyond_its_bound_and_no_other() {
    let key = |n: usize| (n as u128).to_le_bytes();
    let mut ledger = StdinLedger::default();
    for n in 0..LEDGER_KEYS_MAX + 10 {
        assert_eq!(ledger.begin(key(n), 1, None), WriteBegin::New);
        assert_eq!(ledger.advance(key(n), 1), Ok(1));
    }
    assert_eq!(ledger.len(), LEDGER_KEYS_MAX);
    assert_eq!(ledger.begin(key(10), 1, None), WriteBegin::Done);
    assert_eq!(ledger.begin(key(LEDGER_KEYS_MAX + 9), 1, None), WriteBegin::Done);
    assert_eq!(ledger.begin(key(9), 1, None), WriteBegin::New);
    assert_eq!(ledger.begin(key(10), 1, None), WriteBegin::New);
}

#[derive(Clone, Debug)]
enum RetentionOp {
    /// The log grows by this many events.
    Write(u64),
    OwnerTakes(u64),
    OwnerReaches(u64),
    OwnerMarks(u64),
    OwnerGoes,
    Follow {
        is_holding: bool,
        from: u64,
        ahead: u64,
    },
    Takes {
        follower: usize,
        seq: u64,
    },
    Unfollow {
        follower: usize,
    },
    /// Events below this number are dropped from the log.
    Drop(u64),
    Wait {
        ns: u64,
        is_attached: bool,
    },
}

fn retention_op() -> impl Strategy<Value = RetentionOp> {
    let seq = 0..60_u64;
    let follower = 0..4_usize;
    prop_oneof![
        3 => (0..9_u64).prop_map(RetentionOp::Write),
        3 => seq.clone().prop_map(RetentionOp::OwnerTakes),
        1 => seq.clone().prop_map(RetentionOp::OwnerReaches),
        1 => seq.clone().prop_map(RetentionOp::OwnerMarks),
        1 => Just(RetentionOp::OwnerGoes),
        3 => (any::<bool>(), seq.clone(), 0..9_u64)
            .prop_map(|(is_holding, from, ahead)| RetentionOp::Follow { is_holding, from, ahead }),
        3 => (follower.clone(), seq.clone()).prop_map(|(follower, seq)| RetentionOp::Takes { follower, seq }),
        1 => follower.prop_map(|follower| RetentionOp::Unfollow { follower }),
        1 => seq.prop_map(RetentionOp::Drop),
        4 => (0..9_u64, any::<bool>()).prop_map(|(ns, is_attached)| RetentionOp::Wait { ns, is_attached }),
    ]
}

/// A reader in the model: it remembers every event that it has, instead of a position.
#[derive(Clone, Debug)]
struct ModelReader {
    is_holding: bool,
    from: u64,
    has: Vec<u64>,
}

impl ModelReader {
    /// Takes the events up to `seq` that exist in a log of `written` events.
    fn take(&mut self, seq: u64, written: u64) {
        self.has.extend((1..=written).filter(|event| *event <= seq));
    }

    fn last(&self) -> u64 {
        self.has.iter().copied().max().unwrap_or(0)
    }
}

proptest! {
    #[test]
    fn retention_agrees_with_readers_that_remember_every_event(ops in proptest::collection::vec(retention_op(), 0..80)) {
        // An offset that differs from the number shows which of two positions was returned.
        let at = |seq: u64| LogPosition { seq, offset: seq * 10 };
        let mark_at = |seq: u64| LogPosition { seq, offset: seq * 10 + 1 };
        let mut retention = Retention::new(at(0));
        let mut written = 0;
        let mut first_seq = 1;
        let mut owner = Some(ModelReader { is_holding: true, from: 0, has: Vec::new() });
        let mut reached = vec![at(0)];
        let mut marked = vec![at(0)];
        let mut followers: Vec<(FollowerId, ModelReader)> = Vec::new();
        let mut reported = 0;
        let mut now_ns = 0;
        // Times of the checks, and whether the clock of the closed log could run at each.
        let mut checks: Vec<(u64, bool)> = Vec::new();
        for op in ops {
            match op {
                RetentionOp::Write(events) => written += events,
                RetentionOp::OwnerTakes(seq) => {
                    let before = owner.as_ref().map(ModelReader::last);
                    if let Some(owner) = &mut owner {
                        owner.take(seq, written);
                    }
                    reached.push(at(seq));
                    let is_moved = retention.handle_owner_taken(at(seq), written + 1);
                    prop_assert_eq!(is_moved, owner.as_ref().map(ModelReader::last) != before);
                }
                RetentionOp::OwnerReaches(seq) => {
                    reached.push(at(seq));
                    retention.set_owner_position(at(seq));
                }
                RetentionOp::OwnerMarks(seq) => {
                    marked.push(mark_at(seq));
                    retention.set_owner_mark(mark_at(seq));
                }
                RetentionOp::OwnerGoes => {
                    owner = None;
                    reached.push(LogPosition { seq: u64::MAX / 2, offset: 0 });
                    retention.handle_owner_gone();
                }
                RetentionOp::Follow { is_holding, from, ahead } => {
                    let mut reader = ModelReader { is_holding, from, has: Vec::new() };
                    reader.has.push(from + ahead);
                    let kind = if is_holding { FollowerKind::Holding } else { FollowerKind::Polling };
                    followers.push((retention.add_follower(kind, from, from + ahead), reader));
                }
                RetentionOp::Takes { follower, seq } => {
                    if let Some((id, reader)) = followers.get_mut(follower) {
                        let before = reader.last();
                        reader.take(seq, written);
                        prop_assert_eq!(retention.handle_taken(*id, seq, written + 1), reader.last() != before);
                    }
                }
                RetentionOp::Unfollow { follower } => {
                    if follower < followers.len() {
                        let (id, _) = followers.remove(follower);
                        retention.remove_follower(id);
                        prop_assert!(!retention.handle_taken(id, u64::MAX, u64::MAX), "a removed follower takes nothing");
                    }
                }
                RetentionOp::Drop(below) => first_seq = first_seq.max(below),
                RetentionOp::Wait { ns, is_attached } => {
                    now_ns += ns;
                    let furthest = reached.iter().map(|position| position.seq).max().unwrap_or(0);
                    checks.push((now_ns, is_attached && furthest >= written));
                    // The clock began at the last check at which it could not run, or at the first check of all.
                    let since = checks.iter().rev().find(|(_, runs)| !runs).or(checks.first()).map_or(now_ns, |(at, _)| *at);
                    prop_assert_eq!(retention.closed_for_ns(now_ns, is_attached, written + 1), now_ns - since);
                }
            }
            let holding = followers.iter().map(|(_, reader)| reader).filter(|reader| reader.is_holding);
            let needed = holding.clone().chain(&owner).map(ModelReader::last).min().unwrap_or(u64::MAX / 2);
            prop_assert_eq!(retention.releasable_seq(), needed);
            prop_assert_eq!(retention.has_holds(), holding.count() > 0);
            prop_assert_eq!(retention.owner_taken(), owner.as_ref().map_or(0, ModelReader::last));

            let reached_last = reached.iter().copied().max_by_key(|position| position.seq).expect("never empty");
            let marked_last = marked.iter().copied().max_by_key(|position| position.seq).expect("never empty");
            prop_assert_eq!(retention.owner_mark(), marked_last);
            prop_assert_eq!(retention.owner_has_all(written + 1), reached_last.seq >= written);
            prop_assert_eq!(retention.owner_position(None), reached_last);
            let is_gone = reached_last.seq + 1 < first_seq;
            prop_assert_eq!(retention.owner_position(Some(first_seq)), if is_gone { marked_last } else { reached_last });

            let is_complete = followers.iter().any(|(_, reader)| reader.from < first_seq);
            let slowest = followers.iter().map(|(_, reader)| reader.last()).min();
            let followed = if is_complete { slowest.unwrap_or(0) } else { 0 };
            prop_assert_eq!(retention.poll_followed(first_seq), (followed != reported).then_some(followed));
            reported = followed;
        }
    }
}

#[test]
fn slowest_follower_decides_and_one_must_have_begun_at_the_beginning() {
    let of = |followers: &[(u64, u64)], first_seq| {
        let mut retention = Retention::new(LogPosition::default());
        for (from, taken) in followers {
            retention.add_follower(FollowerKind::Holding, *from, *taken);
        }
        retention.poll_followed(first_seq).unwrap_or(0)
    };
    assert_eq!(of(&[], 1), 0);
    assert_eq!(of(&[(0, 7)], 1), 7);
    assert_eq!(of(&[(0, 7), (0, 3)], 1), 3);
    assert_eq!(of(&[(5, 7)], 1), 0, "no follower has printed 1 to 5");
    assert_eq!(of(&[(5, 7)], 6), 7, "they are gone");
    assert_eq!(of(&[(0, 9), (5, 7)], 1), 7);
}
