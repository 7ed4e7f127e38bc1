//! Parses the address of a server. Opens no connection.
//!
//! A token in the query is removed while parsing, and a query is never displayed, because it may contain secrets.

use std::{
    ffi::OsString,
    fmt,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use exec_server_protocol::path::percent_decode;
use exec_server_rpc::url::{Host, InvalidUrl, UrlParts};

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

pub(super) const BAD_ESCAPE: TargetError = TargetError { what: "`%` without two hexadecimal digits" };

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
    pub(super) is_tls: bool,
    /// A name or an address; IPv6 without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Host and port for the `Host` header.
    pub(super) authority: String,
    /// The request target, without the token.
    pub(super) path_and_query: String,
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
        if let Transport::Ssh(ssh) = &mut self.transport { Some(ssh) } else { None }
    }

    /// The parts of the address that `Display` leaves out: the query, or the arguments, variables and working directory of a program.
    pub(crate) fn hidden_parts(&self) -> Vec<&[u8]> {
        match &self.transport {
            Transport::WebSocket(socket) => vec![socket.path_and_query.as_bytes()],
            Transport::Unix(socket) => vec![socket.path_and_query.as_bytes()],
            Transport::Stdio(launch) => {
                let words = launch.args.iter().map(|word| word.as_bytes());
                let env = launch.env.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
                let cwd = launch.cwd.iter().map(|cwd| cwd.as_os_str().as_bytes());
                // The lists can have any length, so separate them. An argument or variable cannot equal the separator, a NUL byte.
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
        let found = ["ws", "wss", "unix", "ssh"].into_iter().find(|name| scheme.eq_ignore_ascii_case(name));
        let name = found.ok_or(TargetError { what: "the scheme is not known" })?;
        let rest = rest.strip_prefix("//").ok_or(TargetError { what: "`//` is missing after the scheme" })?;
        match name {
            "ws" | "wss" => web_socket(name == "wss", rest),
            "unix" => unix_socket(rest),
            // Only `ssh` is left.
            _ => Ok(Ssh::parse(rest)?.into()),
        }
    }
}

fn web_socket(is_tls: bool, rest: &str) -> Result<Target, TargetError> {
    let rest = without_fragment(rest);
    check_plain(rest)?;
    let url = UrlParts::parse(rest)?;
    if url.user.is_some() {
        return Err(TargetError { what: "an address with a user is supported only for `ssh://`" });
    }
    if url.port == Some(0) {
        return Err(TargetError { what: "port 0 cannot be connected to" });
    }
    let path = if url.path.is_empty() { "/" } else { &url.path };
    let (path_and_query, token) = split_token(path, url.query.as_deref())?;
    let socket = WebSocket {
        is_tls,
        port: url.port.unwrap_or(if is_tls { 443 } else { 80 }),
        authority: match url.port {
            Some(port) => format!("{}:{port}", url.host),
            None => url.host.to_string(),
        },
        host: host_name(&url.host),
        path_and_query,
    };
    Ok(Target { transport: Transport::WebSocket(socket), token })
}

/// Parses the address without a URL parser. A URL parser would remove `..` from the path, but the kernel follows symbolic links before it
/// resolves `..`.
fn unix_socket(rest: &str) -> Result<Target, TargetError> {
    let rest = without_fragment(rest);
    let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
    if !path.starts_with('/') {
        return Err(TargetError { what: "the path of the socket is not absolute" });
    }
    let path = percent_decode(path.as_bytes()).ok_or(BAD_ESCAPE)?;
    if path.contains(&0) {
        return Err(TargetError { what: "NUL character in the path" });
    }
    check_plain(query.unwrap_or_default())?;
    let (path_and_query, token) = split_token("/", query)?;
    let path = PathBuf::from(OsString::from_vec(path));
    Ok(Target { transport: Transport::Unix(UnixSocket { path, path_and_query }), token })
}

fn command(text: &str) -> Result<Launch, TargetError> {
    let mut words = command_line::split(text)?.into_iter();
    match words.next() {
        Some(program) if !program.is_empty() => Ok(Launch::new(program).args(words)),
        _ => Err(TargetError { what: "there is no command after `stdio:`" }),
    }
}

fn without_fragment(text: &str) -> &str {
    text.split_once('#').map_or(text, |(text, _)| text)
}

/// Checks that the text can be part of an HTTP request line without encoding.
fn check_plain(text: &str) -> Result<(), TargetError> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain.then_some(()).ok_or(TargetError { what: "blank, control or non-ASCII character: write it as `%XX`" })
}

/// A host without the brackets of an IPv6 address.
pub(super) fn host_name(host: &Host) -> String {
    match host {
        Host::Domain(name) => name.clone(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    }
}

/// Returns the request target without its token, and the token.
fn split_token(path: &str, query: Option<&str>) -> Result<(String, Option<Token>), TargetError> {
    let Some(query) = query else { return Ok((path.to_owned(), None)) };
    let mut token = None;
    let mut others = Vec::new();
    for pair in query.split('&') {
        let Some(value) = pair.strip_prefix("token=") else {
            others.push(pair);
            continue;
        };
        let value = zeroize::Zeroizing::new(percent_decode(value.as_bytes()).ok_or(BAD_ESCAPE)?);
        if token.replace(Token::new(value.as_slice())?).is_some() {
            return Err(TargetError { what: "more than one token" });
        }
    }
    let others = others.join("&");
    Ok((if others.is_empty() { path.to_owned() } else { format!("{path}?{others}") }, token))
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transport {
            Transport::WebSocket(socket) => {
                let scheme = if socket.is_tls { "wss" } else { "ws" };
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
    fn from(error: InvalidUrl) -> Self {
        Self { what: error.what() }
    }
}

impl From<TokenError> for TargetError {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Malformed { what } => Self { what },
            // Only a token file can have the other errors.
            _ => Self { what: "the token cannot be read" },
        }
    }
}

impl From<TargetError> for Error {
    fn from(error: TargetError) -> Self {
        let failure = ConnectFailure::Permanent;
        Self::Connect { address: "the given address".to_owned(), failure, reason: error.to_string() }
    }
}
