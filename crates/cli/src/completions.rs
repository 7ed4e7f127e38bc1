//! `exec-server completions` and `exec-server man`: the grammar of the command line, as shells and manual readers want it.
//! Must not know any command.

use std::process::ExitCode;

use anyhow::Context as _;
use clap_complete::{Shell, generate};

use crate::{args, say};

/// The name of the program in both.
const NAME: &str = "exec-server";

/// Prints the completions of a shell.
pub(crate) fn completions(shell: args::Shell) -> anyhow::Result<ExitCode> {
    let shell = match shell {
        args::Shell::Bash => Shell::Bash,
        args::Shell::Zsh => Shell::Zsh,
        args::Shell::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    generate(shell, &mut args::grammar(), NAME, &mut text);
    say::data(&text).context("write standard output")?;
    Ok(ExitCode::SUCCESS)
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
