//! `exec-server completions` and `exec-server man`: shell completions and manual pages, generated from the clap grammar.
//!
//! The script of a shell runs this program at every Tab. The script sets [`VARIABLE`] and passes the typed words after `--`. So the completions
//! match the installed version and include the ids of processes on the server that the words name, and the names of environments.
//!
//! Failure paths: a server that does not answer in time contributes no ids. Stderr is discarded, because a message
//! would appear in the user's prompt.

use std::{
    ffi::{OsStr, OsString},
    fs::OpenOptions,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCompleter, CompletionCandidate},
    env::{Bash, EnvCompleter, Fish, Zsh},
};
use exec_server_client::environment;
use exec_server_protocol::process::ProcessInfo;
use parking_lot::Mutex;
use tokio::time;

use crate::{args, connect::ListingSession, env_token, ids, print, runtime};

/// The program name in scripts and manual pages.
const NAME: &str = "exec-server";

/// The shell scripts set this variable to the name of their shell.
const VARIABLE: &str = "EXEC_SERVER_COMPLETE";

/// The longest time that a user has to wait after Tab.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The token from the environment, kept until a completion needs it. A static, because completers are `'static` closures without state.
static TOKEN: Mutex<Option<env_token::StoredToken>> = Mutex::new(None);

/// Prints the completion script of a shell.
pub(crate) fn completions(shell: args::Shell) -> anyhow::Result<ExitCode> {
    let shell: &dyn EnvCompleter = match shell {
        args::Shell::Bash => &Bash,
        args::Shell::Zsh => &Zsh,
        args::Shell::Fish => &Fish,
    };
    let mut text = Vec::new();
    // Refer to the program by name, not by path, so that the script keeps working after an update.
    shell.write_registration(VARIABLE, NAME, NAME, NAME, &mut text).context("write the script")?;
    print::put(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether this process was started by a completion script.
pub(crate) fn is_requested() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|shell| !shell.is_empty())
}

/// Prints the completions. Must be called before a second thread exists, because it removes an environment variable.
pub(crate) fn answer(token: Option<env_token::StoredToken>) -> ExitCode {
    // Discard stderr: an error message would appear in the user's prompt.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        rustix::stdio::dup2_stderr(null).ok();
    }
    *TOKEN.lock() = token;
    let completer = CompleteEnv::with_factory(|| with_values(args::grammar())).var(VARIABLE);
    let current = std::env::current_dir().ok();
    match completer.try_complete(std::env::args_os(), current.as_deref()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Adds the completions that depend on servers and files to the grammar.
fn with_values(mut command: clap::Command) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(name, with_values);
    }
    for server in ["connect", "from", "to"] {
        command = with_completer(command, server, environments);
    }
    match command.get_name() {
        "logs" | "wait" => with_completer(command, "ids", |current| processes(current, |_| true)),
        "forget" => with_completer(command, "ids", |current| processes(current, |info| info.closed)),
        "kill" => with_completer(command, "ids", |current| processes(current, |info| !info.closed)),
        "attach" => with_completer(command, "id", |current| processes(current, |info| !info.closed)),
        _ => command,
    }
}

/// Adds a completer to an argument if the command has it.
fn with_completer(
    command: clap::Command,
    name: &str,
    completer: impl Fn(&OsStr) -> Vec<CompletionCandidate> + Send + Sync + 'static,
) -> clap::Command {
    if command.get_arguments().any(|arg| arg.get_id() == name) {
        command.mut_arg(name, |arg| arg.add(ArgValueCompleter::new(completer)))
    } else {
        command
    }
}

/// The names in `environments.toml` and the URL schemes.
fn environments(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = environment::names().unwrap_or_default();
    let schemes = ["ssh://", "ws://", "wss://", "unix://"].map(str::to_owned);
    matching(current, names.into_iter().chain(schemes).map(|name| (name, None)))
}

/// The ids of matching processes, with their command line as help text.
fn processes(current: &OsStr, fits: fn(&ProcessInfo) -> bool) -> Vec<CompletionCandidate> {
    let all = listed().unwrap_or_default();
    // Newest first; the listing is oldest first.
    let fitting = all.iter().rev().filter(|info| fits(info));
    matching(current, fitting.map(|info| (info.process_id.to_string(), Some(info.argv.join(" ")))))
}

/// The values that begin with the typed text. Ids come from the server and go into the user's command line, so any value that the shell
/// would not take as one plain word is left out.
fn matching(current: &OsStr, all: impl Iterator<Item = (String, Option<String>)>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let mut seen = Vec::new();
    let mut candidates = Vec::new();
    for (value, help) in all {
        if value.starts_with(&*current)
            && ids::quoted(&value) == value
            && !value.starts_with('-')
            && !seen.contains(&value)
        {
            let help = help.map(|help| ids::clean(&help).into());
            candidates.push(CompletionCandidate::new(&value).help(help));
            seen.push(value);
        }
    }
    candidates
}

/// The processes of the server that the typed words name; an error if the server takes too long.
fn listed() -> anyhow::Result<Vec<ProcessInfo>> {
    let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let connect = args::connection(&words).context("read the words")?;
    let token = TOKEN.lock().take();
    runtime::block_on(async {
        let asked = time::timeout(ANSWER_WITHIN, async {
            let listing = ListingSession::open(&connect, token).await?;
            let all = listing.all.clone();
            listing.end().await;
            anyhow::Ok(all)
        });
        asked.await?
    })
}

/// Prints the manual page of the program or of one of its commands.
pub(crate) fn man(command: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut grammar = args::grammar();
    grammar.build();
    let page = match command {
        None => grammar,
        Some(name) => grammar.find_subcommand(name).with_context(|| format!("there is no command `{name}`"))?.clone(),
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).context("write the manual page")?;
    print::put(&text)?;
    Ok(ExitCode::SUCCESS)
}
