//! Finds the file that configures the MCP servers: by flag, variable, or in the user's configuration directory.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use exec_server_mcp::config::Config;

use crate::args;

/// Names the file if no flag does.
const VARIABLE: &str = "EXEC_SERVER_MCP_CONFIG";

/// File names in the user's configuration directory; the first one that exists is used.
const NAMES: [&str; 2] = ["mcp.toml", "mcp.json"];

/// Reads the configuration and prints warnings about entries without effect.
pub(super) fn load(args: &args::McpConfigArgs) -> anyhow::Result<Config> {
    let directory = directory(env::var_os("XDG_CONFIG_HOME"), env::home_dir());
    let path = find(args.config.as_deref(), env::var_os(VARIABLE), directory.as_deref())?;
    let config = Config::load(&path).context("read the configuration of MCP servers")?;
    for warning in &config.warnings {
        report!("{warning}");
    }
    Ok(config)
}

/// The user's configuration directory, the same as for `environments.toml`.
fn directory(xdg: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let config = xdg.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let config = config.or_else(|| home.filter(|dir| dir.is_absolute()).map(|dir| dir.join(".config")));
    config.map(|dir| dir.join("exec-server"))
}

fn find(given: Option<&Path>, named: Option<OsString>, directory: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let files = directory.map(|dir| NAMES.map(|name| dir.join(name)));
    let file = files.iter().flatten().find(|file| file.exists()).cloned();
    file.with_context(|| {
        let place = directory.unwrap_or(Path::new("~/.config/exec-server")).join(NAMES[0]);
        format!(
            "no MCP servers are configured: write `{}` (or {} beside it), set `{VARIABLE}`, or pass `--config FILE`",
            place.display(),
            NAMES[1]
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_over_the_variable_and_the_variable_over_the_users_file() {
        let dir = tempfile::tempdir().expect("make a directory");
        let find = |given: Option<&str>, named: Option<&str>| {
            find(given.map(Path::new), named.map(Into::into), Some(dir.path())).map_err(|error| error.to_string())
        };
        let said = find(None, Some("")).expect_err("nothing is there");
        assert!(
            said.contains("mcp.toml") && said.contains("EXEC_SERVER_MCP_CONFIG") && said.contains("--config"),
            "{said}"
        );
        std::fs::write(dir.path().join("mcp.json"), "{}").expect("write");
        assert_eq!(find(None, None), Ok(dir.path().join("mcp.json")));
        std::fs::write(dir.path().join("mcp.toml"), "").expect("write");
        assert_eq!(find(None, None), Ok(dir.path().join("mcp.toml")));
        assert_eq!(find(None, Some("b")), Ok("b".into()));
        assert_eq!(find(Some("a"), Some("b")), Ok("a".into()));
    }

    #[test]
    fn the_configuration_directory_is_that_of_environments_toml() {
        let directory = |xdg: Option<&str>, home: Option<&str>| directory(xdg.map(Into::into), home.map(Into::into));
        assert_eq!(directory(Some("/x"), Some("/h")), Some("/x/exec-server".into()));
        assert_eq!(directory(Some("relative"), Some("/h")), Some("/h/.config/exec-server".into()));
        assert_eq!(directory(None, None), None);
    }
}
