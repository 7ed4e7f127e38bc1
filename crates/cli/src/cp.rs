//! `exec-server cp`: the two ends of a copy, what is said while it goes on, and its exit code.
//! Must not know how bytes travel.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use exec_server_client::{
    Client,
    cp::{self, Place, Watch},
    fs::{self, EntryKind},
    protocol::{initialize::Ttl, path::PathArg},
};
use tokio::time::Instant;

use crate::{
    args::{self, Side},
    codes,
    connect::{self, Server, VISIT_TTL_MS},
    env_token, ids, link, runtime, say, terminal,
};

/// How often the line is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// Copies; what was not copied is said, and the code tells it.
pub(crate) fn run(args: &args::Copy, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    let is_shown = args.progress && io::stderr().is_terminal();
    runtime::block_on_here(async {
        let [from, to] = Server::find_two(&args.connect, args.servers(), token)?;
        let [from, to] = [(&args.source, from, "--from"), (&args.target, to, "--to")].map(End::new);
        let (from, to) = (from?, to?);
        let (source, source_client) = from.open().await?;
        let (target, target_client) = to.open().await?;
        let clients: Vec<Client> = [source_client, target_client].into_iter().flatten().collect();
        let talk = Talk { line: is_shown.then(Line::new).map(Mutex::new) };
        let copying = cp::copy(&source, &target, args.recursive, &talk);
        let done = link::telling(&clients, |text| talk.say(text), copying).await;
        talk.end();
        for client in clients {
            connect::end(&client).await;
        }
        match done {
            Ok(report) if report.failed == 0 => Ok(ExitCode::SUCCESS),
            Ok(_) => Ok(ExitCode::from(codes::NOT_COPIED)),
            Err(error) => {
                let code = if error.is_connection() { codes::TROUBLE } else { codes::NOT_COPIED };
                say::talk(format_args!("exec-server: {}", ids::clean(&error.to_string())));
                Ok(ExitCode::from(code))
            }
        }
    })
}

/// One end of a copy.
enum End<'a> {
    Here(&'a Path),
    There(&'a Path, Server),
}

impl<'a> End<'a> {
    /// Both ends are looked at before anybody is called.
    fn new((side, server, flag): (&'a Side, Option<Server>, &str)) -> Result<Self, args::Wrong> {
        match (side, server) {
            (Side::Here(path), _) => Ok(Self::Here(path)),
            (Side::There(path), Some(server)) => Ok(Self::There(path, server)),
            (Side::There(path), None) => {
                let path = ids::clean(&path.to_string_lossy());
                Err(args::Wrong(format!("`:{path}` is on a server: pass `--connect URL` or `{flag} URL`")))
            }
        }
    }

    /// The place, and the session behind it where it is on a server.
    async fn open(&self) -> anyhow::Result<(Place, Option<Client>)> {
        match self {
            Self::Here(path) => {
                let path = env::current_dir().context("find the working directory")?.join(path);
                Ok((Place { files: Arc::new(fs::Local::new()), path }, None))
            }
            Self::There(path, server) => {
                let client = server.open(|builder| builder.ttl(Ttl::Ms(VISIT_TTL_MS))).await?;
                let path = there(&client, path).await?;
                Ok((Place { files: Arc::new(fs::Remote::new(client.clone())), path }, Some(client)))
            }
        }
    }
}

/// A path on a server; one without a slash at its beginning is below the server's own directory.
async fn there(client: &Client, path: &Path) -> anyhow::Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let info = client.environment_info().await.context("ask for the server's directory")?;
    let cwd = info.cwd.ok_or_else(|| anyhow!("`:{}`: the server does not tell its own directory", path.display()))?;
    Ok(PathArg::new(cwd).resolve().context("read the server's directory")?.join(path))
}

/// What is said while it goes on.
struct Talk {
    /// None where nobody looks.
    line: Option<Mutex<Line>>,
}

impl Talk {
    fn with(&self, change: impl FnOnce(&mut Line)) {
        if let Some(line) = &self.line {
            change(&mut line.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// A sentence above the line.
    fn say(&self, text: &str) {
        self.with(|line| line.wipe());
        say::talk(format_args!("exec-server: {}", ids::clean(text)));
    }

    fn end(&self) {
        self.with(|line| {
            line.draw();
            line.put("\n");
        });
    }
}

impl Watch for Talk {
    fn begun(&self, path: &Path, size: u64) {
        self.with(|line| {
            line.of = line.of.saturating_add(size);
            line.name = ids::clean(&path.file_name().unwrap_or_default().to_string_lossy()).to_string();
        });
    }

    fn moved(&self, _: &Path, bytes: u64) {
        self.with(|line| {
            line.bytes = line.bytes.saturating_add(bytes);
            line.draw_sometimes();
        });
    }

    fn done(&self, _: &Path, kind: EntryKind) {
        self.with(|line| {
            line.files += u64::from(kind == EntryKind::File);
            line.draw_sometimes();
        });
    }

    fn left_out(&self, path: &Path) {
        self.say(&format!("`{}` is neither a file, a directory nor a link: left out", path.display()));
    }

    fn failed(&self, error: &cp::Error) {
        self.say(&error.to_string());
    }

    fn waiting(&self, path: &Path, why: &str) {
        self.say(&format!("waiting for `{}`: {why}", path.display()));
    }

    fn unfinished(&self, tree: &Path, _: &Path) {
        self.say(&format!("`{}` is not complete: the same command goes on with what is missing", tree.display()));
    }
}

/// One line that is drawn over itself: how much of what is known of, how fast, and which file was begun last.
struct Line {
    began: Instant,
    drawn: Option<Instant>,
    files: u64,
    bytes: u64,
    of: u64,
    name: String,
}

impl Line {
    fn new() -> Self {
        Self { began: Instant::now(), drawn: None, files: 0, bytes: 0, of: 0, name: String::new() }
    }

    fn draw_sometimes(&mut self) {
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY) {
            self.draw();
        }
    }

    fn draw(&mut self) {
        self.drawn = Some(Instant::now());
        let width = usize::from(terminal::size().map_or(80, |size| size.cols));
        let text: String = self.text(self.began.elapsed()).chars().take(width.saturating_sub(1)).collect();
        self.put(&format!("\r\x1b[K{text}"));
    }

    fn wipe(&mut self) {
        self.put("\r\x1b[K");
    }

    fn text(&self, took: Duration) -> String {
        const BAR: usize = 20;
        let done = if self.of == 0 { 1.0 } else { (self.bytes as f64 / self.of as f64).min(1.0) };
        let full = (done * BAR as f64) as usize;
        let speed = (self.bytes as f64 / took.as_secs_f64().max(0.001)) as u64;
        format!(
            "[{}{}] {:>3}%  {} of {}  {}/s  {} files  {}",
            "#".repeat(full),
            " ".repeat(BAR - full),
            (done * 100.0) as u64,
            size(self.bytes),
            size(self.of),
            size(speed),
            self.files,
            self.name,
        )
    }

    fn put(&self, text: &str) {
        // Nobody is there to be told.
        io::stderr().write_all(text.as_bytes()).ok();
    }
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_it_is() {
        let mut line = Line::new();
        (line.bytes, line.of, line.files, line.name) = (512 << 20, 2 << 30, 3, "big".to_owned());
        let text = line.text(Duration::from_secs(2));
        assert_eq!(text, "[#####               ]  25%  512.0 MiB of 2.0 GiB  256.0 MiB/s  3 files  big");
        assert_eq!(size(1023), "1023 B");
    }
}
