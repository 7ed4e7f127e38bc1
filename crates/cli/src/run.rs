//! `exec-server run`: runs one program, locally or on a server, as if it were a child of the shell.
//!
//! Locally, it runs on a server embedded in this process, with the same holder as any server; the session ends with us. On a remote server
//! the session ends with the program; if the client dies, the session's time-to-live ends it. For `--detach` see `detach`.

use std::process::ExitCode;

use anyhow::Context as _;
use exec_server_client::{
    Client, Error, Process, Start,
    local::{Local, LocalConfig},
    protocol::{ProcessId, failure::Kind, process::Scope},
};

use crate::{
    args, codes, connect,
    connect::Server,
    detach, env_token, hints, ids, runtime, sandbox, say,
    signals::{Heard, Signals},
    start::{self, Host, Place, Prepared},
    streams::{Carry, Input, LinkNotice, Outcome, Role},
    terminal::{self, Terminal},
};

/// Runs the program and returns its exit code.
pub(crate) fn run(args: &args::Run, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    if args.quiet {
        say::be_quiet();
    }
    let server = Server::find(&args.connect, token)?;
    runtime::block_on(async {
        let code = match (args.detach, server) {
            (true, server) => detach::run(args, server).await?,
            (false, None) => embedded(args).await?,
            (false, Some(server)) => remote(args, &server).await?,
        };
        Ok(ExitCode::from(code))
    })
}

/// The id given by `--name`, if no running process has it; without `--name` a generated one.
pub(crate) async fn name(args: &args::Run, client: &Client) -> anyhow::Result<ProcessId> {
    let Some(name) = &args.name else {
        return Ok(ids::generate(args.argv.first().map_or("", String::as_str)));
    };
    if !client.server().capabilities.list {
        // An older server cannot list other sessions. It refuses an id that is taken within the session.
        return Ok(name.as_str().into());
    }
    let all = client.list(Scope::All).await.with_context(|| format!("look whether `{name}` is in use"))?;
    if ids::is_in_use(name, &all) {
        anyhow::bail!(
            "a process named `{0}` runs already; choose another name, or `exec-server kill {0}` first",
            ids::clean(name)
        );
    }
    Ok(name.as_str().into())
}

async fn embedded(args: &args::Run) -> anyhow::Result<u8> {
    let local = Local::start(LocalConfig { name: "exec-server run".to_owned(), ..LocalConfig::default() }).await?;
    let id = args.name.as_deref().map_or_else(|| ids::generate(&args.argv[0]), ProcessId::from);
    let host = Host { client: local.client(), place: Place::Embedded, spec: None };
    let code = match start::prepare(args, host, id).await {
        Ok(prepared) => drive(args, local.client(), prepared, Place::Embedded).await,
        Err(error) => Err(error),
    };
    local.end().await;
    Ok(say_end(code?, args))
}

async fn remote(args: &args::Run, server: &Server) -> anyhow::Result<u8> {
    let client = server.open(|builder| builder).await?;
    let host = Host { client: &client, place: Place::Remote, spec: server.spec().map(|(spec, _)| spec) };
    let prepared = async { start::prepare(args, host, name(args, &client).await?).await };
    let driven = match prepared.await {
        Ok(prepared) => drive(args, &client, prepared, Place::Remote).await,
        Err(error) => Err(error),
    };
    match &driven {
        // The program keeps running, and it needs the session.
        Ok(End::Left { .. }) => client.close().await,
        Ok(End::Ended(_) | End::NotStarted(..)) | Err(_) => connect::end(&client).await,
    }
    Ok(say_end(driven?, args))
}

/// How the command ended.
enum End {
    Ended(u8),
    NotStarted(u8, Error),
    /// The program continues without us.
    Left {
        id: ProcessId,
        code: u8,
    },
}

/// Starts the program and runs it to its end.
async fn drive(args: &args::Run, client: &Client, prepared: Prepared, place: Place) -> anyhow::Result<End> {
    let Prepared { start, grants } = prepared;
    // Register the signal handlers before the start, so that a signal that arrives with the first instruction is not lost.
    let mut signals = Signals::new().context("listen to signals")?;
    let (process, pending) = match begin(client, start, &mut signals).await {
        Begun::Started(process, pending) => (process, pending),
        Begun::Failed(error) => return Ok(End::NotStarted(codes::of_start(&error), error)),
        Begun::CalledOff(number) => return Ok(End::Ended(codes::of_signal(number))),
    };
    if let Some(grants) = &grants {
        sandbox::report(grants, &process)?;
    }
    // Switch to raw mode only now: before the program runs, Ctrl-C must reach us. Keys typed in the meantime wait in the terminal's buffer.
    // The guard restores the terminal when it goes out of scope.
    let terminal = if args.tty && !args.no_stdin { Terminal::open()? } else { None };
    // The detach keys work only where leaving is possible, and only from a keyboard: a pipe may contain any bytes. A raw terminal has no
    // EOF except a hang-up.
    let is_raw = terminal.is_some();
    let input = Input { is_read: !args.no_stdin, closes: !is_raw, has_keys: is_raw && place == Place::Remote, is_raw };
    let id = process.id().clone();
    let carry = Carry {
        client: client.clone(),
        events: process.events(),
        process,
        replayed_to: 0,
        input,
        signals,
        pending,
        role: Role::Owner,
        terminal,
    };
    match carry.run().await? {
        Outcome::Ended(ended) => {
            ended.explain();
            Ok(End::Ended(ended.code()))
        }
        Outcome::Detached => {
            terminal::calm();
            Ok(End::Left { id, code: 0 })
        }
        Outcome::Left(_) => Ok(End::Left { id, code: codes::TROUBLE }),
    }
}

enum Begun {
    /// The process, and the signals received in the meantime, which are to be passed on.
    Started(Process, Vec<Heard>),
    Failed(Error),
    /// A second signal arrived while the server did not answer.
    CalledOff(u8),
}

async fn begin(client: &Client, start: Start, signals: &mut Signals) -> Begun {
    let starting = client.start(start);
    tokio::pin!(starting);
    let mut link = LinkNotice::new(client.watch_state(), false);
    let (mut pending, mut has_signal) = (Vec::new(), false);
    loop {
        // All branches are cancel-safe; dropping `starting` cancels the start.
        tokio::select! {
            started = &mut starting => match started {
                Ok(process) => return Begun::Started(process, pending),
                Err(error) => return Begun::Failed(error),
            },
            heard = signals.next() => match heard {
                Heard::Signal(_, number) if std::mem::replace(&mut has_signal, true) => return Begun::CalledOff(number),
                Heard::Resized if pending.contains(&Heard::Resized) => {}
                // The start request may contain the old size.
                Heard::Signal(..) | Heard::Resized => pending.push(heard),
                Heard::Suspend | Heard::Continued => {}
            },
            _ = link.watch() => {}
        }
    }
}

/// Prints the final message, after the terminal was restored, and returns the exit code.
fn say_end(end: End, args: &args::Run) -> u8 {
    match end {
        End::Ended(code) => code,
        End::NotStarted(code, error) => {
            say_not_started(error, args);
            code
        }
        End::Left { id, code } => {
            say::notice(format_args!("exec-server: left `{id}` running; `exec-server attach {id}` returns to it"));
            code
        }
    }
}

/// Prints why the program could not be started, and a hint for a likely mistake.
pub(crate) fn say_not_started(error: Error, args: &args::Run) {
    let is_missing = error.server_kind() == Some(Kind::ProgramNotFound);
    say::error(&error.into());
    if let Some(meant) = hints::shell_command(&args.argv).filter(|_| is_missing) {
        say::talk(format_args!(
            "exec-server: one argument is the name of a program; for a shell command write `{meant}`"
        ));
    }
}
