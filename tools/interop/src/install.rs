//! From nothing to a command on another machine over ssh: with the command that the error message suggests, with the README's command, and
//! with the installer.
//!
//! Each starts with a new home on the far side. The commands are taken from the message and the document verbatim; only the host name is
//! replaced.

use crate::prelude::*;

/// Longer than a copy over loopback and a start may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The host name in the documents.
const HOST_IN_README: &str = "build-host";

/// A way to install the program on the host and run a command with it.
type InstallMethod = fn(&Environment, &RemoteHost<'_>) -> Result<()>;

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let methods: [(&str, InstallMethod); 3] = [
        ("the line that the error names installs the program", by_the_error),
        ("the README's line copies the program to a host", by_the_readme),
        ("`install.sh` installs on the host, and `--uninstall` takes it back", by_the_installer),
    ];
    let mut lines = Vec::new();
    for (number, (what, method)) in methods.iter().enumerate() {
        let host = RemoteHost::start(world, &format!("install-far-{number}"))?;
        method(world, &host).context(*what)?;
        host.stop().context(*what)?;
        lines.push((*what).to_owned());
    }
    Ok(lines)
}

fn by_the_error(_: &Environment, host: &RemoteHost<'_>) -> Result<()> {
    let output = environment::output_of(&mut hostname(host), PATIENCE)?;
    let output_text = String::from_utf8_lossy(&output.stderr);
    let (_, rest) =
        output_text.split_once("this installs it: ").with_context(|| format!("no line in: {output_text}"))?;
    let (line, _) = rest.split_once("; if it is elsewhere").with_context(|| format!("the line has no end: {rest}"))?;
    shell(host, line)?;
    works(host)
}

fn by_the_readme(world: &Environment, host: &RemoteHost<'_>) -> Result<()> {
    let readme = fs::read_to_string(cargo::root().join("README.md")).context("read `README.md`")?;
    let (copy, run) = lines_of(&readme).context("README.md has no block that copies the program and runs a command")?;
    // The README names the output of `cargo xtask dist`; a tree that was only built has another path.
    let dist = "target/dist/exec-server";
    let copy =
        if cargo::root().join(dist).exists() { copy } else { copy.replace(dist, &world.binary.display().to_string()) };
    shell(host, &copy)?;
    shell(host, &run)?;
    works(host)
}

fn by_the_installer(world: &Environment, host: &RemoteHost<'_>) -> Result<()> {
    let dist = cargo::target_dir().join("dist");
    if dist.join("install.sh").exists() {
        let folder = dist.to_str().context("the target folder is UTF-8")?;
        shell(host, &format!("tar -c -C '{folder}' . | ssh box 'mkdir dist && tar -x -C dist && sh dist/install.sh'"))?;
    } else {
        let (script, program) = (cargo::root().join("install.sh"), &world.binary);
        let copy = |from: &Path, to: &str| shell(host, &format!("ssh box 'cat >{to}' <'{}'", from.display()));
        shell(host, "ssh box mkdir dist")?;
        copy(&script, "dist/install.sh")?;
        copy(program, "dist/exec-server")?;
        shell(host, "ssh box 'cd dist && sha256sum exec-server >SHA256SUMS && sh install.sh exec-server'")?;
    }
    works(host)?;
    shell(host, "ssh box sh dist/install.sh --uninstall")?;
    let output = environment::output_of(&mut hostname(host), PATIENCE)?;
    // The server that was started still runs, but a new ssh finds no program to connect to it.
    ensure!(output.status.code() == Some(255), "still there after `--uninstall`: {}", environment::describe(&output));
    Ok(())
}

/// The command that copies the program over ssh, and the following one that runs something there.
fn lines_of(readme: &str) -> Option<(String, String)> {
    let mut lines = readme.lines().filter_map(|line| line.strip_prefix("$ "));
    let copy = lines.find(|line| line.contains(".local/bin/exec-server") && line.contains("ssh "))?;
    let run = lines.next().filter(|line| line.contains("ssh://"))?;
    Some((copy.replace(HOST_IN_README, "box"), run.replace(HOST_IN_README, "box")))
}

/// Runs a command verbatim, in the directory of the README.
fn shell(host: &RemoteHost<'_>, line: &str) -> Result<()> {
    let mut command = host.command("sh");
    command.args(["-c", line]).current_dir(cargo::root());
    let output = environment::output_of(&mut command, PATIENCE)?;
    ensure!(output.status.success(), "`{line}` {}", environment::describe(&output));
    Ok(())
}

fn hostname(host: &RemoteHost<'_>) -> Command {
    host.exec_server(&["run", "--connect", "ssh://box", "--", "hostname"])
}

/// Runs the command that a new user tries first.
fn works(host: &RemoteHost<'_>) -> Result<()> {
    let here = environment::success_of(&mut host.command("hostname"), PATIENCE)?;
    let there = environment::success_of(&mut hostname(host), PATIENCE)?;
    ensure!(here == there, "`hostname` said {there:?}, not {here:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_the_readme_are_found_and_the_host_is_replaced() {
        let readme =
            "$ ssh build-host true\n$ ssh build-host 'cat >.local/bin/exec-server' <x\n$ run ssh://build-host\n";
        let (copy, run) = lines_of(readme).unwrap();
        assert_eq!((&*copy, &*run), ("ssh box 'cat >.local/bin/exec-server' <x", "run ssh://box"));
        assert_eq!(lines_of("$ ssh build-host true\n"), None);
    }
}
