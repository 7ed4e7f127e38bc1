//! The examples in other languages: each cuts its own connection twice, checks every line, and passes an exit code on.
//!
//! Uses a directory for Node's package below the target directory. Needs Python 3, Node 20 with npm, and their package indexes once.

use super::documented_script;
use crate::prelude::*;

/// For forty thousand lines through two cuts, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let examples = cargo::root().join("examples");
    let python = (documented_script::python()?, examples.join("python/client.py"));
    let node = (PathBuf::from("node"), node_client()?);
    // Sessions of foreign clients end with the server here.
    let setup = Setup::new(&world.binary)?.arg("--kill-on-exit");
    let server = setup.start()?;
    let mut passed = Vec::new();
    for (language, (program, client)) in [("python", python), ("node", node)] {
        let url = &server.address.url;
        let output = environment::output_of(Command::new(&program).arg(&client).arg(url), PATIENCE)?;
        let output_text = String::from_utf8_lossy(&output.stdout);
        let expected =
            format!("{language}: 40000 lines through 2 cuts, 1 write answered twice and done once, exit code 7");
        ensure!(
            output.status.success() && output_text.lines().last() == Some(&expected),
            "{}",
            environment::describe(&output)
        );
        let output =
            environment::output_of(Command::new(&program).arg(&client).args([url, "sh", "-c", "exit 5"]), PATIENCE)?;
        ensure!(output.status.code() == Some(5), "{}", environment::describe(&output));
        passed.push(format!("examples/{language}: cuts, a repeated write, exit codes"));
    }
    setup.finish(server)?;
    Ok(passed)
}

/// The Node example beside its package, which is installed once and never into the source tree.
pub(super) fn node_client() -> Result<PathBuf> {
    let source = cargo::root().join("examples/node");
    let folder = cargo::target_dir().join("interop/node");
    fs::create_dir_all(&folder)?;
    for file in ["client.mjs", "package.json", ".npmrc"] {
        fs::copy(source.join(file), folder.join(file)).with_context(|| format!("copy `examples/node/{file}`"))?;
    }
    if !folder.join("node_modules/ws").is_dir() {
        cargo::check(
            Command::new("npm").args(["install", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&folder),
        )
        .context("install the Node package `ws`; Debian and Ubuntu have `nodejs` and `npm`")?;
    }
    Ok(folder.join("client.mjs"))
}
