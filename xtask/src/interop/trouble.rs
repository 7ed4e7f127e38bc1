//! The errors of `ssh://` when it cannot connect: one clear message, exit code 255, within seconds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{
    far::Far,
    world::{self, World},
};

/// The first connection must be given up within this time.
const WITHIN: Duration = Duration::from_secs(15);

/// A URL that does not work, and the texts that the message must contain.
struct Trouble {
    what: &'static str,
    url: String,
    says: Vec<String>,
}

pub(super) fn run(world: &World) -> Result<Vec<String>> {
    let far = Far::start(world, "trouble-far")?;
    let mut lines = Vec::new();
    for trouble in troubles(&far) {
        let begun = Instant::now();
        meet(&far, &trouble).with_context(|| trouble.what.to_owned())?;
        lines.push(format!("{} is said within {:.1} s", trouble.what, begun.elapsed().as_secs_f64()));
    }
    far.stop()?;
    Ok(lines)
}

fn troubles(far: &Far<'_>) -> Vec<Trouble> {
    let trouble = |what, url: String, says: &[&str]| Trouble {
        what,
        url,
        says: says.iter().map(|part| (*part).to_owned()).collect(),
    };
    let nowhere = far.home().join("nowhere/exec-server");
    vec![
        trouble(
            "a host without the program",
            "ssh://box".to_owned(),
            &["no `exec-server` on box", "this installs it: ssh box '"],
        ),
        trouble(
            "a path without the program",
            format!("ssh://box{}", nowhere.display()),
            &["on box", "nowhere/exec-server"],
        ),
        trouble("a wrong key", "ssh://locked".to_owned(), &["ssh locked", "Permission denied"]),
        trouble("an unknown host key", "ssh://stranger".to_owned(), &["ssh stranger", "Host key verification failed"]),
        trouble(
            "a name that nobody has",
            "ssh://no-such-host.invalid".to_owned(),
            &["no-such-host.invalid", "resolve hostname"],
        ),
        trouble("a closed port", "ssh://closed".to_owned(), &["ssh://closed", "Connection refused"]),
        trouble(
            "a closed port in the URL",
            format!("ssh://127.0.0.1:{}", far.closed_port),
            &["127.0.0.1", "Connection refused"],
        ),
    ]
}

fn meet(far: &Far<'_>, trouble: &Trouble) -> Result<()> {
    let mut command = far.exec_server(&["run", "--connect", &trouble.url, "--", "true"]);
    let output = world::output_of(&mut command, WITHIN)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(255), "exit code: {}", world::describe(&output));
    ensure!(output.stdout.is_empty(), "standard output is the program's, and has {:?}", output.stdout);
    for part in &trouble.says {
        ensure!(said.contains(part.as_str()), "the message lacks `{part}`: {said}");
    }
    ensure!(said.starts_with("exec-server: "), "the message does not begin with who says it: {said}");
    ensure!(said.lines().count() <= 4, "the message has {} lines: {said}", said.lines().count());
    Ok(())
}
