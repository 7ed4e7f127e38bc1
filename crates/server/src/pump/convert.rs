//! Converts the log's types for streams, exits and blocking into those of the wire.

use exec_server_log::{BlockReason, Exit, ExitCause, LimitsHit, OutputStream};
use exec_server_protocol::{SessionId, process as wire};

use crate::process::Process;

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

/// Builds the params of `process/exited`. `exit` is `None` if the holder died, so the exit status is unknown.
pub(super) fn exited_params(
    process: &Process,
    session_id: Option<SessionId>,
    seq: u64,
    exit: Option<Exit>,
) -> wire::ExitedParams {
    wire::ExitedParams {
        process_id: process.process_id(),
        session_id,
        seq,
        exit_code: exit.map_or(-1, |exit| exit.code),
        sandbox_denied: Some(exit.is_some_and(|exit| exit.is_denied)),
        signal: exit.and_then(|exit| exit.signal).map(exec_server_protocol::signal::name),
        cause: Some(exit.map_or(wire::Cause::Lost, |exit| wire_cause(exit.cause))),
        usage: exit.map(|exit| wire::Usage {
            user_ms: exit.user_ms,
            system_ms: exit.system_ms,
            max_rss_bytes: exit.max_rss_bytes,
        }),
        limits_hit: exit.map_or_else(Vec::new, |exit| limits_hit(exit.hit)),
    }
}
