//! Lists of tools, resources, templates and prompts, through all pages.

use serde_json::Map;

use crate::{
    mcp::{Place, at_both, data, soon, until},
    prelude::*,
};
use exec_server_mcp::manager::{ServerAuth, ServerStatus, SnapshotDetail};

at_both!(
    resources_templates_and_prompts_are_listed_through_all_pages_and_read,
    aggregated_lists_leave_out_servers_that_fail,
    tools_that_come_later_are_known,
    a_snapshot_looks_through_servers_of_its_own,
);

async fn resources_templates_and_prompts_are_listed_through_all_pages_and_read(place: &Place) {
    let manager = place.one(&["--page-size", "2"]);
    let resources = soon("a list", manager.resources_of("t")).await.expect("listed");
    let uris: Vec<_> = resources.iter().map(|resource| resource.uri.clone()).collect();
    assert_eq!(uris, (1..=5).map(|n| format!("test://item/{n}")).collect::<Vec<_>>());
    let templates = manager.resource_templates_of("t").await.expect("listed");
    assert_eq!(templates.len(), 3);
    let prompts = manager.prompts_of("t").await.expect("listed");
    assert_eq!(prompts.iter().map(|prompt| prompt.name.as_str()).collect::<Vec<_>>(), ["greet", "plain"]);
    assert!(manager.tools_of("t").await.expect("listed").len() > 10, "nine pages of them");

    let read = manager.read_resource("t", "test://item/4").await.expect("read");
    let text = json!({"uri": "test://item/4", "mimeType": "text/plain", "text": "the content of test://item/4"});
    assert_eq!(read["contents"], json!([text]));
    let blob = manager.read_resource("t", "test://blob").await.expect("read");
    assert_eq!(blob["contents"][0]["blob"], json!("AAEC/w=="));
    let error = manager.read_resource("t", "http://x").await.expect_err("none");
    assert!(error.to_string().contains("no resource `http://x`"), "{error}");
    let who = Map::from_iter([("who".to_owned(), json!("you"))]);
    let prompt = manager.get_prompt("t", "greet", who).await.expect("a prompt");
    assert_eq!(prompt["messages"][0]["content"]["text"], json!("say hello to you"));
}

async fn aggregated_lists_leave_out_servers_that_fail(place: &Place) {
    let manager = place.configured(&[
        ("t", &[], ""),
        ("silent", &["--never-answer", "resources/list"], "tool_timeout_sec = 2"),
        ("gone", &["--exit-at-once", "1"], ""),
        ("off", &[], "enabled = false"),
    ]);
    assert!(manager.resources().await.is_empty(), "nothing was started");
    soon("start", manager.start_all()).await.expect("start");
    let all = soon("a list", manager.resources()).await;
    assert_eq!(all.iter().map(|(name, items)| (name.as_str(), items.len())).collect::<Vec<_>>(), [("t", 5)]);
    let all = soon("a list", manager.resource_templates()).await;
    assert_eq!(all.keys().collect::<Vec<_>>(), ["silent", "t"]);
}

async fn tools_that_come_later_are_known(place: &Place) {
    let manager = place.one(&[]);
    data(&manager, "add_tool", json!({})).await;
    until("the new tool", async || manager.tools().await.iter().any(|tool| tool.tool.name == "added_1")).await;
}

async fn a_snapshot_looks_through_servers_of_its_own(place: &Place) {
    let empty = place.manager(place.config(&[]));
    assert!(empty.snapshot(SnapshotDetail::Full).await.servers.is_empty());

    let manager = place.configured(&[
        ("t", &["--journal", "{dir}/j"], ""),
        ("gone", &["--exit-at-once", "3"], ""),
        ("off", &[], "enabled = false"),
    ]);
    let pid = data(&manager, "pid", json!({})).await;
    let full = soon("a snapshot", manager.snapshot(SnapshotDetail::Full)).await.servers;
    let t = &full["t"];
    assert_eq!((&t.status, t.auth), (&ServerStatus::Ready, ServerAuth::Unsupported));
    assert_eq!((t.resources.len(), t.resource_templates.len(), t.prompts.len()), (5, 3, 2));
    assert!(t.tools.iter().any(|tool| tool.name == "echo"));
    assert!(matches!(&full["gone"].status, ServerStatus::Failed { reason } if reason.contains("code 3")));
    assert_eq!(full["off"].status, ServerStatus::Disabled);
    let short = soon("a snapshot", manager.snapshot(SnapshotDetail::ToolsAndAuthOnly)).await.servers;
    assert!(!short["t"].tools.is_empty() && short["t"].resources.is_empty() && short["t"].prompts.is_empty());

    let events = |event: &str| place.journaled("j", "event", event);
    assert_eq!((events("start"), events("eof")), (3, 2), "two of its own, and both are ended");
    assert_eq!(data(&manager, "pid", json!({})).await, pid, "what runs here is not touched");
    assert_eq!(manager.status()["gone"], ServerStatus::NotStarted);
}
