//! Large output and input: nothing is lost, repeated or changed, and a client that does not read delays no other.

use crate::prelude::*;
use exec_server_client::protocol::process::Overflow;

const MIB: usize = 1 << 20;

pub(crate) async fn binary_output_is_byte_exact(place: &Place) {
    let every: String = (0..=255).map(|byte| format!("\\{byte:03o}")).collect();
    let process = place
        .start(sh(format!("i=0; while [ $i -lt 1024 ]; do printf '{}'; i=$((i+1)); done", every.repeat(16))))
        .await;
    let told = tell(&process).await;
    let expected: Vec<u8> = (0..=255).cycle().take(4 * MIB).collect();
    assert_same("every byte value", &told.stdout, &expected);
    assert_eq!((told.stderr.len(), told.exit.code), (0, 0));
    assert_eq!(told.totals.output_bytes, Some(4 * MIB as u64));
}

pub(crate) async fn a_sum_made_there_is_right(place: &Place) {
    use sha2::{Digest as _, Sha256};
    let data = pattern(1, 4 * MIB);
    let process = place.start(sh("exec sha256sum")).await;
    for piece in data.chunks(MIB / 3) {
        process.write(piece.to_vec()).await.expect("write");
    }
    process.close_stdin().await.expect("close");
    let sum: String = Sha256::digest(&data).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(String::from_utf8_lossy(&tell(&process).await.stdout), format!("{sum}  -\n"));
}

pub(crate) async fn streams_carry_64_mib_both_ways(place: &Place) {
    let data = pattern(2, 64 * MIB);
    let process = place.start(sh("exec cat")).await;
    let (mut stdin, mut stdout) = (process.stdin(), process.stdout());
    let there = async {
        tokio::io::copy(&mut &data[..], &mut stdin).await.expect("copy there");
        stdin.shutdown().await.expect("end of input");
    };
    let back = async {
        let mut back = Vec::with_capacity(data.len());
        stdout.read_to_end(&mut back).await.expect("copy back");
        back
    };
    let ((), back) = tokio::join!(there, back);
    assert_same("what came back", &back, &data);
    assert_eq!(process.wait().await.expect("it ends").code, 0);
}

pub(crate) async fn waiting_takes_what_nobody_reads(place: &Place) {
    let process = place.start(sh("head -c 67108864 /dev/zero; echo end >&2; exit 6")).await;
    let exit = process.wait().await.expect("it ends");
    let totals = process.closed().expect("it is closed");
    assert_eq!((exit.code, totals.output_bytes, totals.dropped_bytes), (6, Some(64 * MIB as u64 + 4), Some(0)));
    // A new reader gets a gap for the output that `wait` has taken, and then the rest.
    let told = follow(process.events()).await;
    assert!(told.gone > 0);
    assert_eq!(told.gone + (told.stdout.len() + told.stderr.len()) as u64, 64 * MIB as u64 + 4);
    assert_eq!((told.stderr, told.exit), (b"end\n".to_vec(), exit));
}

pub(crate) async fn a_slow_reader_holds_the_process_back_and_loses_nothing(place: &Place) {
    let process = place.start(sh("seq 1 4500000 | head -c 33554432")).await;
    let mut events = process.events();
    let first = match events.next().await {
        Some(Event::Output { bytes, .. }) => bytes,
        other => panic!("{other:?} where output is expected"),
    };
    // The reader does not read until the process is blocked.
    until("the process is held back", async || {
        let listed = place.client().list(Scope::Session).await.expect("list");
        assert!(listed.iter().all(|info| !info.exited), "more than memory can hold");
        listed.iter().any(|info| info.blocked.is_some())
    })
    .await;
    // A `wait` beside a reader takes no output from the reader.
    let (exit, told) = tokio::join!(process.wait(), follow(events));
    assert_eq!((exit.expect("it ends").code, told.exit.code, told.gone), (0, 0, 0));
    let mut said = first.to_vec();
    said.extend_from_slice(&told.stdout);
    assert_same("the numbers", &said, &numbers(32 * MIB));
}

/// The first `len` bytes of the output of `seq`.
fn numbers(len: usize) -> Vec<u8> {
    use std::io::Write as _;
    let mut text = Vec::with_capacity(len + 16);
    for number in 1_u32.. {
        if text.len() >= len {
            break;
        }
        writeln!(text, "{number}").expect("memory can be written");
    }
    text.truncate(len);
    text
}

pub(crate) async fn what_is_dropped_by_choice_is_told(place: &Place) {
    let start = Start::new(["sh", "-c", "seq 1 6000000; exit 4"]).overflow(Overflow::DropOldest);
    let process = place.start(start).await;
    until("it ends although nobody reads", async || {
        let listed = place.client().list(Scope::Session).await.expect("list");
        listed.iter().any(|info| info.closed)
    })
    .await;
    let told = soon("the rest of it", follow(process.events())).await;
    let dropped = told.totals.dropped_bytes.expect("counted");
    // Some of the dropped bytes had been sent before they were dropped.
    assert!(told.gone > 0 && told.gone <= dropped, "{} of {dropped}", told.gone);
    assert_eq!(Some(told.stdout.len() as u64 + told.gone), told.totals.output_bytes);
    assert!(told.stdout.starts_with(b"1\n2\n") && told.stdout.ends_with(b"\n5999999\n6000000\n"));
    assert_eq!(told.exit.code, 4);
}
