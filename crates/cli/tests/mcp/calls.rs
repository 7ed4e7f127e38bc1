//! Calls of tools: order, timeouts, cancellation, progress, and questions to the user.

use serde_json::Map;
use tokio::sync::Notify;

use crate::{
    mcp::{Place, at_both, call, data, pass, soon, until},
    prelude::*,
};
use exec_server_client::transport::BoxFuture;
use exec_server_mcp::manager::{Action, Answer, Elicit, Error, Manager, Question, SandboxState, ToolCall};

at_both!(
    calls_of_a_server_run_one_after_another,
    calls_of_a_server_that_allows_it_run_at_the_same_time,
    calls_that_only_read_run_at_the_same_time,
    a_call_that_takes_too_long_is_given_up_and_the_server_told,
    a_call_that_is_dropped_is_cancelled,
    progress_is_told_in_order,
    the_clock_stands_still_while_the_user_is_asked,
    an_answer_of_the_user_reaches_the_server_whole,
    a_question_without_anybody_to_ask_is_declined,
    arguments_and_meta_must_be_objects,
    tools_that_are_not_offered_cannot_be_called,
    a_failed_tool_is_a_result_and_an_error_of_the_protocol_an_error,
    meta_reaches_the_server_and_the_sandbox_only_one_that_asks,
    a_large_result_comes_whole,
);

async fn calls_of_a_server_run_one_after_another(place: &Place) {
    let manager = place.one(&[]);
    manager.start_all().await.expect("start");
    let order = Mutex::new(Vec::new());
    let one = async |tool: &'static str, arguments: Value| {
        call(&manager, tool, arguments).await.expect("call");
        order.lock().expect("no writer panics").push(tool);
    };
    // Without the order, the second call would finish much earlier.
    tokio::join!(biased; one("sleep", json!({"ms": 300})), one("echo", json!({"message": "x"})));
    assert_eq!(*order.lock().expect("no writer panics"), ["sleep", "echo"]);
}

async fn calls_of_a_server_that_allows_it_run_at_the_same_time(place: &Place) {
    let manager = place.configured(&[("t", &[], "supports_parallel_tool_calls = true")]);
    let (one, other) = tokio::join!(call(&manager, "barrier", json!({})), call(&manager, "barrier", json!({})));
    assert_eq!([one.expect("call").is_error, other.expect("call").is_error], [false, false]);
}

async fn calls_that_only_read_run_at_the_same_time(place: &Place) {
    let manager = place.one(&[]);
    let both = async || call(&manager, "read_only_barrier", json!({})).await.expect("call").is_error;
    assert_eq!(tokio::join!(both(), both()), (false, false));
}

async fn a_call_that_takes_too_long_is_given_up_and_the_server_told(place: &Place) {
    let manager = place.configured(&[("t", &[], "tool_timeout_sec = 0.3")]);
    manager.start_all().await.expect("start");
    let error = call(&manager, "sleep", json!({"ms": 60_000})).await.expect_err("too long");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("within 300ms") && text.contains("`tool_timeout_sec` of `[mcp_servers.t]`"), "{text}");
    cancelled(&manager).await;
}

/// Waits until the server has seen one cancelled request.
async fn cancelled(manager: &Manager) {
    until("the server is told", async || {
        let mut stats = ToolCall::new("t", "stats");
        stats.timeout = Some(crate::mcp::SOON);
        let stats = manager.call(stats).await.expect("call").structured_content.unwrap_or_default();
        stats["cancelled"].as_array().is_some_and(|ids| ids.len() == 1)
    })
    .await;
}

async fn a_call_that_is_dropped_is_cancelled(place: &Place) {
    let manager = place.one(&["--journal", "{dir}/j"]);
    manager.start_all().await.expect("start");
    {
        let sleeping = call(&manager, "sleep", json!({"ms": 60_000}));
        let arrived = until("the call arrives", async || place.journaled("j", "tool", "sleep") > 0);
        tokio::select! {
            result = sleeping => panic!("{result:?}"),
            () = arrived => {}
        }
    }
    cancelled(&manager).await;
}

async fn progress_is_told_in_order(place: &Place) {
    let manager = place.one(&[]);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let mut sleep = ToolCall::new("t", "sleep").arguments(json!({"ms": 20, "steps": 40}));
    sleep.on_progress = Some({
        let heard = Arc::clone(&heard);
        Arc::new(move |step| heard.lock().expect("no writer panics").push((step.progress, step.total, step.message)))
    });
    soon("the call", manager.call(sleep)).await.expect("call");
    let expected: Vec<_> = (1..=40).map(|n| (f64::from(n), Some(40.0), Some(format!("step {n}")))).collect();
    assert_eq!(*heard.lock().expect("no writer panics"), expected, "all of them before the result");
}

/// A user who answers only when the test says so.
#[derive(Default)]
struct User {
    asked: Mutex<Vec<Question>>,
    go: Notify,
}

impl Elicit for User {
    fn elicit(&self, question: Question) -> BoxFuture<'_, Answer> {
        Box::pin(async {
            self.asked.lock().expect("no writer panics").push(question);
            self.go.notified().await;
            let meta = Map::from_iter([("why".to_owned(), json!(["because"]))]);
            Answer { action: Action::Accept, content: Some(json!({"name": "N"})), meta: Some(meta) }
        })
    }
}

fn with_user(place: &Place, more: &str) -> (Arc<Manager>, Arc<User>) {
    let user = Arc::new(User::default());
    let mut settings = place.settings(place.config(&[("t", &[], more)]));
    settings.elicit = Some(Arc::clone(&user) as Arc<dyn Elicit>);
    (place.manager_with(settings, place.hosts()), user)
}

async fn the_clock_stands_still_while_the_user_is_asked(place: &Place) {
    let (manager, user) = with_user(place, "tool_timeout_sec = 1.5");
    manager.start_all().await.expect("start");
    let answer = async {
        until("the question", async || !user.asked.lock().expect("no writer panics").is_empty()).await;
        // Much longer than the timeout of the call.
        pass(Duration::from_millis(2500)).await;
        user.go.notify_one();
    };
    let (result, ()) = tokio::join!(call(&manager, "elicit", json!({})), answer);
    assert_eq!(result.expect("in time").structured_content.expect("data")["action"], json!("accept"));
}

async fn an_answer_of_the_user_reaches_the_server_whole(place: &Place) {
    let (manager, user) = with_user(place, "");
    user.go.notify_one();
    let schema = json!({"type": "object", "properties": {"odd": {"type": "unheard-of", "x-more": 1}}});
    let said = data(&manager, "elicit", json!({"message": "Who?", "schema": schema})).await;
    assert_eq!(said, json!({"action": "accept", "content": {"name": "N"}, "_meta": {"why": ["because"]}}));
    let asked = user.asked.lock().expect("no writer panics").clone();
    assert_eq!((asked.len(), asked[0].message(), asked[0].server.as_str()), (1, "Who?", "t"));
    assert_eq!(asked[0].params["requestedSchema"], schema, "as the server said it");
    assert!(!asked[0].params.contains_key("_meta"));
}

async fn a_question_without_anybody_to_ask_is_declined(place: &Place) {
    let manager = place.one(&[]);
    assert_eq!(data(&manager, "elicit", json!({})).await, json!({"action": "decline"}));
}

async fn arguments_and_meta_must_be_objects(place: &Place) {
    let manager = place.one(&[]);
    let error = call(&manager, "echo", json!(["x"])).await.expect_err("a list");
    assert!(error.to_string().contains("`arguments` must be a JSON object, not a list"), "{error}");
    let mut echo = ToolCall::new("t", "echo");
    echo.meta = Some(json!(7));
    let error = manager.call(echo).await.expect_err("a number");
    assert!(error.to_string().contains("`_meta` must be a JSON object, not a number"), "{error}");
    assert_eq!(manager.status()["t"].word(), "notStarted", "nothing was started for that");
    let error = manager.call(ToolCall::new("u", "echo")).await.expect_err("unknown");
    assert!(error.to_string().contains("no MCP server `u`; configured: `t`"), "{error}");
}

async fn tools_that_are_not_offered_cannot_be_called(place: &Place) {
    let more = "enabled_tools = [\"echo\", \"cwd\"]\ndisabled_tools = [\"cwd\"]";
    let manager = place.configured(&[("t", &["--journal", "{dir}/j"], more)]);
    manager.start_all().await.expect("start");
    let offered: Vec<_> = manager.tools().await.into_iter().map(|tool| tool.tool.name.into_owned()).collect();
    assert_eq!(offered, ["echo"]);
    for tool in ["cwd", "pid"] {
        let error = call(&manager, tool, json!({})).await.expect_err("disabled");
        assert!(matches!(error, Error::ToolDisabled { .. }), "{error}");
    }
    call(&manager, "echo", json!({"message": "m"})).await.expect("offered");
    assert_eq!(place.journaled("j", "method", "tools/call"), 1, "the server heard of no other");
}

async fn a_failed_tool_is_a_result_and_an_error_of_the_protocol_an_error(place: &Place) {
    let manager = place.one(&[]);
    let failed = call(&manager, "fail", json!({"message": "no"})).await.expect("a result");
    assert!(failed.is_error && failed.content[0]["text"] == "no");
    let error = call(&manager, "error", json!({"code": -32042, "message": "never"})).await.expect_err("an error");
    let Error::Answer { code, message, .. } = &error else { panic!("{error}") };
    assert_eq!((*code, message.as_str()), (-32042, "never"));
    let error = call(&manager, "no-such-tool", json!({})).await.expect_err("an error");
    assert!(error.to_string().contains("no tool `no-such-tool`"), "{error}");
}

async fn meta_reaches_the_server_and_the_sandbox_only_one_that_asks(place: &Place) {
    let manager = place.configured(&[("t", &["--sandbox-state-meta"], ""), ("other", &[], "")]);
    let seen = async |server: &str| {
        let mut echo = ToolCall::new(server, "echo").arguments(json!({"message": "m"}));
        echo.meta = Some(json!({"threadId": "42", "progressToken": "mine"}));
        echo.sandbox = Some(SandboxState {
            permission_profile: None,
            sandbox_policy: Some(json!({"type": "workspace-write"})),
            linux_sandbox_exe: None,
            sandbox_cwd: "/src".to_owned(),
            use_legacy_landlock: false,
        });
        let result = soon("the call", manager.call(echo)).await.expect("call");
        let mut meta = result.structured_content.expect("data")["meta"].clone();
        assert_ne!(meta["progressToken"], json!("mine"));
        meta.as_object_mut().expect("an object").remove("progressToken");
        (meta, result.meta.is_some())
    };
    let state = json!({"sandboxPolicy": {"type": "workspace-write"}, "codexLinuxSandboxExe": null, "sandboxCwd": "/src",
        "useLegacyLandlock": false});
    assert_eq!(seen("t").await, (json!({"threadId": "42", "codex/sandbox-state-meta": state}), true));
    assert_eq!(seen("other").await, (json!({"threadId": "42"}), true));
}

async fn a_large_result_comes_whole(place: &Place) {
    let manager = place.one(&[]);
    let bytes = 7_000_000;
    let result = call(&manager, "large", json!({"bytes": bytes})).await.expect("below the limit of a line");
    assert_eq!(result.content[0]["text"].as_str().map(str::len), Some(bytes));
}
