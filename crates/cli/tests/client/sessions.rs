//! The client library and sessions: resuming one, attaching to a process of another, taking one over.

use crate::prelude::*;
use exec_server_client::{Attach, protocol::initialize::Ttl};

async fn client_at(server: &TestServer) -> Client {
    client_of().connect(server.url()).await.expect("connect")
}

#[test]
fn a_new_client_resumes_the_session_of_one_that_is_gone() {
    bounded(async {
        let server = TestServer::start();
        let first = client_at(&server).await;
        let session = first.session_id().expect("a session");
        let process = first.start(sh("echo one; read x; echo two; exit 4").id("p")).await.expect("start");
        output_until(&mut process.events(), "one\n").await;
        let pid = process.pid();
        drop((process, first));

        let second = client_of().resume(session.clone()).takeover(true);
        let second = second.connect(server.url()).await.expect("resume");
        assert_eq!(second.session_id(), Some(session));
        let process = second.attach(&"p".into(), Attach::default()).await.expect("attach");
        assert_eq!(process.pid(), pid);
        assert_eq!(process.write("\n").await.expect("write"), WriteStatus::Accepted);
        let told = tell(&process).await;
        assert_eq!((told.stdout, told.exit.code), (b"one\ntwo\n".to_vec(), 4));
        assert_eq!(told.exit.cause, Some(Cause::Exit));
        assert!(told.exit.usage.is_some());
        // A process that had ended before can be attached too.
        drop(process);
        let process = second.attach(&"p".into(), Attach::default()).await.expect("attach again");
        assert_eq!(process.wait().await.expect("it ended").code, 4);
        assert_eq!(tell(&process).await.stdout, b"one\ntwo\n");
        second.end_session().await.expect("end the session");
    });
}

#[test]
fn a_client_that_closed_in_order_is_resumed_without_takeover() {
    bounded(async {
        let server = TestServer::start();
        let first = client_at(&server).await;
        let session = first.session_id().expect("a session");
        let process = first.start(sh("exec cat").id("p")).await.expect("start");
        process.write("before ").await.expect("write");
        output_until(&mut process.events(), "before ").await;
        first.close().await;
        assert!(soon("the wait", process.wait()).await.is_err(), "its handles are of no use any more");

        let second = client_of().resume(session).connect(server.url()).await.expect("resume");
        let process = second.attach(&"p".into(), Attach::default()).await.expect("attach");
        process.write("after").await.expect("write");
        process.close_stdin().await.expect("close");
        assert_eq!(tell(&process).await.stdout, b"before after");
    });
}

#[test]
fn a_resumed_session_goes_on_after_a_number() {
    bounded(async {
        let server = TestServer::start();
        let first = client_at(&server).await;
        let session = first.session_id().expect("a session");
        let process = first.start(sh("printf one; read x; printf two; read x").id("p")).await.expect("start");
        let mut events = process.events();
        assert_eq!(spell(&mut events).await, "1 stdout one");
        process.write("\n").await.expect("write");
        let seen = events.position();
        drop((events, process));
        first.close().await;

        let second = client_of().resume(session).connect(server.url()).await.expect("resume");
        let options = Attach { after: seen, ..Attach::default() };
        let process = second.attach(&"p".into(), options).await.expect("attach");
        let mut events = process.events_after(seen);
        assert_eq!(spell(&mut events).await, "2 stdout two");
        process.write("\n").await.expect("write");
        assert_eq!(spell(&mut events).await, "3 exited 0");
    });
}

#[test]
fn a_resumed_session_has_all_that_was_written_meanwhile() {
    bounded(async {
        let server = TestServer::builder().behind_proxy().start();
        let first = client_at(&server).await;
        let session = first.session_id().expect("a session");
        let made = server.dir().join("made");
        let script = format!("seq 1 3000000; : >{}; exit 8", made.display());
        first.start(sh(&script).id("p")).await.expect("start");
        // Without a reader the process blocks until its session has no connection and its output goes to disk.
        first.close().await;
        until("all of its output", async || made.exists()).await;

        let proxy = Proxy::start(server.address());
        let second = client_of().resume(session).connect(&proxy.through(server.url())).await.expect("resume");
        let process = second.attach(&"p".into(), Attach::default()).await.expect("attach");
        let mut events = process.events();
        let mut said = output_until(&mut events, "\n1000\n").await.into_bytes();
        proxy.cut();
        let told = follow(events).await;
        said.extend_from_slice(&told.stdout);
        assert_eq!((told.exit.code, told.exit.cause, told.gone), (8, Some(Cause::Exit), 0));
        let expected: String = (1..=3_000_000).map(|number| format!("{number}\n")).collect();
        assert_same("the numbers", &said, expected.as_bytes());
        assert_eq!(proxy.links(), 2);
        second.end_session().await.expect("end the session");
    });
}

#[test]
fn a_second_session_sees_and_steers_a_process_of_the_first() {
    bounded(async {
        let server = TestServer::start();
        let (owner, guest) = (client_at(&server).await, client_at(&server).await);
        let session = owner.session_id();
        let own = owner.start(sh("echo begun; while read x; do echo \"$x\"; done; seq 1 300000; exit 6").id("p")).await;
        let own = own.expect("start");
        output_until(&mut own.events(), "begun\n").await;

        let options = Attach { session_id: session.clone(), hold: true, after: 0 };
        let theirs = guest.attach(&"p".into(), options.clone()).await.expect("attach");
        assert_eq!((theirs.pid(), theirs.session_id()), (own.pid(), session));
        assert_eq!(theirs.write("of the guest\n").await.expect("write"), WriteStatus::Accepted);
        let mut events = theirs.events();
        assert_eq!(output_until(&mut events, "guest\n").await, "begun\nof the guest\n");
        assert_eq!(own.write("of the owner\n").await.expect("write"), WriteStatus::Accepted);
        output_until(&mut events, "owner\n").await;
        own.close_stdin().await.expect("close");
        // This is more than all buffers hold, and both clients get every byte.
        let (own_told, their_told) = tokio::join!(tell(&own), tell(&theirs));
        assert_eq!(own_told, their_told);
        assert_eq!((own_told.exit.code, own_told.exit.cause), (6, Some(Cause::Exit)));
        assert!(own_told.stdout.ends_with(b"\n299999\n300000\n"));

        // A guest that leaves does not end the process.
        drop((theirs, guest));
        let process = owner.start(sh("exec cat").id("q")).await.expect("start");
        let guest = client_at(&server).await;
        let theirs = guest.attach(&"q".into(), options).await.expect("attach");
        drop(theirs);
        assert!(process.terminate(None).await.expect("terminate"), "it runs still");
        let theirs = guest.list(Scope::All).await.expect("list");
        assert_eq!(theirs.len(), 2, "every session of the same principal");
        assert_eq!(guest.list(Scope::Session).await.expect("list"), []);
    });
}

#[test]
fn a_guest_keeps_its_place_through_a_restart_of_the_server() {
    bounded(async {
        let mut server = TestServer::start();
        let (owner, guest) = (client_at(&server).await, client_at(&server).await);
        let own = owner.start(sh("echo begun; read x; seq 1 200000; exit 2").id("p")).await.expect("start");
        let options = Attach { session_id: owner.session_id(), ..Attach::default() };
        let theirs = guest.attach(&"p".into(), options).await.expect("attach");
        let mut events = theirs.events();
        output_until(&mut events, "begun\n").await;
        tokio::task::block_in_place(|| server.restart());
        own.write("\n").await.expect("write");
        let (own_told, their_told) = tokio::join!(tell(&own), tell(&theirs));
        assert_eq!(own_told, their_told);
        assert_eq!(own_told.exit.code, 2);
        owner.end_session().await.expect("end the session");
        guest.end_session().await.expect("end the session");
    });
}

#[test]
fn a_session_that_is_in_use_is_not_given_away_unless_taken() {
    bounded(async {
        let server = TestServer::start();
        let first = client_at(&server).await;
        let session = first.session_id().expect("a session");
        let process = first.start(sh("exec cat").id("p")).await.expect("start");

        let error = client_of().resume(session.clone()).connect(server.url()).await.expect_err("it is in use");
        assert_eq!((error.kind(), error.server_kind()), (ErrorKind::Server, Some(Kind::SessionAttached)));
        assert!(matches!(error, exec_server_client::Error::Server { code: -32010, .. }));
        assert_eq!(process.write("kept ").await.expect("write"), WriteStatus::Accepted);

        let second = client_of().resume(session).takeover(true).connect(server.url()).await.expect("take it over");
        let mut state = first.watch_state();
        let lost = state.wait_for(|state| matches!(state, ConnectionState::Lost { .. }));
        soon("the first has lost it", lost).await.expect("the client lives");
        assert!(process.write("lost").await.is_err());

        // The old client does not take the session back.
        let process = second.attach(&"p".into(), Attach::default()).await.expect("attach");
        process.write("taken").await.expect("write");
        process.close_stdin().await.expect("close");
        assert_eq!(tell(&process).await.stdout, b"kept taken");
        assert!(matches!(second.state(), ConnectionState::Connected));
        second.end_session().await.expect("end the session");
    });
}

#[test]
fn an_unknown_session_is_lost_at_once() {
    bounded(async {
        let server = TestServer::start();
        let error = client_of().resume("nobody".into()).connect(server.url()).await.expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::SessionLost, "{error}");
    });
}

#[test]
fn a_session_lives_as_long_as_it_was_asked_to() {
    bounded(async {
        let server = TestServer::start();
        let brief = client_of().ttl(Ttl::Ms(1)).connect(server.url()).await.expect("connect");
        let session = brief.session_id().expect("a session");
        let process = brief.start(sh("exec cat")).await.expect("start");
        assert_eq!(brief.list(Scope::Session).await.expect("list").len(), 1);
        drop(process);
        brief.close().await;
        let watcher = client_at(&server).await;
        until("the session expires with its processes", async || {
            watcher.list(Scope::All).await.expect("list").is_empty()
        })
        .await;
        let error = client_of().resume(session).connect(server.url()).await.expect_err("it expired");
        assert_eq!(error.kind(), ErrorKind::SessionLost, "{error}");
    });
}
