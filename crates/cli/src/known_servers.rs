//! Remembers which servers accept a start together with the handshake, so that `run` saves a round trip from the second time on.
//!
//! One small file per server in `$XDG_CACHE_HOME/exec-server/servers` (by default `~/.cache`), named by a hash of its address and our credentials. The
//! file only exists or does not. It is a hint: if it is wrong, the client library connects once more. So every failure here is ignored.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The oldest files beyond this number are removed: servers on changing ports would leave a new one each time.
const SERVERS_MAX: usize = 256;

/// The file of one server.
pub(crate) struct KnownServer {
    /// A directory that is never created here: a home that was removed must stay removed.
    base: PathBuf,
    file: PathBuf,
}

impl KnownServer {
    /// `fingerprint` identifies the server and our credentials. `None` without a cache directory.
    pub(crate) fn of(fingerprint: &str) -> Option<Self> {
        let xdg = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
        if let Some(base) = xdg {
            return Some(Self::below(&base, "exec-server/servers", fingerprint));
        }
        let home = env::home_dir().filter(|home| home.is_absolute())?;
        Some(Self::below(&home, ".cache/exec-server/servers", fingerprint))
    }

    fn below(base: &Path, servers: &str, fingerprint: &str) -> Self {
        Self { base: base.to_owned(), file: base.join(servers).join(fingerprint) }
    }

    /// Whether the server announced session keys on the last connection.
    pub(crate) fn has_session_keys(&self) -> bool {
        self.file.exists()
    }

    /// Records what the server announced. Touches the disk only if that has changed.
    pub(crate) fn remember(&self, has_session_keys: bool) {
        if self.has_session_keys() == has_session_keys {
            return;
        }
        let changed = if has_session_keys { self.create() } else { fs::remove_file(&self.file) };
        if let Err(error) = changed {
            tracing::debug!(path = %self.file.display(), %error, "cannot remember the server");
        }
    }

    fn create(&self) -> io::Result<()> {
        let Some(servers) = self.file.parent() else { return Ok(()) };
        let missing = servers.ancestors().take_while(|dir| *dir != self.base && !dir.exists());
        let missing: Vec<&Path> = missing.collect();
        for dir in missing.into_iter().rev() {
            match fs::create_dir(dir) {
                // Another command was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => created?,
            }
        }
        remove_oldest(servers, SERVERS_MAX - 1);
        fs::File::create(&self.file).map(drop)
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
        let server = KnownServer::below(dir.path(), "exec-server/servers", "one");
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
            KnownServer::below(dir.path(), "servers", &number.to_string()).remember(true);
        }
        let servers = dir.path().join("servers");
        assert_eq!(fs::read_dir(&servers).unwrap().count(), SERVERS_MAX);
        assert!(servers.join((SERVERS_MAX + 4).to_string()).exists(), "the latest stays");
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_ignored() {
        let server = KnownServer::below(Path::new("/dev/null"), "servers", "one");
        server.remember(true);
        assert!(!server.has_session_keys());
    }

    #[test]
    fn a_home_that_was_removed_is_not_created_again() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let server = KnownServer::below(&home, ".cache/exec-server/servers", "one");
        server.remember(true);
        assert!(!server.has_session_keys() && !home.exists());
        fs::create_dir(&home).unwrap();
        server.remember(true);
        assert!(server.has_session_keys());
    }
}
