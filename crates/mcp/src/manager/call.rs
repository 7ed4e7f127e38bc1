//! Tool calls: the caller's parameters, the request that is sent, and the result.

use std::{fmt, sync::Arc, time::Duration};

use serde::Serialize;
use serde_json::{Map, Value};

use super::{error::Error, server::ManagedServer};
use crate::transport::Progress;

/// The experimental capability with which a server requests the sandbox state, and the `_meta` key with which a call
/// carries that state.
const SANDBOX_STATE: &str = "codex/sandbox-state-meta";

/// A tool call.
#[derive(Clone, Default)]
pub struct ToolCall {
    pub server: String,
    /// The tool, under the name that its server gives it.
    pub tool: String,
    /// The arguments. Must be an object if present.
    pub arguments: Option<Value>,
    /// The `_meta` of the request. Must be an object if present. A `progressToken` in it is replaced by ours.
    pub meta: Option<Value>,
    /// The sandbox of the caller. Sent only to servers that announce the capability for it.
    pub sandbox: Option<SandboxState>,
    /// The timeout. If absent, the one from the configuration.
    pub timeout: Option<Duration>,
    /// Called for each progress notification, in order. Must not block.
    pub on_progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl ToolCall {
    #[must_use]
    pub fn new(server: impl Into<String>, tool: impl Into<String>) -> Self {
        Self { server: server.into(), tool: tool.into(), ..Self::default() }
    }

    #[must_use]
    pub fn arguments(mut self, arguments: Value) -> Self {
        self.arguments = Some(arguments);
        self
    }
}

impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCall").field("server", &self.server).field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// The sandbox of the caller, with the field names that servers expect.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxState {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_profile: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_policy: Option<Value>,
    /// The program that applies the sandbox; null if there is none.
    #[serde(rename = "codexLinuxSandboxExe")]
    pub linux_sandbox_exe: Option<String>,
    /// The working directory of the caller.
    pub sandbox_cwd: String,
    /// Whether the older Landlock implementation is used.
    pub use_legacy_landlock: bool,
}

/// The result of a tool. Over HTTP, rmcp drops fields of the content that it does not know.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallResult {
    /// Text, images and other content, each as JSON.
    pub content: Vec<Value>,
    /// The result as structured data, if the tool provides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<Value>,
    /// Whether the tool reports that it failed.
    pub is_error: bool,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl CallResult {
    fn parse(server: &str, result: Value) -> Result<Self, Error> {
        let unreadable =
            |reason: &str| Error::Unreadable { server: server.to_owned(), method: METHOD, reason: reason.to_owned() };
        let Value::Object(mut result) = result else { return Err(unreadable("the result is not an object")) };
        let content = match result.remove("content") {
            Some(Value::Array(items)) => items,
            None | Some(Value::Null) => Vec::new(),
            Some(_) => return Err(unreadable("`content` is not a list")),
        };
        let is_error = match result.remove("isError") {
            Some(Value::Bool(is_error)) => is_error,
            None | Some(Value::Null) => false,
            Some(_) => return Err(unreadable("`isError` is neither true nor false")),
        };
        Ok(Self {
            content,
            structured_content: result.remove("structuredContent"),
            is_error,
            meta: result.remove("_meta"),
        })
    }
}

const METHOD: &str = "tools/call";

/// Checks everything that can be checked without the server.
pub(super) fn check(server: &ManagedServer, call: &ToolCall) -> Result<(), Error> {
    let ToolCall { server: name, tool, .. } = call;
    if !server.config.tools.allows(tool) {
        return Err(Error::ToolDisabled { server: name.clone(), tool: tool.clone() });
    }
    for (part, value) in [("arguments", &call.arguments), ("_meta", &call.meta)] {
        if let Some(other) = value.as_ref().filter(|value| !value.is_object()) {
            return Err(Error::NotAnObject { server: name.clone(), tool: tool.clone(), part, got: type_name(other) });
        }
    }
    Ok(())
}

/// Waits until the server is ready. A call that may not overlap also waits until no other such call is in progress. Then sends the call and
/// waits for the result.
pub(super) async fn send(server: &ManagedServer, call: ToolCall) -> Result<CallResult, Error> {
    // Wait until the server is ready: before that its read-only tools are not known, and `turn` depends on them.
    server.ready().await?;
    let _turn = server.turn(&call.tool).await;
    // The server may have crashed while this waited for its turn.
    let connection = server.ready().await?;
    let mut params = Map::from_iter([("name".to_owned(), Value::String(call.tool))]);
    if let Some(arguments) = call.arguments {
        params.insert("arguments".to_owned(), arguments);
    }
    let mut meta = match call.meta {
        Some(Value::Object(meta)) => meta,
        // Absent: `check` has refused all other types.
        _ => Map::new(),
    };
    // rmcp sets its own token.
    meta.remove("progressToken");
    let announced = connection.info.as_ref().and_then(|info| info.capabilities.experimental.as_ref());
    if let Some(state) = call.sandbox
        && announced.is_some_and(|all| all.contains_key(SANDBOX_STATE))
    {
        meta.insert(SANDBOX_STATE.to_owned(), serde_json::to_value(state).unwrap_or_default());
    }
    if !meta.is_empty() {
        params.insert("_meta".to_owned(), Value::Object(meta));
    }
    let timeout = call.timeout.unwrap_or(server.config.tool_timeout);
    let result = connection.request(METHOD, Some(Value::Object(params)), Some(timeout), call.on_progress).await?;
    CallResult::parse(&server.name, result)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_result_keeps_content_of_unknown_types() {
        let result = json!({
            "content": [{"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {"codex/imageDetail": "original"}},
                        {"type": "unheard-of", "x": 1}],
            "structuredContent": null, "isError": true, "_meta": {"k": 1},
        });
        let read = CallResult::parse("s", result.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), result);
    }

    #[test]
    fn the_error_for_a_malformed_result_names_the_wrong_part() {
        for (result, part) in
            [(json!([]), "not an object"), (json!({"content": 1}), "content"), (json!({"isError": "x"}), "isError")]
        {
            let error = CallResult::parse("s", result).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("`s`"), "{error}");
        }
    }

    #[test]
    fn a_sandbox_state_has_the_field_names_that_servers_expect() {
        let state = SandboxState {
            permission_profile: None,
            sandbox_policy: Some(json!({"type": "read-only"})),
            linux_sandbox_exe: None,
            sandbox_cwd: "/w".to_owned(),
            use_legacy_landlock: false,
        };
        let expected = json!({"sandboxPolicy": {"type": "read-only"}, "codexLinuxSandboxExe": null, "sandboxCwd": "/w",
            "useLegacyLandlock": false});
        assert_eq!(serde_json::to_value(state).unwrap(), expected);
    }
}
