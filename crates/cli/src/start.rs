//! From the flags of `run` to the process that is asked for: directory, environment, terminal and limits, each with the
//! default that fits the place where it runs. Must not know how it is asked.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use exec_server_client::{
    Start,
    protocol::{
        ProcessId,
        process::{CORE_VARIABLES, EnvPolicy, Inherit, Overflow},
    },
};

use crate::{
    args::{self, InheritArg},
    env_token, terminal,
};

/// Where a program is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a server inside this program, which has our directory and environment.
    Embedded,
    /// In the user's own server on this machine, which has neither.
    PerUser,
    /// On a server that may be anywhere.
    Remote,
}

/// What to start.
pub(crate) fn build(args: &args::Run, place: Place, id: ProcessId) -> anyhow::Result<Start> {
    let mut start =
        Start::new(args.argv.iter().map(String::as_str)).id(id).pipe_stdin(!args.no_stdin && !args.detach && !args.tty);
    if let Some(dir) = directory(args.cwd.as_deref(), place)? {
        start = start.cwd(dir);
    }
    start = environment(start, args.env_inherit, place);
    for (name, value) in &args.env {
        start = start.env(name, value);
    }
    if args.tty {
        start = start.tty(terminal::size());
        if let Some(term) = env::var_os("TERM").and_then(|term| term.into_string().ok()) {
            start = start.term(term);
        }
    }
    if let Some(after) = args.timeout {
        start = start.timeout(after);
    }
    if let Some(after) = args.idle_timeout {
        start = start.idle_timeout(after);
    }
    if args.drop_oldest {
        start = start.overflow(Overflow::DropOldest);
    }
    Ok(start)
}

/// `None` is the server's own.
pub(crate) fn directory(given: Option<&Path>, place: Place) -> anyhow::Result<Option<PathBuf>> {
    match (given, place) {
        (Some(given), Place::Embedded | Place::PerUser) => {
            let absolute = std::path::absolute(given).with_context(|| format!("find `{}`", given.display()))?;
            Ok(Some(absolute))
        }
        (None, Place::Embedded | Place::PerUser) => Ok(Some(env::current_dir().context("find the working directory")?)),
        (Some(given), Place::Remote) => {
            // A relative one would be relative to a directory that is not on that machine.
            if !given.is_absolute() && !given.to_string_lossy().starts_with("file:") {
                bail!("`--cwd {}` is relative; on a server it must be absolute", given.display());
            }
            Ok(Some(given.to_owned()))
        }
        (None, Place::Remote) => Ok(None),
    }
}

fn environment(start: Start, asked: Option<InheritArg>, place: Place) -> Start {
    let default = if place == Place::Remote { InheritArg::Core } else { InheritArg::All };
    let inherit = match asked.unwrap_or(default) {
        InheritArg::All => Inherit::All,
        InheritArg::Core => Inherit::Core,
        InheritArg::None => Inherit::None,
    };
    match place {
        Place::Remote => start.inherit(inherit),
        // Our own variables, to our own program: nothing is a secret.
        Place::Embedded => start.env_policy(Some(EnvPolicy {
            inherit,
            ignore_default_excludes: true,
            exclude: Vec::new(),
            set: std::collections::BTreeMap::new(),
            include_only: Vec::new(),
        })),
        // That server has the environment of whoever started it; ours has to be sent.
        Place::PerUser => ours(inherit).fold(start.env_policy(None), |start, (name, value)| start.env(name, value)),
    }
}

/// Our variables, but never the token. The wire is text: those that are not stay here.
fn ours(inherit: Inherit) -> impl Iterator<Item = (String, String)> {
    let text = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    text.filter(move |(name, _)| {
        let is_wanted = match inherit {
            Inherit::All => true,
            Inherit::Core => CORE_VARIABLES.iter().any(|core| core.eq_ignore_ascii_case(name)),
            Inherit::None => false,
        };
        is_wanted && !name.eq_ignore_ascii_case(env_token::NAME) && !name.is_empty()
    })
}
