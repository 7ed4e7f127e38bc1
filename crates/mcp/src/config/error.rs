//! What can be wrong with a configuration: told with the file, the server and the key, and what would be right instead.
//! It must not repeat values, which may be secrets.

use std::{fmt, io, path::PathBuf};

/// The longest piece of a file that an error repeats, in characters.
const SHOWN_MAX: usize = 64;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is too large to be a configuration.
    #[error("`{}` has more than {most} bytes, which is too much for a list of MCP servers", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What it may have.
        most: u64,
    },
    /// The file is no text.
    #[error("`{}` is not UTF-8", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// The file is neither TOML nor JSON, whichever its name promises.
    #[error("`{}` is not {format}{}: {reason}", path.display(), Line(*line))]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What it should be.
        format: &'static str,
        /// The line, from 1, where it is known.
        line: Option<usize>,
        /// What the parser said.
        reason: String,
    },
    /// A server has a name that tools cannot be called by.
    #[error(
        "`{}`: server `{}`: a name has letters, digits, `_` and `-`; call it `{better}`", path.display(), Shown(name)
    )]
    Name {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// A name that would do.
        better: String,
    },
    /// Two tables of the file have a server of this name.
    #[error("`{}`: server `{}` is there twice; every server needs its own name", path.display(), Shown(name))]
    Twice {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A key of the file breaks a rule.
    #[error("`{}`: {}key `{}`: {fault}", path.display(), Named(server.as_deref()), Shown(key))]
    Key {
        /// The file.
        path: PathBuf,
        /// The server; absent for keys of the whole file.
        server: Option<String>,
        /// The key.
        key: String,
        /// What is wrong with it, and what would be right.
        fault: Fault,
    },
}

/// What is wrong with a key of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No such key exists, but one that is nearly the same.
    #[error("unknown; did you mean `{meant}`?")]
    Misspelt {
        /// The one that exists.
        meant: &'static str,
    },
    /// The value has another type.
    #[error("must be {expected}")]
    Type {
        /// What it must be.
        expected: &'static str,
    },
    /// Neither a program nor a URL.
    #[error("missing; give `command` for a program on its standard streams, or `url` for a server over HTTP")]
    NoWay,
    /// A program and a URL.
    #[error("not beside `{other}`; a server is either a program or a URL")]
    Beside {
        /// The other key.
        other: &'static str,
    },
    /// Two keys mean the same and say something different.
    #[error("says something else than `{other}`, which means the same; keep one of them")]
    Contradicts {
        /// The other key.
        other: &'static str,
    },
    /// A token that everybody who reads the file would have.
    #[error("a token does not belong into this file; put it into a variable and name that with `bearer_token_env_var`")]
    InlineToken,
    /// A transport that is gone from MCP.
    #[error(
        "`sse` is no longer spoken; use the server's address for streamable HTTP (often the same, ending in `/mcp`) with `http`, \
         or run a program that translates as `command`"
    )]
    Sse,
    /// A transport that nobody knows.
    #[error("must be `stdio` or `http`")]
    Transport,
    /// The type of a server that is described as another.
    #[error("`{says}` needs `{key}`")]
    WrongTransport {
        /// The type.
        says: &'static str,
        /// The key that would fit.
        key: &'static str,
    },
    /// A place that cannot be meant.
    #[error("must be `local`, `remote`, a name of environments.toml, or a URL (ws, wss, unix, ssh, stdio)")]
    Environment,
    /// A place that is none.
    #[error("`none` is no place to run at; `enabled = false` switches a server off")]
    Nowhere,
    /// The URL of an executor cannot be used.
    #[error("{reason}")]
    Executor {
        /// Why.
        reason: String,
    },
    /// The endpoint cannot be used.
    #[error("must be an http:// or https:// URL with a host")]
    Url,
    /// A directory on another machine that depends on where one is.
    #[error("must be absolute for a server that does not run here")]
    RelativeCwd,
}

/// Where in a file, when that is known.
struct Line(Option<usize>);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |line| write!(f, ", line {line}"))
    }
}

/// A server in front of its key.
struct Named<'a>(Option<&'a str>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |name| write!(f, "server `{}`: ", Shown(name)))
    }
}

/// A name from a file that may hold anything: cut, and without what steers a terminal.
pub(super) struct Shown<'a>(pub(super) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars().take(SHOWN_MAX) {
            if c.is_control() { write!(f, "{}", c.escape_unicode())? } else { write!(f, "{c}")? }
        }
        if self.0.chars().nth(SHOWN_MAX).is_some() { f.write_str("…") } else { Ok(()) }
    }
}
