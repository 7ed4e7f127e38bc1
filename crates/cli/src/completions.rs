//! `exec-server completions` and `exec-server man`: the grammar of the command line, as shells and manual readers want it.
//!
//! The script of a shell asks this program at every Tab, by a variable ([`VARIABLE`]) and the words behind `--`. So it completes
//! flags of the program that runs, ids of processes on the server that the words name, and names of environments. Failure paths: a
//! server that does not answer soon has no ids, and nothing is ever written to standard error, which is the prompt. Must not know
//! any command beyond which of its arguments is a process or a server.

use std::{
    ffi::{OsStr, OsString},
    fs::OpenOptions,
    process::ExitCode,
    sync::{Mutex, PoisonError},
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
use tokio::time;

use crate::{args, connect::Visit, env_token, ids, runtime, say};

/// The name of the program in scripts and pages.
const NAME: &str = "exec-server";

/// Set by the scripts to the name of their shell.
const VARIABLE: &str = "EXEC_SERVER_COMPLETE";

/// How long a person waits behind Tab.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The token of the environment, until a completion needs it.
static TOKEN: Mutex<Option<env_token::Waiting>> = Mutex::new(None);

/// Prints the script of a shell.
pub(crate) fn completions(shell: args::Shell) -> anyhow::Result<ExitCode> {
    let shell: &dyn EnvCompleter = match shell {
        args::Shell::Bash => &Bash,
        args::Shell::Zsh => &Zsh,
        args::Shell::Fish => &Fish,
    };
    let mut text = Vec::new();
    // By its name alone, so that the script outlives an update.
    shell.write_registration(VARIABLE, NAME, NAME, NAME, &mut text).context("write the script")?;
    say::data(&text).context("write standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a script of a shell asks for completions.
pub(crate) fn is_asked() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|shell| !shell.is_empty())
}

/// Answers it. Called before a thread exists, because the variable is removed.
pub(crate) fn answer(token: Option<env_token::Waiting>) -> ExitCode {
    // What goes wrong is not for the prompt that a person types at.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        rustix::stdio::dup2_stderr(null).ok();
    }
    *TOKEN.lock().unwrap_or_else(PoisonError::into_inner) = token;
    let asked = CompleteEnv::with_factory(|| with_values(args::grammar())).var(VARIABLE);
    let current = std::env::current_dir().ok();
    match asked.try_complete(std::env::args_os(), current.as_deref()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The grammar with what only a look at servers and files can say.
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

/// Completes an argument, where the command has it.
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

/// Names in `environments.toml`, and the beginnings of URLs.
fn environments(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = environment::names().unwrap_or_default();
    let schemes = ["ssh://", "ws://", "wss://", "unix://"].map(str::to_owned);
    matching(current, names.into_iter().chain(schemes).map(|name| (name, None)))
}

/// Ids of the processes that fit, with what they run.
fn processes(current: &OsStr, fits: fn(&ProcessInfo) -> bool) -> Vec<CompletionCandidate> {
    let all = listed().unwrap_or_default();
    // The newest first, as in `ps`.
    let fitting = all.iter().rev().filter(|info| fits(info));
    matching(current, fitting.map(|info| (info.process_id.to_string(), Some(info.argv.join(" ")))))
}

/// Those that begin with what is typed. The server's words go into the person's command line: what a shell would not take for a plain
/// word is left out.
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

/// The processes of the server that the words name; none where that takes long.
fn listed() -> anyhow::Result<Vec<ProcessInfo>> {
    let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let connect = args::connection(&words).context("read the words")?;
    let token = TOKEN.lock().unwrap_or_else(PoisonError::into_inner).take();
    runtime::block_on(async {
        let asked = time::timeout(ANSWER_WITHIN, async {
            let visit = Visit::begin(&connect, token).await?;
            let all = visit.all().to_vec();
            visit.end().await;
            anyhow::Ok(all)
        });
        asked.await?
    })
}

/// Prints the manual page of the program, or of one of its commands.
pub(crate) fn man(command: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut grammar = args::grammar();
    grammar.build();
    let page = match command {
        None => grammar,
        Some(name) => grammar.find_subcommand(name).with_context(|| format!("there is no command `{name}`"))?.clone(),
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).context("write the manual page")?;
    say::data(&text).context("write standard output")?;
    Ok(ExitCode::SUCCESS)
}
