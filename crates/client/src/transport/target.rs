//! Parses the address of a server. Opens no connection.
//!
//! A token in the query is removed while parsing, and a query is never displayed, because it may contain secrets.

use std::{
    ffi::OsString,
    fmt,
    net::Ipv6Addr,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use exec_server_rpc::url::{self, InvalidUrl};

use super::{
    command_line,
    launch::Launch,
    ssh::Ssh,
    token::{Token, TokenError},
};
use crate::error::{ConnectFailure, Error};

/// Why a text is not the address of a server. Never contains the text, which may include a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what}; an address is one of `ws://HOST:PORT`, `wss://HOST`, `unix:///PATH`, `stdio:COMMAND ARGS`, \
     `ssh://[USER@]HOST[:PORT][/PATH-TO-EXEC-SERVER]`"
)]
pub struct TargetError {
    /// The problem with the address.
    what: &'static str,
}

/// The address of a server, and the token that was part of it. Neither `Display` nor `Debug` shows a token or a query.
///
/// ```
/// use exec_server_client::transport::Target;
///
/// let target: Target = "ws://127.0.0.1:7777/?token=s3cret".parse()?;
/// assert_eq!(target.to_string(), "ws://127.0.0.1:7777/");
/// assert!(target.token().is_some());
/// # Ok::<(), exec_server_client::transport::TargetError>(())
/// ```
#[derive(Clone)]
pub struct Target {
    pub(super) transport: Transport,
    token: Option<Token>,
}

/// The transport to a server.
#[derive(Clone)]
pub(super) enum Transport {
    WebSocket(WebSocket),
    Unix(UnixSocket),
    Stdio(Launch),
    Ssh(Ssh),
}

/// A WebSocket over TCP.
#[derive(Clone)]
pub(super) struct WebSocket {
    pub(super) scheme: WebSocketScheme,
    /// A name or an address; IPv6 without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Host and port as they were written, for the `Host` header.
    pub(super) authority: String,
    /// The request target, without the token.
    pub(super) path_and_query: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WebSocketScheme {
    Plain,
    Tls,
}

/// A WebSocket over a Unix socket.
#[derive(Clone)]
pub(super) struct UnixSocket {
    pub(super) path: PathBuf,
    /// The request target, without the token.
    pub(super) path_and_query: String,
}

impl Target {
    /// The token that was part of the address.
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// The settings of an `ssh://` target, to change its program or options; `None` for other targets.
    pub fn ssh_mut(&mut self) -> Option<&mut Ssh> {
        match &mut self.transport {
            Transport::Ssh(ssh) => Some(ssh),
            Transport::WebSocket(_) | Transport::Unix(_) | Transport::Stdio(_) => None,
        }
    }

    /// The parts of the address that `Display` leaves out: the query, or the arguments, variables and working directory of a program.
    pub(crate) fn hidden_parts(&self) -> Vec<&[u8]> {
        match &self.transport {
            Transport::WebSocket(WebSocket { path_and_query, .. })
            | Transport::Unix(UnixSocket { path_and_query, .. }) => {
                vec![path_and_query.as_bytes()]
            }
            Transport::Stdio(launch) => {
                let words = launch.args.iter().map(|word| word.as_bytes());
                let env = launch.env.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
                let cwd = launch.cwd.iter().map(|cwd| cwd.as_os_str().as_bytes());
                // Two separators that no argument can equal, because arguments, variables and directory are lists of any length.
                words.chain([&b"\0"[..]]).chain(env).chain([&b"\0"[..]]).chain(cwd).collect()
            }
            Transport::Ssh(_) => Vec::new(),
        }
    }

    /// A WebSocket on the Unix socket at this path.
    #[must_use]
    pub fn unix(path: impl AsRef<Path>) -> Self {
        let socket = UnixSocket { path: path.as_ref().to_owned(), path_and_query: "/".to_owned() };
        Self { transport: Transport::Unix(socket), token: None }
    }
}

impl From<Launch> for Target {
    fn from(launch: Launch) -> Self {
        Self { transport: Transport::Stdio(launch), token: None }
    }
}

impl From<Ssh> for Target {
    fn from(ssh: Ssh) -> Self {
        Self { transport: Transport::Ssh(ssh), token: None }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (scheme, rest) = text.split_once(':').ok_or(TargetError { what: "the address has no scheme" })?;
        // A command has no authority, so it follows the colon without `//`.
        if scheme.eq_ignore_ascii_case("stdio") {
            return Ok(command(rest)?.into());
        }
        let known = ["ws", "wss", "unix", "ssh"].into_iter().find(|known| scheme.eq_ignore_ascii_case(known));
        let known = known.ok_or(TargetError { what: "the scheme is not known" })?;
        let rest = rest.strip_prefix("//").ok_or(TargetError { what: "`//` is missing behind the scheme" })?;
        match known {
            "ws" => web_socket(WebSocketScheme::Plain, rest),
            "wss" => web_socket(WebSocketScheme::Tls, rest),
            "unix" => unix_socket(rest),
            _ => Ok(Ssh::parse(rest)?.into()),
        }
    }
}

fn web_socket(scheme: WebSocketScheme, rest: &str) -> Result<Target, TargetError> {
    let rest = without_fragment(rest);
    let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (host, port) = url::split_authority(authority, scheme.port())?;
    if !is_host(host, authority.starts_with('[')) {
        return Err(TargetError { what: "the host is neither a name nor an address" });
    }
    if port == 0 {
        return Err(TargetError { what: "port 0 cannot be connected to" });
    }
    let (path_and_query, token) = split_token(&url::origin_form(target))?;
    let (host, authority) = (host.to_owned(), authority.to_owned());
    Ok(Target { transport: Transport::WebSocket(WebSocket { scheme, host, port, authority, path_and_query }), token })
}

fn unix_socket(rest: &str) -> Result<Target, TargetError> {
    let rest = without_fragment(rest);
    let (path, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    if !path.starts_with('/') {
        return Err(TargetError { what: "the path of the socket is not absolute" });
    }
    let path = url::percent_decode(path)?;
    if path.contains(&0) {
        return Err(TargetError { what: "NUL character in the path" });
    }
    let (path_and_query, token) = split_token(&url::origin_form(query))?;
    let path = PathBuf::from(OsString::from_vec(path));
    Ok(Target { transport: Transport::Unix(UnixSocket { path, path_and_query }), token })
}

fn command(text: &str) -> Result<Launch, TargetError> {
    let mut words = command_line::split(text)?.into_iter();
    match words.next() {
        Some(program) if !program.is_empty() => Ok(Launch::new(program).args(words)),
        _ => Err(TargetError { what: "there is no command behind `stdio:`" }),
    }
}

fn without_fragment(text: &str) -> &str {
    text.split_once('#').map_or(text, |(text, _)| text)
}

/// Whether the text is a host name or an address. Only an IPv6 address may be in brackets.
pub(super) fn is_host(host: &str, is_bracketed: bool) -> bool {
    if is_bracketed {
        return host.parse::<Ipv6Addr>().is_ok();
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !host.is_empty() && !host.starts_with('-') && host.bytes().all(is_name)
}

/// Moves the token out of a request target.
fn split_token(target: &str) -> Result<(String, Option<Token>), TargetError> {
    if !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(TargetError { what: "blank, control or non-ASCII character: write it as `%XX`" });
    }
    let Some((path, query)) = target.split_once('?') else { return Ok((target.to_owned(), None)) };
    let (mut token, mut others) = (None, Vec::new());
    for pair in query.split('&') {
        let Some(value) = pair.strip_prefix("token=") else {
            others.push(pair);
            continue;
        };
        let value = zeroize::Zeroizing::new(url::percent_decode(value)?);
        if token.replace(Token::new(value.as_slice())?).is_some() {
            return Err(TargetError { what: "more than one token" });
        }
    }
    let others = others.join("&");
    Ok((if others.is_empty() { path.to_owned() } else { format!("{path}?{others}") }, token))
}

impl WebSocketScheme {
    fn port(self) -> u16 {
        match self {
            Self::Plain => 80,
            Self::Tls => 443,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transport {
            Transport::WebSocket(socket) => {
                let scheme = match socket.scheme {
                    WebSocketScheme::Plain => "ws",
                    WebSocketScheme::Tls => "wss",
                };
                let path = socket.path_and_query.split('?').next().unwrap_or_default();
                write!(f, "{scheme}://{}{path}", socket.authority)
            }
            Transport::Unix(socket) => write!(f, "unix://{}", socket.path.display()),
            Transport::Stdio(launch) => fmt::Display::fmt(launch, f),
            Transport::Ssh(ssh) => fmt::Display::fmt(ssh, f),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("address", &self.to_string()).field("token", &self.token).finish()
    }
}

impl TargetError {
    pub(super) const fn new(what: &'static str) -> Self {
        Self { what }
    }
}

impl From<InvalidUrl> for TargetError {
    fn from(InvalidUrl { what }: InvalidUrl) -> Self {
        Self { what }
    }
}

impl From<TokenError> for TargetError {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Malformed { what } => Self { what },
            // Only a token file can have these errors.
            TokenError::Io { .. }
            | TokenError::NotAFile { .. }
            | TokenError::Owner { .. }
            | TokenError::Mode { .. } => Self { what: "the token cannot be read" },
        }
    }
}

impl From<TargetError> for Error {
    fn from(error: TargetError) -> Self {
        let failure = ConnectFailure::Permanent;
        Self::Connect { address: "the given address".to_owned(), failure, reason: error.to_string() }
    }
}
