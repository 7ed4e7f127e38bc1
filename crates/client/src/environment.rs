//! Lets the user choose where processes run, by an environment variable, a name or a URL.
//!
//! The variables are `EXEC_SERVER_URL`, then `CODEX_EXEC_SERVER_URL`. If both are unset or empty, the default of `environments.toml`
//! applies. Without a default, processes run on this machine, unless the file excludes it. The value `none` disables processes. Every other
//! value is a name in that file, or a URL. `file` implements these rules, and `lazy` decides when to connect. This module combines them: an
//! [`Environment`] is a choice that connects on first use.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use exec_server_client::{Start, environment::Environment};
//!
//! let Some(environment) = Environment::from_env()? else { return Ok(()) };
//! let backend = environment.backend().await?;
//! let exit = backend.client().start(Start::new(["make", "test"])).await?.wait().await?;
//! # let _code = exit.code;
//! # Ok(())
//! # }
//! ```

mod error;
mod file;
mod lazy;
mod table;
#[cfg(test)]
mod tests;

pub use error::EnvironmentError;
pub use file::{Choice, Environments, Identity, LOCAL, NONE, REMOTE, RemoteSpec};
pub use lazy::EnvironmentState;

use std::{
    ffi::OsString,
    fmt,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use sha2::{Digest as _, Sha256};

use self::lazy::{Lazy, Openable};
#[cfg(feature = "local")]
use crate::local::{Local, LocalConfig};
use crate::{
    Builder, Client, ConnectionState, Error, ErrorKind, Process, Start,
    error::{ConnectFailure, chain},
    transport::{Dialer, Tls, Token, TokenError},
};

/// The variables that choose an environment. The first one that is not empty wins.
pub const VARIABLES: [&str; 2] = ["EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL"];

pub use crate::transport::TOKEN_VARIABLE;

/// The name of the client in the server's log.
const CLIENT_NAME: &str = "exec-server-environment";

/// A place where processes run. It connects on first use.
///
/// All users of an environment share one connection, and one attempt to connect. The next use after a failed attempt
/// tries again. The next use after the loss of the session creates a new session. There is one exception, for an
/// environment that is a local program (a `stdio:` URL, or `program` in the file): if the program could not be started,
/// or ended before it answered, and no attempt has succeeded yet, every use fails with the same error.
pub struct Environment {
    id: String,
    is_remote: bool,
    backend: Lazy<Backend>,
}

/// An open environment. Clones share its connection.
#[derive(Debug, Clone)]
pub enum Backend {
    /// Processes run on a server.
    Remote(Client),
    /// Processes run on this machine. The server runs inside this program.
    #[cfg(feature = "local")]
    Local(Arc<Local>),
}

impl Backend {
    /// Whether processes run on a server, on this machine or another. False if the server runs inside this program.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// The client, which starts processes and does everything else that a server offers.
    #[must_use]
    pub fn client(&self) -> &Client {
        match self {
            Self::Remote(client) => client,
            #[cfg(feature = "local")]
            Self::Local(local) => local.client(),
        }
    }
}

impl Environment {
    /// Returns the environment that the variables and the user's `environments.toml` choose; `None` if they choose `none`. The token is
    /// read from `EXEC_SERVER_TOKEN`; the variable is not removed.
    pub fn from_env() -> Result<Option<Self>, EnvironmentError> {
        let requested = value_of_variables(|name| std::env::var_os(name))?;
        let choice = choose(requested.as_deref())?;
        let token = match (&choice, std::env::var_os(TOKEN_VARIABLE)) {
            (Choice::Remote(_), Some(text)) if !text.is_empty() => {
                Some(Token::new(text.as_encoded_bytes()).map_err(|source| EnvironmentError::Token { source })?)
            }
            (Choice::None | Choice::Local | Choice::Remote(_), _) => None,
        };
        Ok(Self::new(choice, token))
    }

    /// Creates an environment from a choice; `None` for `Choice::None`. The token is used if neither the URL nor the file has one.
    pub fn new(choice: Choice, token: Option<Token>) -> Option<Self> {
        match choice {
            Choice::None => None,
            Choice::Local => Some(Self {
                id: LOCAL.to_owned(),
                is_remote: false,
                backend: Lazy::new(|| Box::pin(open_local()), |_| false),
            }),
            Choice::Remote(spec) => {
                let id = spec.id.clone();
                // A program that fails the first time is expected to fail every time.
                let is_final: fn(&Error) -> bool =
                    if spec.is_program { |error| error.kind() == ErrorKind::Spawn } else { |_| false };
                let backend = Lazy::new(move || Box::pin(open_remote(spec.clone(), token.clone())), is_final);
                Some(Self { id, is_remote: true, backend })
            }
        }
    }

    /// The name of the environment: `local`, `remote` for a plain URL, or an id from `environments.toml`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether processes run on a server, on this machine or another. False if the server runs inside this program.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Returns the back end. Connects first if it is not connected, or if its session is lost.
    pub async fn backend(&self) -> Result<Backend, Error> {
        self.backend.get().await
    }

    /// The state of the connection. Does not connect.
    #[must_use]
    pub fn status(&self) -> EnvironmentState {
        self.backend.status()
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("id", &self.id).field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Openable for Backend {
    fn state(&self) -> ConnectionState {
        self.client().state()
    }
}

impl RemoteSpec {
    /// Connects. The settings of this spec override those of the builder. The token is used if neither the URL nor the file has one.
    pub async fn connect(&self, builder: Builder, token: Option<Token>) -> Result<Client, Error> {
        let (builder, dialer) = self.configure(builder, token).await?;
        builder.open(dialer).await
    }

    /// Connects and starts a process; see [`Builder::open_and_start`].
    pub async fn connect_and_start(
        &self,
        builder: Builder,
        token: Option<Token>,
        start: Start,
        is_sent: Arc<AtomicBool>,
    ) -> Result<(Client, Result<Process, Error>), Error> {
        let (builder, dialer) = self.configure(builder, token).await?;
        builder.open_and_start(dialer, start, is_sent).await
    }

    async fn configure(&self, mut builder: Builder, token: Option<Token>) -> Result<(Builder, Dialer), Error> {
        let failure = ConnectFailure::Permanent;
        let failed = |reason| Error::Connect { address: self.target.to_string(), failure, reason };
        let token = match &self.token_file {
            Some(file) => Some(read_token(file.clone()).await.map_err(|error| failed(chain(&error)))?),
            None => token.filter(|_| self.target.token().is_none()),
        };
        if let Some(within) = self.connect_timeout {
            builder = builder.connect_timeout(within);
        }
        if let Some(within) = self.initialize_timeout {
            builder = builder.initialize_timeout(within);
        }
        let client_cert = self.identity.clone().map(|identity| (identity.cert, identity.key));
        let tls = Tls { ca_file: self.ca_file.clone(), client_cert };
        let insecure_plaintext = self.insecure_plaintext;
        Ok((builder, Dialer { target: self.target.clone(), token, tls, insecure_plaintext }))
    }

    /// A hash that identifies the server and the token without revealing them. It covers the name, the address, the parts of the address
    /// that `Display` hides, and the token that [`connect`](Self::connect) would use. For a token file it covers the path, not the content.
    #[must_use]
    pub fn fingerprint(&self, token: Option<&Token>) -> String {
        let (file, token) = match &self.token_file {
            Some(file) => (file.as_os_str().as_encoded_bytes(), &[][..]),
            None => (&[][..], self.target.token().or(token).map_or(&[][..], |token| token.reveal().as_bytes())),
        };
        let address = self.target.to_string();
        let mut sum = Sha256::new();
        let parts = [self.id.as_bytes(), address.as_bytes(), file, token];
        for part in parts.into_iter().chain(self.target.hidden_parts()) {
            // With its length, so that the boundaries between parts count.
            sum.update((part.len() as u64).to_le_bytes());
            sum.update(part);
        }
        hex::encode(sum.finalize())
    }
}

/// Returns the value of the first of the [`VARIABLES`] that is not empty, as an argument for [`Environments::pick`].
pub fn value_of_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<String>, EnvironmentError> {
    for variable in VARIABLES {
        let Some(value) = lookup(variable) else { continue };
        let value = value.to_str().ok_or(EnvironmentError::Variable { variable })?.trim();
        if !value.is_empty() {
            return Ok(Some(value.to_owned()));
        }
    }
    Ok(None)
}

/// Chooses by name or URL like [`Environments::pick`], from the user's own file. The file is not read for `none` or a URL.
pub fn choose(name_or_url: Option<&str>) -> Result<Choice, EnvironmentError> {
    if let Some(requested) = name_or_url.map(str::trim)
        && let Some(choice) = Choice::without_file(requested)?
    {
        return Ok(choice);
    }
    user_file()?.pick(name_or_url)
}

/// The names that can be chosen with the user's own file; see [`Environments::names`].
pub fn names() -> Result<Vec<String>, EnvironmentError> {
    Ok(user_file()?.names())
}

fn user_file() -> Result<Environments, EnvironmentError> {
    let file = config_file(std::env::var_os("XDG_CONFIG_HOME"), std::env::home_dir());
    // Without a home directory there is no file, and only `local` is known.
    file.map_or_else(|| Ok(Environments::empty(FILE_NAME)), |path| Environments::load(&path))
}

const FILE_NAME: &str = "environments.toml";

/// The user's own file, in the config directory. Relative config and home directories are ignored.
fn config_file(xdg: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let config = xdg.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let config = config.or_else(|| home.filter(|dir| dir.is_absolute()).map(|dir| dir.join(".config")));
    config.map(|dir| dir.join("exec-server").join(FILE_NAME))
}

/// Reads a token on a blocking thread: the file may be a pipe whose writer is slow.
async fn read_token(file: PathBuf) -> Result<Token, TokenError> {
    let path = file.clone();
    let read = tokio::task::spawn_blocking(move || Token::from_file(path));
    read.await.unwrap_or_else(|error| Err(TokenError::Io { path: file, source: error.into() }))
}

async fn open_remote(spec: RemoteSpec, token: Option<Token>) -> Result<Backend, Error> {
    spec.connect(Client::builder().name(CLIENT_NAME), token).await.map(Backend::Remote)
}

#[cfg(feature = "local")]
async fn open_local() -> Result<Backend, Error> {
    Ok(Backend::Local(Arc::new(Local::start(LocalConfig::default()).await?)))
}

#[cfg(not(feature = "local"))]
async fn open_local() -> Result<Backend, Error> {
    let reason = "this program was built without the feature `local` of exec-server-client".to_owned();
    Err(Error::Spawn { program: LOCAL.to_owned(), reason })
}
