//! Stdin through cuts and refusals: exactly once and in order if the server remembers write ids, and otherwise an honest error. Also tests
//! that a start happens once despite cuts, and the drop of handles.

use crate::{peer::Request, prelude::*};
use exec_server_client::protocol::process::{CloseStdinStatus, WriteStatus};

fn accepted() -> Value {
    json!({"status": "accepted"})
}

/// Id, text and request of the next write.
async fn write(peer: &mut Peer) -> (String, String, Request) {
    let request = peer.request("process/write").await;
    let text = base64::decode(request.params["chunk"].as_str().unwrap()).unwrap();
    let id = request.params["writeId"].as_str().unwrap().to_owned();
    (id, String::from_utf8(text).unwrap(), request)
}

#[tokio::test(start_paused = true)]
async fn session_write_retries_same_write_id_after_recovery() {
    for kind in [CURRENT, Kind::H] {
        let (_client, mut peer, mut door, process) = running(kind).await;
        let writes = join_all((0..40).map(|n| process.write(format!("line {n}\n"))));
        let (results, ()) = both(writes, async {
            // Sixteen writes are in flight at once. The first of them is answered.
            let mut ids = Vec::new();
            for n in 0..16 {
                let (id, text, request) = write(&mut peer).await;
                assert_eq!(text, format!("line {n}\n"));
                if n == 0 {
                    peer.answer(&request, accepted()).await;
                }
                ids.push(id);
            }
            let (seventeenth, _, _) = write(&mut peer).await;
            assert!(peer.is_silent().await);
            ids.push(seventeenth);
            peer.cut();
            let (mut peer, _) = door.welcome(kind).await;
            if kind == Kind::H {
                peer.serve("process/read", read_result(&[], 1, None, false)).await;
            }
            for n in 1..40 {
                let (id, text, request) = write(&mut peer).await;
                assert_eq!(text, format!("line {n}\n"));
                assert!(ids.get(n).is_none_or(|earlier| *earlier == id), "{n}: {id} is not {ids:?}");
                peer.answer(&request, accepted()).await;
            }
            assert!(peer.is_silent().await);
        })
        .await;
        assert!(results.into_iter().all(|result| result.unwrap() == WriteStatus::Accepted), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn write_ids_are_never_used_twice() {
    let (_client, mut peer, _door, [first, second]) = running_two(CURRENT).await;
    let mut ids = std::collections::HashSet::new();
    for process in [&first, &second, &first] {
        let (written, (id, _, _)) = both(process.write("x"), async {
            let (id, text, request) = write(&mut peer).await;
            peer.answer(&request, accepted()).await;
            (id, text, request)
        })
        .await;
        written.unwrap();
        assert!(ids.insert(id));
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_on_generation_s_is_not_repeated() {
    let (_client, mut peer, mut door, process) = running(Kind::S).await;
    let writes = join_all(["one", "two"].map(|text| process.write(text)));
    let (results, peer) = both(writes, async {
        assert_eq!(write(&mut peer).await.1, "one");
        assert_eq!(write(&mut peer).await.1, "two");
        peer.cut();
        let (mut peer, _) = door.welcome(Kind::S).await;
        peer.serve("process/read", read_result(&[], 1, None, false)).await;
        peer
    })
    .await;
    for result in results {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::UnknownOutcome { method: "process/write", .. }), "{error:?}");
    }
    let mut peer = peer;
    assert!(peer.is_silent().await);
    // The next write works.
    let (written, _) = both(process.write("three"), peer.serve("process/write", accepted())).await;
    assert_eq!(written.unwrap(), WriteStatus::Accepted);
}

#[tokio::test(start_paused = true)]
async fn statuses_and_errors_settle_their_own_write() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    let writes = join_all((0..5).map(|n| process.write(n.to_string())));
    let (results, ()) = both(writes, async {
        let mut requests = Vec::new();
        for _ in 0..5 {
            requests.push(write(&mut peer).await.2);
        }
        // Answers may come in any order; each one settles its own write.
        peer.refuse(&requests[4], -32602, Some("invalidBase64"), "no").await;
        peer.answer(&requests[2], json!({"status": "unknownProcess"})).await;
        peer.answer(&requests[3], json!("what?")).await;
        peer.answer(&requests[1], json!({"status": "stdinClosed"})).await;
        peer.answer(&requests[0], accepted()).await;
    })
    .await;
    let expected = [
        Ok(WriteStatus::Accepted),
        Ok(WriteStatus::StdinClosed),
        Ok(WriteStatus::UnknownProcess),
        Err(ErrorKind::Decode),
        Err(ErrorKind::Server),
    ];
    assert_eq!(kinds(&results), expected);
}

async fn refuse(peer: &mut Peer, request: &Request) {
    peer.refuse(request, -32600, Some("overloaded"), "too many bytes of requests").await;
}

/// The next writes, which must have these texts.
async fn writes(peer: &mut Peer, texts: &[&str]) -> Vec<(String, Request)> {
    let mut requests = Vec::new();
    for text in texts {
        let (id, found, request) = write(peer).await;
        assert_eq!(found, *text);
        requests.push((id, request));
    }
    requests
}

/// The results of writes in short form.
fn kinds(results: &[Result<WriteStatus, Error>]) -> Vec<Result<WriteStatus, ErrorKind>> {
    results.iter().map(|result| result.as_ref().copied().map_err(Error::kind)).collect()
}

#[tokio::test(start_paused = true)]
async fn writes_that_a_server_has_no_room_for_are_sent_again_in_order() {
    for kind in [CURRENT, Kind::S] {
        let (_client, mut peer, _door, process) = running(kind).await;
        let writing = join_all(["0", "1", "2", "3"].map(|text| process.write(text)));
        let (results, ()) = both(writing, async {
            let first = writes(&mut peer, &["0", "1", "2", "3"]).await;
            peer.answer(&first[0].1, accepted()).await;
            refuse(&mut peer, &first[1].1).await;
            refuse(&mut peer, &first[3].1).await;
            // While one of them is unanswered, it may still be accepted, so nothing is sent.
            assert!(tokio::time::timeout(Duration::from_secs(600), peer.recv()).await.is_err());
            refuse(&mut peer, &first[2].1).await;
            for _ in 0..20 {
                let again = writes(&mut peer, &["1", "2", "3"]).await;
                for ((id, request), (earlier, _)) in again.iter().zip(&first[1..]) {
                    assert_eq!(id, earlier);
                    refuse(&mut peer, request).await;
                }
            }
            for (_, request) in writes(&mut peer, &["1", "2", "3"]).await {
                peer.answer(&request, accepted()).await;
            }
        })
        .await;
        assert_eq!(kinds(&results), [Ok(WriteStatus::Accepted); 4], "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_went_in_before_a_refused_one_is_the_last() {
    // Refused temporarily or for good; first in flight, or behind another write.
    for word in ["overloaded", "writeIdReused"] {
        let (_client, mut peer, _door, process) = running(CURRENT).await;
        let writing = join_all((0..20).map(|n| process.write(n.to_string())));
        let (results, ()) = both(writing, async {
            let mut requests = Vec::new();
            for _ in 0..16 {
                requests.push(write(&mut peer).await.2);
            }
            peer.refuse(&requests[0], -32600, Some(word), "no").await;
            peer.refuse(&requests[1], -32600, Some(word), "no").await;
            peer.answer(&requests[2], accepted()).await;
        })
        .await;
        let (first, rest) = results.split_at(if word == "overloaded" { 1 } else { 2 });
        assert!(first.iter().all(|result| matches!(result, Err(Error::Server { message, .. }) if message == "no")));
        for result in rest {
            let error = result.as_ref().unwrap_err();
            let text = "an earlier write to the process was refused and its bytes are missing: no";
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InputBroken, text));
        }
        // Further writes fail, and stdin is not closed as if it were complete. Some writes had been sent before the failure was known.
        assert_eq!(within(process.write("more")).await.unwrap_err().kind(), ErrorKind::InputBroken);
        assert_eq!(within(process.close_stdin()).await.unwrap_err().kind(), ErrorKind::InputBroken);
        while let Some(message) = tokio::time::timeout(Duration::from_millis(1), peer.recv()).await.ok().flatten() {
            assert_eq!(message["method"], "process/write");
        }
        // Everything else about the process still works.
        peer.output("p", 1, "one").await;
        assert_eq!(next(&mut process.events()).await, "out 1 one");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_outlives_a_cut_unless_one_behind_it_may_have_gone_in() {
    for is_alone in [true, false] {
        let (_client, mut peer, mut door, process) = running(CURRENT).await;
        let texts = if is_alone { &["0"][..] } else { &["0", "1"][..] };
        let writing = join_all(texts.iter().map(|text| process.write(*text)));
        let (results, mut peer) = both(writing, async {
            let sent = writes(&mut peer, texts).await;
            refuse(&mut peer, &sent[0].1).await;
            peer.cut();
            let (mut peer, _) = door.welcome(CURRENT).await;
            if is_alone {
                let again = writes(&mut peer, texts).await;
                assert_eq!(again[0].0, sent[0].0);
                peer.answer(&again[0].1, accepted()).await;
            }
            peer
        })
        .await;
        assert!(peer.is_silent().await);
        let expected = if is_alone {
            vec![Ok(WriteStatus::Accepted)]
        } else {
            vec![Err(ErrorKind::Server), Err(ErrorKind::InputBroken)]
        };
        assert_eq!(kinds(&results), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn where_much_is_on_its_way_nothing_is_sent_ahead() {
    let (_client, mut peer, _door, [full, other]) = running_two(CURRENT).await;
    // Half of what a server buffers for a connection.
    let (large, writing) = (vec![b'x'; 32 << 20], async { tokio::join!(other.write("0"), other.write("1")) });
    assert!(is_pending(full.write(large)).await);
    let large = peer.request("process/write").await;
    tokio::pin!(writing);
    assert!(is_pending(&mut writing).await);
    let first = writes(&mut peer, &["0"]).await;
    assert!(peer.is_silent().await);
    refuse(&mut peer, &first[0].1).await;
    let ((zero, one), ()) = both(writing, async {
        // A single write in flight can be refused without harm.
        for text in ["0", "1"] {
            let sent = writes(&mut peer, &[text]).await;
            assert!(peer.is_silent().await);
            peer.answer(&sent[0].1, accepted()).await;
        }
    })
    .await;
    assert_eq!((zero.unwrap(), one.unwrap()), (WriteStatus::Accepted, WriteStatus::Accepted));
    peer.answer(&large, accepted()).await;
    settle().await;
    // There is room again.
    assert!(is_pending(async { tokio::join!(other.write("2"), other.write("3")) }).await);
    writes(&mut peer, &["2", "3"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_waits_where_too_many_calls_do() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    let reads = join_all((0..1024).map(|_| process.read(0, None, Duration::from_secs(60))));
    tokio::pin!(reads);
    assert!(is_pending(&mut reads).await);
    let writing = join_all(["0", "1"].map(|text| process.write(text)));
    let (results, ()) = both(writing, async {
        for _ in 0..2 {
            let read = peer.request("process/read").await;
            peer.answer(&read, read_result(&[], 1, None, false)).await;
        }
        for _ in 2..1024 {
            peer.request("process/read").await;
        }
        for (_, request) in writes(&mut peer, &["0", "1"]).await {
            peer.answer(&request, accepted()).await;
        }
    })
    .await;
    assert_eq!(kinds(&results), [Ok(WriteStatus::Accepted); 2]);
}

#[tokio::test(start_paused = true)]
async fn closing_stdin_stays_behind_the_writes_and_is_ours_when_repeated() {
    let (_client, mut peer, mut door, process) = running(CURRENT).await;
    let calls = async { tokio::join!(process.write("last"), process.close_stdin()) };
    let ((written, closed), ()) = both(calls, async {
        let (id, _, request) = write(&mut peer).await;
        peer.request("process/closeStdin").await;
        peer.answer(&request, accepted()).await;
        settle().await;
        peer.cut();
        let (mut peer, _) = door.welcome(CURRENT).await;
        // Stdin was closed over the previous link, and the server says so.
        let request = peer.request("process/closeStdin").await;
        peer.answer(&request, json!({"status": "stdinClosed"})).await;
        assert!(!id.is_empty());
    })
    .await;
    assert_eq!(written.unwrap(), WriteStatus::Accepted);
    assert_eq!(closed.unwrap(), CloseStdinStatus::Accepted);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_given_up_is_made_all_the_same() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    assert!(is_pending(process.write("first")).await);
    drop(process);
    assert_eq!(write(&mut peer).await.1, "first");
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_start_is_made_once() {
    let (client, mut peer, mut door) = connect(CURRENT).await;
    let (process, mut peer) = both(client.start(named("p")), async {
        let first = peer.request("process/start").await;
        // The server has started the process, and its first output arrives before the cut.
        peer.output("p", 1, "early").await;
        settle().await;
        peer.cut();
        let (mut peer, _) = door.welcome(CURRENT).await;
        let second = peer.request("process/start").await;
        assert_eq!(second.params, first.params);
        peer.refuse(&second, -32600, Some("duplicateProcess"), "process p already exists").await;
        let listed = peer.request("process/list").await;
        peer.answer(&listed, json!({"processes": [info_of("other", 1), info_of("p", 4711)]})).await;
        peer
    })
    .await;
    let process = process.unwrap();
    assert_eq!((process.id().as_str(), process.pid()), ("p", Some(4711)));
    peer.ends("p", 2, 0).await;
    assert_eq!(collect(&mut process.events()).await, ["out 1 early", "exit 2=0", "close 3"]);
}

fn info_of(id: &str, pid: u32) -> Value {
    json!({
        "processId": id, "sessionId": SESSION, "pid": pid, "argv": ["program"], "cwd": "/", "tty": false,
        "startedAtMs": 1, "exited": false, "exit": null, "closed": false, "nextSeq": 1, "outputBytes": 0,
        "retainedBytes": 0, "droppedBytes": 0, "blocked": null,
    })
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_start_on_a_reference_server_is_made_once() {
    // The first request arrived, or was lost with the link.
    for is_known in [true, false] {
        let (client, mut peer, mut door) = connect(Kind::H).await;
        let (process, mut peer) = both(client.start(named("p")), async {
            peer.serve_info().await;
            peer.request("process/start").await;
            peer.cut();
            let (mut peer, _) = door.welcome(Kind::H).await;
            let mut request = peer.any_request().await;
            while request.method == "process/read" {
                match (is_known, request.params["afterSeq"].as_u64().unwrap()) {
                    (false, _) => peer.refuse(&request, -32600, None, "unknown process id p").await,
                    (true, 0) => peer.answer(&request, read_result(&[(1, "one")], 2, None, false)).await,
                    (true, _) => peer.answer(&request, read_result(&[], 2, None, false)).await,
                }
                request = peer.any_request().await;
            }
            assert_eq!(request.method, "process/start");
            if is_known {
                peer.refuse(&request, -32600, None, "process p already exists").await;
                peer.refuse_next("process/list", -32601, None, "unknown method process/list").await;
            } else {
                peer.answer(&request, json!({"processId": "p"})).await;
                peer.output("p", 1, "one").await;
            }
            peer
        })
        .await;
        let process = process.unwrap();
        assert_eq!(process.pid(), None);
        peer.ends("p", 2, 0).await;
        assert_eq!(collect(&mut process.events()).await, ["out 1 one", "exit 2=0", "close 3"], "known: {is_known}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_taken_is_an_error_when_it_was_asked_for_once() {
    let (client, mut peer, _door) = connect(Kind::S).await;
    let (started, ()) = both(client.start(named("p")), async {
        peer.serve_info().await;
        let request = peer.request("process/start").await;
        assert_eq!(request.params["cwd"], "/");
        peer.refuse(&request, -32600, None, "process p already exists").await;
    })
    .await;
    assert!(matches!(started.unwrap_err(), Error::Server { code: -32600, kind: None, .. }));
    // The process belongs to another client, so it is not terminated.
    assert!(peer.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn abandoned_process_start_unregisters_and_cleans_up() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let starting = client.start(named("p"));
    let asked = async { peer.request("process/start").await };
    let request = tokio::select! {
        _ = starting => panic!("not answered"),
        request = within(asked) => request,
    };
    let terminate = peer.request("process/terminate").await;
    assert_eq!(terminate.params, json!({"processId": "p"}));
    peer.answer(&request, json!({"processId": "p", "pid": 1})).await;
    peer.answer(&terminate, json!({"running": true})).await;
    // The name is free in this client at once.
    let process = start(&client, &mut peer, named("p")).await;
    peer.output("p", 1, "of the second").await;
    assert_eq!(next(&mut process.events()).await, "out 1 of the second");
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_given_up_before_it_was_sent_leaves_nothing() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    assert!(is_pending(client.start(named("p"))).await);
    let given_up = peer.request("environment/info").await;
    assert!(peer.is_silent().await);
    peer.answer_info(&given_up).await;
    let process = start(&client, &mut peer, named("p")).await;
    assert_eq!(process.id().as_str(), "p");
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_start_is_cleaned_up_on_the_next_link_too() {
    let (client, mut peer, mut door) = connect(CURRENT).await;
    let asked = async {
        peer.request("process/start").await;
        peer.cut();
    };
    let starting = client.start(named("p"));
    tokio::select! {
        _ = starting => panic!("not answered"),
        () = within(asked) => {}
    }
    drop(client);
    let (mut peer, _) = door.welcome(CURRENT).await;
    peer.serve("process/terminate", json!({"running": true})).await;
    // No cleanup is left, so the last handle closes the connection.
    assert!(peer.is_left().await);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_handle_ends_a_process_only_where_that_was_chosen() {
    let (client, mut peer, _door) = connect_with(Client::builder(), CURRENT).await;
    drop(start(&client, &mut peer, named("kept")).await);
    assert!(peer.is_silent().await);
    let process = start(&client, &mut peer, named("ended").terminate_on_drop(true)).await;
    let clone = process.clone();
    drop(process);
    assert!(peer.is_silent().await);
    drop(clone);
    let params = peer.serve("process/terminate", json!({"running": true})).await;
    assert_eq!(params, json!({"processId": "ended"}));
    // A process that has closed by itself is not terminated.
    let process = start(&client, &mut peer, named("over").terminate_on_drop(true)).await;
    peer.ends("over", 1, 0).await;
    within(process.wait()).await.unwrap();
    drop(process);
    assert_eq!(peer.ack().await, ("over".to_owned(), 2));
    assert!(peer.is_silent().await);
    drop(client);
    assert!(peer.is_left().await);
}
