//! `exec-server run --detach`: starts a program, says its id, and leaves it without a time limit.
//! Must not carry any bytes.

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
