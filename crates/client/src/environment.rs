//! Where processes run, chosen by the user rather than by the program: by a variable, a name or a URL.
//!
//! `EXEC_SERVER_URL`, then `CODEX_EXEC_SERVER_URL`: unset or empty is the default of `environments.toml`, else this machine;
//! `none` is nowhere; everything else is a name in that file, or a URL. `file` owns these rules, `lazy` when a connection is
//! made, and this module joins them: an [`Environment`] is a choice that connects when it is used.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use exec_server_client::{Start, environment::Environment};
//!
//! let Some(environment) = Environment::from_env()? else { return Ok(()) };
//! let place = environment.backend().await?;
//! let exit = place.start(Start::new(["make", "test"])).await?.wait().await?;
//! # let _code = exit.code;
//! # Ok(())
//! # }
//! ```

mod error;
mod file;
mod keys;
mod lazy;
#[cfg(test)]
mod tests;

pub use error::{EnvironmentError, Fault};
pub use file::{Choice, Environments, Identity, LOCAL, NONE, REMOTE, RemoteSpec};
pub use lazy::Status;

use std::{ffi::OsString, fmt, path::PathBuf, sync::Arc};

use sha2::{Digest as _, Sha256};

use self::lazy::{Health, Lazy, Open};
use crate::{
    Builder, Client, Error, ErrorKind, State,
    backend::{Backend, Remote},
    error::{ConnectFailure, chain},
    transport::{BoxFuture, Dialer, Tls, Token, TokenError},
};

/// The variables that choose, the first that says something counts.
pub const VARIABLES: [&str; 2] = ["EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL"];

pub use crate::transport::TOKEN_VARIABLE;

/// Who connects, for the server's log.
const CLIENT_NAME: &str = "exec-server-environment";

/// A place where processes run, which is connected to when it is first used.
///
/// All who ask for it share one connection, and one attempt to make it. A failed attempt is made again by the next one who
/// asks, and a lost session is replaced by a fresh one; but a program that could not be started, or ended before it answered, is
/// not started again.
pub struct Environment {
    id: String,
    is_remote: bool,
    backend: Lazy<Arc<dyn Backend>>,
}

impl Environment {
    /// What the variables and the user's `environments.toml` choose; `None` where they say `none`. A token is taken from
    /// `EXEC_SERVER_TOKEN`, which stays where it is.
    pub fn from_env() -> Result<Option<Self>, EnvironmentError> {
        let asked = asked_by(|name| std::env::var_os(name))?;
        let choice = choose(asked.as_deref())?;
        let token = match (&choice, std::env::var_os(TOKEN_VARIABLE)) {
            (Choice::Remote(_), Some(text)) if !text.is_empty() => {
                Some(Token::new(text.as_encoded_bytes()).map_err(|source| EnvironmentError::Token { source })?)
            }
            (Choice::None | Choice::Local | Choice::Remote(_), _) => None,
        };
        Ok(Self::new(choice, token))
    }

    /// A choice that was made; `None` for none. The token is for a server whose URL and file have none.
    pub fn new(choice: Choice, token: Option<Token>) -> Option<Self> {
        match choice {
            Choice::None => None,
            Choice::Local => Some(Self {
                id: LOCAL.to_owned(),
                is_remote: false,
                backend: Lazy::new(|| Box::pin(open_local()), |_| false),
            }),
            Choice::Remote(spec) => Some(Self {
                id: spec.id.clone(),
                is_remote: true,
                // A program that fails at its start would fail at every start.
                backend: if spec.is_program {
                    Lazy::new(open_remote(spec, token), |error| error.kind() == ErrorKind::Spawn)
                } else {
                    Lazy::new(open_remote(spec, token), |_| false)
                },
            }),
        }
    }

    /// Its name: `local`, `remote` for a plain URL, else an id of `environments.toml`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether it is a server, rather than this program.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// The place itself, connected to where that has not been done, or has to be done again.
    pub async fn backend(&self) -> Result<Arc<dyn Backend>, Error> {
        self.backend.get().await
    }

    /// How it stands; starts nothing and mends nothing.
    #[must_use]
    pub fn status(&self) -> Status {
        self.backend.status()
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("id", &self.id).field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Open for Arc<dyn Backend> {
    fn health(&self) -> Health {
        match self.client().state() {
            State::Connected | State::Stalled { .. } => Health::Well,
            State::Recovering { .. } => Health::Mending,
            State::Lost { error } => Health::Lost(error),
        }
    }
}

impl RemoteSpec {
    /// Connects, with the builder's settings where this has none; the token is for a server whose URL and file have none.
    pub async fn connect(&self, mut builder: Builder, token: Option<Token>) -> Result<Client, Error> {
        let failure = ConnectFailure::Permanent;
        let failed = |reason| Error::Connect { address: self.target.to_string(), failure, reason };
        let token = match &self.token_file {
            Some(file) => Some(token_in(file.clone()).await.map_err(|error| failed(chain(&error)))?),
            None => token.filter(|_| self.target.token().is_none()),
        };
        if let Some(within) = self.connect_timeout {
            builder = builder.connect_timeout(within);
        }
        if let Some(within) = self.initialize_timeout {
            builder = builder.initialize_timeout(within);
        }
        builder
            .open(Dialer {
                target: self.target.clone(),
                token,
                tls: self.tls(),
                insecure_plaintext: self.insecure_plaintext,
            })
            .await
    }

    /// Tells apart what leads elsewhere, or to the same server as somebody else, and shows none of it: a hash of name and address,
    /// of what the address does not show, and of the token as [`connect`](Self::connect) would choose it.
    #[must_use]
    pub fn fingerprint(&self, token: Option<&Token>) -> String {
        let (file, token) = match &self.token_file {
            Some(file) => (file.as_os_str().as_encoded_bytes(), &[][..]),
            None => (&[][..], self.target.token().or(token).map_or(&[][..], |token| token.reveal().as_bytes())),
        };
        let address = self.target.to_string();
        let mut sum = Sha256::new();
        for part in [self.id.as_bytes(), address.as_bytes(), file, token].into_iter().chain(self.target.unshown()) {
            sum.update((part.len() as u64).to_le_bytes());
            sum.update(part);
        }
        sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn tls(&self) -> Tls {
        let mut tls = Tls::default();
        if let Some(file) = &self.ca_file {
            tls = tls.ca_file(file);
        }
        if let Some(Identity { cert, key }) = &self.identity {
            tls = tls.client_cert(cert, key);
        }
        tls
    }
}

/// What the variables ask for, as [`Environments::pick`] takes it.
pub fn asked_by(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<String>, EnvironmentError> {
    for variable in VARIABLES {
        let Some(value) = lookup(variable) else { continue };
        let value = value.to_str().ok_or(EnvironmentError::Variable { variable })?.trim();
        if !value.is_empty() {
            return Ok(Some(value.to_owned()));
        }
    }
    Ok(None)
}

/// Picks by name or URL, as [`Environments::pick`] does from the user's own file, which is read only where a name is asked for.
pub fn choose(name_or_url: Option<&str>) -> Result<Choice, EnvironmentError> {
    if let Some(asked) = name_or_url.map(str::trim)
        && let Some(choice) = Choice::without_file(asked)?
    {
        return Ok(choice);
    }
    users_own()?.pick(name_or_url)
}

/// The names that can be picked from the user's own file, `local` first.
pub fn names() -> Result<Vec<String>, EnvironmentError> {
    Ok(users_own()?.names())
}

fn users_own() -> Result<Environments, EnvironmentError> {
    let file = config_file(std::env::var_os("XDG_CONFIG_HOME"), std::env::home_dir());
    // Without a home there is no file, and a name in it cannot be found.
    file.map_or_else(|| Ok(Environments::empty(FILE_NAME)), |path| Environments::load(&path))
}

const FILE_NAME: &str = "environments.toml";

/// The user's own file: in the config directory, which must be absolute to count.
fn config_file(xdg: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let config = xdg.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let config = config.or_else(|| home.filter(|dir| dir.is_absolute()).map(|dir| dir.join(".config")));
    config.map(|dir| dir.join("exec-server").join(FILE_NAME))
}

/// Reads a token off the runtime's threads: the file may be a pipe that somebody fills in time.
async fn token_in(file: PathBuf) -> Result<Token, TokenError> {
    let read = {
        let file = file.clone();
        tokio::task::spawn_blocking(move || Token::from_file(file))
    };
    read.await.unwrap_or_else(|error| Err(TokenError::Io { path: file, source: error.into() }))
}

fn open_remote(
    spec: RemoteSpec,
    token: Option<Token>,
) -> impl Fn() -> BoxFuture<'static, Result<Arc<dyn Backend>, Error>> + Send + Sync + 'static {
    move || {
        let (spec, token) = (spec.clone(), token.clone());
        Box::pin(async move {
            let client = spec.connect(Client::builder().name(CLIENT_NAME), token).await?;
            Ok(Arc::new(Remote(client)) as Arc<dyn Backend>)
        })
    }
}

#[cfg(feature = "local")]
async fn open_local() -> Result<Arc<dyn Backend>, Error> {
    let local = crate::local::Local::start(crate::local::LocalConfig::default()).await?;
    Ok(Arc::new(local))
}

#[cfg(not(feature = "local"))]
async fn open_local() -> Result<Arc<dyn Backend>, Error> {
    let reason = "this program was built without the feature `local` of exec-server-client".to_owned();
    Err(Error::Spawn { program: LOCAL.to_owned(), reason })
}
