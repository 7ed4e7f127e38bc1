//! Extracts the README's script and runs it against a real server.
//!
//! Uses a Python environment below the target directory. Needs Python 3 with `venv`, and the package index once.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{packages, world::World};
use crate::{cargo, server::Setup};

pub(super) fn run(world: &World) -> Result<Vec<String>> {
    let python = python()?;
    let script = readme_script()?;
    // Sessions of foreign clients end with the server here.
    let setup = Setup::new(&world.binary)?.arg("--kill-on-exit");
    let server = setup.start()?;
    let file = setup.scratch().join("readme.py");
    fs::write(&file, &script)?;
    let url = &server.address.url;
    let mut passed = Vec::new();
    for (name, check) in CHECKS {
        check(&Readme { python: &python, file: &file, url }).with_context(|| format!("`{name}`"))?;
        passed.push((*name).to_owned());
    }
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    Ok(passed)
}

/// The README's script and what it needs to run.
struct Readme<'a> {
    python: &'a Path,
    file: &'a Path,
    url: &'a str,
}

impl Readme<'_> {
    fn run(&self, argv: &[&str]) -> Result<Output> {
        Command::new(self.python).arg(self.file).arg(self.url).args(argv).output().context("start Python")
    }
}

type Check = fn(&Readme<'_>) -> Result<()>;

const CHECKS: &[(&str, Check)] = &[
    ("the README's script is ten lines", |readme| {
        let lines = fs::read_to_string(readme.file)?.lines().count();
        ensure!(lines == 10, "it has {lines} lines");
        Ok(())
    }),
    ("the README's script runs a command", |readme| {
        let output = readme.run(&["echo", "hello"])?;
        ensure!(output.status.success() && output.stdout == b"hello\n", "{output:?}");
        Ok(())
    }),
    ("the README's script gets much output whole", |readme| {
        let output = readme.run(&["seq", "1", "400000"])?;
        let expected: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
        ensure!(output.stdout == expected.as_bytes(), "{} of {} bytes", output.stdout.len(), expected.len());
        Ok(())
    }),
    ("the README's script ends with the program's code", |readme| {
        let output = readme.run(&["sh", "-c", "echo e >&2; exit 9"])?;
        ensure!(output.status.code() == Some(9) && output.stderr == b"e\n", "{output:?}");
        Ok(())
    }),
    ("the README's script says what went wrong", |readme| {
        let output = readme.run(&["no-such-program"])?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && said.contains("no-such-program"), "{output:?}");
        Ok(())
    }),
];

/// The only Python block of the README.
fn readme_script() -> Result<String> {
    let readme = fs::read_to_string(cargo::root().join("README.md")).context("read `README.md`")?;
    let (_, rest) = readme.split_once("```python\n").context("README.md has no Python block")?;
    let (script, _) = rest.split_once("```").context("the Python block of README.md does not end")?;
    Ok(script.to_owned())
}

/// A Python with the package `websockets`.
pub(super) fn python() -> Result<PathBuf> {
    Ok(packages::python("venv", &["websockets>=13"])?.join("python3"))
}
