//! A link that is open but silent: the client reports it after the requested time, and also reports its end. Links that end are tested in
//! `recovery`.

use crate::prelude::*;

const SILENCE: Duration = Duration::from_secs(3);

#[tokio::test(start_paused = true)]
async fn a_silent_link_is_reported_after_three_seconds_and_so_is_the_next_answer() {
    let (client, mut peer, door) = connect_with(Client::builder().report_stall_after(SILENCE), CURRENT).await;
    let began = tokio::time::Instant::now();
    let stalled = until(&client, |state| matches!(state, ConnectionState::Stalled { .. })).await;
    assert!(matches!(stalled, ConnectionState::Stalled { silent } if silent == SILENCE), "{stalled:?}");
    let took = began.elapsed();
    assert!(took >= SILENCE && took <= SILENCE + Duration::from_secs(2), "{took:?}");
    // Newline framing has no pings, so the client sends a request.
    let question = peer.request("environment/status").await;
    peer.answer(&question, json!({"status": "ready"})).await;
    is_connected(&client).await;
    assert_eq!(door.attempts(), 1, "the link is the same");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_is_never_reported_and_nobody_is_asked_unless_wanted() {
    let (client, mut peer, _door) = connect_with(Client::builder().report_stall_after(SILENCE), CURRENT).await;
    let state = client.watch_state();
    for _ in 0..30 {
        let question = peer.request("environment/status").await;
        assert!(matches!(*state.borrow(), ConnectionState::Connected));
        peer.answer(&question, json!({"status": "ready"})).await;
    }
    let (client, mut quiet, _door) = connect_with(Client::builder(), CURRENT).await;
    let asked = tokio::time::timeout(Duration::from_secs(60), quiet.request("environment/status")).await;
    assert!(asked.is_err(), "a library that did not ask for reports sends nothing by itself");
    assert!(matches!(client.state(), ConnectionState::Connected));
}
