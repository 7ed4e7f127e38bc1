//! The program `exec-server`: what has to happen before anything else, and the way to one file per command.
//!
//! Owns the only reading of arguments and environment. The order at the top of `main` matters: the token leaves the
//! environment block before the spawner is forked, because holders are copies of it; the spawner is forked before any
//! thread exists.

mod args;
mod attach;
mod audit;
mod codes;
mod completions;
mod confine;
mod connect;
mod cp;
mod detach;
mod dial;
mod dial_stdio;
mod display;
mod doctor;
mod env_token;
mod forget;
mod fs;
mod hints;
mod ids;
mod kernel;
mod kill;
mod limits;
mod link;
mod listeners;
mod log;
mod login;
mod logs;
mod mcp;
mod notify;
mod place;
mod print_config;
mod printable;
mod ps;
mod remote_path;
mod run;
mod runtime;
mod sandbox;
mod say;
mod schema;
mod serve;
mod signals;
mod stall;
mod start;
mod streams;
mod terminal;
mod token;
mod wait;

use std::process::ExitCode;

use exec_server_client::local;
use exec_server_holder::{inherited, spawner};

use crate::args::Command;

fn main() -> ExitCode {
    // SIGPIPE is ignored already: the runtime of the language does that before `main`.
    inherited::ignore_file_size_signal();
    if args::is_detached() {
        inherited::close_descriptors();
    }
    let token = match env_token::take() {
        Ok(token) => token,
        Err(error) => return say::failed(&error),
    };
    if std::env::args_os().nth(1).is_some_and(|first| first == spawner::ARGUMENT) {
        // A library in another program wants no more of us than a spawner.
        let served = spawner::serve_stdin();
        return served.map_or_else(|error| say::failed(&error.into()), |()| ExitCode::SUCCESS);
    }
    if completions::is_asked() {
        return completions::answer(token);
    }
    if args::is_detached() {
        // Refused where we lead a group already: then nobody started us to be detached.
        rustix::process::setsid().ok();
    }
    // Before a thread exists and anything is read; `serve` and `run` alone make holders.
    let spawner = match fork_spawner() {
        Ok(spawner) => spawner,
        Err(error) => return say::failed(&anyhow::Error::new(error).context("fork the spawner")),
    };
    let outcome = match args::parse() {
        Command::Run(args) => run::run(&args, token),
        Command::Ps(args) => ps::run(&args, token),
        Command::Logs(args) => logs::run(&args, token),
        Command::Attach(args) => attach::run(&args, token),
        Command::Kill(args) => kill::run(&args, token),
        Command::Wait(args) => wait::run(&args, token),
        Command::Forget(args) => forget::run(&args, token),
        Command::Prune(args) => forget::prune(&args, token),
        Command::Cp(args) => cp::run(&args, token),
        Command::Fs(args) => fs::run(&args, token),
        Command::Mcp(args) => mcp::run(&args, token),
        Command::Serve(args) if args.print_config => print_config::run(&args.settings),
        Command::Serve(args) => serve::run(args, token, spawner),
        Command::Doctor(args) => doctor::run(&args),
        Command::DialStdio(args) => dial_stdio::run(&args),
        Command::Token(args) => token::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Completions { shell } => completions::completions(shell),
        Command::Man { command } => completions::man(command.as_deref()),
        Command::Schema => schema::run(),
    };
    outcome.unwrap_or_else(|error| say::failed(&error))
}

/// The server's own spawner; the one of the client library where that embeds a server; else none.
fn fork_spawner() -> std::io::Result<Option<spawner::SpawnerHandle>> {
    match args::role() {
        args::Role::Serves => {
            inherited::unblock_signals();
            spawner::fork_spawner().map(Some)
        }
        args::Role::Runs => local::embed().map(|()| None),
        args::Role::Neither => Ok(None),
    }
}
