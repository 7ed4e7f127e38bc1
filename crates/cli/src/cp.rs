//! `exec-server cp`: the two ends of a copy, what is said while it goes on, and its exit code.
//! Must not know how bytes travel.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use exec_server_client::{
    Client,
    cp::{self, Place, Watch},
    fs::{self, EntryKind},
    protocol::initialize::Ttl,
};
use tokio::time::Instant;

use crate::{
    args::{self, Side},
    codes,
    connect::{self, Server, VISIT_TTL_MS},
    display, env_token, ids, link, remote_path, runtime, say, terminal,
};

/// How often the line is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// Copies; what was not copied is said, and the code tells it.
pub(crate) fn run(args: &args::Copy, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    let is_shown = args.progress && io::stderr().is_terminal();
    runtime::block_on_here(async {
        let named = args.servers();
        let servers = Server::find_all(&args.connect, &named, token)?;
        let last = args.paths.len() - 1;
        let ends = args.paths.iter().zip(servers).enumerate().map(|(at, (side, server))| {
            let flag = if at == last { "--to" } else { "--from" };
            End::new(side, server, flag)
        });
        // All ends are looked at before anybody is called.
        let ends = ends.collect::<Result<Vec<End<'_>>, _>>()?;
        let mut sessions = Sessions::default();
        let mut places = Vec::new();
        for (end, named) in ends.iter().zip(&named) {
            places.push(sessions.open(end, *named).await?);
        }
        let target = places.pop().expect("the grammar asks for two paths");
        let talk = Talk { line: is_shown.then(Line::new).map(Mutex::new) };
        let copying = copy_all(args, &places, &target, &talk);
        let code = link::telling(&sessions.clients(), |text| talk.say(text), copying).await;
        talk.end();
        for client in sessions.clients() {
            connect::end(&client).await;
        }
        Ok(ExitCode::from(code))
    })
}

/// Copies one source after the other; the code of the worst.
async fn copy_all(args: &args::Copy, sources: &[Place], target: &Place, talk: &Talk) -> u8 {
    if sources.len() > 1 && !is_directory(target).await {
        talk.say(&format!(
            "`{}` is not a directory; several sources need one to be copied into",
            target.path.display()
        ));
        return codes::NOT_COPIED;
    }
    let mut code = 0;
    for source in sources {
        match cp::copy(source, target, args.recursive, talk).await {
            Ok(report) if report.failed == 0 => {}
            Ok(_) => code = codes::NOT_COPIED,
            Err(error) => {
                talk.say(&error.to_string());
                if error.is_connection() {
                    return codes::TROUBLE;
                }
                code = codes::NOT_COPIED;
            }
        }
    }
    code
}

async fn is_directory(place: &Place) -> bool {
    let found = place.files.metadata(&place.path, fs::Links::Follow).await;
    found.is_ok_and(|found| found.kind == EntryKind::Directory)
}

/// One session for each server of a copy, however many paths are there.
#[derive(Default)]
struct Sessions<'a>(Vec<(args::Named<'a>, Client)>);

impl<'a> Sessions<'a> {
    /// The place of one end.
    async fn open(&mut self, end: &End<'_>, named: Option<args::Named<'a>>) -> anyhow::Result<Place> {
        let (path, server, named) = match (end, named) {
            (End::There(path, server), Some(named)) => (path, server, named),
            (End::Here(path) | End::There(path, _), _) => {
                let path = env::current_dir().context("find the working directory")?.join(path);
                return Ok(Place { files: Arc::new(fs::Local::new()), path });
            }
        };
        let client = match self.0.iter().find(|(other, _)| *other == named) {
            Some((_, client)) => client.clone(),
            None => {
                let client = server.open(|builder| builder.ttl(Ttl::Ms(VISIT_TTL_MS))).await?;
                self.0.push((named, client.clone()));
                client
            }
        };
        let path = remote_path::resolve(&client, path).await?;
        Ok(Place { files: Arc::new(fs::Remote::new(client)), path })
    }

    fn clients(&self) -> Vec<Client> {
        self.0.iter().map(|(_, client)| client.clone()).collect()
    }
}

/// One end of a copy.
enum End<'a> {
    Here(&'a Path),
    There(&'a Path, Server),
}

impl<'a> End<'a> {
    fn new(side: &'a Side, server: Option<Server>, flag: &str) -> Result<Self, args::Wrong> {
        match (side, server) {
            (Side::Here(path), _) => Ok(Self::Here(path)),
            (Side::There(path) | Side::Named(_, path), Some(server)) => Ok(Self::There(path, server)),
            (Side::There(path) | Side::Named(_, path), None) => {
                let path = ids::clean(&path.to_string_lossy());
                Err(args::Wrong(format!("`:{path}` is on a server: pass `--connect URL` or `{flag} URL`")))
            }
        }
    }
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
            display::size(self.bytes),
            display::size(self.of),
            display::size(speed),
            self.files,
            self.name,
        )
    }

    fn put(&self, text: &str) {
        // Nobody is there to be told.
        io::stderr().write_all(text.as_bytes()).ok();
    }
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
    }
}
