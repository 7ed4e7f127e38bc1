//! Output of a process: events, replay, and reading from the log.

use crate::{Kind, prelude::*, stories};
use exec_server_client::Totals;

pub(crate) async fn exec_process_starts_and_exits(place: &Place) {
    assert_eq!(place.backend().is_remote(), place.kind() != Kind::Local);
    let running = place.start(exec_server_client::Start::new(["true"]).id("it")).await;
    assert_eq!(running.id().as_str(), "it");
    assert!(running.pid().is_some_and(|pid| pid > 1));
    let exit = running.wait().await.expect("it ends");
    assert_eq!((exit.code, &exit.signal, exit.cause), (0, &None, Some(Cause::Exit)));
    assert_eq!(running.exit(), Some(exit));
    assert_eq!(running.closed(), Some(Totals { output_bytes: Some(0), dropped_bytes: Some(0) }));
    let read = running.read(0, None, Duration::ZERO).await.expect("read");
    assert_eq!((read.exited, read.exit_code, read.closed, read.failure), (true, Some(0), true, None));
    assert_eq!((read.chunks, read.next_seq), (Vec::new(), 3));
}

/// Reads until the output after `after` equals `wanted`, and returns the next sequence number. Wakes up by notification, never by timeout
/// alone.
async fn read_until(process: &Process, mut after: u64, wanted: &str) -> u64 {
    let (mut wake, mut said) = (process.wake(), Vec::new());
    loop {
        wake.mark_unchanged();
        let read = process.read(after, None, Duration::ZERO).await.expect("read");
        for chunk in read.chunks {
            said.extend_from_slice(&chunk.bytes);
        }
        after = read.next_seq - 1;
        if said == wanted.as_bytes() {
            return after;
        }
        assert!(wanted.as_bytes().starts_with(&said), "{said:?}");
        soon("news", wake.changed()).await.expect("the process lives");
    }
}

pub(crate) async fn exec_process_streams_output(place: &Place) {
    let process = place.start(sh("read x; printf one; read x; printf two; read x")).await;
    let before = process.read(0, None, Duration::ZERO).await.expect("read");
    assert_eq!((before.chunks, before.next_seq, before.exited), (Vec::new(), 1, false));
    process.write("\n").await.expect("write");
    let after = read_until(&process, 0, "one").await;
    process.write("\n").await.expect("write");
    let after = read_until(&process, after, "two").await;
    // A waiting read returns as soon as there is an event, long before its timeout.
    let reading = process.read(after, None, Duration::from_secs(600));
    let (read, written) = tokio::join!(soon("the waiting read", reading), process.write("\n"));
    written.expect("write");
    let read = read.expect("read");
    assert!(read.exited && read.exit_code == Some(0), "{read:?}");
    let end = process.read(read.next_seq - 1, None, Duration::from_secs(600)).await.expect("read");
    assert!(read.closed || end.closed, "{end:?}");
}

pub(crate) async fn exec_process_pushes_events(place: &Place) {
    let process = place.start(sh("printf out; read x; printf err >&2; read x; exit 7")).await;
    let mut events = process.events();
    assert_eq!(spell(&mut events).await, "1 stdout out");
    process.write("\n").await.expect("write");
    assert_eq!(spell(&mut events).await, "2 stderr err");
    process.write("\n").await.expect("write");
    assert_eq!(stories(&mut events, 3).await, ["3 exited 7", "4 closed", "end"]);
    assert_eq!(*process.wake().borrow(), 4);
    let exit = process.exit().expect("it ended");
    assert_eq!((exit.code, exit.signal, exit.cause), (7, None, Some(Cause::Exit)));
    assert!(exit.usage.is_some_and(|usage| usage.max_rss_bytes > 0));
    assert_eq!(process.closed(), Some(Totals { output_bytes: Some(6), dropped_bytes: Some(0) }));
}

pub(crate) async fn exec_process_replays_events_after_close(place: &Place) {
    let process = place.start(sh("echo said; exit 3")).await;
    let mut wake = process.wake();
    let closed = wake.wait_for(|_| process.closed().is_some());
    soon("the close", closed).await.expect("the process is watched");
    for _ in 0..2 {
        let mut events = process.events();
        assert_eq!(stories(&mut events, 4).await, ["1 stdout said\n", "2 exited 3", "3 closed", "end"]);
    }
    // Waiting for the process does not consume its output.
    assert_eq!(process.wait().await.expect("it ended").code, 3);
    assert_eq!(tell(&process).await.stdout, b"said\n");
}

pub(crate) async fn exec_process_retains_output_after_exit_until_streams_close(place: &Place) {
    let gate = place.path("gate");
    let process =
        place.start(sh(format!("mkfifo {gate} && (read x <{gate}; printf late) & wait_less=1; exit 5"))).await;
    let mut events = process.events();
    assert_eq!(spell(&mut events).await, "1 exited 5");
    let read = process.read(0, None, Duration::ZERO).await.expect("read");
    assert_eq!((read.exited, read.exit_code, read.closed), (true, Some(5), false));
    assert!(process.has_exited() && process.closed().is_none());
    place.say(&format!("until test -p {gate}; do :; done; : >{gate}")).await;
    assert_eq!(stories(&mut events, 2).await, ["2 stdout late", "3 closed"]);
    let read = process.read(0, None, Duration::ZERO).await.expect("read");
    let chunks: Vec<_> = read.chunks.iter().map(|chunk| (chunk.seq, &*chunk.bytes)).collect();
    assert_eq!((chunks, read.next_seq, read.closed), (vec![(2, &b"late"[..])], 4, true));
}

pub(crate) async fn exec_process_preserves_queued_events_before_subscribe(place: &Place) {
    let process = place.start(sh("printf one; read x; printf two; read x")).await;
    let mut wake = process.wake();
    soon("the first output", wake.wait_for(|seq| *seq >= 1)).await.expect("the process is watched");
    process.write("\n").await.expect("write");
    soon("the second output", wake.wait_for(|seq| *seq >= 2)).await.expect("the process is watched");
    let mut events = process.events();
    assert_eq!(stories(&mut events, 2).await, ["1 stdout one", "2 stdout two"]);
    process.write("\n").await.expect("write");
    assert_eq!(follow(events).await.exit.code, 0);
}

pub(crate) async fn a_reader_begins_after_any_number(place: &Place) {
    let process = place.start(sh("for i in 1 2 3; do printf $i; read x; done")).await;
    let mut first = process.events();
    for number in 1..=3 {
        assert_eq!(spell(&mut first).await, format!("{number} stdout {number}"));
        process.write("\n").await.expect("write");
    }
    assert_eq!(first.position(), 3);
    let mut later = process.events_after(2);
    assert_eq!(spell(&mut later).await, "3 stdout 3");
    assert_eq!(spell(&mut later).await, "4 exited 0");
    assert_eq!(follow(process.events_after(1)).await.stdout, b"23");
    assert_eq!(spell(&mut process.events_after(5)).await, "end");
}

pub(crate) async fn a_read_stops_at_its_bound(place: &Place) {
    let process = place.start(sh("printf one; read x; printf two; read x; printf three")).await;
    let mut events = process.events();
    for _ in 0..2 {
        spell(&mut events).await;
        process.write("\n").await.expect("write");
    }
    assert_eq!(follow(events).await.exit.code, 0);
    // Each read returns at least one chunk, and the next read continues after it.
    let (mut after, mut said) = (0, Vec::new());
    for wanted in ["one", "two", "three"] {
        let read = process.read(after, Some(1), Duration::ZERO).await.expect("read");
        let [chunk] = read.chunks.as_slice() else { panic!("one piece: {read:?}") };
        assert_eq!(chunk.bytes, wanted);
        said.extend_from_slice(&chunk.bytes);
        after = read.next_seq - 1;
    }
    let all = process.read(0, None, Duration::ZERO).await.expect("read");
    let all: Vec<u8> = all.chunks.iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
    assert_eq!(all, said);
}

pub(crate) async fn two_readers_see_the_same(place: &Place) {
    let process = place.start(sh("seq 1 60000; seq 1 20000 >&2; exit 2")).await;
    let (one, two) = (process.events(), process.events());
    let mut hasty = process.events();
    // A reader that is cancelled all the time and tries again.
    let hasty = async {
        let mut events = 0;
        loop {
            match tokio::time::timeout(Duration::from_micros(50), hasty.next()).await {
                Ok(Some(_)) => events += 1,
                Ok(None) => break events,
                Err(_) => {}
            }
        }
    };
    let (one, two, hasty) = tokio::join!(follow(one), follow(two), hasty);
    assert_eq!(one, two);
    assert_eq!(*process.wake().borrow(), hasty, "every number once");
    assert_eq!((one.stdout.len(), one.stderr.len(), one.exit.code), (348_894, 108_894, 2));
    let late = tell(&process).await;
    assert_eq!(one, late);
}

pub(crate) async fn a_handle_that_was_dropped_is_taken_up_again(place: &Place) {
    let process = place.start(sh("echo first; read x; echo \"$x\"; read x; exit 9")).await;
    let (id, pid) = (process.id().clone(), process.pid());
    output_until(&mut process.events(), "first\n").await;
    drop(process);
    let listed = place.client().list(exec_server_client::protocol::process::Scope::Session).await.expect("list");
    assert_eq!(listed.iter().map(|info| (&info.process_id, info.exited)).collect::<Vec<_>>(), [(&id, false)]);

    let process = place.client().attach(&id, exec_server_client::Attach::default()).await.expect("attach");
    assert_eq!((process.id(), process.pid(), process.session_id()), (&id, pid, place.client().session_id()));
    process.write("again\n").await.expect("write");
    let mut events = process.events();
    assert_eq!(output_until(&mut events, "again\n").await, "first\nagain\n");
    process.write("\n").await.expect("write");
    let exit = process.wait().await.expect("it ends");
    assert_eq!((exit.code, exit.cause), (9, Some(Cause::Exit)));
    until("the end of the events", async || process.closed().is_some()).await;
    assert_eq!(tell(&process).await.stdout, b"first\nagain\n");
}
