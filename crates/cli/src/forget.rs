//! `exec-server forget`: drops ended processes and what they wrote.
//!
//! A session that is empty behind that is not ended. Nothing tells whether `run --detach` left it for good or its client is about
//! to mend its link; so it only gets a short life, and a client that comes back in that time makes it its own again. Must not end
//! what runs.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use anyhow::Context as _;
use exec_server_client::{
    Client,
    protocol::{
        SessionId,
        initialize::Ttl,
        process::{ForgetParams, ProcessInfo, Scope},
    },
    requests::ProcessForget,
};

use crate::{
    args, codes,
    connect::{Server, Visit},
    env_token, ids,
    ids::NoProcess,
    kill::keep_first,
    runtime,
};

/// What an empty session has left to live: time for a client to notice that its link is dead and to come back.
const EMPTY_TTL_MS: u64 = 30_000;

/// Does it to each.
pub(crate) fn run(args: &args::Forget, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    runtime::block_on(async {
        let visit = Visit::begin(&args.connect, token).await?;
        let (mut failed, mut sessions) = (None, BTreeSet::new());
        for id in &args.ids {
            let done = match visit.find(id) {
                Ok((_, info)) if !info.closed => Err(NoProcess::Running { asked: id.clone() }.into()),
                Ok((client, info)) => forget(client, info).await.map(|()| sessions.insert(info.session_id.clone())),
                Err(error) => Err(error.into()),
            };
            failed = keep_first(failed, done.map(drop));
        }
        for session in emptied(&visit, sessions).await {
            shorten(visit.server(), &session).await;
        }
        visit.end().await;
        failed.map_or(Ok(ExitCode::SUCCESS), Err)
    })
}

async fn forget(client: &Client, info: &ProcessInfo) -> anyhow::Result<()> {
    let params = ForgetParams { process_id: info.process_id.clone(), session_id: Some(info.session_id.clone()) };
    match client.request::<ProcessForget>(&params).await {
        Ok(_) => Ok(()),
        Err(error) if codes::is_gone(&error) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("forget `{}`", ids::clean(info.process_id.as_str()))),
    }
}

/// Those of the sessions that have no process any more; none where the server does not say so.
async fn emptied(visit: &Visit, mut sessions: BTreeSet<SessionId>) -> BTreeSet<SessionId> {
    if sessions.is_empty() {
        return sessions;
    }
    match visit.list().await {
        Ok(all) => sessions.retain(|session| all.iter().all(|process| process.session_id != *session)),
        Err(_) => sessions.clear(), // Its own time-to-live ends it, too.
    }
    sessions
}

/// Gives an empty session less time to live. One that somebody is attached to is not handed over, and stays as it is.
async fn shorten(server: &Server, session: &SessionId) {
    for ttl in [Ttl::Ms(EMPTY_TTL_MS), Ttl::Unlimited] {
        // Once, and never again where it is taken from us: whoever takes it is its client.
        let open = server.open(|builder| {
            builder.resume(session.clone()).ttl(ttl).connect_retry_for(Duration::ZERO).recover_for(Duration::ZERO)
        });
        let Ok(owner) = open.await else { return };
        let listed = owner.list(Scope::Session).await;
        owner.close().await;
        if !listed.is_ok_and(|all| !all.is_empty()) {
            return;
        }
        // Something was started there since: that is not to end sooner because of us.
    }
}
