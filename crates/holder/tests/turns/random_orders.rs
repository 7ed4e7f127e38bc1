//! Property test: any order of attach, detach, release, controller loss and cap changes delivers every byte once or
//! counts it as dropped.

use std::sync::LazyLock;

use proptest::prelude::*;

use crate::prelude::*;

#[derive(Clone, Debug)]
enum HolderOp {
    Feed(usize),
    Attach,
    Detach,
    Release,
    Cap(u64),
    NewController,
    Turns(usize),
    ReaderSleeps(usize),
}

fn op() -> impl Strategy<Value = HolderOp> {
    prop_oneof![
        6 => (1..3_000_000_usize).prop_map(HolderOp::Feed),
        1 => Just(HolderOp::Attach),
        2 => Just(HolderOp::Detach),
        3 => Just(HolderOp::Release),
        1 => (0..4_u64).prop_map(|mib| HolderOp::Cap(mib * MIB)),
        1 => Just(HolderOp::NewController),
        2 => (1..30_usize).prop_map(HolderOp::Turns),
        1 => (1..30_usize).prop_map(HolderOp::ReaderSleeps),
    ]
}

static DATA: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(24 << 20));

/// The holder may lag behind the writer. After this many turns without progress, the child counts as blocked.
const PATIENCE: usize = 40;

fn check(overflow: OverflowPolicy, quota: u64, ops: Vec<HolderOp>) -> Result<(), TestCaseError> {
    let mut rig = HolderRig::limited(quota);
    let slot = rig.start(StartSpec { cap_bytes: MIB, overflow, ..spec() });
    let (driver, data, mut at, mut epoch) = (rig.driver(), &*DATA, 0, 1);
    for op in ops {
        match op {
            HolderOp::Feed(len) => {
                let (end, mut idle) = ((at + len).min(data.len()), 0);
                while at < end && idle < PATIENCE {
                    let fed = driver.write_stdout(&data[at..end.min(at + 65536)]).unwrap_or(0);
                    (at, idle) = (at + fed, if fed == 0 { idle + 1 } else { 0 });
                    rig.turn();
                }
            }
            HolderOp::Attach => rig.server.send(&ToHolder::Attach),
            HolderOp::Detach => rig.server.send(&ToHolder::Detach { ttl_ms: TTL_NONE }),
            HolderOp::Release => rig.server.release(slot),
            HolderOp::Cap(bytes) => rig.server.send(&ToHolder::Cap { slot, bytes }),
            HolderOp::NewController => {
                epoch += 1;
                let old = rig.adopt(epoch);
                rig.server.resume(old);
                rig.until_message(|message| matches!(message, FromHolder::Ready));
            }
            HolderOp::Turns(n) => (0..n).for_each(|_| rig.turn()),
            HolderOp::ReaderSleeps(n) => (0..n).for_each(|_| rig.last = rig.holder.turn(rig.now)),
        }
    }
    driver.exit(0);
    driver.close_all();
    // Nothing is released from now on: the end of a process must not wait for readers.
    let log = rig.until_closed(slot);
    let (written, dropped) = log.closed.expect("closed");
    prop_assert_eq!(written, at as u64);
    prop_assert_eq!(log.bytes.len() as u64 + log.gap_bytes, written);
    // Bytes that this reader read before they were dropped are not a gap for it.
    prop_assert!(log.gap_bytes <= dropped);
    if log.gap_bytes == 0 {
        prop_assert!(log.bytes == data[..at]);
    }
    prop_assert!(overflow == OverflowPolicy::DropOldest || dropped == 0);
    prop_assert_eq!(&log.order[log.order.len() - 2..], ["exited", "closed"]);
    Ok(())
}

/// Regression of the property test below: a segment began after `Closed`, and dropping the oldest segment then dropped
/// the end.
#[test]
fn end_of_a_full_log_is_its_last_event() {
    let ops = [
        HolderOp::Feed(2_087_251),
        HolderOp::Release,
        HolderOp::Turns(27),
        HolderOp::Detach,
        HolderOp::Feed(2_125_797),
        HolderOp::ReaderSleeps(11),
        HolderOp::Attach,
        HolderOp::Feed(693_012),
        HolderOp::Feed(2_191_942),
        HolderOp::Turns(8),
        HolderOp::Detach,
        HolderOp::Feed(469_466),
        HolderOp::Attach,
    ];
    for _ in 0..10 {
        check(OverflowPolicy::DropOldest, 2 * MIB, ops.to_vec()).expect("nothing is lost that was not counted");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_that_was_not_counted(
        is_dropping in any::<bool>(),
        quota_mib in 0..6_u64,
        ops in proptest::collection::vec(op(), 1..40),
    ) {
        let overflow = if is_dropping { OverflowPolicy::DropOldest } else { OverflowPolicy::Block };
        check(overflow, quota_mib * MIB, ops)?;
    }
}
