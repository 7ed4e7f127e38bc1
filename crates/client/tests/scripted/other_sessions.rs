//! Processes that existed before this client: in the client's session after a resume, and in other sessions.

use crate::prelude::*;
use exec_server_client::protocol::process::Scope;

pub(crate) fn info(session: &str, exit: Option<i32>) -> Value {
    let usage = json!({"userMs": 1, "systemMs": 2, "maxRssBytes": 3});
    let exit = exit.map(|code| json!({"exitCode": code, "signal": null, "cause": "exit", "usage": usage}));
    json!({
        "processId": "p", "sessionId": session, "pid": 99, "argv": ["program"], "cwd": "/", "tty": true,
        "startedAtMs": 1, "exited": exit.is_some(), "exit": exit, "closed": false, "nextSeq": 8, "outputBytes": 0,
        "retainedBytes": 0, "droppedBytes": 0, "blocked": null,
    })
}

fn other(hold: bool, after: u64) -> Attach {
    Attach { session_id: Some("other".into()), after, hold }
}

/// Attaches to process `p` of the session `other`. Also returns the params of the subscription.
async fn attach(client: &Client, peer: &mut Peer, options: Attach) -> (Process, Value) {
    let (process, params) = both(client.attach(&"p".into(), options), async {
        let listed = peer.serve("process/list", json!({"processes": [info(SESSION, None), info("other", None)]})).await;
        assert_eq!(listed, json!({"scope": "all"}));
        peer.serve("process/subscribe", json!({"firstSeq": 1, "nextSeq": 8})).await
    })
    .await;
    (process.unwrap(), params)
}

async fn push(peer: &mut Peer, seq: u64, bytes: impl AsRef<[u8]>) {
    peer.output_of(Some("other"), "p", seq, "pty", bytes).await;
}

#[tokio::test(start_paused = true)]
async fn attaching_subscribes_and_dropping_unsubscribes() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let own = start(&client, &mut peer, named("p")).await;
    let (process, params) = attach(&client, &mut peer, other(true, 5)).await;
    assert_eq!(params, json!({"processId": "p", "sessionId": "other", "afterSeq": 5, "hold": true}));
    assert_eq!((process.pid(), process.is_tty()), (Some(99), true));
    assert_eq!(process.session_id().unwrap().as_str(), "other");
    let mut events = process.events_after(5);
    // The same name in two sessions denotes two processes.
    push(&mut peer, 6, "six").await;
    peer.output("p", 1, "own").await;
    assert_eq!(next(&mut events).await, "tty 6 six");
    assert_eq!(next(&mut own.events()).await, "out 1 own");
    let (_, params) = both(process.signal("INT"), peer.serve("process/signal", json!({}))).await;
    assert_eq!(params, json!({"processId": "p", "sessionId": "other", "signal": "INT"}));
    drop(events);
    assert!(peer.is_silent().await, "a handle is left");
    drop(process);
    let params = peer.serve("process/unsubscribe", json!({})).await;
    assert_eq!(params, json!({"processId": "p", "sessionId": "other"}));
    push(&mut peer, 7, "nobody").await;
    settle().await;
    assert!(matches!(client.state(), ConnectionState::Connected));
}

#[tokio::test(start_paused = true)]
async fn a_subscription_is_renewed_after_a_cut_where_it_stood() {
    for hold in [true, false] {
        let (client, mut peer, mut door) = connect(CURRENT).await;
        let (process, first) = attach(&client, &mut peer, other(hold, 0)).await;
        assert_eq!(first.get("hold").is_some(), hold);
        let mut events = process.events();
        for seq in 1..=3 {
            push(&mut peer, seq, "x").await;
        }
        assert_eq!(take(&mut events, 3).await, ["tty 1 x", "tty 2 x", "tty 3 x"]);
        peer.cut();
        let (mut peer, _) = door.welcome(CURRENT).await;
        let params = peer.serve("process/subscribe", json!({"firstSeq": 1, "nextSeq": 8})).await;
        assert_eq!(params["afterSeq"], 3);
        assert_eq!(params.get("hold").is_some(), hold, "as it was asked for");
        is_connected(&client).await;
        push(&mut peer, 4, "y").await;
        assert_eq!(next(&mut events).await, "tty 4 y");
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_dies_while_a_subscription_is_renewed_is_given_up_and_a_slow_one_is_not() {
    let (client, mut peer, mut door) = connect_by(crate::probed(), Client::builder(), CURRENT).await;
    let (process, _) = attach(&client, &mut peer, other(true, 0)).await;
    peer.cut();
    // This peer answers `initialize`, and then dies.
    let (mut dead, _) = door.welcome(CURRENT).await;
    dead.request("process/subscribe").await;
    dead.go_dead();
    let began = Instant::now();
    let (mut peer, _) = door.welcome(CURRENT).await;
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    // This peer is slow, but alive.
    let request = peer.request("process/subscribe").await;
    assert!(tokio::time::timeout(Duration::from_secs(600), door.accept()).await.is_err());
    peer.answer(&request, json!({"firstSeq": 1, "nextSeq": 8})).await;
    is_connected(&client).await;
    push(&mut peer, 1, "x").await;
    assert_eq!(next(&mut process.events()).await, "tty 1 x");
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_cannot_be_renewed_fails_alone() {
    let (client, mut peer, mut door) = connect(CURRENT).await;
    let own = start(&client, &mut peer, named("q")).await;
    let (process, _) = attach(&client, &mut peer, other(true, 0)).await;
    peer.cut();
    let (mut peer, _) = door.welcome(CURRENT).await;
    peer.refuse_next("process/subscribe", -32600, Some("unknownProcess"), "unknown process id p").await;
    assert_eq!(collect(&mut process.events()).await, ["failed Server: unknown process id p"]);
    peer.output("q", 1, "fine").await;
    assert_eq!(next(&mut own.events()).await, "out 1 fine");
}

#[tokio::test(start_paused = true)]
async fn what_is_held_for_this_reader_is_acknowledged_with_its_session() {
    let (client, mut peer, _door) = connect(Kind::Current { window: 64 << 10 }).await;
    let (process, _) = attach(&client, &mut peer, other(true, 0)).await;
    let mut events = process.events();
    let chunk = vec![b'x'; 16 << 10];
    push(&mut peer, 1, &chunk).await;
    push(&mut peer, 2, &chunk).await;
    take(&mut events, 2).await;
    let ack = peer.recv().await.unwrap();
    assert_eq!(ack, json!({"method": "process/ack", "params": {"processId": "p", "sessionId": "other", "seq": 1}}));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_nobody_waits_for_finds_a_gap_and_holds_nothing() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let (process, _) = attach(&client, &mut peer, other(false, 0)).await;
    let mut events = process.events();
    let chunk = vec![b'x'; 2 << 20];
    for seq in 1..=10 {
        push(&mut peer, seq, &chunk).await;
    }
    settle().await;
    assert_eq!(*process.wake().borrow(), 10, "all of it was heard");
    let (gap, ()) = both(events.next(), async {
        let request = peer.request("process/read").await;
        assert_eq!((&request.params["sessionId"], &request.params["afterSeq"]), (&json!("other"), &json!(0)));
        peer.answer(&request, read_result(&[(10, "x")], 11, None, false)).await;
    })
    .await;
    let Some(Event::Gap { from_seq: 1, to_seq, .. }) = gap else { panic!("{gap:?}") };
    assert!((2..=3).contains(&to_seq), "{to_seq}");
    assert_eq!(next(&mut events).await, format!("tty {} 2097152 bytes", to_seq + 1));
    assert!(peer.is_silent().await, "nothing is acknowledged");
}

#[tokio::test(start_paused = true)]
async fn a_process_of_nobody_is_unknown() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let id = "elsewhere".into();
    for options in [Attach::default(), other(true, 0)] {
        let list = json!({"processes": [info("other", None)]});
        let (attached, _) = both(client.attach(&id, options), peer.serve("process/list", list)).await;
        assert_eq!(attached.unwrap_err().server_kind(), Some(Word::UnknownProcess));
    }
    assert!(peer.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn a_process_of_the_own_session_is_followed_by_reading() {
    let builder = Client::builder().resume(SESSION.into());
    let (client, mut peer, mut door) = connect_with(builder, CURRENT).await;
    let (process, _) = both(client.attach(&"p".into(), Attach::default()), async {
        let params = peer.serve("process/list", json!({"processes": [info(SESSION, None)]})).await;
        assert_eq!(params, json!({"scope": "session"}));
    })
    .await;
    let process = process.unwrap();
    let mut events = process.events();
    let params = peer.serve("process/read", read_result(&[(1, "one"), (2, "two")], 3, None, false)).await;
    assert_eq!(params, json!({"processId": "p", "afterSeq": 0, "waitMs": 30_000}));
    assert_eq!(take(&mut events, 2).await, ["out 1 one", "out 2 two"]);
    // Notifications of this process went to an earlier connection. A pushed event is ignored, because the next read returns it, too.
    peer.output("p", 3, "pushed").await;
    assert_eq!(peer.request("process/read").await.params["afterSeq"], 2);
    peer.cut();
    let (mut peer, _) = door.welcome(CURRENT).await;
    let params = peer.serve("process/read", read_result(&[(3, "three")], 6, Some(4), true)).await;
    assert_eq!(params["afterSeq"], 2);
    // The list contains the details of the exit that a read leaves out.
    peer.serve("process/list", json!({"processes": [info(SESSION, Some(4))]})).await;
    assert_eq!(collect(&mut events).await, ["out 3 three", "exit 4=4", "close 5"]);
    assert!(process.exit().unwrap().usage.is_some());
    while peer.ack().await.1 != 5 {}
}

#[tokio::test(start_paused = true)]
async fn haste_and_deadlines_of_calls_do_not_end_a_process_that_is_read() {
    let builder = Client::builder().resume(SESSION.into()).fail_fast(true).call_timeout(Duration::from_secs(5));
    let (client, mut peer, mut door) = connect_with(builder, CURRENT).await;
    let list = json!({"processes": [info(SESSION, None)]});
    let (process, _) = both(client.attach(&"p".into(), Attach::default()), peer.serve("process/list", list)).await;
    let process = process.unwrap();
    let mut events = process.events();
    // This takes longer than `call_timeout`: the read is abandoned, and sent again.
    peer.request("process/read").await;
    let second = peer.request("process/read").await;
    peer.answer(&second, read_result(&[(1, "one")], 2, None, false)).await;
    assert_eq!(next(&mut events).await, "out 1 one");
    peer.request("process/read").await;
    door.refuse();
    peer.cut();
    settle().await;
    assert!(process.failed().is_none());
    door.reopen();
    let (mut peer, _) = door.welcome(CURRENT).await;
    peer.serve("process/read", read_result(&[(2, "two")], 3, None, false)).await;
    assert_eq!(next(&mut events).await, "out 2 two");
}

#[tokio::test(start_paused = true)]
async fn a_reference_server_shows_only_the_own_session() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let error = within(client.attach(&"p".into(), other(true, 0))).await.unwrap_err();
    assert!(matches!(&error, Error::Protocol(text) if text.contains("cannot attach to this process")), "{error:?}");
    let (process, ()) = both(client.attach(&"p".into(), Attach { after: 2, ..Attach::default() }), async {
        let mut is_read = false;
        // The client also requests `environment/info`. The order of the two does not matter.
        for _ in 0..2 {
            let request = peer.any_request().await;
            if request.method == "environment/info" {
                peer.answer_info(&request).await;
            } else {
                assert_eq!((request.method.as_str(), is_read), ("process/read", false));
                assert_eq!(request.params["afterSeq"], 2);
                peer.answer(&request, read_result(&[(3, "three")], 4, None, false)).await;
                is_read = true;
            }
        }
    })
    .await;
    assert_eq!(next(&mut process.unwrap().events_after(2)).await, "out 3 three");
}

#[tokio::test(start_paused = true)]
async fn a_list_and_an_attach_ask_for_page_after_page() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let first = json!({"processes": [info(SESSION, None)], "nextCursor": "c"});
    let second = json!({"processes": [info("other", None)]});
    let (listed, asked) = both(client.list(Scope::All), async {
        [peer.serve("process/list", first.clone()).await, peer.serve("process/list", second.clone()).await]
    })
    .await;
    assert_eq!(asked, [json!({"scope": "all"}), json!({"scope": "all", "cursor": "c"})]);
    assert_eq!(listed.unwrap().len(), 2);
    // The process is on the second page.
    let (attached, params) = both(client.attach(&"p".into(), other(false, 5)), async {
        peer.serve("process/list", first).await;
        peer.serve("process/list", second).await;
        peer.serve("process/subscribe", json!({"firstSeq": 1, "nextSeq": 8})).await
    })
    .await;
    assert_eq!((attached.unwrap().pid(), &params["sessionId"]), (Some(99), &json!("other")));
}

#[tokio::test(start_paused = true)]
async fn pages_that_do_not_go_on_are_an_error() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let again = json!({"processes": [info(SESSION, None)], "nextCursor": "c"});
    let empty = json!({"processes": [], "nextCursor": "d"});
    for pages in [vec![again.clone(), again], vec![empty]] {
        let (listed, ()) = both(client.list(Scope::All), async {
            for page in pages {
                peer.serve("process/list", page).await;
            }
        })
        .await;
        assert!(matches!(listed, Err(Error::Protocol(_))), "{listed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_attach_can_be_repeated() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let id = "p".into();
    let (attached, ()) = both(client.attach(&id, Attach::default()), async {
        let request = loop {
            let request = peer.any_request().await;
            if request.method == "environment/info" {
                break request;
            }
        };
        peer.refuse(&request, -32603, None, "not now").await;
    })
    .await;
    assert_eq!(attached.unwrap_err().to_string(), "not now");
    let (attached, ()) = both(client.attach(&id, Attach::default()), async {
        peer.serve_info().await;
    })
    .await;
    let process = attached.unwrap();
    peer.serve("process/read", read_result(&[(1, "one")], 2, None, false)).await;
    assert_eq!(next(&mut process.events()).await, "out 1 one");
}
