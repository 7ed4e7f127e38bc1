//! Shutdown: of managers with calls in flight, of dropped or killed managers, and of servers that do not want to end.

use crate::{
    mcp::{Kind, Place, at_both, call, data, soon, until},
    prelude::*,
};
use exec_server_client::environment::RemoteSpec;
use exec_server_mcp::manager::{Error, Host, Hosts, Manager, ServerStatus};

at_both!(
    a_shutdown_wins_over_a_call_that_takes_minutes,
    a_shutdown_calls_off_servers_that_are_starting,
    a_server_that_does_not_want_to_end_is_ended,
    dropping_ends_a_wrapper_and_all_that_it_started,
);

async fn a_shutdown_wins_over_a_call_that_takes_minutes(place: &Place) {
    let manager = place.one(&["--journal", "{dir}/j"]);
    manager.start_all().await.expect("start");
    let began = Instant::now();
    let shutdown = async {
        until("the call arrives", async || place.journaled("j", "tool", "sleep") > 0).await;
        manager.shutdown().await;
    };
    let (result, ()) = tokio::join!(call(&manager, "sleep", json!({"ms": 300_000})), shutdown);
    let error = result.expect_err("it was ended");
    assert!(matches!(error, Error::Cancelled { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

async fn a_shutdown_calls_off_servers_that_are_starting(place: &Place) {
    let manager = place.one(&["--never-answer", "all", "--journal", "{dir}/j"]);
    manager.start();
    until("it was asked", async || place.journaled("j", "method", "initialize") > 0).await;
    let running = place.processes();
    assert!(!running.is_empty());
    let (result, ()) = tokio::join!(manager.tools_of("t"), soon("shutdown", manager.shutdown()));
    assert!(matches!(result.expect_err("cancelled"), Error::Cancelled { .. }));
    assert_eq!(manager.status()["t"], ServerStatus::Cancelled);
    wait_gone("what was starting", &running);
}

async fn a_server_that_does_not_want_to_end_is_ended(place: &Place) {
    let program = testkit::test_mcp_server();
    let stubborn = "trap '' TERM HUP INT; exec \"$@\"";
    let manager = place.configured(&[("t", &["-c", stubborn, "sh", &program, "--ignore-eof"], "command = \"sh\"")]);
    let child = data(&manager, "spawn", json!({})).await["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let began = Instant::now();
    soon("shutdown", manager.shutdown()).await;
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    wait_gone("its child", &child.into_iter().collect());
}

async fn dropping_ends_a_wrapper_and_all_that_it_started(place: &Place) {
    let program = testkit::test_mcp_server();
    let wrapper = "sleep 1000 & \"$@\"; exit 3";
    let config = place.config(&[("t", &["-c", wrapper, "sh", &program], "command = \"sh\"")]);
    let manager = Manager::new(place.settings(config), place.hosts());
    data(&manager, "spawn", json!({})).await;
    let running = place.processes();
    assert!(running.len() >= 4, "a shell, its child, the server and its child: {running:?}");
    drop(manager);
    if place.kind == Kind::Local {
        testkit::wait_for("the end of all", || place.processes().is_empty());
    } else {
        let of = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let ours = |pid: &u32| {
            let line = String::from_utf8_lossy(&of(pid)).into_owned();
            line.contains("sleep") || line.contains("test_mcp_server")
        };
        let ours = running.into_iter().filter(ours).collect();
        wait_gone("the wrapper and all below it", &ours);
    }
}

#[test]
fn what_a_killed_manager_leaves_on_an_executor_ends_soon() {
    let place = Place::open(Kind::Remote);
    let url = place.server().url().to_owned();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let manager = runtime.block_on(async {
        let hosts = Hosts::new(move |_| {
            let spec = RemoteSpec::at("remote", &url).expect("a URL");
            Ok(Host::remote(spec, None, Duration::from_secs(1)))
        });
        let manager = Manager::new(place.settings(place.config(&[("t", &[], "")])), hosts);
        data(&manager, "spawn", json!({})).await;
        manager
    });
    // Simulates SIGKILL: no task runs any longer, and no session is closed.
    runtime.shutdown_background();
    let running = place.processes();
    assert!(!running.is_empty());
    wait_gone("the servers of a manager that was killed", &running);
    drop(manager);
    bounded(async { drop(place) });
}
