//! `exec-server run`: one program through an embedded server, over the same holder as everybody else's.
//!
//! The server's core runs in this process and speaks with a client in this process over memory; the program itself
//! is a child of a holder. `streams` carries bytes, `terminal` owns ours, and this file starts, waits and cleans up.

mod streams;
mod terminal;

use std::{collections::BTreeMap, env, path::Path, process::ExitCode, sync::Arc};

use anyhow::{Context as _, anyhow};
use exec_server_holder::{Limits, spawner::SpawnerHandle};
use exec_server_protocol::{failure::Kind, limits, path};
use exec_server_rpc::{
    Framing,
    client::{CallError, RawClient},
    memory,
};
use exec_server_server::{
    core::{Authenticated, Config, Core, Principal},
    state_dir::{Spawned, SpawnedConfig, StateDir},
};
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::{TROUBLE, args, env_token, place::Place, runtime, say};
use streams::Ended;
use terminal::Terminal;

/// The name of the one process of the one session.
const PROCESS: &str = "run";

/// Bytes on their way between client and core: some chunks, so that neither waits for the other's every turn.
const PAIR_BYTES: usize = 1 << 20;

/// Should this program be killed, its session ends at once: nobody can come back to it.
const TTL_MS: u64 = 1;

/// Until a new holder was told that, it waits this long for its first word: more than a busy machine needs.
const FIRST_TTL_MS: u64 = 10_000;

/// What a shell says of a program that cannot be executed, one that is not there, and one that a closed pipe ended.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const CLOSED_PIPE: u8 = 128 + 13;

/// Runs the program and ends as it ended.
pub(crate) fn run(args: args::Run, spawner: SpawnerHandle) -> anyhow::Result<ExitCode> {
    let place = Place::private()?;
    let outcome = run_in(&args, &place.path, spawner);
    // Whatever happened, the directory is ours alone. It may be gone by itself.
    std::fs::remove_dir_all(&place.path).ok();
    outcome.map(ExitCode::from)
}

fn run_in(args: &args::Run, dir: &Path, spawner: SpawnerHandle) -> anyhow::Result<u8> {
    let state = Arc::new(StateDir::open(dir)?);
    let limits = Limits { ttl_ms: FIRST_TTL_MS, ..Limits::default() };
    let holders = Arc::new(Spawned::new(state, spawner, SpawnedConfig { limits, original_nofile: None }));
    let runtime = runtime::new().context("start the runtime")?;
    let outcome = runtime.block_on(async {
        let core = Core::new(core_config(), holders);
        let outcome = embedded(args, &core).await;
        core.end_all().await;
        outcome
    });
    // Standard input may be read by a thread that nobody can interrupt.
    runtime.shutdown_background();
    outcome
}

fn core_config() -> Config {
    Config {
        environment: env::vars_os().filter(|(name, _)| !name.eq_ignore_ascii_case(env_token::NAME)).collect(),
        cwd: env::current_dir().ok(),
        ..Config::default()
    }
}

async fn embedded(args: &args::Run, core: &Arc<Core>) -> anyhow::Result<u8> {
    let (near, far) = memory(PAIR_BYTES);
    let framing = Framing::Lines { max: limits::MESSAGE_BYTES };
    let connection = Authenticated::vouch(far, framing, Principal::owner(), "run");
    let mut server = JoinSet::new();
    let core = Arc::clone(core);
    server.spawn(async move { core.serve(connection).await });
    let client = Arc::new(RawClient::new(near, framing));
    let code = drive(args, &client).await;
    drop(client);
    server.shutdown().await;
    code
}

/// The whole life of the program, from the client's side.
async fn drive(args: &args::Run, client: &Arc<RawClient>) -> anyhow::Result<u8> {
    let notifications = client.notifications();
    let window = initialize(client).await?;
    // Before the start: a signal that comes with the first instruction must not be lost.
    let signals = streams::Signals::new(args.tty)?;
    // Raw from here on; the terminal is given back when this goes out of scope, whatever happens.
    let terminal = if args.tty { Terminal::open()? } else { None };
    let size = terminal.as_ref().and_then(Terminal::size);
    if let Err(error) = start(args, client, size).await? {
        drop(terminal);
        say::error(&error.error);
        return Ok(error.code);
    }
    let ended = streams::carry(client, notifications, signals, window).await?;
    drop(terminal);
    Ok(exit_code(&ended))
}

async fn initialize(client: &RawClient) -> anyhow::Result<u64> {
    #[derive(Deserialize)]
    struct Answer {
        capabilities: Capabilities,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Capabilities {
        ack_window_bytes: u64,
    }
    let params = json!({
        "clientName": "exec-server run",
        "capabilities": {"ack": true, "gap": true, "concurrent": false, "dialects": []},
        "ttlMs": TTL_MS,
    });
    let answer = client.call("initialize", &params).await.context("open a session")?;
    let answer: Answer = serde_json::from_str(answer.get()).context("read the session")?;
    client.notify("initialized", &json!({})).await.context("open a session")?;
    Ok(answer.capabilities.ack_window_bytes)
}

/// A program that could not be started, and the code that says so.
struct NotStarted {
    code: u8,
    error: anyhow::Error,
}

async fn start(
    args: &args::Run,
    client: &RawClient,
    size: Option<(u16, u16)>,
) -> anyhow::Result<Result<(), NotStarted>> {
    let cwd = match &args.cwd {
        Some(cwd) => std::path::absolute(cwd).with_context(|| format!("find `{}`", cwd.display()))?,
        None => env::current_dir().context("find the working directory")?,
    };
    let env: BTreeMap<&str, &str> = args.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut params = json!({
        "processId": PROCESS,
        "argv": args.argv,
        // Paths are bytes, JSON is text: only a URI carries every path.
        "cwd": path::to_uri(&cwd),
        "env": env,
        "envPolicy": {"inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": []},
        "tty": args.tty,
        "pipeStdin": true,
    });
    if let Some((rows, cols)) = size {
        params["size"] = json!({"rows": rows, "cols": cols});
    }
    match client.call("process/start", &params).await {
        Ok(_) => Ok(Ok(())),
        Err(CallError::Rpc { message, data, .. }) => {
            let kind = data.and_then(|data| serde_json::from_str::<Data>(data.get()).ok()).map(|data| data.kind);
            Ok(Err(NotStarted { code: start_code(kind), error: anyhow!("{message}") }))
        }
        Err(error) => Err(error).context("start the program"),
    }
}

#[derive(Deserialize)]
struct Data {
    kind: Kind,
}

fn start_code(kind: Option<Kind>) -> u8 {
    match kind {
        Some(Kind::ProgramNotFound) => NOT_FOUND,
        Some(Kind::PermissionDenied | Kind::SpawnFailed) => NOT_EXECUTABLE,
        _ => TROUBLE,
    }
}

/// The code a shell would show. A program that a closed stdout ended is ended by SIGPIPE, whichever signal it took.
fn exit_code(ended: &Ended) -> u8 {
    if ended.stdout_closed && ended.by_signal {
        return CLOSED_PIPE;
    }
    // Codes have eight bits, and 128+n fits for every signal.
    u8::try_from(ended.code & 0xff).unwrap_or(TROUBLE)
}
