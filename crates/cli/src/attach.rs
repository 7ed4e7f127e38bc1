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
    connect::ListingSession,
    env_token, ids,
    logs::{self, LogReader},
    print, runtime,
    signals::SignalStream,
    streams::{self, AtEof, InputMode, StreamForwarder, StreamOutcome, StreamRole},
    terminal::{self, Terminal},
};

/// How many of the latest events are replayed. A terminal event usually holds a few hundred bytes, so this covers several screens.
const REPLAYED: u64 = 1024;

/// Returns the exit code of the attached process; after a detach 0, or 128+n if signal n caused it.
pub(crate) fn run(args: &args::AttachArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    runtime::block_on_here(async {
        let mut listing = ListingSession::open(&args.connect, token).await?;
        // From here on the screen belongs to the process, so `streams` reports the state of the link instead.
        listing.notices.abort_all();
        let found = listing.find(&args.id).map_err(anyhow::Error::from);
        let done = match found {
            Ok((client, info)) => attach(client, info).await,
            Err(error) => Err(error),
        };
        listing.end().await;
        done.map(ExitCode::from)
    })
}

async fn attach(client: &Client, info: &ProcessInfo) -> anyhow::Result<u8> {
    let signals = SignalStream::new().context("listen to signals")?;
    let latest = info.next_seq.saturating_sub(1);
    // The latest output restores the screen of a terminal, and it is all that an ended process can show. Other processes show only new
    // output.
    let after = if info.tty || info.exited { latest.saturating_sub(REPLAYED) } else { latest };
    let process = logs::attach(client, info, after, LogReader::Follower).await?;
    let name = ids::clean(process.id().as_str());
    let terminal = if info.tty { Terminal::open()? } else { None };
    if info.tty {
        terminal::clear();
    }
    let is_typed = io::stdin().is_terminal();
    let is_raw = terminal.is_some();
    if is_typed {
        // A terminal in line mode delivers a whole line at a time, so the user must also press Enter.
        let keys = if is_raw { "Ctrl-] twice" } else { "Ctrl-] twice and Enter" };
        print::dim(format_args!("attached to `{name}`; press {keys} to leave it running"));
    }
    // Ctrl-D in line mode closes the stdin of the process. The end of piped input and a lost terminal do not: other clients may still
    // write.
    let at_eof = if is_typed && !is_raw { AtEof::Close } else { AtEof::KeepOpen };
    let forwarder = StreamForwarder {
        client: client.clone(),
        events: process.events_after(after),
        process: process.clone(),
        replayed_to: latest,
        input: InputMode { is_read: true, at_eof, has_keys: is_typed, is_raw },
        signals,
        pending: Vec::new(),
        role: StreamRole::Guest,
        terminal,
    };
    let redraw = async {
        if let Some(size) = terminal::size().filter(|_| info.tty && !info.exited) {
            streams::redraw(&process, size).await;
        }
    };
    let forwarding = forwarder.run();
    tokio::pin!(forwarding);
    // The redraw runs beside `forwarding`, which prints what the program draws. If `forwarding` ends first, the redraw is dropped.
    let outcome = tokio::select! {
        outcome = &mut forwarding => outcome,
        () = redraw => forwarding.await,
    };
    match outcome? {
        StreamOutcome::Ended(ended) => {
            ended.explain();
            Ok(ended.code())
        }
        outcome @ (StreamOutcome::Detached | StreamOutcome::Left(_)) => {
            if info.tty {
                terminal::reset_screen();
            }
            report!("detached; `{name}` keeps running, `exec-server attach {name}` reattaches");
            Ok(if let StreamOutcome::Left(number) = outcome { codes::of_signal(number) } else { 0 })
        }
    }
}
