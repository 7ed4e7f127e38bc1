//! `exec-server mcp bridge`: an MCP server on our standard streams whose process runs on an executor, or on this machine.
//!
//! ```text
//!  MCP client ──stdin──▶ bridge ──writes by id──▶ executor ──▶ MCP server
//!             ◀─stdout──        ◀──log, cursor───          ◀──
//! ```
//! Bytes are copied unchanged and messages are never parsed. The client library delivers each byte once and in order,
//! through cut links and restarts of the executor's server, so each message arrives once and whole. Stdout carries only
//! what the MCP server wrote.
//!
//! Failure paths:
//! - The link breaks: the bridge prints one line on stderr and continues after the reconnect.
//! - The session is lost or output is missing: the bridge ends, because half a message is worse than none.
//! - The bridge itself dies: the executor ends the server after the session's time-to-live (`--keep`).

mod forward;
mod stderr;

use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use exec_server_client::{
    Client, ConnectionState, Start,
    local::{Local, LocalConfig},
    protocol::{initialize::Ttl, process::Overflow},
};
use exec_server_mcp::{
    config::{EnvSource, EnvVar, StdioConfig},
    env::{self, EnvError, LaunchEnv, Variables},
};

use crate::{
    args, codes, connect,
    connect::Server,
    env_token, ids, link, print, runtime,
    signals::SignalStream,
    start::{self, ServerKind},
    streams::OutputEnd,
};
use forward::{BridgeForwarder, BridgeOutcome, EndReason};

/// Copies until either side ends, then ends the session.
pub(crate) fn run(args: &args::BridgeArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    let server = Server::find(&args.connect, token)?;
    runtime::block_on_here(async {
        // Register the handlers first, so that an early signal also ends a server that is being started.
        let signals = SignalStream::for_ending().context("listen to signals")?;
        let code = match server {
            None => embedded(args, signals).await?,
            Some(server) => remote(args, &server, signals).await?,
        };
        Ok(ExitCode::from(code))
    })
}

/// Runs the MCP server on an executor embedded in this program. The MCP server ends soon after this program, even with `--keep`, because
/// no later bridge could resume it.
async fn embedded(args: &args::BridgeArgs, signals: SignalStream) -> anyhow::Result<u8> {
    let start = build(args, ServerKind::Embedded)?;
    let local =
        Local::start(LocalConfig { name: "exec-server mcp bridge".to_owned(), ..LocalConfig::default() }).await?;
    let end = drive(local.client(), start, signals).await;
    local.end().await;
    code(end?)
}

async fn remote(args: &args::BridgeArgs, server: &Server, mut signals: SignalStream) -> anyhow::Result<u8> {
    let start = build(args, ServerKind::Remote)?;
    let keep_ms = u64::try_from(args.keep.as_millis()).unwrap_or(u64::MAX);
    let opening = server.open(|builder| builder.ttl(Ttl::Ms(keep_ms)));
    // Both futures are cancel-safe. A half-opened session has no process and ends by its time-to-live.
    let client = tokio::select! {
        opened = opening => opened?,
        number = signals.next_number() => return Ok(codes::of_signal(number)),
    };
    if !client.server().capabilities.ttl {
        report!("the executor at {} does not support `--keep` and uses a time limit of its own", client.address());
    }
    let report = |text: &str| report!("{text}");
    let end = link::report_during(std::slice::from_ref(&client), report, drive(&client, start, signals)).await;
    // A lost session cannot be ended, and it no longer contains anything. In a live session the MCP server may still run, even if `drive`
    // failed, so end the session.
    if !matches!(client.state(), ConnectionState::Lost { .. }) && !connect::end(&client).await {
        report!("{} is unreachable; it ends the MCP server after `--keep`", client.address());
    }
    code(end?)
}

/// Builds the start request, with the environment that every MCP server on an executor gets.
fn build(args: &args::BridgeArgs, server_kind: ServerKind) -> anyhow::Result<Start> {
    let id = ids::generate(args.argv.first().map_or("", String::as_str));
    let mut start = Start::new(args.argv.iter().map(String::as_str))
        .id(id)
        .pipe_stdin(true)
        // Override the executor's default: it is better that the server waits than that a message is lost.
        .overflow(Overflow::Block);
    match (args.cwd.as_deref(), server_kind) {
        (None, ServerKind::Remote) => {}
        // The start is built before connecting. The executor's working directory is not known yet, so a relative path cannot be resolved.
        (Some(given), ServerKind::Remote) => {
            if !given.is_absolute() && !given.to_string_lossy().starts_with("file:") {
                bail!("`--cwd {}` is relative; on a server it must be absolute", given.display());
            }
            start = start.cwd(given);
        }
        (given, ServerKind::Embedded | ServerKind::PerUser) => start = start.cwd(start::local_directory(given)?),
    }
    // The variables of this program.
    let ours: Variables = std::env::vars_os().collect();
    for (name, value) in &args.env {
        if value.is_none() && !ours.contains_key(std::ffi::OsStr::new(name)) {
            report!("`--env {name}`: not set here, so the MCP server does not get it");
        }
    }
    let LaunchEnv { policy, env } = environment(&args.env, &args.env_remote, server_kind, &ours)?;
    start = start.env_policy(Some(policy));
    Ok(env.into_iter().fold(start, |start, (name, value)| start.env(name, value)))
}

/// The environment of the server, by the same rules as for configured servers. For a local server the executor is this machine, so its
/// variables are ours.
fn environment(
    given: &[(String, Option<String>)],
    remote: &[String],
    server_kind: ServerKind,
    ours: &Variables,
) -> anyhow::Result<LaunchEnv> {
    let is_remote = server_kind == ServerKind::Remote;
    let mut stdio = StdioConfig::default();
    for (name, value) in given {
        match value {
            Some(value) => drop(stdio.env.insert(name.clone(), value.clone())),
            None => stdio.env_vars.push(EnvVar { name: name.clone(), source: EnvSource::Local }),
        }
    }
    let source = if is_remote { EnvSource::Remote } else { EnvSource::Local };
    stdio.env_vars.extend(remote.iter().map(|name| EnvVar { name: name.clone(), source }));
    let environment = if is_remote { env::executor(&stdio, ours) } else { env::local(&stdio, ours) };
    environment.map_err(|error| match error {
        EnvError::NotText { name } => anyhow!("`--env {name}`: its value is not UTF-8; pass `--env {name}=VALUE`"),
        error => error.into(),
    })
}

/// Starts the MCP server and runs it to its end. An error means that the state of the server is unknown.
async fn drive(client: &Client, start: Start, mut signals: SignalStream) -> anyhow::Result<BridgeOutcome> {
    let started = tokio::select! {
        started = client.start(start) => started,
        // Dropping the future cancels the start. If the server was started anyway, it ends with the session.
        number = signals.next_number() => return Ok(BridgeOutcome::Stopped(EndReason::Signal(number))),
    };
    let process = match started {
        Ok(process) => process,
        Err(error) => return Ok(BridgeOutcome::NotStarted(error)),
    };
    let outcome = BridgeForwarder::new(client, process, signals).run().await;
    outcome.with_context(|| format!("the MCP server at {} is lost; restart it from the MCP client", client.address()))
}

/// Returns the exit code, and prints what the code alone does not say.
fn code(outcome: BridgeOutcome) -> anyhow::Result<u8> {
    match outcome {
        BridgeOutcome::NotStarted(error) => {
            let code = codes::of_start(&error);
            print::error(&error.into());
            Ok(code)
        }
        BridgeOutcome::Ended(exit) => {
            let ended = OutputEnd { exit: Some(exit), stdout_closed: false };
            ended.explain();
            Ok(ended.code())
        }
        BridgeOutcome::Stopped(EndReason::Input) => Ok(0),
        BridgeOutcome::Stopped(EndReason::Output(None)) => Ok(codes::CLOSED_PIPE),
        BridgeOutcome::Stopped(EndReason::Output(Some(error))) => Err(error).context("write standard output"),
        BridgeOutcome::Stopped(EndReason::Signal(number)) => Ok(codes::of_signal(number)),
        BridgeOutcome::Stopped(EndReason::Refused(error)) => Err(error).context("forward a message to the MCP server"),
    }
}

#[cfg(test)]
mod tests {
    use exec_server_client::protocol::process::Inherit;

    use super::*;

    #[test]
    fn core_variables_are_inherited_and_others_only_by_name() {
        let ours: Variables =
            [("TZ", "UTC"), ("A", "a"), ("B", "b")].map(|(name, value)| (name.into(), value.into())).into();
        let given = [("A".to_owned(), None), ("C".to_owned(), Some("c".to_owned()))];
        let remote = environment(&given, &[], ServerKind::Remote, &ours).expect("made");
        assert_eq!((remote.policy.inherit, remote.policy.ignore_default_excludes), (Inherit::Core, true));
        assert_eq!(remote.env.into_iter().collect::<Vec<_>>(), [("A", "a"), ("C", "c")].map(texts));
        let more = environment(&[], &["API_KEY".to_owned()], ServerKind::Remote, &ours).expect("made").policy;
        assert_eq!(more.inherit, Inherit::All);
        for name in ["PATH", "TZ", "TERM", "API_KEY"] {
            assert!(more.include_only.contains(&name.to_owned()), "{name}");
        }
        let local = environment(&[], &["B".to_owned()], ServerKind::Embedded, &ours).expect("made");
        assert_eq!(local.policy.inherit, Inherit::None);
        assert_eq!(local.env.into_iter().collect::<Vec<_>>(), [("B", "b"), ("TZ", "UTC")].map(texts));
    }

    fn texts((name, value): (&str, &str)) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }
}
