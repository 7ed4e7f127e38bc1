//! Reads the events that a server of generation S or H kept during a cut. Such a server pushes only later events.

use std::time::Duration;

use exec_server_protocol::process as wire;

use super::Generation;
use crate::{
    error::Error,
    process::{
        log::{Appended, EventLog},
        recovery::{append_read, read_params},
    },
    requests,
    server_link::ServerLink,
    session::{ProcessKey, Session},
};

/// Limit for the reads that fetch the missed events of one process.
const MISSED_READS: usize = 8;

/// Limit for the reads after the last chunk of a process that has ended.
const TAIL_READS: usize = 3;

/// Reads the events that were missed during the cut.
///
/// One read returns everything that the server keeps. The second one normally finds nothing, or only output that is also pushed. The limit
/// protects against a process that writes faster than it can be read, and against a server whose answers never end.
pub(crate) async fn read_missed(link: &ServerLink, key: &ProcessKey, log: &EventLog) -> Result<(), Error> {
    for _ in 0..MISSED_READS {
        let after = log.next() - 1;
        let read_once = |params| async move { link.call::<requests::ProcessRead>(&params).await };
        let read = read_all(&read_params(key, after, Duration::ZERO), read_once).await?;
        let appended = append_read(log, after, read, None);
        if let Err(violation) = &appended {
            // As in the reference implementation: a process whose events cannot be followed must not keep running unseen.
            let params = wire::TerminateParams { process_id: key.process_id.clone(), session_id: None, grace_ms: None };
            link.call::<requests::ProcessTerminate>(&params).await?;
            return Err(Error::Protocol(violation.0.to_owned()));
        }
        if log.next() - 1 == after || log.closed().is_some() || appended == Ok(Appended::ReaderBehind) {
            break;
        }
    }
    Ok(())
}

/// Reads the output after a sequence number, over as many links as it takes. A reference server returns everything that
/// it has, a current server at most 8 MiB (`limits::READ_BYTES`).
pub(crate) async fn read_after(session: &Session, params: &wire::ReadParams) -> Result<wire::ReadResult, Error> {
    match session.generation() {
        Generation::Reference => {
            let read_once = |params| async move { session.call_adopted::<requests::ProcessRead>(&params).await };
            read_all(params, read_once).await
        }
        Generation::V0 | Generation::Current => session.call_adopted::<requests::ProcessRead>(params).await,
    }
}

/// Reads everything after a sequence number.
///
/// `next_seq` of generation S covers only the chunks that a read returns. A further read that returns no chunk shows which numbers the exit
/// and the close have after the last chunk.
async fn read_all<F: Future<Output = Result<wire::ReadResult, Error>>>(
    params: &wire::ReadParams,
    read_once: impl Fn(wire::ReadParams) -> F,
) -> Result<wire::ReadResult, Error> {
    let mut read = read_once(params.clone()).await?;
    for _ in 0..TAIL_READS {
        let Some(last) = read.chunks.last().map(|chunk| chunk.seq) else { break };
        if !read.end.exited || read.end.next_seq > last.saturating_add(1) {
            break;
        }
        let tail = read_once(wire::ReadParams { after_seq: Some(last), wait_ms: Some(0), ..params.clone() }).await?;
        let is_all = tail.chunks.is_empty();
        read.chunks.extend(tail.chunks);
        read.end = tail.end;
        if is_all {
            break;
        }
    }
    Ok(read)
}
