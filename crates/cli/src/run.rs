//! `exec-server run`: runs one program, locally or on a server, as if it were a child of the shell.
//!
//! Locally, it runs on a server embedded in this process, with the same holder as any server; the session ends with us. On a remote server
//! the session ends with the program; if the client dies, the session's time-to-live ends it. For `--detach` see `detach`.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use exec_server_client::{
    Client, Error, Process, Start,
    environment::RemoteSpec,
    local::{Local, LocalConfig},
    protocol::{ProcessId, failure::Kind, process::Scope},
};

use tokio::time;

use crate::{
    args, codes, connect,
    connect::Server,
    detach, env_token, hints, ids, print, runtime,
    sandbox::{self, Grants},
    signals::{self, SignalEvent, SignalStream},
    start::{self, PreparedStart, ServerKind},
    streams::{AtEof, InputMode, LinkNotice, StreamForwarder, StreamOutcome, StreamRole},
    terminal::{self, Terminal},
};

/// Runs the program and returns its exit code.
pub(crate) fn run(args: &args::RunArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    if args.quiet {
        print::set_quiet();
    }
    let server = Server::find(&args.connect, token)?;
    runtime::block_on_here(async {
        let code = match server {
            server if args.detach => detach::run(args, server).await,
            None => embedded(args).await,
            Some(server) => remote(args, &server).await,
        };
        code.map(ExitCode::from)
    })
}

/// The id given by `--name`, if no running process has it; without `--name` a generated one.
pub(crate) async fn choose_id(args: &args::RunArgs, client: &Client) -> anyhow::Result<ProcessId> {
    let Some(name) = &args.name else {
        return Ok(ids::generate(args.argv.first().map_or("", String::as_str)));
    };
    if !client.server().capabilities.list {
        // An older server cannot list other sessions. It refuses an id that is taken within the session.
        return Ok(name.as_str().into());
    }
    let all = client.list(Scope::All).await.with_context(|| format!("check whether `{name}` is in use"))?;
    if ids::is_in_use(name, &all) {
        anyhow::bail!(
            "a process named `{0}` is already running; choose another name, or run `exec-server kill {0}` first",
            ids::clean(name)
        );
    }
    Ok(name.as_str().into())
}

async fn embedded(args: &args::RunArgs) -> anyhow::Result<u8> {
    let local = Local::start(LocalConfig { name: "exec-server run".to_owned(), ..LocalConfig::default() }).await?;
    let id = args.name.as_deref().map_or_else(|| ids::generate(&args.argv[0]), ProcessId::from);
    let driven = async {
        let prepared = start::prepare(args, Some(local.client()), ServerKind::Embedded, None, id).await?;
        drive(args, local.client(), prepared, ServerKind::Embedded).await
    };
    let end = driven.await;
    local.end().await;
    Ok(report_end(end?, args))
}

async fn remote(args: &args::RunArgs, server: &Server) -> anyhow::Result<u8> {
    let spec = server.spec().map(|(spec, _)| spec);
    // A name must be checked against the other sessions first.
    if args.name.is_none() && server.accepts_early_start() && !start::depends_on_server(args, spec) {
        return remote_at_once(args, server, spec).await;
    }
    let client = server.open(|builder| builder).await?;
    let driven = async {
        let id = choose_id(args, &client).await?;
        let prepared = start::prepare(args, Some(&client), ServerKind::Remote, spec, id).await?;
        drive(args, &client, prepared, ServerKind::Remote).await
    };
    finish(args, &client, driven.await).await
}

/// Sends the start together with the handshake.
async fn remote_at_once(args: &args::RunArgs, server: &Server, spec: Option<&RemoteSpec>) -> anyhow::Result<u8> {
    let id = ids::generate(args.argv.first().map_or("", String::as_str));
    let PreparedStart { start, .. } = start::prepare(args, None, ServerKind::Remote, spec, id).await?;
    let mut signals = EarlySignals::new()?;
    let is_sent = Arc::new(AtomicBool::new(false));
    let opening = server.open_and_start(start, Arc::clone(&is_sent));
    tokio::pin!(opening);
    let (client, started) = loop {
        // All branches are cancel-safe. `opening` is dropped before its end only when we leave.
        tokio::select! {
            opened = &mut opening => break opened?,
            event = signals.stream.next() => {
                let may_run = is_sent.load(Ordering::Relaxed);
                if event == SignalEvent::Suspend {
                    signals::stop_us();
                }
                if let Some(number) = signals.handle(event, may_run) {
                    if may_run && let Ok(Ok((client, _))) = time::timeout(connect::END_WITHIN, &mut opening).await {
                        connect::end(&client).await;
                    }
                    return Ok(codes::of_signal(number));
                }
            }
        }
    };
    let driven = async {
        match started {
            Ok(process) => {
                let running = RunningProcess { process, signals, grants: None };
                forward(args, &client, running, ServerKind::Remote).await
            }
            Err(error) => Ok(RunEnd::NotStarted(error)),
        }
    };
    finish(args, &client, driven.await).await
}

/// Ends the session or leaves it, and returns the exit code.
async fn finish(args: &args::RunArgs, client: &Client, end: anyhow::Result<RunEnd>) -> anyhow::Result<u8> {
    match &end {
        // The program keeps running, and it needs the session.
        Ok(RunEnd::Left { .. }) => client.clone().close().await,
        Ok(RunEnd::Ended(_) | RunEnd::NotStarted(_)) | Err(_) => {
            connect::end(client).await;
        }
    }
    Ok(report_end(end?, args))
}

/// How the command ended.
enum RunEnd {
    Ended(u8),
    NotStarted(Error),
    /// The program continues without us.
    Left {
        id: ProcessId,
        code: u8,
    },
}

/// A started program.
struct RunningProcess {
    process: Process,
    signals: EarlySignals,
    /// The grants of `--sandbox`.
    grants: Option<Grants>,
}

/// Starts the program and runs it to its end.
async fn drive(
    args: &args::RunArgs,
    client: &Client,
    prepared: PreparedStart,
    server_kind: ServerKind,
) -> anyhow::Result<RunEnd> {
    let PreparedStart { start, grants } = prepared;
    // Register the signal handlers before the start, so that a signal that arrives with the first instruction is not lost.
    let mut signals = EarlySignals::new()?;
    let process = match start_process(client, start, &mut signals).await {
        Ok(process) => process,
        Err(end) => return Ok(end),
    };
    forward(args, client, RunningProcess { process, signals, grants }, server_kind).await
}

/// Connects our streams to the program until its end.
async fn forward(
    args: &args::RunArgs,
    client: &Client,
    running: RunningProcess,
    server_kind: ServerKind,
) -> anyhow::Result<RunEnd> {
    let RunningProcess { process, signals, grants } = running;
    let EarlySignals { stream: signals, pending, .. } = signals;
    if let Some(grants) = &grants {
        sandbox::report(grants, &process)?;
    }
    // Switch to raw mode only now: before the program runs, Ctrl-C must reach us. Keys typed in the meantime wait in the terminal's buffer.
    // The guard restores the terminal when it goes out of scope.
    let terminal = if args.tty && !args.no_stdin { Terminal::open()? } else { None };
    // The detach keys work only where leaving is possible, and only from a keyboard: a pipe may contain any bytes. A raw terminal has no
    // EOF except a hang-up.
    let is_raw = terminal.is_some();
    let input = InputMode {
        is_read: !args.no_stdin,
        at_eof: if is_raw { AtEof::KeepOpen } else { AtEof::Close },
        has_keys: is_raw && server_kind == ServerKind::Remote,
        is_raw,
    };
    let id = process.id().clone();
    let forwarder = StreamForwarder {
        client: client.clone(),
        events: process.events(),
        process,
        replayed_to: 0,
        input,
        signals,
        pending,
        role: StreamRole::Owner,
        terminal,
    };
    match forwarder.run().await? {
        StreamOutcome::Ended(ended) => {
            ended.explain();
            Ok(RunEnd::Ended(ended.code()))
        }
        StreamOutcome::Detached => {
            terminal::reset_screen();
            Ok(RunEnd::Left { id, code: 0 })
        }
        // An owner leaves only while the link is broken: at a second signal, or when the terminal hangs up.
        StreamOutcome::Left(_) => Ok(RunEnd::Left { id, code: codes::TROUBLE }),
    }
}

/// The signals until the program runs. They are passed on to it then. The second one cancels the start.
struct EarlySignals {
    stream: SignalStream,
    pending: Vec<SignalEvent>,
    has_signal: bool,
}

impl EarlySignals {
    fn new() -> anyhow::Result<Self> {
        let stream = SignalStream::new().context("listen to signals")?;
        Ok(Self { stream, pending: Vec::new(), has_signal: false })
    }

    /// Returns the number of the signal that ends this command. `may_run`: the start was sent, so the program may run.
    fn handle(&mut self, event: SignalEvent, may_run: bool) -> Option<u8> {
        match event {
            SignalEvent::Signal(_, number) if !may_run || std::mem::replace(&mut self.has_signal, true) => {
                return Some(number);
            }
            SignalEvent::Resized if self.pending.contains(&SignalEvent::Resized) => {}
            // The start request may contain the old size.
            SignalEvent::Signal(..) | SignalEvent::Resized => self.pending.push(event),
            SignalEvent::Suspend | SignalEvent::Continued => {}
        }
        None
    }
}

/// Starts the process. A second signal during the start cancels it.
async fn start_process(client: &Client, start: Start, signals: &mut EarlySignals) -> Result<Process, RunEnd> {
    let starting = client.start(start);
    tokio::pin!(starting);
    let mut link = LinkNotice::new(client.watch_state(), false);
    loop {
        // All branches are cancel-safe; dropping `starting` cancels the start.
        tokio::select! {
            started = &mut starting => return started.map_err(RunEnd::NotStarted),
            event = signals.stream.next() => {
                if let Some(number) = signals.handle(event, true) {
                    return Err(RunEnd::Ended(codes::of_signal(number)));
                }
            }
            _ = link.watch() => {}
        }
    }
}

/// Prints the final message, after the terminal was restored, and returns the exit code.
fn report_end(end: RunEnd, args: &args::RunArgs) -> u8 {
    match end {
        RunEnd::Ended(code) => code,
        RunEnd::NotStarted(error) => report_not_started(error, args),
        RunEnd::Left { id, code } => {
            notice!("left `{id}` running; `exec-server attach {id}` reattaches");
            code
        }
    }
}

/// Prints why the program could not be started, and a hint for a likely mistake. Returns the exit code.
pub(crate) fn report_not_started(error: Error, args: &args::RunArgs) -> u8 {
    let code = codes::of_start(&error);
    let is_missing = error.server_kind() == Some(Kind::ProgramNotFound);
    print::error(&error.into());
    if let Some(meant) = hints::shell_command(&args.argv).filter(|_| is_missing) {
        report!("a single argument is the name of a program; for a shell command use `{meant}`");
    }
    code
}
