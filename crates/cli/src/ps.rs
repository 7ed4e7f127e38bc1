//! `exec-server ps`: lists the processes of all sessions, as a table for people or as JSON for programs; with `-w` repeatedly.
//!
//! The table lists running processes first, and newer ones before older ones. JSON keeps the order of `process/list`. With `-w` on a
//! terminal the table is drawn on the alternate screen; dropping `AlternateScreen` leaves it, however the command ends.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use exec_server_client::{Client, ConnectionState};
use exec_server_protocol::process::{Blocked, Cause, ProcessInfo, Scope, Size};
use tokio::time::{self, Instant};

use crate::{
    args, codes,
    connect::ListingSession,
    display::{self, Palette, Style, TableCell},
    env_token, ids, print,
    signals::{SignalEvent, SignalStream},
    terminal,
};

const HEADS: [&str; 7] = ["ID", "PID", "STATE", "AGE", "OUTPUT", "SESSION", "COMMAND"];

/// Maximum width of a command line in the table, on a terminal of any width.
const COMMAND_MAX: usize = 200;

/// How often the screen is redrawn while no new listing arrives.
const REDRAW_EVERY: Duration = Duration::from_secs(1);

/// Enters the alternate screen and hides the cursor, and undoes both.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

pub(crate) fn run(args: &args::PsArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    ListingSession::run(&args.connect, token, async |listing| {
        print::or_closed_pipe(if args.watch { watch(args, listing).await } else { once(args, listing) })
    })
}

fn once(args: &args::PsArgs, listing: &ListingSession) -> anyhow::Result<u8> {
    let shown = chosen(args, &listing.all);
    if let Some(longest) = listing.adopting.iter().map(|session| session.waiting_ms / 1000).max() {
        let names = listing.adopting.iter().map(|session| ids::short_session(&session.session_id));
        let names = names.collect::<Vec<_>>().join(", ");
        report!("not listed, because the holder process has not answered for {longest} s: session {names}");
    }
    if shown.is_empty() && !args.json {
        if !args.quiet {
            report!("{}", if args.running { "no running processes" } else { "no processes" });
        }
        return Ok(0);
    }
    print(args, &text(args, shown)?)?;
    Ok(0)
}

fn print(args: &args::PsArgs, text: &str) -> anyhow::Result<()> {
    if args.json { print::json(text) } else { print::text(text) }
}

/// The processes that the flags select.
fn chosen(args: &args::PsArgs, all: &[ProcessInfo]) -> Vec<ProcessInfo> {
    all.iter().filter(|info| !(args.running && info.exited)).cloned().collect()
}

fn text(args: &args::PsArgs, mut shown: Vec<ProcessInfo>) -> anyhow::Result<String> {
    if args.json {
        return Ok(format!("{}\n", serde_json::to_string(&shown)?));
    }
    sort(&mut shown);
    if args.quiet {
        return Ok(shown.iter().map(|info| format!("{}\n", ids::clean(info.process_id.as_str()))).collect());
    }
    Ok(table(&shown, now(), display::stdout_columns(), Palette::of_stdout()))
}

/// Running processes first, then ended ones; each group newest first.
fn sort(shown: &mut [ProcessInfo]) {
    shown.sort_by_key(|info| (info.exited, std::cmp::Reverse(info.started_at_ms)));
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Prints the table at every interval until a signal ends the command.
async fn watch(args: &args::PsArgs, session: &mut ListingSession) -> anyhow::Result<u8> {
    let mut signals = SignalStream::for_ending().context("listen to signals")?;
    let screen =
        if io::stdout().is_terminal() && !args.json && !args.quiet { Some(AlternateScreen::enter()?) } else { None };
    let mut shown = chosen(args, &session.all);
    let mut is_first = true;
    loop {
        let next = Instant::now() + args.interval;
        match &screen {
            Some(screen) => screen.draw(&shown, session.client.as_ref())?,
            None => {
                let gap = if is_first || args.json || args.quiet { "" } else { "\n" };
                print(args, &format!("{gap}{}", text(args, shown.clone())?))?;
            }
        }
        is_first = false;
        session.connect().await?;
        let client = session.client.clone();
        let listing = async {
            time::sleep_until(next).await;
            match &client {
                Some(client) => client.list(Scope::All).await,
                None => Ok(Vec::new()),
            }
        };
        tokio::pin!(listing);
        let listed = loop {
            // All branches are cancel-safe, and `listing` is dropped only at the end.
            tokio::select! {
                listed = &mut listing => break listed,
                event = signals.next() => {
                    if let SignalEvent::Signal(_, number) = event {
                        return Ok(codes::of_signal(number));
                    }
                }
                // Redraw while waiting for the listing: the link may break, and the ages grow.
                () = time::sleep(REDRAW_EVERY), if screen.is_some() => {
                    if let Some(screen) = &screen {
                        screen.draw(&shown, client.as_ref())?;
                    }
                }
            }
        };
        shown = chosen(args, &listed.context("list processes")?);
    }
}

/// A message about the link if it is not working normally.
fn status(client: Option<&Client>) -> String {
    match client.map(Client::state) {
        Some(ConnectionState::Stalled { .. }) => "the server does not answer".to_owned(),
        Some(ConnectionState::Recovering { reason }) => {
            format!("connection lost ({}); reconnecting", ids::clean(&reason))
        }
        Some(_) | None => String::new(),
    }
}

/// The alternate screen of the terminal. Dropping this leaves it.
struct AlternateScreen(());

impl AlternateScreen {
    fn enter() -> anyhow::Result<Self> {
        print::put(ENTER.as_bytes())?;
        Ok(Self(()))
    }

    /// Overwrites the previous frame instead of clearing the screen, which would flicker.
    fn draw(&self, shown: &[ProcessInfo], client: Option<&Client>) -> anyhow::Result<()> {
        let size = terminal::size().unwrap_or(Size { rows: 24, cols: 80 });
        let mut frame = String::from("\x1b[H");
        for line in screen(shown, now(), size, &status(client), Palette::of_stdout()).lines() {
            frame.push_str(line);
            frame.push_str("\x1b[K\r\n");
        }
        // A newline after the last row would scroll a full screen.
        frame.truncate(frame.len() - 2);
        frame.push_str("\x1b[J");
        // The cells of the table were cleaned one by one.
        print::put(frame.as_bytes())
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        print::put(LEAVE.as_bytes()).ok();
    }
}

/// One screen: a title with counts, and as many processes as fit.
fn screen(shown: &[ProcessInfo], now: Duration, size: Size, status: &str, palette: Palette) -> String {
    let mut sorted = shown.to_vec();
    sort(&mut sorted);
    let running = sorted.iter().filter(|info| !info.exited).count();
    let mut title = format!("{running} running, {} ended", sorted.len() - running);
    // Leave room for the title and the column heads, and keep the last row free.
    let room = usize::from(size.rows).saturating_sub(3).max(1);
    let hidden = sorted.len().saturating_sub(room);
    if hidden > 0 {
        title += &format!(", {hidden} not shown");
    }
    if !status.is_empty() {
        title += &format!(" - {status}");
    }
    sorted.truncate(room);
    let columns = usize::from(size.cols);
    let title = palette.paint(display::DIM, &display::fit(&title, columns));
    format!("{title}\n{}", table(&sorted, now, columns, palette))
}

/// Formats the table. If the width of the terminal is known, commands are cut to fit.
fn table(all: &[ProcessInfo], now: Duration, width: usize, palette: Palette) -> String {
    display::table(HEADS, all.iter().map(|info| row(info, now)).collect(), palette, width)
}

fn row(info: &ProcessInfo, now: Duration) -> [TableCell; 7] {
    let age = now.saturating_sub(Duration::from_millis(info.started_at_ms));
    let command: Vec<String> = info.argv.iter().map(|arg| ids::quoted(arg)).collect();
    [
        ids::clean(info.process_id.as_str()).into(),
        info.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()).into(),
        TableCell::styled(state(info), state_style(info)),
        display::age(age).into(),
        display::short_size(info.output_bytes).into(),
        TableCell::styled(ids::short_session(&info.session_id), display::DIM),
        display::fit(&command.join(" "), COMMAND_MAX).into(),
    ]
}

fn state_style(info: &ProcessInfo) -> Style {
    match (&info.exit, info.exited, info.blocked) {
        (None, false, None) => display::GREEN,
        (None, false, Some(_)) => display::YELLOW,
        (Some(exit), ..) if exit.exit_code == 0 && exit.cause == Cause::Exit => display::DIM,
        (Some(_), ..) | (None, true, _) => display::RED,
    }
}

fn state(info: &ProcessInfo) -> String {
    let Some(exit) = &info.exit else {
        return match (info.exited, info.blocked) {
            (true, _) => "lost".to_owned(),
            (false, None) => "running".to_owned(),
            (false, Some(Blocked::MemoryCap)) => "blocked memory".to_owned(),
            (false, Some(Blocked::Quota)) => "blocked quota".to_owned(),
            (false, Some(Blocked::DiskFull)) => "blocked disk".to_owned(),
        };
    };
    let ended = match (exit.cause, &exit.signal) {
        (Cause::Timeout | Cause::IdleTimeout, _) => "timed out".to_owned(),
        (Cause::Oom, _) => "out of memory".to_owned(),
        (Cause::Lost, _) => "lost".to_owned(),
        (Cause::Exit | Cause::Signal | Cause::Terminated, Some(signal)) => format!("killed {}", ids::clean(signal)),
        (Cause::Exit | Cause::Signal | Cause::Terminated, None) => format!("exited {}", exit.exit_code),
    };
    // A process that is not closed yet has descendants that hold its streams open.
    if info.closed { ended } else { format!("{ended}, open") }
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::process::{Exit, Usage};

    use super::*;

    const PLAIN: Palette = Palette::PLAIN;

    fn process(id: &str, argv: &[&str]) -> ProcessInfo {
        ProcessInfo {
            process_id: id.into(),
            session_id: "0123456789abcdef".into(),
            pid: Some(42),
            argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            argv_bytes: None,
            cwd: "/".to_owned(),
            tty: false,
            started_at_ms: 1_000,
            exited: false,
            exit: None,
            closed: false,
            next_seq: 1,
            output_bytes: 20_480,
            retained_bytes: 0,
            dropped_bytes: 0,
            blocked: None,
        }
    }

    #[test]
    fn columns_fit_and_control_characters_are_escaped() {
        let exit =
            Exit { exit_code: 3, signal: None, cause: Cause::Exit, usage: Usage::default(), limits_hit: Vec::new() };
        let mut done = process("long-name-of-it", &["sh", "-c", "echo \x1b[2J; it's"]);
        done.exited = true;
        done.exit = Some(exit);
        done.closed = true;
        let mut blocked = process("w", &["cat"]);
        blocked.blocked = Some(Blocked::Quota);
        let text = table(&[done, blocked], Duration::from_secs(91), 0, PLAIN);
        let expected = "\
ID               PID  STATE          AGE  OUTPUT  SESSION   COMMAND
long-name-of-it  42   exited 3       1m   20K     01234567  sh -c 'echo \\u{1b}[2J; it'\\''s'
w                42   blocked quota  1m   20K     01234567  cat
";
        assert_eq!(text, expected);
        let narrow = table(&[process("a", &["sleep", "1000"])], Duration::ZERO, 50, PLAIN);
        assert_eq!(narrow.lines().last(), Some("a   42   running  0s   20K     01234567  sleep 10…"));
    }

    #[test]
    fn running_processes_come_first_and_newer_before_older() {
        let mut all = ["ended-old", "running-old", "ended-new", "running-new"].map(|id| process(id, &["x"]));
        for (at, info) in all.iter_mut().enumerate() {
            info.started_at_ms = at as u64;
            info.exited = info.process_id.as_str().starts_with("ended");
            info.closed = true;
        }
        sort(&mut all);
        let order: Vec<&str> = all.iter().map(|info| info.process_id.as_str()).collect();
        assert_eq!(order, ["running-new", "running-old", "ended-new", "ended-old"]);
    }

    #[test]
    fn a_screen_fits_the_terminal_and_counts_the_hidden_processes() {
        let all: Vec<ProcessInfo> = (0..30).map(|n| process(&format!("p{n}"), &["x"])).collect();
        let text = screen(&all, Duration::ZERO, Size { rows: 10, cols: 60 }, "", PLAIN);
        assert_eq!(text.lines().next(), Some("30 running, 0 ended, 23 not shown"));
        assert_eq!(text.lines().count(), 9);
        assert!(text.lines().all(|line| display::width(line) <= 60), "{text}");
        let empty =
            screen(&[], Duration::ZERO, Size { rows: 10, cols: 40 }, "connection lost (x); reconnecting", PLAIN);
        assert_eq!(empty.lines().next(), Some("0 running, 0 ended - connection lost (x…"));
    }
}
