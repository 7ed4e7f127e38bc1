//! Tests of the wire protocol: conformance with every generation of the reference, our additions, limits and failures.
//!
//! This root has the helpers that the tests share: requests in the form of each generation, and waiting for output. They use no types of
//! the server.
#![allow(clippy::disallowed_methods, reason = "a test starts the real program and waits on the real clock")]

#[path = "../common/mod.rs"]
mod common;

mod additions;
mod attached;
mod binary;
mod defects;
mod doors;
mod environment;
mod files;
mod fs_additions;
mod fs_blocks;
mod fs_reference;
mod fs_seek;
mod fs_trouble;
mod handshake;
mod http_request;
mod http_request_logging;
mod http_trouble;
mod limits;
mod malformed;
pub(crate) mod mischief;
mod operating;
mod process;
mod protocol_md;
mod read;
mod readers;
mod regressions;
mod regressions_again;
mod regressions_overlooked;
mod replay;
mod resume;
mod signals;
mod state;
mod stdin;
mod surroundings;
mod transcripts;
mod transports;
mod two_hosts;
mod v0;

use std::{collections::BTreeSet, fs::OpenOptions, io::Write, path::Path};

use serde_json::{Value, json};

use crate::common::{Client, Ended, RpcError, TestServer, decode_base64, encode_base64, start_params, wait_gone};

/// How the reference begins its answer to a message that it cannot parse.
pub(crate) const MALFORMED_PREFIX: &str = "failed to parse websocket JSON-RPC message from exec-server websocket";

/// The two generations that share `process/*`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Generation {
    /// Native paths, writes without an id.
    S,
    /// `file:` URIs, writes with an id.
    H,
}

pub(crate) const GENERATIONS: [Generation; 2] = [Generation::S, Generation::H];

impl Generation {
    /// A path in the form of this generation.
    pub(crate) fn path(self, path: &str) -> String {
        match self {
            Self::S => path.to_owned(),
            Self::H => format!("file://{path}"),
        }
    }

    /// Params of a start with pipes.
    pub(crate) fn start(self, id: &str, argv: &[&str]) -> Value {
        with(start_params(id, argv), json!({"cwd": self.path("/")}))
    }

    /// Params of a write; `number` makes the write id in generations that have one.
    pub(crate) fn write(self, id: &str, bytes: &[u8], number: u32) -> Value {
        let params = json!({"processId": id, "chunk": encode_base64(bytes)});
        match self {
            Self::S => params,
            Self::H => with(params, json!({"writeId": format!("w{number}")})),
        }
    }
}

/// `params` with the members of `more` added or replaced.
pub(crate) fn with(mut params: Value, more: Value) -> Value {
    let (Some(target), Value::Object(more)) = (params.as_object_mut(), more) else { panic!("two objects") };
    target.extend(more);
    params
}

/// Params of a shell with pipes.
pub(crate) fn sh(id: &str, script: &str) -> Value {
    start_params(id, &["/bin/sh", "-c", script])
}

/// Params of a shell with a stdin pipe.
pub(crate) fn piped(id: &str, script: &str) -> Value {
    with(sh(id, script), json!({"pipeStdin": true}))
}

/// Starts a `cat`, which echoes its input.
pub(crate) fn start_cat(client: &mut Client, id: &str) {
    client.ok("process/start", with(start_params(id, &["cat"]), json!({"pipeStdin": true})));
}

/// Params of a shell on a terminal.
pub(crate) fn tty(id: &str, script: &str) -> Value {
    with(sh(id, script), json!({"tty": true}))
}

/// Params of the methods that need only the process id.
pub(crate) fn process(id: &str) -> Value {
    json!({"processId": id})
}

/// Params of an `initialize` with all of our capabilities.
pub(crate) fn modern() -> Value {
    json!({"clientName": "test", "capabilities": {"ack": true, "gap": true, "concurrent": true, "dialects": []}})
}

/// The bytes of the chunks in the result of a `process/read`.
pub(crate) fn chunk_bytes(result: &Value) -> Vec<u8> {
    let chunks = result["chunks"].as_array().expect("a read has chunks");
    chunks.iter().flat_map(|chunk| decode_base64(chunk["chunk"].as_str().expect("a chunk is text"))).collect()
}

/// Asserts code and kind of an error.
#[track_caller]
pub(crate) fn assert_error(error: &RpcError, code: i64, kind: &str) {
    assert_eq!((error.code, error.kind()), (code, kind), "{}", error.message);
}

/// The pid in the result of a start.
pub(crate) fn pid_of(started: &Value) -> u32 {
    u32::try_from(started["pid"].as_u64().expect("a start answers a pid")).expect("a pid is small")
}

/// Waits until a process has ended.
pub(crate) fn wait_pid_gone(pid: u32) {
    wait_gone("a process", &BTreeSet::from([pid]));
}

/// Creates a FIFO by which a test can make a child continue.
pub(crate) fn fifo(dir: &Path, name: &str) -> String {
    let path = dir.join(name);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("make a FIFO");
    path.display().to_string()
}

/// Unblocks the reader of the FIFO; waits until there is one.
pub(crate) fn release(fifo: &str) {
    let mut end = OpenOptions::new().write(true).open(fifo).expect("open the FIFO");
    end.write_all(b"\n").expect("write to the FIFO");
}

impl Client {
    /// Calls a method that must fail.
    #[track_caller]
    pub(crate) fn fails(&mut self, method: &str, params: Value) -> RpcError {
        match self.call(method, params) {
            Ok(result) => panic!("{method} should fail and answered {result}"),
            Err(error) => error,
        }
    }

    /// Waits until the output of a process contains `needle`; returns the output and drops other notifications.
    #[track_caller]
    pub(crate) fn wait_output(&mut self, id: &str, needle: &str) -> String {
        let mut bytes = Vec::new();
        loop {
            let message = self.next_notification();
            let params = &message["params"];
            if params["processId"] != id {
                continue;
            }
            assert_eq!(message["method"], "process/output", "the process ended before `{needle}`: {message}");
            bytes.extend(decode_base64(params["chunk"].as_str().expect("a chunk")));
            let text = String::from_utf8_lossy(&bytes);
            if text.contains(needle) {
                return text.into_owned();
            }
        }
    }

    /// The params of the next notification, which must have this method.
    #[track_caller]
    pub(crate) fn expect(&mut self, method: &str) -> Value {
        let message = self.next_notification();
        assert_eq!(message["method"], method, "{message}");
        message["params"].clone()
    }

    /// The text of the next message, which must be an error with id -1.
    #[track_caller]
    pub(crate) fn expect_orphan_error(&mut self, kind: &str) -> String {
        let message = self.next();
        assert_eq!(message["id"], -1, "{message}");
        assert_eq!(message["error"]["code"], -32600, "{message}");
        assert_eq!(message["error"]["data"]["kind"], kind, "{message}");
        message["error"]["message"].as_str().expect("an error has a text").to_owned()
    }

    /// Asserts that the connection still answers.
    #[track_caller]
    pub(crate) fn assert_alive(&mut self) {
        assert_eq!(self.ok("environment/status", json!({})), json!({"status": "ready"}));
    }

    /// Starts a process, which must succeed, and collects it to its end.
    pub(crate) fn run_params(&mut self, params: Value) -> Ended {
        let id = params["processId"].as_str().expect("an id").to_owned();
        self.ok("process/start", params);
        self.collect(&id)
    }

    /// Reads a process to its end with polls only; returns the bytes and the last answer.
    pub(crate) fn poll(&mut self, id: &str, max_bytes: Option<u64>) -> (Vec<u8>, Value) {
        let (mut bytes, mut after) = (Vec::new(), 0);
        loop {
            let mut params = json!({"processId": id, "afterSeq": after, "waitMs": 20_000});
            if let Some(max) = max_bytes {
                params = with(params, json!({"maxBytes": max}));
            }
            let result = self.ok("process/read", params);
            assert_eq!(result["gap"], Value::Null, "a poller that keeps up sees no gap");
            bytes.extend(chunk_bytes(&result));
            let next = result["nextSeq"].as_u64().expect("nextSeq");
            let is_done = result["closed"] == true && (max_bytes.is_none() || next == after + 1);
            after = next - 1;
            if is_done {
                return (bytes, result);
            }
        }
    }

    /// Resumes a session without a connection, as soon as the server has noticed the disconnect.
    pub(crate) fn resume(server: &TestServer, session: &str, params: Value) -> Self {
        let mut client = server.connect();
        let params = with(with(json!({"clientName": "test"}), params), json!({"resumeSessionId": session}));
        let result = client.initialize_with(params);
        assert_eq!(result["sessionId"], session);
        client
    }
}
