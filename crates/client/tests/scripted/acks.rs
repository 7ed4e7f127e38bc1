//! When output is acknowledged: the slowest reader decides, waiting discards output, and streams are readers, too. Order is tested in
//! `events`, cuts in `recovery`.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{prelude::*, spell};

/// 256 KiB, so that an acknowledgement is due every 64 KiB, which is every fourth piece.
const WINDOW: u64 = 256 << 10;
const PIECE: &[u8] = &[b'x'; 16 << 10];

async fn connected() -> (Client, Peer, Door, Process) {
    let (client, peer, door, process) = running(Kind::Current { window: WINDOW }).await;
    (client, peer, door, process)
}

fn ack(seq: u64) -> (String, u64) {
    ("p".to_owned(), seq)
}

#[tokio::test(start_paused = true)]
async fn every_quarter_of_the_window_is_acknowledged_and_the_end() {
    let (_client, mut peer, _door, process) = connected().await;
    let mut events = process.events();
    peer.outputs("p", 1..=10, PIECE).await;
    take(&mut events, 4).await;
    // The fourth event counts as consumed when the next one is requested.
    assert!(peer.is_silent().await);
    next(&mut events).await;
    assert_eq!(peer.ack().await, ack(4));
    take(&mut events, 3).await;
    assert!(peer.is_silent().await);
    next(&mut events).await;
    assert_eq!(peer.ack().await, ack(8));
    next(&mut events).await;
    peer.ends("p", 11, 0).await;
    assert_eq!(collect(&mut events).await, ["exit 11=0", "close 12"]);
    assert_eq!(peer.ack().await, ack(12));
    drop((events, process));
    assert!(peer.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_acknowledged_when_the_next_one_is_requested() {
    let (_client, mut peer, _door, process) = connected().await;
    let mut events = process.events();
    peer.outputs("p", 1..=10, PIECE).await;
    within(process.wake().wait_for(|seq| *seq == 10)).await.expect("the log exists");
    let batch = async |events: &mut exec_server_client::Events| {
        within(events.next_batch(WINDOW / 4)).await.iter().map(spell).collect::<Vec<_>>()
    };
    let pieces = |from: u64, to| (from..=to).map(|seq| format!("out {seq} 16384 bytes")).collect::<Vec<_>>();
    assert_eq!((batch(&mut events).await, events.position()), (pieces(1, 4), 4));
    assert!(peer.is_silent().await);
    assert_eq!(batch(&mut events).await, pieces(5, 8));
    assert_eq!(peer.ack().await, ack(4));
    // A batch does not wait until it is full.
    assert_eq!(batch(&mut events).await, pieces(9, 10));
    assert_eq!(peer.ack().await, ack(8));
    assert!(is_pending(events.next_batch(1)).await);
    peer.ends("p", 11, 0).await;
    within(process.wake().wait_for(|seq| *seq == 12)).await.expect("the log exists");
    assert_eq!(batch(&mut events).await, ["exit 11=0", "close 12"]);
    assert_eq!(batch(&mut events).await, [""; 0]);
    assert_eq!(peer.ack().await, ack(12));
}

#[tokio::test(start_paused = true)]
async fn only_the_slower_of_two_readers_is_acknowledged() {
    let (_client, mut peer, _door, process) = connected().await;
    let (mut fast, mut slow) = (process.events(), process.events());
    peer.outputs("p", 1..=12, PIECE).await;
    take(&mut fast, 12).await;
    assert!(is_pending(fast.next()).await);
    assert!(peer.is_silent().await);
    take(&mut slow, 5).await;
    assert_eq!(peer.ack().await, ack(4));
    next(&mut slow).await;
    assert!(peer.is_silent().await);
    // Without the slow reader, the fast one decides.
    drop(slow);
    assert_eq!(peer.ack().await, ack(12));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_begins_later_does_not_hold_what_lies_before_it() {
    let (_client, mut peer, _door, process) = connected().await;
    let mut events = process.events_after(8);
    peer.outputs("p", 1..=9, PIECE).await;
    assert_eq!(next(&mut events).await, "out 9 16384 bytes");
    assert_eq!(events.position(), 9);
    assert_eq!(peer.ack().await.1, 8);
}

#[tokio::test(start_paused = true)]
async fn waiting_without_a_reader_discards_and_acknowledges() {
    let (_client, mut peer, _door, process) = connected().await;
    peer.outputs("p", 1..=8, PIECE).await;
    assert!(peer.is_silent().await, "a handle that nobody reads takes nothing");
    let (exit, ()) = both(process.wait(), async {
        assert_eq!(peer.ack().await, ack(8));
        for seq in 9..=400 {
            peer.output("p", seq, PIECE).await;
            if seq % 4 == 0 {
                assert_eq!(peer.ack().await, ack(seq));
            }
        }
        peer.ends("p", 401, 3).await;
        assert_eq!(peer.ack().await, ack(402));
    })
    .await;
    assert_eq!(exit.unwrap().code, 3);
    assert_eq!(within(process.wait()).await.unwrap().code, 3);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_given_up_discards_no_more() {
    let (_client, mut peer, _door, process) = connected().await;
    assert!(is_pending(process.wait()).await);
    peer.outputs("p", 1..=8, PIECE).await;
    assert!(peer.is_silent().await);
    let mut events = process.events();
    assert_eq!(next(&mut events).await, "out 1 16384 bytes");
}

#[tokio::test(start_paused = true)]
async fn waiting_beside_a_reader_takes_nothing_from_it() {
    let (_client, mut peer, _door, process) = connected().await;
    let mut events = process.events();
    let waiting = process.wait();
    tokio::pin!(waiting);
    peer.outputs("p", 1..=8, PIECE).await;
    assert!(is_pending(&mut waiting).await);
    assert!(peer.is_silent().await);
    assert_eq!(take(&mut events, 8).await.len(), 8);
    // Without the reader, nothing has to be kept.
    drop(events);
    assert_eq!(peer.ack().await.1, 8);
    peer.ends("p", 9, 0).await;
    assert_eq!(within(waiting).await.unwrap().code, 0);
    assert_eq!(peer.ack().await, ack(10));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_only_reader_keeps_what_it_did_not_take() {
    let (_client, mut peer, _door, process) = connected().await;
    let mut events = process.events();
    peer.outputs("p", 1..=12, PIECE).await;
    take(&mut events, 5).await;
    assert_eq!(peer.ack().await, ack(4));
    drop(events);
    assert!(peer.is_silent().await);
    let mut events = process.events_after(5);
    assert_eq!(next(&mut events).await, "out 6 16384 bytes");
    // A cursor that returned nothing has consumed nothing.
    drop(events);
    drop(process.events());
    assert!(peer.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_not_returned_is_not_lost() {
    let (_client, mut peer, _door, process) = connected().await;
    let mut events = process.events();
    for seq in 1..=3 {
        // Request the event, drop the future, and request it again.
        assert!(is_pending(events.next()).await);
        peer.output("p", seq, "x").await;
        settle().await;
        assert_eq!(next(&mut events).await, format!("out {seq} x"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reference_server_is_never_acknowledged() {
    let (_client, mut peer, _door, process) = running(Kind::H).await;
    let mut events = process.events();
    for seq in 1..=100 {
        peer.output("p", seq, PIECE).await;
        next(&mut events).await;
    }
    peer.ends("p", 101, 0).await;
    assert_eq!(collect(&mut events).await, ["exit 101=0", "close 102"]);
    assert!(peer.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn a_reference_server_is_held_back_by_a_slow_reader_and_drops_where_nobody_reads() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let (slow, unread) =
        (start(&client, &mut peer, named("slow")).await, start(&client, &mut peer, named("unread")).await);
    let piece = vec![b'x'; 1 << 20];
    peer.outputs("unread", 1..=20, &piece).await;
    settle().await;
    assert_eq!(*unread.wake().borrow(), 20);
    // The oldest events are gone from memory, and the server no longer has them, either.
    let mut late = unread.events();
    let (gap, _) = both(late.next(), peer.serve("process/read", read_result(&[(20, "x")], 21, None, false))).await;
    let Some(Event::Gap { from_seq: 1, to_seq, .. }) = gap else { panic!("{gap:?}") };
    assert!((3..=5).contains(&to_seq), "{to_seq}");
    assert_eq!(next(&mut late).await, format!("out {} 1048576 bytes", to_seq + 1));
    let mut events = slow.events();
    let sending = async {
        peer.outputs("slow", 1..=20, &piece).await;
        peer.ends("slow", 21, 0).await;
        peer.serve("process/terminate", json!({"running": false})).await;
    };
    tokio::pin!(sending);
    // The client reads 16 MiB ahead of the reader, and then stops reading the connection.
    assert!(is_pending(&mut sending).await);
    let held = *slow.wake().borrow();
    assert!((16..=18).contains(&held), "{held}");
    // Without acknowledgements, nothing can be lost only if answers wait behind that output, too.
    let ending = slow.terminate(None);
    tokio::pin!(ending);
    assert!(is_pending(&mut ending).await);
    let (story, (ended, ())) = both(collect(&mut events), async { tokio::join!(ending, sending) }).await;
    assert!(!ended.unwrap());
    assert_eq!((story.len(), story[21].as_str()), (22, "close 22"));
}

#[tokio::test(start_paused = true)]
async fn standard_streams_are_byte_streams() {
    let (_client, mut peer, _door, process) = connected().await;
    let (mut stdout, mut stderr) = (process.stdout(), process.stderr());
    peer.output_on("p", 1, "stdout", "to be").await;
    peer.output_on("p", 2, "stderr", "or not").await;
    peer.output_on("p", 3, "stdout", " continued").await;
    peer.notify("process/gap", json!({"processId": "p", "fromSeq": 4, "toSeq": 5, "bytes": 99})).await;
    peer.output_on("p", 6, "pty", "!").await;
    peer.ends("p", 7, 0).await;
    let mut three = [0; 3];
    within(stdout.read_exact(&mut three)).await.unwrap();
    assert_eq!(&three, b"to ");
    let mut rest = Vec::new();
    let error = within(stdout.read_to_end(&mut rest)).await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::InvalidData, "99 bytes of output are gone"));
    assert_eq!(rest, b"be continued");
    rest.clear();
    within(stdout.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"!");
    let mut errors = Vec::new();
    within(stderr.read_to_end(&mut errors)).await.unwrap_err();
    within(stderr.read_to_end(&mut errors)).await.unwrap();
    assert_eq!(errors, b"or not");
    drop((stdout, stderr));
    assert_eq!(peer.ack().await, ack(8));
}

#[tokio::test(start_paused = true)]
async fn stdin_is_a_writer_that_closes() {
    let (_client, mut peer, _door, process) = connected().await;
    let mut stdin = process.stdin();
    let (written, sent) = both(
        async {
            stdin.write_all(&vec![b'x'; 600 << 10]).await?;
            stdin.shutdown().await
        },
        async {
            let mut sent = Vec::new();
            for _ in 0..3 {
                let params = peer.serve("process/write", json!({"status": "accepted"})).await;
                sent.push(params["chunk"].as_str().unwrap().len());
            }
            peer.serve("process/closeStdin", json!({"status": "accepted"})).await;
            sent
        },
    )
    .await;
    written.unwrap();
    // 256 KiB, 256 KiB and 88 KiB in base64.
    assert_eq!(sent, [349_528, 349_528, 120_152]);
    assert_eq!(within(stdin.write(b"more")).await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);

    let mut stdin = process.stdin();
    within(stdin.write_all(b"refused")).await.unwrap();
    let (flushed, _) = both(stdin.flush(), peer.serve("process/write", json!({"status": "stdinClosed"}))).await;
    assert_eq!(flushed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}
