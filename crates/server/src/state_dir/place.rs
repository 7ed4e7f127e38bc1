//! Where a state directory lives when nobody named one.
//! Must not read the environment: the base directory is handed in.

use std::{
    fs::DirBuilder,
    io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::listen::ListenUrl;

/// The directory name of the first listener that is found at the same place after a restart; `None` when there is none.
pub fn slug(listeners: &[ListenUrl]) -> Option<String> {
    listeners.iter().find_map(|url| match url {
        ListenUrl::Ws(address) | ListenUrl::Wss(address) if address.port() == 0 => None,
        ListenUrl::Ws(address) => Some(format!("ws-{}-{}", plain(&address.ip().to_string()), address.port())),
        ListenUrl::Wss(address) => Some(format!("wss-{}-{}", plain(&address.ip().to_string()), address.port())),
        ListenUrl::Unix(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // Two sockets of one name in different places are two servers; the name is for people, the digest tells them apart.
            let digest = Sha256::digest(path.as_os_str().as_bytes());
            let name: String = plain(&name).chars().take(64).collect();
            Some(format!("unix-{name}-{}", hex(&digest[..8])))
        }
        ListenUrl::Stdio => None,
    })
}

/// The name of a state directory where all servers of a host share one list of names, as among control groups.
pub fn shared_name(state_dir: &Path) -> String {
    let path = std::fs::canonicalize(state_dir).unwrap_or_else(|_| state_dir.to_owned());
    format!("exec-server-{}", hex(&Sha256::digest(path.as_os_str().as_bytes())[..8]))
}

/// Makes a fresh private directory with a random name in `base`.
pub fn private_dir(base: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let path = base.join(format!("exec-server-{}", hex(&random)));
    // Not recursive: an existing directory of that name is an error, not a gift.
    DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

/// Everything but letters, digits, dots and dashes becomes an underscore, so that the name is one path component.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => c,
            _ => '_',
        })
        .collect()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
