//! Converts the log's types for streams, exits and blocking into those of the wire.

use exec_server_log::{BlockReason, ExitCause, LimitsHit, OutputStream};
use exec_server_protocol::process as wire;

pub(crate) fn wire_cause(cause: ExitCause) -> wire::Cause {
    match cause {
        ExitCause::Exit => wire::Cause::Exit,
        ExitCause::Signal => wire::Cause::Signal,
        ExitCause::Timeout => wire::Cause::Timeout,
        ExitCause::IdleTimeout => wire::Cause::IdleTimeout,
        ExitCause::Terminated => wire::Cause::Terminated,
        ExitCause::OutOfMemory => wire::Cause::Oom,
    }
}

/// The limits that the process has hit.
pub(crate) fn limits_hit(hit: LimitsHit) -> Vec<wire::Limit> {
    let all = [(hit.pids, wire::Limit::Pids), (hit.memory, wire::Limit::Memory)];
    all.into_iter().filter(|(is_hit, _)| *is_hit).map(|(_, limit)| limit).collect()
}

/// Why the process's output is not being read.
pub(crate) fn wire_blocked(blocked: BlockReason) -> Option<wire::Blocked> {
    match blocked {
        BlockReason::No => None,
        BlockReason::MemoryCap => Some(wire::Blocked::MemoryCap),
        BlockReason::Quota => Some(wire::Blocked::Quota),
        BlockReason::DiskFull => Some(wire::Blocked::DiskFull),
    }
}

pub(super) fn wire_stream(stream: OutputStream) -> wire::Stream {
    match stream {
        OutputStream::Stdout => wire::Stream::Stdout,
        OutputStream::Stderr => wire::Stream::Stderr,
        OutputStream::Pty => wire::Stream::Pty,
    }
}
