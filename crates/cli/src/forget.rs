//! `exec-server forget` and `exec-server prune`: delete ended processes and their output.
//!
//! The server gives an empty session without an attached client a short time-to-live. A server that does not announce `autoForget` does not
//! do that, so this module resumes the session and shortens the time-to-live. A client that reconnects later can still take its session
//! back. Running processes are ended only by `forget -f`.

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

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
use serde_json::json;

use crate::{
    args, codes,
    connect::{ListingSession, Server},
    display, env_token, ids,
    ids::ProcessLookupError,
    kill::{self, AfterSignal, KillMethod, keep_first},
    print,
};

/// The time-to-live for an empty session: enough for a client to notice that its link is dead and to reconnect.
const EMPTY_TTL_MS: u64 = 30_000;

/// Time between SIGTERM and SIGKILL for `forget -f`, the same as in `kill`.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &args::ForgetArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    ListingSession::run(&args.connect, token, async |listing| {
        let mut forget_run = ForgetRun::new(listing);
        if args.ended {
            for (client, info) in listing.each().filter(|(_, info)| info.closed) {
                forget_run.forget(client, info).await;
            }
        }
        for id in &args.ids {
            match listing.find(id) {
                Ok((_, info)) if !info.closed && !args.force => {
                    forget_run.record(Err(ProcessLookupError::Running { asked: id.clone() }.into()));
                }
                Ok((client, info)) => {
                    let ended = end(client, info).await;
                    if ended.is_ok() {
                        forget_run.forget(client, info).await;
                    }
                    forget_run.record(ended);
                }
                Err(error) => forget_run.record(Err(error.into())),
            }
        }
        forget_run.finish().await.1.map_or(Ok(0), Err)
    })
}

/// `prune`: forgets all ended processes and prints how much output that freed.
pub(crate) fn prune(args: &args::PruneArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    ListingSession::run(&args.connect, token, async |listing| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_selected = |info: &ProcessInfo| {
            let age = now.saturating_sub(Duration::from_millis(info.started_at_ms));
            info.closed && args.older.is_none_or(|older| age >= older)
        };
        let count = listing.each().filter(|(_, info)| is_selected(info)).count();
        if !args.force && count > 0 && !is_confirmed(count) {
            report!("nothing was forgotten");
            return Ok(codes::NOT_DONE);
        }
        let mut forget_run = ForgetRun::new(listing);
        for (client, info) in listing.each().filter(|(_, info)| is_selected(info)) {
            if forget_run.forget(client, info).await && !args.json {
                print::line(&ids::clean(info.process_id.as_str())).ok(); // Forget the others also if stdout is closed.
            }
        }
        let (done, failed) = forget_run.finish().await;
        let freed = done.iter().map(|info| info.retained_bytes).sum();
        if args.json {
            let ids: Vec<&str> = done.iter().map(|info| info.process_id.as_str()).collect();
            print::json(&format!("{}\n", json!({"forgotten": ids, "freedBytes": freed})))?;
        } else {
            let processes = if done.len() == 1 { "process" } else { "processes" };
            let freed = display::size(freed);
            report!("forgot {} {processes}, freed {freed} of output", done.len());
        }
        failed.map_or(Ok(0), Err)
    })
}

/// Asks the user on the terminal. Without a terminal the answer counts as yes: a script that runs the command means it.
fn is_confirmed(count: usize) -> bool {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return true;
    }
    let what = if count == 1 { "1 ended process".to_owned() } else { format!("{count} ended processes") };
    let mut stderr = io::stderr();
    let question = format!("Forget {what} and all output? [y/N] ");
    if stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()).is_err() {
        return false;
    }
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes" | "Yes")
}

/// Ends a process as `kill` does; does nothing if it is closed.
async fn end(client: &Client, info: &ProcessInfo) -> anyhow::Result<()> {
    match kill::send(client, info, KillMethod::Terminate(GRACE), AfterSignal::Wait).await? {
        Some(ending) => ending.wait().await,
        None => Ok(()),
    }
}

/// The processes forgotten so far, and the first error.
struct ForgetRun<'a> {
    listing: &'a ListingSession,
    done: Vec<&'a ProcessInfo>,
    failed: Option<anyhow::Error>,
}

impl<'a> ForgetRun<'a> {
    fn new(listing: &'a ListingSession) -> Self {
        Self { listing, done: Vec::new(), failed: None }
    }

    fn record(&mut self, done: anyhow::Result<()>) {
        self.failed = keep_first(self.failed.take(), done);
    }

    /// Forgets one process. Returns whether that worked; a process that is already gone counts as forgotten.
    async fn forget(&mut self, client: &Client, info: &'a ProcessInfo) -> bool {
        let params = ForgetParams { process_id: info.process_id.clone(), session_id: Some(info.session_id.clone()) };
        match client.request::<ProcessForget>(&params).await {
            Err(error) if !codes::is_gone(&error) => {
                let name = ids::clean(info.process_id.as_str());
                self.record(Err(error).with_context(|| format!("forget `{name}`")));
                false
            }
            Ok(_) | Err(_) => {
                self.done.push(info);
                true
            }
        }
    }

    /// Shortens the time-to-live of sessions that are now empty, if the server does not do so itself. Returns the forgotten processes and
    /// the first error.
    async fn finish(self) -> (Vec<&'a ProcessInfo>, Option<anyhow::Error>) {
        let client = self.listing.client.as_ref().filter(|client| !client.server().capabilities.auto_forget);
        // If the listing fails, the sessions keep their time-to-live.
        if let Some(client) = client.filter(|_| !self.done.is_empty())
            && let Ok(all) = client.list(Scope::All).await
        {
            let mut sessions: BTreeSet<&SessionId> = self.done.iter().map(|info| &info.session_id).collect();
            sessions.retain(|session| all.iter().all(|process| process.session_id != **session));
            for session in sessions {
                shorten(&self.listing.server, session).await;
            }
        }
        (self.done, self.failed)
    }
}

/// Shortens the time-to-live of an empty session. A session with an attached client cannot be resumed and stays as it is.
async fn shorten(server: &Server, session: &SessionId) {
    for ttl in [Ttl::Ms(EMPTY_TTL_MS), Ttl::Unlimited] {
        // No retry and no recovery: if another client takes the session over, it belongs to that client.
        let open = server.open(|builder| {
            builder.resume(session.clone()).ttl(ttl).connect_retry_for(Duration::ZERO).recover_for(Duration::ZERO)
        });
        let Ok(owner) = open.await else { return };
        let listed = owner.list(Scope::Session).await;
        owner.close().await;
        if !listed.is_ok_and(|all| !all.is_empty()) {
            return;
        }
        // A process was started in the session in the meantime, so undo the short time-to-live. The previous one is not known, but the
        // sessions of `run --detach` have an unlimited one.
    }
}
