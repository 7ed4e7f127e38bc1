//! Every way in which a server can misbehave: each has a clear state and message, and affects no other server.

use crate::{
    mcp::{Place, at_both, call, data, soon, until},
    prelude::*,
};
use exec_server_mcp::manager::{Error, Manager, ServerStatus};

at_both!(
    servers_that_cannot_be_started_say_why_and_the_others_work,
    servers_that_talk_where_they_should_not_work_all_the_same,
    a_line_above_the_limit_ends_the_server_and_is_told,
    half_a_message_is_none,
    pages_without_an_end_are_an_error,
    a_version_that_nobody_knows_is_an_error,
);

async fn servers_that_cannot_be_started_say_why_and_the_others_work(place: &Place) {
    let short = "startup_timeout_sec = 5";
    let manager = place.configured(&[
        ("t", &[], ""),
        ("exits", &["--exit-at-once", "7", "--stderr", "no licence"], ""),
        ("silent", &["--never-answer", "all", "--stderr", "thinking"], short),
        ("mute", &["--never-answer", "tools/list"], short),
        ("noisy", &["--never-answer", "tools/list", "--stdout-logs"], short),
        ("forks", &["--fork-and-exit"], "startup_timeout_sec = 20"),
        ("closes", &["--close-stdout"], short),
        ("refuses", &[], "command = \"/bin/cat\"\nstartup_timeout_sec = 5"),
    ]);
    let summary = soon("every start", manager.start_all()).await.expect("none is required");
    assert_eq!(summary.ready, ["t"]);
    let expect: [(&str, &[&str]); 7] = [
        ("exits", &["exited with code 7", "before it answered `initialize`", "no licence"]),
        ("silent", &["`initialize` within 5s", "`startup_timeout_sec` of `[mcp_servers.silent]`", "thinking"]),
        ("mute", &["`tools/list` within 5s", "startup_timeout_sec"]),
        ("noisy", &["`tools/list` within 5s", "logs belong on stderr", "`INFO a line of a log` (not JSON"]),
        ("forks", &["exited with code 0", "before it answered `initialize`"]),
        ("closes", &["`tools/list` within 5s", "startup_timeout_sec"]),
        // The server echoes our own request, which is not an answer.
        ("refuses", &["MCP server `refuses`", "`initialize` within 5s"]),
    ];
    for (name, parts) in expect {
        let reason = &summary.failed[name];
        for part in parts {
            assert!(reason.contains(part), "{name}: {part}: {reason}");
        }
        assert_eq!(manager.status()[name], ServerStatus::Failed { reason: reason.clone() });
    }
    // Servers that fork and servers that never answer have been ended too: only the good one is left.
    assert_eq!(data(&manager, "echo", json!({"message": "m"})).await["echo"], json!("ECHOING: m"));
    until("only one server is left", async || {
        let of = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let left = place.processes().into_iter().map(|pid| of(&pid)).filter(|line| {
            let line = String::from_utf8_lossy(line);
            line.contains("test_mcp_server") || line.contains("sleep") || line.contains("/bin/cat")
        });
        left.count() == 1
    })
    .await;
    let error = soon("an answer", manager.tools_of("exits")).await.expect_err("failed");
    assert!(matches!(error, Error::Failed { .. }), "{error}");
}

async fn servers_that_talk_where_they_should_not_work_all_the_same(place: &Place) {
    let manager =
        place.configured(&[("t", &["--stdout-logs", "--invalid-utf8"], ""), ("flood", &["--flood-stderr", "4"], "")]);
    let summary = soon("start", manager.start_all()).await.expect("start");
    assert_eq!(summary.ready, ["flood", "t"]);
    for _ in 0..3 {
        assert_eq!(data(&manager, "echo", json!({"message": "m"})).await["echo"], json!("ECHOING: m"));
    }
    // The server answers after it has written everything else.
    let tools = soon("a list", manager.resources_of("flood")).await.expect("listed");
    assert_eq!(tools.len(), 5);
    until("the flood is over", async || {
        let log = manager.log("flood");
        assert!(log.iter().map(String::len).sum::<usize>() <= 256 << 10, "bounded");
        log.len() == 1000
    })
    .await;
}

async fn a_line_above_the_limit_ends_the_server_and_is_told(place: &Place) {
    let manager = place.configured(&[("t", &["--long-line", "10000000"], ""), ("other", &[], "")]);
    manager.start_all().await.expect("start");
    let first = data_pid(&manager).await;
    let reason = first.expect_err("too long");
    assert!(reason.contains("a line of more than 8 MiB on its stdout"), "{reason}");
    assert!(reason.contains("it is restarting"), "{reason}");
    // The server sends the overlong line with the first call after every start.
    assert!(data_pid(&manager).await.is_err());
    assert_eq!(manager.status()["other"], ServerStatus::Ready);
}

async fn data_pid(manager: &Manager) -> Result<serde_json::Value, String> {
    let result = call(manager, "pid", json!({})).await.map_err(|error| error.to_string())?;
    Ok(result.structured_content.unwrap_or_default())
}

async fn half_a_message_is_none(place: &Place) {
    let manager = place.one(&["--half-message"]);
    let error = call(&manager, "echo", json!({"message": "m"})).await.expect_err("half an answer");
    let text = error.to_string();
    assert!(matches!(error, Error::Crashed { is_restarted: true, .. }), "{text}");
    for part in ["exited with code 0", "that are not messages (logs belong on stderr): 1, the first"] {
        assert!(text.contains(part), "{text}");
    }
}

async fn pages_without_an_end_are_an_error(place: &Place) {
    let manager = place.configured(&[
        ("repeats", &["--repeat-cursor"], ""),
        ("endless", &["--endless-pages", "--page-size", "1"], ""),
        ("long", &["--long-cursor", "70000"], ""),
        ("t", &["--bad-tools"], ""),
    ]);
    let summary = soon("start", manager.start_all()).await.expect("start");
    assert_eq!(summary.ready, ["t"]);
    assert!(summary.failed["repeats"].contains("the same `nextCursor` twice"), "{summary:?}");
    assert!(summary.failed["endless"].contains("more than 100 pages"), "{summary:?}");
    assert!(summary.failed["long"].contains("more than 64 KiB"), "{summary:?}");
    let tools = manager.tools().await;
    assert!(tools.len() > 10 && tools.iter().all(|tool| tool.tool.name != "bad_schema"), "the good ones are there");
}

async fn a_version_that_nobody_knows_is_an_error(place: &Place) {
    let manager =
        place.configured(&[("t", &["--protocol", "2024-11-05"], ""), ("new", &["--protocol", "2099-01-01"], "")]);
    let summary = soon("start", manager.start_all()).await.expect("start");
    assert_eq!(summary.ready, ["t"]);
    assert!(summary.failed["new"].contains("it speaks MCP `2099-01-01`"), "{summary:?}");
}
