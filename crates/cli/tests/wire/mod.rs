//! Tests of the wire protocol: conformance with every generation of the reference, our additions, limits and failures.
//!
//! This root has the helpers that the tests share: requests in the form of each generation, and waiting for output. They use no types of
//! the server.

mod attached_bytes;
mod binary_frames;
mod child_environment;
pub(crate) mod configuration_and_monitoring;
mod fs_additions;
mod fs_blocks;
mod fs_failures;
mod fs_helpers;
mod fs_reference;
mod fs_search_watch;
mod handshake;
mod holders;
mod host_conditions;
mod http_request;
mod http_request_limits;
mod http_request_logging;
mod limits;
mod lines;
mod listeners;
mod malformed;
mod process_additions;
mod process_read;
mod process_start;
mod process_write;
mod protocol_md;
mod resume;
mod session_keys;
mod several_readers;
mod signals;
mod state_dir;
mod transcript_replay;
mod transcripts;
mod transports;
mod two_hosts;
mod v0;

use crate::prelude::*;

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
