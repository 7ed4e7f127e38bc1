//! Full-screen programs in a real terminal: vim, top, a resize, and a screen that is detached and attached again.
//!
//! Everything is done both locally, without a server, and over `ws://`. After each program the terminal settings must be as before.

use super::tmux_screen::{SIZE, TmuxScreen};
use crate::prelude::*;

/// Vim with default settings and without user files.
const VIM: &str = "vim -u NONE -N -n";

/// The key that detaches when it is pressed twice.
const DETACH: &str = "C-]";

/// Where programs run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TerminalTarget {
    Here,
    WebSocket,
}

type TerminalCheck = fn(&TerminalWindow<'_>) -> Result<()>;

const CHECKS: &[(&str, TerminalCheck)] = &[
    ("vim edits a file", edits),
    ("top shows and quits", top),
    ("a resize is seen", resizes),
    ("Ctrl-C reaches the program and not us", interrupts),
    ("a screen is left and found again", attaches),
];

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (target, name) in [(TerminalTarget::Here, "here"), (TerminalTarget::WebSocket, "over ws")] {
        let folder = world.folder(&format!("terminal-{}", name.replace(' ', "-")))?;
        let setup = Setup::new(&world.binary)?.arg("--kill-on-exit");
        let server = (target == TerminalTarget::WebSocket).then(|| setup.start()).transpose()?;
        let url = server.as_ref().map(|server| server.address.url.clone());
        let variables: Vec<_> = url.iter().map(|url| ("EXEC_SERVER_URL", url.as_str())).collect();
        let window = TerminalWindow { screen: TmuxScreen::open(world, &folder, &variables)?, folder, target };
        for (what, check) in CHECKS {
            window.leaves_as_it_was(*check).with_context(|| format!("{what} {name}"))?;
            lines.push(format!("{what} {name}"));
        }
        window.screen.close()?;
        if let Some(server) = server {
            setup.finish(server)?;
        }
    }
    Ok(lines)
}

/// A window and the place where its programs run.
struct TerminalWindow<'a> {
    screen: TmuxScreen<'a>,
    folder: PathBuf,
    target: TerminalTarget,
}

impl TerminalWindow<'_> {
    /// Runs a check and compares the terminal settings before and after it.
    fn leaves_as_it_was(&self, check: TerminalCheck) -> Result<()> {
        let before = self.settings("before")?;
        check(self)?;
        let after = self.settings("after")?;
        ensure!(before == after, "the terminal is `{after}` and was `{before}`\n{}", self.screen.transcript());
        Ok(())
    }

    fn settings(&self, when: &str) -> Result<String> {
        let file = self.folder.join(when);
        self.screen.begin(&format!("stty -g >{}", file.display()))?;
        self.screen.end_with(0)?;
        Ok(fs::read_to_string(file)?)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn ensure_holds(&self, name: &str, text: &str) -> Result<()> {
        let found = fs::read_to_string(self.file(name)).with_context(|| format!("read what `{name}` holds"))?;
        ensure!(found == text, "the file holds `{found}`, not `{text}`\n{}", self.screen.transcript());
        Ok(())
    }

    /// Waits until vim has drawn its buffer: below the text there are only tildes.
    fn wait_vim(&self) -> Result<()> {
        self.screen.wait_for("vim", |screen| screen.lines().filter(|line| *line == "~").count() > 10)
    }
}

fn edits(window: &TerminalWindow<'_>) -> Result<()> {
    let screen = &window.screen;
    screen.begin(&format!("exec-server run -t -- {VIM} {}", window.file("edited").display()))?;
    window.wait_vim()?;
    screen.send("ihello from vim")?;
    screen.press("Enter")?;
    screen.send("second line: äöü €")?;
    screen.wait_for("what was typed", |screen| screen.contains("hello from vim") && screen.contains("second line"))?;
    screen.press("Escape")?;
    screen.send(":wq")?;
    screen.press("Enter")?;
    screen.end_with(0)?;
    window.ensure_holds("edited", "hello from vim\nsecond line: äöü €\n")
}

fn top(window: &TerminalWindow<'_>) -> Result<()> {
    let screen = &window.screen;
    screen.begin("exec-server run -t -- top -d 1")?;
    screen.wait_for("top", |screen| screen.contains("load average") && screen.contains("PID"))?;
    screen.press("q")?;
    screen.end_with(0)
}

fn resizes(window: &TerminalWindow<'_>) -> Result<()> {
    let screen = &window.screen;
    let shows = |(rows, columns): (u16, u16)| {
        let wanted = format!("{rows} {columns}");
        screen.wait_for(&format!("the size {wanted}"), |screen| {
            screen.lines().rfind(|line| !line.is_empty()).is_some_and(|line| line == wanted)
        })
    };
    screen.begin("exec-server run -t -- sh -c 'while :; do stty size; sleep 0.1; done'")?;
    shows(SIZE)?;
    for size in [(24, 80), (40, 133), SIZE] {
        screen.resize(size)?;
        shows(size)?;
    }
    screen.press("C-c")?;
    screen.end_with(130)
}

/// In raw mode the key is a byte; the terminal on the other side turns it into a signal.
fn interrupts(window: &TerminalWindow<'_>) -> Result<()> {
    let screen = &window.screen;
    screen.begin("exec-server run -t -- sh -c 'trap \"echo caught; exit 7\" INT; echo waiting; sleep 60 & wait'")?;
    screen.wait_for("the program waits", |screen| screen.lines().any(|line| line == "waiting"))?;
    screen.press("C-c")?;
    screen.wait_for("the signal was caught", |screen| screen.lines().any(|line| line.ends_with("caught")))?;
    screen.end_with(7)
}

fn attaches(window: &TerminalWindow<'_>) -> Result<()> {
    let screen = &window.screen;
    let vim = format!("{VIM} {}", window.file("kept").display());
    match window.target {
        // Without a server only a process on the per-user server can be detached.
        TerminalTarget::Here => {
            screen.begin(&format!("exec-server run --detach -t --name kept -- {vim}"))?;
            screen.end_with(0)?;
            screen.begin("exec-server attach kept")?;
        }
        TerminalTarget::WebSocket => screen.begin(&format!("exec-server run -t --name kept -- {vim}"))?,
    }
    window.wait_vim()?;
    screen.send("ifirst")?;
    screen.wait_for("what was typed", |screen| screen.starts_with("first"))?;
    leave(window)?;
    for word in ["second", "third"] {
        screen.begin("exec-server attach kept")?;
        screen.wait_for("the screen as it was", |screen| {
            screen.starts_with("first") && screen.contains("-- INSERT --")
        })?;
        screen.send(&format!(" {word}"))?;
        screen.wait_for("what was typed", |screen| screen.lines().next().is_some_and(|line| line.ends_with(word)))?;
        leave(window)?;
    }
    screen.begin("exec-server attach kept")?;
    screen.wait_for("all that was typed", |screen| screen.starts_with("first second third"))?;
    screen.press("Escape")?;
    screen.send(":wq")?;
    screen.press("Enter")?;
    screen.end_with(0)?;
    window.ensure_holds("kept", "first second third\n")?;
    screen.begin("exec-server forget kept")?;
    screen.end_with(0)
}

/// Detaches and leaves the program running.
fn leave(window: &TerminalWindow<'_>) -> Result<()> {
    window.screen.press(DETACH)?;
    window.screen.press(DETACH)?;
    window.screen.end_with(0)
}
