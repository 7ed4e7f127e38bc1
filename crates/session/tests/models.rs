//! Property tests of the lease and the ledger against models that are too simple to be wrong.

use exec_server_session::{
    AttachError, AttachMode, LEDGER_KEYS_MAX, Lease, LeaseState, StdinLedger, Ttl, WriteBegin, WriteProgress,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum LeaseOp {
    Attach { conn: u64, takeover: bool },
    Detach { conn: u64 },
    SetTtl(Option<u64>),
    Used,
    Unused,
    Wait(u64),
}

fn lease_op() -> impl Strategy<Value = LeaseOp> {
    prop_oneof![
        (0..4_u64, any::<bool>()).prop_map(|(conn, takeover)| LeaseOp::Attach { conn, takeover }),
        (0..4_u64).prop_map(|conn| LeaseOp::Detach { conn }),
        proptest::option::of(0..200_u64).prop_map(LeaseOp::SetTtl),
        Just(LeaseOp::Used),
        Just(LeaseOp::Unused),
        (0..150_u64).prop_map(LeaseOp::Wait),
    ]
}

/// The model keeps only the history and replays all of it each time.
fn naive(history: &[(u64, LeaseOp)], ttl: u64) -> (LeaseState, u64) {
    let (mut holder, mut since, mut ttl, mut epoch, mut dead, mut used) = (None, 0, Some(ttl), 0, false, false);
    for (now, op) in history {
        dead |= holder.is_none() && !used && ttl.is_some_and(|ttl| *now >= since + ttl);
        match op {
            LeaseOp::Attach { conn, takeover } if !dead && holder != Some(*conn) && (*takeover || holder.is_none()) => {
                holder = Some(*conn);
                epoch += 1;
            }
            LeaseOp::Detach { conn } if holder == Some(*conn) => (holder, since) = (None, *now),
            LeaseOp::SetTtl(new) => ttl = *new,
            LeaseOp::Used => used = true,
            LeaseOp::Unused => (used, since) = (false, if holder.is_none() { *now } else { since }),
            LeaseOp::Attach { .. } | LeaseOp::Detach { .. } | LeaseOp::Wait(_) => {}
        }
    }
    let state = match holder {
        _ if dead => LeaseState::Expired,
        Some(conn) => LeaseState::Attached { conn },
        None => LeaseState::Detached { since_ns: since },
    };
    (state, epoch)
}

fn ttl_of(ttl: Option<u64>) -> Ttl {
    ttl.map_or(Ttl::None, Ttl::Nanos)
}

proptest! {
    #[test]
    fn lease_agrees_with_a_replay_of_its_history(ops in proptest::collection::vec(lease_op(), 0..60)) {
        let (mut lease, mut now, mut history) = (Lease::new(Ttl::Nanos(100), 0), 0, Vec::new());
        for op in ops {
            if let LeaseOp::Wait(ns) = op {
                now += ns;
            }
            lease.poll_expired(now);
            let before = lease;
            match op {
                LeaseOp::Attach { conn, takeover } => {
                    let how = if takeover { AttachMode::TakeOver } else { AttachMode::IfFree };
                    match lease.handle_attach(conn, how, now) {
                        Ok(epoch) => prop_assert_eq!(epoch, lease.epoch()),
                        Err(AttachError::Held { holder }) => prop_assert_eq!(before.state(), LeaseState::Attached { conn: holder }),
                        Err(AttachError::Expired) => prop_assert_eq!(before.state(), LeaseState::Expired),
                    }
                }
                LeaseOp::Detach { conn } => { lease.handle_detach(conn, now); }
                LeaseOp::SetTtl(ttl) => lease.set_ttl(ttl_of(ttl)),
                LeaseOp::Used => lease.handle_used(),
                LeaseOp::Unused => lease.handle_unused(now),
                LeaseOp::Wait(_) => {}
            }
            history.push((now, op));
            // Like the holder, the model checks for expiry on every operation and whenever time advances.
            prop_assert_eq!((lease.state(), lease.epoch()), naive(&history, 100));
        }
    }

    #[test]
    fn ledger_agrees_with_a_list_of_all_writes(ops in proptest::collection::vec((0..40_u8, 0..3_u64, 0..8_u64, 0..3_u32), 0..200)) {
        let mut ledger = StdinLedger::new();
        let mut model: Vec<(u8, u64, u64, Option<u32>)> = Vec::new();
        for (name, total, n, digest) in ops {
            // An older sender gives no digest. Its writes are compared by length only.
            let (key, total, digest) = ([name; 16], total * 4, digest.checked_sub(1));
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
        prop_assert_eq!(ledger.len(), model.len());
    }
}

#[test]
fn ledger_forgets_the_oldest_key_beyond_its_bound_and_no_other() {
    let key = |n: usize| (n as u128).to_le_bytes();
    let mut ledger = StdinLedger::new();
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
