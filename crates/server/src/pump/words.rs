//! The log's words for an exit as those of the wire.

use exec_server_log::{Cause, Hit};
use exec_server_protocol::process as wire;

/// Why a process ended.
pub(crate) fn wire_cause(cause: Cause) -> wire::Cause {
    match cause {
        Cause::Exit => wire::Cause::Exit,
        Cause::Signal => wire::Cause::Signal,
        Cause::Timeout => wire::Cause::Timeout,
        Cause::IdleTimeout => wire::Cause::IdleTimeout,
        Cause::Terminated => wire::Cause::Terminated,
        Cause::OutOfMemory => wire::Cause::Oom,
    }
}

/// The limits it has run into.
pub(crate) fn limits_hit(hit: Hit) -> Vec<wire::Limit> {
    let all = [(hit.pids, wire::Limit::Pids), (hit.memory, wire::Limit::Memory)];
    all.into_iter().filter(|(is_hit, _)| *is_hit).map(|(_, limit)| limit).collect()
}
