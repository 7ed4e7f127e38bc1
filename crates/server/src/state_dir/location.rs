//! Default names of state directories, used if the user has not chosen a directory. The caller passes the base
//! directory; this module does not read the environment.

use std::{
    fs::DirBuilder,
    io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::listen::ListenUrl;

/// A directory name made from the first listener with a fixed address, so that a restarted server finds its directory
/// again. `None` if no listener has a fixed address (port 0, stdio).
pub fn slug(listeners: &[ListenUrl]) -> Option<String> {
    listeners.iter().find_map(|url| match url {
        ListenUrl::Ws(address) | ListenUrl::Wss(address) if address.port() == 0 => None,
        ListenUrl::Ws(address) => Some(format!("ws-{}-{}", plain(&address.ip().to_string()), address.port())),
        ListenUrl::Wss(address) => Some(format!("wss-{}-{}", plain(&address.ip().to_string()), address.port())),
        ListenUrl::Unix(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // Sockets with the same file name in different directories belong to different servers. The digest tells
            // them apart; the file name is there for people to read.
            let digest = Sha256::digest(path.as_os_str().as_bytes());
            let name: String = plain(&name).chars().take(64).collect();
            Some(format!("unix-{name}-{}", hex::encode(&digest[..8])))
        }
        ListenUrl::Stdio => None,
    })
}

/// A name for the server of this state directory that no other server of the host has. The server's control group is
/// named so, because the control groups of all servers can be in one directory.
pub fn shared_name(state_dir: &Path) -> String {
    let path = std::fs::canonicalize(state_dir).unwrap_or_else(|_| state_dir.to_owned());
    format!("exec-server-{}", hex::encode(&Sha256::digest(path.as_os_str().as_bytes())[..8]))
}

/// Creates a directory with a random name and mode 0700 in `base`.
pub fn private_dir(base: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let path = base.join(format!("exec-server-{}", hex::encode(random)));
    // Not recursive, so that an existing directory of that name is an error: another user may have created it.
    DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

/// Replaces every character except ASCII letters, digits, dots and dashes with an underscore, so that the result is a
/// single path component.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => c,
            _ => '_',
        })
        .collect()
}
