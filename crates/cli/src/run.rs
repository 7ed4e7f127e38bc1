//! `exec-server run`: one program, here or on a server, as if it were a child of this shell.
//!
//! Here means a server inside this process, over the same holder as everybody else's; its session ends with us. On a server
//! the session ends with the program, too; a client that dies leaves it to its time-to-live. With `--detach` see `detach`.

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

/// Runs the program and ends as it ended.
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

/// The name that was given, if no running process has it; else a new one.
pub(crate) async fn name(args: &args::Run, client: &Client) -> anyhow::Result<ProcessId> {
    let Some(name) = &args.name else {
        return Ok(ids::generate(args.argv.first().map_or("", String::as_str)));
    };
    if !client.server().capabilities.list {
        // An older server knows only the names of the session, and refuses one that is taken.
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
        // It goes on: the session is its home.
        Ok(End::Left { .. }) => client.close().await,
        Ok(End::Ended(_) | End::NotStarted(..)) | Err(_) => connect::end(&client).await,
    }
    Ok(say_end(driven?, args))
}

/// How it went, from the client's side.
enum End {
    Ended(u8),
    NotStarted(u8, Error),
    /// The program goes on without us.
    Left {
        id: ProcessId,
        code: u8,
    },
}

/// The whole life of the program.
async fn drive(args: &args::Run, client: &Client, prepared: Prepared, place: Place) -> anyhow::Result<End> {
    let Prepared { start, grants } = prepared;
    // Before the start: a signal that comes with the first instruction must not be lost.
    let mut signals = Signals::new().context("listen to signals")?;
    let (process, pending) = match begin(client, start, &mut signals).await {
        Begun::Started(process, pending) => (process, pending),
        Begun::Failed(error) => return Ok(End::NotStarted(codes::of_start(&error), error)),
        Begun::CalledOff(number) => return Ok(End::Ended(codes::of_signal(number))),
    };
    if let Some(grants) = &grants {
        sandbox::report(grants, &process)?;
    }
    // Raw only now: until there was a program for its keys, Ctrl-C was for us. What was typed meanwhile waits in the terminal. It is
    // given back when this goes out of scope, whatever happens.
    let terminal = if args.tty && !args.no_stdin { Terminal::open()? } else { None };
    // Keys are heeded where leaving is possible, and only from a keyboard: a pipe may hold any bytes. A raw terminal has no
    // end but its own.
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
    /// With what was heard meanwhile and is the program's.
    Started(Process, Vec<Heard>),
    Failed(Error),
    /// By a second signal, while the server did not answer.
    CalledOff(u8),
}

async fn begin(client: &Client, start: Start, signals: &mut Signals) -> Begun {
    let starting = client.start(start);
    tokio::pin!(starting);
    let mut link = LinkNotice::new(client.watch_state(), false);
    let (mut pending, mut has_signal) = (Vec::new(), false);
    loop {
        // All are cancel safe; the start is dropped only to call it off.
        tokio::select! {
            started = &mut starting => match started {
                Ok(process) => return Begun::Started(process, pending),
                Err(error) => return Begun::Failed(error),
            },
            heard = signals.next() => match heard {
                Heard::Signal(_, number) if std::mem::replace(&mut has_signal, true) => return Begun::CalledOff(number),
                Heard::Resized if pending.contains(&Heard::Resized) => {}
                // The size it is started with may be the one before.
                Heard::Signal(..) | Heard::Resized => pending.push(heard),
                Heard::Suspend | Heard::Continued => {}
            },
            _ = link.watch() => {}
        }
    }
}

/// Says what has to be said once the terminal is given back.
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

/// Why the program could not be started, and what was probably meant.
pub(crate) fn say_not_started(error: Error, args: &args::Run) {
    let is_missing = error.server_kind() == Some(Kind::ProgramNotFound);
    say::error(&error.into());
    if let Some(meant) = hints::shell_command(&args.argv).filter(|_| is_missing) {
        say::talk(format_args!(
            "exec-server: one argument is the name of a program; for a shell command write `{meant}`"
        ));
    }
}
