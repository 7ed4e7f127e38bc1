//! Reads `environments.toml`: the names of a user's servers, and the default.
//!
//! ```toml
//! default = "build"             # an id, `local` or `none`; absent: `local`, or `none` if `include_local` is false
//! include_local = true          # false: nothing runs on this machine
//!
//! [[environments]]
//! id = "build"
//! url = "wss://build.example:4000"    # or ws, unix, ssh, stdio:COMMAND
//! token_file = "build.token"          # paths are relative to this file
//! connect_timeout_sec = 5
//! path = ["~/.local/bin"]             # in front of the PATH of programs that `run` starts there
//! env = { LANG = "C.UTF-8" }          # variables of these programs; with `program`, variables of that program
//!
//! [[environments]]
//! id = "box"
//! program = "docker"                  # a program that speaks on its standard streams
//! args = ["exec", "-i", "box", "exec-server", "serve", "--listen", "stdio"]
//! ```
//!
//! Implements the rules of the file, and the choice by name or URL. Opens no connection and reads no environment variable.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    EnvironmentError,
    error::name_list,
    table::{self, EntryTable, FileTable},
};
use crate::transport::{Launch, Target, TargetError};

/// The name of this machine.
pub const LOCAL: &str = "local";

/// The name that disables processes. Its case does not matter.
pub const NONE: &str = "none";

/// The id of an environment that was given as a URL.
pub const REMOTE: &str = "remote";

/// The longest id, in characters.
const ID_MAX: usize = 64;

/// Where processes run.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "made once in the life of a program")]
pub enum Choice {
    /// Nowhere: processes are disabled.
    None,
    /// On this machine.
    Local,
    /// On a server.
    Remote(RemoteSpec),
}

/// A server, and how to connect to it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RemoteSpec {
    /// The name of the environment; [`REMOTE`] for a plain URL.
    pub id: String,
    /// The address of the server, or the program that connects to it.
    pub target: Target,
    /// Whether a local program, given by `program` or a `stdio:` URL, is the server or connects to it. If such a
    /// program cannot be started, a retry does not help. False for `ssh://`.
    pub is_program: bool,
    /// Timeout for connecting; `None` for the client's default.
    pub connect_timeout: Option<Duration>,
    /// Timeout for the answer to `initialize`; `None` for the client's default.
    pub initialize_timeout: Option<Duration>,
    /// The absolute path of the token file.
    pub token_file: Option<PathBuf>,
    /// The absolute path of a PEM file with the authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Allows sending the token in clear text to a `ws://` server on another machine.
    pub insecure_plaintext: bool,
    /// The client certificate and its key, as absolute paths of PEM files.
    pub identity: Option<Identity>,
    /// Variables for the processes that are started on the server.
    pub env: Vec<(String, String)>,
    /// Directories on the server's host that are searched for programs before its `PATH`. `~/` is the home directory there.
    pub path: Vec<String>,
}

/// The files of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, with its chain.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

/// The environments that a file defines.
#[derive(Debug, Clone)]
pub struct Environments {
    path: PathBuf,
    default: Option<String>,
    includes_local: bool,
    /// In the order of the file.
    specs: Vec<RemoteSpec>,
}

impl Environments {
    /// Creates a value with no name but `local`, as if the file were empty.
    pub fn empty(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), default: None, includes_local: true, specs: Vec::new() }
    }

    /// Reads a file. A missing file counts as empty.
    pub fn load(path: &Path) -> Result<Self, EnvironmentError> {
        let failed = |source| EnvironmentError::Read { path: path.to_owned(), source };
        let path = std::path::absolute(path).map_err(failed)?;
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, &path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::empty(path)),
            Err(source) => Err(failed(source)),
        }
    }

    /// Parses the text of a file. `path` is the file's name in errors. Relative paths in the file start from its directory.
    pub fn parse(text: &str, path: &Path) -> Result<Self, EnvironmentError> {
        let file: FileTable = toml::from_str(text).map_err(|error| table::file_error(text, path, &error))?;
        let mut all = Self::empty(path);
        all.includes_local = file.include_local.unwrap_or(true);
        for (at, entry) in file.environments.into_iter().enumerate() {
            // Errors name the entry by its position until its id is known to be valid.
            let mut reader = EntryReader { path, environment: Some(format!("#{}", at + 1)) };
            let id = entry.id.clone().ok_or_else(|| reader.fault("id", "missing; every environment needs one"))?;
            check_id(&id).map_err(|reason| reader.fault("id", reason))?;
            reader.environment = Some(id.clone());
            if all.get(&id).is_some() {
                return Err(reader.fault("id", format!("`{id}` is used twice; every environment needs its own id")));
            }
            all.specs.push(reader.spec(id, entry)?);
        }
        if let Some(id) = &file.default {
            let known = all.names();
            if !id.eq_ignore_ascii_case(NONE) && !known.contains(id) {
                let reason = format!("`{id}` is not an environment; use one of {}, or `none`", name_list(&known));
                return Err(EntryReader { path, environment: None }.fault("default", reason));
            }
        }
        all.default = file.default;
        Ok(all)
    }

    /// Chooses an environment by name or URL. Surrounding whitespace is ignored. An empty or absent value chooses the
    /// default of the file. The default of a file that sets none is `local`, or `none` if the file excludes `local`.
    pub fn pick(&self, name_or_url: Option<&str>) -> Result<Choice, EnvironmentError> {
        let requested = name_or_url.map(str::trim).filter(|requested| !requested.is_empty());
        let Some(requested) = requested.or(self.default.as_deref()) else {
            return Ok(if self.includes_local { Choice::Local } else { Choice::None });
        };
        if let Some(choice) = Choice::without_file(requested)? {
            return Ok(choice);
        }
        match self.get(requested) {
            Some(spec) => Ok(Choice::Remote(spec.clone())),
            None if requested == LOCAL && self.includes_local => Ok(Choice::Local),
            None => {
                let name = requested.to_owned();
                Err(EnvironmentError::Unknown { name, path: self.path.clone(), known: self.names() })
            }
        }
    }

    /// The server with this name.
    pub fn get(&self, id: &str) -> Option<&RemoteSpec> {
        self.specs.iter().find(|spec| spec.id == id)
    }

    /// Every name that can be chosen except `none`: `local` first, unless the file excludes it, then the ids in the order of the file.
    pub fn names(&self) -> Vec<String> {
        let local = self.includes_local.then(|| LOCAL.to_owned());
        local.into_iter().chain(self.specs.iter().map(|spec| spec.id.clone())).collect()
    }
}

impl Choice {
    /// Handles the values that need no file: `none` and URLs. Returns `None` for a value that must be a name.
    pub fn without_file(requested: &str) -> Result<Option<Self>, EnvironmentError> {
        if requested.eq_ignore_ascii_case(NONE) {
            return Ok(Some(Self::None));
        }
        // A name never contains a colon, and a URL always does.
        if !requested.contains(':') {
            return Ok(None);
        }
        let spec = RemoteSpec::at(REMOTE, requested);
        spec.map(Self::Remote).map(Some).map_err(|error| EnvironmentError::Url { reason: error.to_string() })
    }
}

impl RemoteSpec {
    /// A server at a URL, with defaults for everything else.
    pub fn at(id: impl Into<String>, url: &str) -> Result<Self, TargetError> {
        let target = url.parse()?;
        Ok(Self::new(id.into(), target, scheme(url).eq_ignore_ascii_case("stdio")))
    }

    fn new(id: String, target: Target, is_program: bool) -> Self {
        Self {
            id,
            target,
            is_program,
            connect_timeout: None,
            initialize_timeout: None,
            token_file: None,
            ca_file: None,
            identity: None,
            insecure_plaintext: false,
            env: Vec::new(),
            path: Vec::new(),
        }
    }
}

/// Checks and converts one entry of `[[environments]]`. Errors name the file, the environment and the key.
struct EntryReader<'a> {
    path: &'a Path,
    /// `None` for a key of the whole file.
    environment: Option<String>,
}

impl EntryReader<'_> {
    fn fault(&self, key: &str, reason: impl Into<String>) -> EnvironmentError {
        let environment = self.environment.clone();
        let reason = reason.into();
        EnvironmentError::Key { path: self.path.to_owned(), environment, key: key.to_owned(), reason, line: None }
    }

    /// A relative path starts from the directory of the file.
    fn resolve(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    fn spec(&self, id: String, entry: EntryTable) -> Result<RemoteSpec, EnvironmentError> {
        self.check_use(&entry)?;
        if let Some(bad) = entry.path.iter().flatten().find(|dir| !is_search_directory(dir)) {
            return Err(self.fault("path", format!("`{bad}` must begin with `/` or `~/` and contain no colon")));
        }
        let identity = match (&entry.client_cert, &entry.client_key) {
            (Some(cert), Some(key)) => Some(Identity { cert: self.resolve(cert), key: self.resolve(key) }),
            (Some(_), None) => return Err(self.fault("client_cert", "needs `client_key` beside it")),
            (None, Some(_)) => return Err(self.fault("client_key", "needs `client_cert` beside it")),
            (None, None) => None,
        };
        Ok(RemoteSpec {
            connect_timeout: entry.connect_timeout_sec,
            initialize_timeout: entry.initialize_timeout_sec,
            token_file: entry.token_file.as_ref().map(|file| self.resolve(file)),
            ca_file: entry.ca_file.as_ref().map(|file| self.resolve(file)),
            insecure_plaintext: entry.insecure_plaintext.unwrap_or(false),
            identity,
            ..self.server(id, entry)?
        })
    }

    /// The server at a URL or behind a program, with the variables and directories that belong to it.
    fn server(&self, id: String, entry: EntryTable) -> Result<RemoteSpec, EnvironmentError> {
        let path = entry.path.unwrap_or_default();
        match (entry.url, entry.program) {
            (Some(_), Some(_)) => Err(self.fault("program", "cannot be combined with `url`; give one of them")),
            (None, Some(program)) => {
                // A plain name is looked up in `PATH`.
                let program = if program.contains('/') { self.resolve(program) } else { program.into() };
                let mut launch = Launch::new(program).args(entry.args.unwrap_or_default());
                launch.env = entry.env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
                launch.cwd = entry.cwd.map(|cwd| self.resolve(cwd));
                Ok(RemoteSpec { path, ..RemoteSpec::new(id, launch.into(), true) })
            }
            _ if entry.args.is_some() => Err(self.fault("args", "needs `program` beside it")),
            _ if entry.cwd.is_some() => Err(self.fault("cwd", "needs `program` beside it")),
            (Some(url), None) => {
                let spec = RemoteSpec::at(id, url.trim());
                let spec = spec.map_err(|error| self.fault("url", error.to_string()))?;
                Ok(RemoteSpec { env: entry.env.into_iter().collect(), path, ..spec })
            }
            (None, None) => Err(self.fault("url", "missing; give either `url` or `program`")),
        }
    }

    /// Refuses a key that has no effect for the scheme of the URL. The user would rely on a token or certificate that is never used.
    fn check_use(&self, entry: &EntryTable) -> Result<(), EnvironmentError> {
        let scheme = entry.url.as_deref().map_or("", |url| scheme(url.trim()));
        let rules: [(_, bool, &[&str], _); 4] = [
            ("insecure_plaintext", entry.insecure_plaintext.is_some(), &["ws"], "ws"),
            ("token_file", entry.token_file.is_some(), &["ws", "wss", "unix"], "ws, wss and unix"),
            ("ca_file", entry.ca_file.is_some(), &["wss"], "wss"),
            ("client_cert", entry.client_cert.is_some(), &["wss"], "wss"),
        ];
        for (key, is_set, allowed, allowed_text) in rules {
            let is_allowed = allowed.iter().any(|allowed| scheme.eq_ignore_ascii_case(allowed));
            if is_set && !is_allowed {
                return Err(self.fault(key, format!("only for {allowed_text} URLs")));
            }
        }
        Ok(())
    }
}

/// Whether a directory can be an element of `PATH`.
fn is_search_directory(dir: &str) -> bool {
    (dir.starts_with('/') || dir.starts_with("~/")) && !dir.contains([':', '\0'])
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn check_id(id: &str) -> Result<(), String> {
    if id.eq_ignore_ascii_case(LOCAL) || id.eq_ignore_ascii_case(NONE) {
        return Err(format!("`{id}` is reserved; choose another name"));
    }
    let is_good = (1..=ID_MAX).contains(&id.chars().count())
        && id.trim() == id
        // It would be parsed as a URL.
        && !id.contains(':')
        && !id.contains(char::is_control);
    is_good.then_some(()).ok_or_else(|| {
        format!("must have 1 to {ID_MAX} characters, no colon, no control character and no blank at either end")
    })
}
