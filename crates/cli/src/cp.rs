//! `exec-server cp`: the two ends of a copy, its messages and its exit code. The client library does the copying.

mod progress;

use std::{
    convert::Infallible,
    env, future,
    io::{self, IsTerminal as _},
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    args::{self, Side},
    codes,
    connect::{self, Server, VISIT_TTL_MS},
    env_token, ids, link, remote_path, runtime, say,
};
use anyhow::Context as _;
use exec_server_client::{
    Client,
    cp::{self, CopyEndpoint, CopyObserver},
    fs::{self, EntryKind},
    protocol::initialize::Ttl,
};
use progress::Progress;

/// Copies. Prints each file that failed; the exit code says whether all files were copied.
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
        // Check all ends before connecting to any server.
        let ends = ends.collect::<Result<Vec<End<'_>>, _>>()?;
        let mut sessions = Sessions::default();
        let mut places = Vec::new();
        for (end, named) in ends.iter().zip(&named) {
            places.push(sessions.open(end, *named).await?);
        }
        let target = places.pop().expect("the grammar asks for two paths");
        let talk = Talk { line: is_shown.then(Progress::new).map(Mutex::new) };
        let copying = async {
            let counting = count(&places, &talk);
            // Both futures are cancel-safe. `counting` never completes; it is dropped when the copy ends.
            tokio::select! {
                code = copy_all(args, &places, &target, &talk) => code,
                never = counting => match never {},
            }
        };
        let code = link::telling(&sessions.clients(), |text| talk.say(text), copying).await;
        talk.end();
        for client in sessions.clients() {
            connect::end(&client).await;
        }
        Ok(ExitCode::from(code))
    })
}

/// Computes the total for the progress line, if there is one.
async fn count(sources: &[CopyEndpoint], talk: &Talk) -> Infallible {
    if talk.line.is_some()
        && let Some(total) = progress::count(sources).await
    {
        talk.with(|line| line.set_total(total));
    }
    future::pending().await
}

/// Copies the sources one after the other. Returns the exit code of the worst result.
async fn copy_all(args: &args::Copy, sources: &[CopyEndpoint], target: &CopyEndpoint, talk: &Talk) -> u8 {
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

async fn is_directory(place: &CopyEndpoint) -> bool {
    let found = place.files.metadata(&place.path, fs::Links::Follow).await;
    found.is_ok_and(|found| found.kind == EntryKind::Directory)
}

/// One session per server, shared by all paths on that server.
#[derive(Default)]
struct Sessions<'a>(Vec<(args::Named<'a>, Client)>);

impl<'a> Sessions<'a> {
    /// Opens one end of the copy, connecting if its server has no session yet.
    async fn open(&mut self, end: &End<'_>, named: Option<args::Named<'a>>) -> anyhow::Result<CopyEndpoint> {
        let (path, server, named) = match (end, named) {
            (End::There(path, server), Some(named)) => (path, server, named),
            (End::Here(path) | End::There(path, _), _) => {
                let path = env::current_dir().context("find the working directory")?.join(path);
                return Ok(CopyEndpoint { files: Arc::new(fs::LocalFiles::new()), path });
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
        Ok(CopyEndpoint { files: Arc::new(fs::RemoteFiles::new(client)), path })
    }

    fn clients(&self) -> Vec<Client> {
        self.0.iter().map(|(_, client)| client.clone()).collect()
    }
}

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

/// Prints messages and the progress line.
struct Talk {
    /// `None` if no progress line is shown.
    line: Option<Mutex<Progress>>,
}

impl Talk {
    fn with(&self, change: impl FnOnce(&mut Progress)) {
        if let Some(line) = &self.line {
            change(&mut line.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Prints a message above the progress line.
    fn say(&self, text: &str) {
        self.with(|line| line.wipe());
        say::talk(format_args!("exec-server: {}", ids::clean(text)));
    }

    fn end(&self) {
        self.with(Progress::finish);
    }
}

impl CopyObserver for Talk {
    fn begun(&self, path: &Path, size: u64) {
        let name = ids::clean(&path.file_name().unwrap_or_default().to_string_lossy());
        self.with(|line| line.begin_file(name, size));
    }

    fn moved(&self, _: &Path, bytes: u64) {
        self.with(|line| line.add_bytes(bytes));
    }

    fn done(&self, _: &Path, kind: EntryKind) {
        if kind == EntryKind::File {
            self.with(Progress::add_file);
        }
    }

    fn left_out(&self, path: &Path) {
        self.say(&format!("`{}` is neither a file, a directory nor a link: left out", path.display()));
    }

    fn failed(&self, error: &cp::CopyError) {
        self.say(&error.to_string());
    }

    fn waiting(&self, path: &Path, why: &str) {
        self.say(&format!("waiting for `{}`: {why}", path.display()));
    }

    fn unfinished(&self, tree: &Path, _: &Path) {
        self.say(&format!("`{}` is not complete: the same command goes on with what is missing", tree.display()));
    }
}
