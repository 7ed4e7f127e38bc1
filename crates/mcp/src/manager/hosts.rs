//! Where servers run: what a placement means, and one connection for all servers of one place.
//!
//! Somebody else knows names, URLs and tokens: [`Hosts`] asks for a [`Host`] and opens it at its first use. Servers that ask
//! at the same time share one attempt and its failure; whoever asks later tries again, also after a session was lost.
//!
//! The session with an executor is ours alone, and lives on it only [`KEEP`] without us: so long can a link be cut, and so
//! long lasts at most what a killed manager leaves behind there. Must not know servers.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exec_server_client::{
    Client, Error, State, Token,
    backend::{Backend, Remote},
    environment::{Choice, EnvironmentError, LOCAL, REMOTE, RemoteSpec},
    local::{Local, LocalConfig},
    protocol::initialize::Ttl,
};
use tokio::time;

use crate::config::Placement;

/// How long a session waits on the executor for a manager that is cut off or was killed, unless told otherwise.
pub const KEEP: Duration = Duration::from_secs(300);

/// How long the end of a session may take: the executor may be out of reach, and then its time-to-live does it.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Who connects, for the server's log.
const CLIENT_NAME: &str = "exec-server-mcp";

/// A place, and how it is reached. Nothing is opened yet.
pub struct Host {
    /// What it is called in errors and logs.
    id: String,
    /// Placements whose hosts have the same key share a connection: one executor, entered as the same principal.
    key: String,
    way: HostWay,
}

enum HostWay {
    Local(Box<LocalConfig>),
    Remote { spec: Box<RemoteSpec>, token: Option<Token>, keep: Duration, recover_for: Option<Duration> },
    Given(Arc<dyn Backend>),
}

impl Host {
    /// This machine.
    #[must_use]
    pub fn local(config: LocalConfig) -> Self {
        Self::new("local".to_owned(), HostWay::Local(Box::new(config)))
    }

    /// An executor; the token is for one whose URL and file have none. See [`KEEP`].
    #[must_use]
    pub fn remote(spec: RemoteSpec, token: Option<Token>, keep: Duration) -> Self {
        let id = format!("{} at {}", spec.id, spec.target);
        // Neither a token nor a query is shown, and both decide as whom a session is entered.
        let key = format!("{id} {}", spec.fingerprint(token.as_ref()));
        Self { id, key, way: HostWay::Remote { spec: Box::new(spec), token, keep, recover_for: None } }
    }

    /// Says how long a cut link to an executor is tried to be mended; its session is kept at least as long.
    #[must_use]
    pub fn recover_for(mut self, within: Duration) -> Self {
        if let HostWay::Remote { keep, recover_for, .. } = &mut self.way {
            *keep = within.max(*keep);
            *recover_for = Some(within);
        }
        self
    }

    /// A place that is open already, and stays so: its owner ends it.
    #[must_use]
    pub fn given(id: impl Into<String>, backend: Arc<dyn Backend>) -> Self {
        Self::new(id.into(), HostWay::Given(backend))
    }

    fn new(id: String, way: HostWay) -> Self {
        Self { key: id.clone(), id, way }
    }

    async fn open(&self) -> Result<Opened, Error> {
        match &self.way {
            HostWay::Local(config) => Ok(Opened::Local(Arc::new(Local::start((**config).clone()).await?))),
            HostWay::Remote { spec, token, keep, recover_for } => {
                let ttl = Ttl::Ms(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
                let mut builder = Client::builder().name(CLIENT_NAME).ttl(ttl);
                if let Some(within) = recover_for {
                    builder = builder.recover_for(*within);
                }
                Ok(Opened::Remote(Arc::new(Remote(spec.connect(builder, token.clone()).await?))))
            }
            HostWay::Given(backend) => Ok(Opened::Given(Arc::clone(backend))),
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why a placement means nothing.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// `remote`, and there is no remote environment.
    #[error(
        "`environment` is `remote`, but there is no remote environment: give one with `--connect`, `EXEC_SERVER_URL` or \
         `default` in `environments.toml`"
    )]
    NoRemote,
    /// `local`, and that was switched off.
    #[error("`environment` is `local`, but `environments.toml` says `include_local = false`")]
    NoLocal,
    /// An environment that says `none`.
    #[error("`environment` is `{name}`, which is switched off")]
    Off {
        /// Its name.
        name: String,
    },
    /// A name that nobody knows, a URL that is none, or a file that cannot be read.
    #[error("`environment` is `{name}`: {reason}")]
    Unknown {
        /// The name or URL, without a token.
        name: String,
        /// What is wrong with it, with what could be meant.
        reason: String,
    },
}

impl PlaceError {
    /// Why `local`, looked up by its name, is not this machine: it was switched off, or nobody can tell.
    #[must_use]
    pub fn no_local(looked_up: Result<Choice, EnvironmentError>) -> Self {
        match looked_up {
            Ok(_) | Err(EnvironmentError::Unknown { .. }) => Self::NoLocal,
            Err(error) => Self::unknown(LOCAL, &error),
        }
    }

    /// Why this name or URL, shown without a token, is no place.
    #[must_use]
    pub fn unknown(name: impl Into<String>, error: &EnvironmentError) -> Self {
        let name = name.into();
        let reason = match error {
            // Not its own words: they advise `none`, which is no place to run at.
            EnvironmentError::Unknown { name, path, known } => {
                let known: String = known.iter().map(|name| format!("`{name}`, ")).collect();
                let from = path.display();
                format!(
                    "no environment is named `{name}`: use one of {known}`{REMOTE}`, or a URL; names come from `{from}`"
                )
            }
            other => other.to_string(),
        };
        Self::Unknown { name, reason }
    }
}

/// Finds the host of a placement.
type Find = Box<dyn Fn(&Placement) -> Result<Host, PlaceError> + Send + Sync>;

/// Every place that servers may run at.
pub struct Hosts {
    find: Find,
    slots: Mutex<BTreeMap<String, Arc<Slot>>>,
}

impl Hosts {
    /// Places that are found by this function. It must not connect, and must give the same host for the same place.
    pub fn new(find: impl Fn(&Placement) -> Result<Host, PlaceError> + Send + Sync + 'static) -> Self {
        Self { find: Box::new(find), slots: Mutex::default() }
    }

    /// This machine with these settings, `remote` by this choice, and names and URLs by this function, such as
    /// [`choose`](exec_server_client::environment::choose). The token is for `remote` alone, where its URL and file have none.
    pub fn by_choice(
        local: LocalConfig,
        remote: Choice,
        token: Option<Token>,
        choose: impl Fn(&str) -> Result<Choice, EnvironmentError> + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |placement| match placement {
            Placement::Local => match choose(LOCAL) {
                Ok(Choice::Local) => Ok(Host::local(local.clone())),
                other => Err(PlaceError::no_local(other)),
            },
            Placement::Remote => match &remote {
                Choice::Remote(spec) => Ok(Host::remote(spec.clone(), token.clone(), KEEP)),
                Choice::Local | Choice::None => Err(PlaceError::NoRemote),
            },
            Placement::Named(name) | Placement::Url(name) => match choose(name) {
                Ok(Choice::Local) => Ok(Host::local(local.clone())),
                // A token says who we are to one executor; another that is shown it could enter the first as us.
                Ok(Choice::Remote(spec)) => Ok(Host::remote(spec, None, KEEP)),
                Ok(Choice::None) => Err(PlaceError::Off { name: name.clone() }),
                Err(error) => Err(PlaceError::unknown(without_token(name), &error)),
            },
        })
    }

    /// What a placement means. Opens nothing.
    pub(super) fn find(&self, placement: &Placement) -> Result<Arc<Slot>, PlaceError> {
        let host = (self.find)(placement)?;
        let mut slots = lock(&self.slots);
        let slot = slots.entry(host.key.clone()).or_insert_with(|| Arc::new(Slot::new(host)));
        Ok(Arc::clone(slot))
    }

    /// Ends every session that was opened here, with all that runs in it; bounded in time.
    pub async fn end(&self) {
        let slots = std::mem::take(&mut *lock(&self.slots));
        // One after the other is enough: an executor that answers does so at once.
        for slot in slots.into_values() {
            let Some(opened) = slot.state.lock().await.opened.take() else { continue };
            if time::timeout(END_WITHIN, opened.end()).await.is_err() {
                tracing::warn!(host = slot.host.id, "the session could not be ended; its time-to-live will do it");
            }
        }
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = lock(&self.slots);
        let known: Vec<&str> = slots.values().map(|slot| slot.id()).collect();
        f.debug_struct("Hosts").field("known", &known).finish_non_exhaustive()
    }
}

/// One place and its connection.
pub(super) struct Slot {
    host: Host,
    /// Held while it is being opened: all others wait for that attempt.
    state: tokio::sync::Mutex<SlotState>,
    /// How many attempts have ended. Whoever saw a smaller number before it waited was part of the last one.
    attempts: std::sync::atomic::AtomicU64,
}

struct SlotState {
    opened: Option<Opened>,
    failed: Option<Error>,
}

impl Slot {
    fn new(host: Host) -> Self {
        let state = SlotState { opened: None, failed: None };
        Self { host, state: tokio::sync::Mutex::new(state), attempts: std::sync::atomic::AtomicU64::new(0) }
    }

    /// What it is called in errors.
    pub(super) fn id(&self) -> &str {
        &self.host.id
    }

    /// The place itself, opened where it is not or is lost.
    pub(super) async fn backend(&self) -> Result<Arc<dyn Backend>, Error> {
        use std::sync::atomic::Ordering::SeqCst;
        let seen = self.attempts.load(SeqCst);
        let mut state = self.state.lock().await;
        if let Some(opened) = &state.opened
            && !matches!(opened.backend().client().state(), State::Lost { .. })
        {
            return Ok(opened.backend());
        }
        if let Some(error) = &state.failed
            && self.attempts.load(SeqCst) > seen
        {
            return Err(error.clone());
        }
        let result = self.host.open().await;
        self.attempts.fetch_add(1, SeqCst);
        match result {
            Ok(opened) => {
                let backend = opened.backend();
                *state = SlotState { opened: Some(opened), failed: None };
                Ok(backend)
            }
            Err(error) => {
                *state = SlotState { opened: None, failed: Some(error.clone()) };
                Err(error)
            }
        }
    }
}

/// An open place, by who ends it.
enum Opened {
    Local(Arc<Local>),
    Remote(Arc<Remote>),
    Given(Arc<dyn Backend>),
}

impl Opened {
    fn backend(&self) -> Arc<dyn Backend> {
        match self {
            Self::Local(local) => Arc::clone(local) as Arc<dyn Backend>,
            Self::Remote(remote) => Arc::clone(remote) as Arc<dyn Backend>,
            Self::Given(backend) => Arc::clone(backend),
        }
    }

    async fn end(self) {
        match self {
            Self::Local(local) => match Arc::into_inner(local) {
                Some(local) => local.end().await,
                // Somebody still starts something there. What the last one drops is cut off, and ends within a second.
                None => tracing::debug!("the local place is still in use"),
            },
            Self::Remote(remote) => {
                if let Err(error) = remote.0.end_session().await {
                    tracing::debug!(%error, "end the session");
                }
            }
            Self::Given(_) => {}
        }
    }
}

/// A URL may carry a token, which no error shows.
fn without_token(name: &str) -> String {
    match name.split_once("://") {
        Some((scheme, rest)) => {
            let rest = rest.split(['?', '#']).next().unwrap_or_default();
            let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
            format!("{scheme}://{rest}")
        }
        None => name.to_owned(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks can panic half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
