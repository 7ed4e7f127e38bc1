//! `exec-server kill`: ends processes and waits until they have ended, or sends them a signal.
//!
//! All processes are signalled before the first one is waited for, so several take only as long as the slowest. The command attaches before
//! it sends the signal: otherwise it would miss the end of a process that the server forgets on exit (`run --rm`).
//!
//! Failure paths: a process that no longer exists counts as ended. If a process does not end, the command keeps waiting and says so on
//! stderr.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use exec_server_client::{
    Client, Event, Process,
    protocol::process::{ProcessInfo, SignalParams, TerminateParams},
    requests::{ProcessSignal, ProcessTerminate},
};
use exec_server_protocol::signal;
use futures_util::future;
use tokio::time::{self, Instant};

use crate::{
    args, codes,
    connect::ListingSession,
    env_token, ids,
    logs::{self, LogReader},
    print,
};

/// How long the streams of an exited process may stay open before the command reports that and stops waiting.
const STREAMS_WITHIN: Duration = Duration::from_secs(5);

/// How long a process may take to end after the last signal before stderr says that the command is waiting.
const NOTICE_AFTER: Duration = Duration::from_secs(3);

/// Handles each id in turn. An id that cannot be resolved does not stop the others.
pub(crate) fn run(args: &args::KillArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    ListingSession::run(&args.connect, token, async |listing| {
        let method = args.signal.as_deref().map_or(KillMethod::Terminate(args.grace), KillMethod::Signal);
        let after_signal = if args.no_wait { AfterSignal::Return } else { AfterSignal::Wait };
        let mut failed = None;
        let mut endings = Vec::new();
        for id in &args.ids {
            let asked = match listing.find(id) {
                Ok((client, info)) => send(client, info, method, after_signal).await,
                Err(error) => Err(error.into()),
            };
            failed = keep_first(failed, asked.map(|ending| endings.extend(ending)));
        }
        for ended in future::join_all(endings.into_iter().map(SignalledProcess::wait)).await {
            failed = keep_first(failed, ended);
        }
        failed.map_or(Ok(0), Err)
    })
}

/// Keeps the first error as the result of the command. Later errors are printed at once.
pub(crate) fn keep_first(first: Option<anyhow::Error>, done: anyhow::Result<()>) -> Option<anyhow::Error> {
    match (first, done) {
        (Some(first), Err(error)) => {
            print::error(&error);
            Some(first)
        }
        (first, done) => first.or(done.err()),
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum KillMethod<'a> {
    /// Sends SIGTERM to the process group. If the process is not closed after this grace period, kills it and its descendants.
    Terminate(Duration),
    /// Sends the signal of this name to the process group.
    Signal(&'a str),
}

/// A process that was signalled and is being waited for.
pub(crate) struct SignalledProcess {
    process: Process,
    name: String,
    /// The number of the last event before the signal.
    after: u64,
    /// Wait until the streams are closed, not only for the exit.
    until_closed: bool,
    /// When to report that the process takes long.
    notice_at: Instant,
}

/// What the caller does after the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterSignal {
    Wait,
    Return,
}

/// Signals a process. Returns `None` if there is nothing to wait for.
pub(crate) async fn send(
    client: &Client,
    info: &ProcessInfo,
    method: KillMethod<'_>,
    after_signal: AfterSignal,
) -> anyhow::Result<Option<SignalledProcess>> {
    if info.closed {
        return Ok(None);
    }
    let name = ids::clean(info.process_id.as_str());
    let process_id = info.process_id.clone();
    let session_id = Some(info.session_id.clone());
    let (is_certain_to_end, until_closed, grace) = match method {
        KillMethod::Terminate(grace) => (true, true, grace),
        // Only SIGKILL is certain to end a process. If the process has already exited, no exit event follows.
        KillMethod::Signal(name) => {
            (signal::number(name) == signal::number("KILL") && !info.exited, false, Duration::ZERO)
        }
    };
    let after = info.next_seq.saturating_sub(1);
    let process = if after_signal == AfterSignal::Wait && is_certain_to_end {
        Some(logs::attach(client, info, after, LogReader::Observer).await?)
    } else {
        None
    };
    let done = match method {
        KillMethod::Signal(name) => {
            let params = SignalParams { process_id, session_id, signal: name.to_owned() };
            client.request::<ProcessSignal>(&params).await.map(drop)
        }
        KillMethod::Terminate(grace) => {
            let grace_ms = (!grace.is_zero()).then(|| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
            client.request::<ProcessTerminate>(&TerminateParams { process_id, session_id, grace_ms }).await.map(drop)
        }
    };
    match done {
        Err(error) if codes::is_gone(&error) => return Ok(None),
        done => done.with_context(|| format!("send a signal to `{name}`"))?,
    }
    let notice_at = Instant::now() + grace + NOTICE_AFTER;
    Ok(process.map(|process| SignalledProcess { process, name, after, until_closed, notice_at }))
}

impl SignalledProcess {
    /// Waits until the process has ended.
    pub(crate) async fn wait(self) -> anyhow::Result<()> {
        let mut events = self.process.events_after(self.after);
        let mut is_noticed = false;
        // Set once the process has exited while its streams are still open.
        let mut streams_until: Option<Instant> = None;
        loop {
            let next = match streams_until {
                Some(until) => time::timeout_at(until, events.next()).await,
                None if is_noticed => Ok(events.next().await),
                None => time::timeout_at(self.notice_at, events.next()).await,
            };
            match next {
                Err(_) if streams_until.is_some() => {
                    report!("`{}` has ended, but a process that it started still holds its output open", self.name);
                    return Ok(());
                }
                Err(_) => {
                    is_noticed = true;
                    report!("waiting for `{}` to end; Ctrl-C stops only the wait", self.name);
                }
                Ok(None | Some(Event::Closed { .. })) => return Ok(()),
                Ok(Some(Event::Exited { .. })) if !self.until_closed => return Ok(()),
                Ok(Some(Event::Exited { .. })) => streams_until = Some(Instant::now() + STREAMS_WITHIN),
                Ok(Some(Event::Failed(error))) if codes::is_gone(&error) => return Ok(()),
                Ok(Some(Event::Failed(error))) => {
                    return Err(error).with_context(|| format!("wait for the end of `{}`", self.name));
                }
                Ok(Some(Event::Output { .. } | Event::Gap { .. })) => {}
            }
        }
    }
}
