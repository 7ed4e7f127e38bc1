//! A restarted server that is still adopting a session: the client waits, reports the reason, and gives up only when its own time is over.
//! Other cuts are tested in `recovery`, other processes of foreign sessions in `other_sessions`.

use crate::prelude::*;
use exec_server_client::protocol::SessionId;

const ADOPTING: &str = "session session-1 is being adopted: its holder process has not answered for 6 s; try again";

/// Refuses one resume.
async fn refuse(door: &mut Door) -> Peer {
    let mut peer = door.accept().await;
    let request = peer.request("initialize").await;
    assert_eq!(request.params["resumeSessionId"], SESSION);
    peer.refuse(&request, -32010, Some("sessionAdopting"), ADOPTING).await;
    peer
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_being_adopted_is_waited_for_and_the_reason_is_told() {
    let (client, peer, mut door) = connect(CURRENT).await;
    let mut state = client.watch_state();
    peer.cut();
    for _ in 0..20 {
        refuse(&mut door).await;
    }
    let is_told =
        |state: &ConnectionState| matches!(state, ConnectionState::Recovering { reason } if reason == ADOPTING);
    drop(within(state.wait_for(is_told)).await.unwrap());
    let (_peer, _) = door.welcome(CURRENT).await;
    is_connected(&client).await;
}

#[tokio::test(start_paused = true)]
async fn the_wait_ends_with_the_time_for_recovery_and_says_what_it_waited_for() {
    let builder = Client::builder().recover_for(Duration::from_secs(60));
    let (client, peer, mut door) = connect_with(builder, CURRENT).await;
    let began = Instant::now();
    peer.cut();
    let refusing = async {
        loop {
            refuse(&mut door).await;
        }
    };
    let error = during(refusing, lost(&client)).await;
    assert_eq!(error.kind(), ErrorKind::Disconnected);
    assert!(error.to_string().contains("is being adopted"), "{error}");
    assert!((50..=60).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_first_connection_waits_for_the_session_that_it_resumes() {
    let (way, mut door) = crate::scripted();
    let builder = Client::builder().resume(SessionId::from(SESSION));
    let (client, _peer) = both(builder.open(way), async {
        for _ in 0..5 {
            refuse(&mut door).await;
        }
        door.welcome(CURRENT).await
    })
    .await;
    assert_eq!(client.unwrap().session_id().unwrap().as_str(), SESSION);
}

#[tokio::test(start_paused = true)]
async fn a_first_connection_that_may_not_wait_is_told_at_once() {
    let (way, mut door) = crate::scripted();
    let builder = Client::builder().resume(SessionId::from(SESSION)).recover_for(Duration::ZERO);
    let (client, _peer) = both(builder.open(way), refuse(&mut door)).await;
    let error = client.map(drop).unwrap_err();
    assert!(matches!(&error, Error::Server { message, .. } if message == ADOPTING), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_process_of_a_foreign_session_goes_on_when_that_session_is_adopted() {
    let (client, mut peer, mut door) = connect(CURRENT).await;
    let options = Attach { session_id: Some("other".into()), after: 0, hold: false };
    let (process, ()) = both(client.attach(&"p".into(), options), async {
        let info = json!({
            "processId": "p", "sessionId": "other", "pid": 99, "argv": ["program"], "cwd": "/", "tty": false, "startedAtMs": 1,
            "exited": false, "exit": null, "closed": false, "nextSeq": 1, "outputBytes": 0, "retainedBytes": 0, "droppedBytes": 0,
            "blocked": null,
        });
        peer.serve("process/list", json!({"processes": [info]})).await;
        peer.serve("process/subscribe", json!({"firstSeq": 1, "nextSeq": 1})).await;
    })
    .await;
    let process = process.unwrap();
    let mut events = process.events();
    peer.cut();
    let (mut peer, _) = door.welcome(CURRENT).await;
    for _ in 0..4 {
        peer.refuse_next("process/subscribe", -32010, Some("sessionAdopting"), ADOPTING).await;
    }
    peer.serve("process/subscribe", json!({"firstSeq": 1, "nextSeq": 1})).await;
    peer.output_of(Some("other"), "p", 1, "stdout", "one").await;
    assert_eq!(next(&mut events).await, "out 1 one");
}
