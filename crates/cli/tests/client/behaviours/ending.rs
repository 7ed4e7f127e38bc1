//! How processes end or fail to start: signals, grace periods, time limits, refusals, dropped handles and ended sessions.

use crate::prelude::*;
use exec_server_client::Attach;

const TRAP: &str = "trap 'echo caught; exit 7' INT TERM; echo ready; while :; do sleep 1; done";

pub(crate) async fn exec_process_signal_interrupts_process(place: &Place) {
    for name in ["interrupt", "SIGINT", "int"] {
        let process = place.start(Start::new(["sh", "-c", TRAP])).await;
        let mut events = process.events();
        output_until(&mut events, "ready\n").await;
        process.signal(name).await.expect("signal");
        output_until(&mut events, "caught\n").await;
        let exit = process.wait().await.expect("it ends");
        assert_eq!((exit.code, exit.signal, exit.cause), (7, None, Some(Cause::Exit)));
    }
    let process = place.start(sh("exec cat")).await;
    let error = process.signal("SIGNONE").await.expect_err("there is no such signal");
    assert_eq!(error.server_kind(), Some(Kind::UnknownSignal));
    process.signal("KILL").await.expect("signal");
    let exit = process.wait().await.expect("it ends");
    assert_eq!((exit.code, exit.signal.as_deref(), exit.cause), (137, Some("SIGKILL"), Some(Cause::Signal)));
}

pub(crate) async fn terminate_kills_at_once(place: &Place) {
    let process = place.start(Start::new(["sh", "-c", TRAP])).await;
    output_until(&mut process.events(), "ready\n").await;
    assert!(process.terminate(None).await.expect("terminate"));
    let told = tell(&process).await;
    assert_eq!((told.stdout, told.exit.code), (b"ready\n".to_vec(), 137));
    assert_eq!((told.exit.signal.as_deref(), told.exit.cause), (Some("SIGKILL"), Some(Cause::Terminated)));
    assert!(!process.terminate(None).await.expect("terminate"), "it does not run any more");
}

pub(crate) async fn terminate_with_grace_lets_it_clean_up(place: &Place) {
    let process = place.start(Start::new(["sh", "-c", TRAP])).await;
    output_until(&mut process.events(), "ready\n").await;
    assert!(process.terminate(Some(Duration::from_secs(600))).await.expect("terminate"));
    let told = tell(&process).await;
    assert_eq!(told.stdout, b"ready\ncaught\n");
    assert_eq!((told.exit.code, told.exit.cause), (7, Some(Cause::Terminated)));

    let deaf = place.start(Start::new(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])).await;
    output_until(&mut deaf.events(), "ready\n").await;
    assert!(deaf.terminate(Some(Duration::from_millis(50))).await.expect("terminate"));
    let exit = deaf.wait().await.expect("it ends");
    assert_eq!((exit.code, exit.cause), (137, Some(Cause::Terminated)));
}

pub(crate) async fn time_limits_end_a_process_and_say_so(place: &Place) {
    let start = || sh("echo begun; exec cat");
    let timed = place.start(start().timeout(Duration::from_millis(300))).await;
    let idle = place.start(start().idle_timeout(Duration::from_millis(300))).await;
    for (process, cause) in [(timed, Cause::Timeout), (idle, Cause::IdleTimeout)] {
        let told = soon("the limit", tell(&process)).await;
        assert_eq!((told.exit.cause, told.stdout), (Some(cause), b"begun\n".to_vec()));
        assert!(told.exit.code > 128, "{:?}", told.exit);
    }
    let quick =
        place.start(sh("exit 1").timeout(Duration::from_secs(600)).idle_timeout(Duration::from_secs(600))).await;
    let exit = quick.wait().await.expect("it ends");
    assert_eq!((exit.code, exit.cause), (1, Some(Cause::Exit)));
}

pub(crate) async fn what_cannot_start_says_why(place: &Place) {
    let nowhere = place.path("nowhere");
    let refused = [
        (Start::new(["no-such-program"]), Kind::ProgramNotFound),
        (Start::new([place.path("no/such/program")]), Kind::ProgramNotFound),
        (Start::new(["true"]).cwd(&nowhere), Kind::CwdNotFound),
        (Start::new(["true"]).cwd("relative"), Kind::RelativePath),
        (Start::new(Vec::<String>::new()), Kind::EmptyArgv),
        (Start::new([place.scratch()]), Kind::PermissionDenied),
    ];
    for (start, kind) in refused {
        let error = place.client().start(start.clone().id("same")).await.expect_err("refused");
        assert_eq!((error.kind(), error.server_kind()), (ErrorKind::Server, Some(kind)), "{error}");
        assert!(!error.to_string().is_empty());
    }
    // Each failed start left the id free.
    assert_eq!(place.start(sh("exit 2").id("same")).await.wait().await.expect("it ends").code, 2);
}

pub(crate) async fn a_name_is_given_once(place: &Place) {
    let first = place.start(sh("exec cat").id("same")).await;
    let error = place.client().start(sh("exit 1").id("same")).await.expect_err("the name is taken");
    assert_eq!(error.server_kind(), Some(Kind::DuplicateProcess));
    drop(first);
    // The first refusal came from the client. Without the handle the server refuses the id as well.
    let error = place.client().start(sh("exit 1").id("same")).await.expect_err("the name is taken");
    assert_eq!(error.server_kind(), Some(Kind::DuplicateProcess));
    let same = place.client().attach(&"same".into(), Attach::default()).await.expect("attach");
    assert!(same.terminate(None).await.expect("terminate"), "the second start has not ended the first");
    let (one, two) = (place.start(sh("exit 1")).await, place.start(sh("exit 1")).await);
    assert_ne!(one.id(), two.id(), "names that are made up differ");
}

pub(crate) async fn an_unknown_process_cannot_be_attached(place: &Place) {
    let error = place.client().attach(&"nobody".into(), Attach::default()).await.expect_err("there is none");
    assert_eq!(error.server_kind(), Some(Kind::UnknownProcess));
}

pub(crate) async fn dropping_a_handle_ends_nothing_unless_it_was_asked_to(place: &Place) {
    let stays = place.start(sh("exec cat").id("stays")).await;
    let goes = place.start(sh("exec cat").id("goes").terminate_on_drop(true)).await;
    let clone = goes.clone();
    drop((stays, goes));
    let entry = async |id: &str| {
        let listed = place.client().list(Scope::Session).await.expect("list");
        listed.into_iter().find(|info| info.process_id.as_str() == id).expect("it is listed")
    };
    assert!(!entry("goes").await.exited, "a clone has it still");
    drop(clone);
    until("the end of the process", async || entry("goes").await.closed).await;
    let exit = entry("goes").await.exit.expect("how it ended");
    assert_eq!((exit.exit_code, exit.cause), (137, Cause::Terminated));
    assert!(!entry("stays").await.exited);
}

pub(crate) async fn a_start_that_is_called_off_leaves_nothing_running(place: &Place) {
    // Request the server info now, so that later only the start is in flight.
    place.client().environment_info().await.expect("environment/info");
    for round in 0..20_u32 {
        let starting = place.client().start(sh("exec cat").id(format!("p{round}")));
        // Poll the start for a growing time and drop it, so that it is cancelled at different stages.
        tokio::time::timeout(Duration::from_micros(u64::from(round) * 100), starting).await.map(drop).ok();
    }
    until("no process runs but those whose start was answered", async || {
        let listed = place.client().list(Scope::Session).await.expect("list");
        // If the start was answered, only its handle was dropped, which ends nothing. End those processes by id.
        for info in listed.iter().filter(|info| !info.exited) {
            if let Ok(process) = place.client().attach(&info.process_id, Attach::default()).await {
                process.terminate(None).await.expect("terminate");
            }
        }
        listed.iter().all(|info| info.exited)
    })
    .await;
}

pub(crate) async fn a_closed_process_can_be_forgotten(place: &Place) {
    let process = place.start(sh("read x; echo said").id("p")).await;
    let error = process.forget().await.expect_err("it runs");
    assert_eq!(error.server_kind(), Some(Kind::ProcessNotClosed));
    process.write("\n").await.expect("write");
    process.wait().await.expect("it ends");
    process.forget().await.expect("forget");
    assert_eq!(place.client().list(Scope::Session).await.expect("list"), []);
    let error = process.forget().await.expect_err("it is gone");
    assert_eq!(error.server_kind(), Some(Kind::UnknownProcess));
    drop(process);
    let again = place.start(sh("echo again").id("p")).await;
    assert_eq!(tell(&again).await.stdout, b"again\n");
}

pub(crate) async fn ending_the_session_ends_everything(place: &Place) {
    let before = place.processes();
    let piped = place.start(sh("trap '' TERM; echo ready; exec cat")).await;
    let tree = place.start(Start::new(["sh", "-c", "sleep 1000 & echo ready; wait"]).tty(None)).await;
    let mut events = piped.events();
    output_until(&mut events, "ready").await;
    output_until(&mut tree.events(), "ready").await;
    let children = &place.processes() - &before;
    assert!(children.len() >= 4, "a holder, a shell each and what it started: {children:?}");

    place.client().end_session().await.expect("end the session");
    wait_gone("everything of the session", &children);
    // The handles report the end, and nothing hangs. It is a race whether they see an exit with an unknown outcome first, or the end of the
    // session.
    match soon("the last event", events.next()).await {
        Some(Event::Failed(Error::Disconnected { .. } | Error::SessionLost { .. })) => {
            assert!(soon("the wait", piped.wait()).await.is_err());
        }
        Some(Event::Exited { exit, .. }) => {
            assert_eq!((exit.code, exit.cause), (-1, Some(Cause::Lost)));
            assert!(matches!(soon("the close", events.next()).await, Some(Event::Closed { .. } | Event::Failed(_))));
        }
        other => panic!("{other:?} where an end is expected"),
    }
    assert!(soon("the end", events.next()).await.is_none());
    assert!(soon("the write", piped.write("x")).await.is_err());
    assert!(soon("the list", place.client().list(Scope::Session)).await.is_err());
    assert!(soon("a start", place.client().start(sh("true"))).await.is_err());
}
