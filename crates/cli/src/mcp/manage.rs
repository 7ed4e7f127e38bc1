//! `exec-server mcp list`, `mcp status` and `mcp call`: use the MCP servers of a configuration from a shell.
//!
//! A signal cancels the work, and then all servers are shut down as in a normal end. After a second signal, a server on another machine
//! can run until its session expires ([`KEEP`]). `file` finds the configuration, `ask` puts the questions of servers to the user, and
//! `show` prints.

mod ask;
mod file;
mod show;

use std::{
    collections::BTreeMap,
    env,
    io::{self, IsTerminal as _, Read as _},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use exec_server_client::{
    environment::{self, Choice},
    local::LocalConfig,
    transport::BoxFuture,
};
use exec_server_mcp::{
    config::{Config, Placement, ServerTransport},
    launch,
    manager::{
        Action, Answer, Elicit, Error, Host, Hosts, KEEP, Manager, PlacementError, Question, ServerStatus, Settings,
        ToolCall,
    },
    names::{self, ToolRef},
};
use serde_json::{Map, Value, json};
use tokio::{
    io::{BufReader, Stdin},
    sync::Mutex,
};

use crate::{args, codes, connect::Server, display, env_token, ids, print, runtime, signals::SignalStream};

/// Maximum size of the arguments of a call.
const ARGUMENTS_MAX: u64 = 16 << 20; // 16 MiB

/// Lists the servers with their tools.
pub(crate) fn list(args: &args::McpListArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    let mut setup = ManagerSetup::new(&args.configured, token)?;
    if let Some(unknown) = args.servers.iter().find(|name| !setup.config.servers.contains_key(*name)) {
        return Ok(no_server(unknown, &setup.config));
    }
    if !args.servers.is_empty() {
        setup.config.servers.retain(|name, _| args.servers.contains(name));
    }
    let config = setup.config.clone();
    let json = args.json;
    let outcome = run(setup, None, async |manager| {
        // `start_all` fails only if a required server fails, which is reported below like the failure of any other server.
        manager.start_all().await.ok();
        collect_listing(manager, json).await
    })?;
    let listing = match outcome {
        Ok(listing) => listing,
        Err(EndedBySignal(number)) => return Ok(ExitCode::from(codes::of_signal(number))),
    };
    let mut failed = false;
    for status in listing.status.values() {
        if let ServerStatus::Failed { reason } | ServerStatus::AuthenticationRequired { reason } = status {
            failed = true;
            report!("{}", reason);
        }
    }
    let text = if args.json { listing.json(&config) } else { listing.table(&config) };
    print(&text, args.json, if failed { codes::NOT_USABLE } else { 0 })
}

/// Prints the state of the servers without starting them.
pub(crate) fn status(args: &args::McpStatusArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    let setup = ManagerSetup::new(&args.configured, token)?;
    let mut failed = false;
    let mut rows = Vec::new();
    let mut all = Vec::new();
    let manager = Manager::new(Settings::new(setup.config.clone()), Hosts::new(|_| Err(PlacementError::NoRemote)));
    let states = manager.status();
    for (name, server) in &setup.config.servers {
        // If the environment of a server does not exist, that is known without starting anything.
        let state = match (setup.environments.find(&server.placement), states.get(name)) {
            (Err(error), Some(ServerStatus::NotStarted)) => {
                ServerStatus::Failed { reason: format!("MCP server `{name}`: {error}") }
            }
            (_, state) => state.cloned().unwrap_or(ServerStatus::NotStarted),
        };
        failed |= matches!(state, ServerStatus::Failed { .. });
        if let Some(reason) = state.reason() {
            report!("{}", reason);
        }
        let target = show::target(server);
        rows.push([name.clone(), state.word().to_owned(), show::environment(server), target.clone()]);
        let mut shown = show::server(name, server, state.word(), state.reason());
        let key = if matches!(server.transport, ServerTransport::Stdio(_)) { "command" } else { "url" };
        shown.insert(key.to_owned(), target.into());
        shown.insert("required".to_owned(), server.required.into());
        all.push(Value::Object(shown));
    }
    let text = match (args.json, rows.is_empty()) {
        (true, _) => format!("{}\n", Value::Array(all)),
        (false, true) => String::new(),
        (false, false) => show::table(["SERVER", "STATE", "ENVIRONMENT", "RUNS"], &rows, display::stdout_columns()),
    };
    print(&text, args.json, if failed { codes::NOT_USABLE } else { 0 })
}

/// Calls a tool.
pub(crate) fn call(args: &args::McpCallArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    let arguments = args.arguments.as_deref().map(arguments).transpose()?;
    let mut setup = ManagerSetup::new(&args.configured, token)?;
    if !setup.config.servers.contains_key(&args.server) {
        return Ok(no_server(&args.server, &setup.config));
    }
    setup.config.servers.retain(|name, _| *name == args.server);
    let mut call = ToolCall::new(&args.server, &args.tool);
    call.arguments = arguments;
    let shows_progress = io::stderr().is_terminal();
    if shows_progress {
        call.on_progress = Some(Arc::new(|step| {
            let total = step.total.map(|total| format!("/{total}")).unwrap_or_default();
            let words = step.message.map(|words| format!(": {}", ids::clean(&words))).unwrap_or_default();
            report!("{}{total}{words}", step.progress);
        }));
    }
    // If stdin carries the arguments, the user cannot answer questions on it.
    let asks = io::stdin().is_terminal() && shows_progress && args.arguments.as_deref() != Some("-");
    let elicit = asks.then(|| {
        let lines = BufReader::new(tokio::io::stdin());
        let prompt = ask::TerminalPrompt { lines, screen: Box::new(io::stderr()) };
        Arc::new(TerminalElicitor(Mutex::new(prompt))) as Arc<dyn Elicit>
    });
    match run(setup, elicit, async |manager| manager.call(call).await)? {
        Err(EndedBySignal(number)) => Ok(ExitCode::from(codes::of_signal(number))),
        Ok(Ok(result)) => {
            let code = if result.is_error { codes::TOOL_FAILED } else { 0 };
            let result = serde_json::to_value(&result).context("write the result as JSON")?;
            printed(show::result(&result, args.json), code)
        }
        Ok(Err(error)) => {
            report!("{}", error);
            Ok(ExitCode::from(code_of(&error)))
        }
    }
}

/// The exit code of a call without a result.
fn code_of(error: &Error) -> u8 {
    match error {
        Error::Timeout { .. } => codes::TIMED_OUT,
        Error::Answer { .. } | Error::ToolDisabled { .. } | Error::UnknownServer { .. } => codes::TOOL_FAILED,
        Error::NotAnObject { .. } => codes::USAGE,
        _ => codes::TROUBLE,
    }
}

fn no_server(name: &str, config: &Config) -> ExitCode {
    let known: Vec<String> = config.servers.keys().map(|name| format!("`{name}`")).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    report!("no MCP server `{}`; configured: {known}", ids::clean(name));
    ExitCode::from(codes::NOT_USABLE)
}

/// The configuration and the environments of a command.
struct ManagerSetup {
    config: Config,
    environments: Environments,
}

impl ManagerSetup {
    fn new(args: &args::McpConfigArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<Self> {
        let mut config = file::load(args)?;
        let here = env::current_dir().ok();
        for server in config.servers.values_mut() {
            // A relative working directory is relative to ours.
            if let (Placement::Local, ServerTransport::Stdio(stdio), Some(here)) =
                (&server.placement, &mut server.transport, &here)
            {
                stdio.cwd = stdio.cwd.take().map(|cwd| if launch::is_relative(&cwd) { here.join(cwd) } else { cwd });
            }
        }
        let environments =
            Environments { remote: remote(&args.connect, token)?, recover_for: args.connect.recover_for };
        Ok(Self { config, environments })
    }
}

/// The executor that the environment `remote` means. `EXEC_SERVER_TOKEN` is for this executor alone; others have their tokens in URLs or
/// files.
fn remote(
    args: &args::ConnectArgs,
    token: Option<env_token::StoredToken>,
) -> anyhow::Result<Result<Server, PlacementError>> {
    let is_requested = args.connect.is_some();
    match Server::find(args, token) {
        Ok(server) => Ok(server.ok_or(PlacementError::NoRemote)),
        Err(error) if is_requested => Err(error),
        // Without `--connect`, the setting comes from a variable or file that other commands use too. So an invalid setting is not an error
        // here: servers that run locally need no remote environment.
        Err(error) => match requested_environment() {
            Ok(Choice::None) => Ok(Err(PlacementError::NoRemote)),
            Ok(Choice::Local | Choice::Remote(_)) => Err(error),
            Err(_) => Ok(Err(PlacementError::Unknown { name: "remote".to_owned(), reason: format!("{error:#}") })),
        },
    }
}

fn requested_environment() -> anyhow::Result<Choice> {
    Ok(environment::choose(environment::value_of_variables(|name| env::var_os(name))?.as_deref())?)
}

/// The environments in which servers can run.
struct Environments {
    remote: Result<Server, PlacementError>,
    /// `--recover-for`: how long reconnecting is tried.
    recover_for: Option<Duration>,
}

impl Environments {
    fn find(&self, placement: &Placement) -> Result<Host, PlacementError> {
        let local = LocalConfig { name: "exec-server mcp".to_owned(), ..LocalConfig::default() };
        let remote = || {
            let remote = self.remote.as_ref().map_err(Clone::clone)?;
            let (spec, token) = remote.spec().ok_or(PlacementError::NoRemote)?;
            Ok(Host::remote(spec.clone(), token.clone(), KEEP))
        };
        let host = Host::find(placement, &local, remote, |name| environment::choose(Some(name)))?;
        Ok(match self.recover_for {
            Some(within) => host.recover_for(within),
            None => host,
        })
    }
}

/// A signal with this number ended the work.
struct EndedBySignal(u8);

/// Runs `work` with a manager, and shuts the manager down before returning. A signal cancels `work`; a signal during
/// the shutdown cancels the shutdown.
fn run<T>(
    setup: ManagerSetup,
    elicit: Option<Arc<dyn Elicit>>,
    work: impl AsyncFnOnce(&Manager) -> T,
) -> anyhow::Result<Result<T, EndedBySignal>> {
    runtime::block_on(async {
        let mut signals = SignalStream::new().context("listen to signals")?;
        let mut settings = Settings::new(setup.config);
        settings.variables = env::vars_os().collect();
        settings.elicit = elicit;
        let environments = setup.environments;
        let manager = Manager::new(settings, Hosts::new(move |placement| environments.find(placement)));
        let ended = tokio::select! {
            done = work(&manager) => Ok(done),
            number = signals.next_number() => Err(EndedBySignal(number)),
        };
        tokio::select! {
            () = manager.shutdown() => Ok(ended),
            number = signals.next_number() => Ok(Err(EndedBySignal(number))),
        }
    })
}

/// Puts questions to the user at the terminal, one at a time.
struct TerminalElicitor(Mutex<ask::TerminalPrompt<BufReader<Stdin>>>);

impl Elicit for TerminalElicitor {
    fn elicit(&self, question: Question) -> BoxFuture<'_, Answer> {
        Box::pin(async move {
            let mut prompt = self.0.lock().await;
            let server = question.server.as_str();
            let message = question.message();
            let param = |key: &str| question.params.get(key).cloned().unwrap_or_default();
            let accepted = match param("url").as_str() {
                Some(url) => prompt.url(server, message, url).await.then_some(None),
                None => prompt.form(server, message, &param("requestedSchema")).await.map(Some),
            };
            match accepted {
                Some(content) => Answer { content, ..Answer::only(Action::Accept) },
                None => Answer::only(Action::Decline),
            }
        })
    }
}

/// The state, tools and other offers of all servers.
struct ServerListing {
    status: BTreeMap<String, ServerStatus>,
    /// Each tool with its server, and the description from the server.
    tools: Vec<(ToolRef, Value)>,
    /// By server name: resources, templates and prompts, for the JSON output.
    more: BTreeMap<String, Map<String, Value>>,
}

/// `for_json`: also collects what only the JSON output shows.
async fn collect_listing(manager: &Manager, for_json: bool) -> ServerListing {
    let mut tools = Vec::new();
    for found in manager.tools().await {
        let reference = ToolRef { server: found.server, tool: found.tool.name.to_string() };
        tools.push((reference, serde_json::to_value(&found.tool).unwrap_or_default()));
    }
    let mut more = BTreeMap::new();
    if for_json {
        let (resources, templates, prompts) =
            tokio::join!(manager.resources(), manager.resource_templates(), manager.prompts());
        collect(&mut more, "resources", &resources);
        collect(&mut more, "resourceTemplates", &templates);
        collect(&mut more, "prompts", &prompts);
    }
    ServerListing { status: manager.status(), tools, more }
}

fn collect<T: serde::Serialize>(
    into: &mut BTreeMap<String, Map<String, Value>>,
    key: &str,
    lists: &BTreeMap<String, Vec<T>>,
) {
    for (server, list) in lists {
        let list = serde_json::to_value(list).unwrap_or_default();
        into.entry(server.clone()).or_default().insert(key.to_owned(), list);
    }
}

impl ServerListing {
    fn table(&self, config: &Config) -> String {
        let mut rows = Vec::new();
        for name in config.servers.keys() {
            let before = rows.len();
            for (reference, tool) in self.tools.iter().filter(|(reference, _)| reference.server == *name) {
                let about = tool["description"].as_str().or_else(|| tool["title"].as_str()).unwrap_or_default();
                let about = about.trim().lines().next().unwrap_or_default().to_owned();
                rows.push([name.clone(), reference.tool.clone(), about]);
            }
            if rows.len() == before {
                let why = match self.status.get(name) {
                    Some(ServerStatus::Ready) | None => "(no tools)".to_owned(),
                    Some(status) => format!("({})", status.word()),
                };
                rows.push([name.clone(), "-".to_owned(), why]);
            }
        }
        if rows.is_empty() {
            return String::new();
        }
        show::table(["SERVER", "TOOL", "DESCRIPTION"], &rows, display::stdout_columns())
    }

    fn json(&self, config: &Config) -> String {
        let qualified = names::qualify(self.tools.iter().map(|(reference, _)| reference.clone()));
        let qualified: BTreeMap<ToolRef, String> = qualified.into_iter().map(|(name, tool)| (tool, name)).collect();
        let all = config.servers.iter().map(|(name, server)| {
            let status = self.status.get(name).cloned().unwrap_or(ServerStatus::NotStarted);
            let mut shown = show::server(name, server, status.word(), status.reason());
            let tools =
                self.tools.iter().filter(|(reference, _)| reference.server == *name).map(|(reference, tool)| {
                    let mut tool = tool.clone();
                    tool["qualifiedName"] = json!(qualified.get(reference));
                    tool
                });
            shown.insert("tools".to_owned(), tools.collect());
            shown.extend(self.more.get(name).cloned().unwrap_or_default());
            Value::Object(shown)
        });
        format!("{}\n", Value::Array(all.collect()))
    }
}

/// Parses the arguments of a call, from the command line or from stdin.
fn arguments(given: &str) -> anyhow::Result<Value> {
    let mut text = given.to_owned();
    if given == "-" {
        text.clear();
        io::stdin().lock().take(ARGUMENTS_MAX + 1).read_to_string(&mut text).context("read standard input")?;
    }
    if text.len() as u64 > ARGUMENTS_MAX {
        return Err(args::UsageError(format!("the arguments have more than {ARGUMENTS_MAX} bytes")).into());
    }
    let wrong = |reason: String| args::UsageError(format!("the arguments must be a JSON object: {reason}"));
    match serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))? {
        arguments @ Value::Object(_) => Ok(arguments),
        _ => Err(wrong("this is JSON of another type".to_owned()).into()),
    }
}

fn print(text: &str, is_json: bool, code: u8) -> anyhow::Result<ExitCode> {
    printed(if is_json { print::json(text) } else { print::text(text) }, code)
}

fn printed(written: anyhow::Result<()>, code: u8) -> anyhow::Result<ExitCode> {
    print::or_closed_pipe(written.map(|()| code)).map(ExitCode::from)
}
