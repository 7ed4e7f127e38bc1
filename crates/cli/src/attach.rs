//! `exec-server attach`: connects this terminal to a running process until the process ends or the user presses the detach keys.
//!
//! The screen of a process with a terminal is restored in two steps. First the latest output is written again. Then the terminal size is
//! changed for a moment, so that the program receives SIGWINCH and redraws itself.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use anyhow::Context as _;
use exec_server_client::{Client, protocol::process::ProcessInfo};

use crate::{
    args, codes,
    connect::Visit,
    env_token, ids, logs, runtime, say,
    signals::Signals,
    streams::{self, Carry, Input, Outcome, Role},
    terminal::{self, Terminal},
};

/// How many of the latest events are replayed. A terminal event usually holds a few hundred bytes, so this covers several screens.
const REPLAYED: u64 = 1024;

/// Returns the exit code of the attached process.
pub(crate) fn run(args: &args::Attach, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    runtime::block_on(async {
        let mut visit = Visit::begin(&args.connect, token).await?;
        // From here on the screen belongs to the process, so `streams` reports the state of the link instead.
        visit.stop_notices();
        let attached = match visit.find(&args.id) {
            Ok((client, info)) => attach(client, info).await,
            Err(error) => Err(error.into()),
        };
        visit.end().await;
        attached.map(ExitCode::from)
    })
}

async fn attach(client: &Client, info: &ProcessInfo) -> anyhow::Result<u8> {
    let signals = Signals::new().context("listen to signals")?;
    let latest = info.next_seq.saturating_sub(1);
    // For an ended process the replay is all there is to show.
    let after = if info.tty || info.exited { latest.saturating_sub(REPLAYED) } else { latest };
    let process = logs::attach(client, info, after, true).await?;
    let name = ids::clean(process.id().as_str());
    let terminal = if info.tty { Terminal::open()? } else { None };
    if info.tty {
        terminal::clear();
    }
    let (is_typed, is_raw) = (io::stdin().is_terminal(), terminal.is_some());
    if is_typed {
        // A terminal in line mode delivers a whole line at a time, so the user must also press Enter.
        let keys = if is_raw { "Ctrl-] twice" } else { "Ctrl-] twice and Enter" };
        let hint = format!("exec-server: attached to `{name}`; press {keys} to leave it running");
        say::dim(hint);
    }
    let carry = Carry {
        client: client.clone(),
        events: process.events_after(after),
        process: process.clone(),
        replayed_to: latest,
        // Ctrl-D in line mode closes the stdin of the process. The end of piped input and a lost terminal do not: other clients may still
        // write.
        input: Input { is_read: true, closes: is_typed && !is_raw, has_keys: is_typed, is_raw },
        signals,
        pending: Vec::new(),
        role: Role::Guest,
        terminal,
    };
    let redraw = async {
        if let Some(size) = terminal::size().filter(|_| info.tty && !info.exited) {
            streams::redraw(&process, size).await;
        }
    };
    let carrying = carry.run();
    tokio::pin!(carrying);
    // The redraw runs beside `carrying`, which shows its output. If `carrying` ends first, the redraw is dropped.
    let carried = tokio::select! {
        carried = &mut carrying => carried,
        () = redraw => carrying.await,
    };
    match carried? {
        Outcome::Ended(ended) => {
            ended.explain();
            Ok(ended.code())
        }
        outcome @ (Outcome::Detached | Outcome::Left(_)) => {
            if info.tty {
                terminal::calm();
            }
            say::talk(format_args!(
                "exec-server: detached; `{name}` goes on, `exec-server attach {name}` returns to it"
            ));
            Ok(if let Outcome::Left(number) = outcome { codes::of_signal(number) } else { 0 })
        }
    }
}
