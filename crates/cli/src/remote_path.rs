//! Resolves paths that a user writes for a server: absolute, relative to the server's working directory, or below its home with `~`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use exec_server_client::Client;
use exec_server_protocol::path::PathArg;

/// The directories at which paths on a server start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Roots {
    /// The base of relative paths.
    pub(crate) directory: PathBuf,
    /// The meaning of `~`, if the server reports it.
    pub(crate) home: Option<PathBuf>,
}

impl Roots {
    /// Asks the server for its directories.
    pub(crate) async fn of(client: &Client) -> anyhow::Result<Self> {
        let info = client.environment_info().await.context("ask for the server's directory")?;
        let cwd = info.cwd.context("the server does not report its directory; pass absolute paths")?;
        let directory = PathArg::new(cwd).resolve().context("read the server's directory")?;
        let home = info.home_dir.map(|home| PathArg::new(home).resolve()).transpose();
        Ok(Self { directory, home: home.context("read the server's home directory")? })
    }

    /// Returns the absolute path. A file that is really named `~` can be written as `./~`.
    pub(crate) fn resolve(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let Some(below) = below_home(path) else { return Ok(self.directory.join(path)) };
        let unknown = || format!("`{}`: the server does not report its home directory", path.display());
        let home = self.home.as_ref().with_context(unknown)?;
        Ok(if below.as_os_str().is_empty() { home.clone() } else { home.join(below) })
    }
}

/// Resolves a path on a server. Sends a request only if the path is not absolute.
pub(crate) async fn resolve(client: &Client, path: &Path) -> anyhow::Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    Roots::of(client).await.with_context(|| format!("`{}`", path.display()))?.resolve(path)
}

/// The part after `~/`; `None` for a path that does not start with `~`. `~user` is an ordinary name.
pub(crate) fn below_home(path: &Path) -> Option<&Path> {
    path.strip_prefix("~").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_alone_is_the_home_of_the_server() {
        let roots = Roots { directory: "/srv".into(), home: Some("/home/me".into()) };
        for (path, absolute) in [
            ("/etc", "/etc"),
            ("a/b", "/srv/a/b"),
            (".", "/srv/."),
            ("~", "/home/me"),
            ("~/", "/home/me"),
            ("~/a", "/home/me/a"),
            ("~you/a", "/srv/~you/a"),
            ("./~", "/srv/./~"),
            ("a/~", "/srv/a/~"),
        ] {
            assert_eq!(roots.resolve(Path::new(path)).expect("it is known"), Path::new(absolute), "{path}");
        }
        let homeless = Roots { home: None, ..roots };
        assert!(homeless.resolve(Path::new("~/a")).is_err());
    }
}
