//! The file `listeners` in a state directory: the sockets of its server, and which of them require a token.
//!
//! The server writes the file once its sockets are bound. `token` reads it to find the state directory of a URL. `token create` also
//! warns if the server requires no token.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use exec_server_server::{listen::ListenUrl, state_dir};

use crate::{dial, state_location};

const FILE: &str = "listeners";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) url: String,
    pub(crate) asks_for_token: bool,
}

/// Replaces the file atomically.
pub(crate) fn write(dir: &Path, listeners: &[Listener]) -> io::Result<()> {
    let lines = listeners.iter().map(|listener| {
        let word = if listener.asks_for_token { "token" } else { "open" };
        format!("{word} {}\n", listener.url)
    });
    state_dir::write_private(&dir.join(FILE), lines.collect::<String>().as_bytes())
}

/// The sockets recorded by the last server that used the directory; `None` without a record.
pub(crate) fn read(dir: &Path) -> Option<Vec<Listener>> {
    let text = fs::read_to_string(dir.join(FILE)).ok()?;
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    Some(lines.map(|(word, url)| Listener { url: url.to_owned(), asks_for_token: word == "token" }).collect())
}

/// The state directory of the server that listens at a URL: the one that recorded the URL, else the one that `serve` would use.
pub(crate) fn find(url: &ListenUrl) -> anyhow::Result<PathBuf> {
    let text = url.to_string();
    let has_it = |dir: &PathBuf| read(dir).is_some_and(|all| all.iter().any(|listener| listener.url == text));
    match state_directories()?.into_iter().find(has_it) {
        Some(dir) => Ok(dir),
        None => state_location::of_listener(url),
    }
}

/// The sockets of running servers of this user that require a token.
pub(crate) fn urls_with_tokens() -> anyhow::Result<Vec<String>> {
    let running = state_directories()?.into_iter().filter(|dir| dial::is_locked(dir));
    let all = running.filter_map(|dir| read(&dir)).flatten();
    Ok(all.filter(|listener| listener.asks_for_token).map(|listener| listener.url).collect())
}

/// The state directories below the user's state home.
fn state_directories() -> anyhow::Result<Vec<PathBuf>> {
    let home = state_location::state_home()?;
    let Ok(entries) = fs::read_dir(home) else { return Ok(Vec::new()) };
    let mut all: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_record_is_read_back() {
        let dir = tempfile::tempdir().expect("make a directory");
        assert_eq!(read(dir.path()), None);
        let listener = |url: &str, asks_for_token| Listener { url: url.to_owned(), asks_for_token };
        let all = [listener("ws://127.0.0.1:4000", true), listener("unix:///run/a b.sock", false)];
        write(dir.path(), &all).expect("write");
        assert_eq!(read(dir.path()), Some(all.to_vec()));
    }
}
