//! Resolves placements to executors and shares one connection among all servers at one place.
//!
//! To get the [`Host`] of a placement, [`Hosts`] calls a function that knows names, URLs and tokens. `Hosts` connects to a host when the
//! host is first used. Servers that need the same host at the same time share one attempt and its failure. A later request tries again,
//! also after a lost session.
//!
//! Only this manager uses the session on an executor. After a disconnect the executor keeps the session, by default for
//! [`KEEP`]. That limits how long a link may be cut, and how long the processes of a killed manager keep running.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use exec_server_client::{
    Client, ConnectionState, Error, Token,
    environment::{Backend, Choice, EnvironmentError, LOCAL, REMOTE, RemoteSpec},
    local::{Local, LocalConfig},
    protocol::initialize::Ttl,
};
use parking_lot::Mutex;
use tokio::time;

use crate::config::Placement;

/// The default time that an executor keeps the session of a manager that is disconnected or was killed.
pub const KEEP: Duration = Duration::from_secs(300);

/// Time limit for ending a session. If the executor is unreachable, the session's time-to-live ends it.
const END_WITHIN: Duration = Duration::from_secs(5);

/// The client name in the executor's log.
const CLIENT_NAME: &str = "exec-server-mcp";

/// A place for servers, and how to reach that place. Creating a `Host` does not connect.
pub struct Host {
    /// The name in errors and logs.
    pub(super) id: String,
    /// Hosts with the same key share a connection: the same executor with the same principal.
    key: String,
    kind: HostKind,
}

enum HostKind {
    Local(Box<LocalConfig>),
    Remote { spec: Box<RemoteSpec>, token: Option<Token>, keep: Duration, recover_for: Option<Duration> },
}

impl Host {
    #[must_use]
    pub fn local(config: LocalConfig) -> Self {
        let id = LOCAL.to_owned();
        Self { key: id.clone(), id, kind: HostKind::Local(Box::new(config)) }
    }

    /// An executor. `token` is used if neither the URL nor `environments.toml` has one. `keep` is how long the executor keeps the session
    /// after a disconnect.
    #[must_use]
    pub fn remote(spec: RemoteSpec, token: Option<Token>, keep: Duration) -> Self {
        let id = format!("{} at {}", spec.id, spec.target);
        // The token and the query of the URL decide the principal of the session. They are secret, so the key holds only their fingerprint.
        let key = format!("{id} {}", spec.fingerprint(token.as_ref()));
        Self { id, key, kind: HostKind::Remote { spec: Box::new(spec), token, keep, recover_for: None } }
    }

    /// Resolves `local` to this machine if `choose` allows it, `remote` with a function, and names and URLs with `choose`.
    pub fn find(
        placement: &Placement,
        local: &LocalConfig,
        remote: impl FnOnce() -> Result<Self, PlacementError>,
        choose: impl Fn(&str) -> Result<Choice, EnvironmentError>,
    ) -> Result<Self, PlacementError> {
        match placement {
            Placement::Local => match choose(LOCAL) {
                Ok(Choice::Local) => Ok(Self::local(local.clone())),
                Ok(_) | Err(EnvironmentError::Unknown { .. }) => Err(PlacementError::NoLocal),
                Err(error) => Err(PlacementError::unknown(LOCAL, &error)),
            },
            Placement::Remote => remote(),
            Placement::Named(name) | Placement::Url(name) => match choose(name) {
                Ok(Choice::Local) => Ok(Self::local(local.clone())),
                // Pass no token: another executor could use the token of `remote` to connect to `remote` with our rights.
                Ok(Choice::Remote(spec)) => Ok(Self::remote(spec, None, KEEP)),
                Ok(Choice::None) => Err(PlacementError::Off { name: name.clone() }),
                Err(error) => Err(PlacementError::unknown(place_of(name), &error)),
            },
        }
    }

    /// Sets how long the client tries to reconnect to an executor. The executor keeps the session at least as long. No
    /// effect on a local host.
    #[must_use]
    pub fn recover_for(mut self, within: Duration) -> Self {
        if let HostKind::Remote { keep, recover_for, .. } = &mut self.kind {
            *keep = within.max(*keep);
            *recover_for = Some(within);
        }
        self
    }

    async fn open(&self) -> Result<Backend, Error> {
        match &self.kind {
            HostKind::Local(config) => Ok(Backend::Local(Arc::new(Local::start((**config).clone()).await?))),
            HostKind::Remote { spec, token, keep, recover_for } => {
                let ttl = Ttl::Ms(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
                let mut builder = Client::builder().name(CLIENT_NAME).ttl(ttl);
                if let Some(within) = recover_for {
                    builder = builder.recover_for(*within);
                }
                spec.connect(builder, token.clone()).await.map(Backend::Remote)
            }
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why a placement cannot be resolved.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The placement is `remote`, but no remote environment is configured.
    #[error(
        "`environment` is `remote`, but there is no remote environment: give one with `--connect`, `EXEC_SERVER_URL` or \
         `default` in `environments.toml`"
    )]
    NoRemote,
    /// The placement is `local`, but the local environment is disabled.
    #[error("`environment` is `local`, but `environments.toml` says `include_local = false`")]
    NoLocal,
    /// The environment resolves to `none`.
    #[error("`environment` is `{name}`, which is disabled")]
    Off { name: String },
    /// An unknown name, an invalid URL, or a file that cannot be read.
    #[error("`environment` is `{name}`: {reason}")]
    Unknown {
        /// The name, or the URL without its token.
        name: String,
        /// The cause, and which names are known.
        reason: String,
    },
}

impl PlacementError {
    /// The error for a name or URL that cannot be resolved. `name` must not contain a token.
    fn unknown(name: impl Into<String>, error: &EnvironmentError) -> Self {
        let name = name.into();
        let reason = match error {
            // Do not use the error's own text: it suggests `none`, which cannot run a server.
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

/// Returns the host of a placement.
type HostResolver = Box<dyn Fn(&Placement) -> Result<Host, PlacementError> + Send + Sync>;

/// All places where servers may run.
pub struct Hosts {
    find: HostResolver,
    slots: Mutex<BTreeMap<String, Arc<HostSlot>>>,
}

impl Hosts {
    /// Resolves placements with this function. It must not connect, and must return the same host for the same place.
    pub fn new(find: impl Fn(&Placement) -> Result<Host, PlacementError> + Send + Sync + 'static) -> Self {
        Self { find: Box::new(find), slots: Mutex::default() }
    }

    /// Resolves `local` to this machine with the given settings, `remote` to the given choice, and names and URLs with `choose`, for
    /// example [`choose`](exec_server_client::environment::choose). `token` is used only for `remote`, if its URL and file have none.
    pub fn by_choice(
        local: LocalConfig,
        remote: Choice,
        token: Option<Token>,
        choose: impl Fn(&str) -> Result<Choice, EnvironmentError> + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |placement| {
            let remote = || match &remote {
                Choice::Remote(spec) => Ok(Host::remote(spec.clone(), token.clone(), KEEP)),
                Choice::Local | Choice::None => Err(PlacementError::NoRemote),
            };
            Host::find(placement, &local, remote, &choose)
        })
    }

    /// Resolves a placement. Opens nothing.
    pub(super) fn find(&self, placement: &Placement) -> Result<Arc<HostSlot>, PlacementError> {
        let host = (self.find)(placement)?;
        let mut slots = self.slots.lock();
        let slot = slots.entry(host.key.clone()).or_insert_with(|| {
            Arc::new(HostSlot { host, last: tokio::sync::Mutex::default(), attempts: AtomicU64::default() })
        });
        Ok(Arc::clone(slot))
    }

    /// Ends every session that was opened here, with all its processes. Takes a bounded time.
    pub async fn end(&self) {
        let slots = std::mem::take(&mut *self.slots.lock());
        // One after another: there are few hosts, and a reachable executor answers at once.
        for slot in slots.into_values() {
            let Some(Ok(opened)) = slot.last.lock().await.take_if(|last| last.is_ok()) else { continue };
            if time::timeout(END_WITHIN, end(opened)).await.is_err() {
                tracing::warn!(host = slot.host.id, "could not end the session; it ends after its time-to-live");
            }
        }
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.slots.lock();
        let known: Vec<&str> = slots.values().map(|slot| slot.host.id.as_str()).collect();
        f.debug_struct("Hosts").field("known", &known).finish_non_exhaustive()
    }
}

/// One place and its connection.
pub(super) struct HostSlot {
    pub(super) host: Host,
    /// The result of the last attempt to connect. Locked during an attempt, so that all other callers wait for it.
    last: tokio::sync::Mutex<Option<Result<Backend, Error>>>,
    /// How many attempts have ended. If the number has grown while a caller waited for the lock, an attempt ended in that time, and the
    /// caller shares its failure.
    attempts: AtomicU64,
}

impl HostSlot {
    /// The back end of this place. Connects if there is no connection or if its session is lost.
    pub(super) async fn backend(&self) -> Result<Backend, Error> {
        let seen = self.attempts.load(SeqCst);
        let mut last = self.last.lock().await;
        match &*last {
            Some(Ok(opened)) if !matches!(opened.client().state(), ConnectionState::Lost { .. }) => {
                return Ok(opened.clone());
            }
            Some(Err(error)) if self.attempts.load(SeqCst) > seen => return Err(error.clone()),
            _ => {}
        }
        let result = self.host.open().await;
        self.attempts.fetch_add(1, SeqCst);
        last.insert(result).clone()
    }
}

/// Ends the session of a back end, or shuts a local back end down.
async fn end(backend: Backend) {
    match backend {
        Backend::Local(local) => match Arc::into_inner(local) {
            Some(local) => local.end().await,
            // Another task is still starting a server there. The local back end ends when that task drops the last reference.
            None => tracing::debug!("the local back end is still in use"),
        },
        Backend::Remote(client) => {
            if let Err(error) = client.end_session().await {
                tracing::debug!(%error, "could not end the session");
            }
        }
    }
}

/// The part of a placement that errors and listings may show: a URL without its user, query and fragment, which may be secret; only the
/// program of a `stdio:` command; or the name of an environment.
#[must_use]
pub fn place_of(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        // The name of an environment has no colon, and may have spaces.
        let shown = if url.contains(':') { url.split(' ').next().unwrap_or_default() } else { url };
        return shown.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    let at = host.rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[at..])
}
