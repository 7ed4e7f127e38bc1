//! `exec-server wait`: waits until processes have ended and their output is complete.

use std::process::ExitCode;

use exec_server_client::{Client, Event, Events, Exit, protocol::process::ProcessInfo};
use serde_json::json;

use crate::{
    args, codes,
    connect::ListingSession,
    env_token, ids,
    kill::keep_first,
    logs::{self, LogReader},
    print, stall,
};

/// Waits for all processes in the given order and returns the exit code of the last one.
pub(crate) fn run(args: &args::WaitArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    ListingSession::run(&args.connect, token, async |listing| {
        let mut failed = None;
        let mut code = 0;
        for id in &args.ids {
            let ended = match listing.find(id) {
                Ok((client, info)) => ended(client, info).await.map(|exit| (info, exit)),
                Err(error) => Err(error.into()),
            };
            let done = ended.map(|(info, exit)| {
                code = codes::of_exit(&exit);
                if args.json {
                    print::json(&format!("{}\n", exit_json(info, &exit))).ok(); // If stdout is closed, the reader has gone.
                }
            });
            failed = keep_first(failed, done);
        }
        failed.map_or(Ok(code), Err)
    })
}

async fn ended(client: &Client, info: &ProcessInfo) -> anyhow::Result<Exit> {
    if let Some(exit) = info.exit.clone().filter(|_| info.closed) {
        return Ok(exit.into());
    }
    // The output is not needed. If the process has exited, start one event earlier: the last one may be its exit.
    let after = info.next_seq.saturating_sub(if info.exited { 2 } else { 1 });
    let process = logs::attach(client, info, after, LogReader::Observer).await?;
    let events = process.events_after(after);
    tokio::select! {
        ended = to_end(events) => ended?,
        () = stall::watch(&process) => {}
    }
    let known = process.exit().or_else(|| info.exit.clone().map(Into::into));
    known.ok_or_else(|| anyhow::anyhow!("`{}` closed without an exit code", ids::clean(info.process_id.as_str())))
}

async fn to_end(mut events: Events) -> anyhow::Result<()> {
    while let Some(event) = events.next().await {
        if let Event::Failed(error) = event {
            return Err(error.into());
        }
    }
    Ok(())
}

fn exit_json(info: &ProcessInfo, exit: &Exit) -> serde_json::Value {
    json!({
        "processId": info.process_id,
        "sessionId": info.session_id,
        "exitCode": exit.code,
        "signal": exit.signal,
        "cause": exit.cause,
        "usage": exit.usage,
    })
}
