//! Chooses the server that a command talks to: turns flags, variables and `environments.toml` into one [`Server`], and connects to it.

use std::{
    env,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::{Context as _, bail};
use exec_server_client::{
    Builder, Client, Error, Process, Start, Token,
    environment::{self, Choice, EnvironmentError, Identity, RemoteSpec},
    protocol::{
        initialize::Ttl,
        process::{AdoptingSession, ProcessInfo, Scope},
    },
};
use tokio::{task::JoinSet, time};

use crate::{
    args,
    dial::{self, PerUserConnect},
    env_token, hints,
    ids::{self, ProcessLookupError},
    known_servers::KnownServer,
    link, log, print, runtime, state_location, terminal,
};

/// The timeout of one attempt to connect, which `--wait` does not change. Without `--wait`, also how long a busy server is retried.
const FIRST_CONNECT: Duration = Duration::from_secs(10);

/// Without `--wait`, the pause before the only retry if nothing is listening. It helps if a server is just starting. The error is still
/// reported within half a second.
const STARTUP_GRACE: Duration = Duration::from_millis(200);

/// After this much silence from the server, commands report that they are waiting.
const STALLED_AFTER: Duration = Duration::from_secs(3);

/// If the first connection takes longer than this, a terminal shows a notice.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(1);

/// Replaces [`FIRST_CONNECT`] for the per-user server, which may have to adopt many sessions before it answers.
const PER_USER_CONNECT: Duration = Duration::from_secs(20);

/// How long ending our own session may take. After that the session's time-to-live ends it.
pub(crate) const END_WITHIN: Duration = Duration::from_secs(5);

/// The time-to-live of a session without processes: enough time for the client to reconnect.
pub(crate) const SHORT_SESSION_TTL_MS: u64 = 10 * 60 * 1000;

/// A server, and the credentials and options that are needed to connect to it.
pub(crate) struct Server {
    location: ServerLocation,
    /// `--wait`.
    wait: Option<Duration>,
    recover_for: Option<Duration>,
}

enum ServerLocation {
    /// The user's own server, by its state directory.
    PerUser(PathBuf),
    /// Any other server, and a token for it if neither the URL nor a file provides one.
    Remote(Box<RemoteSpec>, Option<Token>),
}

impl Server {
    /// Chooses the server from flags, variables and names; `None` means this machine. Also starts logging as the flags request.
    pub(crate) fn find(
        args: &args::ConnectArgs,
        token: Option<env_token::StoredToken>,
    ) -> anyhow::Result<Option<Self>> {
        Self::find_with(args, token.map(read_token).transpose()?)
    }

    /// Like `find`, with a token that was read already.
    pub(crate) fn find_with(args: &args::ConnectArgs, token: Option<Token>) -> anyhow::Result<Option<Self>> {
        start_log(args)?;
        Self::find_as(args, args.connect.as_deref(), token)
    }

    /// The servers of a copy, one per path; `None` for a local path. A server gets the token from the environment only if that token may be
    /// meant for it.
    pub(crate) fn find_all(
        args: &args::ConnectArgs,
        named: &[Option<args::ServerName<'_>>],
        token: Option<env_token::StoredToken>,
    ) -> anyhow::Result<Vec<Option<Self>>> {
        start_log(args)?;
        let token = token.map(read_token).transpose()?;
        let find = |named: &Option<args::ServerName<'_>>| {
            let Some(named) = named else { return Ok(None) };
            let ssh_url = named.name.filter(|_| named.may_be_host).and_then(ssh_url);
            Self::find_as(args, ssh_url.as_deref().or(named.name), token.clone().filter(|_| named.may_have_token))
        };
        named.iter().map(find).collect()
    }

    fn find_as(
        args: &args::ConnectArgs,
        name_or_url: Option<&str>,
        token: Option<Token>,
    ) -> anyhow::Result<Option<Self>> {
        let requested = match name_or_url {
            Some(name_or_url) => Some(name_or_url.to_owned()),
            None => environment::value_of_variables(|name| env::var_os(name))?,
        };
        let mut spec = match choose(requested.as_deref())? {
            Choice::Local => return Ok(None),
            Choice::None => {
                bail!("no server: `none` was requested; pass `--connect URL`, or `--connect local` for this machine")
            }
            Choice::Remote(spec) => spec,
        };
        // The command line overrides `environments.toml`.
        spec.token_file = args.token_file.clone().or(spec.token_file);
        spec.ca_file = args.tls_ca.clone().or(spec.ca_file);
        spec.insecure_plaintext |= args.insecure_plaintext;
        if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
            spec.identity = Some(Identity { cert: cert.clone(), key: key.clone() });
        }
        Ok(Some(Self {
            location: ServerLocation::Remote(Box::new(spec), token),
            wait: args.wait,
            recover_for: args.recover_for,
        }))
    }

    /// The specification of a remote server, and the token for it if neither the URL nor a file provides one. `None` for the user's own
    /// server.
    pub(crate) fn spec(&self) -> Option<(&RemoteSpec, &Option<Token>)> {
        match &self.location {
            ServerLocation::PerUser(_) => None,
            ServerLocation::Remote(spec, token) => Some((spec, token)),
        }
    }

    /// The user's own server on this machine.
    pub(crate) fn per_user(args: &args::ConnectArgs) -> anyhow::Result<Self> {
        Ok(Self {
            location: ServerLocation::PerUser(state_location::of_user(None)?),
            wait: args.wait,
            recover_for: args.recover_for,
        })
    }

    /// Connects. `set` adds the session options of the command.
    pub(crate) async fn open(&self, set: impl FnOnce(Builder) -> Builder) -> Result<Client, Error> {
        let builder = set(self.builder());
        let opening = async {
            match &self.location {
                ServerLocation::PerUser(dir) => {
                    builder.connect_timeout(PER_USER_CONNECT).open(PerUserConnect(dir.clone())).await
                }
                ServerLocation::Remote(spec, token) => spec.connect(builder, token.clone()).await,
            }
        };
        let opened = self.announce_if_slow(opening).await;
        if let (Ok(client), Some(known)) = (&opened, self.known()) {
            known.remember(client.server().capabilities.session_key);
        }
        opened
    }

    /// Whether the server accepts a start together with the handshake, as far as an earlier connection has shown.
    pub(crate) fn accepts_early_start(&self) -> bool {
        self.known().is_some_and(|known| known.has_session_keys())
    }

    /// Connects and starts a process together. `is_sent` becomes true before the start is sent. Only for a server that
    /// [`accepts_early_start`](Self::accepts_early_start).
    pub(crate) async fn open_and_start(
        &self,
        start: Start,
        is_sent: Arc<AtomicBool>,
    ) -> Result<(Client, Result<Process, Error>), Error> {
        let builder = self.builder().session_key(uuid::Uuid::new_v4().simple().to_string());
        let opening = async {
            match &self.location {
                ServerLocation::PerUser(dir) => {
                    builder.open_and_start(PerUserConnect(dir.clone()), start, is_sent).await
                }
                ServerLocation::Remote(spec, token) => {
                    spec.connect_and_start(builder, token.clone(), start, is_sent).await
                }
            }
        };
        let opened = self.announce_if_slow(opening).await;
        if let (Ok((client, _)), Some(known)) = (&opened, self.known()) {
            known.remember(client.server().capabilities.session_key);
        }
        opened
    }

    fn known(&self) -> Option<KnownServer> {
        let (spec, token) = self.spec()?;
        KnownServer::of(&spec.fingerprint(token.as_ref()))
    }

    fn builder(&self) -> Builder {
        // Without `--wait`, the `connect_timeout_sec` of `environments.toml` bounds all attempts together, not only each one.
        let first_connect = match &self.location {
            ServerLocation::PerUser(_) => PER_USER_CONNECT,
            ServerLocation::Remote(spec, _) => spec.connect_timeout.unwrap_or(FIRST_CONNECT),
        };
        let mut builder = Client::builder()
            .name(concat!("exec-server/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(FIRST_CONNECT)
            .connect_retry_for(self.wait.unwrap_or(first_connect))
            .report_stall_after(STALLED_AFTER)
            .startup_grace(self.wait.is_none().then_some(STARTUP_GRACE));
        if let Some(within) = self.recover_for {
            builder = builder.recover_for(within);
        }
        builder
    }

    /// Prints a notice on a terminal if connecting takes long.
    async fn announce_if_slow<T>(&self, opening: impl Future<Output = T>) -> T {
        tokio::pin!(opening);
        if let Ok(opened) = time::timeout(ANNOUNCE_AFTER, &mut opening).await {
            return opened;
        }
        // While ssh asks for a password, a notice would end up in the middle of its prompt.
        if !terminal::is_reading_password() {
            match self.wait {
                Some(wait) => print::dim(format_args!("waiting up to {wait:?} for {}", self.address())),
                None => print::dim(format_args!("connecting to {}", self.address())),
            }
        }
        opening.await
    }

    fn address(&self) -> String {
        match &self.location {
            ServerLocation::PerUser(dir) => format!("the server of `{}`", dir.display()),
            ServerLocation::Remote(spec, _) => spec.target.to_string(),
        }
    }

    /// Whether the server can have anything to show. A per-user server is not started just to report that nothing runs.
    fn may_have_processes(&self) -> anyhow::Result<bool> {
        match &self.location {
            ServerLocation::PerUser(dir) => dial::is_in_use(dir),
            ServerLocation::Remote(..) => Ok(true),
        }
    }
}

/// A short session on a server, used to look at the processes of all sessions there.
pub(crate) struct ListingSession {
    pub(crate) server: Server,
    /// `None` if the server does not run and has nothing to show.
    pub(crate) client: Option<Client>,
    /// Every process of the first listing, oldest first.
    pub(crate) all: Vec<ProcessInfo>,
    /// Sessions that were missing from the first listing because their holders did not answer.
    pub(crate) adopting: Vec<AdoptingSession>,
    /// The task that reports the state of the link. A command that reports the state itself aborts this task.
    pub(crate) notices: JoinSet<()>,
}

impl ListingSession {
    /// Runs a command on a new session, ends the session, and returns the exit code of the command.
    pub(crate) fn run(
        args: &args::ConnectArgs,
        token: Option<env_token::StoredToken>,
        command: impl AsyncFnOnce(&mut Self) -> anyhow::Result<u8>,
    ) -> anyhow::Result<ExitCode> {
        runtime::block_on(async {
            let mut listing = Self::open(args, token).await?;
            let done = command(&mut listing).await;
            listing.end().await;
            done.map(ExitCode::from)
        })
    }

    /// Connects to the chosen server, or to the user's own, and lists its processes.
    pub(crate) async fn open(args: &args::ConnectArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<Self> {
        let server = match Server::find(args, token)? {
            Some(server) => server,
            None => Server::per_user(args)?,
        };
        let mut session = Self { server, client: None, all: Vec::new(), adopting: Vec::new(), notices: JoinSet::new() };
        session.connect().await?;
        if let Some(client) = &session.client {
            session.notices.spawn(link::report_on_stderr(client));
            let listed = client.listing(Scope::All).await.context("list processes")?;
            session.all = listed.processes;
            session.adopting = listed.adopting;
        }
        Ok(session)
    }

    /// Every process of the first listing, with the client to use for it.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&Client, &ProcessInfo)> {
        self.client.iter().flat_map(|client| self.all.iter().map(move |info| (client, info)))
    }

    /// Connects if there is no client yet and the server has something to show now.
    pub(crate) async fn connect(&mut self) -> anyhow::Result<()> {
        if self.client.is_none() && self.server.may_have_processes()? {
            self.client = Some(self.server.open(|builder| builder.ttl(Ttl::Ms(SHORT_SESSION_TTL_MS))).await?);
        }
        Ok(())
    }

    /// Resolves an id or its prefix to a process, and returns the client to use for it.
    pub(crate) fn find(&self, asked: &str) -> Result<(&Client, &ProcessInfo), ProcessLookupError> {
        let unknown = || ProcessLookupError::Unknown { asked: asked.to_owned() };
        let found = ids::resolve(asked, &self.all).map_err(|error| match error {
            ProcessLookupError::Unknown { asked } if !self.adopting.is_empty() => {
                ProcessLookupError::Unlisted { asked, sessions: self.adopting.len() }
            }
            error => error,
        });
        Ok((self.client.as_ref().ok_or_else(unknown)?, found?))
    }

    /// Ends the session.
    pub(crate) async fn end(self) {
        if let Some(client) = self.client {
            end(&client).await;
        }
    }
}

/// Ends the client's session and everything in it. Returns false after a timeout; then the session's time-to-live ends it.
pub(crate) async fn end(client: &Client) -> bool {
    time::timeout(END_WITHIN, client.end_session()).await.is_ok()
}

/// The URL for an ssh host, if the name is not in `environments.toml`. A broken file is reported later, when the name is used.
fn ssh_url(name: &str) -> Option<String> {
    let is_unknown = matches!(environment::choose(Some(name)), Err(EnvironmentError::Unknown { .. }));
    (is_unknown && !name.contains(':')).then(|| format!("ssh://{name}"))
}

/// Chooses by name or URL. For a host without a scheme, the error suggests the URL that was probably meant.
fn choose(asked: Option<&str>) -> anyhow::Result<Choice> {
    let chosen = environment::choose(asked);
    let is_unknown = matches!(&chosen, Err(EnvironmentError::Unknown { .. } | EnvironmentError::Url { .. }));
    match asked.and_then(hints::url_for).filter(|_| is_unknown) {
        Some(url) => {
            chosen.with_context(|| format!("`{}` is not a URL; write `--connect {url}`", asked.unwrap_or_default()))
        }
        None => Ok(chosen?),
    }
}

fn start_log(args: &args::ConnectArgs) -> anyhow::Result<()> {
    args.log.as_deref().map_or(Ok(()), |filter| log::init(filter, args::LogFormat::Text))
}

fn read_token(stored: env_token::StoredToken) -> anyhow::Result<Token> {
    let value = stored.read().context("read the stored token")?;
    Token::new(value.as_slice()).with_context(|| format!("read the token from `{}`", env_token::NAME))
}
