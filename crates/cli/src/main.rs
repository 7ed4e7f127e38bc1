//! The program `exec-server`: startup steps that must happen first, then dispatch to one module per command.
//!
//! No library crate reads arguments, and only the client library (`Environment` and `local`) also reads environment variables. The order
//! at the top of `main` matters: the token is removed from the environment block before the spawner is forked, because the spawner and
//! the holders inherit that block. The spawner is forked before any thread exists.

#[macro_use]
mod print;

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
mod display;
mod doctor;
mod env_token;
mod forget;
mod fs;
mod hints;
mod ids;
mod kernel;
mod kill;
mod known_servers;
mod limits;
mod link;
mod listeners;
mod log;
mod login;
mod logs;
mod mcp;
mod notify;
mod print_config;
mod printable;
mod ps;
mod remote_path;
mod run;
mod runtime;
mod sandbox;
mod serve;
mod signals;
mod stall;
mod start;
mod state_location;
mod streams;
mod terminal;
mod token;
mod wait;

use std::process::ExitCode;

use exec_server_client::local;
use exec_server_holder::{inherited, spawner};

use crate::args::Command;

fn main() -> ExitCode {
    // SIGPIPE is already ignored: the Rust runtime does that before `main`.
    inherited::ignore_file_size_signal();
    if args::is_detached() {
        inherited::close_descriptors();
    }
    let token = match env_token::take() {
        Ok(token) => token,
        Err(error) => return print::failed(&error),
    };
    if std::env::args_os().nth(1).is_some_and(|first| first == spawner::ARGUMENT) {
        // The client library in another program started us only as its spawner.
        let served = spawner::serve_stdin();
        return served.map_or_else(|error| print::failed(&error.into()), |()| ExitCode::SUCCESS);
    }
    if completions::is_requested() {
        return completions::answer(token);
    }
    if args::is_detached() {
        // Fails if we already lead a process group. Then no client started us in the background, so there is nothing to detach from.
        rustix::process::setsid().ok();
    }
    // Fork before any thread exists and before arguments are parsed. Only `serve` and commands that embed a server need a spawner.
    let spawner = match fork_spawner() {
        Ok(spawner) => spawner,
        Err(error) => return print::failed(&anyhow::Error::new(error).context("fork the spawner")),
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
        Command::Fs(command) => fs::run(&command, token),
        Command::Mcp(command) => mcp::run(&command, token),
        Command::Serve(args) if args.print_config => print_config::run(&args.settings),
        Command::Serve(args) => serve::run(args, token, spawner),
        Command::Doctor(args) => doctor::run(&args),
        Command::DialStdio(args) => dial::run_stdio(&args),
        Command::Token(command) => token::run(&command),
        Command::Audit(command) => audit::run(&command),
        Command::Completions { shell } => completions::completions(shell),
        Command::Man { command } => completions::man(command.as_deref()),
        Command::Schema => print::line(exec_server_protocol::SCHEMA.trim_end()).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| print::failed(&error))
}

/// Forks the spawner of `serve`, or the spawner of an embedded server; other commands have none.
fn fork_spawner() -> std::io::Result<Option<spawner::SpawnerHandle>> {
    match args::startup_role() {
        args::StartupRole::Serves => {
            inherited::unblock_signals();
            spawner::fork_spawner().map(Some)
        }
        args::StartupRole::Runs => local::embed().map(|()| None),
        args::StartupRole::Neither => Ok(None),
    }
}
