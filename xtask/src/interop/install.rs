//! From nothing to a command on another machine over ssh: by the line that the error names, by the README's line, by the installer.
//!
//! Each begins with a fresh home on the far side. The lines are taken out of the message and out of the document as they stand;
//! only the name of the host is put in.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};

use super::{
    far::Far,
    world::{self, World},
};
use crate::cargo;

/// Longer than a copy over loopback and a start may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name of the host in the documents.
const HOST_IN_README: &str = "host";

/// A way to get the program there and a command through it.
type Way = fn(&World, &Far<'_>) -> Result<()>;

pub(super) fn run(world: &World) -> Result<Vec<String>> {
    let ways: [(&str, Way); 3] = [
        ("the line that the error names installs the program", by_the_error),
        ("the README's line copies the program to a host", by_the_readme),
        ("`install.sh` installs on the host, and `--uninstall` takes it back", by_the_installer),
    ];
    let mut lines = Vec::new();
    for (number, (what, way)) in ways.iter().enumerate() {
        let far = Far::start(world, &format!("install-far-{number}"))?;
        way(world, &far).context(*what)?;
        far.stop().context(*what)?;
        lines.push((*what).to_owned());
    }
    Ok(lines)
}

fn by_the_error(_: &World, far: &Far<'_>) -> Result<()> {
    let output = world::output_of(&mut hostname(far), PATIENCE)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let (_, rest) = said.split_once("this installs it: ").with_context(|| format!("no line in: {said}"))?;
    let (line, _) = rest.split_once("; if it is elsewhere").with_context(|| format!("the line has no end: {rest}"))?;
    shell(far, line)?;
    works(far)
}

fn by_the_readme(world: &World, far: &Far<'_>) -> Result<()> {
    let readme = fs::read_to_string(cargo::root().join("README.md")).context("read `README.md`")?;
    let line = copy_line(&readme).context("README.md has no line `$ … ssh … .local/bin/exec-server …`")?;
    // The document names what `cargo xtask dist` makes; a tree that was only built has another.
    let dist = "target/dist/exec-server";
    let line =
        if cargo::root().join(dist).exists() { line } else { line.replace(dist, &world.binary.display().to_string()) };
    let mut command = far.command("sh");
    command.args(["-c", &line]).current_dir(cargo::root());
    let output = world::output_of(&mut command, PATIENCE)?;
    ensure!(output.status.success(), "`{line}` {}", world::describe(&output));
    works(far)
}

fn by_the_installer(world: &World, far: &Far<'_>) -> Result<()> {
    let dist = cargo::target_dir().join("dist");
    if dist.join("install.sh").exists() {
        let folder = dist.to_str().context("the target folder is UTF-8")?;
        shell(far, &format!("tar -c -C '{folder}' . | ssh box 'mkdir dist && tar -x -C dist && sh dist/install.sh'"))?;
    } else {
        let (script, program) = (cargo::root().join("install.sh"), &world.binary);
        let copy = |from: &Path, to: &str| shell(far, &format!("ssh box 'cat >{to}' <'{}'", from.display()));
        shell(far, "ssh box mkdir dist")?;
        copy(&script, "dist/install.sh")?;
        copy(program, "dist/exec-server")?;
        shell(far, "ssh box 'cd dist && sha256sum exec-server >SHA256SUMS && sh install.sh exec-server'")?;
    }
    works(far)?;
    shell(far, "ssh box sh dist/install.sh --uninstall")?;
    let output = world::output_of(&mut hostname(far), PATIENCE)?;
    // The server that was started still runs; a new ssh finds no program to reach it with.
    ensure!(output.status.code() == Some(255), "still there after `--uninstall`: {}", world::describe(&output));
    Ok(())
}

/// The first line of a console block that copies the program over ssh.
fn copy_line(readme: &str) -> Option<String> {
    let lines = readme.lines().filter_map(|line| line.strip_prefix("$ "));
    let mut copies = lines.filter(|line| line.contains(".local/bin/exec-server") && line.contains("ssh "));
    Some(with_host(copies.next()?, "box"))
}

/// The line with another host: the word alone, not where it is part of another.
fn with_host(line: &str, name: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(HOST_IN_README) {
        let (before, after) = (&rest[..at], &rest[at + HOST_IN_README.len()..]);
        text.push_str(before);
        let alone = !text.ends_with(is_word) && !after.starts_with(is_word);
        text.push_str(if alone { name } else { HOST_IN_README });
        rest = after;
    }
    text + rest
}

fn shell(far: &Far<'_>, line: &str) -> Result<()> {
    let output = world::output_of(far.command("sh").args(["-c", line]), PATIENCE)?;
    ensure!(output.status.success(), "`{line}` {}", world::describe(&output));
    Ok(())
}

fn hostname(far: &Far<'_>) -> Command {
    far.exec_server(&["run", "--connect", "ssh://box", "--", "hostname"])
}

/// What a new user tries first.
fn works(far: &Far<'_>) -> Result<()> {
    let here = world::success_of(&mut far.command("hostname"), PATIENCE)?;
    let there = world::success_of(&mut hostname(far), PATIENCE)?;
    ensure!(here == there, "`hostname` said {there:?}, not {here:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_put_in_where_it_stands_alone() {
        let readme = "text\n$ ssh host true\n$ ssh host 'cat >.local/bin/exec-server' <localhost; echo hosts host\n";
        let line = copy_line(readme).unwrap();
        assert_eq!(line, "ssh box 'cat >.local/bin/exec-server' <localhost; echo hosts box");
        assert_eq!(copy_line("$ ssh host true\n"), None);
    }
}
