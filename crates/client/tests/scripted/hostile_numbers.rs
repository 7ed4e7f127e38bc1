//! Well-formed messages with numbers that no honest server sends: nothing overflows, and at most one process fails. Malformed messages are
//! tested in `hostile`.

use crate::prelude::*;

/// The largest number that the protocol can carry.
const MAX: u64 = u64::MAX;

/// A process with bad events and one with good events, on the same connection.
async fn two(kind: Kind) -> (Client, Peer, Process, Process) {
    let (client, mut peer, _door) = connect(kind).await;
    let (bad, good) = (start(&client, &mut peer, named("bad")).await, start(&client, &mut peer, named("good")).await);
    (client, peer, bad, good)
}

/// Sends bad notifications to a new client of this kind of server. The connection and the other process must keep working.
async fn survives(kind: Kind, notifications: &[(&str, Value)]) -> Vec<String> {
    let (client, mut peer, bad, good) = two(kind).await;
    let mut events = bad.events();
    for (method, params) in notifications {
        let mut params = params.clone();
        params["processId"] = json!("bad");
        peer.notify(method, params).await;
    }
    peer.output("good", 1, "fine").await;
    peer.ends("good", 2, 0).await;
    assert_eq!(within(good.wait()).await.unwrap().code, 0);
    assert!(matches!(client.state(), ConnectionState::Connected), "{notifications:?}");
    let mut story = Vec::new();
    while !crate::is_pending(async { story.push(next(&mut events).await) }).await {
        if story.last().is_some_and(|word| word == "end") {
            break;
        }
    }
    // Lose the session, and check what the handle reports then.
    drop(peer);
    settle().await;
    client.close().await;
    let read = within(bad.read(0, None, Duration::ZERO)).await.unwrap();
    assert!(read.closed && read.next_seq > 0);
    story
}

fn output(seq: u64) -> (&'static str, Value) {
    ("process/output", json!({"seq": seq, "stream": "stdout", "chunk": "eA=="}))
}

fn gap(from: u64, to: u64) -> (&'static str, Value) {
    ("process/gap", json!({"fromSeq": from, "toSeq": to, "bytes": MAX}))
}

#[tokio::test(start_paused = true)]
async fn the_highest_number_is_no_overflow() {
    for kind in [CURRENT, Kind::H] {
        for number in [MAX, MAX - 1, MAX - 2, 1 << 63] {
            let story = survives(kind, &[output(1), output(number), output(number)]).await;
            assert_eq!(story[0], "out 1 x");
            if kind == CURRENT {
                assert!(story[1].starts_with("failed Protocol: "), "{story:?}");
            }
            let exit = ("process/exited", json!({"seq": number, "exitCode": 0}));
            let close = ("process/closed", json!({"seq": number}));
            survives(kind, &[exit, close]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_gap_up_to_the_highest_number_is_no_overflow() {
    for kind in [CURRENT, Kind::H] {
        for to in [MAX, MAX - 1, MAX - 2, MAX - 3] {
            let story = survives(kind, &[gap(1, to), output(1), output(to), output(MAX)]).await;
            assert!(story[0].starts_with("gap 1-") || story[0].starts_with("failed Protocol: "), "{story:?}");
            // Output after the gap is reported at most once.
            assert!(story.iter().filter(|word| word.starts_with("out")).count() <= 1, "{story:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_gap_that_ends_before_it_begins_is_nothing_or_a_failure() {
    for kind in [CURRENT, Kind::H] {
        for (from, to) in [(1, 0), (2, 1), (5, 2), (MAX, 0), (MAX, 1), (0, 0), (0, MAX - 5)] {
            let story = survives(kind, &[output(1), gap(from, to), output(2)]).await;
            let is_told = story.iter().any(|word| word == "out 2 x" || word.starts_with("gap 2-"));
            let is_failed = story.iter().any(|word| word.starts_with("failed Protocol: "));
            assert!(is_told || is_failed, "{from}-{to}: {story:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn number_nought_is_known_already() {
    for kind in [CURRENT, Kind::H] {
        assert_eq!(survives(kind, &[output(0), gap(0, 0), output(1)]).await, ["out 1 x"]);
    }
}

#[tokio::test(start_paused = true)]
async fn offsets_and_sizes_are_passed_on_as_they_are() {
    let (_client, mut peer, bad, _good) = two(CURRENT).await;
    let mut events = bad.events();
    let params = json!({"processId": "bad", "seq": 1, "stream": "stdout", "chunk": "eA==", "offset": MAX});
    peer.notify("process/output", params).await;
    let event = within(events.next()).await;
    assert!(matches!(event, Some(Event::Output { offset: Some(MAX), .. })), "{event:?}");
    peer.notify("process/gap", json!({"processId": "bad", "fromSeq": 2, "toSeq": 2, "bytes": MAX})).await;
    assert_eq!(next(&mut events).await, format!("gap 2-2 {MAX}"));
    peer.exited("bad", 3, i32::MIN).await;
    let closed = json!({"processId": "bad", "seq": 4, "outputBytes": MAX, "droppedBytes": MAX});
    peer.notify("process/closed", closed).await;
    assert_eq!(within(bad.wait()).await.unwrap().code, i32::MIN);
    assert_eq!(bad.closed().unwrap().output_bytes, Some(MAX));
}

#[tokio::test(start_paused = true)]
async fn a_close_without_an_exit_is_an_error_and_no_hang() {
    for kind in [CURRENT, Kind::H] {
        let (_client, mut peer, bad, _good) = two(kind).await;
        peer.closed("bad", 1).await;
        assert_eq!(error_kind(within(bad.wait()).await), ErrorKind::Protocol);
        assert_eq!(collect(&mut bad.events()).await, ["close 1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn absurd_windows_are_brought_into_bounds() {
    // At least 64 KiB and at most 16 MiB, acknowledged in quarters.
    for (window, every) in [(0, 16 << 10), (1, 16 << 10), (MAX, 4 << 20)] {
        let (_client, mut peer, _door, process) = running(Kind::Current { window }).await;
        let mut events = process.events();
        let piece = vec![b'x'; every];
        peer.output("p", 1, &piece).await;
        peer.output("p", 2, "x").await;
        take(&mut events, 2).await;
        assert_eq!(peer.ack().await, ("p".to_owned(), 1), "{window}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_without_end_does_not_fill_the_memory() {
    let (_client, mut peer, _door, process) = running(Kind::Current { window: MAX }).await;
    let piece = vec![b'x'; 8 << 20];
    let mut seq = 0;
    while process.failed().is_none() {
        seq += 1;
        assert!(seq < 8, "more than 48 MiB are kept");
        peer.output("p", seq, &piece).await;
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn answers_to_reads_with_absurd_numbers_are_harmless() {
    let (_client, mut peer, bad, _good) = two(CURRENT).await;
    for (seq, next_seq) in [(MAX, MAX), (MAX, 0), (0, MAX), (7, 1)] {
        let result = read_result(&[(seq, "x")], next_seq, Some(0), true);
        let (read, _) = both(bad.read(0, None, Duration::MAX), peer.serve("process/read", result)).await;
        let read = read.unwrap();
        assert_eq!((read.chunks[0].seq, read.next_seq), (seq, next_seq));
    }
    let mut wrong = read_result(&[(1, "x")], 2, None, false);
    wrong["chunks"][0]["chunk"] = json!("not base64");
    let (read, _) = both(bad.read(MAX, Some(MAX), Duration::ZERO), peer.serve("process/read", wrong)).await;
    assert_eq!(error_kind(read), ErrorKind::Decode);
}

#[tokio::test(start_paused = true)]
async fn a_past_with_absurd_numbers_fails_its_process_alone() {
    let cases = [
        read_result(&[(MAX, "x")], MAX, None, false),
        read_result(&[(MAX, "x")], 0, Some(0), true),
        read_result(&[(MAX - 1, "x")], MAX, None, false),
        read_result(&[(MAX, "x"), (MAX, "y")], MAX, Some(0), false),
        read_result(&[], MAX, Some(0), true),
        read_result(&[], MAX, None, false),
        read_result(&[], 0, Some(0), true),
    ];
    for case in cases {
        let (client, mut peer, mut door) = connect(Kind::H).await;
        let (bad, good) =
            (start(&client, &mut peer, named("bad")).await, start(&client, &mut peer, named("good")).await);
        peer.cut();
        let (mut peer, _) = door.welcome(Kind::H).await;
        let serving = async {
            let mut reads = 0;
            loop {
                let request = peer.any_request().await;
                match (request.method.as_str(), request.params["processId"].as_str().unwrap()) {
                    ("process/read", "bad") => {
                        reads += 1;
                        assert!(reads < 10, "{case}: read again and again");
                        peer.answer(&request, case.clone()).await;
                    }
                    ("process/read", _) => peer.answer(&request, read_result(&[], 1, None, false)).await,
                    ("process/terminate", "bad") => peer.answer(&request, json!({"running": true})).await,
                    other => panic!("{other:?}"),
                }
            }
        };
        during(serving, is_connected(&client)).await;
        peer.output("good", 1, "fine").await;
        assert_eq!(next(&mut good.events()).await, "out 1 fine", "{case}");
        drop(bad);
    }
}

#[tokio::test(start_paused = true)]
async fn a_past_read_back_with_absurd_numbers_ends_for_its_reader() {
    for (seq, next_seq, closed) in [(MAX, MAX, false), (MAX, MAX, true), (3, MAX, false), (1, 0, true), (9, 2, false)] {
        let (_client, mut peer, _door, process) = running(CURRENT).await;
        let mut first = process.events();
        for seq in 1..=40 {
            peer.output("p", seq, vec![b'x'; 64 << 10]).await;
            next(&mut first).await;
        }
        let mut late = process.events();
        let reading = async {
            let mut story = Vec::new();
            while story.last().is_none_or(|last: &String| !last.starts_with("out 40") && !last.starts_with("failed")) {
                story.push(next(&mut late).await);
            }
            story
        };
        let serving = async {
            for _ in 0..10 {
                let exit = closed.then_some(0);
                peer.serve("process/read", read_result(&[(seq, "x")], next_seq, exit, closed)).await;
            }
            panic!("read again and again");
        };
        let story = during(serving, reading).await;
        assert!(story.len() <= 41, "{story:?}");
        // The first reader is not affected.
        peer.output("p", 41, "fine").await;
        assert_eq!(next(&mut first).await, "out 41 fine");
    }
}
