//! `exec-server run --detach`: starts a program, prints its id and disconnects.
//!
//! Prints to stderr what the server will not keep: output beyond the quota, and a session that stays unused for too long.

use std::time::Duration;

use anyhow::bail;
use exec_server_client::protocol::initialize::Ttl;
use serde::Serialize;

use crate::{
    args, connect,
    connect::Server,
    print, run, sandbox,
    start::{self, ServerKind},
};

/// The output of `--json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StartedJson<'a> {
    process_id: &'a str,
    session_id: Option<String>,
    pid: Option<u32>,
}

/// Starts the program on the given server, or on the user's own server if `server` is `None`.
pub(crate) async fn run(args: &args::RunArgs, server: Option<Server>) -> anyhow::Result<u8> {
    let (server, server_kind) = match server {
        Some(server) => (server, ServerKind::Remote),
        None => (Server::per_user(&args.connect)?, ServerKind::PerUser),
    };
    let client = server.open(|builder| builder.ttl(Ttl::Unlimited)).await?;
    if !client.server().capabilities.ttl {
        bail!("the server at {} cannot keep processes without a connection; run without `--detach`", client.address());
    }
    // One block, so that the session also ends if the preparation fails.
    let starting = async {
        let spec = server.spec().map(|(spec, _)| spec);
        let prepared =
            start::prepare(args, Some(&client), server_kind, spec, run::choose_id(args, &client).await?).await?;
        let started = client.start(prepared.start).await;
        if let (Ok(process), Some(grants)) = (&started, &prepared.grants) {
            sandbox::report(grants, process)?;
        }
        anyhow::Ok(started)
    };
    let started = starting.await;
    if !matches!(started, Ok(Ok(_))) {
        connect::end(&client).await;
    }
    let process = match started? {
        Ok(process) => process,
        Err(error) => return Ok(run::report_not_started(error, args)),
    };
    let id = process.id().as_str().to_owned();
    let session_id = process.session_id().map(|session| session.to_string());
    let pid = process.pid();
    drop(process);
    report_bounds(args, client.server().session_ttl);
    // Close the connection in order, so that no message is still in flight when we exit.
    client.close().await;
    if args.json {
        let started = serde_json::to_string(&StartedJson { process_id: &id, session_id, pid })?;
        print::json(&format!("{started}\n")).ok(); // If stdout is closed, the reader has gone.
    } else {
        print::line(&id).ok(); // As above.
    }
    Ok(0)
}

/// Reports which output the server will not keep, and when it will end the session.
fn report_bounds(args: &args::RunArgs, ttl: Option<Ttl>) {
    if !args.drop_oldest && !args.keep_all {
        report!("once the disk quota is full, new output replaces the oldest; --keep-all blocks the program instead");
    }
    if let Some(Ttl::Ms(ms)) = ttl {
        let ttl = duration_text(Duration::from_millis(ms));
        report!("the server ends the process after {ttl} without a client (limit: its `--session-ttl`)");
    }
}

/// Formats a duration in the largest unit that divides it and yields a count of at least 2.
fn duration_text(time: Duration) -> String {
    let units = [(86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "seconds")];
    let ms = time.as_millis();
    let fits = units.into_iter().find(|(unit, _)| ms >= 2 * unit && ms.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{ms} milliseconds"), |(unit, name)| format!("{} {name}", ms / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_printed_in_its_largest_whole_unit() {
        let of = |seconds| duration_text(Duration::from_secs(seconds));
        assert_eq!(
            [of(30 * 86_400), of(86_400), of(7200), of(3600), of(90), of(1)],
            ["30 days", "24 hours", "2 hours", "60 minutes", "90 seconds", "1000 milliseconds"]
        );
    }
}
