//! Cuts with reference servers: missed events are read back, and rebuilt from the answer.

use crate::prelude::*;

/// A process on a server of generation H, with one event before the link was cut.
async fn cut_after_one() -> (Client, Process, Door) {
    let (client, mut peer, door, process) = running(Kind::H).await;
    peer.output("p", 1, "one").await;
    settle().await;
    peer.cut();
    (client, process, door)
}

/// Accepts the next connection, and answers the read of missed events with this result.
async fn read_back(door: &mut Door, result: Value) -> Peer {
    let (mut peer, _) = door.welcome(Kind::H).await;
    let params = peer.serve("process/read", result).await;
    assert_eq!(params, json!({"processId": "p", "afterSeq": 1, "waitMs": 0}));
    peer
}

/// Answers a read that finds nothing new.
async fn nothing_more(peer: &mut Peer, next_seq: u64) {
    let params = peer.serve("process/read", read_result(&[], next_seq, None, false)).await;
    assert_eq!(params["afterSeq"], next_seq - 1);
}

#[tokio::test(start_paused = true)]
async fn remote_exec_process_recovers_after_transport_disconnect() {
    let (client, process, mut door) = cut_after_one().await;
    let mut events = process.events();
    let mut peer = read_back(&mut door, read_result(&[(2, "two"), (3, "three")], 4, None, false)).await;
    nothing_more(&mut peer, 4).await;
    is_connected(&client).await;
    assert_eq!(take(&mut events, 3).await, ["out 1 one", "out 2 two", "out 3 three"]);
    // Notifications continue after what was read. An event that arrives twice is reported once.
    peer.output("p", 3, "three").await;
    peer.output("p", 4, "four").await;
    let (written, _) = both(process.write("in"), peer.serve("process/write", json!({"status": "accepted"}))).await;
    written.unwrap();
    peer.ends("p", 5, 7).await;
    assert_eq!(collect(&mut events).await, ["out 4 four", "exit 5=7", "close 6"]);
}

#[tokio::test(start_paused = true)]
async fn the_end_is_rebuilt_from_a_read() {
    let (client, process, mut door) = cut_after_one().await;
    let mut peer = read_back(&mut door, read_result(&[(2, "two"), (4, "late")], 6, Some(3), true)).await;
    is_connected(&client).await;
    // The exit gets the missing number, and the close the last one.
    let story = ["out 1 one", "out 2 two", "exit 3=3", "out 4 late", "close 5"];
    assert_eq!(collect(&mut process.events()).await, story);
    assert_eq!(within(process.wait()).await.unwrap().code, 3);
    assert!(peer.is_silent().await, "nothing can follow");
}

#[tokio::test(start_paused = true)]
async fn generation_s_tells_the_end_behind_its_last_chunk() {
    // `nextSeq` counts only the returned chunks: an answer with chunks does not reveal the numbers of exit and close.
    for (is_closed, next_seq) in [(true, 6), (false, 5)] {
        let (client, mut peer, mut door, process) = running(Kind::S).await;
        peer.output("p", 1, "one").await;
        settle().await;
        peer.cut();
        let (mut peer, _) = door.welcome(Kind::S).await;
        let chunks = [(2, "two"), (3, "three")];
        let serving = async {
            loop {
                let request = peer.request("process/read").await;
                let after = request.params["afterSeq"].as_u64().unwrap();
                let result = match after {
                    1 => read_result(&chunks, 4, Some(5), is_closed),
                    _ => read_result(&[], next_seq, Some(5), is_closed),
                };
                peer.answer(&request, result).await;
            }
        };
        during(serving, is_connected(&client)).await;
        let mut story = vec!["out 1 one", "out 2 two", "out 3 three", "exit 4=5"];
        if is_closed {
            story.push("close 5");
        }
        assert_eq!(take(&mut process.events(), story.len()).await, story);
    }
}

#[tokio::test(start_paused = true)]
async fn an_exit_before_the_last_output_is_found_in_its_hole() {
    for kind in [Kind::H, Kind::S] {
        let (client, peer, mut door, process) = running(kind).await;
        peer.cut();
        let (mut peer, _) = door.welcome(kind).await;
        peer.serve("process/read", read_result(&[(1, "one"), (3, "late")], 4, Some(7), false)).await;
        let serving = async {
            loop {
                let params = peer.serve("process/read", read_result(&[], 4, Some(7), false)).await;
                assert_eq!(params["afterSeq"], 3);
            }
        };
        during(serving, is_connected(&client)).await;
        assert_eq!(take(&mut process.events(), 3).await, ["out 1 one", "exit 2=7", "out 3 late"], "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn recovery_handles_dense_tail_output_and_newer_notification() {
    let (client, process, mut door) = cut_after_one().await;
    let mut events = process.events();
    assert_eq!(next(&mut events).await, "out 1 one");
    let (mut peer, _) = door.welcome(Kind::H).await;
    let request = peer.request("process/read").await;
    // These events are newer than those of the read, and arrive before them.
    peer.ends("p", 4, 0).await;
    assert!(is_pending(events.next()).await);
    peer.answer(&request, read_result(&[(2, "two"), (3, "three")], 4, None, false)).await;
    is_connected(&client).await;
    assert_eq!(collect(&mut events).await, ["out 2 two", "out 3 three", "exit 4=0", "close 5"]);
}

#[tokio::test(start_paused = true)]
async fn notifications_before_the_answer_to_a_resume_are_heard() {
    let (client, process, mut door) = cut_after_one().await;
    let mut peer = door.accept().await;
    let request = peer.request("initialize").await;
    for seq in 2..=200 {
        peer.output("p", seq, seq.to_string()).await;
    }
    peer.answer(&request, Kind::H.greeting()).await;
    peer.initialized().await;
    nothing_more(&mut peer, 201).await;
    is_connected(&client).await;
    assert_eq!(take(&mut process.events(), 200).await[199], "out 200 200");
}

#[tokio::test(start_paused = true)]
async fn recovery_rejects_output_at_closed_sequence() {
    let (client, process, mut door) = cut_after_one().await;
    let mut peer = read_back(&mut door, read_result(&[(2, "two"), (4, "x")], 5, Some(0), true)).await;
    // On generation S this read could return a higher `nextSeq`. Generation H repeats the same one.
    assert_eq!(peer.serve("process/read", read_result(&[], 5, Some(0), true)).await["afterSeq"], 4);
    // A process whose events cannot be followed is terminated.
    assert_eq!(peer.serve("process/terminate", json!({"running": false})).await, json!({"processId": "p"}));
    is_connected(&client).await;
    let story = ["out 1 one", "failed Protocol: output has the sequence number of the close"];
    assert_eq!(collect(&mut process.events()).await, story);
}

#[tokio::test(start_paused = true)]
async fn contradictions_fail_the_process_alone() {
    let contradictions = [
        read_result(&[(2, "x")], 3, Some(0), true),
        json!({"chunks": [], "nextSeq": 3, "exited": true, "exitCode": null, "closed": true, "failure": null}),
        json!({
            "chunks": [{"seq": 2, "stream": "stdout", "chunk": "not base64"}],
            "nextSeq": 3, "exited": false, "exitCode": null, "closed": false, "failure": null,
        }),
    ];
    for contradiction in contradictions {
        let (client, mut peer, mut door) = connect(Kind::H).await;
        let (bad, good) = (start(&client, &mut peer, named("p")).await, start(&client, &mut peer, named("q")).await);
        peer.output("p", 1, "one").await;
        settle().await;
        peer.cut();
        let (mut peer, _) = door.welcome(Kind::H).await;
        // The order of the two reads does not matter.
        let serving = async {
            loop {
                let request = peer.any_request().await;
                let result = match (request.method.as_str(), request.params["processId"].as_str().unwrap()) {
                    ("process/read", "q") => read_result(&[], 1, None, false),
                    ("process/read", _) if request.params["afterSeq"] == 1 => contradiction.clone(),
                    ("process/read", _) => read_result(&[], 3, Some(0), true),
                    ("process/terminate", "p") => json!({"running": true}),
                    other => panic!("{other:?}"),
                };
                peer.answer(&request, result).await;
            }
        };
        during(serving, is_connected(&client)).await;
        let story = collect(&mut bad.events()).await;
        assert!(story.last().unwrap().starts_with("failed Protocol: "), "{story:?}");
        peer.output("q", 1, "fine").await;
        assert_eq!(next(&mut good.events()).await, "out 1 fine");
    }
}

#[tokio::test(start_paused = true)]
async fn recovery_adds_sandbox_denial_to_pending_exit_event() {
    let (client, process, mut door) = cut_after_one().await;
    let mut result = read_result(&[], 3, Some(1), false);
    result["sandboxDenied"] = json!(true);
    let mut peer = read_back(&mut door, result).await;
    let params = peer.serve("process/read", read_result(&[], 3, Some(1), false)).await;
    assert_eq!(params["afterSeq"], 2);
    is_connected(&client).await;
    assert_eq!(take(&mut process.events(), 2).await, ["out 1 one", "exit 2=1"]);
    assert_eq!(process.exit().unwrap().sandbox_denied, Some(true));
}

#[tokio::test(start_paused = true)]
async fn output_that_was_evicted_is_a_gap() {
    let (client, process, mut door) = cut_after_one().await;
    let mut events = process.events();
    let mut peer = read_back(&mut door, read_result(&[(8, "eight"), (9, "nine")], 10, None, false)).await;
    nothing_more(&mut peer, 10).await;
    is_connected(&client).await;
    assert_eq!(take(&mut events, 4).await, ["out 1 one", "gap 2-7", "out 8 eight", "out 9 nine"]);
    peer.output("p", 10, "ten").await;
    assert_eq!(next(&mut events).await, "out 10 ten");
}

#[tokio::test(start_paused = true)]
async fn what_was_evicted_before_the_end_is_a_gap_and_the_end_is_kept() {
    let (client, process, mut door) = cut_after_one().await;
    let _peer = read_back(&mut door, read_result(&[(8, "eight")], 11, Some(0), true)).await;
    is_connected(&client).await;
    let story = ["out 1 one", "gap 2-7", "out 8 eight", "exit 9=0", "close 10"];
    assert_eq!(collect(&mut process.events()).await, story);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_the_server_forgot_fails_alone() {
    let (client, process, mut door) = cut_after_one().await;
    let (mut peer, _) = door.welcome(Kind::H).await;
    peer.refuse_next("process/read", -32600, None, "unknown process id p").await;
    is_connected(&client).await;
    let story = collect(&mut process.events()).await;
    assert_eq!(story, ["out 1 one", "failed Server: unknown process id p"]);
    let other = start(&client, &mut peer, named("q")).await;
    peer.output("q", 1, "fine").await;
    assert_eq!(next(&mut other.events()).await, "out 1 fine");
}

#[tokio::test(start_paused = true)]
async fn a_cut_while_missed_events_are_read_is_one_more_cut() {
    let (client, process, mut door) = cut_after_one().await;
    for _ in 0..3 {
        let (mut peer, _) = door.welcome(Kind::H).await;
        peer.request("process/read").await;
        peer.cut();
    }
    let mut peer = read_back(&mut door, read_result(&[(2, "two")], 3, None, false)).await;
    nothing_more(&mut peer, 3).await;
    is_connected(&client).await;
    assert_eq!(take(&mut process.events(), 2).await, ["out 1 one", "out 2 two"]);
}

#[tokio::test(start_paused = true)]
async fn a_closed_process_is_not_asked_for() {
    let (client, mut peer, mut door, process) = running(Kind::H).await;
    peer.ends("p", 1, 0).await;
    within(process.wait()).await.unwrap();
    peer.cut();
    let (mut peer, _) = door.welcome(Kind::H).await;
    is_connected(&client).await;
    assert!(peer.is_silent().await);
    assert_eq!(collect(&mut process.events()).await, ["exit 1=0", "close 2"]);
}

#[tokio::test(start_paused = true)]
async fn a_start_tells_a_reference_server_what_it_can_read() {
    // H expects URIs; S and V0 expect native paths. The default directory is that of the server, if the server reports it.
    for (kind, own, named_dir) in
        [(Kind::H, "file:///srv", "file:///a%20b"), (Kind::S, "/", "/a b"), (Kind::V0, "/", "/a b")]
    {
        let (client, mut peer, _door) = connect(kind).await;
        let (_process, params) = both(client.start(named("p").env("K", "V")), peer.serve_start()).await;
        assert_eq!((&params["cwd"], &params["env"]["K"]), (&json!(own), &json!("V")), "{kind:?}");
        let (_process, params) = both(client.start(named("q").cwd("/a b")), peer.serve_start()).await;
        assert_eq!(params["cwd"], named_dir, "{kind:?}");
    }
}
