//! Params of the requests that most tests send, in wire format.

use serde_json::{Value, json};

use crate::encode_base64;

/// Params of a plain start: pipes, no stdin, PATH only.
pub fn start_params(process_id: &str, argv: &[&str]) -> Value {
    json!({
        "processId": process_id,
        "argv": argv,
        "cwd": "/",
        "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
        "tty": false,
    })
}

/// `params` with the members of `more` added or replaced.
pub fn with(mut params: Value, more: Value) -> Value {
    let (Some(target), Value::Object(more)) = (params.as_object_mut(), more) else { panic!("two objects") };
    target.extend(more);
    params
}

/// Params of a shell with pipes.
pub fn sh(id: &str, script: &str) -> Value {
    start_params(id, &["/bin/sh", "-c", script])
}

/// Params of a shell with a stdin pipe.
pub fn piped(id: &str, script: &str) -> Value {
    with(sh(id, script), json!({"pipeStdin": true}))
}

/// Params of a `cat`, which echoes its input.
pub fn cat(id: &str) -> Value {
    with(start_params(id, &["cat"]), json!({"pipeStdin": true}))
}

/// Params of a shell on a terminal.
pub fn tty(id: &str, script: &str) -> Value {
    with(sh(id, script), json!({"tty": true}))
}

/// Params of the methods that need only the process id.
pub fn process(id: &str) -> Value {
    json!({"processId": id})
}

/// Params of an `initialize` with all of our capabilities.
pub fn modern() -> Value {
    json!({"clientName": "test", "capabilities": {"ack": true, "gap": true, "concurrent": true, "dialects": []}})
}

/// Params of a write without an id.
pub fn write_params(id: &str, bytes: &[u8]) -> Value {
    json!({"processId": id, "chunk": encode_base64(bytes)})
}
