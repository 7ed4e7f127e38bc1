//! Which server a command speaks with, and how it gets in: flags, variables and `environments.toml` become one [`Server`].
//! Must not know what is asked of it.

use std::{env, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use exec_server_client::{
    Builder, Client, Error, Token,
    environment::{self, Choice, EnvironmentError, Identity, RemoteSpec},
    protocol::{
        initialize::Ttl,
        process::{AdoptingSession, ListResult, ProcessInfo, Scope},
    },
};
use tokio::{task::JoinSet, time};

use crate::{
    args,
    dial::{self, PerUser},
    env_token, hints,
    ids::{self, NoProcess},
    link, log, place, say, terminal,
};

/// How long a host that does not answer, or a server that says it is busy, is tried; `--wait` does not shorten it.
const FIRST_CONNECT: Duration = Duration::from_secs(10);

/// The pause before the one retry that a server gets which is just starting. With it, the error is still reported within
/// half a second.
const STARTUP_GRACE: Duration = Duration::from_millis(200);

/// After such a silence of the server, commands say that they wait.
const STALLED_AFTER: Duration = Duration::from_secs(3);

/// A first connection that takes longer is announced on a terminal.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(1);

/// The user's own server may have many sessions to take over before it answers.
const PER_USER_CONNECT: Duration = Duration::from_secs(20);

/// How long the end of our own session may take; after that its time-to-live ends it.
const END_WITHIN: Duration = Duration::from_secs(5);

/// The time-to-live of a session that has no process: what a visit, or whoever else comes back to it, may need to mend its link.
pub(crate) const VISIT_TTL_MS: u64 = 10 * 60 * 1000;

/// A server, and everything that is needed to get in.
pub(crate) struct Server {
    way: Way,
    /// `--wait`.
    wait: Option<Duration>,
    recover_for: Option<Duration>,
}

enum Way {
    /// The user's own, by its state directory.
    PerUser(PathBuf),
    /// Another, and the token for it where neither URL nor file has one.
    Remote(Box<RemoteSpec>, Option<Token>),
}

impl Server {
    /// The server that flags, variables and names lead to; `None` is this machine. Also begins to log, as the flags say.
    pub(crate) fn find(args: &args::Connect, token: Option<env_token::Waiting>) -> anyhow::Result<Option<Self>> {
        Self::find_with(args, token.map(read_token).transpose()?)
    }

    /// The same, with a token that was read already.
    pub(crate) fn find_with(args: &args::Connect, token: Option<Token>) -> anyhow::Result<Option<Self>> {
        if let Some(filter) = &args.log {
            log::init(filter, args::LogFormat::Text)?;
        }
        Self::find_as(args, args.connect.as_deref(), token)
    }

    /// The servers of a copy, as `find` does: of each path that is on one. Each gets the token of the environment only if that
    /// may be meant for it.
    pub(crate) fn find_all(
        args: &args::Connect,
        named: &[Option<args::Named<'_>>],
        token: Option<env_token::Waiting>,
    ) -> anyhow::Result<Vec<Option<Self>>> {
        if let Some(filter) = &args.log {
            log::init(filter, args::LogFormat::Text)?;
        }
        let token = token.map(read_token).transpose()?;
        let find = |named: &Option<args::Named<'_>>| match named {
            Some(named) => {
                let host = named.by.filter(|_| named.may_be_host).and_then(host_of_ssh);
                Self::find_as(args, host.as_deref().or(named.by), token.clone().filter(|_| named.may_have_token))
            }
            None => Ok(None),
        };
        named.iter().map(find).collect()
    }

    fn find_as(args: &args::Connect, asked: Option<&str>, token: Option<Token>) -> anyhow::Result<Option<Self>> {
        let asked = match asked {
            Some(asked) => Some(asked.to_owned()),
            None => environment::asked_by(|name| env::var_os(name))?,
        };
        let mut spec = match choose(asked.as_deref())? {
            Choice::Local => return Ok(None),
            Choice::None => {
                bail!("no server: `none` was asked for; pass `--connect URL`, or `--connect local` for this machine")
            }
            Choice::Remote(spec) => spec,
        };
        // What is said on the command line goes before what the file says.
        spec.token_file = args.token_file.clone().or(spec.token_file);
        spec.ca_file = args.tls_ca.clone().or(spec.ca_file);
        spec.insecure_plaintext |= args.insecure_plaintext;
        if let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) {
            spec.identity = Some(Identity { cert: cert.clone(), key: key.clone() });
        }
        Ok(Some(Self { way: Way::Remote(Box::new(spec), token), wait: args.wait, recover_for: args.recover_for }))
    }

    /// What leads to a server that is not the user's own, and the token for it where neither URL nor file has one.
    pub(crate) fn spec(&self) -> Option<(&RemoteSpec, &Option<Token>)> {
        match &self.way {
            Way::PerUser(_) => None,
            Way::Remote(spec, token) => Some((spec, token)),
        }
    }

    /// The user's own server on this machine.
    pub(crate) fn per_user(args: &args::Connect) -> anyhow::Result<Self> {
        Ok(Self { way: Way::PerUser(place::of_user(None)?), wait: args.wait, recover_for: args.recover_for })
    }

    /// Connects. `set` says what the session is for.
    pub(crate) async fn open(&self, set: impl FnOnce(Builder) -> Builder) -> Result<Client, Error> {
        let mut builder = Client::builder()
            .name(concat!("exec-server/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(FIRST_CONNECT)
            .connect_retry_for(self.wait.unwrap_or_else(|| self.first_connect()))
            .report_stall_after(STALLED_AFTER)
            .startup_grace(self.wait.is_none().then_some(STARTUP_GRACE));
        if let Some(within) = self.recover_for {
            builder = builder.recover_for(within);
        }
        let builder = set(builder);
        let opening = async {
            match &self.way {
                Way::PerUser(dir) => builder.connect_timeout(PER_USER_CONNECT).open(PerUser::new(dir.clone())).await,
                Way::Remote(spec, token) => spec.connect(builder, token.clone()).await,
            }
        };
        self.announcing(opening).await
    }

    /// Says on a terminal what is waited for, where connecting takes long.
    async fn announcing<T>(&self, opening: impl Future<Output = T>) -> T {
        tokio::pin!(opening);
        if let Ok(opened) = time::timeout(ANNOUNCE_AFTER, &mut opening).await {
            return opened;
        }
        // While ssh asks for a password, a line of ours would stand in the middle of its question.
        if !terminal::is_asking() {
            match self.wait {
                Some(wait) => say::dim(format_args!("exec-server: waiting up to {wait:?} for {}", self.address())),
                None => say::dim(format_args!("exec-server: connecting to {}", self.address())),
            }
        }
        opening.await
    }

    fn address(&self) -> String {
        match &self.way {
            Way::PerUser(dir) => format!("the server of `{}`", dir.display()),
            Way::Remote(spec, _) => spec.target.to_string(),
        }
    }

    /// How long the first connection may take; what a file says of one attempt is meant for all of them.
    fn first_connect(&self) -> Duration {
        match &self.way {
            Way::PerUser(_) => PER_USER_CONNECT,
            Way::Remote(spec, _) => spec.connect_timeout.unwrap_or(FIRST_CONNECT),
        }
    }

    /// Whether asking it could show anything; a server is not started to say that nothing runs.
    fn is_worth_asking(&self) -> anyhow::Result<bool> {
        match &self.way {
            Way::PerUser(dir) => dial::has_something(dir),
            Way::Remote(..) => Ok(true),
        }
    }
}

/// A short stay at a server, to look at the processes of all sessions there.
pub(crate) struct Visit {
    server: Server,
    /// None where there is nothing to be asked.
    client: Option<Client>,
    all: Vec<ProcessInfo>,
    /// Sessions whose processes the server cannot list yet.
    adopting: Vec<AdoptingSession>,
    /// Says what becomes of the link.
    notices: JoinSet<()>,
}

impl Visit {
    /// Goes to the server, or the user's own, and lists its processes.
    pub(crate) async fn begin(args: &args::Connect, token: Option<env_token::Waiting>) -> anyhow::Result<Self> {
        let server = match Server::find(args, token)? {
            Some(server) => server,
            None => Server::per_user(args)?,
        };
        if !server.is_worth_asking()? {
            let notices = JoinSet::new();
            return Ok(Self { server, client: None, all: Vec::new(), adopting: Vec::new(), notices });
        }
        let client = server.open(|builder| builder.ttl(Ttl::Ms(VISIT_TTL_MS))).await?;
        let mut notices = JoinSet::new();
        notices.spawn(link::notices(&client));
        let ListResult { processes: all, adopting, .. } = client.listing(Scope::All).await.context("list processes")?;
        Ok(Self { server, client: Some(client), all, adopting, notices })
    }

    /// For a command that reports the link in a way of its own.
    pub(crate) fn stop_notices(&mut self) {
        self.notices.abort_all();
    }

    /// The server.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// The client, where there is a server to ask.
    pub(crate) fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// Every process there when we came, with the client to speak of it with.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&Client, &ProcessInfo)> {
        self.client.iter().flat_map(|client| self.all.iter().map(move |info| (client, info)))
    }

    /// Connects where there was no server before and there is one now.
    pub(crate) async fn connect_again(&mut self) -> anyhow::Result<()> {
        if self.client.is_none() && self.server.is_worth_asking()? {
            self.client = Some(self.server.open(|builder| builder.ttl(Ttl::Ms(VISIT_TTL_MS))).await?);
        }
        Ok(())
    }

    /// Every process there when we came, the oldest first.
    pub(crate) fn all(&self) -> &[ProcessInfo] {
        &self.all
    }

    /// The sessions whose processes were not listed when we came, because their holders did not answer.
    pub(crate) fn adopting(&self) -> &[AdoptingSession] {
        &self.adopting
    }

    /// Every process there by now.
    pub(crate) async fn list(&self) -> Result<Vec<ProcessInfo>, Error> {
        match &self.client {
            Some(client) => client.list(Scope::All).await,
            None => Ok(Vec::new()),
        }
    }

    /// The process that is meant, and the client to speak of it with.
    pub(crate) fn find(&self, asked: &str) -> Result<(&Client, &ProcessInfo), NoProcess> {
        let unknown = || NoProcess::Unknown { asked: asked.to_owned() };
        let found = ids::resolve(asked, &self.all).map_err(|error| match error {
            NoProcess::Unknown { asked } if !self.adopting.is_empty() => {
                NoProcess::Unlisted { asked, sessions: self.adopting.len() }
            }
            error => error,
        });
        Ok((self.client.as_ref().ok_or_else(unknown)?, found?))
    }

    /// Leaves, and leaves nothing behind.
    pub(crate) async fn end(self) {
        if let Some(client) = self.client {
            end(&client).await;
        }
    }
}

/// Ends a session of ours and everything in it, if the server can be reached soon. Its time-to-live ends it otherwise.
pub(crate) async fn end(client: &Client) {
    try_end(client).await;
}

/// As [`end`]; whether the server could be reached.
pub(crate) async fn try_end(client: &Client) -> bool {
    time::timeout(END_WITHIN, client.end_session()).await.is_ok()
}

/// The URL of a host of ssh, where it is not a name of environments.toml. A broken file is told by whoever uses the name.
fn host_of_ssh(name: &str) -> Option<String> {
    let is_unknown = matches!(environment::choose(Some(name)), Err(EnvironmentError::Unknown { .. }));
    (is_unknown && !name.contains(':')).then(|| format!("ssh://{name}"))
}

/// Picks by name or URL; a host without a scheme is answered with the URL that was probably meant.
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

fn read_token(waiting: env_token::Waiting) -> anyhow::Result<Token> {
    let value = waiting.read().context("read the token back")?;
    Token::new(value.as_slice()).with_context(|| format!("use `{}`", env_token::NAME))
}
