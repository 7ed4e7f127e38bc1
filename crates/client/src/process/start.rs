//! Describes a process to start: program, working directory, environment and streams.

use std::{collections::BTreeMap, path::Path, time::Duration};

use exec_server_protocol::{
    ProcessId,
    path::{self, PathArg},
    process as wire,
    sandbox::SandboxContext,
};

use super::millis;

/// A process to start; see [`Client::start`](crate::Client::start).
///
/// ```
/// # use exec_server_client::Start;
/// let start = Start::new(["make", "-j8"]).cwd("/src/project").env("CC", "clang").pipe_stdin(true);
/// ```
#[derive(Debug, Clone)]
pub struct Start {
    pub(crate) id: Option<ProcessId>,
    pub(crate) argv: Vec<String>,
    pub(crate) cwd: Option<PathArg>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) env_policy: Option<wire::EnvPolicy>,
    pub(crate) tty: bool,
    pub(crate) size: Option<wire::Size>,
    pub(crate) term: Option<String>,
    pub(crate) pipe_stdin: bool,
    pub(crate) arg0: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) overflow: Option<wire::Overflow>,
    pub(crate) sandbox: Option<SandboxContext>,
    pub(crate) auto_forget: bool,
    pub(crate) terminate_on_drop: bool,
}

impl Start {
    /// A program and its arguments. Runs in the server's working directory, with a short list of the server's variables (`PATH`, `HOME`,
    /// `LANG` and the like).
    pub fn new<A: Into<String>>(argv: impl IntoIterator<Item = A>) -> Self {
        Self {
            id: None,
            argv: argv.into_iter().map(Into::into).collect(),
            cwd: None,
            env: BTreeMap::new(),
            env_policy: Some(inherit(wire::Inherit::Core, false)),
            tty: false,
            size: None,
            term: None,
            pipe_stdin: false,
            arg0: None,
            timeout: None,
            idle_timeout: None,
            overflow: None,
            sandbox: None,
            auto_forget: false,
            terminate_on_drop: false,
        }
    }

    /// Sets the name of the process, which must be unique in the session. Default: a random name.
    #[must_use]
    pub fn id(mut self, id: impl Into<ProcessId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the working directory, an absolute path on the server.
    #[must_use]
    pub fn cwd(mut self, dir: impl AsRef<Path>) -> Self {
        let dir = dir.as_ref();
        // Paths are bytes and JSON is text, so only a URI can carry every path. A URI, or a relative path that the server will refuse, is
        // sent unchanged.
        self.cwd = Some(PathArg::new(match dir.to_str() {
            Some(text) if !dir.is_absolute() => text.to_owned(),
            Some(_) | None => path::to_uri(dir),
        }));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets which of the server's variables the process inherits: all, the short list, or none. `all` leaves out names that look like
    /// secrets.
    #[must_use]
    pub fn inherit(mut self, which: wire::Inherit) -> Self {
        self.env_policy = Some(inherit(which, false));
        self
    }

    /// Sets the complete policy for the environment. `None` inherits no variables.
    #[must_use]
    pub fn env_policy(mut self, policy: Option<wire::EnvPolicy>) -> Self {
        self.env_policy = policy;
        self
    }

    /// Runs the process on a terminal of this size. Default: 24 rows by 80 columns.
    #[must_use]
    pub fn tty(mut self, size: Option<wire::Size>) -> Self {
        self.tty = true;
        self.size = size;
        self
    }

    /// Sets `TERM` for a process on a terminal.
    #[must_use]
    pub fn term(mut self, term: impl Into<String>) -> Self {
        self.term = Some(term.into());
        self
    }

    /// Opens a stdin that can be written to. Without it, and without a terminal, the process reads EOF.
    #[must_use]
    pub fn pipe_stdin(mut self, keep: bool) -> Self {
        self.pipe_stdin = keep;
        self
    }

    /// Sets `argv[0]` of the program.
    #[must_use]
    pub fn arg0(mut self, name: impl Into<String>) -> Self {
        self.arg0 = Some(name.into());
        self
    }

    /// Ends the process after this time. Its output is kept.
    #[must_use]
    pub fn timeout(mut self, after: Duration) -> Self {
        self.timeout = Some(after);
        self
    }

    /// Ends the process after this time without output.
    #[must_use]
    pub fn idle_timeout(mut self, after: Duration) -> Self {
        self.idle_timeout = Some(after);
        self
    }

    /// Sets what the server does when the output is not consumed and its memory for the process is full.
    #[must_use]
    pub fn overflow(mut self, overflow: wire::Overflow) -> Self {
        self.overflow = Some(overflow);
        self
    }

    /// Makes the server forget the process once it has ended and no reader needs its output. Requires the capability `autoForget`.
    #[must_use]
    pub fn auto_forget(mut self, forget: bool) -> Self {
        self.auto_forget = forget;
        self
    }

    /// Confines the process and everything that it starts. A server that cannot apply the sandbox refuses the start.
    #[must_use]
    pub fn sandbox(mut self, sandbox: SandboxContext) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// Ends the process when its last handle is dropped.
    #[must_use]
    pub fn terminate_on_drop(mut self, terminate: bool) -> Self {
        self.terminate_on_drop = terminate;
        self
    }

    pub(crate) fn params(&self, process_id: ProcessId, cwd: PathArg) -> wire::StartParams {
        wire::StartParams {
            process_id,
            argv: self.argv.clone(),
            cwd: Some(cwd),
            env: Some(self.env.clone()),
            env_policy: self.env_policy.clone(),
            tty: self.tty,
            pipe_stdin: self.pipe_stdin,
            arg0: self.arg0.clone(),
            size: self.size,
            term: self.term.clone(),
            timeout_ms: self.timeout.map(millis),
            idle_timeout_ms: self.idle_timeout.map(millis),
            overflow: self.overflow,
            auto_forget: self.auto_forget,
            sandbox: self.sandbox.clone(),
            enforce_managed_network: false,
            managed_network: None,
            network_proxy: None,
            shell_snapshot: None,
        }
    }
}

fn inherit(inherit: wire::Inherit, ignore_default_excludes: bool) -> wire::EnvPolicy {
    wire::EnvPolicy {
        inherit,
        ignore_default_excludes,
        exclude: Vec::new(),
        set: BTreeMap::new(),
        include_only: Vec::new(),
    }
}
