//! `exec-server forget`: drops ended processes and what they wrote.
//!
//! A session that has nothing else is ended with its process: nobody would come back to it. Must not end what runs.

use std::process::ExitCode;

use anyhow::Context as _;
use exec_server_client::{
    Client,
    protocol::process::{ForgetParams, ProcessInfo},
    requests::ProcessForget,
};

use crate::{args, codes, connect, connect::Visit, env_token, ids, ids::NoProcess, kill::keep_first, runtime};

/// Does it to each.
pub(crate) fn run(args: &args::Forget, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    runtime::block_on(async {
        let visit = Visit::begin(&args.connect, token).await?;
        let mut failed = None;
        for id in &args.ids {
            let done = match visit.find(id) {
                Ok((_, info)) if !info.closed => Err(NoProcess::Running { asked: id.clone() }.into()),
                Ok((client, info)) => forget(&visit, client, info).await,
                Err(error) => Err(error.into()),
            };
            failed = keep_first(failed, done);
        }
        visit.end().await;
        failed.map_or(Ok(ExitCode::SUCCESS), Err)
    })
}

async fn forget(visit: &Visit, client: &Client, info: &ProcessInfo) -> anyhow::Result<()> {
    let is_alone = visit.all().iter().filter(|other| other.session_id == info.session_id).count() == 1;
    // A session that somebody is attached to is not handed over, and stays theirs.
    if is_alone && let Ok(owner) = visit.server().open(|builder| builder.resume(info.session_id.clone())).await {
        connect::end(&owner).await;
        return Ok(());
    }
    let params = ForgetParams { process_id: info.process_id.clone(), session_id: Some(info.session_id.clone()) };
    match client.request::<ProcessForget>(&params).await {
        Ok(_) => Ok(()),
        Err(error) if codes::is_gone(&error) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("forget `{}`", ids::clean(info.process_id.as_str()))),
    }
}
