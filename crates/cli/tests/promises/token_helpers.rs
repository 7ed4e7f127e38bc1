//! Helpers for the tests of access rules: runs the `token` and `audit` commands for a test's server, and builds URLs with a token.

use crate::prelude::*;

/// Runs `exec-server token WORDS --state-dir DIR` for the server's directory.
pub(crate) fn token(server: &TestServer, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("token").args(words).arg("--state-dir").arg(server.state_dir()).output().expect("run exec-server token")
}

/// Creates a token with additional flags, and returns it.
pub(crate) fn create(server: &TestServer, name: &str, flags: &[&str]) -> String {
    let made = token(server, &[&["create", name], flags].concat());
    assert!(made.status.success(), "{made:?}");
    String::from_utf8(made.stdout).expect("a token is text").trim_end().to_owned()
}

pub(crate) fn revoke(server: &TestServer, name: &str) {
    let done = token(server, &["revoke", name]);
    assert!(done.status.success(), "{done:?}");
}

/// The URL of the server with another token.
pub(crate) fn url(server: &TestServer, token: &str) -> String {
    format!("ws://{}/?token={token}", server.address())
}

/// A client with a session, authenticated by a token; waits until the server has loaded the token.
pub(crate) fn client(server: &TestServer, token: &str) -> Client {
    let mut client = connect(server, token);
    client.initialize();
    client
}

/// A client with a session, authenticated by a new token with additional flags.
pub(crate) fn new_client(server: &TestServer, name: &str, flags: &[&str]) -> Client {
    client(server, &create(server, name, flags))
}

/// A connection authenticated by a token that the server may not have loaded yet.
pub(crate) fn connect(server: &TestServer, token: &str) -> Client {
    let mut client = None;
    testkit::wait_for("the new token to count", || {
        client = Client::connect(&url(server, token)).ok();
        client.is_some()
    });
    client.expect("the wait ended with a client")
}

/// The complete lines of an audit log.
pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Whether an audit log has a line for this event.
pub(crate) fn has_event(path: &Path, event: &str) -> bool {
    lines(path).iter().any(|line| line["event"] == event)
}

/// Runs `exec-server audit verify`.
pub(crate) fn verify(path: &Path) -> Output {
    Command::new(binary()).args(["audit", "verify"]).arg(path).output().expect("run exec-server audit")
}
