//! The program `exec-server`: what has to happen before anything else, and the way to one file per command.
//!
//! Owns the only reading of arguments and environment. The order at the top of `main` matters: the token leaves the
//! environment block before the spawner is forked, because holders are copies of it; the spawner is forked before any
//! thread exists.

mod args;
mod dial_stdio;
mod env_token;
mod kernel;
mod place;
mod run;
mod runtime;
mod say;
mod schema;
mod serve;

use std::process::ExitCode;

use exec_server_holder::spawner;

use crate::args::Command;

/// Trouble of ours, whatever the command; `run` cannot confuse it with most programs' own codes.
const TROUBLE: u8 = 255;

fn main() -> ExitCode {
    // SIGPIPE is ignored already: the runtime of the language does that before `main`.
    let token = match env_token::take() {
        Ok(token) => token,
        Err(error) => return say::failed(&error),
    };
    if args::is_detached() {
        // Refused where we lead a group already: then nobody started us to be detached.
        rustix::process::setsid().ok();
    }
    let spawner = match spawner::fork_spawner() {
        Ok(spawner) => spawner,
        Err(error) => return say::failed(&anyhow::Error::new(error).context("fork the spawner")),
    };
    let outcome = match args::parse() {
        Command::Serve(serve) => serve::run(serve, token, spawner),
        Command::DialStdio(dial) => dial_stdio::run(&dial),
        Command::Run(command) => run::run(command, spawner),
        Command::Schema => schema::run(),
    };
    outcome.unwrap_or_else(|error| say::failed(&error))
}
