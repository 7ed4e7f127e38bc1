//! `exec-server attach`: this terminal on a process that runs already, until it ends or the keys detach.
//!
//! The screen of a process with a terminal is drawn in two steps: its latest output is written again, and then the program is
//! made to draw by itself, because it is told of another size for a moment. Must not know how a server is reached.

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

/// How many of the latest events are shown again. A terminal gives some hundred bytes at a time: enough for several screens.
const REPLAYED: u64 = 1024;

/// Attaches, and ends as the process does.
pub(crate) fn run(args: &args::Attach, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    runtime::block_on(async {
        let mut visit = Visit::begin(&args.connect, token).await?;
        // From here on the notices are on the screen of the process.
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
    // What has ended is shown from its end, too: there is nothing else to come.
    let after = if info.tty || info.exited { latest.saturating_sub(REPLAYED) } else { latest };
    let process = logs::attach(client, info, after, true).await?;
    let name = ids::clean(process.id().as_str());
    let terminal = if info.tty { Terminal::open()? } else { None };
    if info.tty {
        terminal::clear();
    }
    let (is_typed, is_raw) = (io::stdin().is_terminal(), terminal.is_some());
    if is_typed {
        // A terminal that is not raw gives a line at a time.
        let keys = if is_raw { "Ctrl-] twice" } else { "Ctrl-] twice and Enter" };
        let hint = format!("exec-server: attached to `{name}`; press {keys} to leave it running");
        say::dim(hint);
    }
    let carry = Carry {
        client: client.clone(),
        events: process.events_after(after),
        process: process.clone(),
        replayed_to: latest,
        // Ctrl-D closes it. Neither the end of a file that was piped in nor a terminal that is gone is an end for others.
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
    // Beside the carrying, which shows what comes of it; given up when that ends first.
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
