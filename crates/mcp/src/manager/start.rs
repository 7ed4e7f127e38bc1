//! One attempt to get a server ready: connect to its executor, start or reach the server, do the handshake, and list its tools.
//!
//! The startup timeout of the server's configuration applies to each of three steps: connecting, starting with the handshake, and listing
//! the tools. A started process is stored in a variable of the caller, so that the caller can end it if the attempt fails or is
//! cancelled. `server` repeats whole attempts.

use std::{collections::BTreeMap, ffi::OsString, sync::Arc, time::Duration};

use exec_server_client::{self as client, Client, ConnectionState, ErrorKind, environment::Backend};
use rmcp::{
    RoleClient, ServiceExt as _,
    model::{ProtocolVersion, ServerResult, Tool},
    service::{ClientInitializeError, RunningService},
};
use tokio::{
    sync::broadcast,
    time::{self, Instant},
};

use super::{
    Settings,
    connection::ServerConnection,
    error::Error,
    handler::{ConnectionHandler, ConnectionShared},
    hosts::{HostSlot, Hosts},
    list,
    server::ManagedServer,
    state::{ServerStatus, ServerUpdate},
};
use crate::{
    config::{HttpConfig, ServerTransport, StdioConfig},
    http::{Endpoint, HttpError, chain},
    launch::{self, Launch},
    transport::{EXIT_GRACE, ServerProcess, StreamEnd},
};

const INITIALIZE: &str = "initialize";

/// How long to retry an executor that cannot be reached. Short, so that a mistake in its address is reported soon.
const RETRY_FOR: Duration = Duration::from_secs(10);

/// The first and the longest pause between two attempts.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(2);

/// Shared by all servers of a manager.
pub(super) struct ManagerContext {
    pub(super) settings: Settings,
    pub(super) hosts: Arc<Hosts>,
    pub(super) updates: broadcast::Sender<ServerUpdate>,
}

/// A server that has become ready.
pub(super) struct ReadyServer {
    pub(super) running: RunningService<RoleClient, ConnectionHandler>,
    pub(super) connection: Arc<ServerConnection>,
    pub(super) tools: Vec<Tool>,
    /// The process. `None` for an HTTP server.
    pub(super) child: Option<Arc<ServerProcess>>,
    /// The client of the executor that makes the requests. `None` for a stdio server.
    pub(super) client: Option<Client>,
}

/// Makes one attempt. `child` is set as soon as the process exists.
pub(super) async fn start(
    server: &ManagedServer,
    context: &ManagerContext,
    child: &mut Option<Arc<ServerProcess>>,
) -> Result<ReadyServer, Error> {
    let slot = context.hosts.find(&server.config.placement);
    let slot = slot.map_err(|source| Error::Place { server: server.name.clone(), source })?;
    match &server.config.transport {
        ServerTransport::Stdio(stdio) => start_stdio(server, context, &slot, stdio, child).await,
        ServerTransport::Http(http) => start_http(server, context, &slot, http).await,
    }
}

async fn start_stdio(
    server: &ManagedServer,
    context: &ManagerContext,
    slot: &HostSlot,
    stdio: &StdioConfig,
    child: &mut Option<Arc<ServerProcess>>,
) -> Result<ReadyServer, Error> {
    let name = || server.name.clone();
    let within = server.config.startup_timeout;
    let backend = open(server, slot).await?;
    let until = Instant::now() + within;
    let launch = Launch {
        name: &server.name,
        stdio,
        variables: &context.settings.variables,
        cwd: context.settings.cwd.as_deref(),
        log: Arc::clone(&server.log),
    };
    let transport = time::timeout_at(until, launch::launch(&backend, launch)).await;
    let transport = transport
        .map_err(|_| Error::HostTimeout { server: name(), host: slot.host.id.clone(), within })?
        .map_err(|source| Error::Launch { server: name(), source: Box::new(source) })?;
    // Drop the backend now: `Hosts::end` can end a local back end cleanly only if it has the last reference.
    drop(backend);
    let shared = Arc::<ConnectionShared>::default();
    let transport = {
        let shared = Arc::clone(&shared);
        transport.raw(move |progress| shared.report_progress(progress))
    };
    let process = Arc::clone(transport.child());
    *child = Some(Arc::clone(&process));
    let handler = handler(server, context, &shared);
    let running = match time::timeout_at(until, handler.serve(transport)).await {
        Ok(Ok(running)) => running,
        Ok(Err(error)) => return Err(handshake_error(server, &process, error).await),
        Err(_) => return Err(startup_timeout(server, INITIALIZE, within, process.recent_output())),
    };
    let talk = || process.recent_output();
    let ready_server = tokio::select! {
        biased;
        ready = finish_start(server, running, shared, within, &talk) => ready?,
        ended = wait_for_end(&process) => {
            let ended = Box::new(ended);
            return Err(Error::EndedAtStart { server: name(), method: "tools/list", ended, talk: talk() });
        }
    };
    Ok(ReadyServer { child: Some(process), ..ready_server })
}

async fn start_http(
    server: &ManagedServer,
    context: &ManagerContext,
    slot: &HostSlot,
    http: &HttpConfig,
) -> Result<ReadyServer, Error> {
    let failed = |error: HttpError| http_error(&server.name, &error);
    let within = server.config.startup_timeout;
    // Keep only the client: `Hosts::end` can end a local back end cleanly only if it has the last reference.
    let client = open(server, slot).await?.client().clone();
    // A header must be text, so variables that are not UTF-8 are left out.
    let text = |(name, value): (&OsString, &OsString)| Some((name.to_str()?.to_owned(), value.to_str()?.to_owned()));
    let variables: BTreeMap<String, String> = context.settings.variables.iter().filter_map(text).collect();
    let transport = Endpoint::read(http, &variables).and_then(|endpoint| endpoint.transport(client.clone()));
    let transport = transport.map_err(failed)?;
    let shared = Arc::<ConnectionShared>::default();
    let running = match time::timeout(within, handler(server, context, &shared).serve(transport)).await {
        Ok(Ok(running)) => running,
        Ok(Err(error)) => return Err(or_executor_error(server, &client, failed(HttpError::of_start(&error)))),
        Err(_) => {
            return Err(or_executor_error(server, &client, startup_timeout(server, INITIALIZE, within, String::new())));
        }
    };
    match finish_start(server, running, shared, within, &String::new).await {
        Ok(ready_server) => Ok(ReadyServer { client: Some(client), ..ready_server }),
        Err(error) => Err(or_executor_error(server, &client, error)),
    }
}

/// Converts an HTTP error. For missing authentication the text says how to provide a token.
pub(super) fn http_error(server: &str, error: &HttpError) -> Error {
    let server = server.to_owned();
    match error {
        HttpError::AuthenticationRequired { .. } => {
            let reason = format!(
                "{error}; put a token for this server into an environment variable, and set `bearer_token_env_var` of \
                 `[mcp_servers.{server}]` to the name of the variable"
            );
            Error::AuthenticationRequired { server, reason }
        }
        other => Error::Http { server, reason: other.to_string() },
    }
}

/// Connects to the server's executor within the startup timeout. The executor may be starting at the same time, so a failed connection is
/// retried for a while.
async fn open(server: &ManagedServer, slot: &HostSlot) -> Result<Backend, Error> {
    let name = || server.name.clone();
    let within = server.config.startup_timeout;
    let until = Instant::now() + within;
    // If the server was ready before, the caller repeats the attempt anyway.
    let is_first = server.status() == ServerStatus::Starting { restarts: 0 };
    let retry_until = Instant::now() + if is_first { within.min(RETRY_FOR) } else { Duration::ZERO };
    let mut pause = RETRY_FIRST;
    let mut last = None;
    loop {
        let error = match time::timeout_at(until, slot.backend()).await {
            Ok(Ok(backend)) => return Ok(backend),
            Ok(Err(source)) => Error::Host { server: name(), source },
            // The previous error, if any, says more than a timeout.
            Err(_) => {
                let timed_out = || Error::HostTimeout { server: name(), host: slot.host.id.clone(), within };
                return Err(last.unwrap_or_else(timed_out));
            }
        };
        // An executor that is still starting can cause these errors.
        let is_transient = |source: &client::Error| {
            matches!(source.kind(), ErrorKind::Connect | ErrorKind::ConnectTimeout | ErrorKind::Disconnected)
        };
        let can_retry = matches!(&error, Error::Host { source, .. } if is_transient(source));
        if !can_retry || Instant::now() + pause >= retry_until {
            return Err(error);
        }
        time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_LONGEST);
        last = Some(error);
    }
}

/// Returns the executor's error instead of `error` if the connection to the executor is broken: then that is the cause.
fn or_executor_error(server: &ManagedServer, client: &Client, error: Error) -> Error {
    let source = match client.state() {
        ConnectionState::Recovering { reason } => client::Error::Disconnected { reason: Some(reason) },
        ConnectionState::Lost { error } => error,
        _ => return error,
    };
    Error::Host { server: server.name.clone(), source }
}

fn handler(server: &ManagedServer, context: &ManagerContext, shared: &Arc<ConnectionShared>) -> ConnectionHandler {
    ConnectionHandler {
        server: server.name.clone(),
        client_name: context.settings.client_name.clone(),
        elicit: context.settings.elicit.clone(),
        shared: Arc::clone(shared),
    }
}

/// Finishes the start after the handshake: checks the protocol version and lists the tools.
async fn finish_start(
    server: &ManagedServer,
    running: RunningService<RoleClient, ConnectionHandler>,
    shared: Arc<ConnectionShared>,
    within: Duration,
    talk: &(dyn Fn() -> String + Send + Sync),
) -> Result<ReadyServer, Error> {
    let connection = ServerConnection::new(server, running.peer().clone(), shared);
    if let Some(info) = &connection.info
        && !ProtocolVersion::KNOWN_VERSIONS.contains(&info.protocol_version)
    {
        let reason = format!("it speaks MCP `{}`, which is not supported", info.protocol_version);
        return Err(Error::Handshake { server: server.name.clone(), reason, talk: String::new() });
    }
    let tools = match list::list(&connection, list::TOOLS, within).await {
        Ok(tools) => tools,
        // A timeout here is that of the start, not of a call.
        Err(Error::Timeout { .. }) => return Err(startup_timeout(server, "tools/list", within, talk())),
        Err(error) => return Err(error),
    };
    Ok(ReadyServer { running, connection: Arc::new(connection), tools, child: None, client: None })
}

fn startup_timeout(server: &ManagedServer, method: &'static str, within: Duration, talk: String) -> Error {
    Error::StartupTimeout { server: server.name.clone(), method, within, talk }
}

/// The error of a failed handshake with a program.
async fn handshake_error(server: &ManagedServer, process: &ServerProcess, error: ClientInitializeError) -> Error {
    let name = server.name.clone();
    if matches!(error, ClientInitializeError::TransportError { .. }) {
        // The process does not accept messages, so it is probably exiting. Wait for its exit code and its last output.
        process.drain_output(EXIT_GRACE).await;
    }
    let talk = process.recent_output();
    if let Some(ended) = process.ended().borrow().clone() {
        return Error::EndedAtStart { server: name, method: INITIALIZE, ended: Box::new(ended), talk };
    }
    let reason = match error {
        ClientInitializeError::JsonRpcError(error) => {
            format!("the server refused it: {} ({})", error.message, error.code.0)
        }
        ClientInitializeError::ExpectedInitResult(Some(ServerResult::CustomResult(result))) => {
            let read = serde_json::from_value::<rmcp::model::InitializeResult>(result.0);
            let why = read.err().map_or_else(String::new, |error| format!(": {error}"));
            format!("the answer to `{INITIALIZE}` cannot be parsed{why}")
        }
        other => chain(&other),
    };
    Error::Handshake { server: name, reason, talk }
}

/// Waits until the stream of a process has ended.
pub(super) async fn wait_for_end(process: &ServerProcess) -> StreamEnd {
    // Cannot fail: the sender lives as long as the process handle.
    let mut ended = process.ended();
    let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
    end.unwrap_or(StreamEnd::Closed)
}
