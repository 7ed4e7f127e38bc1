//! `exec-server forget` and `exec-server prune`: drop ended processes and what they wrote.
//!
//! The server gives an empty session that no client is attached to a short time to live. For a server without that
//! (`autoForget` is not announced) this file does it: it resumes the session, and a client that comes back makes it its own
//! again. Must not end what runs, unless `forget -f` asks for it.

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
    connect::{Server, Visit},
    display, env_token, ids,
    ids::NoProcess,
    kill::{self, How, keep_first},
    runtime, say,
};

/// What an empty session has left to live: time for a client to notice that its link is dead and to come back.
const EMPTY_TTL_MS: u64 = 30_000;

/// Time between SIGTERM and SIGKILL of `forget -f`, as `kill` has it.
const GRACE: Duration = Duration::from_secs(5);

/// Does it to each.
pub(crate) fn run(args: &args::Forget, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    runtime::block_on(async {
        let visit = Visit::begin(&args.connect, token).await?;
        let mut forgetting = Forgetting::new(&visit);
        if args.ended {
            for (client, info) in visit.each().filter(|(_, info)| info.closed) {
                forgetting.forget(client, info).await;
            }
        }
        for id in &args.ids {
            match visit.find(id) {
                Ok((_, info)) if !info.closed && !args.force => {
                    forgetting.note(Err(NoProcess::Running { asked: id.clone() }.into()));
                }
                Ok((client, info)) => {
                    let ended = end(client, info).await;
                    if ended.is_ok() {
                        forgetting.forget(client, info).await;
                    }
                    forgetting.note(ended);
                }
                Err(error) => forgetting.note(Err(error.into())),
            }
        }
        let (_, failed) = forgetting.finish().await;
        visit.end().await;
        failed.map_or(Ok(ExitCode::SUCCESS), Err)
    })
}

/// `prune`: forgets everything that has ended, and says how much that was.
pub(crate) fn prune(args: &args::Prune, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    runtime::block_on(async {
        let visit = Visit::begin(&args.connect, token).await?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_meant = |info: &ProcessInfo| {
            let age = now.saturating_sub(Duration::from_millis(info.started_at_ms));
            info.closed && args.older.is_none_or(|older| age >= older)
        };
        let count = visit.each().filter(|(_, info)| is_meant(info)).count();
        if !args.force && count > 0 && !is_confirmed(count) {
            visit.end().await;
            say::talk("exec-server: nothing was forgotten");
            return Ok(ExitCode::from(codes::NOT_DONE));
        }
        let mut forgetting = Forgetting::new(&visit);
        for (client, info) in visit.each().filter(|(_, info)| is_meant(info)) {
            if forgetting.forget(client, info).await && !args.json {
                say::line(&ids::clean(info.process_id.as_str()));
            }
        }
        let (done, failed) = forgetting.finish().await;
        let freed = done.iter().map(|info| info.retained_bytes).sum();
        if args.json {
            let ids: Vec<&str> = done.iter().map(|info| info.process_id.as_str()).collect();
            say::json(&format!("{}\n", json!({"forgotten": ids, "freedBytes": freed})))
                .context("write standard output")?;
        } else {
            let processes = if done.len() == 1 { "process" } else { "processes" };
            let freed = display::size(freed);
            say::talk(format_args!("exec-server: forgot {} {processes}, freed {freed} of output", done.len()));
        }
        visit.end().await;
        failed.map_or(Ok(ExitCode::SUCCESS), Err)
    })
}

/// Asks the person at the terminal. Without one nobody can answer, and the command was meant.
fn is_confirmed(count: usize) -> bool {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return true;
    }
    let what = if count == 1 { "1 ended process".to_owned() } else { format!("{count} ended processes") };
    let mut stderr = io::stderr();
    let question = format!("Forget {what} with everything that was written? [y/N] ");
    if stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()).is_err() {
        return false;
    }
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes" | "Yes")
}

/// Ends it with all it started, if it runs.
async fn end(client: &Client, info: &ProcessInfo) -> anyhow::Result<()> {
    match kill::ask(client, info, How::Terminate { grace: GRACE, waits: true }).await? {
        Some(ending) => ending.wait().await,
        None => Ok(()),
    }
}

/// Processes that are being forgotten, and what is left behind.
struct Forgetting<'a> {
    visit: &'a Visit,
    done: Vec<&'a ProcessInfo>,
    failed: Option<anyhow::Error>,
}

impl<'a> Forgetting<'a> {
    fn new(visit: &'a Visit) -> Self {
        Self { visit, done: Vec::new(), failed: None }
    }

    fn note(&mut self, done: anyhow::Result<()>) {
        self.failed = keep_first(self.failed.take(), done);
    }

    /// Forgets one; false where that failed.
    async fn forget(&mut self, client: &Client, info: &'a ProcessInfo) -> bool {
        let params = ForgetParams { process_id: info.process_id.clone(), session_id: Some(info.session_id.clone()) };
        match client.request::<ProcessForget>(&params).await {
            Err(error) if !codes::is_gone(&error) => {
                let name = ids::clean(info.process_id.as_str());
                self.note(Err(error).with_context(|| format!("forget `{name}`")));
                false
            }
            Ok(_) | Err(_) => {
                self.done.push(info);
                true
            }
        }
    }

    /// Shortens the life of the sessions that are empty now, where the server does not do it. What was forgotten, and the first error.
    async fn finish(self) -> (Vec<&'a ProcessInfo>, Option<anyhow::Error>) {
        let client = self.visit.client().filter(|client| !client.server().capabilities.auto_forget);
        if client.is_some() {
            let sessions = self.done.iter().map(|info| info.session_id.clone()).collect();
            for session in emptied(self.visit, sessions).await {
                shorten(self.visit.server(), &session).await;
            }
        }
        (self.done, self.failed)
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
