//! A real server: starts the release binary on a state directory, kills it, restarts it, measures its memory.
//!
//! Handles the operating system's side of a run (pids, memory, temporary state), not the wire protocol. Dropping it ends everything it
//! started, including holders.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use exec_server_chaos::Random;
use exec_server_workspace::processes::{comm, kill, remove_groups, stat, with_path};
use tempfile::TempDir;

use crate::{
    environment::{OwnedChild, wait_child, wait_until},
    wire::ServerAddress,
};

/// How a server is started and restarted.
pub struct Setup {
    /// The program that is used from the next start on.
    pub binary: PathBuf,
    listen: String,
    /// Removed when the run is over.
    state: TempDir,
    extra: Vec<String>,
    /// A command line prefix: the program that starts the server.
    through: Vec<String>,
    /// The uid it runs as.
    user: Option<u32>,
}

impl Setup {
    /// A server on a port that stays the same over restarts.
    pub fn new(binary: &Path) -> Result<Self> {
        let port = free_port()?;
        let state = tempfile::Builder::new().prefix("exec-server-xtask-").tempdir()?;
        Ok(Self {
            // The server may be started in another directory.
            binary: std::path::absolute(binary)?,
            listen: format!("ws://127.0.0.1:{port}"),
            state,
            extra: Vec::new(),
            through: Vec::new(),
            user: None,
        })
    }

    /// Like [`new`](Self::new), with the server started.
    pub fn started(binary: &Path) -> Result<(Self, Server)> {
        let setup = Self::new(binary)?;
        let server = setup.start()?;
        Ok((setup, server))
    }

    /// Adds an argument of `serve`.
    pub fn arg(mut self, arg: &str) -> Self {
        self.extra.push(arg.to_owned());
        self
    }

    /// Starts the server through another program, which gets the server's command line as its last arguments.
    pub fn through(mut self, words: &[&str]) -> Self {
        self.through = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Puts the state directory on a tmpfs of this size, which only the server and its children see.
    pub fn tmpfs(self, bytes: u64) -> Result<Self> {
        let state = self.state_dir();
        fs::create_dir(&state)?;
        let state = state.to_str().context("the state directory is not UTF-8")?;
        let mount = format!("mount -t tmpfs -o size={bytes},mode=0700 tmpfs \"$0\" && exec \"$@\"");
        Ok(self.through(&["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", &mount, state]))
    }

    /// Runs the server as this user.
    pub fn run_by(mut self, user: u32) -> Result<Self> {
        std::os::unix::fs::chown(self.state.path(), Some(user), Some(user)).context("only root can do this")?;
        self.user = Some(user);
        Ok(self)
    }

    /// A directory beside the state for files of a run's children.
    pub fn scratch(&self) -> &Path {
        self.state.path()
    }

    pub fn state_dir(&self) -> PathBuf {
        self.state.path().join("state")
    }

    /// Starts the program on its standard streams instead of a port.
    pub fn piped(&self) -> Result<Child> {
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--listen", "stdio", "--state-dir"]).arg(self.state_dir()).args(&self.extra);
        self.spawn(command.stdin(Stdio::piped()))
    }

    /// Starts the program; it does not listen yet.
    fn launch(&self) -> Result<OwnedChild> {
        let mut words = self.through.iter().map(OsStr::new).chain([self.binary.as_os_str()]);
        let mut command = Command::new(words.next().context("the binary is one")?);
        command.args(words).args(["serve", "--listen", &self.listen, "--state-dir"]).arg(self.state_dir());
        command.args(&self.extra);
        if let Some(user) = self.user {
            command.uid(user).gid(user).current_dir("/");
        }
        self.spawn(command.stdin(Stdio::null())).map(OwnedChild)
    }

    fn spawn(&self, command: &mut Command) -> Result<Child> {
        let log = fs::File::options().create(true).append(true).open(self.state.path().join("stderr"))?;
        let child = command.stdout(Stdio::piped()).stderr(log).spawn();
        child.with_context(|| format!("start `{}`", self.binary.display()))
    }

    /// Kills servers while they start, one in eight times and at most `most`; returns how many.
    pub fn kill_starting(&self, random: &mut Random, most: u64) -> Result<u64> {
        let mut killed = 0;
        while killed < most && random.one_in(8) {
            let launched = self.launch()?;
            thread::sleep(Duration::from_millis(random.between(0, 25)));
            drop(launched);
            killed += 1;
        }
        Ok(killed)
    }

    /// Starts the program and waits for its URL.
    pub fn start(&self) -> Result<Server> {
        Server::ready(self.launch()?).with_context(|| format!("its log says: {}", self.log_tail()))
    }

    /// The stderr of all servers.
    pub fn log(&self) -> String {
        fs::read_to_string(self.state.path().join("stderr")).unwrap_or_default()
    }

    /// Fails if a server or holder panicked.
    pub fn ensure_no_panic(&self) -> Result<()> {
        let log = self.log();
        let panic = log.lines().find(|line| line.contains("panicked"));
        ensure!(panic.is_none(), "a panic: {}", panic.unwrap_or_default());
        Ok(())
    }

    /// Shuts the server down, and checks that no process is left and that none panicked.
    pub fn finish(&self, server: Server) -> Result<()> {
        server.stop()?;
        self.wait_gone(Duration::from_secs(5))?;
        self.ensure_no_panic()
    }

    /// The last lines of the servers' stderr.
    pub fn log_tail(&self) -> String {
        last_lines(&self.log(), 12).join("\n")
    }

    /// Server, spawner and holders of this state directory: forks keep the command line.
    pub fn family(&self) -> Vec<u32> {
        let is_ours = |pid: &u32| comm(*pid).is_some_and(|comm| comm.starts_with("exec-"));
        with_path(&self.state_dir()).into_iter().filter(is_ours).collect()
    }

    /// Memory of server, spawner and holders in KiB.
    pub fn memory_kib(&self) -> u64 {
        self.family().into_iter().map(memory_kib).sum()
    }

    /// The pids of the holders.
    pub fn holders(&self) -> Vec<u32> {
        self.family().into_iter().filter(|pid| comm(*pid).is_some_and(|comm| comm.starts_with("exec-holder"))).collect()
    }

    /// The only holder that was not there `before`.
    pub fn new_holder(&self, before: &[u32]) -> Result<u32> {
        let new: Vec<u32> = self.holders().into_iter().filter(|pid| !before.contains(pid)).collect();
        ensure!(new.len() == 1, "one holder is new: {new:?}");
        Ok(new[0])
    }

    /// The number of threads of server, spawner and holders.
    pub fn threads(&self) -> usize {
        let count = |pid: u32| fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        self.family().into_iter().map(count).sum()
    }

    /// Waits until server, spawner and holders have ended.
    pub fn wait_gone(&self, patience: Duration) -> Result<()> {
        let mut left = Vec::new();
        let gone = wait_until("no process of the server is left", patience, || {
            left = self.family();
            left.is_empty()
        });
        gone.with_context(|| {
            let names = left.iter().map(|pid| format!("{} {pid}", comm(*pid).unwrap_or_default()));
            let names = names.collect::<Vec<_>>().join(", ");
            format!("still running: {names}; the server said: {}", self.log_tail())
        })
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        for pid in self.family() {
            kill(pid, rustix::process::Signal::KILL);
        }
        // Children die with their holders. Wait, so that no process writes into a directory that is being removed.
        self.wait_gone(Duration::from_secs(5)).ok();
        remove_groups(&self.state_dir().join("sessions"));
    }
}

/// A server that listens.
pub struct Server {
    child: OwnedChild,
    pub address: ServerAddress,
    /// Held open, because a closed stdout is tested elsewhere.
    stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Waits for the URL. If the program dies, the pipe closes and the wait ends.
    fn ready(mut child: OwnedChild) -> Result<Self> {
        let mut stdout = BufReader::new(child.stdout.take().context("standard output is a pipe")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        if line.is_empty() {
            bail!("the server ended before it printed a URL: {}", child.wait()?);
        }
        Ok(Self { child, address: ServerAddress::parse(line.trim_end())?, stdout })
    }

    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The URL of its second listener.
    pub fn second_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM without waiting.
    pub fn terminate(&self) {
        kill(self.child.id(), rustix::process::Signal::TERM);
    }

    /// Sends SIGTERM and checks the exit code.
    pub fn stop(self) -> Result<()> {
        self.terminate();
        let code = self.wait(Duration::from_secs(10)).context("after SIGTERM")?;
        ensure!(code == Some(0), "the server ended with {code:?} on SIGTERM");
        Ok(())
    }

    /// Waits for its end; returns the exit code, or `None` if a signal ended it.
    pub fn wait(mut self, patience: Duration) -> Result<Option<i32>> {
        let status = wait_child(&mut self.child, patience)?;
        Ok(status.with_context(|| format!("the server did not end within {patience:?}"))?.code())
    }
}

/// The last lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].to_vec()
}

/// A free port below the ephemeral range: a client's port could otherwise take it between kill and restart. No two servers of a run get the
/// same port, even before the first of them listens.
fn free_port() -> Result<u16> {
    static ASKED: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() as u16 % 8000;
    (0..8000)
        .map(|_| 22_000 + (start + ASKED.fetch_add(1, Ordering::Relaxed) % 8000) % 8000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("no free port from 22000 to 29999")
}

/// Pss of a process in KiB. If the kernel hides it (our processes are not dumpable), anonymous and shared memory instead, which is never
/// less than their Pss.
pub fn memory_kib(pid: u32) -> u64 {
    pss_kib(pid, &["Pss:"])
}

/// The same without the pages of the program file, whose share grows whenever another process that runs it ends.
pub fn own_memory_kib(pid: u32) -> u64 {
    pss_kib(pid, &["Pss_Anon:", "Pss_Shmem:"])
}

fn pss_kib(pid: u32, keys: &[&str]) -> u64 {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let rollup = read("smaps_rollup");
    let (text, keys) =
        if rollup.is_empty() { (read("status"), &["RssAnon:", "RssShmem:"][..]) } else { (rollup, keys) };
    let lines = text.lines().filter(|line| keys.iter().any(|key| line.starts_with(key)));
    lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

/// The number of open fds of a process.
pub fn descriptors(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64)
}

/// CPU time of a process in clock ticks of a hundredth of a second.
pub fn cpu_ticks(pid: u32) -> u64 {
    // User and system time are the 12th and 13th field from the state on.
    let fields = stat(pid).unwrap_or_default();
    fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Disk usage of the files below a directory in bytes.
pub fn disk_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0, // Removed during the scan.
    };
    entries.map(size).sum()
}
