//! The tools: their list and their calls.
//! Must not know how messages come and go.

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
    sync::atomic::Ordering,
    time::Duration,
};

use serde_json::{Value, json};

use crate::server::{Call, RpcError, Server};

/// A picture of one red pixel.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";

/// A few samples of silence.
const SILENCE: &str = "UklGRigAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQQAAACAgICA";

/// How long a barrier waits for the others: longer than any test.
const BARRIER_WITHIN: Duration = Duration::from_secs(300);

/// Maximum length of the text that `large` returns: above every limit of a client.
const LARGE_MAX: u64 = 256 << 20; // 256 MiB

/// Everything that can be called.
pub(crate) fn list(server: &Server) -> Vec<Value> {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer", "minimum": 0});
    let mut all = vec![
        tool("echo", "Says it again.", json!({"message": text, "env_var": text}), &["message"]),
        tool("image", "A picture.", json!({"detail": text}), &[]),
        tool("contents", "One item of every kind.", json!({}), &[]),
        tool("barrier", "Waits for others.", json!({"name": text, "parties": number}), &[]),
        tool("read_only_barrier", "Waits for others.", json!({"name": text, "parties": number}), &[]),
        tool("sleep", "Takes its time.", json!({"ms": number, "steps": number}), &["ms"]),
        tool("elicit", "Asks the user.", json!({"message": text, "schema": {"type": "object"}}), &[]),
        tool("crash", "Exits without an answer.", json!({"code": number}), &[]),
        tool("fail", "A result that is an error.", json!({"message": text}), &[]),
        tool("error", "An error of the protocol.", json!({"code": {"type": "integer"}, "message": text}), &[]),
        tool("cwd", "The directory of the process.", json!({}), &[]),
        tool("env", "The variables of the process.", json!({}), &[]),
        tool("pid", "The number of the process.", json!({}), &[]),
        tool("spawn", "Starts a child that stays.", json!({}), &[]),
        tool("large", "So many letters.", json!({"bytes": number}), &["bytes"]),
        tool("stats", "What was called so far.", json!({}), &[]),
        tool("add_tool", "One tool more.", json!({}), &[]),
    ];
    for tool in &mut all {
        if ["read_only_barrier", "cwd", "env", "pid", "stats"].iter().any(|name| tool["name"] == *name) {
            tool["annotations"] = json!({"readOnlyHint": true});
        }
    }
    all[0]["outputSchema"] = json!({"type": "object", "properties": {"echo": text}, "required": ["echo"]});
    for n in 1..=server.added_tools.load(Ordering::Relaxed) {
        all.push(tool(&format!("added_{n}"), "Came later.", json!({}), &[]));
    }
    if server.flags.bad_tools {
        all.push(json!({"description": "has no name", "inputSchema": {"type": "object"}}));
        all.push(json!({"name": "bad_schema", "inputSchema": "none"}));
    }
    all
}

fn tool(name: &str, description: &str, properties: Value, required: &[&str]) -> Value {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    json!({"name": name, "description": description, "inputSchema": schema})
}

/// Does it; nothing where the call was cancelled.
pub(crate) fn call(server: &Server, call: &Call<'_>) -> Result<Option<Value>, RpcError> {
    let params = call.params;
    let name = params["name"].as_str().ok_or_else(|| RpcError::invalid("`name` is missing"))?;
    let arguments = &params["arguments"];
    if !arguments.is_null() && !arguments.is_object() {
        return Err(RpcError::invalid("`arguments` must be an object"));
    }
    *server.calls.lock().expect("no writer panics").entry(name.to_owned()).or_default() += 1;
    let result = match name {
        "echo" => echo(params)?,
        "image" => image(arguments),
        "contents" => contents(),
        "barrier" | "read_only_barrier" => barrier(server, arguments),
        "sleep" => return Ok(sleep(server, call)),
        "elicit" => elicit(server, call)?,
        "crash" => {
            let code = arguments["code"].as_u64().and_then(|code| i32::try_from(code).ok());
            std::process::exit(code.unwrap_or(1));
        }
        "fail" => failed(arguments["message"].as_str().unwrap_or("it failed, as it was asked to")),
        "error" => {
            let message = arguments["message"].as_str().unwrap_or("an error, as it was asked for").to_owned();
            return Err(RpcError { code: arguments["code"].as_i64().unwrap_or(-32000), message });
        }
        "cwd" => {
            let cwd = std::env::current_dir().map(|cwd| cwd.display().to_string()).unwrap_or_default();
            both(&cwd, &json!({"cwd": cwd}))
        }
        "env" => {
            let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
            let all: BTreeMap<_, _> = std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect();
            let names: Vec<&str> = all.keys().map(String::as_str).collect();
            both(&names.join(" "), &json!(all))
        }
        "pid" => {
            let pid = std::process::id();
            both(&pid.to_string(), &json!({"pid": pid, "parent": std::os::unix::process::parent_id()}))
        }
        "spawn" => spawn(),
        "large" => {
            let bytes = arguments["bytes"].as_u64().unwrap_or_default().min(LARGE_MAX);
            text(&"x".repeat(usize::try_from(bytes).unwrap_or_default()))
        }
        "stats" => {
            let calls = server.calls.lock().expect("no writer panics").clone();
            let stats = json!({"calls": calls, "cancelled": server.cancelled(), "starts": server.starts()});
            both(&stats.to_string(), &stats)
        }
        "add_tool" => {
            let n = server.added_tools.fetch_add(1, Ordering::Relaxed) + 1;
            call.out.send(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
            text(&format!("added_{n}"))
        }
        name if name.starts_with("added_") => text(name),
        _ => return Err(RpcError::invalid(format!("no tool `{name}`"))),
    };
    Ok(Some(result))
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn both(text: &str, structured: &Value) -> Value {
    json!({"content": [{"type": "text", "text": text}], "structuredContent": structured})
}

fn failed(message: &str) -> Value {
    json!({"content": [{"type": "text", "text": message}], "isError": true})
}

fn echo(params: &Value) -> Result<Value, RpcError> {
    let arguments = &params["arguments"];
    let message = arguments["message"].as_str().ok_or_else(|| RpcError::invalid("`message` is missing"))?;
    let variable = arguments["env_var"].as_str().unwrap_or("MCP_TEST_VALUE");
    let value = std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned());
    let meta = &params["_meta"];
    let said = format!("ECHOING: {message}");
    let mut result = both(&said, &json!({"echo": said, "env": value, "meta": meta}));
    if meta.is_object() {
        result["_meta"] = meta.clone();
    }
    Ok(result)
}

fn image(arguments: &Value) -> Value {
    let mut image = json!({"type": "image", "data": PIXEL, "mimeType": "image/png"});
    if let Some(detail) = arguments["detail"].as_str() {
        image["_meta"] = json!({"codex/imageDetail": detail});
    }
    json!({"content": [image]})
}

fn contents() -> Value {
    json!({"content": [
        {"type": "text", "text": "a text", "annotations": {"audience": ["user"]}},
        {"type": "image", "data": PIXEL, "mimeType": "image/png"},
        {"type": "audio", "data": SILENCE, "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "test://item/1", "mimeType": "text/plain", "text": "inside"}},
        {"type": "resource_link", "uri": "test://item/2", "name": "item 2"},
    ]})
}

/// Every call that arrives wakes the others; when enough are in, all of them pass.
fn barrier(server: &Server, arguments: &Value) -> Value {
    let name = arguments["name"].as_str().unwrap_or_default().to_owned();
    let parties = arguments["parties"].as_u64().unwrap_or(2).max(1);
    let mut barriers = server.barriers.lock().expect("no writer panics");
    let arrived = barriers.entry(name.clone()).or_default();
    *arrived += 1;
    let goal = arrived.div_ceil(parties) * parties;
    server.arrived.notify_all();
    let waits = |barriers: &mut BTreeMap<String, u64>| barriers.get(&name).is_none_or(|arrived| *arrived < goal);
    let waited = server.arrived.wait_timeout_while(barriers, BARRIER_WITHIN, waits).expect("no writer panics");
    if waited.1.timed_out() { failed("the others did not come") } else { text("passed") }
}

fn sleep(server: &Server, call: &Call<'_>) -> Option<Value> {
    let arguments = &call.params["arguments"];
    let total = Duration::from_millis(arguments["ms"].as_u64().unwrap_or_default());
    let token = &call.params["_meta"]["progressToken"];
    let steps = arguments["steps"].as_u64().unwrap_or(1).clamp(1, 10_000);
    for step in 1..=steps {
        if server.sleep(&call.id, total / u32::try_from(steps).unwrap_or(1)) {
            return None;
        }
        if !token.is_null() {
            let params =
                json!({"progressToken": token, "progress": step, "total": steps, "message": format!("step {step}")});
            call.out.send(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
        }
    }
    Some(text("slept"))
}

fn elicit(server: &Server, call: &Call<'_>) -> Result<Value, RpcError> {
    let arguments = &call.params["arguments"];
    let message = arguments["message"].as_str().unwrap_or("What is your name?");
    let schema = if arguments["schema"].is_object() {
        arguments["schema"].clone()
    } else {
        json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    };
    let answer = server.ask(call.out, "elicitation/create", &json!({"message": message, "requestedSchema": schema}))?;
    let said = if answer["result"].is_null() { &answer["error"] } else { &answer["result"] };
    Ok(both(&said.to_string(), said))
}

fn spawn() -> Value {
    let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    match child {
        Ok(child) => both(&child.id().to_string(), &json!({"pid": child.id()})),
        Err(error) => failed(&error.to_string()),
    }
}
