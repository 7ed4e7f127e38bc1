//! `exec-server run --detach`: starts a program, prints its id, and leaves it for as long as the server lets it. What the server does not keep
//! (output beyond the quota, a session that nobody uses) is said on stderr. Must not carry any bytes.

use std::time::Duration;

use anyhow::bail;
use exec_server_client::protocol::initialize::Ttl;
use serde::Serialize;

use crate::{
    args, codes, connect,
    connect::Server,
    run, sandbox, say,
    start::{self, Host, Place},
};

/// What a script wants to know of it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Started<'a> {
    process_id: &'a str,
    session_id: Option<String>,
    pid: Option<u32>,
}

/// Starts it on the server, or without one on the user's own.
pub(crate) async fn run(args: &args::Run, server: Option<Server>) -> anyhow::Result<u8> {
    let (server, place) = match server {
        Some(server) => (server, Place::Remote),
        None => (Server::per_user(&args.connect)?, Place::PerUser),
    };
    let client = server.open(|builder| builder.ttl(Ttl::Unlimited)).await?;
    if !client.server().capabilities.ttl {
        bail!(
            "the server at {} does not keep processes without a connection: run it without `--detach`",
            client.address()
        );
    }
    let host = Host { client: &client, place, spec: server.spec().map(|(spec, _)| spec) };
    let prepared = async { start::prepare(args, host, run::name(args, &client).await?).await };
    let (started, grants) = match prepared.await {
        Ok(prepared) => (client.start(prepared.start).await, prepared.grants),
        Err(error) => {
            connect::end(&client).await;
            return Err(error);
        }
    };
    match started {
        Ok(process) => {
            if let Some(grants) = &grants
                && let Err(error) = sandbox::report(grants, &process)
            {
                connect::end(&client).await;
                return Err(error);
            }
            let id = process.id().as_str().to_owned();
            let session_id = process.session_id().map(|session| session.to_string());
            let pid = process.pid();
            drop(process);
            report_bounds(args, client.server().session_ttl);
            // In order, so that nothing of it is under way any more.
            client.close().await;
            if args.json {
                let started = serde_json::to_string(&Started { process_id: &id, session_id, pid })?;
                say::json(&format!("{started}\n")).ok(); // Nobody is there to be told.
            } else {
                say::line(&id);
            }
            Ok(0)
        }
        Err(error) => {
            connect::end(&client).await;
            let code = codes::of_start(&error);
            run::say_not_started(error, args);
            Ok(code)
        }
    }
}

/// Says what will not be kept.
fn report_bounds(args: &args::Run, ttl: Option<Ttl>) {
    if !args.drop_oldest && !args.keep_all {
        say::talk(
            "exec-server: at the disk quota the oldest output is dropped; with --keep-all the program waits instead",
        );
    }
    if let Some(Ttl::Ms(ms)) = ttl {
        let ttl = span(Duration::from_millis(ms));
        say::talk(format_args!("exec-server: the server ends it after {ttl} without use (`--session-ttl` there)"));
    }
}

/// A time in the largest unit that it is a whole number of.
fn span(time: Duration) -> String {
    let units = [(86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "seconds")];
    let ms = time.as_millis();
    let fits = units.into_iter().find(|(unit, _)| ms >= 2 * unit && ms.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{ms} milliseconds"), |(unit, name)| format!("{} {name}", ms / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_told_in_its_largest_whole_unit() {
        let of = |seconds| span(Duration::from_secs(seconds));
        assert_eq!(
            [of(30 * 86_400), of(86_400), of(7200), of(3600), of(90), of(1)],
            ["30 days", "24 hours", "2 hours", "60 minutes", "90 seconds", "1000 milliseconds"]
        );
    }
}
