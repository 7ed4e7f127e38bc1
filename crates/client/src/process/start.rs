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
#[must_use]
pub struct Start {
    /// The name of the process; `None` for a random one.
    pub(crate) id: Option<ProcessId>,
    /// The request, without the process id.
    pub(crate) params: wire::StartParams,
    pub(crate) terminate_on_drop: bool,
}

impl Start {
    /// A program and its arguments. By default, the process runs in the first root of the client's token, or without
    /// roots in the server's own working directory. It inherits a short list of the server's variables (`PATH`, `HOME`,
    /// `LANG` and the like).
    pub fn new<A: Into<String>>(argv: impl IntoIterator<Item = A>) -> Self {
        let params = wire::StartParams {
            process_id: ProcessId::from(""),
            argv: argv.into_iter().map(Into::into).collect(),
            cwd: None,
            env: Some(BTreeMap::new()),
            env_policy: Some(wire::EnvPolicy::core()),
            tty: false,
            pipe_stdin: false,
            arg0: None,
            size: None,
            term: None,
            timeout_ms: None,
            idle_timeout_ms: None,
            overflow: None,
            auto_forget: false,
            sandbox: None,
            enforce_managed_network: false,
            managed_network: None,
            network_proxy: None,
            shell_snapshot: None,
        };
        Self { id: None, params, terminate_on_drop: false }
    }

    setters! {
        /// Sets the name of the process, which must be unique in the session. Default: a random name.
        id(id: impl Into<ProcessId>) => id = Some(id.into());

        /// Sets the complete policy for the environment. `None` inherits no variables.
        env_policy(policy: Option<wire::EnvPolicy>) => params.env_policy = policy;

        /// Sets `TERM` for a process on a terminal.
        term(term: impl Into<String>) => params.term = Some(term.into());

        /// Opens a stdin that can be written to. Without a pipe or a terminal, the process reads EOF.
        pipe_stdin(open: bool) => params.pipe_stdin = open;

        /// Sets `argv[0]` of the program.
        arg0(name: impl Into<String>) => params.arg0 = Some(name.into());

        /// Ends the process after this time. Its output is kept.
        timeout(after: Duration) => params.timeout_ms = Some(millis(after));

        /// Ends the process after this time without output.
        idle_timeout(after: Duration) => params.idle_timeout_ms = Some(millis(after));

        /// Sets what the server does when the output is not consumed and its memory for the process is full.
        overflow(overflow: wire::Overflow) => params.overflow = Some(overflow);

        /// Makes the server forget the process once it has ended and no reader needs its output. Requires the capability `autoForget`.
        auto_forget(forget: bool) => params.auto_forget = forget;

        /// Confines the process and everything that it starts. A server that cannot apply the sandbox refuses the start.
        sandbox(sandbox: SandboxContext) => params.sandbox = Some(sandbox);

        /// Ends the process when its last handle is dropped.
        terminate_on_drop(terminate: bool) => terminate_on_drop = terminate;
    }

    /// Sets which of the server's variables the process inherits: all, the short list, or none. `all` leaves out names that look like
    /// secrets.
    pub fn inherit(self, which: wire::Inherit) -> Self {
        self.env_policy(Some(wire::EnvPolicy { inherit: which, ..wire::EnvPolicy::core() }))
    }

    /// Sets the working directory, an absolute path on the server.
    pub fn cwd(mut self, dir: impl AsRef<Path>) -> Self {
        let dir = dir.as_ref();
        // Paths are bytes and JSON is text, so only a URI can carry every path. A URI, or a relative path that the server will refuse, is
        // sent unchanged.
        self.params.cwd = Some(PathArg::new(match dir.to_str() {
            Some(text) if !dir.is_absolute() => text.to_owned(),
            Some(_) | None => path::to_uri(dir),
        }));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.params.env.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// Runs the process on a terminal of this size. Default: 24 rows by 80 columns.
    pub fn tty(mut self, size: Option<wire::Size>) -> Self {
        self.params.tty = true;
        self.params.size = size;
        self
    }
}
