//! Many MCP servers from one configuration: started in parallel, each where it is placed, and kept.
//!
//! ```text
//!             start                handshake, tools/list
//!  notStarted ─────▶ starting ───────────────────────────▶ ready ──crash──▶ starting (with a pause) ─▶ …
//!                       ├─ failed, authenticationRequired            └─ too often ─▶ failed
//!                       └─ cancelled (shutdown)
//! ```
//! `server` is the life of one server and the owner of its connection, `start` one attempt to get one, `connection` asks and
//! waits, `handler` is asked, `list` turns pages, `call` makes a call of what a caller gives, `hosts` knows the places.
//!
//! A crash is told: the call that was under way ends with [`Error::Crashed`], and is not repeated, since it may have had its
//! effect; the next one waits for the restart. Nothing is started until [`Manager::start`], or a question to a server, asks
//! for it; [`Manager::status`] never does. [`Manager::shutdown`] ends everything, whatever is under way, and returns when it is
//! gone; dropping the manager does the same in the background.

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

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rmcp::model::{Prompt, Resource, ResourceTemplate, ServerPeerInfo, Tool};
use serde_json::{Map, Value, json};
use tokio::{
    sync::{broadcast, watch},
    task::JoinSet,
};

use self::{server::Server, start::Context, state::UPDATES};
use crate::{config::Config, env::Variables, transport::Log};

pub use call::{Call, CallResult, SandboxState};
pub use error::Error;
pub use handler::{Action, Answer, Elicit, Question};
pub use hosts::{Host, Hosts, KEEP, PlaceError};
pub use snapshot::{Auth, Detail, ServerSnapshot, Snapshot};
pub use state::{Status, Summary, Update, Updates};

/// What a manager needs to know beside its hosts.
#[derive(Clone)]
pub struct Settings {
    /// Which servers.
    pub config: Config,
    /// Our variables: what a server here gets a few of, and what a configuration may name.
    pub variables: Variables,
    /// The directory of servers whose configuration has none; without it, they run in their executor's own.
    pub cwd: Option<PathBuf>,
    /// Who we are, for servers.
    pub client_name: String,
    /// Whom the questions of servers are handed to; without, they are declined.
    pub elicit: Option<Arc<dyn Elicit>>,
    /// How often, and how soon, a server that crashed is started again.
    pub restarts: Restarts,
}

impl Settings {
    /// For these servers, with everything else as usual: no variables, the executors' own directories, nobody to ask.
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
        // Variables are nobody's business.
        f.debug_struct("Settings").field("config", &self.config).field("cwd", &self.cwd).finish_non_exhaustive()
    }
}

/// How a server that crashed is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restarts {
    /// How often in a row; then it has failed.
    pub most: u32,
    /// The pause before the first; each further one is twice as long.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// How long a server must have been ready for its crash to be the first in a row again.
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

/// A tool, and whose it is.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerTool {
    /// The name of its server.
    pub server: String,
    /// The tool, under its own name.
    pub tool: Tool,
}

/// The servers of a configuration. See the module.
pub struct Manager {
    context: Arc<Context>,
    servers: BTreeMap<String, Arc<Server>>,
    /// Whether the places end with this manager.
    owns_hosts: bool,
    stop: watch::Sender<bool>,
    /// One task a server, and one that sums up.
    tasks: Mutex<JoinSet<()>>,
}

impl Manager {
    /// A manager that has started nothing.
    #[must_use]
    pub fn new(settings: Settings, hosts: Hosts) -> Self {
        Self::on(settings, Arc::new(hosts), true)
    }

    fn on(settings: Settings, hosts: Arc<Hosts>, owns_hosts: bool) -> Self {
        let updates = broadcast::Sender::new(UPDATES);
        let servers = settings.config.servers.iter();
        let servers = servers
            .map(|(name, config)| (name.clone(), Arc::new(Server::new(name, config.clone(), updates.clone()))))
            .collect();
        let context = Arc::new(Context { settings, hosts, updates });
        Self { context, servers, owns_hosts, stop: watch::Sender::new(false), tasks: Mutex::default() }
    }

    /// Starts every server that is enabled and not started yet, in parallel; returns at once.
    pub fn start(&self) {
        for server in self.servers.values() {
            self.start_server(server);
        }
        let servers: Vec<_> = self.servers.values().cloned().collect();
        let updates = self.context.updates.clone();
        self.spawn(async move {
            let summary = summary(&servers).await;
            // Nobody may have subscribed.
            updates.send(Update::Summary(summary)).ok();
        });
    }

    /// Starts every server, and waits until none is starting. An error only if one that is `required` cannot be used.
    pub async fn start_all(&self) -> Result<Summary, Error> {
        self.start();
        let servers: Vec<_> = self.servers.values().cloned().collect();
        let summary = summary(&servers).await;
        let required = servers.iter().filter(|server| server.config.required && server.config.enabled);
        let failed = required.filter_map(|server| match server.status() {
            Status::Ready | Status::Starting { .. } | Status::NotStarted | Status::Disabled => None,
            status @ (Status::AuthenticationRequired { .. } | Status::Failed { .. } | Status::Cancelled) => {
                Some((server.name.clone(), status.reason().unwrap_or(status.word()).to_owned()))
            }
        });
        let failed: Vec<_> = failed.collect();
        if failed.is_empty() { Ok(summary) } else { Err(Error::Required { failed }) }
    }

    /// Starts a server again that has failed, or wanted authentication, as if it had never been started; returns at once.
    pub fn restart(&self, server: &str) -> Result<(), Error> {
        self.begin(self.find(server)?, true);
        Ok(())
    }

    /// How every server is, by name. Starts nothing.
    #[must_use]
    pub fn status(&self) -> BTreeMap<String, Status> {
        self.servers.iter().map(|(name, server)| (name.clone(), server.status())).collect()
    }

    /// News from now on.
    #[must_use]
    pub fn updates(&self) -> Updates {
        Updates(self.context.updates.subscribe())
    }

    /// What a server said of itself in the last handshake; none before that.
    #[must_use]
    pub fn info(&self, server: &str) -> Option<ServerPeerInfo> {
        self.servers.get(server)?.info()
    }

    /// What a server wrote on its standard error, oldest first, through all its restarts; empty for one that is unknown.
    #[must_use]
    pub fn log(&self, server: &str) -> Vec<String> {
        self.servers.get(server).map(|server| Log::lines(&server.log)).unwrap_or_default()
    }

    /// The tools that all servers offer, under their own names, without those that the configuration filters out. Waits for
    /// servers that are starting, unless their tools are known from before; leaves out those that cannot be used.
    pub async fn tools(&self) -> Vec<ServerTool> {
        let mut all = Vec::new();
        for server in self.servers.values() {
            let tools = server.known_tools().await.unwrap_or_default();
            all.extend(tools.into_iter().map(|tool| ServerTool { server: server.name.clone(), tool }));
        }
        all
    }

    /// The tools that one server offers; starts it if need be.
    pub async fn tools_of(&self, server: &str) -> Result<Vec<Tool>, Error> {
        let server = self.started(server)?;
        server.ready().await?;
        Ok(server.known_tools().await.unwrap_or_default())
    }

    /// The resources of one server, all pages; starts it if need be.
    pub async fn resources_of(&self, server: &str) -> Result<Vec<Resource>, Error> {
        self.list(server, list::RESOURCES).await
    }

    /// The templates of resources of one server, all pages; starts it if need be.
    pub async fn resource_templates_of(&self, server: &str) -> Result<Vec<ResourceTemplate>, Error> {
        self.list(server, list::RESOURCE_TEMPLATES).await
    }

    /// The prompts of one server, all pages; starts it if need be.
    pub async fn prompts_of(&self, server: &str) -> Result<Vec<Prompt>, Error> {
        self.list(server, list::PROMPTS).await
    }

    /// The resources of every server that was started; those that fail are left out.
    pub async fn resources(&self) -> BTreeMap<String, Vec<Resource>> {
        self.list_each(list::RESOURCES).await
    }

    /// The templates of resources of every server that was started; those that fail are left out.
    pub async fn resource_templates(&self) -> BTreeMap<String, Vec<ResourceTemplate>> {
        self.list_each(list::RESOURCE_TEMPLATES).await
    }

    /// The prompts of every server that was started; those that fail are left out.
    pub async fn prompts(&self) -> BTreeMap<String, Vec<Prompt>> {
        self.list_each(list::PROMPTS).await
    }

    /// Reads a resource; the result as the server gave it. Starts the server if need be.
    pub async fn read_resource(&self, server: &str, uri: &str) -> Result<Value, Error> {
        self.ask(server, "resources/read", json!({ "uri": uri })).await
    }

    /// Gets a prompt; the result as the server gave it. Starts the server if need be.
    pub async fn get_prompt(&self, server: &str, name: &str, arguments: Map<String, Value>) -> Result<Value, Error> {
        self.ask(server, "prompts/get", json!({ "name": name, "arguments": arguments })).await
    }

    /// Calls a tool by its own name; starts the server if need be. A result with `is_error` is a result.
    ///
    /// Calls of one server run one after another, unless it `supports_parallel_tool_calls` or the tool says that it only
    /// reads. Dropping the future cancels: the server is told.
    pub async fn call(&self, call: Call) -> Result<CallResult, Error> {
        let server = self.find(&call.server)?;
        let prepared = call::Prepared::new(server, call)?;
        self.start_server(server);
        prepared.send(server).await
    }

    /// Looks at every server through a temporary manager on the same places, which is ended before this returns. What runs
    /// here is not touched.
    pub async fn snapshot(&self, detail: Detail) -> Snapshot {
        let temporary = Self::on(self.context.settings.clone(), Arc::clone(&self.context.hosts), false);
        snapshot::take(temporary, detail).await
    }

    /// Ends every server, those that are starting and those with calls under way alike, and the sessions that were opened
    /// for them. Returns when they are gone; bounded in time. Nothing can be started afterwards.
    pub async fn shutdown(&self) {
        self.stop.send_replace(true);
        let mut tasks = std::mem::take(&mut *self.lock());
        while tasks.join_next().await.is_some() {}
        for server in self.servers.values() {
            server.set_cancelled();
        }
        if self.owns_hosts {
            self.context.hosts.end().await;
        }
    }

    fn find(&self, name: &str) -> Result<&Arc<Server>, Error> {
        let server = self.servers.get(name).ok_or_else(|| Error::UnknownServer {
            server: name.to_owned(),
            known: self.servers.keys().cloned().collect(),
        })?;
        if server.config.enabled { Ok(server) } else { Err(Error::Disabled { server: name.to_owned() }) }
    }

    fn started(&self, name: &str) -> Result<&Arc<Server>, Error> {
        let server = self.find(name)?;
        self.start_server(server);
        Ok(server)
    }

    fn start_server(&self, server: &Arc<Server>) {
        self.begin(server, false);
    }

    fn begin(&self, server: &Arc<Server>, again: bool) {
        // Under the lock of the tasks, which shutdown takes after it has said stop: nothing begins behind its back.
        let mut tasks = self.lock();
        while tasks.try_join_next().is_some() {}
        if !*self.stop.borrow() && server.begin(again) {
            tasks.spawn(Arc::clone(server).run(Arc::clone(&self.context), self.stop.subscribe()));
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.lock();
        if !*self.stop.borrow() {
            // One type of task, so that the runtime's part is not compiled again for each.
            let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
            tasks.spawn(work);
        }
    }

    async fn ask(&self, server: &str, method: &'static str, params: Value) -> Result<Value, Error> {
        let server = self.started(server)?;
        let connection = server.ready().await?;
        connection.ask(method, Some(params), Some(server.config.tool_timeout)).await
    }

    async fn list<T: serde::de::DeserializeOwned>(&self, server: &str, what: list::What) -> Result<Vec<T>, Error> {
        let server = self.started(server)?;
        list::list(&*server.ready().await?, what, server.config.tool_timeout).await
    }

    async fn list_each<T: serde::de::DeserializeOwned>(&self, what: list::What) -> BTreeMap<String, Vec<T>> {
        // At the same time: one that is slow does not hold up the others.
        let lists = self.servers.values().filter(|server| server.status() != Status::NotStarted).map(async |server| {
            let connection = server.ready().await.ok()?;
            match list::list(&connection, what, server.config.tool_timeout).await {
                Ok(items) => Some((server.name.clone(), items)),
                Err(error) => {
                    tracing::warn!(server = server.name, %error, "left out of the list");
                    None
                }
            }
        });
        futures_util::future::join_all(lists).await.into_iter().flatten().collect()
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        // No code under the lock can panic half-way through a change.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// Waits until no server is starting.
async fn summary(servers: &[Arc<Server>]) -> Summary {
    let mut summary = Summary::default();
    for server in servers {
        match server.settled().await {
            Status::Ready => summary.ready.push(server.name.clone()),
            Status::AuthenticationRequired { reason } | Status::Failed { reason } => {
                summary.failed.insert(server.name.clone(), reason);
            }
            Status::Cancelled => summary.cancelled.push(server.name.clone()),
            Status::NotStarted | Status::Starting { .. } | Status::Disabled => {}
        }
    }
    summary
}
