//! One server from its launch to its end.

use crate::{
    mcp::{Place, at_both, bounded_remote, call, data, places::variables, soon},
    prelude::*,
};
use exec_server_client::{Client, Start, environment::Backend, protocol::process::Overflow};
use exec_server_mcp::{
    config::StdioConfig,
    launch::{Launch, launch},
    manager::ServerStatus,
    rmcp::{
        ServiceExt as _,
        model::{ClientJsonRpcMessage, ClientNotification, ProtocolVersion},
        transport::Transport as _,
    },
    transport::{StderrLog, StdioTransport, StreamEnd},
};

at_both!(
    round_trip,
    images_and_all_other_content_pass_through,
    a_directory_of_its_own_comes_before_the_managers,
    the_managers_directory_comes_before_the_executors,
    a_server_without_any_directory_runs_in_its_executors,
    a_program_that_is_not_there_names_the_path_that_was_searched,
);

async fn round_trip(place: &Place) {
    let manager = place.configured(&[("t", &[], "env = { MCP_TEST_VALUE = \"from here\" }")]);
    assert_eq!(place.processes().len(), 0, "nothing runs before it is asked for");
    let summary = soon("start", manager.start_all()).await.expect("start");
    assert_eq!((summary.ready, summary.failed.len()), (vec!["t".to_owned()], 0));

    let info = manager.info("t").expect("it introduced itself");
    assert_eq!(info.protocol_version, ProtocolVersion::V_2025_06_18);
    assert_eq!(info.instructions.as_deref(), Some("For tests only."));
    let tools = manager.tools().await;
    let echo = tools.iter().find(|tool| tool.tool.name == "echo").expect("listed");
    assert_eq!(echo.server, "t");
    assert_eq!(echo.tool.input_schema["required"], json!(["message"]));

    let result = call(&manager, "echo", json!({"message": "hé\u{2028}\n\"x\""})).await.expect("call");
    assert_eq!(result.content, [json!({"type": "text", "text": "ECHOING: hé\u{2028}\n\"x\""})]);
    let structured = result.structured_content.expect("data");
    assert_eq!((&structured["echo"], &structured["env"]), (&json!("ECHOING: hé\u{2028}\n\"x\""), &json!("from here")));
    assert!(!result.is_error);

    let pid = data(&manager, "pid", json!({})).await["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    soon("shutdown", manager.shutdown()).await;
    assert_eq!(manager.status()["t"], ServerStatus::Cancelled);
    // Without waiting: the process must be gone when the shutdown returns.
    let alive = pid.map(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(alive, Some(false), "its process is gone");
}

async fn images_and_all_other_content_pass_through(place: &Place) {
    let manager = place.one(&[]);
    let image = call(&manager, "image", json!({"detail": "original"})).await.expect("call");
    assert_eq!(image.content.len(), 1);
    assert_eq!((&image.content[0]["type"], &image.content[0]["mimeType"]), (&json!("image"), &json!("image/png")));
    assert_eq!(image.content[0]["_meta"], json!({"codex/imageDetail": "original"}));
    assert!(image.content[0]["data"].as_str().is_some_and(|data| data.starts_with("iVBOR")));
    let all = call(&manager, "contents", json!({})).await.expect("call").content;
    let kinds: Vec<_> = all.iter().map(|item| item["type"].as_str().unwrap_or_default()).collect();
    assert_eq!(kinds, ["text", "image", "audio", "resource", "resource_link"]);
    assert_eq!(all[0]["annotations"], json!({"audience": ["user"]}));
}

async fn a_directory_of_its_own_comes_before_the_managers(place: &Place) {
    let (own, fallback) = (place.path("own"), place.path("fallback"));
    std::fs::create_dir(&own).expect("make a directory");
    let mut settings = place.settings(place.config(&[("t", &[], &format!("cwd = {own:?}"))]));
    settings.cwd = Some(fallback.into());
    let manager = place.manager_with(settings, place.hosts());
    assert_eq!(data(&manager, "cwd", json!({})).await["cwd"], json!(own));
}

async fn the_managers_directory_comes_before_the_executors(place: &Place) {
    let fallback = place.path("fallback");
    std::fs::create_dir(&fallback).expect("make a directory");
    let mut settings = place.settings(place.config(&[("t", &[], "")]));
    settings.cwd = Some(fallback.clone().into());
    let manager = place.manager_with(settings, place.hosts());
    assert_eq!(data(&manager, "cwd", json!({})).await["cwd"], json!(fallback));
}

async fn a_server_without_any_directory_runs_in_its_executors(place: &Place) {
    let manager = place.one(&[]);
    let expected = match place.kind {
        crate::mcp::Kind::Local => place.path("").trim_end_matches('/').to_owned(),
        crate::mcp::Kind::Remote => place.server().cwd().display().to_string(),
    };
    assert_eq!(data(&manager, "cwd", json!({})).await["cwd"], json!(expected));
}

async fn a_program_that_is_not_there_names_the_path_that_was_searched(place: &Place) {
    let with_path = "command = \"no-such-program\"\nenv = { PATH = \"/nowhere:/else\" }";
    let manager = place.configured(&[
        ("path", &[], with_path),
        ("own", &[], "command = \"no-such-program\""),
        ("absolute", &[], "command = \"/nowhere/program\""),
    ]);
    let summary = soon("start", manager.start_all()).await.expect("none is required");
    assert!(summary.failed["path"].contains("not found in the PATH that it would get: /nowhere:/else"), "{summary:?}");
    let own = match place.kind {
        crate::mcp::Kind::Local => "/usr/local/bin:/usr/bin:/bin",
        // Any path on the remote side.
        crate::mcp::Kind::Remote => "/",
    };
    let own = format!("not found in the PATH that it would get: {own}");
    assert!(summary.failed["own"].contains("`no-such-program`") && summary.failed["own"].contains(&own), "{summary:?}");
    assert!(summary.failed["absolute"].contains("`/nowhere/program`"), "{summary:?}");
}

/// A connection to the executor of a place, without a manager.
async fn connect(place: &Place) -> Backend {
    Backend::Remote(Client::connect(place.server().url()).await.expect("connect"))
}

fn launched<'a>(stdio: &'a StdioConfig, variables: &'a exec_server_mcp::env::Variables) -> Launch<'a> {
    Launch { name: "t", stdio, variables, cwd: None, log: Arc::new(StderrLog::default()) }
}

#[test]
fn the_transport_is_one_that_any_client_takes() {
    bounded_remote(async |place| {
        let remote = connect(place).await;
        let stdio = StdioConfig { command: testkit::test_mcp_server(), ..StdioConfig::default() };
        let none = variables(&[]);
        let first = launch(&remote, launched(&stdio, &none)).await.expect("launch");
        let second = launch(&remote, launched(&stdio, &none)).await.expect("launch");
        let ids = [&first, &second].map(|launched| launched.child().process().id().as_str().to_owned());
        assert!(ids[0] != ids[1] && ids.iter().all(|id| id.starts_with("mcp-stdio-")), "{ids:?}");
        // Keep a handle to the child, because `serve` consumes the transport.
        let child = Arc::clone(first.child());
        let mut client = soon("handshake", ().serve(first)).await.expect("handshake");
        assert!(client.list_all_tools().await.expect("list").len() > 10);
        assert_eq!(client.list_all_resources().await.expect("list").len(), 5);
        soon("close", client.close()).await.expect("close");
        assert!(child.process().exit().is_some_and(|exit| exit.code == 0), "it ended by itself");
        // Dropped without closing, the server is ended in the background.
        let pid = second.child().process().pid().expect("a pid");
        drop(second);
        wait_gone("the second server", &[pid].into());
        remote.client().end_session().await.expect("end");
    });
}

#[test]
fn output_that_is_gone_ends_the_stream() {
    bounded_remote(async |place| {
        let remote = connect(place).await;
        // Empty lines, because the window would otherwise hold one line that is too long.
        let flood = "head -c 60000000 /dev/zero | tr '\\0' '\\n'";
        let start = Start::new(["sh", "-c", flood]).overflow(Overflow::DropOldest).pipe_stdin(true);
        let process = remote.client().start(start).await.expect("start");
        // The output is not read, so the oldest part is dropped.
        wait_gone("the process", &[process.pid().expect("a pid")].into());
        let mut transport = StdioTransport::new("t", process, Arc::new(StderrLog::default()));
        assert!(soon("the end", transport.receive()).await.is_none());
        let ended = transport.child().ended().borrow().clone();
        assert!(matches!(ended, Some(StreamEnd::Gap { .. })), "{ended:?}");
        soon("close", transport.close()).await.expect("close");
        remote.client().end_session().await.expect("end");
    });
}

#[test]
fn a_last_line_without_its_end_is_offered_and_a_carriage_return_removed() {
    bounded_remote(async |place| {
        let remote = connect(place).await;
        let script = r#"printf '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}\r\n\n'
            printf 'noise\n{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'; printf 'last words' >&2"#;
        let process = remote.client().start(Start::new(["sh", "-c", script]).pipe_stdin(true)).await.expect("start");
        let mut transport = StdioTransport::new("t", process, Arc::new(StderrLog::default()));
        assert!(soon("the first", transport.receive()).await.is_some());
        assert!(soon("the last", transport.receive()).await.is_some());
        assert!(soon("the end", transport.receive()).await.is_none());
        let child = Arc::clone(transport.child());
        assert!(matches!(child.ended().borrow().as_ref(), Some(StreamEnd::Exited(Some(exit))) if exit.code == 0));
        assert_eq!((child.skipped(), child.log().lines()), (1, vec!["last words".to_owned()]));
        let sent = transport
            .send(ClientJsonRpcMessage::notification(ClientNotification::InitializedNotification(Default::default())));
        let error = soon("a send to nobody", sent).await.expect_err("nobody is there");
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe, "{error}");
        transport.close().await.expect("close");
        remote.client().end_session().await.expect("end");
    });
}
