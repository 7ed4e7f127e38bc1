//! A start that is sent together with the handshake: order, repeats after a cut, and servers that no longer know session keys.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::prelude::*;
use crate::{Scripted, scripted};
use exec_server_client::{Builder, Start};

const KEY: &str = "0123456789abcdef0123";

type Opened = Result<(Client, Result<Process, Error>), Error>;

fn builder() -> Builder {
    Client::builder().session_key(KEY).recover_for(Duration::from_secs(60))
}

async fn open(builder: Builder, connect: Scripted) -> Opened {
    builder.open_and_start(connect, Start::new(["make"]).id("p"), Arc::default()).await
}

/// Expects the messages of one early attempt. Returns the requests `initialize` and `process/start`.
async fn early(peer: &mut Peer, attempt: u64) -> (crate::peer::Request, crate::peer::Request) {
    let initialize = peer.request("initialize").await;
    let asked = &initialize.params;
    assert_eq!((&asked["sessionKey"], &asked["attempt"]), (&json!(KEY), &json!(attempt)));
    assert_eq!(asked["resumeSessionId"], KEY, "an older server must refuse");
    assert_eq!(asked["takeover"].as_bool().unwrap_or(false), attempt > 1);
    peer.initialized().await;
    let start = peer.request("process/start").await;
    assert_eq!((&start.params["processId"], start.params.get("cwd")), (&json!("p"), None));
    (initialize, start)
}

fn started() -> Value {
    json!({"processId": "p", "sandboxType": "none", "pid": 4321})
}

#[tokio::test(start_paused = true)]
async fn handshake_and_start_are_sent_without_waiting() {
    let (connect, mut door) = scripted();
    let (opened, _peer) = both(open(builder(), connect), async {
        let mut peer = door.accept().await;
        let (initialize, start) = early(&mut peer, 1).await;
        peer.answer(&initialize, CURRENT.greeting()).await;
        peer.answer(&start, started()).await;
        peer
    })
    .await;
    let (client, process) = opened.unwrap();
    assert_eq!(client.session_id().unwrap().as_str(), SESSION);
    assert_eq!(process.unwrap().pid(), Some(4321));
}

#[tokio::test(start_paused = true)]
async fn a_cut_before_the_answer_sends_everything_again_and_a_duplicate_is_a_success() {
    let (connect, mut door) = scripted();
    let (opened, _peer) = both(open(builder(), connect), async {
        for attempt in 1..4 {
            let mut peer = door.accept().await;
            early(&mut peer, attempt).await;
            peer.cut();
        }
        let mut peer = door.accept().await;
        let (initialize, start) = early(&mut peer, 4).await;
        peer.answer(&initialize, CURRENT.greeting()).await;
        peer.refuse(&start, -32600, Some("duplicateProcess"), "process p already exists").await;
        let info = json!({"processes": [crate::other_sessions::info(SESSION, None)]});
        peer.serve("process/list", info).await;
        peer
    })
    .await;
    let (_client, process) = opened.unwrap();
    assert_eq!(process.unwrap().pid(), Some(99), "the answer to the start is lost, but the list has the pid");
}

#[tokio::test(start_paused = true)]
async fn a_cut_between_both_answers_resumes_the_session_and_repeats_the_start() {
    let (connect, mut door) = scripted();
    let (opened, _peer) = both(open(builder(), connect), async {
        let mut peer = door.accept().await;
        let (initialize, _) = early(&mut peer, 1).await;
        peer.answer(&initialize, CURRENT.greeting()).await;
        settle().await;
        peer.cut();
        let (mut peer, params) = door.welcome(CURRENT).await;
        assert_eq!((&params["resumeSessionId"], params.get("sessionKey")), (&json!(SESSION), None));
        peer.serve_start().await;
        peer
    })
    .await;
    let (_client, process) = opened.unwrap();
    assert_eq!(process.unwrap().pid(), Some(4321));
}

#[tokio::test(start_paused = true)]
async fn a_server_without_session_keys_gets_a_plain_handshake() {
    let (connect, mut door) = scripted();
    let (opened, _peer) = both(open(builder(), connect), async {
        let mut peer = door.accept().await;
        let (initialize, _) = early(&mut peer, 1).await;
        peer.refuse(&initialize, -32600, Some("unknownSession"), "unknown session id").await;
        let (mut peer, params) = door.welcome(CURRENT).await;
        assert_eq!((params.get("sessionKey"), params.get("resumeSessionId")), (None, None));
        peer.serve_start().await;
        peer
    })
    .await;
    assert_eq!(opened.unwrap().1.unwrap().pid(), Some(4321));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_the_start_but_announces_no_keys_leaves_the_outcome_unknown() {
    let (connect, mut door) = scripted();
    let (opened, ()) = both(open(builder(), connect), async {
        let mut peer = door.accept().await;
        let (initialize, _) = early(&mut peer, 1).await;
        peer.answer(&initialize, Kind::V0.greeting()).await;
        assert!(peer.is_left().await);
    })
    .await;
    assert!(matches!(opened.unwrap_err(), Error::UnknownOutcome { method: "process/start", .. }));
    assert_eq!(door.attempts(), 1, "it is not repeated");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_cannot_reconnect_reports_that_the_process_may_run() {
    let (connect, mut door) = scripted();
    let is_sent = Arc::new(AtomicBool::new(false));
    let opening = builder().open_and_start(connect, Start::new(["make"]), Arc::clone(&is_sent));
    let (opened, ()) = both(opening, async {
        let mut peer = door.accept().await;
        assert_eq!(peer.request("initialize").await.params["attempt"], 1);
        door.refuse();
        peer.cut();
    })
    .await;
    assert!(matches!(opened.unwrap_err(), Error::UnknownOutcome { method: "process/start", .. }));
    assert!(is_sent.load(Ordering::Relaxed) && door.attempts() > 5, "it tried for a minute");
}

#[tokio::test(start_paused = true)]
async fn before_anything_is_sent_an_absent_server_is_reported_as_usual() {
    let (connect, door) = scripted();
    door.refuse();
    let is_sent = Arc::new(AtomicBool::new(false));
    let opened = within(builder().open_and_start(connect, Start::new(["make"]), Arc::clone(&is_sent))).await;
    assert!(matches!(opened.unwrap_err(), Error::Connect { .. }));
    assert!(!is_sent.load(Ordering::Relaxed) && door.attempts() == 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_start_ends_the_session_when_the_server_answers() {
    let (connect, mut door) = scripted();
    let mut opening = Box::pin(open(builder(), connect));
    assert!(is_pending(&mut opening).await);
    let mut peer = door.accept().await;
    let (initialize, _) = early(&mut peer, 1).await;
    drop(opening);
    peer.answer(&initialize, CURRENT.greeting()).await;
    peer.request("session/end").await;
}

#[tokio::test(start_paused = true)]
async fn events_that_arrive_with_the_answers_are_kept() {
    let (connect, mut door) = scripted();
    let (opened, peer) = both(open(builder(), connect), async {
        let mut peer = door.accept().await;
        let (initialize, start) = early(&mut peer, 1).await;
        peer.answer(&initialize, CURRENT.greeting()).await;
        peer.answer(&start, started()).await;
        peer.output("p", 1, "hello").await;
        peer.exited("p", 2, 7).await;
        peer.closed("p", 3).await;
        peer
    })
    .await;
    let (_client, process) = opened.unwrap();
    let exit = within(process.unwrap().wait()).await.unwrap();
    assert_eq!(exit.code, 7);
    drop(peer);
}
