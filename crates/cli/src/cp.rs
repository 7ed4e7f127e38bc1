//! `exec-server cp`: the two ends of a copy, its messages and its exit code. The client library does the copying.

mod progress;

use std::{
    convert::Infallible,
    env, future,
    io::{self, IsTerminal as _},
    path::Path,
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use exec_server_client::{
    Client,
    cp::{self, CopyEndpoint, CopyObserver},
    fs::{self, EntryKind},
    protocol::initialize::Ttl,
};
use parking_lot::Mutex;

use crate::{
    args, codes,
    connect::{self, SHORT_SESSION_TTL_MS, Server},
    env_token, ids, link, remote_path, runtime,
};
use progress::ProgressLine;

/// Copies all sources. Prints each file that failed; the exit code says whether all files were copied.
pub(crate) fn run(args: &args::CopyArgs, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    let has_progress = args.progress && io::stderr().is_terminal();
    runtime::block_on_here(async {
        let named = args.servers();
        let servers = Server::find_all(&args.connect, &named, token)?;
        let last = args.paths.len() - 1;
        // Check all ends before connecting to any server.
        let mut ends = Vec::new();
        for (at, (side, (server, named))) in args.paths.iter().zip(servers.into_iter().zip(named)).enumerate() {
            if named.is_some() && server.is_none() {
                let path = ids::clean(&side.path().to_string_lossy());
                let flag = if at == last { "--to" } else { "--from" };
                let text = format!("`:{path}` is on a server: pass `--connect URL` or `{flag} URL`");
                return Err(args::UsageError(text).into());
            }
            ends.push((side.path(), server.zip(named)));
        }
        let mut sessions = ServerSessions::default();
        let mut places = Vec::new();
        for (path, server) in ends {
            places.push(sessions.open(path, server).await?);
        }
        let target = places.pop().expect("the grammar asks for two paths");
        let reporter = CopyReporter { line: has_progress.then(ProgressLine::new).map(Mutex::new) };
        let copying = async {
            let counting = count(&places, &reporter);
            // Both futures are cancel-safe. `counting` never completes; it is dropped when the copy ends.
            tokio::select! {
                code = copy_all(args, &places, &target, &reporter) => code,
                never = counting => match never {},
            }
        };
        let code = link::report_during(&sessions.clients(), |text| reporter.report(text), copying).await;
        reporter.with(ProgressLine::finish);
        for client in sessions.clients() {
            connect::end(&client).await;
        }
        Ok(ExitCode::from(code))
    })
}

/// Computes the total for the progress line, if there is one. Never completes, so that only the end of the copy ends the `select!`.
async fn count(sources: &[CopyEndpoint], reporter: &CopyReporter) -> Infallible {
    if reporter.line.is_some()
        && let Some(total) = progress::count(sources).await
    {
        reporter.with(|line| line.total = Some(total));
    }
    future::pending().await
}

/// Copies the sources one after the other. Returns the exit code of the worst result.
async fn copy_all(
    args: &args::CopyArgs,
    sources: &[CopyEndpoint],
    target: &CopyEndpoint,
    reporter: &CopyReporter,
) -> u8 {
    if sources.len() > 1 && !is_directory(target).await {
        let path = target.path.display();
        reporter.report(&format!("`{path}` is not a directory; several sources need a directory as target"));
        return codes::FILES_FAILED;
    }
    let mut code = 0;
    for source in sources {
        match cp::copy(source, target, args.recursive, reporter).await {
            Ok(report) if report.failed == 0 => {}
            Ok(_) => code = codes::FILES_FAILED,
            Err(error) => {
                reporter.report(&error.to_string());
                if error.is_connection() {
                    return codes::TROUBLE;
                }
                code = codes::FILES_FAILED;
            }
        }
    }
    code
}

async fn is_directory(place: &CopyEndpoint) -> bool {
    let found = place.files.metadata(&place.path, fs::Links::Follow).await;
    found.is_ok_and(|found| found.kind == EntryKind::Directory)
}

/// One session per server name, shared by all paths with that name.
#[derive(Default)]
struct ServerSessions<'a>(Vec<(args::ServerName<'a>, Client)>);

impl<'a> ServerSessions<'a> {
    /// Opens one end of the copy, connecting if its server has no session yet. Without a server, the path is on this machine.
    async fn open(
        &mut self,
        path: &Path,
        server: Option<(Server, args::ServerName<'a>)>,
    ) -> anyhow::Result<CopyEndpoint> {
        let Some((server, named)) = server else {
            let path = env::current_dir().context("find the working directory")?.join(path);
            return Ok(CopyEndpoint { files: Arc::new(fs::LocalFiles::new()), path });
        };
        let client = match self.0.iter().find(|(other, _)| *other == named) {
            Some((_, client)) => client.clone(),
            None => {
                let client = server.open(|builder| builder.ttl(Ttl::Ms(SHORT_SESSION_TTL_MS))).await?;
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

/// Prints messages and the progress line.
struct CopyReporter {
    /// `None` if no progress line is shown.
    line: Option<Mutex<ProgressLine>>,
}

impl CopyReporter {
    fn with(&self, change: impl FnOnce(&mut ProgressLine)) {
        if let Some(line) = &self.line {
            change(&mut line.lock());
        }
    }

    /// Prints a message above the progress line.
    fn report(&self, text: &str) {
        self.with(|_| progress::put("\r\x1b[K"));
        report!("{}", ids::clean(text));
    }
}

impl CopyObserver for CopyReporter {
    fn begun(&self, path: &Path, size: u64) {
        let name = ids::clean(&path.file_name().unwrap_or_default().to_string_lossy());
        self.with(|line| line.begin_file(name, size));
    }

    fn moved(&self, _: &Path, bytes: u64) {
        self.with(|line| line.add_bytes(bytes));
    }

    fn done(&self, _: &Path, kind: EntryKind) {
        if kind == EntryKind::File {
            self.with(ProgressLine::add_file);
        }
    }

    fn left_out(&self, path: &Path) {
        self.report(&format!("`{}` skipped: neither a file, a directory nor a symlink", path.display()));
    }

    fn failed(&self, error: &cp::CopyError) {
        self.report(&error.to_string());
    }

    fn waiting(&self, path: &Path, why: &str) {
        self.report(&format!("waiting for `{}`: {why}", path.display()));
    }

    fn unfinished(&self, tree: &Path, _: &Path) {
        self.report(&format!("`{}` is incomplete; repeat the command to copy the rest", tree.display()));
    }
}
