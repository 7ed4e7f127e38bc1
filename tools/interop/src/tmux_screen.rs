//! A real terminal: one tmux server with one window, to type keys and read the screen.
//!
//! Keeps a transcript, which is printed on failure, and ends tmux.

use std::cell::RefCell;

use crate::prelude::*;
use exec_server_harness::environment::try_until;

/// Timeout for anything on a screen, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Number of screens that are shown on failure.
const KEPT: usize = 6;

/// The prompt of the shell.
const PROMPT: &str = "ready>";

/// No status line, so that the window has the requested height; no delay after Escape.
const CONFIG: &str = "set -g status off\nset -g escape-time 0\nset -g default-terminal screen\n";

/// Rows and columns of a window.
pub(super) const SIZE: (u16, u16) = (30, 100);

/// The window, with a shell in it.
pub(super) struct TmuxScreen<'a> {
    world: &'a Environment,
    socket: PathBuf,
    /// The pid of the tmux server.
    pid: u32,
    /// The actions, and the screen at the end of each wait.
    transcript: RefCell<Vec<String>>,
}

impl<'a> TmuxScreen<'a> {
    /// Opens the window. The socket and the configuration are in `folder`.
    pub(super) fn open(world: &'a Environment, folder: &Path, variables: &[(&str, &str)]) -> Result<Self> {
        let (socket, config) = (folder.join("tmux.sock"), folder.join("tmux.conf"));
        fs::write(&config, CONFIG)?;
        let (rows, columns) = (SIZE.0.to_string(), SIZE.1.to_string());
        let mut command = world.command("tmux");
        command.arg("-S").arg(&socket).arg("-f").arg(&config).args(["new-session", "-d", "-y", &rows, "-x", &columns]);
        command.arg("sh").envs(variables.iter().copied());
        // The shell must not read the caller's startup file.
        environment::success_of(command.env_remove("ENV").env("TERM", "screen"), PATIENCE)?;
        let mut screen = Self { world, socket, pid: 0, transcript: RefCell::default() };
        screen.pid = screen.tmux(&["display-message", "-p", "#{pid}"])?.trim_end().parse()?;
        // Type the prompt instead of passing it in the environment, because some shells of root override it. Type it in two parts, because
        // the typed text is shown as well.
        screen.send("PS1='rea''dy> '")?;
        screen.press("Enter")?;
        screen.wait_for("a prompt", |screen| screen.lines().any(|line| line.starts_with(PROMPT)))?;
        Ok(screen)
    }

    /// Types these characters literally.
    pub(super) fn send(&self, text: &str) -> Result<()> {
        self.note(format!("typed `{text}`"));
        self.tmux(&["send-keys", "-l", "--", text]).map(drop)
    }

    /// Presses a named key, such as `Enter`, `Escape` or `C-c`.
    pub(super) fn press(&self, key: &str) -> Result<()> {
        self.note(format!("pressed {key}"));
        self.tmux(&["send-keys", key]).map(drop)
    }

    /// Runs a command line on an empty screen; its exit code is shown when it ends.
    pub(super) fn begin(&self, line: &str) -> Result<()> {
        self.send("clear")?;
        self.press("Enter")?;
        self.wait_for("an empty screen", |screen| screen.trim_end() == PROMPT)?;
        self.send(&format!("{line}; echo \"code=$?\""))?;
        self.press("Enter")
    }

    /// Waits for the end of the command that `begin` started.
    pub(super) fn end_with(&self, code: u8) -> Result<()> {
        let wanted = format!("code={code}");
        self.wait_for(&format!("the end with code {code}"), |screen| {
            let mut lines = screen.lines().skip_while(|line| !line.ends_with(&wanted));
            lines.next().is_some() && lines.any(|line| line.starts_with(PROMPT))
        })
    }

    /// Waits until the screen matches.
    pub(super) fn wait_for(&self, what: &str, looks_so: impl Fn(&str) -> bool) -> Result<()> {
        let mut screen = String::new();
        let seen = try_until(what, PATIENCE, || {
            screen = self.tmux(&["capture-pane", "-p"])?;
            Ok(looks_so(&screen))
        });
        self.note(format!("{} {what}:\n{}", if seen.is_ok() { "saw" } else { "did not see" }, screen.trim_end()));
        seen.map(drop).with_context(|| format!("never seen: {what}\n{}", self.transcript()))
    }

    /// Resizes the window.
    pub(super) fn resize(&self, (rows, columns): (u16, u16)) -> Result<()> {
        self.note(format!("resized to {rows} rows and {columns} columns"));
        self.tmux(&["resize-window", "-y", &rows.to_string(), "-x", &columns.to_string()]).map(drop)
    }

    /// Ends the shell and tmux.
    pub(super) fn close(self) -> Result<()> {
        self.tmux(&["kill-server"])?;
        let (pid, socket) = (self.pid, &self.socket);
        wait_until("tmux has ended", PATIENCE, || !is_alive(pid))?;
        fs::remove_file(socket).ok(); // tmux usually removes it.
        Ok(())
    }

    /// The latest actions and screens.
    pub(super) fn transcript(&self) -> String {
        self.transcript.borrow().join("\n---\n")
    }

    fn note(&self, what: String) {
        let mut transcript = self.transcript.borrow_mut();
        transcript.push(what);
        let over = transcript.len().saturating_sub(3 * KEPT);
        transcript.drain(..over);
    }

    fn tmux(&self, args: &[&str]) -> Result<String> {
        let mut command: Command = self.world.command("tmux");
        let output = environment::output_of(command.arg("-S").arg(&self.socket).args(args), PATIENCE)?;
        ensure!(output.status.success(), "`tmux {}` {}", args.join(" "), environment::describe(&output));
        String::from_utf8(output.stdout).context("tmux gave no UTF-8")
    }
}

impl Drop for TmuxScreen<'_> {
    fn drop(&mut self) {
        // If `close` was called, tmux has ended and the pid may have been reused.
        if self.pid != 0 && processes::with_path(&self.socket).contains(&self.pid) {
            processes::kill(self.pid, Signal::KILL);
        }
    }
}

/// Whether the process runs; a zombie does not.
fn is_alive(pid: u32) -> bool {
    processes::stat(pid).is_some_and(|fields| fields.first().is_some_and(|state| state != "Z"))
}
