//! Chooses the state directory if there is no `--state-dir`, by the XDG rules.

use std::{
    env,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use exec_server_server::{listen::ListenUrl, state_dir};

/// A state directory.
#[derive(Debug)]
pub(crate) struct StateLocation {
    /// Absolute.
    pub(crate) path: PathBuf,
    /// Created for this server alone: the directory and its sessions are removed when the server ends.
    pub(crate) is_private: bool,
}

impl StateLocation {
    /// The given directory; else one per fixed address, so that the same command finds it again; else a new private one.
    pub(crate) fn find(given: Option<&Path>, listeners: &[ListenUrl]) -> anyhow::Result<Self> {
        if let Some(given) = given {
            return Ok(Self { path: absolute(given)?, is_private: false });
        }
        match state_dir::slug(listeners) {
            Some(slug) => Ok(Self { path: state_home()?.join(slug), is_private: false }),
            None => Self::private(),
        }
    }

    /// Creates a private directory in the user's runtime directory, or else in the temporary directory.
    pub(crate) fn private() -> anyhow::Result<Self> {
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let usable = runtime.filter(|dir| dir.is_absolute() && dir.is_dir());
        let base = usable.unwrap_or_else(env::temp_dir);
        let path = state_dir::private_dir(&base)
            .with_context(|| format!("make a private directory in `{}`", base.display()))?;
        Ok(Self { path, is_private: true })
    }
}

/// The given state directory, else that of the per-user server.
pub(crate) fn of_user(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    match given {
        Some(given) => absolute(given),
        None => Ok(state_home()?.join("default")),
    }
}

/// The parent of all state directories that are not set by `--state-dir`.
pub(crate) fn state_home() -> anyhow::Result<PathBuf> {
    let xdg = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = match xdg {
        Some(base) => base,
        None => env::home_dir()
            .filter(|home| home.is_absolute())
            .context("find the home directory: set `HOME` or pass `--state-dir`")?
            .join(".local/state"),
    };
    Ok(base.join("exec-server"))
}

/// The state directory that `serve` uses for one listener without `--state-dir`.
pub(crate) fn of_listener(url: &ListenUrl) -> anyhow::Result<PathBuf> {
    let slug = state_dir::slug(std::slice::from_ref(url));
    let slug =
        slug.with_context(|| format!("a server at `{url}` has no lasting state directory; pass `--state-dir`"))?;
    Ok(state_home()?.join(slug))
}

/// The directory for the anchor of an audit log: the state directory, or a directory of the user if the state directory is removed with the
/// server. The log outlives the server, so its anchor must too.
pub(crate) fn of_anchors(location: &StateLocation) -> anyhow::Result<PathBuf> {
    if !location.is_private {
        return Ok(location.path.clone());
    }
    let dir = anchors_of_user()?;
    make_private(&dir)?;
    Ok(dir)
}

/// Creates a directory and its missing parents for our user alone.
pub(crate) fn make_private(dir: &Path) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("make `{}`", dir.display()))
}

/// The directory for anchors of servers without a lasting state directory.
pub(crate) fn anchors_of_user() -> anyhow::Result<PathBuf> {
    Ok(state_home()?.join("audit"))
}

/// The state directories of this user's servers, and the directory for anchors.
pub(crate) fn all_of_user() -> Vec<PathBuf> {
    let entries = state_home().ok().and_then(|home| std::fs::read_dir(home).ok());
    entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("find `{}`", path.display()))
}
