//! `exec-server mcp serve`: offers this machine, or a remote executor, as an MCP server. Connects executor, token and transport, and shuts
//! them down in order.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context as _, bail};
use exec_server_client::{
    Client, Token as ClientToken,
    local::{Local, LocalConfig},
    protocol::{initialize::Ttl, process::Inherit},
};
use exec_server_mcp::serve::{
    self, ExecutorSession, McpServer, OpenSession, ServeConfig,
    http::{GateVerdict, HttpGate},
};
use exec_server_server::{
    access::Access,
    admission::{Admission, AdmissionConfig, AdmissionDecision},
    state_dir::Token,
};
use http::request::Parts;
use rustix::process::DumpableBehavior;
use tokio::net::TcpListener;
use zeroize::Zeroizing;

use crate::{
    args, connect, connect::Server, env_token, ids, link, print, runtime, signals::SignalStream, state_location,
};

/// How long the executor keeps our processes if we disappear without ending the session.
const KEEP_MS: u64 = 5 * 60 * 1000;

/// Serves until the client disconnects or a signal ends it.
pub(crate) fn run(args: &args::McpServeArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    if let Some(address) = args.http {
        check_exposure(address, args.connect.insecure_plaintext)?;
        // Processes that we start must not be able to read the token from our memory.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .context("make our memory unreadable for other processes")?;
    }
    let from_env = token.map(env_token::StoredToken::read).transpose().context("read the stored token")?;
    let client_token = from_env.as_ref().map(|value| ClientToken::new(value.as_slice()));
    let client_token =
        client_token.transpose().with_context(|| format!("read the token from `{}`", env_token::NAME))?;
    let server = Server::find_with(&args.connect, client_token)?;
    let is_here = server.is_none();
    let http_token = args.http.map(|_| find_token(args, from_env.filter(|_| is_here), is_here)).transpose()?;
    runtime::block_on(async {
        // Before anything is started, so that an early signal also causes an orderly shutdown.
        let signals = SignalStream::for_ending().context("listen to signals")?;
        match server {
            None => {
                // Each MCP session gets an embedded server. That is the simplest way to end everything with the session, and it costs one
                // directory.
                let config = LocalConfig { name: "exec-server mcp serve".to_owned(), ..LocalConfig::default() };
                let open: OpenSession = Box::new(move || {
                    let config = config.clone();
                    Box::pin(async move {
                        let local = Local::start(config).await?;
                        Ok(ExecutorSession { client: local.client().clone(), end: Box::pin(local.end()) })
                    })
                });
                // Local programs inherit our variables, except those that look like secrets.
                serve(args, http_token, open, Inherit::All, signals).await
            }
            Some(server) => remote(args, http_token, server, signals).await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn remote(
    args: &args::McpServeArgs,
    token: Option<Token>,
    server: Server,
    signals: SignalStream,
) -> anyhow::Result<()> {
    let server = Arc::new(server);
    // Connect once before serving, so that an unreachable server is reported at once. The first MCP session uses this connection.
    let first = open(&server).await?;
    let unused = Arc::new(parking_lot::Mutex::new(Some(first.clone())));
    let open_session: OpenSession = Box::new(move || {
        let server = Arc::clone(&server);
        let unused = Arc::clone(&unused);
        Box::pin(async move {
            let first = unused.lock().take();
            let client = match first {
                Some(first) => first,
                None => open(&server).await?,
            };
            let ending = client.clone();
            Ok(ExecutorSession { client, end: Box::pin(async move { _ = connect::end(&ending).await }) })
        })
    });
    let report = |text: &str| report!("{}", ids::clean(text));
    let work = serve(args, token, open_session, Inherit::Core, signals);
    let served = link::report_during(std::slice::from_ref(&first), report, work).await;
    // If a signal came before the first session, this client was never used and must be ended here. Otherwise it was already ended, and
    // this call does nothing.
    connect::end(&first).await;
    served
}

async fn open(server: &Server) -> Result<Client, exec_server_client::Error> {
    server.open(|builder| builder.ttl(Ttl::Ms(KEEP_MS))).await
}

/// Serves the executor that `open` connects to.
async fn serve(
    args: &args::McpServeArgs,
    token: Option<Token>,
    open: OpenSession,
    inherit: Inherit,
    mut signals: SignalStream,
) -> anyhow::Result<()> {
    // Only an embedded server inherits all variables. A remote executor protects its own files, and our local paths mean nothing there.
    let is_here = inherit == Inherit::All;

    // Bind before `McpServer::new` opens a session on the executor, so that early clients queue in the backlog.
    let listener = match args.http {
        Some(address) => Some(TcpListener::bind(address).await.with_context(|| format!("listen on `{address}`"))?),
        None => None,
    };
    let config = ServeConfig {
        open,
        read_only: args.read_only,
        root: args.root.clone(),
        readable: args.readable.clone(),
        writable_git: args.writable_git,
        hidden: if is_here { secrets(args) } else { Vec::new() },
        inherit,
    };
    let server = tokio::select! {
        server = McpServer::new(config) => server?,
        () = signals.shutdown() => return Ok(()),
    };
    let served = async {
        match (listener, token) {
            (Some(listener), Some(token)) => serve_http(args, &server, listener, token).await,
            _ => {
                server.serve_streams(tokio::io::stdin(), tokio::io::stdout()).await;
                Ok(())
            }
        }
    };
    let ended = async {
        signals.shutdown().await;
        server.end();
        std::future::pending::<()>().await
    };
    // `ended` never completes: on a signal it ends the sessions, and then `served` runs to its end. So `served` is never dropped early.
    let served = tokio::select! {
        served = served => served,
        () = ended => Ok(()),
    };
    server.close().await;
    served
}

async fn serve_http(
    args: &args::McpServeArgs,
    server: &Arc<McpServer>,
    listener: TcpListener,
    token: Token,
) -> anyhow::Result<()> {
    let local = listener.local_addr().context("find the address")?;
    let access = Arc::new(Access::new(token.digest()));
    let admission = Admission::new(AdmissionConfig {
        access,
        allowed_hosts: args.allow_host.clone(),
        ..AdmissionConfig::default()
    });
    let token = crate::serve::percent_encode(token.reveal());
    // The server runs also if stdout is closed.
    print::line(&format!("http://{local}{}?token={token}", serve::http::PATH)).ok();
    serve::http::serve(server, listener, Arc::new(AdmissionGate(admission)), args.session_idle)
        .await
        .context("serve HTTP")
}

/// Applies the admission rules of `exec-server serve` to MCP requests.
struct AdmissionGate(Admission);

impl HttpGate for AdmissionGate {
    fn check(&self, head: &Parts, local: SocketAddr) -> GateVerdict {
        let headers: Vec<(&str, &[u8])> =
            head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        match self.0.check_request(local, target, &headers) {
            AdmissionDecision::Admitted(_) => GateVerdict::Admitted,
            AdmissionDecision::Forbidden => GateVerdict::Forbidden,
            AdmissionDecision::Unauthorized => GateVerdict::Unauthorized,
        }
    }
}

/// The token that clients must present: from `--http-token-file`; else from `--token-file` or `EXEC_SERVER_TOKEN`, unless those are for the
/// executor that we connect to; else a new one.
fn find_token(args: &args::McpServeArgs, from_env: Option<Zeroizing<Vec<u8>>>, is_here: bool) -> anyhow::Result<Token> {
    let file = args.http_token_file.as_ref().or(args.connect.token_file.as_ref().filter(|_| is_here));
    if let Some(file) = file {
        return Ok(Token::from_file(file)?);
    }
    match from_env {
        Some(value) => Token::parse(&value).with_context(|| format!("read the token from `{}`", env_token::NAME)),
        None => Ok(Token::generate()?),
    }
}

/// Secret files to hide from MCP clients: token files, systemd credentials, and the state directories of this user's servers.
fn secrets(args: &args::McpServeArgs) -> Vec<PathBuf> {
    let files = [&args.http_token_file, &args.connect.token_file].into_iter().flatten().cloned();
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    crate::serve::absolute(files.chain(credentials).chain(state_location::state_home().ok()))
}

/// Refuses to send a token over a network in plaintext unless the user explicitly allows it.
fn check_exposure(address: SocketAddr, insecure_plaintext: bool) -> anyhow::Result<()> {
    if address.ip().to_canonical().is_loopback() || insecure_plaintext {
        return Ok(());
    }
    bail!(
        "`--http {address}` is reachable from other machines and has no TLS: use a loopback address, or pass \
         `--insecure-plaintext` if a TLS proxy stands in front of it"
    )
}
