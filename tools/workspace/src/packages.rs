//! Third-party programs that parts need: found on this machine, else installed by apt, else reported with the reason; and packages of
//! Python and Node, each set installed once in its own directory below the target directory.
//!
//! Asks no questions and starts no service: a package whose service would start on this machine is left to the user to install.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo;

/// A program and its package on Debian and Ubuntu.
pub type RequiredPackage = (&'static str, &'static str);

pub const SSH: &[RequiredPackage] = &[
    ("sshd", "openssh-server"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("scp", "openssh-client"),
];
pub const RSYNC: &[RequiredPackage] = &[("rsync", "rsync")];
pub const TERMINAL: &[RequiredPackage] = &[("tmux", "tmux"), ("vim", "vim"), ("top", "procps")];
pub const DEPLOY: &[RequiredPackage] = &[("systemd-analyze", "systemd"), ("unshare", "util-linux")];
pub const MCP: &[RequiredPackage] = &[("git", "git"), ("node", "nodejs"), ("npm", "npm")];

/// Needed by `cargo xtask faults`, and `ip` by `bench`.
pub const IP: &[RequiredPackage] = &[("ip", "iproute2")];
pub const STRACE: &[RequiredPackage] = &[("strace", "strace")];

/// Searched in addition to `PATH`, because servers are often not in a user's `PATH`.
const MORE_PLACES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The path of a program.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain(MORE_PLACES.map(PathBuf::from));
    places.map(|place| place.join(program)).find(|path| path.is_file())
}

/// Ensures that all programs are installed.
pub fn ensure(needs: &[RequiredPackage]) -> Result<()> {
    let is_missing = |(program, _): &&RequiredPackage| find(program).is_none();
    let mut packages: Vec<_> = needs.iter().filter(is_missing).map(|(_, package)| *package).collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    install(&packages).with_context(|| format!("programs are missing: `apt-get install {}`", packages.join(" ")))?;
    for (program, package) in needs {
        ensure!(find(program).is_some(), "`{program}` is not in the package `{package}`");
    }
    Ok(())
}

fn install(packages: &[&str]) -> Result<()> {
    ensure!(find("apt-get").is_some(), "this machine has no `apt-get`");
    ensure!(rustix::process::geteuid().is_root(), "only root can install packages");
    // Containers have this file, which forbids services to start.
    let forbids_services = Path::new("/usr/sbin/policy-rc.d").exists();
    if packages.contains(&"openssh-server") && Path::new("/run/systemd/system").exists() && !forbids_services {
        bail!("`openssh-server` would start a server for everybody on this machine; install it yourself");
    }
    println!("installing {}", packages.join(", "));
    // The package lists may be missing or outdated; then update them once.
    if apt(&["install", "-y", "--no-install-recommends"], packages).is_err() {
        apt(&["update"], &[])?;
        apt(&["install", "-y", "--no-install-recommends"], packages)?;
    }
    Ok(())
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
    let output_text = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = output_text.lines().rev().take(5).collect();
    ensure!(output.status.success(), "`apt-get {}` {}: {}", args[0], output.status, last.join(" | "));
    Ok(())
}

/// The directory with the programs of these Python packages, and a Python that has them.
pub fn python(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = interop(name);
    let bin = folder.join("bin");
    installed_once(&folder, packages, || {
        cargo::check(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))
            .context("make a Python environment; Debian and Ubuntu need the package `python3-venv`")?;
        let mut install = Command::new(bin.join("python3"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
        cargo::check(&mut install).with_context(|| format!("install the Python packages {packages:?}"))
    })?;
    Ok(bin)
}

/// The directory with the programs of the MCP servers in Python, and a Python that has the SDK.
pub fn mcp_python() -> Result<PathBuf> {
    python("mcp-venv", &["mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19"])
}

/// The directory with the programs of these Node packages.
pub fn node(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = interop(name);
    installed_once(&folder, packages, || {
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("package.json"), "{\"private\": true}\n")?;
        let mut install = Command::new("npm");
        install.args(["install", "--no-audit", "--no-fund", "--loglevel=error"]).args(packages).current_dir(&folder);
        let advice = || format!("install the Node packages {packages:?}; Debian and Ubuntu have `nodejs` and `npm`");
        cargo::check(&mut install).with_context(advice)
    })?;
    Ok(folder.join("node_modules/.bin"))
}

/// The directory of a set of packages.
pub fn interop(name: &str) -> PathBuf {
    cargo::target_dir().join("interop").join(name)
}

/// Installs the packages unless a mark file says that they are installed. The mark is written last, so that an interrupted installation is
/// repeated.
fn installed_once(folder: &Path, packages: &[&str], install: impl FnOnce() -> Result<()>) -> Result<()> {
    let mark = folder.join("installed");
    if fs::read_to_string(&mark).is_ok_and(|installed| installed == packages.join("\n")) {
        return Ok(());
    }
    fs::create_dir_all(cargo::target_dir().join("interop"))?;
    install()?;
    fs::write(&mark, packages.join("\n"))?;
    Ok(())
}
