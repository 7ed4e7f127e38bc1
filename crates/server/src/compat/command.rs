//! V0's `command/*`: its handlers and notifications. It uses the same processes as `process/*`.

use std::path::Path;

use exec_server_holder::control::{OverflowPolicy, StartSpec};
use exec_server_log::OutputStream;
use exec_server_protocol::{
    ProcessId, command, message,
    method::Notification,
    output::{self, EscapedId},
    path::{PathArg, PathError},
};
use exec_server_rpc::Outbox;

use super::Dialect;
use crate::{
    audit::AuditRecord,
    environment::{check_names, child_environment},
    error::Failure,
    handlers::{
        RequestContext, permitted,
        process::{DEFAULT_SIZE, StartParts, launch, reserve_and_start, terminate_running},
        stdin::StdinWrite,
    },
    pump::Reply,
};

/// `command/exec`. Ignores `outputBytesCap`: with a lower cap the child could block forever behind a client that cannot
/// acknowledge, and only the operator may grant a higher one.
pub(crate) async fn exec(context: RequestContext, params: command::ExecParams, reply: Reply) {
    let config = &context.core.config;
    let env = child_environment(&config.environment, None, &params.env);
    let parts = StartParts {
        process_id: params.process_id.as_str().to_owned(),
        argv: params.argv,
        cwd: Some(absolute(params.cwd, config.cwd.as_deref())),
        dialect: Dialect::Command,
        stdin: params.tty,
        tty: params.tty,
        auto_forget: false,
        confinement: None,
        spec: StartSpec {
            arg0: params.arg0.map(String::into_bytes),
            env,
            tty: params.tty.then_some(DEFAULT_SIZE),
            overflow: OverflowPolicy::Block,
            cap_bytes: config.unacked_cap_bytes(),
            ..StartSpec::default()
        },
    };
    let checked = check_names(None, &params.env).and_then(|()| permitted::variables(&context.grant, None, &params.env));
    let launch = checked.and_then(|()| launch(&context, parts));
    reserve_and_start(context, launch, reply).await;
}

/// Resolves a relative path against the server's own directory, as V0 did. Roots are checked later, as for any path.
fn absolute(cwd: PathArg, own: Option<&Path>) -> PathArg {
    match (cwd.resolve(), own.and_then(Path::to_str)) {
        (Err(PathError::Relative), Some(own)) => {
            PathArg::new(format!("{}/{}", own.trim_end_matches('/'), cwd.as_str()))
        }
        _ => cwd,
    }
}

/// Converts the params of `command/exec/write`, which has no write ids.
pub(crate) fn decode_write(params: command::WriteParams<'_>) -> Result<StdinWrite, Failure> {
    StdinWrite::decode(params.process_id.as_str(), None, &params.chunk, None)
}

/// `command/exec/terminate`: removes the entry at once, so that a later write reports an unknown process. The exit is
/// still sent.
pub(crate) async fn terminate(context: RequestContext, params: command::TerminateParams, reply: Reply) {
    let id = params.process_id.as_str();
    let running = match context.session.process(id).await {
        None => false,
        Some(process) => {
            let record = AuditRecord { pid: Some(process.pid), ..AuditRecord::of("process.terminate") };
            context.record(&context.session, Some(id), record);
            let ended = terminate_running(&process, None).await;
            context.session.hide(&process);
            match ended {
                Some(result) => result.running,
                None => return reply.fail(&context.session.holder_lost_failure()),
            }
        }
    };
    reply.result(&command::TerminateResult { running });
}

/// Sends output. Output of a terminal is labelled `stdout`.
pub(crate) fn send_output(out: &mut Outbox, addressee: &EscapedId, stream: OutputStream, bytes: &[u8]) {
    let stream = if stream == OutputStream::Stderr { command::Stream::Stderr } else { command::Stream::Stdout };
    out.message(bytes.len() * 4 / 3 + 128, |buf| output::encode_output_delta(buf, addressee, stream, bytes));
}

/// Sends the last notification of a process. `exit_code` is `None` if it is unknown.
pub(crate) fn send_exited(out: &mut Outbox, process_id: ProcessId, exit_code: Option<i32>) {
    let params = command::ExitedParams { process_id, exit_code: exit_code.unwrap_or(-1) };
    out.message(160, |buf| message::encode_notification(buf, Notification::CommandExited.name(), &params));
}
