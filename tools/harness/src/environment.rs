//! The near side of every part: the program, one temporary directory for all files, and the processes in it.
//!
//! Sets the environment of commands, so that the environment of the caller of `cargo xtask interop` is neither used nor changed: home,
//! state and temporary files are in the directory. Ends leftover processes by pid.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, BufWriter, Write as _},
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use exec_server_chaos::Random;
use exec_server_workspace::processes;
use rustix::process::Signal;
use tempfile::TempDir;

/// Variables of the caller that would affect a command.
const REMOVED: [&str; 8] = [
    "EXEC_SERVER_URL",
    "CODEX_EXEC_SERVER_URL",
    "EXEC_SERVER_TOKEN",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "SSH_AUTH_SOCK",
    "TMUX",
    "PREFIX",
];

/// The state that all parts share.
pub struct Environment {
    /// The program under test.
    pub binary: PathBuf,
    /// Whether this is the short run.
    pub ci: bool,
    folder: TempDir,
}

impl Environment {
    pub fn new(binary: PathBuf, ci: bool) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("exec-server-interop-").tempdir()?;
        for name in ["tmp", "home", "state"] {
            fs::create_dir(folder.path().join(name))?;
        }
        Ok(Self { binary, ci, folder })
    }

    /// A new directory for one use.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(name);
        fs::create_dir(&path).with_context(|| format!("make `{}`", path.display()))?;
        Ok(path)
    }

    /// A command in this environment, with the program under test in `PATH`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for name in REMOVED {
            command.env_remove(name);
        }
        let path = |name: &str| self.folder.path().join(name);
        command.env("HOME", path("home")).env("XDG_STATE_HOME", path("state")).env("TMPDIR", path("tmp"));
        command.env("PATH", self.path_with(None)).env("LC_ALL", "C").current_dir(path("home")).stdin(Stdio::null());
        command
    }

    /// `PATH` with the directory of the program under test first, and optionally another directory before that.
    pub fn path_with(&self, first: Option<&Path>) -> OsString {
        let old = env::var_os("PATH").unwrap_or_default();
        let own = self.binary.parent().map(Path::to_owned);
        let all = first.map(Path::to_owned).into_iter().chain(own).chain(env::split_paths(&old));
        // Joining fails only for a directory with a colon in its name.
        env::join_paths(all).unwrap_or(old)
    }

    /// `exec-server` with these arguments.
    pub fn exec_server(&self, args: &[&str]) -> Command {
        let mut command = self.command(&self.binary);
        command.args(args);
        command
    }

    /// Checks that a finished part leaves no process and no temporary file. The per-user server would stay for a minute, so it gets
    /// SIGTERM, as at a logout.
    pub fn ensure_tidy(&self) -> Result<()> {
        end_servers(self.folder.path())?;
        let files: Vec<_> = fs::read_dir(self.folder.path().join("tmp"))?.flatten().map(|file| file.path()).collect();
        ensure!(files.is_empty(), "left behind: {files:?}");
        Ok(())
    }

    /// Ends everything that a failed part has left, and removes the directory. Fails if something remains.
    pub fn end(self) -> Result<()> {
        for pid in processes::with_path(self.folder.path()) {
            processes::kill(pid, Signal::KILL);
        }
        // A failed part may have left files; its failure is already reported.
        let empty = self.folder.path().join("tmp");
        fs::remove_dir_all(&empty)?;
        fs::create_dir(&empty)?;
        processes::nothing_left(&empty)?;
        let path = self.folder.path().to_owned();
        self.folder.close().with_context(|| format!("remove `{}`", path.display()))
    }
}

/// Ends the servers that still run below this directory; fails if another program does.
pub(crate) fn end_servers(folder: &Path) -> Result<()> {
    for pid in processes::with_path(folder) {
        // A process without a name has ended since it was listed.
        let Some(name) = processes::comm(pid) else { continue };
        ensure!(name.starts_with("exec-"), "still running: {name} {pid}");
        processes::kill(pid, Signal::TERM);
    }
    wait_until("the servers in the background have ended", Duration::from_secs(10), || {
        processes::with_path(folder).is_empty()
    })
}

/// Polls until a condition holds.
pub fn wait_until(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) -> Result<()> {
    try_until(what, patience, || Ok(is_so())).map(drop)
}

/// Polls until a condition holds, or the check itself fails; returns how long that took.
pub fn try_until(what: &str, patience: Duration, mut is_so: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(begun.elapsed() < patience, "not within {} s: {what}", patience.as_secs());
        thread::sleep(Duration::from_millis(10));
    }
    Ok(begun.elapsed())
}

/// Waits for the end of a program; `None` if it still runs after `patience`.
pub fn wait_child(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + patience;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() > deadline {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a command to its end and collects its output; the command is killed if it takes too long.
pub fn output_of(command: &mut Command, patience: Duration) -> Result<Output> {
    let name = format!("{command:?}");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    finish(child.with_context(|| format!("start `{name}`"))?, patience).with_context(|| format!("`{name}`"))
}

/// As `output_of`, but fails unless the command succeeded with an empty stderr.
pub fn success_of(command: &mut Command, patience: Duration) -> Result<Vec<u8>> {
    let output = output_of(command, patience)?;
    ensure!(output.status.success() && output.stderr.is_empty(), "`{command:?}` {}", describe(&output));
    Ok(output.stdout)
}

/// Waits for the end of a program and collects its output; the program is killed if it takes too long.
pub fn finish(child: Child, patience: Duration) -> Result<Output> {
    let pid = child.id();
    let (output_tx, output_rx) = mpsc::channel();
    thread::spawn(move || output_tx.send(child.wait_with_output()));
    if let Ok(output) = output_rx.recv_timeout(patience) {
        return Ok(output?);
    }
    processes::kill(pid, Signal::KILL);
    let stderr = output_rx.recv()??.stderr;
    bail!("not done within {} s; it said: {}", patience.as_secs(), String::from_utf8_lossy(&stderr))
}

/// How a command ended and what it printed.
pub fn describe(output: &Output) -> String {
    let output_text = String::from_utf8_lossy(&output.stderr);
    format!("ended with {} and said: {}", output.status, output_text.trim_end())
}

/// Fills a file with incompressible bytes, the same for the same seed.
pub fn random_file(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let mut file = BufWriter::new(fs::File::create(path)?);
    for written in (0..bytes).step_by(8) {
        let len = usize::try_from((bytes - written).min(8))?;
        file.write_all(&random.next().to_le_bytes()[..len])?;
    }
    Ok(file.flush()?)
}

/// A program that we started. Dropping it kills the program, if it still runs, and reaps it.
pub struct OwnedChild(pub Child);

impl Deref for OwnedChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for OwnedChild {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}
