//! The client over a link with the kernel's TCP and a changing delay: nothing is lost, and nothing reconnects without need. As root.

use crate::prelude::*;

/// Lines of ten bytes: 40 MB.
const LINES: u64 = 4_000_000;

/// How long the link sends nothing: longer than a ping interval, shorter than the 30 s after which a peer counts as dead.
const STALL: Duration = Duration::from_secs(20);

fn round_trip(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn output_is_whole_over_a_link_whose_delay_changes_and_that_stalls() {
    let shape = LinkShape { round_trip: round_trip(1), bits_per_second: 400_000_000, queue_bytes: 1 << 20 };
    let link = FarLink::start(shape).expect("a far link needs root");
    let listen = format!("ws://{}:0", link.far().address());
    let start = || TestServer::builder().listen(&listen).arg("--insecure-plaintext").start();
    let server = link.far().run(start).expect("the namespace can be entered");
    let scenario = async {
        let client = testkit::within(
            Duration::from_secs(20),
            "connect",
            Client::builder().insecure_plaintext(true).connect(server.url()),
        );
        let client = client.await.expect("connect");
        let state = client.watch_state();
        let script = format!("seq -f %09.0f 1 {LINES}; exit 7");
        let process = client.start(Start::new(["sh", "-c", &script])).await.expect("start");
        let (mut events, mut next, mut partial, mut changes) = (process.events(), 1, Vec::new(), 0);
        let exit = loop {
            let event = testkit::within(3 * STALL, "the next event", events.next()).await.expect("not the end");
            match event {
                Event::Output { bytes, .. } => {
                    partial.extend_from_slice(&bytes);
                    let whole = partial.len() / 10 * 10;
                    for line in partial[..whole].chunks(10) {
                        assert_eq!(line, format!("{next:09}\n").as_bytes());
                        next += 1;
                    }
                    partial.drain(..whole);
                }
                Event::Exited { exit, .. } => break exit,
                other => panic!("{other:?}"),
            }
            let due = [LINES / 8, LINES / 3, LINES / 2, LINES / 3 * 2];
            if due.get(changes).is_some_and(|due| next > *due) {
                match changes {
                    0 => link.set_round_trip(round_trip(300)),
                    1 => link.set_round_trip(round_trip(1)),
                    2 => link.stall(STALL),
                    _ => link.set_round_trip(round_trip(50)),
                }
                changes += 1;
            }
        };
        assert_eq!((exit.code, next, changes), (7, LINES + 1, 4));
        assert!(
            !state.has_changed().expect("the session lives"),
            "the connection was never lost: {:?}",
            state.borrow()
        );
        client.end_session().await.expect("end");
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    link.near().run(|| runtime.block_on(scenario)).expect("the namespace can be entered");
}
