//! The methods `command/*` of V0, which has no sessions and no sequence numbers.

use bytes::Bytes;
use exec_server_protocol::{ProcessId, base64, command, method::Notification, path::PathArg, process as wire};
use exec_server_rpc::{
    CloseReason,
    client::{CallError, SentRequest},
};
use serde_json::value::RawValue;

use crate::{
    Request as _,
    error::Error,
    notifications::{NotificationRouter, UNREADABLE, read},
    process::event::{Event, Exit, Totals},
    requests,
    server_link::ServerLink,
    session::Session,
};

/// Starts a process.
pub(crate) async fn start(session: &Session, start: wire::StartParams) -> Result<wire::StartResult, Error> {
    let params = command::ExecParams {
        process_id: start.process_id,
        argv: start.argv,
        cwd: start.cwd.unwrap_or_else(|| PathArg::new("/")),
        env: start.env.unwrap_or_default(),
        tty: start.tty,
        arg0: start.arg0,
        output_bytes_cap: None,
    };
    let pid = session.call::<requests::CommandExec>(&params).await?.pid;
    Ok(wire::StartResult { process_id: params.process_id, sandbox_type: None, sandbox: None, pid })
}

/// Terminates a process. Returns whether it was running.
pub(crate) async fn terminate(session: &Session, process_id: ProcessId) -> Result<bool, Error> {
    let params = command::TerminateParams { process_id };
    session.call::<requests::CommandExecTerminate>(&params).await.map(|result| result.running)
}

/// Sends a write to stdin.
pub(crate) async fn send_write(
    link: &ServerLink,
    process_id: ProcessId,
    bytes: &Bytes,
) -> Result<SentRequest, CallError> {
    let params = command::WriteParams { process_id, chunk: base64::encode(bytes).into() };
    link.send(requests::CommandExecWrite::METHOD, &params).await
}

/// Decodes the answer to a write. V0 has no status: it reports every problem as an error, so an answer means success.
pub(crate) fn write_status(answer: &RawValue) -> Result<wire::WriteStatus, serde_json::Error> {
    serde_json::from_str::<command::WriteResult>(answer.get()).map(|_| wire::WriteStatus::Accepted)
}

/// Handles a notification of V0. Its events have no sequence numbers, so they are numbered in order of arrival. The exit is the last one,
/// so it also closes the process.
pub(crate) async fn handle_notification(
    router: &NotificationRouter,
    method: &str,
    params: Option<&RawValue>,
) -> Result<(), CloseReason> {
    match Notification::find(method) {
        Some(Notification::CommandOutputDelta) => {
            let output: command::OutputDeltaParams = read(params)?;
            let Some(log) = router.log(None, output.process_id) else { return Ok(()) };
            let bytes = base64::decode(&output.chunk).map_err(|_| UNREADABLE)?.into();
            let stream = match output.stream {
                command::Stream::Stdout => wire::Stream::Stdout,
                command::Stream::Stderr => wire::Stream::Stderr,
            };
            router.deliver(&log, Event::Output { seq: log.next(), stream, bytes, offset: None }).await;
        }
        Some(Notification::CommandExited) => {
            let exited: command::ExitedParams = read(params)?;
            let Some(log) = router.log(None, exited.process_id) else { return Ok(()) };
            let exit = Exit::of_code(exited.exit_code);
            router.deliver(&log, Event::Exited { seq: log.next(), exit }).await;
            router.deliver(&log, Event::Closed { seq: log.next(), totals: Totals::default() }).await;
        }
        // Ignore unknown notifications, which a later server may send.
        _ => {}
    }
    Ok(())
}
