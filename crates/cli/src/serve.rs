//! `exec-server serve`: assembles a server from its parts, prints where it listens, and shuts it down on a signal.

use std::{
    env,
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    process::{self, ExitCode},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use exec_server_holder::spawner::SpawnerHandle;
use exec_server_server::{
    access::{Access, AccessUpdate},
    admission::{Admission, AdmissionConfig},
    audit::{Anchor, Audit, AuditRecord},
    core::{Config, Core},
    listen::{
        ListenUrl, Server, ServerConfig,
        exposure::{self, ExposureTerms, RequiredAuth},
    },
    state_dir::{SpawnedHolders, StateDir, TOKENS, Token},
    tls::Tls,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use tokio::task::JoinSet;

use crate::{
    args, confine, env_token, kernel,
    listeners::{self, Listener},
    log, notify, print, runtime,
    signals::SignalStream,
    state_location::{self, StateLocation},
};

/// The name of the token among the credentials of a systemd service.
const CREDENTIAL: &str = "exec-server-token";

/// Serves until a signal, `--exit-when-idle`, or EOF on stdin as the only listener ends the server.
pub(crate) fn run(
    mut args: Box<args::ServeArgs>,
    token: Option<env_token::StoredToken>,
    spawner: Option<SpawnerHandle>,
) -> anyhow::Result<ExitCode> {
    // The spawner was forked before the arguments were parsed; see `args::startup_role`.
    let spawner = spawner.context("`serve` must be the first word of the command line")?;
    log::init(&args.log, args.log_format)?;
    if let Some(lack) = kernel::check()? {
        tracing::warn!("{lack}");
    }
    if args.listen.is_empty() {
        args.listen.push(ListenUrl::default());
    }
    exposure::check(&args.listen, &args.terms())?;
    // A sandboxed process of the same user must not be able to read the token from our memory.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("make our memory unreadable for other processes")?;
    let location = StateLocation::find(args.state_dir.as_deref(), &args.listen)?;
    let state = Arc::new(StateDir::open(&location.path)?);
    let ended = serve_from(&args, &location, token, &state, spawner);
    // Also after a failed start: no other server will find this directory again.
    if location.is_private {
        state.remove().with_context(|| format!("remove `{}`", location.path.display()))?;
    }
    ended.map(|()| ExitCode::SUCCESS)
}

fn serve_from(
    args: &args::ServeArgs,
    location: &StateLocation,
    token: Option<env_token::StoredToken>,
    state: &Arc<StateDir>,
    spawner: SpawnerHandle,
) -> anyhow::Result<()> {
    let token = find_token(args, token, state)?;
    let audit = match &args.access.audit {
        Some(file) => {
            let anchors = state_location::of_anchors(location);
            if let Err(error) = &anchors {
                tracing::warn!("the audit log has no anchor, so a truncated end cannot be detected: {error:#}");
            }
            let anchor = anchors.ok().map(|dir| Anchor::path_in(&dir, file));
            Audit::open(file, args.access.audit_mode(), anchor.as_deref())?
        }
        None => Audit::default(),
    };
    audit.record(AuditRecord { pid: Some(process::id()), ..AuditRecord::of("server.start") });
    let tls = args.tls_files().map(Tls::load).transpose()?.map(Arc::new);
    let run_as = args.run_as.as_deref().map(confine::RunAs::find).transpose()?;
    let mut config = confine::settings(args, run_as.as_ref(), state.path(), raise_nofile());
    config.remove_after = orphan_ttl(args, location);
    let cgroups = config.cgroups.clone();
    let holders = Arc::new(SpawnedHolders::new(Arc::clone(state), spawner, config));
    let runtime = runtime::new().context("start the runtime")?;
    let parts = ServerParts { args, location, token, tls, holders, run_as: run_as.as_ref(), audit: audit.clone() };
    let ended = runtime.block_on(serve(parts));
    audit.record(AuditRecord::of("server.stop"));
    audit.close();
    if let Some(cgroups) = cgroups {
        cgroups.remove();
    }
    // A blocking thread may be stuck in a read of stdin, which cannot be interrupted.
    runtime.shutdown_background();
    ended
}

/// The parts of a server, ready to be assembled.
struct ServerParts<'a> {
    args: &'a args::ServeArgs,
    location: &'a StateLocation,
    token: Option<Token>,
    tls: Option<Arc<Tls>>,
    holders: Arc<SpawnedHolders>,
    run_as: Option<&'a confine::RunAs>,
    audit: Audit,
}

async fn serve(parts: ServerParts<'_>) -> anyhow::Result<()> {
    let ServerParts { args, location, token, tls, holders, run_as, audit } = parts;
    // Register the handlers before anything is visible from outside, so that an early signal also causes an orderly shutdown.
    let mut signals = SignalStream::for_ending()?;
    let access = Arc::new(open_access(args, location, token.as_ref())?);
    let config = Config { orphan_ttl: orphan_ttl(args, location), ..core_config(args, run_as, audit.clone())? };
    let core = Core::new(config, holders);
    let admission = Admission::new(AdmissionConfig {
        access: Arc::clone(&access),
        audit: audit.clone(),
        allowed_hosts: args.allow_host.clone(),
        token_beside_certificate: args.terms().auth == Some(RequiredAuth::Token),
    });
    let admission = Arc::new(admission.reporting(Arc::clone(&core) as _));
    let config = ServerConfig {
        dial_socket: Some(location.path.join("dial.sock")),
        stdio_ends_session: location.is_private,
        tls,
    };
    let server = Server::bind(Arc::clone(&core), admission, &args.listen, config)?;
    // The sockets are bound before this, so that clients queue in the backlog. Sessions are adopted before clients are accepted, so that
    // clients find their sessions.
    core.adopt().await.context("adopt the sessions of the previous server")?;
    record_listeners(location, &server, &args.terms());
    let notes = startup_notes(args, location, &server, token.as_ref());
    announce(&server, &args.terms(), token);
    notes.iter().for_each(print::message);
    let mut tasks = JoinSet::new();
    let watching = access
        .watch(move |news| report_token_change(&audit, &news))
        .context("start the thread that watches the token file")?;
    tasks.spawn(watching);
    notify::send_state("READY=1");
    let stopped = async {
        // Both are cancel-safe.
        tokio::select! {
            () = signals.shutdown() => {}
            () = core.retire_after(args.exit_when_idle.unwrap_or_default()), if args.exit_when_idle.is_some() => {
                tracing::info!("idle for long enough, shutting down");
            }
        }
        notify::send_state("STOPPING=1");
    };
    let ended = server.run(stopped).await;
    tracing::debug!(?ended, "drained");
    if args.kill_on_exit || location.is_private {
        core.end_all().await;
    }
    Ok(())
}

/// How long a private state directory, and its sessions without a requested time-to-live, stay after the server was killed.
fn orphan_ttl(args: &args::ServeArgs, location: &StateLocation) -> Option<Duration> {
    location.is_private.then_some(args.orphan_ttl)
}

/// The access rules: clients need the owner's token, an entry in the token file or a certificate; with `--auth none` everyone may connect.
fn open_access(args: &args::ServeArgs, location: &StateLocation, token: Option<&Token>) -> anyhow::Result<Access> {
    if args.terms().auth == Some(RequiredAuth::None) {
        return Ok(Access::open());
    }
    let file = args.access.tokens.clone().unwrap_or_else(|| location.path.join(TOKENS));
    if args.access.tokens.is_some() && !file.exists() {
        message!("warning: `{}` does not exist yet; `exec-server token create` creates it", file.display());
        // Create an empty token file, which means the same as a missing one. A sandbox can hide an existing file, but a sandboxed process could
        // create a missing one. If this fails, such a process cannot create it either, or the directory is missing too.
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).map(drop).ok();
    }
    let access = token.map_or_else(Access::default, |token| Access::new(token.digest()));
    Ok(access.with_file(&file)?)
}

/// Reports to the log and the audit log that the access of a principal has changed, or that the token file cannot be used.
fn report_token_change(audit: &Audit, news: &AccessUpdate) {
    match news {
        AccessUpdate::Changed(change) => {
            tracing::warn!(principal = change.principal, "access {}", change.what);
            let principal = Some(change.principal.clone());
            let reason = Some(change.what.to_owned());
            audit.record(AuditRecord { principal, reason, ..AuditRecord::of("access.change") });
        }
        AccessUpdate::Broken(error) => {
            let source = std::error::Error::source(error).map(ToString::to_string);
            tracing::error!(%error, ?source, "token file reload failed, keeping the previous tokens");
            audit.record(AuditRecord { reason: Some(error.to_string()), ..AuditRecord::of("access.broken") });
        }
    }
}

fn core_config(args: &args::ServeArgs, run_as: Option<&confine::RunAs>, audit: Audit) -> anyhow::Result<Config> {
    let environment: Vec<_> = env::vars_os().filter(|(name, _)| !name.eq_ignore_ascii_case(env_token::NAME)).collect();
    let mut config = Config {
        session_ttl_max: args.session_ttl.0,
        concurrent_requests: args.concurrent_requests,
        environment: match run_as {
            Some(run_as) => run_as.environment(environment),
            None => environment,
        },
        cwd: env::current_dir().ok(),
        audit,
        hidden: secrets(args),
        owner_only: absolute([&args.tls_cert, &args.client_ca].into_iter().flatten().cloned()),
        file_user: run_as.map(confine::RunAs::file_user).transpose()?,
        ..Config::default()
    };
    args.bounds.apply(&mut config);
    Ok(config)
}

/// Files that every sandbox hides, besides the state directory: token and key files, systemd credentials, the file with the named tokens,
/// the audit log with its anchors, and our own sockets.
fn secrets(args: &args::ServeArgs) -> Vec<PathBuf> {
    let socket = |url: &ListenUrl| match url {
        ListenUrl::Unix(path) => Some(path.clone()),
        _ => None,
    };
    let files =
        [&args.token_file, &args.tls_key, &args.access.tokens, &args.access.audit].into_iter().flatten().cloned();
    let credentials = env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let anchors = args.access.audit.as_ref().and_then(|_| state_location::anchors_of_user().ok());
    absolute(files.chain(anchors).chain(args.listen.iter().filter_map(socket)).chain(credentials))
}

pub(crate) fn absolute(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    paths.filter_map(|path| std::path::absolute(path).ok()).collect()
}

/// Records our sockets in the state directory. If this fails, only `token` misses the information.
fn record_listeners(location: &StateLocation, server: &Server, terms: &ExposureTerms) {
    let listener = |url: &ListenUrl| Listener { url: url.to_string(), asks_for_token: terms.asks_for_token(url) };
    let all: Vec<Listener> = server.bound().iter().map(listener).collect();
    if let Err(error) = listeners::write(&location.path, &all) {
        tracing::warn!(%error, "cannot record the listeners in the state directory");
    }
}

/// Notes for stderr: the state directory, and a command that connects to this server. The token itself is printed only on stdout.
fn startup_notes(
    args: &args::ServeArgs,
    location: &StateLocation,
    server: &Server,
    token: Option<&Token>,
) -> Vec<String> {
    let socket = server.bound().iter().find(|url| **url != ListenUrl::Stdio);
    if args.detached || (socket.is_none() && !location.is_private) {
        return Vec::new();
    }
    let state = format!("state: {}", location.path.display());
    let Some(url) = socket else { return vec![state] };
    let token_file = location.path.join("token");
    let is_in_file =
        |token: &Token| std::fs::read_to_string(&token_file).is_ok_and(|text| text.trim() == token.reveal());
    let token = match (token.filter(|_| args.terms().asks_for_token(url)), &args.token_file) {
        (None, _) => String::new(),
        (Some(_), Some(file)) => format!(" --token-file {}", file.display()),
        (Some(token), None) if is_in_file(token) => format!(" --token-file {}", token_file.display()),
        (Some(_), None) => " --token-file FILE".to_owned(),
    };
    vec![state, format!("try: exec-server run --connect {url}{token} -- uname -sm")]
}

/// Prints one line per socket, in order. If `stdio` is served, stdout belongs to the peer; then the lines go to stderr, without the token,
/// which must not end up in a log.
fn announce(server: &Server, terms: &ExposureTerms, token: Option<Token>) {
    let serves_stdio = server.bound().contains(&ListenUrl::Stdio);
    for url in server.bound() {
        match (url, serves_stdio) {
            (ListenUrl::Stdio, _) => {}
            (url, true) => message!("listening: {url}"),
            (url, false) => match token.as_ref().filter(|_| terms.asks_for_token(url)) {
                // Ignore errors: the server runs also if stdout is closed.
                None => drop(print::line(&url.to_string())),
                Some(token) => drop(print::line(&format!("{url}/?token={}", percent_encode(token.reveal())))),
            },
        }
    }
}

/// Percent-encodes all but the unreserved characters of RFC 3986. Generated tokens contain only those.
pub(crate) fn percent_encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// The owner's token, from the first source that has one. `None` with `--auth none`, or if every listener identifies
/// its clients by certificate.
fn find_token(
    args: &args::ServeArgs,
    from_env: Option<env_token::StoredToken>,
    state: &StateDir,
) -> anyhow::Result<Option<Token>> {
    let terms = args.terms();
    if args.listen.iter().any(|url| terms.is_open(url)) {
        message!("warning: `--auth none`: every local user can run programs as you through this server");
    }
    let is_by_certificate = |url: &ListenUrl| matches!(url, ListenUrl::Wss(_)) && !terms.asks_for_token(url);
    if terms.auth == Some(RequiredAuth::None) || args.listen.iter().all(is_by_certificate) {
        return Ok(None);
    }
    if let Some(file) = &args.token_file {
        return Ok(Some(Token::from_file(file)?));
    }
    if let Some(number) = args.access.token_fd {
        return Ok(Some(Token::from_descriptor(number).context("read the token from `--token-fd`")?));
    }
    if let Some(stored) = from_env {
        let value = stored.read().context("read the stored token")?;
        let token = Token::parse(&value).with_context(|| format!("read the token from `{}`", env_token::NAME))?;
        return Ok(Some(token));
    }
    // systemd credentials: a directory that only this service can read.
    let credential = env::var_os("CREDENTIALS_DIRECTORY").map(|dir| PathBuf::from(dir).join(CREDENTIAL));
    if let Some(file) = credential.filter(|file| file.exists()) {
        return Ok(Some(Token::from_file(&file)?));
    }
    Ok(Some(state.token()?))
}

/// Raises the soft fd limit to the hard limit. Returns the original limits, which children get.
fn raise_nofile() -> Option<(u64, u64)> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if rustix::process::setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!("cannot raise RLIMIT_NOFILE");
        return None;
    }
    // `None` means unlimited.
    Some((limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX)))
}
