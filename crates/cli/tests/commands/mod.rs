//! Tests of the command line, the examples and the documents that describe them.
//!
//! This root has the helpers that the tests share: a user with a private home, runs of the program with a timeout, and a terminal. The
//! helpers do not depend on the wire protocol or on single commands.

mod completion;
mod coverage_md;
mod cp;
mod cp_cuts;
mod cp_trees;
mod detached;
mod ending;
mod examples;
mod fs;
mod fs_words;
mod guide_md;
mod habits;
mod help;
mod local;
mod logs;
mod mcp;
mod mcp_bridge;
mod mcp_serve;
mod mcp_serve_files;
mod mcp_serve_http;
mod ps;
mod remote;
mod run;
mod run_environment;
mod run_sandbox;
mod security_md;
mod terminal;
mod tokens;
mod trees;
mod trouble_md;
mod troubled;
mod words;

use std::{
    fs::File,
    io::{Read, Write},
    ops::{Deref, DerefMut},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal},
    pty::OpenptFlags,
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use serde_json::Value;
use tempfile::TempDir;

use testkit::{marked, program, wait_for, wait_gone};

/// A user with private home, state and runtime directories. Dropping it kills the user's server and its processes.
pub(crate) struct Home {
    dir: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("exec-server-home-").tempdir().expect("make a home");
        std::fs::create_dir(dir.path().join("run")).expect("make a directory");
        Self { dir }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The state directory of the user's own server.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.path().join("state/exec-server/default")
    }

    /// The pid of the user's own server.
    pub(crate) fn server(&self) -> Option<u32> {
        let pid = std::fs::read_to_string(self.state_dir().join("lock")).ok()?.trim().parse().ok()?;
        marked(&self.mark()).contains(&pid).then_some(pid)
    }

    /// A string in the arguments of the user's own server, its spawner and its holders.
    pub(crate) fn mark(&self) -> String {
        self.state_dir().display().to_string()
    }

    /// Writes `environments.toml`.
    pub(crate) fn write_environments(&self, text: &str) {
        let dir = self.path().join("config/exec-server");
        std::fs::create_dir_all(&dir).expect("make a directory");
        std::fs::write(dir.join("environments.toml"), text).expect("write the file");
    }

    /// The program as this user starts it, with an empty stdin.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = program();
        command
            .args(args)
            .env_remove("EXEC_SERVER_URL")
            .env_remove("CODEX_EXEC_SERVER_URL")
            .env_remove("EXEC_SERVER_TOKEN")
            .env("HOME", self.path())
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env("XDG_CONFIG_HOME", self.path().join("config"))
            .env("XDG_RUNTIME_DIR", self.path().join("run"))
            .env("TMPDIR", self.path().join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        finish(self.command(args))
    }

    /// Runs the program, which must succeed, and returns stdout without the last newline.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}: {}", output.status, text(&output.stderr));
        assert_eq!(without_bounds(args, &output), "", "{args:?}");
        text(&output.stdout).trim_end_matches('\n').to_owned()
    }

    /// Runs the program, which must succeed, and returns stdout as JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).expect("it is JSON")
    }

    /// The entry of a process in `ps --json`.
    pub(crate) fn listed(&self, id: &str) -> Option<Value> {
        let all = self.json(&["ps", "--json"]);
        all.as_array().expect("an array").iter().find(|process| process["processId"] == id).cloned()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let all = marked(&self.mark());
        for pid in &all {
            // The process may have ended in between. Holders kill their children when they end.
            signal(*pid, Signal::KILL);
        }
        if !thread::panicking() {
            wait_gone("the user's own server and its holders", &all);
        }
    }
}

/// Sends a signal to a process that this test started; does nothing if the process has gone.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process id is not zero");
    rustix::process::kill_process(pid, signal).ok();
}

/// A program that a test has started. Dropping it kills the program, also when the test fails.
pub(crate) struct Running(Child);

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have ended already.
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}

pub(crate) fn spawn(command: &mut Command) -> Running {
    Running(command.spawn().expect("start a program"))
}

/// Runs a command to its end, with a timeout.
pub(crate) fn finish(mut command: Command) -> Output {
    finish_child(spawn(&mut command))
}

/// Waits for the end of a program, with a timeout, and collects its output.
pub(crate) fn finish_child(mut child: Running) -> Output {
    fn collect(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
        thread::spawn(move || {
            let mut all = Vec::new();
            if let Some(mut from) = from {
                from.read_to_end(&mut all).expect("read the output");
            }
            all
        })
    }
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let status = end_of(&mut child);
    Output {
        status,
        stdout: stdout.join().expect("the reader does not panic"),
        stderr: stderr.join().expect("the reader does not panic"),
    }
}

/// Runs a command with `input` on its stdin.
pub(crate) fn finish_with_input(mut command: Command, input: &[u8]) -> Output {
    let mut child = spawn(command.stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    thread::scope(|scope| {
        // Ignore errors: the program may close its stdin early.
        scope.spawn(move || stdin.write_all(input).ok());
        finish_child(child)
    })
}

/// Waits for the end of a program, with a timeout.
pub(crate) fn end_of(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_for("end of exec-server", || {
        status = child.try_wait().expect("wait for exec-server");
        status.is_some()
    });
    status.expect("the wait ended with a status")
}

/// The state letter of a process, as in `ps`.
pub(crate) fn state(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ").map(|(_, rest)| rest[..1].to_owned())
}

/// Reads until the output contains `text`.
pub(crate) fn read_until(from: &mut (impl Read + AsFd), text: &str) -> String {
    let mut all = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&all).contains(text) {
        let wait = Timespec { tv_sec: 20, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&wait)).expect("wait for output");
        assert_eq!(ready, 1, "nothing came after: {}", String::from_utf8_lossy(&all));
        assert_eq!(from.read(&mut byte).expect("read"), 1, "ended at: {}", String::from_utf8_lossy(&all));
        all.push(byte[0]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// The first line that `run --detach` prints on stderr.
pub(crate) const QUOTA_NOTE: &str =
    "exec-server: at the disk quota the oldest output is dropped; --keep-all blocks the program instead\n";

/// Stderr of a run, without the notes of `run --detach` about limits, which must be there.
fn without_bounds(args: &[&str], output: &Output) -> String {
    let said = text(&output.stderr);
    let flags = args.split(|arg| *arg == "--").next().unwrap_or_default();
    if args.first() != Some(&"run") || !flags.iter().any(|arg| ["-d", "--detach"].contains(arg)) {
        return said;
    }
    let said = if flags.contains(&"--keep-all") {
        said.as_str()
    } else {
        said.strip_prefix(QUOTA_NOTE).unwrap_or_else(|| panic!("{args:?}: {said}"))
    };
    let is_ttl = |line: &&str| line.starts_with("exec-server: the server ends it after ");
    said.split_inclusive('\n').skip_while(is_ttl).collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Pseudo-random bytes with all values and a long period.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A pty: the master for the test, which plays the user, and the slave for the program.
pub(crate) struct Terminal {
    /// Write keys here, and read the screen.
    pub(crate) keyboard: File,
    slave: File,
}

impl Terminal {
    pub(crate) fn new(rows: u16, cols: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master: OwnedFd = rustix::pty::openpt(flags).expect("open a pty");
        rustix::pty::grantpt(&master).expect("grant the pty");
        rustix::pty::unlockpt(&master).expect("unlock the pty");
        let slave = File::from(rustix::pty::ioctl_tiocgptpeer(&master, flags).expect("open the terminal"));
        let terminal = Self { keyboard: File::from(master), slave };
        terminal.resize(rows, cols);
        terminal
    }

    /// Starts a program with the terminal as its three standard streams.
    pub(crate) fn start(&self, mut command: Command) -> Running {
        let end = || Stdio::from(self.slave.try_clone().expect("share the terminal"));
        spawn(command.stdin(end()).stdout(end()).stderr(end()))
    }

    pub(crate) fn resize(&self, rows: u16, cols: u16) {
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).expect("set the size");
    }

    pub(crate) fn keys(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).expect("type");
    }

    /// Waits until the screen shows a text, and returns everything up to it.
    pub(crate) fn see(&mut self, text: &str) -> String {
        read_until(&mut self.keyboard, text)
    }

    /// Whether the terminal is in raw mode: no line editing and no echo.
    pub(crate) fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.slave).expect("read the modes").local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }
}
