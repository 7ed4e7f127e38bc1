//! Extracts the Python script of README and guide and runs it against a real server.
//!
//! Uses a Python environment below the target directory. Needs Python 3 with `venv`, and the package index once.

use std::process::Output;

use crate::prelude::*;

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let python = python()?;
    let script = documented_script(&documents()?)?;
    // Sessions of foreign clients end with the server here.
    let setup = Setup::new(&world.binary)?.arg("--kill-on-exit");
    let server = setup.start()?;
    let file = setup.scratch().join("documented.py");
    fs::write(&file, &script)?;
    let url = &server.address.url;
    let mut passed = Vec::new();
    for (name, check) in CHECKS {
        check(&Script { python: &python, file: &file, url }).with_context(|| format!("`{name}`"))?;
        passed.push((*name).to_owned());
    }
    setup.finish(server)?;
    Ok(passed)
}

/// The documented script and what it needs to run.
struct Script<'a> {
    python: &'a Path,
    file: &'a Path,
    url: &'a str,
}

impl Script<'_> {
    fn run(&self, argv: &[&str]) -> Result<Output> {
        Command::new(self.python).arg(self.file).arg(self.url).args(argv).output().context("start Python")
    }
}

type Check = fn(&Script<'_>) -> Result<()>;

const CHECKS: &[(&str, Check)] = &[
    ("the guide's script is ten lines", |script| {
        let lines = fs::read_to_string(script.file)?.lines().count();
        ensure!(lines == 10, "it has {lines} lines");
        Ok(())
    }),
    ("the guide's script runs a command", |script| {
        let output = script.run(&["echo", "hello"])?;
        ensure!(output.status.success() && output.stdout == b"hello\n", "{output:?}");
        Ok(())
    }),
    ("the guide's script gets much output whole", |script| {
        let output = script.run(&["seq", "1", "400000"])?;
        let expected: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
        ensure!(output.stdout == expected.as_bytes(), "{} of {} bytes", output.stdout.len(), expected.len());
        Ok(())
    }),
    ("the guide's script ends with the program's code", |script| {
        let output = script.run(&["sh", "-c", "echo e >&2; exit 9"])?;
        ensure!(output.status.code() == Some(9) && output.stderr == b"e\n", "{output:?}");
        Ok(())
    }),
    ("the guide's script says what went wrong", |script| {
        let output = script.run(&["no-such-program"])?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && said.contains("no-such-program"), "{output:?}");
        Ok(())
    }),
];

/// README.md and all pages of the guide, in the order of their names.
fn documents() -> Result<Vec<String>> {
    let guide = cargo::root().join("docs/guide");
    let entries = fs::read_dir(&guide).context("list `docs/guide`")?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.push(cargo::root().join("README.md"));
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).with_context(|| format!("read `{}`", path.display()))).collect()
}

/// The only Python block of these documents.
fn documented_script(documents: &[String]) -> Result<String> {
    let mut blocks = documents.iter().flat_map(|text| text.split("```python\n").skip(1));
    let rest = blocks.next().context("README and guide have no Python block")?;
    ensure!(blocks.next().is_none(), "README and guide have two Python blocks");
    let (script, _) = rest.split_once("```").context("the Python block of README and guide does not end")?;
    Ok(script.to_owned())
}

/// A Python with the package `websockets`.
pub(super) fn python() -> Result<PathBuf> {
    Ok(packages::python("venv", &["websockets>=13"])?.join("python3"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_and_guide_have_one_python_script() {
        let script = documented_script(&documents().unwrap()).unwrap();
        assert_eq!(script.lines().count(), 10, "{script}");
        let block = "```python\nprint()\n```\n".to_owned();
        assert_eq!(documented_script(&[String::new(), block.clone()]).unwrap(), "print()\n");
        assert!(documented_script(&[block.clone(), block]).is_err());
        assert!(documented_script(&[]).is_err());
    }
}
