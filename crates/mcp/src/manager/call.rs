//! A call of a tool: what a caller gives, what is sent, and what comes back. Must not know how it travels.

use std::{fmt, sync::Arc, time::Duration};

use serde::Serialize;
use serde_json::{Map, Value};

use super::{error::Error, server::Server};
use crate::transport::Progress;

/// The capability by which a server asks for the state of the sandbox, and the key under which it gets it.
const SANDBOX_STATE: &str = "codex/sandbox-state-meta";

/// What is called, and with what.
#[derive(Clone, Default)]
pub struct Call {
    /// The server.
    pub server: String,
    /// The tool, under its own name.
    pub tool: String,
    /// Its arguments: an object, or nothing.
    pub arguments: Option<Value>,
    /// Metadata of the request: an object, or nothing. A `progressToken` in it is replaced by ours.
    pub meta: Option<Value>,
    /// The sandbox of the caller, for servers that ask for it; others do not get it.
    pub sandbox: Option<SandboxState>,
    /// How long it may take; without, as long as the configuration says.
    pub timeout: Option<Duration>,
    /// Told of every step, in order. It must not block.
    pub on_progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl Call {
    /// A call without arguments.
    #[must_use]
    pub fn new(server: impl Into<String>, tool: impl Into<String>) -> Self {
        Self { server: server.into(), tool: tool.into(), ..Self::default() }
    }

    /// Sets the arguments.
    #[must_use]
    pub fn arguments(mut self, arguments: Value) -> Self {
        self.arguments = Some(arguments);
        self
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("server", &self.server).field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// How the caller is confined, in the words that servers know.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxState {
    /// The permissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_profile: Option<Value>,
    /// The policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_policy: Option<Value>,
    /// The program that confines; null where there is none.
    #[serde(rename = "codexLinuxSandboxExe")]
    pub linux_sandbox_exe: Option<String>,
    /// The directory of the caller.
    pub sandbox_cwd: String,
    /// Whether an older way of confining is used.
    pub use_legacy_landlock: bool,
}

/// What a tool gave back, as it came.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallResult {
    /// Text, images and whatever else, each as JSON.
    pub content: Vec<Value>,
    /// The result as data, where the tool has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<Value>,
    /// Whether the tool says that it failed.
    pub is_error: bool,
    /// Metadata of the result.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl CallResult {
    fn read(server: &str, result: Value) -> Result<Self, Error> {
        let unreadable =
            |reason: &str| Error::Unreadable { server: server.to_owned(), method: METHOD, reason: reason.to_owned() };
        let Value::Object(mut result) = result else { return Err(unreadable("the result is no object")) };
        let content = match result.remove("content") {
            Some(Value::Array(items)) => items,
            None | Some(Value::Null) => Vec::new(),
            Some(_) => return Err(unreadable("`content` is no list")),
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

/// A call that can be sent.
pub(super) struct Prepared {
    tool: String,
    arguments: Option<Map<String, Value>>,
    meta: Map<String, Value>,
    sandbox: Option<SandboxState>,
    timeout: Duration,
    on_progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl Prepared {
    /// Checks what can be checked without the server.
    pub(super) fn new(server: &Server, call: Call) -> Result<Self, Error> {
        let Call { server: name, tool, arguments, meta, sandbox, timeout, on_progress } = call;
        if !server.config.tools.allows(&tool) {
            return Err(Error::ToolDisabled { server: name, tool });
        }
        let object = |value: Option<Value>, part: &'static str| match value {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => {
                Err(Error::NotAnObject { server: name.clone(), tool: tool.clone(), part, got: kind(&other) })
            }
        };
        let arguments = object(arguments, "arguments")?;
        let meta = object(meta, "_meta")?.unwrap_or_default();
        let timeout = timeout.unwrap_or(server.config.tool_timeout);
        Ok(Self { tool, arguments, meta, sandbox, timeout, on_progress })
    }

    /// Waits for its turn and for the server, sends it, and waits for the result.
    pub(super) async fn send(mut self, server: &Server) -> Result<CallResult, Error> {
        // Which tools only read is known once it is ready.
        server.ready().await?;
        let _turn = server.turn(&self.tool).await;
        let connection = server.ready().await?;
        self.meta.remove("progressToken");
        if let Some(state) = self.sandbox.take()
            && connection.announces(SANDBOX_STATE)
        {
            let state = serde_json::to_value(state).unwrap_or_default();
            self.meta.insert(SANDBOX_STATE.to_owned(), state);
        }
        let mut params = Map::new();
        params.insert("name".to_owned(), Value::String(self.tool));
        if let Some(arguments) = self.arguments {
            params.insert("arguments".to_owned(), Value::Object(arguments));
        }
        if !self.meta.is_empty() {
            params.insert("_meta".to_owned(), Value::Object(self.meta));
        }
        let params = Some(Value::Object(params));
        let result = connection.request(METHOD, params, Some(self.timeout), self.on_progress).await?;
        CallResult::read(&server.name, result)
    }
}

fn kind(value: &Value) -> &'static str {
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
    fn a_result_keeps_content_that_nobody_knows() {
        let result = json!({
            "content": [{"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {"codex/imageDetail": "original"}},
                        {"type": "unheard-of", "x": 1}],
            "structuredContent": null, "isError": true, "_meta": {"k": 1},
        });
        let read = CallResult::read("s", result.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), result);
    }

    #[test]
    fn a_result_of_the_wrong_shape_is_an_error_that_says_what() {
        for (result, part) in
            [(json!([]), "no object"), (json!({"content": 1}), "content"), (json!({"isError": "x"}), "isError")]
        {
            let error = CallResult::read("s", result).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("`s`"), "{error}");
        }
    }

    #[test]
    fn the_state_of_a_sandbox_has_the_names_that_servers_know() {
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
