//! The errors of choosing an environment. They name the file, the environment and the key, and say what is allowed. They never contain a
//! URL, which may include a token.

use std::{io, path::PathBuf};

use super::TOKEN_VARIABLE;
use crate::transport::TokenError;

/// Why no environment could be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The file exists but cannot be read.
    #[error("read `{}`", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The file is not valid TOML.
    #[error("`{}` is not TOML{}: {reason}", path.display(), line_suffix(*line))]
    Syntax {
        /// The path of the file.
        path: PathBuf,
        /// The line of the error, from 1, if known.
        line: Option<usize>,
        /// The message of the parser.
        reason: String,
    },
    /// The value of a key is not allowed.
    #[error("`{}`: {}key `{key}`: {reason}{}", path.display(), environment_prefix(environment), line_suffix(*line))]
    Key {
        /// The path of the file.
        path: PathBuf,
        /// The id of the environment, or its position in the file if it has none. `None` for keys of the whole file.
        environment: Option<String>,
        /// The name of the key.
        key: String,
        /// Why the value is not allowed, and what is.
        reason: String,
        /// The line of the key or the value, from 1, if known.
        line: Option<usize>,
    },
    /// No environment has this name.
    #[error(
        "no environment is named `{name}`: use one of {}, `none`, or a URL (ws, wss, unix, ssh, stdio); names come from `{}`",
        name_list(known), path.display()
    )]
    Unknown {
        /// The requested name.
        name: String,
        /// The file that defines the names.
        path: PathBuf,
        /// The names that exist.
        known: Vec<String>,
    },
    /// The requested URL cannot be used.
    #[error("this URL cannot be used: {reason}")]
    Url {
        /// Why the URL cannot be used.
        reason: String,
    },
    /// The value of a variable is not UTF-8.
    #[error("`{variable}` is not UTF-8: it must be `none`, a name or a URL")]
    Variable {
        /// The name of the variable.
        variable: &'static str,
    },
    /// The token in `EXEC_SERVER_TOKEN` is not valid.
    #[error("invalid token in `{TOKEN_VARIABLE}`")]
    Token {
        /// Why the token is not valid.
        source: TokenError,
    },
}

/// A line number, if known.
fn line_suffix(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}

/// The id of the environment, to put before a key; empty for a key of the whole file.
fn environment_prefix(id: &Option<String>) -> String {
    id.as_ref().map(|id| format!("environment `{id}`: ")).unwrap_or_default()
}

/// Names in backticks.
pub(super) fn name_list(names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
