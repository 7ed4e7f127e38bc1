//! Starts the MCP servers of one configuration in parallel, each at its configured place, and restarts those that crash.
//!
//! ```text
//!             start                handshake, tools/list
//!  notStarted ─────▶ starting ───────────────────────────▶ ready ──crash──▶ starting (with a pause) ─▶ …
//!                       ├─ failed, authenticationRequired            └─ too often ─▶ failed
//!                       └─ cancelled (shutdown)
//! ```
//! `server` runs one server from its start to its end and owns its connection. `start` makes one attempt to get a server ready.
//! `connection` sends requests and waits for answers. `handler` answers the requests of servers. `list` reads paged lists, `call` prepares
//! tool calls, and `hosts` opens the executors.
//!
//! When a server crashes, the calls in progress fail with [`Error::Crashed`]. They are not repeated, because they may
//! have had an effect. The next call waits for the restart. Servers are started only by [`Manager::start`],
//! [`Manager::restart`] or a request to a server, never by [`Manager::status`]. [`Manager::shutdown`] ends everything,
//! including calls in progress, and returns when all servers are gone. Dropping the manager terminates the servers in
//! the background. The sessions on the executors then end after their time-to-live.

mod call;
mod connection;
mod error;
mod handler;
mod hosts;
mod list;
mod server;
mod snapshot;
mod start;
mod state;

use std::{collections::BTreeMap, fmt, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rmcp::model::{Prompt, Resource, ResourceTemplate, ServerPeerInfo, Tool};
use serde_json::{Map, Value, json};
use tokio::{
    sync::{broadcast, watch},
    task::JoinSet,
};

use self::{
    server::{ManagedServer, StartMode},
    start::ManagerContext,
    state::UPDATES,
};
use crate::{config::Config, env::Variables, transport::StderrLog};

pub use call::{CallResult, SandboxState, ToolCall};
pub use error::Error;
pub use handler::{Action, Answer, Elicit, Question};
pub use hosts::{Host, Hosts, KEEP, PlacementError, place_of};
pub use snapshot::{ServerAuth, ServerSnapshot, Snapshot, SnapshotDetail};
pub use state::{ServerStatus, ServerUpdate, Summary, Updates};

/// The settings of a manager, apart from its hosts.
#[derive(Clone)]
pub struct Settings {
    pub config: Config,
    /// Our environment variables. A server on this machine gets a few of them. The configuration of a server may name others.
    pub variables: Variables,
    /// Working directory of servers that configure none, and base of a relative one. If absent, servers that configure none run in the
    /// executor's working directory.
    pub cwd: Option<PathBuf>,
    /// The client name that servers see in the handshake.
    pub client_name: String,
    /// Answers questions of servers to the user. If absent, questions are declined.
    pub elicit: Option<Arc<dyn Elicit>>,
    /// When and how often a crashed server is restarted.
    pub restarts: Restarts,
}

impl Settings {
    /// Settings with defaults: no variables, the executors' working directories, and questions to the user are declined.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            variables: Variables::new(),
            cwd: None,
            client_name: "exec-server".to_owned(),
            elicit: None,
            restarts: Restarts::default(),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Variables may be secrets, so they are not printed.
        f.debug_struct("Settings").field("config", &self.config).field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

/// The restart policy for a crashed server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restarts {
    /// The maximum number of restarts after crashes in a row. After one more crash the server counts as failed. Failures of its executor
    /// do not count.
    pub most: u32,
    /// The pause before the first restart. Each further pause is twice as long, up to `longest_pause`.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// If the server was ready for this long before a crash, the count of crashes in a row starts again.
    pub settled: Duration,
}

impl Default for Restarts {
    fn default() -> Self {
        Self {
            most: 5,
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(10),
            settled: Duration::from_secs(60),
        }
    }
}

/// A tool and the server that offers it.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerTool {
    pub server: String,
    /// The tool, under the name that its server gives it.
    pub tool: Tool,
}

/// The servers of a configuration. See the module documentation.
pub struct Manager {
    context: Arc<ManagerContext>,
    servers: BTreeMap<String, Arc<ManagedServer>>,
    /// Whether `shutdown` also ends the sessions on the hosts. False for the temporary manager of a snapshot, which shares the hosts.
    owns_hosts: bool,
    stop: watch::Sender<bool>,
    /// One task per server, and one per call of `start` that sends the summary.
    tasks: Mutex<JoinSet<()>>,
}

impl Manager {
    /// Creates a manager. No server is started yet.
    #[must_use]
    pub fn new(settings: Settings, hosts: Hosts) -> Self {
        Self::on(settings, Arc::new(hosts), true)
    }

    fn on(settings: Settings, hosts: Arc<Hosts>, owns_hosts: bool) -> Self {
        let updates = broadcast::Sender::new(UPDATES);
        let servers = settings.config.servers.iter();
        let servers = servers
            .map(|(name, config)| (name.clone(), Arc::new(ManagedServer::new(name, config.clone(), updates.clone()))))
            .collect();
        let context = Arc::new(ManagerContext { settings, hosts, updates });
        Self { context, servers, owns_hosts, stop: watch::Sender::new(false), tasks: Mutex::default() }
    }

    /// Starts every enabled server that is not started yet, in parallel. Returns at once.
    pub fn start(&self) {
        for server in self.servers.values() {
            self.begin(server, StartMode::First);
        }
        let summary = self.summary();
        let updates = self.context.updates.clone();
        // Boxed, so that tokio's task code is compiled for one type of future only.
        let report: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            // Fails only without subscribers.
            updates.send(ServerUpdate::Summary(summary.await)).ok();
        });
        let mut tasks = self.tasks.lock();
        if !*self.stop.borrow() {
            tasks.spawn(report);
        }
    }

    /// Starts every server and waits until none is starting. Fails only if a `required` server cannot be used.
    pub async fn start_all(&self) -> Result<Summary, Error> {
        self.start();
        let summary = self.summary().await;
        let required = self.servers.values().filter(|server| server.config.required && server.config.enabled);
        let failed = required.filter_map(|server| {
            let status = server.status();
            let is_failed = status.reason().is_some() || status == ServerStatus::Cancelled;
            is_failed.then(|| (server.name.clone(), status.reason().unwrap_or(status.word()).to_owned()))
        });
        let failed: Vec<_> = failed.collect();
        if failed.is_empty() { Ok(summary) } else { Err(Error::Required { failed }) }
    }

    /// Starts a server again after it has failed or required authentication, as if for the first time. Also starts a server that was never
    /// started. Has no effect in any other status. Returns at once.
    pub fn restart(&self, server: &str) -> Result<(), Error> {
        self.begin(self.find(server)?, StartMode::AfterFailure);
        Ok(())
    }

    /// The status of every server, by name. Starts nothing.
    #[must_use]
    pub fn status(&self) -> BTreeMap<String, ServerStatus> {
        self.servers.iter().map(|(name, server)| (name.clone(), server.status())).collect()
    }

    /// Subscribes to updates from now on.
    #[must_use]
    pub fn updates(&self) -> Updates {
        Updates(self.context.updates.subscribe())
    }

    /// The server's information from its last handshake. `None` before the first one.
    #[must_use]
    pub fn info(&self, server: &str) -> Option<ServerPeerInfo> {
        self.servers.get(server)?.info()
    }

    /// The last lines that a server wrote to stderr, oldest first, across restarts. Empty for an unknown server.
    #[must_use]
    pub fn log(&self, server: &str) -> Vec<String> {
        self.servers.get(server).map(|server| StderrLog::lines(&server.log)).unwrap_or_default()
    }

    /// The tools of all servers, under the servers' own names for them, without those that the configuration filters out. Waits for servers
    /// that are starting, unless their tools are known from before a restart. Leaves out servers that cannot be used.
    pub async fn tools(&self) -> Vec<ServerTool> {
        let mut all = Vec::new();
        for server in self.servers.values() {
            let tools = server.known_tools().await.unwrap_or_default();
            all.extend(tools.into_iter().map(|tool| ServerTool { server: server.name.clone(), tool }));
        }
        all
    }

    /// The tools of one server. Starts the server if necessary.
    pub async fn tools_of(&self, server: &str) -> Result<Vec<Tool>, Error> {
        let server = self.find_started(server)?;
        server.ready().await?;
        Ok(server.known_tools().await.unwrap_or_default())
    }

    /// All resources of one server. Starts the server if necessary.
    pub async fn resources_of(&self, server: &str) -> Result<Vec<Resource>, Error> {
        self.list(server, list::RESOURCES).await
    }

    /// All resource templates of one server. Starts the server if necessary.
    pub async fn resource_templates_of(&self, server: &str) -> Result<Vec<ResourceTemplate>, Error> {
        self.list(server, list::RESOURCE_TEMPLATES).await
    }

    /// All prompts of one server. Starts the server if necessary.
    pub async fn prompts_of(&self, server: &str) -> Result<Vec<Prompt>, Error> {
        self.list(server, list::PROMPTS).await
    }

    /// The resources of every server that was started. Servers that fail are left out.
    pub async fn resources(&self) -> BTreeMap<String, Vec<Resource>> {
        self.list_each(list::RESOURCES).await
    }

    /// The resource templates of every server that was started. Servers that fail are left out.
    pub async fn resource_templates(&self) -> BTreeMap<String, Vec<ResourceTemplate>> {
        self.list_each(list::RESOURCE_TEMPLATES).await
    }

    /// The prompts of every server that was started. Servers that fail are left out.
    pub async fn prompts(&self) -> BTreeMap<String, Vec<Prompt>> {
        self.list_each(list::PROMPTS).await
    }

    /// Reads a resource and returns the server's result. The result of a stdio server is unchanged. Over HTTP, rmcp drops
    /// fields that it does not know. Starts the server if necessary.
    pub async fn read_resource(&self, server: &str, uri: &str) -> Result<Value, Error> {
        self.request(server, "resources/read", json!({ "uri": uri })).await
    }

    /// Gets a prompt and returns the server's result, as [`Self::read_resource`] does. Starts the server if
    /// necessary.
    pub async fn get_prompt(&self, server: &str, name: &str, arguments: Map<String, Value>) -> Result<Value, Error> {
        self.request(server, "prompts/get", json!({ "name": name, "arguments": arguments })).await
    }

    /// Calls a tool by the name that its server gives it. Starts the server if necessary. A result with `is_error` is returned as `Ok`.
    ///
    /// Calls to one server run one after another, unless the server has `supports_parallel_tool_calls` or the tool is annotated as
    /// read-only. Dropping the future cancels the call on the server.
    pub async fn call(&self, call: ToolCall) -> Result<CallResult, Error> {
        let server = self.find(&call.server)?;
        // A call that is refused must not start the server.
        call::check(server, &call)?;
        self.begin(server, StartMode::First);
        call::send(server, call).await
    }

    /// Queries every server through a temporary manager on the same hosts. The temporary manager is shut down before this returns. The
    /// servers of this manager are not affected.
    pub async fn snapshot(&self, detail: SnapshotDetail) -> Snapshot {
        let temporary = Self::on(self.context.settings.clone(), Arc::clone(&self.context.hosts), false);
        snapshot::take(temporary, detail).await
    }

    /// Ends every server, including those that are starting or have calls in progress, and ends the sessions that were opened for them.
    /// Returns when they are gone, within a bounded time. Nothing can be started afterwards.
    pub async fn shutdown(&self) {
        self.stop.send_replace(true);
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while tasks.join_next().await.is_some() {}
        for server in self.servers.values() {
            server.set_cancelled();
        }
        // After the tasks have ended, because they need the sessions to end their servers.
        if self.owns_hosts {
            self.context.hosts.end().await;
        }
    }

    /// Waits until no server is starting, and collects the results.
    fn summary(&self) -> impl Future<Output = Summary> + Send + use<> {
        let servers: Vec<_> = self.servers.values().cloned().collect();
        async move {
            let mut summary = Summary::default();
            for server in servers {
                match server.wait_while_starting().await {
                    ServerStatus::Ready => summary.ready.push(server.name.clone()),
                    ServerStatus::AuthenticationRequired { reason } | ServerStatus::Failed { reason } => {
                        summary.failed.insert(server.name.clone(), reason);
                    }
                    ServerStatus::Cancelled => summary.cancelled.push(server.name.clone()),
                    ServerStatus::NotStarted | ServerStatus::Starting { .. } | ServerStatus::Disabled => {}
                }
            }
            summary
        }
    }

    fn find(&self, name: &str) -> Result<&Arc<ManagedServer>, Error> {
        let server = self.servers.get(name).ok_or_else(|| Error::UnknownServer {
            server: name.to_owned(),
            known: self.servers.keys().cloned().collect(),
        })?;
        if server.config.enabled { Ok(server) } else { Err(Error::Disabled { server: name.to_owned() }) }
    }

    /// Finds a server and starts it if necessary. Does not wait until it is ready.
    fn find_started(&self, name: &str) -> Result<&Arc<ManagedServer>, Error> {
        let server = self.find(name)?;
        self.begin(server, StartMode::First);
        Ok(server)
    }

    fn begin(&self, server: &Arc<ManagedServer>, mode: StartMode) {
        // Check `stop` under the lock of the tasks. Shutdown sets `stop` before it takes this lock, so no task starts after that.
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        if !*self.stop.borrow() && server.begin(mode) {
            tasks.spawn(Arc::clone(server).run(Arc::clone(&self.context), self.stop.subscribe()));
        }
    }

    async fn request(&self, server: &str, method: &'static str, params: Value) -> Result<Value, Error> {
        let server = self.find_started(server)?;
        let connection = server.ready().await?;
        connection.request(method, Some(params), Some(server.config.tool_timeout), None).await
    }

    async fn list<T: serde::de::DeserializeOwned>(&self, server: &str, kind: list::ListKind) -> Result<Vec<T>, Error> {
        let server = self.find_started(server)?;
        list::list(&*server.ready().await?, kind, server.config.tool_timeout).await
    }

    async fn list_each<T: serde::de::DeserializeOwned>(&self, kind: list::ListKind) -> BTreeMap<String, Vec<T>> {
        // Query the servers concurrently, so that a slow one does not delay the others.
        let lists =
            self.servers.values().filter(|server| server.status() != ServerStatus::NotStarted).map(async |server| {
                let connection = server.ready().await.ok()?;
                match list::list(&connection, kind, server.config.tool_timeout).await {
                    Ok(items) => Some((server.name.clone(), items)),
                    Err(error) => {
                        tracing::warn!(server = server.name, %error, "could not list the items of the server");
                        None
                    }
                }
            });
        futures_util::future::join_all(lists).await.into_iter().flatten().collect()
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("status", &self.status()).finish_non_exhaustive()
    }
}
