//! `cargo xtask interop`: runs third-party programs against ours: Python, Node, ssh and its server, tmux, vim, top.
//!
//! Defines the list of parts and their sizes for CI, and checks that nothing of them is left: while they run this process is the subreaper,
//! so every orphan becomes our child, and all files are in one temporary directory.

mod connect_failures;
mod deploy;
mod examples;
mod install;
mod mcp_bridge;
mod mcp_manager;
mod mcp_serve;
mod mcp_servers;
pub(crate) mod packages;
mod readme;
mod remote_host;
mod screen;
mod ssh_cuts;
mod streams;
mod terminal;
mod world;

use std::{path::Path, process::Command, time::Instant};

use anyhow::{Context, Result, ensure};

use crate::cargo;
pub(crate) use mcp_servers::mcp_server_time;
use remote_host::RemoteHost;
use world::World;

/// Options of `cargo xtask interop`.
#[derive(clap::Args)]
pub(crate) struct InteropOptions {
    /// The short run of CI: smaller files, fewer kills.
    #[arg(long)]
    ci: bool,
    /// Only these parts, by name.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Says which parts there are.
    #[arg(long)]
    list: bool,
    /// Another program than the release build of this tree.
    #[arg(long)]
    server: Option<std::path::PathBuf>,
    /// Runs in this build of xtask, also where it is not the release build; times are then no times.
    #[arg(long, hide = true)]
    as_built: bool,
}

/// One part: its name, what it does, the packages it needs, and its function, which returns one line per check.
struct InteropPart {
    name: &'static str,
    what: &'static str,
    needs: &'static [packages::RequiredPackage],
    run: fn(&World) -> Result<Vec<String>>,
}

const INTEROP_PARTS: &[InteropPart] = &[
    InteropPart { name: "readme", what: "the guide's script in Python", needs: &[], run: readme::run },
    InteropPart { name: "examples", what: "the examples in Python and Node", needs: &[], run: examples::run },
    InteropPart {
        name: "streams",
        what: "files byte exact through ws, unix, stdio and ssh",
        needs: packages::SSH,
        run: streams::run,
    },
    InteropPart {
        name: "trouble",
        what: "what `ssh://` says when it cannot",
        needs: packages::SSH,
        run: connect_failures::run,
    },
    InteropPart {
        name: "install",
        what: "from nothing to a command over ssh",
        needs: packages::SSH,
        run: install::run,
    },
    InteropPart {
        name: "ssh",
        what: "ssh is killed on either side during `run`",
        needs: packages::SSH,
        run: ssh_cuts::run,
    },
    InteropPart {
        name: "deploy",
        what: "the unit and the container of docs/deploy.md",
        needs: packages::DEPLOY,
        run: deploy::run,
    },
    InteropPart {
        name: "mcp",
        what: "real MCP servers in Python and Node through `mcp bridge`",
        needs: packages::MCP,
        run: mcp_bridge::run,
    },
    InteropPart {
        name: "mcp-manager",
        what: "the same servers, all at once, by the manager",
        needs: packages::MCP,
        run: mcp_manager::run,
    },
    InteropPart {
        name: "mcp-serve",
        what: "the Python SDK's client and the MCP inspector on `mcp serve`",
        needs: &[],
        run: mcp_serve::run,
    },
    InteropPart {
        name: "terminal",
        what: "vim, top, resize, attach in tmux",
        needs: packages::TERMINAL,
        run: terminal::run,
    },
];

/// A real sshd on loopback, and how to connect to it.
pub(crate) struct Sshd<'a>(&'a RemoteHost<'a>);

impl Sshd<'_> {
    /// A command whose `ssh` and `scp` know the sshd as `box`.
    pub(crate) fn command(&self, program: &str) -> Command {
        self.0.command(program)
    }

    /// The real `ssh`, without our wrapper, to the host `plain`, where only the user's shell is between sshd and a command, as in an
    /// ordinary setup.
    pub(crate) fn plain(&self, options: &[&str]) -> Result<Command> {
        self.0.plain(options)
    }
}

/// Ensures that OpenSSH and its server are installed.
pub(crate) fn ensure_ssh() -> Result<()> {
    packages::ensure(packages::SSH)
}

/// Runs `run` with a real sshd on loopback. Everything that `run` starts must have ended when it returns.
pub(crate) fn beside_sshd<T>(binary: &Path, run: impl FnOnce(&Sshd<'_>) -> Result<T>) -> Result<T> {
    let world = World::new(binary.to_owned(), true)?;
    let host = RemoteHost::start(&world, "far")?;
    let done = run(&Sshd(&host))?;
    host.stop()?;
    world.end()?;
    Ok(done)
}

pub(crate) fn run(options: &InteropOptions) -> Result<()> {
    if options.list {
        for part in INTEROP_PARTS {
            println!("{:<9} {}", part.name, part.what);
        }
        return Ok(());
    }
    if !options.as_built && cargo::again_in_release()? {
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
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let world = World::new(cargo::server_binary(options.server.as_deref())?, options.ci)?;
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
