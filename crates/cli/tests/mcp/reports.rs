//! The reports of a manager about its servers: states, updates, summaries, and required servers that fail.

use crate::{
    mcp::{Place, at_both, call, soon},
    prelude::*,
};
use exec_server_mcp::manager::{Error, ServerStatus, ServerUpdate};

at_both!(
    looking_starts_nothing,
    every_start_is_told_and_summed_up,
    a_server_that_is_required_and_fails_is_fatal,
    a_call_starts_only_the_server_that_it_needs,
);

async fn looking_starts_nothing(place: &Place) {
    let manager = place.configured(&[("t", &["--journal", "{dir}/j"], ""), ("off", &[], "enabled = false")]);
    let status = manager.status();
    assert_eq!((&status["t"], &status["off"]), (&ServerStatus::NotStarted, &ServerStatus::Disabled));
    assert!(manager.tools().await.is_empty() && manager.log("t").is_empty() && manager.info("t").is_none());
    assert!(place.journal("j").is_empty() && place.processes().is_empty());
    let error = soon("an answer", manager.tools_of("off")).await.expect_err("disabled");
    assert!(matches!(error, Error::Disabled { .. }) && error.to_string().contains("`enabled = true`"), "{error}");
    manager.shutdown().await;
    assert_eq!(manager.status()["t"], ServerStatus::Cancelled);
    let error = call(&manager, "pid", json!({})).await.expect_err("it is over");
    assert!(matches!(error, Error::Cancelled { .. }), "{error}");
}

async fn every_start_is_told_and_summed_up(place: &Place) {
    let manager =
        place.configured(&[("t", &[], ""), ("gone", &["--exit-at-once", "1"], ""), ("off", &[], "enabled = false")]);
    let mut updates = manager.updates();
    manager.start();
    manager.start();
    let mut told = Vec::new();
    let summary = loop {
        match soon("an update", updates.next()).await.expect("the manager is there") {
            ServerUpdate::Server { name, status } => told.push(format!("{name} {}", status.word())),
            ServerUpdate::Summary(summary) => break summary,
            other @ (ServerUpdate::Crashed { .. } | ServerUpdate::Missed(_)) => panic!("{other:?}"),
        }
    };
    told.sort();
    assert_eq!(told, ["gone failed", "gone starting", "t ready", "t starting"]);
    assert_eq!((summary.ready, summary.failed.len()), (vec!["t".to_owned()], 1));
}

async fn a_server_that_is_required_and_fails_is_fatal(place: &Place) {
    let manager = place.configured(&[
        ("t", &[], "required = true"),
        ("gone", &["--exit-at-once", "5", "--stderr", "broken"], "required = true"),
        ("optional", &["--exit-at-once", "6"], ""),
        ("off", &[], "enabled = false\nrequired = true"),
    ]);
    let error = soon("start", manager.start_all()).await.expect_err("one is required");
    let Error::Required { failed } = &error else { panic!("{error}") };
    assert_eq!(failed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["gone"]);
    assert!(error.to_string().contains("exited with code 5") && error.to_string().contains("broken"), "{error}");
}

async fn a_call_starts_only_the_server_that_it_needs(place: &Place) {
    let manager = place.configured(&[("t", &[], ""), ("other", &[], "")]);
    call(&manager, "pid", json!({})).await.expect("call");
    let status = manager.status();
    assert_eq!((&status["t"], &status["other"]), (&ServerStatus::Ready, &ServerStatus::NotStarted));
}
