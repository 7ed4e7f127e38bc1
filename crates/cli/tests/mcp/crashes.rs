//! Servers that end unexpectedly.

use crate::{
    mcp::{Place, at_both, call, data, soon},
    prelude::*,
};
use exec_server_mcp::manager::{Error, Manager, Restarts, ServerStatus, ServerUpdate};

at_both!(
    a_crashed_server_is_started_again_and_the_caller_told,
    a_server_that_crashes_too_often_has_failed,
    a_restart_that_fails_is_tried_again,
);

fn quick(place: &Place, flags: &[&str], most: u32) -> Arc<Manager> {
    let mut settings = place.settings(place.config(&[("t", flags, ""), ("other", &[], "")]));
    settings.restarts = Restarts { most, first_pause: Duration::from_millis(20), ..Restarts::default() };
    place.manager_with(settings, place.hosts())
}

async fn a_crashed_server_is_started_again_and_the_caller_told(place: &Place) {
    let manager = quick(place, &["--journal", "{dir}/j", "--stderr", "these are last words"], 5);
    manager.start_all().await.expect("start");
    let mut updates = manager.updates();
    let before = data(&manager, "pid", json!({})).await["pid"].clone();
    let error = call(&manager, "crash", json!({"code": 3})).await.expect_err("it crashed");
    let Error::Crashed { reason, is_restarted: true, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("exited with code 3") && reason.contains("these are last words"), "{reason}");
    assert!(error.to_string().contains("it is restarting, and the next call waits"), "{error}");

    let after = data(&manager, "pid", json!({})).await["pid"].clone();
    assert_ne!(before, after, "the next call waited for another process");
    assert_eq!(data(&manager, "stats", json!({})).await["starts"], json!(2));
    assert_eq!(place.journaled("j", "method", "initialize"), 2, "initialized again");

    let mut told = Vec::new();
    while told.last() != Some(&"ready") {
        told.push(match soon("an update", updates.next()).await {
            Some(ServerUpdate::Crashed { name, .. }) if name == "t" => "crashed",
            Some(ServerUpdate::Server { name, status }) if name == "t" => match status {
                ServerStatus::Starting { restarts: 1 } => "starting",
                ServerStatus::Ready if told.is_empty() => continue,
                ServerStatus::Ready => "ready",
                other => panic!("{other:?}"),
            },
            // Skip the summary of the first start, which may arrive a moment late, and events of the other server.
            Some(ServerUpdate::Summary(_)) => continue,
            Some(ServerUpdate::Server { name, .. }) if name == "other" => continue,
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(told, ["crashed", "starting", "ready"]);
    assert_eq!(manager.status()["other"], ServerStatus::Ready);
}

async fn a_server_that_crashes_too_often_has_failed(place: &Place) {
    let manager = quick(place, &["--stderr", "my own fault"], 2);
    for n in 1..=3 {
        let error = call(&manager, "crash", json!({"code": 9})).await.expect_err("it crashed");
        let Error::Crashed { is_restarted, .. } = error else { panic!("{error}") };
        assert_eq!(is_restarted, n < 3, "crash {n}");
    }
    let error = call(&manager, "pid", json!({})).await.expect_err("it has failed");
    assert!(matches!(error, Error::Failed { .. }), "{error}");
    let ServerStatus::Failed { reason } = &manager.status()["t"] else { panic!("{:?}", manager.status()) };
    for part in ["3 times in a row", "exited with code 9", "my own fault"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(manager.log("t"), ["my own fault"; 3], "the log is that of all its lives");
    manager.restart("t").expect("known");
    call(&manager, "pid", json!({})).await.expect("it was started by hand");
}

async fn a_restart_that_fails_is_tried_again(place: &Place) {
    // The program is a script that starts the real server once, then fails twice, and then starts the server again.
    let script = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; if [ $n = 1 ] || [ $n = 2 ]; then exit 4; fi; exec \"$@\"";
    let program = testkit::test_mcp_server();
    let more = format!("command = \"sh\"\ncwd = {:?}", place.path(""));
    let config = place.config(&[("t", &["-c", script, "sh", &program], &more)]);
    let mut settings = place.settings(config);
    settings.restarts = Restarts { first_pause: Duration::from_millis(20), ..Restarts::default() };
    let manager = place.manager_with(settings, place.hosts());
    let before = data(&manager, "pid", json!({})).await;
    call(&manager, "crash", json!({})).await.expect_err("it crashed");
    assert_ne!(data(&manager, "pid", json!({})).await, before);
    let starts = std::fs::read_to_string(place.path("n")).expect("counted");
    assert_eq!(starts.trim(), "4");
}
