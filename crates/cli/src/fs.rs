//! `exec-server fs`: works with files on a server. This module opens the session and has the small subcommands (`cat`, `rm`, `mkdir`) and
//! the helpers that print names and count errors.

mod grep;
mod list;
mod watch;

use std::{
    env,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use bytes::Bytes;
use exec_server_client::{
    fs::{EntryKind, FileError, FileErrorKind, FileSystem as _, Links, ReadAt, RemoteFiles, read_stream_from},
    protocol::initialize::Ttl,
};
use exec_server_rpc::StandardOutput;
use futures_util::StreamExt as _;
use serde_json::Value;

use crate::{
    args::{self, FilesCommand},
    codes,
    connect::{self, SHORT_SESSION_TTL_MS, Server},
    env_token, ids, link,
    print::{self, put},
    printable,
    remote_path::Roots,
    runtime,
};

pub(crate) fn run(command: &FilesCommand, token: Option<env_token::StoredToken>) -> anyhow::Result<ExitCode> {
    match command {
        FilesCommand::Ls(args) => with_server(&args.connect, token, async |remote| list::ls(remote, args).await),
        FilesCommand::Cat(args) => {
            // `cat` writes without blocking, so it needs no second thread that serves the connection.
            let command = on_server(&args.connect, token, async |remote| cat(remote, args).await);
            runtime::block_on_here(command)
        }
        FilesCommand::Stat(args) => with_server(&args.connect, token, async |remote| list::stat(remote, args).await),
        FilesCommand::Tree(args) => with_server(&args.connect, token, async |remote| list::tree(remote, args).await),
        FilesCommand::Grep(args) => with_server(&args.connect, token, async |remote| grep::run(remote, args).await),
        FilesCommand::Watch(args) => with_server(&args.connect, token, async |remote| watch::run(remote, args).await),
        FilesCommand::Rm(args) => with_server(&args.connect, token, async |remote| rm(remote, args).await),
        FilesCommand::Mkdir(args) => with_server(&args.connect, token, async |remote| mkdir(remote, args).await),
    }
}

/// How often `fs cat` reopens a file after the server lost its handle. Real restarts never reach this limit. The limit ends the
/// command if a server reports a lost handle after each reopening.
const REOPENED_MAX: u32 = 100;

/// The most blocks that `fs cat` writes at once. For a file on a disk, another thread writes them, and then a few blocks are worth its wake-up.
const BATCH_BLOCKS: usize = 4;

/// The files of a server, and the directory at which relative paths start.
struct ServerFiles {
    files: RemoteFiles,
    roots: Roots,
}

impl ServerFiles {
    fn path(&self, path: &Path) -> PathBuf {
        // If the server does not announce its home directory, `~` is treated as an ordinary name.
        let absolute = self.roots.resolve(path).unwrap_or_else(|_| self.roots.directory.join(path));
        // Collecting the components drops a trailing slash and `.` parts.
        absolute.components().collect()
    }
}

/// Runs [`on_server`] for a command that blocks when it prints. The second thread of the runtime serves the connection in the meantime.
fn with_server(
    args: &args::ConnectArgs,
    token: Option<env_token::StoredToken>,
    work: impl AsyncFnOnce(&ServerFiles) -> anyhow::Result<u8>,
) -> anyhow::Result<ExitCode> {
    runtime::block_on(on_server(args, token, work))
}

/// Connects to the server, runs `work` and ends the session.
async fn on_server(
    args: &args::ConnectArgs,
    token: Option<env_token::StoredToken>,
    work: impl AsyncFnOnce(&ServerFiles) -> anyhow::Result<u8>,
) -> anyhow::Result<ExitCode> {
    let (server, roots) = match Server::find(args, token)? {
        Some(server) => (server, None),
        // The user's own server runs in the home directory, but relative paths start at our directory.
        None => {
            let here = env::current_dir().context("find the working directory")?;
            (Server::per_user(args)?, Some(Roots { directory: here, home: env::home_dir() }))
        }
    };
    let client = server.open(|builder| builder.ttl(Ttl::Ms(SHORT_SESSION_TTL_MS))).await?;
    let roots = match roots {
        Some(roots) => roots,
        None => Roots::of(&client).await?,
    };
    let remote = ServerFiles { files: RemoteFiles::new(client.clone()).with_owners(), roots };
    let report = |text: &str| report!("{}", ids::clean(text));
    let done = link::report_during(std::slice::from_ref(&client), report, work(&remote)).await;
    connect::end(&client).await;
    print::or_closed_pipe(done).map(ExitCode::from)
}

async fn cat(remote: &ServerFiles, args: &args::CatArgs) -> anyhow::Result<u8> {
    let mut failures = FailureCount::default();
    let mut stdout = StandardOutput::stdout();
    for path in &args.paths {
        failures.record(print_file(remote, &remote.path(path), &mut stdout).await)?;
    }
    Ok(failures.code())
}

/// Prints a file. A server restart loses open handles; then the file is opened again and printing continues at the same offset, provided
/// the etag is unchanged.
async fn print_file(remote: &ServerFiles, path: &Path, stdout: &mut StandardOutput) -> anyhow::Result<()> {
    let mut file: Arc<dyn ReadAt> = Arc::from(remote.files.open(path, Links::Follow).await?);
    let mut printed = 0;
    for _ in 0..REOPENED_MAX {
        let Err(error) = print_from(&file, &mut printed, stdout).await else { return Ok(()) };
        if error.downcast_ref::<FileError>().is_none_or(|error| error.kind != FileErrorKind::Closed) {
            return Err(error);
        }
        let reopened: Arc<dyn ReadAt> = Arc::from(remote.files.open(path, Links::Follow).await?);
        if reopened.etag() != file.etag() {
            let reason = "changed while its server was unavailable; the rest is not printed".to_owned();
            // The downcast succeeds: `error` is a `FileError` of the kind `Closed`. Its operation and path are kept.
            return Err(FileError { kind: FileErrorKind::Changed, reason, ..error.downcast()? }.into());
        }
        file = reopened;
    }
    print_from(&file, &mut printed, stdout).await
}

/// Prints the file from offset `printed` on, and advances `printed`.
async fn print_from(file: &Arc<dyn ReadAt>, printed: &mut u64, stdout: &mut StandardOutput) -> anyhow::Result<()> {
    let mut chunks = read_stream_from(Arc::clone(file), *printed).ready_chunks(BATCH_BLOCKS);
    while let Some(ready) = chunks.next().await {
        let mut batch = Vec::new();
        let mut failed = None;
        for chunk in ready {
            match chunk {
                Ok(bytes) => batch.push(bytes),
                Err(error) => failed = Some(error),
            }
        }
        let bytes: usize = batch.iter().map(Bytes::len).sum();
        stdout.write_all(batch).await.context("write standard output")?;
        *printed += bytes as u64;
        if let Some(error) = failed {
            return Err(error.into());
        }
    }
    Ok(())
}

async fn rm(remote: &ServerFiles, args: &args::RmArgs) -> anyhow::Result<u8> {
    let mut failures = FailureCount::default();
    for path in &args.paths {
        let path = remote.path(path);
        if !args.recursive && is_directory(remote, &path).await {
            failures.report(&format!("remove `{}`: is a directory; use `-r`", path.display()));
            continue;
        }
        let removed = remote.files.remove(&path, args.recursive, args.force, Links::Follow).await;
        failures.record(removed)?;
    }
    Ok(failures.code())
}

/// Whether the path itself is a directory, not a symlink to one. On an error it returns false; the operation that follows reports the
/// error.
async fn is_directory(remote: &ServerFiles, path: &Path) -> bool {
    // `Links::Itself` would refuse a symlink in the parent directories, so follow all of them and check `is_symlink`.
    let found = remote.files.metadata(path, Links::Follow).await;
    found.is_ok_and(|found| found.kind == EntryKind::Directory && !found.is_symlink)
}

async fn mkdir(remote: &ServerFiles, args: &args::MkdirArgs) -> anyhow::Result<u8> {
    let mut failures = FailureCount::default();
    for path in &args.paths {
        let made = remote.files.create_directory(&remote.path(path), args.parents, Links::Follow, args.mode).await;
        failures.record(made)?;
    }
    Ok(failures.code())
}

/// Counts failed operations for the exit code. Each failure is printed at once.
#[derive(Debug, Default)]
struct FailureCount {
    count: usize,
}

impl FailureCount {
    fn report(&mut self, text: &str) {
        self.count += 1;
        report!("{}", ids::clean(text));
    }

    /// Prints the error of a file. Any other error, and a lost connection, ends the command.
    fn record<T>(&mut self, done: Result<T, impl Into<anyhow::Error>>) -> anyhow::Result<Option<T>> {
        let error = match done {
            Ok(done) => return Ok(Some(done)),
            Err(error) => error.into().downcast::<FileError>()?,
        };
        if error.kind == FileErrorKind::Disconnected {
            return Err(error.into());
        }
        self.report(&error.to_string());
        Ok(None)
    }

    fn code(&self) -> u8 {
        if self.count == 0 { 0 } else { codes::FILES_FAILED }
    }
}

/// Writes one JSON object on one line.
fn put_json(value: &Value) -> anyhow::Result<()> {
    put(printable::json_line(value).as_bytes())
}

/// Escapes control characters if the output is a terminal; otherwise returns the bytes unchanged.
fn shown(bytes: &[u8], is_terminal: bool) -> Vec<u8> {
    if is_terminal { ids::clean(&String::from_utf8_lossy(bytes)).into_bytes() } else { bytes.to_vec() }
}

fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Shows a path below `root` with the prefix that the user typed for `root`; without a prefix if the user typed none.
fn as_typed(path: &Path, root: &Path, typed: Option<&Path>) -> PathBuf {
    let Ok(below) = path.strip_prefix(root) else { return path.to_owned() };
    match typed {
        None => below.to_owned(),
        Some(typed) if below.as_os_str().is_empty() => typed.to_owned(),
        Some(typed) => typed.join(below),
    }
}

/// Adds a path or a line to a JSON object: as text, and also as base64 if it is not valid UTF-8.
fn put_bytes(object: &mut Value, key: &str, bytes: &[u8]) {
    object[key] = String::from_utf8_lossy(bytes).into();
    if std::str::from_utf8(bytes).is_err() {
        object[format!("{key}Base64")] = exec_server_protocol::base64::encode(bytes).into();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{as_typed, shown};

    #[test]
    fn paths_keep_the_prefix_that_the_user_typed() {
        let shown_path = |path: &str, typed: Option<&str>| {
            as_typed(Path::new(path), Path::new("/srv/app"), typed.map(Path::new)).display().to_string()
        };
        assert_eq!(shown_path("/srv/app/src/a", None), "src/a");
        assert_eq!(shown_path("/srv/app/src/a", Some("app")), "app/src/a");
        assert_eq!(shown_path("/srv/app", Some("../app")), "../app");
        assert_eq!(shown_path("/elsewhere", Some("app")), "/elsewhere");
    }

    #[test]
    fn control_characters_are_escaped_only_on_a_terminal() {
        assert_eq!(shown(b"a\x1b[2J\n", true), b"a\\u{1b}[2J\\n");
        assert_eq!(shown(b"a\x1b\xff", false), b"a\x1b\xff");
    }
}
