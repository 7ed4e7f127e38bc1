//! `cargo xtask interop`: runs third-party programs against ours: Python, Node, ssh and its server, tmux, vim, top.
//!
//! Defines the list of parts and their sizes for CI, and checks that nothing of them is left: while they run this process is the subreaper,
//! so every orphan becomes our child, and all files are in one temporary directory.

#![expect(clippy::print_stdout, reason = "a command line tool: standard output is its result")]
#![expect(clippy::disallowed_methods, reason = "starts programs as a user would, and measures wall time")]

mod connect_failures;
mod deploy;
mod documented_script;
mod examples;
mod install;
mod mcp_bridge;
mod mcp_manager;
mod mcp_serve;
mod mcp_servers;
mod prelude;
mod ssh_cuts;
mod streams;
mod terminal;
mod tmux_screen;

use std::{path::PathBuf, process::ExitCode, time::Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser as _;
use exec_server_harness::{environment::Environment, relay};
use exec_server_workspace::{cargo, exit_code, packages};

/// Run programs that others wrote against ours: Python, Node, ssh, tmux, vim, top.
#[derive(clap::Parser)]
#[command(bin_name = "cargo xtask interop", args_conflicts_with_subcommands = true)]
struct InteropCommand {
    #[command(flatten)]
    options: InteropOptions,
    #[command(subcommand)]
    child: Option<ChildCommand>,
}

#[derive(clap::Subcommand)]
enum ChildCommand {
    /// Copies standard input to standard output, numbers its steps on standard error and checks its input.
    Relay { id: u64 },
}

#[derive(clap::Args)]
struct InteropOptions {
    /// Run as in CI: smaller files, fewer kills.
    #[arg(long)]
    ci: bool,
    /// Execute only these parts, by name.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// List the parts.
    #[arg(long)]
    list: bool,
    /// Only install what the parts need.
    #[arg(long, hide = true)]
    prepare: bool,
    /// Test this program instead of the build of this tree.
    #[arg(long, value_name = "PROGRAM")]
    server: Option<PathBuf>,
}

/// One part: its name, what it does, the packages it needs, and its function, which returns one line per check.
struct InteropPart {
    name: &'static str,
    what: &'static str,
    needs: &'static [packages::RequiredPackage],
    run: fn(&Environment) -> Result<Vec<String>>,
}

const INTEROP_PARTS: &[InteropPart] = &[
    part("readme", "the guide's script in Python", &[], documented_script::run),
    part("examples", "the examples in Python and Node", &[], examples::run),
    part("streams", "files byte exact through ws, unix, stdio and ssh", packages::SSH, streams::run),
    part("trouble", "what `ssh://` says when it cannot", packages::SSH, connect_failures::run),
    part("install", "from nothing to a command over ssh", packages::SSH, install::run),
    part("ssh", "ssh is killed on either side during `run`", packages::SSH, ssh_cuts::run),
    part("deploy", "the unit and the container of docs/deploy.md", packages::DEPLOY, deploy::run),
    part("mcp", "real MCP servers in Python and Node through `mcp bridge`", packages::MCP, mcp_bridge::run),
    part("mcp-manager", "the same servers, all at once, by the manager", packages::MCP, mcp_manager::run),
    part("mcp-serve", "the Python SDK's client and the MCP inspector on `mcp serve`", &[], mcp_serve::run),
    part("terminal", "vim, top, resize, attach in tmux", packages::TERMINAL, terminal::run),
];

const fn part(
    name: &'static str,
    what: &'static str,
    needs: &'static [packages::RequiredPackage],
    run: fn(&Environment) -> Result<Vec<String>>,
) -> InteropPart {
    InteropPart { name, what, needs, run }
}

fn main() -> ExitCode {
    let command = InteropCommand::parse();
    let outcome = match command.child {
        Some(ChildCommand::Relay { id }) => relay::child(id),
        None => run(&command.options),
    };
    exit_code("interop", outcome.map(|()| ExitCode::SUCCESS))
}

fn run(options: &InteropOptions) -> Result<()> {
    if options.list {
        for part in INTEROP_PARTS {
            println!("{:<9} {}", part.name, part.what);
        }
        return Ok(());
    }
    for name in &options.only {
        ensure!(INTEROP_PARTS.iter().any(|part| part.name == name), "no part `{name}`; see `--list`");
    }
    let chosen: Vec<_> = INTEROP_PARTS
        .iter()
        .filter(|part| options.only.is_empty() || options.only.iter().any(|name| name == part.name))
        .collect();
    for part in &chosen {
        packages::ensure(part.needs).with_context(|| format!("part `{}`", part.name))?;
    }
    if options.prepare {
        documented_script::python()?;
        examples::node_client()?;
        packages::mcp_python()?;
        mcp_servers::node()?;
        mcp_serve::python()?;
        mcp_serve::inspector()?;
        return Ok(());
    }
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let world = Environment::new(cargo::server_binary(options.server.as_deref())?, options.ci)?;
    let mut failed = 0;
    for part in &chosen {
        let begun = Instant::now();
        let outcome = (part.run)(&world).and_then(|lines| world.ensure_tidy().map(|()| lines));
        let seconds = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(lines) => {
                for line in lines {
                    println!("interop: {line} ok");
                }
                println!("interop: {} passed in {seconds:.1} s", part.name);
            }
            Err(error) => {
                failed += 1;
                println!("interop: {} FAILED after {seconds:.1} s: {error:#}", part.name);
            }
        }
    }
    world.end().context("after interop")?;
    rustix::process::set_child_subreaper(None)?;
    println!("{} passed, {failed} failed", chosen.len() - failed);
    ensure!(failed == 0, "{failed} parts failed");
    Ok(())
}
