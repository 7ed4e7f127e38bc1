//! `cargo xtask dist`: builds and checks the files that a user gets.
//!
//! Defines the layout of the package and how the static program is built. The output directory is assembled elsewhere and moved into place
//! as a whole:
//!
//! ```text
//! dist/exec-server                            the program alone, to copy to a host
//! dist/exec-server-VERSION-TRIPLE.tar.gz      program, pages, completions, licences, and its own installer
//! dist/install.sh, dist/SHA256SUMS
//! ```
//!
//! The program is linked with musl if the toolchain and the C compiler support it, else with a static glibc. A static glibc contains
//! `files` and `dns` of the name service switch, so `/etc/hosts` and `/etc/resolv.conf` work on a host without any library. Other services
//! in a host's `nsswitch.conf` are loaded from that host, and skipped if they are missing or belong to another glibc. So a name that only
//! `resolve` or `mdns` knows may be found by `ping` but not by this program.

mod third_party;

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use exec_server_workspace::{
    cargo::{self, Profile},
    packages, processes,
};

/// The version of this crate and, through the workspace, of the program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commands with their own manual page; the program generates the text.
const PAGES: &[&str] = &["run", "ps", "logs", "attach", "kill", "wait", "forget", "serve", "dial-stdio"];

/// Where each shell looks for its completions below a prefix.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/exec-server"),
    ("zsh", "share/zsh/site-functions/_exec-server"),
    ("fish", "share/fish/vendor_completions.d/exec-server.fish"),
];

const DOCUMENTS: &[&str] = &["README.md", "CHANGELOG.md", "PROTOCOL.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Options of `cargo xtask dist`.
#[derive(clap::Args, Default)]
pub(super) struct DistOptions {
    /// Build for this target [default: the host's, with musl where it is installed]
    #[arg(long, value_name = "TRIPLE")]
    pub(super) target: Option<String>,
    /// Where to put the files [default: `dist` in cargo's target folder]
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Pack the debug build that the tests have made. Such a package is not for users.
    #[arg(long, hide = true)]
    pub(super) as_built: bool,
}

pub(super) fn run(options: &DistOptions) -> Result<()> {
    let profile = if options.as_built { Profile::Dev } else { Profile::Production };
    let host = rustc(&["-vV"])?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("`rustc -vV` names no host")?;
    let target = options.target.clone().map_or_else(|| default_target(host), Ok)?;
    let out = std::path::absolute(options.out.clone().unwrap_or_else(|| cargo::target_dir().join("dist")))?;
    ensure_ours(&out)?;
    let program = build(&target, host, profile)?;
    ensure_static(&fs::read(&program)?).with_context(|| format!("check `{}`", program.display()))?;

    // A program of the same architecture runs here. For other targets, a build for this host generates the pages.
    let runs_here = architecture(&target) == architecture(host);
    let speaker = if runs_here { program.clone() } else { build(host, host, profile)? };
    let parent = out.parent().context("the root is no place for `dist`")?;
    fs::create_dir_all(parent)?;
    let making = tempfile::Builder::new().prefix(".dist-").tempdir_in(parent)?;
    fs::set_permissions(making.path(), fs::Permissions::from_mode(0o755))?;
    let name = format!("exec-server-{VERSION}-{target}");
    let aside = tempfile::tempdir()?;
    let tree = aside.path().join(&name);
    fill(&tree, &program, &speaker, &target)?;
    pack(&tree, &making.path().join(format!("{name}.tar.gz")), commit_date()?)?;
    copy(&program, &making.path().join("exec-server"), 0o755)?;
    copy(&cargo::root().join("install.sh"), &making.path().join("install.sh"), 0o755)?;
    write_sums(making.path())?;
    if runs_here {
        check_program(&making.path().join("exec-server"))?;
        check_install(making.path(), &tree)?;
    } else {
        eprintln!("dist: not run, because this machine is no {}", architecture(&target));
    }
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("remove the old `{}`", out.display()))?;
    }
    fs::rename(making.keep(), &out).with_context(|| format!("move the files to `{}`", out.display()))?;
    print_sizes(&out)
}

/// The output of `rustc` of this toolchain.
fn rustc(args: &[&str]) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = stdout_of(Command::new(rustc).current_dir(cargo::root()).args(args))?;
    Ok(String::from_utf8(output)?)
}

/// Musl needs its standard library in the toolchain, and a C compiler for the TLS cryptography.
fn default_target(host: &str) -> Result<String> {
    let architecture = architecture(host);
    let musl = format!("{architecture}-unknown-linux-musl");
    let library = Path::new(rustc(&["--print", "sysroot"])?.trim_end()).join("lib/rustlib").join(&musl).join("lib");
    let compilers = [format!("{architecture}-linux-musl-gcc"), "musl-gcc".to_owned()];
    let has_compiler = compilers.iter().any(|name| packages::find(name).is_some());
    Ok(if library.is_dir() && has_compiler { musl } else { host.to_owned() })
}

fn architecture(triple: &str) -> &str {
    triple.split('-').next().unwrap_or(triple)
}

/// Builds the static program. Only its own crate gets the flag, and the libraries are chosen at link time: all dependencies are those of
/// the usual build, so only this crate is compiled again. Cargo keeps both programs apart. Symbols are stripped: they are a fifth of the
/// program, and a crash report contains the version.
fn build(target: &str, host: &str, profile: Profile) -> Result<PathBuf> {
    eprintln!("dist: building for {target}");
    let begun = Instant::now();
    let mut command = cargo::cargo(&["rustc", "--locked", "-p", "exec-server", "--bin", "exec-server"]);
    command.args(profile.arguments());
    let mut program = profile.directory().join("exec-server");
    if target != host {
        command.args(["--target", target]);
        let path = program.strip_prefix(cargo::target_dir())?.to_owned();
        program = cargo::target_dir().join(target).join(path);
    }
    cargo::check(
        command.args(["--", "-C", "target-feature=+crt-static", "-C", "strip=symbols"]).stdout(Stdio::null()),
    )?;
    eprintln!("dist: built in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(program)
}

/// Refuses a program that needs a loader or a library on the target host.
fn ensure_static(elf: &[u8]) -> Result<()> {
    const DYNAMIC: u64 = 2;
    const INTERPRETER: u64 = 3;
    const NEEDED: u64 = 1;
    let number = |offset: u64, bytes: usize| -> Result<u64> {
        let from = usize::try_from(offset)?;
        let part = elf.get(from..from + bytes).context("it ends too early")?;
        Ok(part.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    ensure!(elf.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF file");
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for entry in (0..count).map(|index| table + index * size) {
        match number(entry, 4)? {
            INTERPRETER => bail!("it is linked dynamically: it names an interpreter"),
            DYNAMIC => {
                let (begin, bytes) = (number(entry + 8, 8)?, number(entry + 32, 8)?);
                for tag in (begin..begin + bytes).step_by(16) {
                    ensure!(number(tag, 8)? != NEEDED, "it is linked dynamically: it needs a library");
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Creates the contents of the package, as they are below a prefix.
fn fill(tree: &Path, program: &Path, speaker: &Path, target: &str) -> Result<()> {
    copy(program, &tree.join("bin/exec-server"), 0o755)?;
    copy(&cargo::root().join("install.sh"), &tree.join("install.sh"), 0o755)?;
    for (shell, place) in COMPLETIONS {
        write(&tree.join(place), &said(speaker, &["completions", shell])?)?;
    }
    let pages = tree.join("share/man/man1");
    write(&pages.join("exec-server.1"), &said(speaker, &["man"])?)?;
    for page in PAGES {
        write(&pages.join(format!("exec-server-{page}.1")), &said(speaker, &["man", page])?)?;
    }
    let documents = tree.join("share/doc/exec-server");
    for name in DOCUMENTS {
        copy(&cargo::root().join(name), &documents.join(name), 0o644)?;
    }
    write(&documents.join("THIRD-PARTY.md"), third_party::notices(target)?.as_bytes())?;
    write_sums(tree)
}

/// The program's output for these arguments, which must not be empty.
fn said(program: &Path, args: &[&str]) -> Result<Vec<u8>> {
    let said = stdout_of(Command::new(program).args(args))?;
    ensure!(!said.is_empty(), "`{}` printed nothing for {args:?}", program.display());
    Ok(said)
}

fn stdout_of(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start `{command:?}`"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{command:?}` ended with {}: {}", output.status, error.trim_end());
    Ok(output.stdout)
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder)?;
    fs::write(path, content).with_context(|| format!("write `{}`", path.display()))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    write(to, &fs::read(from).with_context(|| format!("read `{}`", from.display()))?)?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// Files below a directory as relative paths, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut open) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(below) = open.pop() {
        for entry in fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let to = if entry.file_type()?.is_dir() { &mut open } else { &mut found };
            to.push(below.join(entry.file_name()));
        }
    }
    found.sort();
    Ok(found)
}

/// Writes `SHA256SUMS` for all other files of a directory, in the format of `sha256sum`.
fn write_sums(folder: &Path) -> Result<()> {
    let names = files(folder)?;
    let sums = stdout_of(Command::new("sha256sum").current_dir(folder).arg("--").args(names))?;
    write(&folder.join("SHA256SUMS"), &sums)
}

/// Packs a tree reproducibly: the same tree always gives the same bytes.
fn pack(tree: &Path, to: &Path, date: u64) -> Result<()> {
    let (parent, name) = (tree.parent().context("a folder")?, tree.file_name().context("a name")?);
    let mut tar = Command::new("tar");
    tar.current_dir(parent).env("LC_ALL", "C").arg(format!("--mtime=@{date}"));
    // Set modes as with umask 022, so that the packer's umask has no effect.
    tar.args(["--sort=name", "--format=ustar", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg("--mode=u+rw,go+r,go-w,a+X");
    let tar = stdout_of(tar.args(["-cf", "-"]).arg(name))?;
    // Without `-n` the header would contain the time.
    let mut gzip = Command::new("gzip");
    gzip.args(["-9", "-n"]).stdin(Stdio::piped()).stdout(fs::File::create(to)?);
    let mut gzip = gzip.spawn().context("start `gzip`")?;
    gzip.stdin.take().context("standard input is a pipe")?.write_all(&tar)?;
    let status = gzip.wait()?;
    ensure!(status.success(), "`gzip` failed: {status}");
    Ok(())
}

/// The time of the commit, in seconds since 1970; `SOURCE_DATE_EPOCH` if the source is not a clone.
fn commit_date() -> Result<u64> {
    let date = if let Ok(date) = std::env::var("SOURCE_DATE_EPOCH") {
        date
    } else {
        let date = stdout_of(&mut cargo::command("git", &["log", "-1", "--format=%ct"]));
        String::from_utf8(date.context("find the date of the commit; else set `SOURCE_DATE_EPOCH`")?)?
    };
    date.trim_end().parse().with_context(|| format!("not a date in seconds: `{}`", date.trim_end()))
}

/// Checks that the program serves and connects by a host name, which a static C library could break.
fn check_program(program: &Path) -> Result<()> {
    let state = tempfile::Builder::new().prefix("exec-server-dist-").tempdir()?;
    let mut server = Command::new(program);
    server
        .args(["serve", "--listen", "ws://127.0.0.1:0", "--kill-on-exit", "--state-dir"])
        .arg(state.path().join("state"));
    let mut server = server.stdout(Stdio::piped()).spawn().context("start the server")?;
    let said = run_through(program, &mut server);
    // Already ended if it failed.
    processes::kill(server.id(), Signal::TERM);
    let status = server.wait()?;
    ensure!(said? == b"hello\n", "the command did not print `hello`");
    ensure!(status.success(), "the server ended with {status} on SIGTERM");
    let deadline = Instant::now() + Duration::from_secs(5);
    while !processes::with_path(state.path()).is_empty() {
        ensure!(Instant::now() < deadline, "processes of the server are left");
        thread::sleep(Duration::from_millis(5));
    }
    eprintln!("dist: the program is static, runs and finds `localhost`");
    Ok(())
}

/// Runs a command through a server by the host name `localhost`; returns its output.
fn run_through(program: &Path, server: &mut Child) -> Result<Vec<u8>> {
    let url = processes::first_line(server)?.replacen("127.0.0.1", "localhost", 1);
    let mut client = Command::new(program);
    client.args(["run", "-n", "--", "echo", "hello"]).env("EXEC_SERVER_URL", url);
    stdout_of(&mut client).context("run a command through `localhost`")
}

/// Checks that the installer installs all files of the package from this directory and removes all of them again.
fn check_install(folder: &Path, tree: &Path) -> Result<()> {
    let home = tempfile::Builder::new().prefix("exec-server-dist-").tempdir()?;
    let installer = |args: &[&str]| {
        let mut command = Command::new("sh");
        command.arg(folder.join("install.sh")).args(args).env_remove("PREFIX").env("HOME", home.path());
        stdout_of(&mut command)
    };
    installer(&[]).context("install")?;
    let prefix = home.path().join(".local");
    let mut packed = files(tree)?;
    packed.retain(|path| path.starts_with("bin") || path.starts_with("share"));
    let installed = files(&prefix)?;
    ensure!(installed == packed, "`install.sh` must know each file: packed {packed:?}, installed {installed:?}");
    let said = said(&prefix.join("bin/exec-server"), &["--version"])?;
    ensure!(said == format!("exec-server {VERSION}\n").as_bytes(), "the installed program is another: {said:?}");
    installer(&["--uninstall"]).context("uninstall")?;
    let left = files(home.path())?;
    ensure!(left.is_empty(), "left after an uninstall: {left:?}");
    eprintln!("dist: installs and uninstalls");
    Ok(())
}

/// Checks that a directory that will be replaced contains only files of an earlier run.
fn ensure_ours(out: &Path) -> Result<()> {
    if !out.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(out).with_context(|| format!("list `{}`", out.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let package = name.starts_with("exec-server-") && name.ends_with(".tar.gz");
        let known = package || ["exec-server", "install.sh", "SHA256SUMS"].contains(&&*name);
        ensure!(known, "`{}` holds `{name}`, which is not of `dist`: choose another folder", out.display());
    }
    Ok(())
}

fn print_sizes(out: &Path) -> Result<()> {
    let mut total = 0;
    for name in files(out)? {
        let size = fs::metadata(out.join(&name))?.len();
        println!("{size:>10}  {}", out.join(&name).display());
        total += size;
    }
    println!("{total:>10}  in all");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_the_same_whenever_it_is_packed() {
        let folder = tempfile::tempdir().unwrap();
        let packed = |place: &str, mode: u32, names: [&str; 2]| {
            let tree = folder.path().join(place).join("tree");
            for name in names {
                write(&tree.join(name), name.as_bytes()).unwrap();
                fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
                fs::File::open(tree.join(name)).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            }
            pack(&tree, &folder.path().join("packed"), 1_700_000_000).unwrap();
            fs::read(folder.path().join("packed")).unwrap()
        };
        let (first, second) = (packed("a", 0o600, ["bin/x", "share/y"]), packed("b", 0o664, ["share/y", "bin/x"]));
        assert!(!first.is_empty());
        assert_eq!(first, second);
    }

    #[test]
    fn a_program_that_needs_a_library_is_refused() {
        // The tests themselves are linked dynamically.
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = ensure_static(&own).unwrap_err().to_string();
        assert!(error.starts_with("it is linked dynamically"), "{error}");
        assert!(ensure_static(&own[..64]).is_err());
        assert!(ensure_static(b"#!/bin/sh\n").is_err());
    }

    #[test]
    fn a_folder_with_files_of_others_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        ensure_ours(&folder.path().join("new")).unwrap();
        fs::write(folder.path().join("SHA256SUMS"), "").unwrap();
        fs::write(folder.path().join("exec-server-0.1.0-x.tar.gz"), "").unwrap();
        ensure_ours(folder.path()).unwrap();
        fs::write(folder.path().join("thesis.txt"), "").unwrap();
        assert!(ensure_ours(folder.path()).is_err());
    }
}
