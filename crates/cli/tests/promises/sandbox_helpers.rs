//! Helpers for the tests of sandboxes: policies in wire format, and directories inside and outside of them.

use std::os::unix::fs::chown;

use crate::prelude::*;

/// The user that runs the server: root, or an unprivileged user, who needs a user namespace to create a view.
pub(crate) const USERS: [&str; 2] = ["root", "nobody"];

/// A server run by one of [`USERS`].
pub(crate) fn server_of(user: &str) -> TestServer {
    let builder = TestServer::builder();
    if user == "nobody" { builder.run_by_nobody().start() } else { builder.start() }
}
/// A server run by one of [`USERS`], a client of it, and directories for its sandboxes.
pub(crate) fn stage(user: &str) -> (TestServer, Client, Ground) {
    let server = server_of(user);
    let (client, _) = server.modern_client();
    (server, client, Ground::new())
}

/// Directories that every user may access: `work` (with a repository in it) and `outside`.
pub(crate) struct Ground {
    dir: TempDir,
}

impl Ground {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("exec-server-ground-").tempdir().expect("make a directory");
        for name in ["work/.git/hooks", "work/sub", "outside"] {
            fs::create_dir_all(dir.path().join(name)).expect("make a directory");
        }
        let files = [("inner", "inner"), (".git/config", "config"), ("a.env", "secret"), ("../outside/file", "outer")];
        for (name, text) in files {
            fs::write(dir.path().join("work").join(name), text).expect("write a file");
        }
        let ground = Self { dir };
        ground.open_to_all(ground.dir.path());
        ground
    }

    /// Gives every user full access, so that a refusal in a test can only come from the sandbox.
    pub(crate) fn open_to_all(&self, path: &Path) {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("hand it over; run this as root");
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("open it");
        if path.is_dir() {
            for entry in fs::read_dir(path).expect("list it") {
                let entry = entry.expect("an entry");
                if !entry.file_type().expect("its kind").is_symlink() {
                    self.open_to_all(&entry.path());
                }
            }
        }
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().expect("its real path").join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }
}

/// An entry for a path.
pub(crate) fn path(path: impl AsRef<Path>, access: &str) -> Value {
    json!({"path": {"type": "path", "path": path.as_ref()}, "access": access})
}

/// An entry for a special, named location.
pub(crate) fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

/// An entry for a glob pattern.
pub(crate) fn pattern(pattern: &str, access: &str) -> Value {
    json!({"path": {"type": "glob_pattern", "pattern": pattern}, "access": access})
}

/// A sandbox with these entries.
pub(crate) fn sandbox(entries: Vec<Value>, network: &str) -> Value {
    json!({"permissions": {"type": "managed", "network": network, "file_system": {"type": "restricted", "entries": entries}}})
}

/// Read everything, write one directory, no network.
pub(crate) fn workspace(root: &Path) -> Value {
    sandbox(vec![special("root", "read"), path(root, "write")], "restricted")
}
/// Read everything, write one directory, with a network, and with further entries.
pub(crate) fn workspace_with(root: &Path, more: impl IntoIterator<Item = Value>) -> Value {
    sandbox([special("root", "read"), path(root, "write")].into_iter().chain(more).collect(), "enabled")
}

/// No network, but all files.
pub(crate) fn unrestricted() -> Value {
    json!({"permissions": {"type": "managed", "network": "restricted", "file_system": {"type": "unrestricted"}}})
}

/// `params` with a sandbox, if there is one.
pub(crate) fn confined<'a>(mut params: Value, sandbox: impl Into<Option<&'a Value>>) -> Value {
    if let Some(sandbox) = sandbox.into() {
        params["sandbox"] = sandbox.clone();
    }
    params
}

/// Runs a script to its end, sandboxed or not, and returns its stdout without the last newline.
pub(crate) fn said_in(client: &mut Client, id: &str, script: &str, sandbox: Option<&Value>) -> String {
    let answer = client.ok("process/start", confined(sh(id, script), sandbox));
    let expected = if sandbox.is_some() { "linuxSeccomp" } else { "none" };
    assert_eq!(answer["sandboxType"], expected, "{answer}");
    client.collect(id).text().trim_end().to_owned()
}
