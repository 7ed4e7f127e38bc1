//! Names and places of state directories that the user did not choose. The caller passes the base directory; this
//! module does not read the environment.

use std::{
    fs::DirBuilder,
    io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::listen::ListenUrl;

/// The directory name for the first listener that has the same address after a restart. `None` if there is no such
/// listener (port 0, stdio).
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

/// A name for this state directory that is unique on the host. For example, all servers of a host share one list of
/// control group names.
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

/// Replaces all characters but letters, digits, dots and dashes with an underscore, so that the result is one path
/// component.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => c,
            _ => '_',
        })
        .collect()
}
