//! Remembers which servers accept a start together with the handshake, so that `run` saves a round trip from the second time on.
//!
//! One small file per server in `$XDG_CACHE_HOME/exec-server/servers` (by default `~/.cache`), named by a hash of its address and our credentials. The
//! file only exists or does not. It is a hint: if it is wrong, the client library connects once more. So every failure here is ignored.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The oldest files beyond this number are removed: servers on changing ports would leave a new one each time.
const SERVERS_MAX: usize = 256;

/// The file of one server.
pub(crate) struct KnownServer(PathBuf);

impl KnownServer {
    /// `fingerprint` identifies the server and our credentials. `None` without a cache directory.
    pub(crate) fn of(fingerprint: &str) -> Option<Self> {
        let xdg = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
        let home = || env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".cache"));
        Some(Self(xdg.or_else(home)?.join("exec-server/servers").join(fingerprint)))
    }

    /// Whether the server announced session keys on the last connection.
    pub(crate) fn has_session_keys(&self) -> bool {
        self.0.exists()
    }

    /// Records what the server announced. Touches the disk only if that has changed.
    pub(crate) fn remember(&self, has_session_keys: bool) {
        if self.has_session_keys() == has_session_keys {
            return;
        }
        let changed = if has_session_keys { self.create() } else { fs::remove_file(&self.0) };
        if let Err(error) = changed {
            tracing::debug!(path = %self.0.display(), %error, "cannot remember the server");
        }
    }

    fn create(&self) -> std::io::Result<()> {
        let Some(dir) = self.0.parent() else { return Ok(()) };
        fs::create_dir_all(dir)?;
        remove_oldest(dir, SERVERS_MAX - 1);
        fs::File::create(&self.0).map(drop)
    }
}

/// Removes files until `most` are left.
fn remove_oldest(dir: &Path, most: usize) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let modified =
        |entry: &fs::DirEntry| entry.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut files: Vec<_> = entries.flatten().map(|entry| (modified(&entry), entry.path())).collect();
    files.sort();
    let surplus = files.len().saturating_sub(most);
    for (_, path) in files.into_iter().take(surplus) {
        fs::remove_file(path).ok(); // Another command may have removed it.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_remembered_until_it_no_longer_announces_keys() {
        let dir = tempfile::tempdir().unwrap();
        let server = KnownServer(dir.path().join("exec-server/servers/one"));
        assert!(!server.has_session_keys());
        server.remember(false);
        assert!(!dir.path().join("exec-server").exists(), "nothing is created for a server without keys");
        server.remember(true);
        assert!(server.has_session_keys());
        server.remember(false);
        assert!(!server.has_session_keys());
    }

    #[test]
    fn the_number_of_remembered_servers_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..SERVERS_MAX + 5 {
            KnownServer(dir.path().join(number.to_string())).remember(true);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), SERVERS_MAX);
        assert!(dir.path().join((SERVERS_MAX + 4).to_string()).exists(), "the latest stays");
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_ignored() {
        let server = KnownServer(PathBuf::from("/dev/null/servers/one"));
        server.remember(true);
        assert!(!server.has_session_keys());
    }
}
