//! `exec-server ps`: the processes of all sessions, as a table for people or as JSON for programs.
//! Must not know how a server is reached.

use std::{
    io,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use exec_server_protocol::process::{AdoptingSession, Blocked, Cause, ProcessInfo};

use crate::{args, codes, connect::Visit, env_token, ids, runtime, say};

const HEADS: [&str; 7] = ["ID", "PID", "STATE", "AGE", "OUTPUT", "SESSION", "COMMAND"];

/// What a command may take on one line when nobody knows how wide that is.
const COMMAND_MAX: usize = 200;

/// Prints them.
pub(crate) fn run(args: &args::Ps, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    let all = runtime::block_on(async {
        let visit = Visit::begin(&args.connect, token).await?;
        let shown = visit.all().iter().filter(|info| !(args.running && info.exited)).cloned();
        let shown: Vec<ProcessInfo> = shown.collect();
        if let Some(notice) = unlisted(visit.adopting()) {
            say::talk(format_args!("exec-server: {notice}"));
        }
        visit.end().await;
        Ok(shown)
    })?;
    let text = match (args.json, all.is_empty()) {
        (true, _) => format!("{}\n", serde_json::to_string(&all)?),
        (false, true) => return Ok(ExitCode::SUCCESS),
        (false, false) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let width = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col));
            table(&all, now, width)
        }
    };
    match if args.json { say::json(&text) } else { say::text(&text) } {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // Nobody reads any more.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::from(codes::CLOSED_PIPE)),
        Err(error) => Err(error).context("write standard output"),
    }
}

/// What is said of sessions whose processes are missing in the table.
fn unlisted(adopting: &[AdoptingSession]) -> Option<String> {
    let longest = adopting.iter().map(|session| session.waiting_ms).max()? / 1000;
    let names: Vec<String> = adopting.iter().map(|session| ids::short_session(&session.session_id)).collect();
    let names = names.join(", ");
    Some(format!("not listed, because the holder process has not answered for {longest} s: session {names}"))
}

/// As wide as the terminal, if there is one: commands are cut.
fn table(all: &[ProcessInfo], now: Duration, width: usize) -> String {
    let rows: Vec<[String; 7]> = all.iter().map(|info| row(info, now)).collect();
    let widths: Vec<usize> = (0..HEADS.len() - 1)
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([HEADS[column].len()]).max().unwrap_or_default()
        })
        .collect();
    let before: usize = widths.iter().map(|width| width + 2).sum();
    let room = if width == 0 { COMMAND_MAX } else { width.saturating_sub(before).max(HEADS[6].len()) };
    let mut text = String::new();
    for cells in [HEADS.map(str::to_owned)].iter().chain(&rows) {
        for (cell, width) in cells.iter().zip(&widths) {
            text += &format!("{cell:<width$}  ");
        }
        text += &cut(&cells[6], room);
        text.push('\n');
    }
    text
}

fn row(info: &ProcessInfo, now: Duration) -> [String; 7] {
    let age = now.saturating_sub(Duration::from_millis(info.started_at_ms));
    let command: Vec<String> = info.argv.iter().map(|arg| quoted(arg)).collect();
    [
        ids::clean(info.process_id.as_str()),
        info.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        state(info),
        short_age(age),
        short_bytes(info.output_bytes),
        ids::short(info),
        command.join(" "),
    ]
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
    // Ended, but something it started still has its streams.
    if info.closed { ended } else { format!("{ended}, open") }
}

/// The largest unit that is not zero: enough to tell minutes from days.
fn short_age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn short_bytes(bytes: u64) -> String {
    let (mut rest, mut unit) = (bytes, 0);
    while rest >= 10_240 && unit < 4 {
        rest /= 1024;
        unit += 1;
    }
    format!("{rest}{}", ["B", "K", "M", "G", "T"][unit])
}

/// As it could be typed: what a shell would read otherwise stands in quotes.
fn quoted(arg: &str) -> String {
    let clean = ids::clean(arg);
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=+,@%^".contains(c);
    if !clean.is_empty() && clean.chars().all(is_plain) {
        return clean;
    }
    format!("'{}'", clean.replace('\'', "'\\''"))
}

fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    text.chars().take(room.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::process::{Exit, Usage};

    use super::*;

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
    fn columns_fit_and_nothing_in_them_steers_the_terminal() {
        let exit =
            Exit { exit_code: 3, signal: None, cause: Cause::Exit, usage: Usage::default(), limits_hit: Vec::new() };
        let mut done = process("long-name-of-it", &["sh", "-c", "echo \x1b[2J; it's"]);
        (done.exited, done.exit, done.closed) = (true, Some(exit), true);
        let mut waits = process("w", &["cat"]);
        waits.blocked = Some(Blocked::Quota);
        let text = table(&[done, waits], Duration::from_secs(91), 0);
        let expected = "\
ID               PID  STATE          AGE  OUTPUT  SESSION   COMMAND
long-name-of-it  42   exited 3       1m   20K     01234567  sh -c 'echo \\u{1b}[2J; it'\\''s'
w                42   blocked quota  1m   20K     01234567  cat
";
        assert_eq!(text, expected);
        let narrow = table(&[process("a", &["sleep", "1000"])], Duration::ZERO, 50);
        assert_eq!(narrow.lines().last(), Some("a   42   running  0s   20K     01234567  sleep 10…"));
    }

    #[test]
    fn ages_and_sizes_are_short() {
        let ages = [0, 59, 60, 3_599, 3_600, 86_399, 90_000].map(|s| short_age(Duration::from_secs(s)));
        assert_eq!(ages, ["0s", "59s", "1m", "59m", "1h00m", "23h59m", "1d01h"]);
        let sizes = [0, 10_239, 10_240, 10 << 20, u64::MAX].map(short_bytes);
        assert_eq!(sizes, ["0B", "10239B", "10K", "10M", "16777215T"]);
    }
}
