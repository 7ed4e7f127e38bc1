//! Events of processes: in order, once, and within limits. A failure of one process does not affect another. Acknowledgements are tested in
//! `acks`, cuts in `recovery`.

use crate::{prelude::*, spell};
use exec_server_client::protocol::process::Cause;

const MIB: usize = 1 << 20;

#[tokio::test(start_paused = true)]
async fn exec_process_pushes_events() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    let mut events = process.events();
    peer.output_on("p", 1, "stdout", "to out").await;
    peer.output_on("p", 2, "stderr", "to err").await;
    peer.output_on("p", 3, "pty", "to tty").await;
    peer.notify("process/gap", json!({"processId": "p", "fromSeq": 4, "toSeq": 6, "bytes": 30})).await;
    peer.notify(
        "process/exited",
        json!({"processId": "p", "seq": 7, "exitCode": 143, "signal": "SIGTERM", "cause": "timeout", "sandboxDenied": false}),
    )
    .await;
    peer.notify("process/closed", json!({"processId": "p", "seq": 8, "outputBytes": 48, "droppedBytes": 30})).await;
    let story = ["out 1 to out", "err 2 to err", "tty 3 to tty", "gap 4-6 30", "exit 7=143", "close 8"];
    assert_eq!(collect(&mut events).await, story);
    assert_eq!(next(&mut events).await, "end");
    assert_eq!(events.position(), 8);
    let exit = process.exit().unwrap();
    assert_eq!((exit.code, exit.signal.as_deref(), exit.sandbox_denied), (143, Some("SIGTERM"), Some(false)));
    assert_eq!(exit.cause, Some(Cause::Timeout));
    let totals = process.closed().unwrap();
    assert_eq!((totals.output_bytes, totals.dropped_bytes), (Some(48), Some(30)));
    assert!(process.has_exited() && process.failed().is_none());
}

#[tokio::test(start_paused = true)]
async fn process_events_are_delivered_in_seq_order_when_notifications_are_reordered() {
    let (_client, mut peer, _door, process) = running(Kind::S).await;
    let mut events = process.events();
    peer.closed("p", 4).await;
    peer.output("p", 1, "one").await;
    peer.exited("p", 3, 0).await;
    assert_eq!(next(&mut events).await, "out 1 one");
    assert!(is_pending(events.next()).await);
    // The close arrived first, and the process still counts as running.
    assert!(process.closed().is_none() && process.exit().is_none());
    peer.output("p", 2, "two").await;
    assert_eq!(collect(&mut events).await, ["out 2 two", "exit 3=0", "close 4"]);
}

#[tokio::test(start_paused = true)]
async fn a_number_that_was_told_is_not_told_again() {
    for kind in [CURRENT, Kind::H] {
        let (_client, mut peer, _door, process) = running(kind).await;
        let mut events = process.events();
        peer.output("p", 1, "one").await;
        peer.output("p", 1, "other").await;
        peer.output("p", 2, "two").await;
        peer.output("p", 1, "one").await;
        peer.exited("p", 2, 9).await;
        peer.ends("p", 3, 0).await;
        peer.closed("p", 4).await;
        peer.output("p", 5, "after the close").await;
        assert_eq!(collect(&mut events).await, ["out 1 one", "out 2 two", "exit 3=0", "close 4"], "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn output_may_follow_the_exit() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    let mut events = process.events();
    peer.exited("p", 1, 7).await;
    assert_eq!(next(&mut events).await, "exit 1=7");
    let waiting = process.wait();
    tokio::pin!(waiting);
    assert!(is_pending(&mut waiting).await, "a grandchild still writes");
    peer.output("p", 2, "late").await;
    peer.closed("p", 3).await;
    assert_eq!(within(waiting).await.unwrap().code, 7);
    assert_eq!(collect(&mut events).await, ["out 2 late", "close 3"]);
}

#[tokio::test(start_paused = true)]
async fn process_event_reorder_rejects_oversized_output() {
    let (_client, mut peer, _door, [process, other]) = running_two(Kind::H).await;
    let (mut events, mut others) = (process.events(), other.events());
    peer.output("p", 2, vec![b'x'; MIB + 1]).await;
    assert_eq!(collect(&mut events).await, ["failed Protocol: one piece of output is larger than 1 MiB"]);
    peer.output("q", 2, vec![b'x'; MIB]).await;
    peer.output("q", 1, vec![b'y'; MIB + 1]).await;
    assert_eq!(take(&mut others, 2).await, [format!("out 1 {} bytes", MIB + 1), format!("out 2 {MIB} bytes")]);
}

#[tokio::test(start_paused = true)]
async fn process_event_reorder_accepts_gap_closing_event_at_limits() {
    let (_client, mut peer, _door, process) = running(Kind::H).await;
    let mut events = process.events();
    // 256 events with 1 MiB in total wait for the first one, which is not counted with them.
    peer.outputs("p", 2..=257, [b'x'; 4096]).await;
    peer.output("p", 1, vec![b'y'; MIB]).await;
    let story = take(&mut events, 257).await;
    assert_eq!((story[0].as_str(), story[256].as_str()), ("out 1 1048576 bytes", "out 257 4096 bytes"));
}

#[tokio::test(start_paused = true)]
async fn too_much_that_is_early_fails_its_process_alone() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let (many, large) =
        (start(&client, &mut peer, named("many")).await, start(&client, &mut peer, named("large")).await);
    let quiet = start(&client, &mut peer, named("quiet")).await;
    peer.outputs("many", 2..=258, "x").await;
    peer.output("large", 2, vec![b'x'; MIB]).await;
    peer.output("large", 3, "x").await;
    peer.output("quiet", 1, "fine").await;
    assert_eq!(next(&mut quiet.events()).await, "out 1 fine");
    for process in [many, large] {
        let story = collect(&mut process.events()).await;
        assert_eq!(story, ["failed Protocol: too many events arrived out of order"]);
        assert!(matches!(within(process.wait()).await, Err(Error::Protocol(_))));
        assert!(matches!(process.failed(), Some(Error::Protocol(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_skipped_number_of_a_current_server_fails_its_process_alone() {
    let (_client, mut peer, _door, [process, other]) = running_two(CURRENT).await;
    peer.output("p", 1, "one").await;
    peer.output("p", 3, "three").await;
    peer.output("p", 2, "two").await;
    peer.output("q", 1, "fine").await;
    assert_eq!(next(&mut other.events()).await, "out 1 fine");
    let story = ["out 1 one", "failed Protocol: the server skipped a sequence number"];
    // Later readers see the same failure, once.
    for _ in 0..2 {
        assert_eq!(collect(&mut process.events()).await, story);
    }
}

#[tokio::test(start_paused = true)]
async fn more_than_the_window_fails_its_process_alone_in_bounded_memory() {
    let (_client, mut peer, _door, [process, other]) = running_two(Kind::Current { window: 1 << 20 }).await;
    let mut events = process.events();
    peer.outputs("p", 1..=60, vec![b'x'; 64 << 10]).await;
    peer.output("q", 1, "fine").await;
    assert_eq!(next(&mut other.events()).await, "out 1 fine");
    let story = collect(&mut events).await;
    let kept = story.len() - 1;
    // Twice the window plus the history, in pieces of 64 KiB: 48 pieces, plus the one that exceeded the limit.
    assert!((32..=49).contains(&kept), "{kept}");
    assert_eq!(story[kept], "failed Protocol: the server sent more than its window allows");
}

#[tokio::test(start_paused = true)]
async fn a_window_of_single_bytes_is_no_breach_and_holds_up_no_call() {
    let (_client, mut peer, _door, [process, other]) = running_two(CURRENT).await;
    let mut events = process.events();
    // A quarter of the window in bytes, and far more events than could be stored separately.
    let count = (1 << 20) + 1000;
    for batch in 0..=count / 1000 {
        let mut lines = String::new();
        for seq in batch * 1000 + 1..=count.min(batch * 1000 + 1000) {
            let params = format!(r#"{{"processId":"p","seq":{seq},"stream":"stdout","chunk":"eA=="}}"#);
            lines.push_str(&format!("{{\"method\":\"process/output\",\"params\":{params}}}\n"));
        }
        peer.raw(lines).await;
    }
    // The reader may make a call in between: the answer arrives after all output that was not consumed.
    let (signalled, _) = both(process.signal("INT"), peer.serve("process/signal", json!({}))).await;
    signalled.unwrap();
    peer.output("q", 1, "fine").await;
    assert_eq!(next(&mut other.events()).await, "out 1 fine");
    let taking = async {
        for number in 1..=count {
            let event = events.next().await;
            assert!(matches!(event, Some(Event::Output { seq, .. }) if seq == number), "{number}: {event:?}");
        }
    };
    within(taking).await;
    peer.ends("p", count + 1, 0).await;
    assert_eq!(collect(&mut events).await, [format!("exit {}=0", count + 1), format!("close {}", count + 2)]);
}

#[tokio::test(start_paused = true)]
async fn wake_tells_the_highest_number_and_one_more_on_a_failure() {
    let (_client, mut peer, _door, process) = running(Kind::S).await;
    let mut wake = process.wake();
    assert_eq!(*wake.borrow_and_update(), 0);
    for (seq, expected) in [(1, 1), (5, 5), (3, 5)] {
        peer.output("p", seq, "x").await;
        settle().await;
        assert_eq!(wake.has_changed().unwrap(), seq == expected);
        assert_eq!(*wake.borrow_and_update(), expected);
    }
    peer.output("p", 9, vec![0; MIB + 1]).await;
    within(wake.changed()).await.unwrap();
    assert_eq!(*wake.borrow_and_update(), 6);
}

#[tokio::test(start_paused = true)]
async fn wake_notifications_do_not_block_other_sessions() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let (noisy, quiet) =
        (start(&client, &mut peer, named("noisy")).await, start(&client, &mut peer, named("quiet")).await);
    let (_unread, mut wake) = (noisy.events(), quiet.wake());
    let began = Instant::now();
    peer.outputs("noisy", 1..=4097, "x").await;
    peer.output("quiet", 1, "x").await;
    within(wake.changed()).await.unwrap();
    assert_eq!(*wake.borrow_and_update(), 1);
    assert!(began.elapsed() <= Duration::from_secs(1));
    assert_eq!(*noisy.wake().borrow(), 4097);
}

#[tokio::test(start_paused = true)]
async fn exec_process_replays_events_after_close() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    let mut first = process.events();
    peer.output("p", 1, "one").await;
    peer.ends("p", 2, 0).await;
    let story = ["out 1 one", "exit 2=0", "close 3"];
    assert_eq!(collect(&mut first).await, story);
    assert_eq!(collect(&mut process.events()).await, story);
    assert_eq!(collect(&mut process.events_after(1)).await, story[1..]);
    assert_eq!(collect(&mut process.events_after(3)).await, [""; 0]);
    assert_eq!(collect(&mut process.events_after(u64::MAX)).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_late_reader_gets_older_output_from_the_server_and_then_from_memory() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    let mut first = process.events();
    let piece = vec![b'x'; 64 << 10];
    // 3 MiB pass, of which 1 MiB stays in memory.
    for seq in 1..=48 {
        peer.output("p", seq, &piece).await;
        assert_eq!(next(&mut first).await, format!("out {seq} 65536 bytes"));
    }
    peer.ends("p", 49, 0).await;
    assert_eq!(collect(&mut first).await, ["exit 49=0", "close 50"]);
    let mut late = process.events_after(2);
    let (event, params) = crate::both(late.next(), async {
        let result = read_result(&[(3, "three"), (4, "four"), (5, "five")], 51, Some(0), true);
        peer.serve("process/read", result).await
    })
    .await;
    assert_eq!(params, json!({"processId": "p", "afterSeq": 2, "waitMs": 0}));
    assert_eq!(spell(&event.unwrap()), "out 3 three");
    assert_eq!(take(&mut late, 2).await, ["out 4 four", "out 5 five"]);
    // Numbers that the read did not return are gone on the server.
    let rest = collect(&mut late).await;
    assert_eq!(rest[0], "gap 6-32");
    assert_eq!((rest[1].as_str(), rest.last().unwrap().as_str()), ("out 33 65536 bytes", "close 50"));
    // The same as batches.
    let mut later = process.events_after(2);
    let (first, _) = crate::both(later.next_batch(70_000), async {
        let result = read_result(&[(3, "three"), (4, "four"), (5, "five")], 51, Some(0), true);
        peer.serve("process/read", result).await
    })
    .await;
    let mut batches = vec![first];
    while batches.last().is_some_and(|batch| !batch.is_empty()) {
        batches.push(within(later.next_batch(70_000)).await);
    }
    let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
    assert_eq!(sizes, [6, 2, 2, 2, 2, 2, 2, 2, 2, 0], "older events and the first two in memory, then two at a time");
    let all: Vec<String> = batches.iter().flatten().map(spell).collect();
    assert_eq!(
        (&all[..3], &all[3..]),
        (&["out 3 three", "out 4 four", "out 5 five"].map(str::to_owned)[..], &rest[..])
    );
    while peer.ack().await.1 != 50 {}
    assert!(peer.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_the_process_leaves_a_gap() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    let mut first = process.events();
    for seq in 1..=40 {
        peer.output("p", seq, vec![b'x'; 64 << 10]).await;
        next(&mut first).await;
    }
    let mut late = process.events();
    let forgetting = peer.refuse_next("process/read", -32600, Some("unknownProcess"), "unknown process id p");
    let (event, ()) = both(late.next(), forgetting).await;
    let Some(Event::Gap { from_seq: 1, to_seq, bytes: None }) = event else { panic!("{event:?}") };
    assert_eq!(next(&mut late).await, format!("out {} 65536 bytes", to_seq + 1));
    // The first reader is not affected.
    peer.output("p", 41, "more").await;
    assert_eq!(next(&mut first).await, "out 41 more");
}

#[tokio::test(start_paused = true)]
async fn a_gap_that_stands_for_empty_chunks_is_a_gap() {
    let (_client, mut peer, _door, process) = running(Kind::H).await;
    let gap = json!({"fromSeq": 1, "toSeq": 3, "bytes": 5});
    let params = json!({"processId": "p", "seq": 1, "stream": "stdout", "chunk": "", "gap": gap});
    peer.notify("process/output", params).await;
    peer.output("p", 2, "").await;
    peer.output("p", 3, "").await;
    peer.output("p", 4, "four").await;
    assert_eq!(take(&mut process.events(), 2).await, ["gap 1-3 5", "out 4 four"]);
    // A reader that begins inside of the gap sees only its own part, whose bytes are unknown.
    assert_eq!(take(&mut process.events_after(2), 2).await, ["gap 3-3", "out 4 four"]);
}
