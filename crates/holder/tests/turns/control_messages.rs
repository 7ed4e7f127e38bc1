//! Encoding and decoding of control messages.

use proptest::prelude::*;

use crate::prelude::*;
use exec_server_holder::control::{AnnouncedSegment, ProcessInfo, StartStage};

fn every_command() -> Vec<ToHolder<'static>> {
    let spec = StartSpec {
        argv: vec![b"a".to_vec(), vec![]],
        arg0: Some(vec![0xff]),
        env: vec![b"K=V".to_vec()],
        cwd: b"/".to_vec(),
        tty: Some(TerminalSize { rows: 3, cols: 4 }),
        pipe_stdin: true,
        timeout_ms: Some(5),
        idle_timeout_ms: Some(6),
        overflow: OverflowPolicy::DropOldest,
        cap_bytes: 7,
        meta: vec![8; 9],
    };
    vec![
        ToHolder::Hello { version: 1, secret: [2; 32], epoch: 3 },
        ToHolder::Attach,
        ToHolder::Detach { ttl_ms: u64::MAX },
        ToHolder::SetTtl { ttl_ms: 4 },
        ToHolder::SetOrphanTtl { ttl_ms: 4 },
        ToHolder::Withdraw { req: 1 },
        ToHolder::AllowArchive,
        ToHolder::Leave,
        ToHolder::Start { req: 5, spec },
        ToHolder::Start { req: 5, spec: StartSpec::default() },
        ToHolder::Write { req: 6, slot: 7, key: Some([8; 16]), digest: None, total: 9, offset: 10, data: b"data" },
        ToHolder::Write { req: 6, slot: 7, key: Some([8; 16]), digest: Some(5), total: 9, offset: 10, data: b"data" },
        ToHolder::Write { req: 6, slot: 7, key: None, digest: None, total: 9, offset: 10, data: b"" },
        ToHolder::CloseStdin { req: 1, slot: 2 },
        ToHolder::Signal { req: 1, slot: 2, signal: -3 },
        ToHolder::Resize { req: 1, slot: 2, rows: 3, cols: 4 },
        ToHolder::Terminate { req: 1, slot: 2, grace_ms: Some(u32::MAX) },
        ToHolder::Terminate { req: 1, slot: 2, grace_ms: None },
        ToHolder::Cap { slot: 1, bytes: 2 },
        ToHolder::Release { slot: 1, segment: 2 },
        ToHolder::Return { segment: 1 },
        ToHolder::Forget { req: 1, slot: 2 },
        ToHolder::End { req: 1 },
        ToHolder::Followed { slot: 1, seq: 2 },
        ToHolder::Used { is_going_on: true },
        ToHolder::Used { is_going_on: false },
    ]
}

fn every_message() -> Vec<FromHolder> {
    let segment = AnnouncedSegment { slot: 1, id: 2, base_seq: 3, base_offset: 4, on_disk: true, sealed: false };
    let process = ProcessInfo { slot: 1, pid: 2, tty: true, running: true, meta: vec![3], ..ProcessInfo::default() };
    let mut all = vec![
        FromHolder::Welcome { version: 1, epoch: 2, ttl_ms: 3, detached_ms: 4, info: vec![5] },
        FromHolder::Refused { version: 1, epoch: 2 },
        FromHolder::Process(Box::new(process)),
        FromHolder::Segment(segment),
        FromHolder::Ready,
        FromHolder::Started { req: 1, slot: 2, pid: 3 },
        FromHolder::Spilled { slot: 1, segment: 2 },
        FromHolder::Dropped { slot: 1, segment: 2 },
        FromHolder::Retired { segment: 1 },
        FromHolder::Expired,
    ];
    for stage in [StartStage::Input, StartStage::Resources, StartStage::Cwd, StartStage::Exec] {
        all.push(FromHolder::StartFailed { req: 1, stage, errno: -2, detail: vec![3] });
    }
    use WriteStatus as W;
    for status in [W::Accepted, W::StdinClosed, W::UnknownProcess, W::Mismatch, W::Busy] {
        all.push(FromHolder::Written { req: 1, status, done: 2 });
    }
    use CommandStatus as S;
    let errors = [S::UnknownProcess, S::NotATerminal, S::StdinClosed, S::RawMode, S::NotClosed, S::Failed(5)];
    for status in [S::Ok, S::NotRunning, S::StreamsHeld].into_iter().chain(errors) {
        all.push(FromHolder::Done { req: 1, status });
    }
    all
}

/// Checks that no part of an encoded message decodes.
fn assert_cuts_fail<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Option<T>, message: &dyn std::fmt::Debug) {
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_none(), "{message:?} cut at {len}");
    }
}

#[test]
fn every_command_decodes_to_itself_and_no_part_of_it_decodes() {
    for message in every_command() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(ToHolder::decode(&bytes), Ok(message.clone()));
        assert_cuts_fail(&bytes, |bytes| ToHolder::decode(bytes).ok().map(drop), &message);
        bytes.push(0);
        assert!(ToHolder::decode(&bytes).is_err(), "{message:?} with a byte more");
    }
}

#[test]
fn every_answer_decodes_to_itself_and_no_part_of_it_decodes() {
    for message in every_message() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(FromHolder::decode(&bytes).as_ref(), Ok(&message));
        assert_cuts_fail(&bytes, |bytes| FromHolder::decode(bytes).ok(), &message);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0..17_u8) {
        ToHolder::decode(&bytes).ok();
        FromHolder::decode(&bytes).ok();
        if let Some(start) = bytes.first_chunk_mut::<2>() {
            *start = [1, kind];
        }
        ToHolder::decode(&bytes).ok();
        FromHolder::decode(&bytes).ok();
    }

    #[test]
    fn flipped_bytes_decode_to_something_else_or_nothing(pick in 0..1000_usize, at in 0..1000_usize, mask in 1..=255_u8) {
        let all = every_command();
        let mut bytes = Vec::new();
        all[pick % all.len()].encode(&mut bytes);
        let at = at % bytes.len();
        bytes[at] ^= mask;
        if let Ok(other) = ToHolder::decode(&bytes) {
            let mut again = Vec::new();
            other.encode(&mut again);
            prop_assert_eq!(again.len(), bytes.len());
        }
    }
}
