//! `exec-server fs`: works with the files of a server. This module has the session, the small subcommands and the helpers for printing
//! names and errors.

mod grep;
mod list;
mod watch;

use std::{
    env,
    future::Future,
    io::{self, IsTerminal as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use exec_server_client::{
    fs::{EntryKind, FileError, FileErrorKind, FileSystem as _, Links, ReadAt, RemoteFiles, read_stream_from},
    protocol::initialize::Ttl,
};
use futures_util::StreamExt as _;

use crate::{
    args::{self, FilesCommand},
    codes,
    connect::{self, Server, VISIT_TTL_MS},
    env_token, ids, link, printable,
    remote_path::Roots,
    runtime, say,
};

pub(crate) fn run(args: &args::Files, token: Option<env_token::Waiting>) -> anyhow::Result<ExitCode> {
    match &args.command {
        FilesCommand::Ls(args) => visit(&args.connect, token, |place| list::ls(place, args)),
        FilesCommand::Cat(args) => visit(&args.connect, token, |place| cat(place, args)),
        FilesCommand::Stat(args) => visit(&args.connect, token, |place| list::stat(place, args)),
        FilesCommand::Tree(args) => visit(&args.connect, token, |place| list::tree(place, args)),
        FilesCommand::Grep(args) => visit(&args.connect, token, |place| grep::run(place, args)),
        FilesCommand::Watch(args) => visit(&args.connect, token, |place| watch::run(place, args)),
        FilesCommand::Rm(args) => visit(&args.connect, token, |place| rm(place, args)),
        FilesCommand::Mkdir(args) => visit(&args.connect, token, |place| mkdir(place, args)),
    }
}

/// How often `fs cat` reopens a file after the server lost its handle. Real restarts never reach this; it stops a server that fails every
/// read with that error.
const REOPENED_MAX: u32 = 100;

/// The files of a server, and the directory at which relative paths start.
struct Place {
    files: RemoteFiles,
    roots: Roots,
}

impl Place {
    fn path(&self, path: &Path) -> PathBuf {
        // If the server does not announce its home directory, `~` is treated as an ordinary name.
        let whole = self.roots.resolve(path).unwrap_or_else(|_| self.roots.directory.join(path));
        // Collecting the components drops a trailing slash and `.` parts.
        whole.components().collect()
    }
}

/// An error that stops a command: its output or its connection failed.
enum Ended {
    /// The reader of stdout has closed the pipe.
    ClosedPipe,
    Trouble(anyhow::Error),
}

impl From<anyhow::Error> for Ended {
    fn from(error: anyhow::Error) -> Self {
        Self::Trouble(error)
    }
}

type Done = Result<u8, Ended>;

/// Connects to the server, runs `work` and ends the session.
fn visit<F: Future<Output = Done>>(
    args: &args::Connect,
    token: Option<env_token::Waiting>,
    work: impl FnOnce(Arc<Place>) -> F,
) -> anyhow::Result<ExitCode> {
    runtime::block_on(async {
        let (server, roots) = match Server::find(args, token)? {
            Some(server) => (server, None),
            None => {
                let here = env::current_dir().context("find the working directory")?;
                (Server::per_user(args)?, Some(Roots { directory: here, home: env::home_dir() }))
            }
        };
        let client = server.open(|builder| builder.ttl(Ttl::Ms(VISIT_TTL_MS))).await?;
        let roots = match roots {
            Some(roots) => roots,
            None => Roots::of(&client).await?,
        };
        let place = Arc::new(Place { files: RemoteFiles::new(client.clone()).with_owners(), roots });
        let say = |text: &str| say::talk(format_args!("exec-server: {}", ids::clean(text)));
        let done = link::telling(std::slice::from_ref(&client), say, work(place)).await;
        connect::end(&client).await;
        match done {
            Ok(code) => Ok(ExitCode::from(code)),
            Err(Ended::ClosedPipe) => Ok(ExitCode::from(codes::CLOSED_PIPE)),
            Err(Ended::Trouble(error)) => Err(error),
        }
    })
}

async fn cat(place: Arc<Place>, args: &args::Cat) -> Done {
    let mut troubles = Troubles::default();
    for path in &args.paths {
        match print(&place, &place.path(path)).await {
            Ok(()) => {}
            Err(Stopped::Ended(ended)) => return Err(ended),
            Err(Stopped::File(error)) => troubles.add(error)?,
        }
    }
    Ok(troubles.code())
}

/// Why a file was not printed to its end.
enum Stopped {
    File(FileError),
    Ended(Ended),
}

impl From<FileError> for Stopped {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl From<Ended> for Stopped {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

/// Prints a file. A server restart loses open handles; then the file is opened again and printing continues at the same offset, provided
/// the etag is unchanged.
async fn print(place: &Place, path: &Path) -> Result<(), Stopped> {
    let mut file: Arc<dyn ReadAt> = Arc::from(place.files.open(path, Links::Follow).await?);
    let mut printed = 0;
    for _ in 0..REOPENED_MAX {
        let error = match print_from(&file, &mut printed).await {
            Err(Stopped::File(error)) if error.kind == FileErrorKind::Closed => error,
            done => return done,
        };
        let again: Arc<dyn ReadAt> = Arc::from(place.files.open(path, Links::Follow).await?);
        if again.etag() != file.etag() {
            let reason = "it was changed while its server was away; the rest is not printed".to_owned();
            return Err(FileError { kind: FileErrorKind::Changed, reason, ..error }.into());
        }
        file = again;
    }
    print_from(&file, &mut printed).await
}

/// Prints the file from offset `printed` on, and advances `printed`.
async fn print_from(file: &Arc<dyn ReadAt>, printed: &mut u64) -> Result<(), Stopped> {
    let mut chunks = read_stream_from(Arc::clone(file), *printed);
    while let Some(chunk) = chunks.next().await {
        let bytes = chunk?;
        put(&bytes)?;
        *printed += bytes.len() as u64;
    }
    Ok(())
}

async fn rm(place: Arc<Place>, args: &args::Rm) -> Done {
    let mut troubles = Troubles::default();
    for path in &args.paths {
        let path = place.path(path);
        if !args.recursive && is_directory(&place, &path).await {
            troubles.say(&format!("remove `{}`: it is a directory, and only `-r` removes directories", path.display()));
            continue;
        }
        let removed = place.files.remove(&path, args.recursive, args.force, Links::Follow).await;
        troubles.note(removed)?;
    }
    Ok(troubles.code())
}

/// Whether the path itself is a directory, not a symlink to one. On an error it returns false; the operation that follows reports the
/// error.
async fn is_directory(place: &Place, path: &Path) -> bool {
    let found = place.files.metadata(path, Links::Follow).await;
    found.is_ok_and(|found| found.kind == EntryKind::Directory && !found.is_symlink)
}

async fn mkdir(place: Arc<Place>, args: &args::Mkdir) -> Done {
    let mut troubles = Troubles::default();
    for path in &args.paths {
        let made = place.files.create_directory(&place.path(path), args.parents, Links::Follow, args.mode).await;
        troubles.note(made)?;
    }
    Ok(troubles.code())
}

/// Counts failed operations for the exit code. Each failure is printed at once.
#[derive(Debug, Default)]
struct Troubles {
    count: usize,
}

impl Troubles {
    /// Prints the error and continues; only a lost connection ends the command.
    fn add(&mut self, error: FileError) -> Result<(), Ended> {
        if error.kind == FileErrorKind::Disconnected {
            return Err(Ended::Trouble(error.into()));
        }
        self.say(&error.to_string());
        Ok(())
    }

    fn say(&mut self, text: &str) {
        self.count += 1;
        say::talk(format_args!("exec-server: {}", ids::clean(text)));
    }

    fn note<T>(&mut self, done: Result<T, FileError>) -> Result<Option<T>, Ended> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error) => self.add(error).map(|()| None),
        }
    }

    fn code(&self) -> u8 {
        if self.count == 0 { 0 } else { codes::NOT_COPIED }
    }
}

/// Writes data to stdout.
fn put(bytes: &[u8]) -> Result<(), Ended> {
    match say::data(bytes) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Ended::ClosedPipe),
        Err(error) => Err(Ended::Trouble(anyhow::Error::new(error).context("write standard output"))),
    }
}

/// Writes one JSON object on one line.
fn put_json(value: &serde_json::Value) -> Result<(), Ended> {
    put(json_line(value).as_bytes())
}

fn json_line(value: &serde_json::Value) -> String {
    printable::clean_json(&format!("{value}\n"))
}

/// Escapes control characters if the output is a terminal; otherwise returns the bytes unchanged.
fn shown(bytes: &[u8], is_terminal: bool) -> Vec<u8> {
    if is_terminal { ids::clean(&String::from_utf8_lossy(bytes)).into_bytes() } else { bytes.to_vec() }
}

fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Shows a path below `root` with the prefix that the user typed for `root`; without a prefix if the user typed none.
fn as_asked(path: &Path, root: &Path, asked: Option<&Path>) -> PathBuf {
    let Ok(below) = path.strip_prefix(root) else { return path.to_owned() };
    match asked {
        None => below.to_owned(),
        Some(asked) if below.as_os_str().is_empty() => asked.to_owned(),
        Some(asked) => asked.join(below),
    }
}

/// Adds a path to a JSON object: as text, and also as base64 if it is not valid UTF-8.
fn put_path(object: &mut serde_json::Map<String, serde_json::Value>, key: &str, path: &Path) {
    let bytes = path.as_os_str().as_bytes();
    object.insert(key.to_owned(), String::from_utf8_lossy(bytes).into());
    if std::str::from_utf8(bytes).is_err() {
        object.insert(format!("{key}Base64"), exec_server_protocol::base64::encode(bytes).into());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{as_asked, shown};

    #[test]
    fn paths_are_told_as_they_were_asked_for() {
        let told = |path: &str, asked: Option<&str>| {
            as_asked(Path::new(path), Path::new("/srv/app"), asked.map(Path::new)).display().to_string()
        };
        assert_eq!(told("/srv/app/src/a", None), "src/a");
        assert_eq!(told("/srv/app/src/a", Some("app")), "app/src/a");
        assert_eq!(told("/srv/app", Some("../app")), "../app");
        assert_eq!(told("/elsewhere", Some("app")), "/elsewhere");
    }

    #[test]
    fn only_a_terminal_is_spared_what_steers_it() {
        assert_eq!(shown(b"a\x1b[2J\n", true), b"a\\u{1b}[2J\\n");
        assert_eq!(shown(b"a\x1b\xff", false), b"a\x1b\xff");
    }
}
