//! Servers of older generations of the protocol: how they are recognized, and what the client does differently for them.
//!
//! [`Client::server`](crate::Client::server) describes the server. Some servers speak the reference protocol without the additions of this
//! project. The client keeps to the rules of such a server. A request that the server would ignore fails with
//! [`Error::Protocol`] and is not sent.
//!
//! | [`Generation`] | detected by | differences |
//! |---|---|---|
//! | `Current` | `capabilities.ack` | none |
//! | `Reference` (S and H) | a session, no `ack` | The client tries to reconnect for 25 s. Output that the server dropped during that time is a gap. Not supported: closing stdin, resize, grace period, time limits, listing processes, second readers. H supports only the signal `interrupt`; S supports no signal. S ignores write ids: a write that a cut interrupts fails with `UnknownOutcome` |
//! | `V0` | a protocol version, no session | Supports nothing that `Reference` lacks. There is no session to resume, so a cut is `Lost`. Output cannot be read back. Signals are not supported. Stdin works only on a terminal. The environment contains only what [`Start::env`](crate::Start::env) sets |
//!
//! The rest of the client uses the methods of [`Generation`], and names no generation itself. `command` has the methods `command/*` of V0,
//! and `replay` the reads that replace missed notifications of S and H.

pub(crate) mod command;
pub(crate) mod replay;

use std::time::Duration;

use exec_server_protocol::{
    Empty,
    capabilities::ServerCapabilities,
    environment::InfoResult,
    failure::{self, Kind},
    initialize::{InitializeResult, Ttl},
    limits,
    path::{Form, PathArg},
};

use crate::{
    Request as _,
    error::Error,
    process::log::{FlowPolicy, WhenFull},
    requests,
    session::Session,
};

/// How long the client tries to resume a session on a reference server: less than the 30 s for which generation H keeps it.
const REFERENCE_RECOVERY: Duration = Duration::from_secs(25);

/// Bounds for the window that a server announces. With a smaller one, the client would acknowledge almost every event. A larger one could
/// fill the client's memory.
const WINDOW_MIN: u64 = 1 << 16;
pub(crate) const WINDOW_MAX: u64 = 16 << 20;

/// The end of a reference server's message about a session that has a connection already.
const ATTACHED: &str = "is already attached to another connection";

/// The generation of the protocol that a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Generation {
    /// The first generation: `command/exec`, no sessions, no reading back of output.
    V0,
    /// A server of the reference protocol, without the additions of this project.
    Reference,
    /// A server with acknowledgements, which counts the output that it drops.
    Current,
}

impl Generation {
    /// Recognizes the generation by the answer to `initialize`.
    pub(crate) fn of(result: &InitializeResult) -> Result<Self, Error> {
        match (&result.session_id, &result.capabilities) {
            (Some(_), Some(capabilities)) if capabilities.ack => Ok(Self::Current),
            (Some(_), _) => Ok(Self::Reference),
            (None, _) if result.protocol_version.is_some() => Ok(Self::V0),
            (None, _) => {
                let reason = "neither a session nor a protocol version".to_owned();
                Err(Error::Decode { method: requests::Initialize::NAME.to_owned(), reason })
            }
        }
    }

    /// How events of the session's own processes are sent.
    pub(crate) fn flow_policy(self, capabilities: &ServerCapabilities) -> FlowPolicy {
        match self {
            Self::Current => FlowPolicy::acked(capabilities.ack_window_bytes.clamp(WINDOW_MIN, WINDOW_MAX)),
            // Such a server has no window, so the client must stop reading the connection while a reader is behind.
            Self::V0 | Self::Reference => {
                FlowPolicy { ack_window: None, is_ordered: false, when_full: WhenFull::BlockConnection }
            }
        }
    }

    /// How long the client can rely on the server to keep the session after a cut. `ttl` is the caller's setting.
    pub(crate) fn session_ttl(self, ttl: Option<Ttl>) -> Duration {
        match (self, ttl) {
            (Self::V0, _) => Duration::ZERO,
            (Self::Reference, _) => REFERENCE_RECOVERY,
            (Self::Current, None) => limits::SESSION_TTL,
            (Self::Current, Some(Ttl::Ms(ms))) => Duration::from_millis(ms),
            (Self::Current, Some(Ttl::Unlimited)) => limits::SESSION_TTL_MAX,
        }
    }

    /// Whether the server closes a link with a special code when another connection takes the session over.
    pub(crate) fn reports_takeover(self) -> bool {
        self == Self::Current
    }

    /// Whether `process/start` may omit the working directory.
    pub(crate) fn has_default_directory(self) -> bool {
        self == Self::Current
    }

    /// Whether the server has `process/list`.
    pub(crate) fn lists_processes(self) -> bool {
        self == Self::Current
    }

    /// Whether a handle can be created for a process of the client's own session, or of another one.
    pub(crate) fn can_attach(self, is_own: bool) -> bool {
        self == Self::Current || (self == Self::Reference && is_own)
    }

    /// Whether processes are controlled by the methods `process/*`. Otherwise by `command/*`; see [`command`].
    pub(crate) fn has_process_methods(self) -> bool {
        self != Self::V0
    }

    /// False if the client must read the events that it missed during a cut, see [`replay`]. A current server pushes them again, and a V0
    /// session is never resumed.
    pub(crate) fn pushes_missed_events(self) -> bool {
        self != Self::Reference
    }
}

impl Session {
    /// Refuses a request for which there is no method in `command/*`.
    pub(crate) fn require_process_methods(&self, what: &str) -> Result<(), Error> {
        if self.generation().has_process_methods() {
            return Ok(());
        }
        let address = self.address();
        Err(Error::Protocol(format!("the server at {address} speaks exec-server.v0 and cannot {what}")))
    }

    /// The result of `environment/info`, requested once per session; `None` if the server does not know the method. Among the reference
    /// servers, only generation H knows it.
    pub(crate) async fn host_info(&self) -> Result<Option<InfoResult>, Error> {
        if self.generation() == Generation::V0 {
            return Ok(None);
        }
        let request = async || match self.call::<requests::EnvironmentInfo>(&Empty {}).await {
            Ok(info) => Ok(Some(info)),
            Err(Error::Server { code: failure::METHOD_NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(error),
        };
        self.info.get_or_try_init(request).await.cloned()
    }

    /// Whether the server remembers write ids, so that a write may be sent twice.
    pub(crate) async fn keeps_write_ids(&self) -> Result<bool, Error> {
        match self.generation() {
            Generation::Current => Ok(true),
            Generation::Reference => Ok(self.host_info().await?.is_some()),
            Generation::V0 => Ok(false),
        }
    }

    /// The working directory of a start, in the form that the server expects: a URI, or a native path for servers
    /// before generation H. If `given` is `None`, it is the default directory that the server reports, or `/` if the
    /// server reports none.
    pub(crate) async fn working_directory(&self, given: Option<PathArg>) -> Result<PathArg, Error> {
        let generation = self.generation();
        let needs_info = given.is_none() || generation == Generation::Reference;
        let info = if needs_info { self.host_info().await? } else { None };
        let takes_uris = generation == Generation::Current || info.is_some();
        let own = || info.and_then(|info| info.cwd).map_or_else(|| PathArg::new("file:///"), PathArg::new);
        let cwd = given.unwrap_or_else(own);
        match (takes_uris, cwd.resolve()) {
            (false, Ok(path)) => Ok(PathArg::new(Form::Native.write(&path))),
            (true, _) | (false, Err(_)) => Ok(cwd),
        }
    }

    /// The form of paths in file requests. Generation H takes only URIs.
    pub(crate) async fn path_form(&self) -> Result<Form, Error> {
        let takes_only_uris = self.generation() == Generation::Reference && self.host_info().await?.is_some();
        Ok(if takes_only_uris { Form::Uri } else { Form::Native })
    }

    /// Which of these options of an HTTP request the server would silently ignore. Generation S supports neither, nor `environment/info`.
    pub(crate) async fn ignored_http_option(
        &self,
        takes_variables: bool,
        stops_at_redirect: bool,
    ) -> Result<Option<&'static str>, Error> {
        if self.generation() == Generation::Current || !(takes_variables || stops_at_redirect) {
            return Ok(None);
        }
        let info = self.host_info().await?;
        if takes_variables && !info.as_ref().is_some_and(|info| info.capabilities.http_header_env_vars) {
            return Ok(Some("take header values from its environment variables"));
        }
        Ok((stops_at_redirect && info.is_none()).then_some("stop at a redirect"))
    }
}

/// Whether a second start was refused because the first one succeeded. Reference servers report this only in the message text.
pub(crate) fn is_duplicate_start(kind: Option<Kind>, message: &str) -> bool {
    kind == Some(Kind::DuplicateProcess) || (kind.is_none() && message.ends_with("already exists"))
}

/// Whether a session was not resumed because it has a connection already. Generation S reports this only in the message text.
pub(crate) fn is_attached(kind: Option<Kind>, message: &str) -> bool {
    kind.is_none() && message.ends_with(ATTACHED)
}

/// Whether a reference server announces with this error that it is shutting down.
pub(crate) fn is_shutdown(code: i64, message: &str) -> bool {
    code == -32000 && message == "JSON-RPC transport closed"
}
