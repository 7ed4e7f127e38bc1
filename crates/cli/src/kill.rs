//! `exec-server kill`: ends processes, or sends them a signal.
//! Must not wait for their end.

use std::process::ExitCode;

use anyhow::Context as _;
use exec_server_client::{
    Client,
    protocol::process::{ProcessInfo, SignalParams, TerminateParams},
    requests::{ProcessSignal, ProcessTerminate},
};

use crate::{args, connect::Visit, env_token, ids, runtime};

/// Does it to each; one that cannot be found does not keep the others.
pub(crate) fn run(args: &args::Kill, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    runtime::block_on(async {
        let visit = Visit::begin(&args.connect, token).await?;
        let mut failed = None;
        for id in &args.ids {
            let done = match visit.find(id) {
                Ok((client, info)) => kill(args, client, info).await,
                Err(error) => Err(error.into()),
            };
            failed = keep_first(failed, done);
        }
        visit.end().await;
        failed.map_or(Ok(ExitCode::SUCCESS), Err)
    })
}

/// The first error is the command's; the others are said at once.
pub(crate) fn keep_first(first: Option<anyhow::Error>, done: anyhow::Result<()>) -> Option<anyhow::Error> {
    match (first, done) {
        (Some(first), Err(error)) => {
            crate::say::error(&error);
            Some(first)
        }
        (first, done) => first.or(done.err()),
    }
}

async fn kill(args: &args::Kill, client: &Client, info: &ProcessInfo) -> anyhow::Result<()> {
    if info.closed {
        return Ok(());
    }
    let (process_id, session_id) = (info.process_id.clone(), Some(info.session_id.clone()));
    let done = match &args.signal {
        Some(signal) => {
            let params = SignalParams { process_id, session_id, signal: signal.clone() };
            client.request::<ProcessSignal>(&params).await.map(drop)
        }
        None => {
            let grace_ms = (!args.grace.is_zero()).then(|| u64::try_from(args.grace.as_millis()).unwrap_or(u64::MAX));
            let params = TerminateParams { process_id, session_id, grace_ms };
            client.request::<ProcessTerminate>(&params).await.map(drop)
        }
    };
    done.with_context(|| format!("end `{}`", ids::clean(info.process_id.as_str())))
}
