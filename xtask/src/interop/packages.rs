//! Programs of others that parts need: found where they are, else installed by apt, else named with the reason.
//!
//! Must not ask anything, and must not start a service: a package whose service would start on this machine is left to the user.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

/// A program and the package of Debian and Ubuntu that has it.
pub(super) struct Need {
    program: &'static str,
    package: &'static str,
}

pub(super) const SSH: &[Need] = &[
    Need { program: "sshd", package: "openssh-server" },
    Need { program: "ssh", package: "openssh-client" },
    Need { program: "ssh-keygen", package: "openssh-client" },
    Need { program: "scp", package: "openssh-client" },
];

pub(super) const TERMINAL: &[Need] = &[
    Need { program: "tmux", package: "tmux" },
    Need { program: "vim", package: "vim" },
    Need { program: "top", package: "procps" },
];

pub(super) const DEPLOY: &[Need] =
    &[Need { program: "systemd-analyze", package: "systemd" }, Need { program: "unshare", package: "util-linux" }];

pub(super) const MCP: &[Need] = &[
    Need { program: "git", package: "git" },
    Need { program: "node", package: "nodejs" },
    Need { program: "npm", package: "npm" },
];

/// Beside `PATH`, because servers often are not in a user's.
const MORE_PLACES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Where a program is.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain(MORE_PLACES.map(PathBuf::from));
    places.map(|place| place.join(program)).find(|path| path.is_file())
}

/// Makes sure that all are here.
pub(super) fn ensure(needs: &[Need]) -> Result<()> {
    let mut packages: Vec<_> =
        needs.iter().filter(|need| find(need.program).is_none()).map(|need| need.package).collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    install(&packages).with_context(|| format!("programs are missing: `apt-get install {}`", packages.join(" ")))?;
    for need in needs {
        ensure!(find(need.program).is_some(), "`{}` is not in the package `{}`", need.program, need.package);
    }
    Ok(())
}

fn install(packages: &[&str]) -> Result<()> {
    ensure!(find("apt-get").is_some(), "this machine has no `apt-get`");
    ensure!(rustix::process::geteuid().is_root(), "only root can install packages");
    let starts_services = Path::new("/run/systemd/system").exists() && !forbids_services();
    if packages.contains(&"openssh-server") && starts_services {
        bail!("`openssh-server` would start a server for everybody on this machine; install it yourself");
    }
    println!("interop: installing {}", packages.join(", "));
    // The lists may be absent or too old; then they are fetched, once.
    if apt(&["install", "-y", "--no-install-recommends"], packages).is_err() {
        apt(&["update"], &[])?;
        apt(&["install", "-y", "--no-install-recommends"], packages)?;
    }
    Ok(())
}

/// What containers say to every service: not now.
fn forbids_services() -> bool {
    fs::metadata("/usr/sbin/policy-rc.d").is_ok()
}

fn apt(args: &[&str], packages: &[&str]) -> Result<()> {
    let output = Command::new("timeout")
        .args(["300", "apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=3"])
        .args(args)
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("start `apt-get`")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = said.lines().rev().take(5).collect();
    ensure!(output.status.success(), "`apt-get {}` {}: {}", args[0], output.status, last.join(" | "));
    Ok(())
}
