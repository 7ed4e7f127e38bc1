//! Turns the flags of `run` into a start request: directory, environment, terminal and limits, each with the default that fits the place
//! where the program runs.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use exec_server_client::{
    Client, Start,
    environment::RemoteSpec,
    protocol::{
        ProcessId,
        environment::InfoResult,
        path::PathArg,
        process::{CORE_VARIABLES, EnvPolicy, Inherit, Overflow},
    },
};

use crate::{
    args::{self, InheritArg},
    env_token, login, remote_path,
    sandbox::{self, Grants},
    terminal,
};

/// Where programs are searched when the server does not report its `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// On a server embedded in this process, which shares our directory and environment.
    Embedded,
    /// On the user's own server on this machine, which has another directory and environment.
    PerUser,
    /// On a server that may be on another machine.
    Remote,
}

/// A start request that is ready to be sent.
pub(crate) struct PreparedStart {
    pub(crate) start: Start,
    /// The grants of `--sandbox`.
    pub(crate) grants: Option<Grants>,
}

/// Whether only the server knows a part of the start: a directory, its `PATH`, the variables of its login shell, or whether it can sandbox.
pub(crate) fn depends_on_server(args: &args::RunArgs, spec: Option<&RemoteSpec>) -> bool {
    args.login
        || args.confinement.sandbox
        || args.cwd.as_deref().is_some_and(|dir| !is_absolute(dir))
        || spec.is_some_and(|spec| !spec.path.is_empty())
}

/// The client, for a start that [`depends_on_server`].
fn connected(client: Option<&Client>) -> anyhow::Result<&Client> {
    client.context("the start depends on the server, which is not connected yet")
}

/// Builds the start that the flags describe. Asks the server for the defaults that only it knows. `spec` describes a remote server; it has
/// the variables and directories of `environments.toml`, if the server has an entry there. Without a `client`, it fails if the start
/// [`depends_on_server`].
pub(crate) async fn prepare(
    args: &args::RunArgs,
    client: Option<&Client>,
    server_kind: ServerKind,
    spec: Option<&RemoteSpec>,
    id: ProcessId,
) -> anyhow::Result<PreparedStart> {
    let mut start =
        Start::new(args.argv.iter().map(String::as_str)).id(id).pipe_stdin(!args.no_stdin && !args.detach && !args.tty);
    let directory = match server_kind {
        ServerKind::Remote => remote_directory(args.cwd.as_deref(), client).await?,
        ServerKind::Embedded | ServerKind::PerUser => Some(local_directory(args.cwd.as_deref())?),
    };
    if let Some(dir) = &directory {
        start = start.cwd(dir);
    }
    start = environment(start, args.env_inherit, server_kind);
    for (name, value) in variables(args, client, server_kind, spec).await? {
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
    // A detached program has no client that reads its output. With `Block` it would wait forever at the quota.
    if args.drop_oldest || (args.detach && !args.keep_all) {
        start = start.overflow(Overflow::DropOldest);
    } else if args.keep_all {
        start = start.overflow(Overflow::Block);
    }
    let mut grants = None;
    if args.confinement.sandbox {
        let client = connected(client)?;
        sandbox::check_server(client)?;
        let cwd = match directory {
            Some(dir) => PathArg::new(dir.to_string_lossy()).resolve()?,
            None => server_directory(client).await?,
        };
        // Locally, a path is relative to the shell's directory; on a server, to the directory in which the program starts.
        let base = if server_kind == ServerKind::Remote { cwd.clone() } else { env::current_dir()? };
        let granted = Grants::new(&args.confinement, &cwd, &base);
        start = start.sandbox(granted.to_policy());
        grants = Some(granted);
    }
    // Without `--detach` the session ends with the program. The server has to forget the process only if the user leaves it running with
    // the detach keys. If the server lacks the capability `autoForget`, the client library refuses a start that asks for it. That is right
    // with `--detach`; without it, start the program anyway.
    let can_auto_forget = client.is_none_or(|client| client.server().capabilities.auto_forget);
    start = start.auto_forget(args.rm && (args.detach || can_auto_forget));
    Ok(PreparedStart { start, grants })
}

/// The variables that are set for the program, later sources winning: `environments.toml`, the login shell, `--env`.
async fn variables(
    args: &args::RunArgs,
    client: Option<&Client>,
    server_kind: ServerKind,
    spec: Option<&RemoteSpec>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    if let Some(spec) = spec {
        all.extend(spec.env.iter().cloned());
    }
    if args.login {
        let base = |start| environment(start, args.env_inherit, server_kind);
        all.extend(login::environment(connected(client)?, base).await?);
    }
    if let Some(spec) = spec.filter(|spec| !spec.path.is_empty()) {
        let info = connected(client)?.environment_info().await.context("ask the server for its PATH")?;
        let path = all.get("PATH").cloned().or_else(|| info.search_path.clone());
        all.insert("PATH".to_owned(), search_path(&spec.path, &info, path)?);
    }
    all.extend(args.env.iter().cloned());
    Ok(all)
}

/// The directories of `environments.toml`, then `rest`, the `PATH` that the program would have otherwise.
fn search_path(first: &[String], info: &InfoResult, rest: Option<String>) -> anyhow::Result<String> {
    let mut directories = Vec::new();
    for dir in first {
        directories.push(match dir.strip_prefix("~/") {
            None => dir.clone(),
            Some(below) => {
                let home = info.home_dir.as_ref().with_context(|| format!("`{dir}`: the server reports no home"))?;
                let home = PathArg::new(home.as_str()).resolve()?;
                home.join(below).to_string_lossy().into_owned()
            }
        });
    }
    directories.push(rest.unwrap_or_else(|| DEFAULT_PATH.to_owned()));
    Ok(directories.join(":"))
}

async fn server_directory(client: &Client) -> anyhow::Result<PathBuf> {
    let info = client.environment_info().await.context("ask the server for its directory")?;
    let cwd = info.cwd.context("the server does not report its directory; pass `--cwd DIR`")?;
    Ok(PathArg::new(cwd.as_str()).resolve()?)
}

/// A directory on this machine. `~` is expanded too, in case the shell did not do it.
pub(crate) fn local_directory(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let Some(given) = given else { return env::current_dir().context("find the working directory") };
    match remote_path::below_home(given) {
        None => std::path::absolute(given).with_context(|| format!("find `{}`", given.display())),
        Some(below) => {
            let home = env::home_dir().with_context(|| format!("`{}`: there is no home directory", given.display()))?;
            Ok(home.join(below))
        }
    }
}

/// A directory on a server; `None` means the server's own.
async fn remote_directory(given: Option<&Path>, client: Option<&Client>) -> anyhow::Result<Option<PathBuf>> {
    match given {
        None => Ok(None),
        Some(given) if is_absolute(given) => Ok(Some(given.to_owned())),
        Some(given) => remote_path::resolve(connected(client)?, given).await.map(Some).context("`--cwd`"),
    }
}

/// Whether a directory on a server is given as an absolute path or a URI.
fn is_absolute(given: &Path) -> bool {
    given.is_absolute() || given.to_string_lossy().starts_with("file:")
}

fn environment(start: Start, requested: Option<InheritArg>, server_kind: ServerKind) -> Start {
    let default = if server_kind == ServerKind::Remote { InheritArg::Core } else { InheritArg::All };
    let inherit = match requested.unwrap_or(default) {
        InheritArg::All => Inherit::All,
        InheritArg::Core => Inherit::Core,
        InheritArg::None => Inherit::None,
    };
    match server_kind {
        ServerKind::Remote => start.inherit(inherit),
        // The variables stay on this machine and with this user, so those that look like secrets are not removed.
        ServerKind::Embedded => start.env_policy(Some(EnvPolicy {
            inherit,
            ignore_default_excludes: true,
            exclude: Vec::new(),
            set: BTreeMap::new(),
            include_only: Vec::new(),
        })),
        // The per-user server has the environment of the command that started it, so ours has to be sent.
        ServerKind::PerUser => {
            own_variables(inherit).fold(start.env_policy(None), |start, (name, value)| start.env(name, value))
        }
    }
}

/// Our variables, except the token. The protocol carries text, so variables that are not UTF-8 are left out.
fn own_variables(inherit: Inherit) -> impl Iterator<Item = (String, String)> {
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
