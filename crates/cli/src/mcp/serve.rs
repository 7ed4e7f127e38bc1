//! `exec-server mcp serve`: this machine, or a server, as an MCP server. Puts executor, token and transport together, and ends them in order.
//! Must not know MCP.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context as _, bail};
use exec_server_client::{
    Client, Token as ClientToken,
    local::{Local, LocalConfig},
    protocol::{initialize::Ttl, process::Inherit},
};
use exec_server_mcp::serve::{
    self, Config, Open, Opened, Server as McpServer,
    http::{Gate, Verdict},
};
use exec_server_server::{
    access::Access,
    door::{Door, DoorConfig, Judgement},
    state_dir::Token,
};
use http::request::Parts;
use rustix::process::DumpableBehavior;
use tokio::net::TcpListener;
use zeroize::Zeroizing;

use crate::{args, connect, connect::Server, env_token, ids, link, place, runtime, say, serve::Signals};

/// How long a server keeps what was started for us when we vanish without a word.
const KEEP_MS: u64 = 5 * 60 * 1000;

/// Serves until the client leaves or a signal ends it.
pub(crate) fn run(args: &args::ServeMcp, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    if let Some(address) = args.http {
        check_exposure(address, args.connect.insecure_plaintext)?;
        // What we start must not read the token out of our memory.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).context("close our memory to others")?;
    }
    let from_env = token.map(env_token::Waiting::read).transpose().context("read the token back")?;
    let client_token = from_env.as_ref().map(|value| ClientToken::new(value.as_slice()));
    let client_token = client_token.transpose().with_context(|| format!("use `{}`", env_token::NAME))?;
    let server = Server::find_with(&args.connect, client_token)?;
    let door_token = match args.http {
        Some(_) => Some(find_token(args, from_env.filter(|_| server.is_none()), server.is_none())?),
        None => None,
    };
    runtime::block_on(async {
        // Before anything is started: a signal that comes early must end it in order, too.
        let signals = Signals::new().context("listen to signals")?;
        match server {
            None => {
                // A server of its own for each session is the simplest thing that ends with it, and costs a directory.
                let config = LocalConfig { name: "exec-server mcp serve".to_owned(), ..LocalConfig::default() };
                let open: Open = Box::new(move || {
                    let config = config.clone();
                    Box::pin(async move {
                        let local = Local::start(config).await?;
                        Ok(Opened { client: local.client().clone(), end: Box::pin(local.end()) })
                    })
                });
                // Our own variables, for programs of our own user; those that look like secrets stay here.
                serve(args, door_token, open, Inherit::All, signals).await
            }
            Some(server) => remote(args, door_token, server, signals).await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn remote(args: &args::ServeMcp, token: Option<Token>, server: Server, signals: Signals) -> anyhow::Result<()> {
    let server = Arc::new(server);
    let first = open(&server).await?;
    let unused = Arc::new(std::sync::Mutex::new(Some(first.clone())));
    let opened: Open = Box::new(move || {
        let (server, unused) = (Arc::clone(&server), Arc::clone(&unused));
        Box::pin(async move {
            // Nothing under the lock can panic half-way through a change.
            let first = unused.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            let client = match first {
                Some(first) => first,
                None => open(&server).await?,
            };
            let ending = client.clone();
            Ok(Opened { client, end: Box::pin(async move { connect::end(&ending).await }) })
        })
    });
    let say = |text: &str| say::talk(format_args!("exec-server: {}", ids::clean(text)));
    let work = serve(args, token, opened, Inherit::Core, signals);
    let served = link::telling(std::slice::from_ref(&first), say, work).await;
    // Where a signal came before anything was served nobody has ended it; else this finds it gone.
    connect::end(&first).await;
    served
}

async fn open(server: &Server) -> Result<Client, exec_server_client::Error> {
    server.open(|builder| builder.ttl(Ttl::Ms(KEEP_MS))).await
}

/// Serves the executor that `open` leads to.
async fn serve(
    args: &args::ServeMcp,
    token: Option<Token>,
    open: Open,
    inherit: Inherit,
    mut signals: Signals,
) -> anyhow::Result<()> {
    // The executor of another machine hides its own files; our paths mean nothing there.
    let is_here = inherit == Inherit::All;

    // Bound before the executor is looked at, so that clients queue.
    let listener = match args.http {
        Some(address) => Some(TcpListener::bind(address).await.with_context(|| format!("listen on `{address}`"))?),
        None => None,
    };
    let config = Config {
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
        () = signals.first() => return Ok(()),
    };
    let served = async {
        match (listener, token) {
            (Some(listener), Some(token)) => over_http(args, &server, listener, token).await,
            _ => {
                server.serve_streams(tokio::io::stdin(), tokio::io::stdout()).await;
                Ok(())
            }
        }
    };
    let ended = async {
        signals.first().await;
        server.end();
        std::future::pending::<()>().await
    };
    // What is served is never dropped before its end.
    let served = tokio::select! {
        served = served => served,
        () = ended => Ok(()),
    };
    server.close().await;
    served
}

async fn over_http(
    args: &args::ServeMcp,
    server: &Arc<McpServer>,
    listener: TcpListener,
    token: Token,
) -> anyhow::Result<()> {
    let local = listener.local_addr().context("find the address")?;
    let access = Arc::new(Access::new(token.digest()));
    let door = Door::new(DoorConfig { access, allowed_hosts: args.allow_host.clone(), ..DoorConfig::default() });
    let token = crate::serve::percent_encode(token.reveal());
    say::line(&format!("http://{local}{}?token={token}", serve::http::PATH));
    serve::http::serve(server, listener, Arc::new(Entrance(door)), args.session_idle).await.context("serve HTTP")
}

/// The rules of the server's own door, for MCP.
struct Entrance(Door);

impl Gate for Entrance {
    fn judge(&self, head: &Parts, local: SocketAddr) -> Verdict {
        let headers: Vec<(&str, &[u8])> =
            head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        match self.0.judge(local, target, &headers) {
            Judgement::Admitted(_) => Verdict::Admitted,
            Judgement::Forbidden => Verdict::Forbidden,
            Judgement::Unauthorized => Verdict::Unauthorized,
        }
    }
}

/// The token that clients show: from the flag; from where `serve` has it, unless that is meant for the server we connect to; else a new one.
fn find_token(args: &args::ServeMcp, from_env: Option<Zeroizing<Vec<u8>>>, is_here: bool) -> anyhow::Result<Token> {
    let file = args.http_token_file.as_ref().or(args.connect.token_file.as_ref().filter(|_| is_here));
    if let Some(file) = file {
        return Ok(Token::from_file(file)?);
    }
    match from_env {
        Some(value) => Token::parse(&value).with_context(|| format!("use `{}`", env_token::NAME)),
        None => Ok(Token::generate()?),
    }
}

/// Files of this user's servers and of this one: state directories, which have tokens in them, and tokens that came by file.
fn secrets(args: &args::ServeMcp) -> Vec<PathBuf> {
    let files = [&args.http_token_file, &args.connect.token_file].into_iter().flatten().cloned();
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let all = files.chain(credentials).chain(place::state_home().ok());
    all.filter_map(|path| std::path::absolute(path).ok()).collect()
}

/// Refuses to show a token in clear text to a network without a word that this is meant.
fn check_exposure(address: SocketAddr, insecure_plaintext: bool) -> anyhow::Result<()> {
    if address.ip().to_canonical().is_loopback() || insecure_plaintext {
        return Ok(());
    }
    bail!(
        "`--http {address}` is reachable from other machines and has no TLS: use a loopback address, or pass \
         `--insecure-plaintext` if a TLS proxy stands in front of it"
    )
}
