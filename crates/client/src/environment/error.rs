//! What can be wrong with the choice of an environment: told with the file, the environment and the key, and what would be
//! right instead. It must not repeat a URL, which may carry a token.

use std::{fmt, io, path::PathBuf};

use super::TOKEN_VARIABLE;
use crate::transport::TokenError;

/// Why no environment could be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The file is there but cannot be read.
    #[error("read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("`{}` is not TOML{}: {reason}", path.display(), Line(*line))]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1, where it is known.
        line: Option<usize>,
        /// What the parser said.
        reason: String,
    },
    /// A key of the file breaks a rule.
    #[error("`{}`: {}key `{key}`: {fault}", path.display(), Named(environment))]
    Key {
        /// The file.
        path: PathBuf,
        /// The id of the environment, or its place in the file where it has none; absent for keys of the whole file.
        environment: Option<String>,
        /// The key.
        key: String,
        /// What is wrong with it, and what would be right.
        fault: Fault,
    },
    /// No environment has this name.
    #[error(
        "no environment is named `{name}`: use one of {}, `none`, or a URL (ws, wss, unix, ssh, stdio); names come from `{}`",
        List(known), path.display()
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// The file that names come from.
        path: PathBuf,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The URL that was asked for cannot be used.
    #[error("this URL cannot be used: {reason}")]
    Url {
        /// What is wrong with it.
        reason: String,
    },
    /// A variable is not text.
    #[error("`{variable}` is not UTF-8: it must be `none`, a name or a URL")]
    Variable {
        /// Its name.
        variable: &'static str,
    },
    /// The token in `EXEC_SERVER_TOKEN` cannot be used.
    #[error("use the token in `{TOKEN_VARIABLE}`")]
    Token {
        /// What is wrong with it.
        source: TokenError,
    },
}

/// What is wrong with a key of `environments.toml`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No such key exists.
    #[error("unknown; known are {}", List(known))]
    UnknownKey {
        /// Those that exist there.
        known: Vec<String>,
    },
    /// The value has another type.
    #[error("must be {expected}")]
    Type {
        /// What it must be.
        expected: &'static str,
    },
    /// The key must be there.
    #[error("missing; every environment needs one")]
    Missing,
    /// An id that cannot be asked for.
    #[error("must have 1 to {most} characters, no colon, no control character and no blank at either end")]
    Id {
        /// The longest id.
        most: usize,
    },
    /// An id that has a meaning already.
    #[error("`{id}` is reserved; choose another name")]
    Reserved {
        /// The id.
        id: String,
    },
    /// Two environments have this id.
    #[error("`{id}` is there twice; every environment needs its own")]
    Duplicate {
        /// The id.
        id: String,
    },
    /// The default is no environment of this file.
    #[error("`{id}` is no environment; use one of {}, or `none`", List(known))]
    UnknownDefault {
        /// The default.
        id: String,
        /// What it can be.
        known: Vec<String>,
    },
    /// Neither a URL nor a program.
    #[error("missing; give either `url` or `program`")]
    NoWay,
    /// Both a URL and a program.
    #[error("not beside `url`; give either of them")]
    TwoWays,
    /// The key makes sense only beside another.
    #[error("needs `{other}` beside it")]
    Needs {
        /// The other key.
        other: &'static str,
    },
    /// The key makes no sense for this URL.
    #[error("only for {schemes} URLs")]
    Scheme {
        /// The schemes that it is for.
        schemes: &'static str,
    },
    /// A directory that cannot stand in a `PATH`.
    #[error("`{directory}` must begin with `/` or `~/` and contain no colon")]
    SearchDirectory {
        /// The directory.
        directory: String,
    },
    /// The URL cannot be used.
    #[error("{reason}")]
    Url {
        /// Why.
        reason: String,
    },
}

/// Where in a file, when that is known.
struct Line(Option<usize>);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |line| write!(f, ", line {line}"))
    }
}

/// An environment in front of its key.
struct Named<'a>(&'a Option<String>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |id| write!(f, "environment `{id}`: "))
    }
}

/// Names in backticks.
struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}`{name}`")?;
        }
        Ok(())
    }
}
