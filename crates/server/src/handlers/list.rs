//! `process/list`, in pages: an answer has at most [`limits::LIST_BYTES`] of text and [`limits::VALUES`] values, no
//! matter how many processes there are. A page begins after the position in its cursor. So processes that appear or
//! disappear between two pages neither hide nor repeat others.

use std::{io, sync::Arc};

use exec_server_protocol::{base64, limits, process as wire, signal as names};

use super::RequestContext;
use crate::{error::Failure, process::Process, pump};

/// An upper bound for the JSON values of one entry without its arguments. Also used for the rest of the answer, which
/// has fewer.
const ENTRY_VALUES: usize = 32;

/// Maximum text of one entry of `adopting`, in bytes. All sessions that are being adopted are on the first page.
const ADOPTING_BYTES: usize = 128;

/// JSON values of one entry of `adopting`.
const ADOPTING_VALUES: usize = 3;

/// The sort key of a process: start time, process id, session id. The cursor is this key as JSON in base64.
type ListPosition = (u64, String, String);

/// `process/list`: the processes of this session, or of all sessions of the principal.
pub(crate) async fn list(context: RequestContext, params: wire::ListParams) -> Result<wire::ListResult, Failure> {
    let after = params.cursor.as_deref().map(read_cursor).transpose()?;
    if params.limit == Some(0) {
        return Err(Failure::InvalidParams { reason: "limit must be 1 or more".to_owned() });
    }
    let most = params.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let principal = &context.session.principal;
    // Get the pending sessions first. Then a session that is adopted in between is listed twice, not left out.
    let (adopting, sessions) = match params.scope {
        wire::Scope::Session => (Vec::new(), vec![context.session.clone()]),
        wire::Scope::All if after.is_some() => (Vec::new(), context.core.sessions_of(principal)),
        wire::Scope::All => (context.core.adopting(principal), context.core.sessions_of(principal)),
    };
    let all = sessions.iter().flat_map(|session| session.processes()).map(|process| (position(&process), process));
    let mut remaining: Vec<(ListPosition, Arc<Process>)> =
        all.filter(|(position, _)| after.as_ref().is_none_or(|after| position > after)).collect();
    remaining.sort_by(|(left, _), (right, _)| left.cmp(right));

    let mut processes = Vec::new();
    let mut bytes = adopting.len() * ADOPTING_BYTES;
    let mut values = ENTRY_VALUES + adopting.len() * ADOPTING_VALUES;
    let mut last = None;
    for (position, process) in &remaining {
        let info = describe(process);
        bytes += text_bytes(&info);
        values += ENTRY_VALUES + info.argv.len();
        let fits = bytes <= limits::LIST_BYTES && values <= limits::VALUES && processes.len() < most;
        // The first entry is always added: its id and arguments are bounded far below the limits.
        if !fits && !processes.is_empty() {
            break;
        }
        processes.push(info);
        last = Some(position);
    }
    let has_more = processes.len() < remaining.len();
    let next_cursor = last.filter(|_| has_more).map(write_cursor);
    Ok(wire::ListResult { processes, next_cursor, adopting })
}

fn position(process: &Process) -> ListPosition {
    (process.meta.started_ms, process.id().to_owned(), process.session.to_string())
}

fn write_cursor(position: &ListPosition) -> String {
    base64::encode(&serde_json::to_vec(position).expect("a number and two texts serialize"))
}

fn read_cursor(cursor: &str) -> Result<ListPosition, Failure> {
    let position = base64::decode(cursor).ok().and_then(|text| serde_json::from_slice(&text).ok());
    position.ok_or_else(|| Failure::InvalidParams { reason: "cursor was not made by this server".to_owned() })
}

/// The length of an entry as JSON text.
fn text_bytes(info: &wire::ProcessInfo) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(1); // The comma between entries.
    serde_json::to_writer(&mut count, info).expect("a record of texts and numbers serializes");
    count.0
}

fn describe(process: &Arc<Process>) -> wire::ProcessInfo {
    let (status, lost, retained_bytes) = {
        let log = process.log();
        (log.status(), log.lost_end(), log.retained_bytes())
    };
    let lost = lost.map(|_| wire::Exit {
        exit_code: -1,
        signal: None,
        cause: wire::Cause::Lost,
        usage: wire::Usage::default(),
        limits_hit: Vec::new(),
    });
    let exit = status.exited.map(|(_, exit)| wire::Exit {
        exit_code: exit.code,
        signal: exit.signal.map(names::name),
        cause: pump::wire_cause(exit.cause),
        usage: wire::Usage { user_ms: exit.user_ms, system_ms: exit.system_ms, max_rss_bytes: exit.max_rss_bytes },
        limits_hit: pump::limits_hit(exit.hit),
    });
    wire::ProcessInfo {
        process_id: process.process_id(),
        session_id: process.session_id(),
        pid: Some(process.pid),
        argv: process.meta.argv.clone(),
        argv_bytes: process.meta.argv_bytes,
        cwd: process.meta.cwd.clone(),
        tty: process.meta.tty,
        started_at_ms: process.meta.started_ms,
        exited: exit.is_some() || lost.is_some(),
        exit: exit.or(lost),
        closed: status.closed_seq.is_some(),
        next_seq: status.next_seq,
        output_bytes: status.written,
        retained_bytes,
        dropped_bytes: status.dropped,
        blocked: pump::wire_blocked(status.blocked),
    }
}
