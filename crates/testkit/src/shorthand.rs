//! Steps that many tests repeat: arguments of a server, a refused start, lists and reads of processes, file modes.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use serde_json::{Value, json};

use crate::{
    Builder, Client, Ended, Identity, RpcError, TestServer, finish, finish_child, modern, read_until, spawn, text, with,
};

impl Builder {
    /// Adds arguments. `{dir}` stands for the test's private directory.
    pub fn args<'a>(self, args: impl IntoIterator<Item = &'a str>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    /// Adds a flag with a path.
    pub fn path_arg(self, flag: &str, path: &Path) -> Self {
        self.arg(flag).arg(&path.display().to_string())
    }

    /// Sets certificate and key of the server.
    pub fn tls(self, identity: &Identity) -> Self {
        self.path_arg("--tls-cert", &identity.cert).path_arg("--tls-key", &identity.key)
    }

    /// Adds a TLS listener on loopback with this certificate.
    pub fn listen_tls(self, identity: &Identity) -> Self {
        self.listen("wss://127.0.0.1:0").tls(identity)
    }

    /// Writes an audit log, `audit.log` in the test's private directory.
    pub fn audit(self) -> Self {
        self.args(["--audit", "{dir}/audit.log"])
    }

    /// Starts a server that must refuse to start and must print no URL; returns its exit code and its stderr.
    #[track_caller]
    pub fn refusal_text(&self, dir: &Path) -> (Option<i32>, String) {
        let output = self.refusal(dir, "refused.test");
        assert!(output.stdout.is_empty(), "{output:?}");
        (output.status.code(), text(&output.stderr))
    }
}

impl TestServer {
    /// A client with our capabilities that takes a session over.
    pub fn take_over(&self, session: &str) -> Client {
        self.resume(session, with(modern(), json!({"takeover": true})))
    }
}

impl Client {
    /// The processes of all sessions that this client may see.
    pub fn list_all(&mut self) -> Vec<Value> {
        self.ok("process/list", json!({"scope": "all"}))["processes"].as_array().expect("a list").clone()
    }

    /// The entry of a process in the list of all sessions; null if it is not listed.
    pub fn listed(&mut self, id: &str) -> Value {
        self.list_all().into_iter().find(|process| process["processId"] == id).unwrap_or_default()
    }

    /// Reads a process from its beginning until it is closed; returns all answers.
    pub fn read_until_closed(&mut self, params: &Value) -> Vec<Value> {
        let mut answers = Vec::new();
        let mut after = 0;
        loop {
            let answer = self.ok("process/read", with(params.clone(), json!({"afterSeq": after})));
            after = answer["nextSeq"].as_u64().expect("a number") - 1;
            let is_closed = answer["closed"] == true;
            answers.push(answer);
            if is_closed {
                return answers;
            }
        }
    }
}

impl Ended {
    /// Its stdout as text.
    pub fn text(&self) -> String {
        text(&self.stdout)
    }
}

/// The error kind of an answer, or `ok`.
pub fn kind_or_ok(answer: Result<Value, RpcError>) -> String {
    answer.map_or_else(|error| error.kind().to_owned(), |_| "ok".to_owned())
}

/// The policy by which a child inherits every variable that it may have.
pub fn inherit_all() -> Value {
    json!({"inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": []})
}

/// Sets the mode of a file or directory.
pub fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set a mode");
}

/// The permission bits of a file or directory.
pub fn mode_of(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o7777
}

/// Gives `command` the variables that `like` sets and removes.
pub fn copy_env(command: &mut Command, like: &Command) {
    for (name, value) in like.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

/// Runs a command to its end; returns stdout, stderr and the exit code.
pub fn outcome(command: Command) -> (String, String, Option<i32>) {
    let output = finish(command);
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

/// Starts a command, closes its stdout after this text, and asserts that it ends with the code of SIGPIPE and without a message.
#[track_caller]
pub fn assert_ends_with_its_reader(mut command: Command, until: &str) {
    let mut child = spawn(&mut command);
    read_until(&mut child.stdout.take().expect("stdout is a pipe"), until);
    let output = finish_child(child);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(141), ""));
}
