//! Tests of the command line, the examples and the documents that describe them.
//!
//! This root has the helpers that the tests share: a user with a private home, runs of the program with a timeout, and a terminal. The
//! helpers do not depend on the wire protocol or on single commands.

use crate::prelude::*;

mod completion;

mod coverage_md;

mod cp;

mod cp_cuts;

mod cp_trees;

mod detached;

mod early_start;
mod end_and_forget;

mod examples;

mod failures;

mod fs;

mod fs_messages;
mod guide_md;

mod habits_of_other_programs;

mod help;

mod local;

mod logs;

mod mcp;

mod mcp_bridge;

mod mcp_serve;

mod mcp_serve_files;

mod mcp_serve_http;

mod output;

mod ps;

mod remote;

mod run;

mod run_environment;

mod run_sandbox;

mod security_md;

mod terminal;

mod tokens;

mod tree_helpers;

mod trouble_md;

/// The commands that the help of the program lists.
pub(crate) const COMMANDS: &str = "doctor run ps logs attach kill wait forget prune cp fs mcp serve dial-stdio";

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
        for variable in ["EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL", "EXEC_SERVER_TOKEN"] {
            command.env_remove(variable);
        }
        command
            .args(args)
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

/// The first line that `run --detach` prints on stderr.
pub(crate) const QUOTA_NOTE: &str =
    "exec-server: once the disk quota is full, new output replaces the oldest; --keep-all blocks the program instead\n";

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
    let is_ttl = |line: &&str| line.starts_with("exec-server: the server ends the process after ");
    said.split_inclusive('\n').skip_while(is_ttl).collect()
}
