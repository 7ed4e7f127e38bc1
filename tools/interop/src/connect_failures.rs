//! The errors of `ssh://` when it cannot connect: one clear message, exit code 255, within seconds.

use std::time::Instant;

use crate::prelude::*;

/// The first connection must be given up within this time.
const WITHIN: Duration = Duration::from_secs(15);

/// A URL that does not work, and the texts that the message must contain.
struct ConnectFailure {
    what: &'static str,
    url: String,
    says: &'static [&'static str],
}

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let host = RemoteHost::start(world, "trouble-far")?;
    let mut lines = Vec::new();
    for failure in connect_failures(&host) {
        let begun = Instant::now();
        check(&host, &failure).with_context(|| failure.what.to_owned())?;
        lines.push(format!("{} is said within {:.1} s", failure.what, begun.elapsed().as_secs_f64()));
    }
    host.stop()?;
    Ok(lines)
}

fn connect_failures(host: &RemoteHost<'_>) -> Vec<ConnectFailure> {
    let failure = |what, url: &str, says| ConnectFailure { what, url: url.to_owned(), says };
    let nowhere = format!("ssh://box{}", host.home().join("nowhere/exec-server").display());
    let closed = format!("ssh://127.0.0.1:{}", host.closed_port);
    let unresolved = "no-such-host.invalid";
    vec![
        failure("a host without the program", "ssh://box", &["no `exec-server` on box", "this installs it: ssh box '"]),
        failure("a path without the program", &nowhere, &["on box", "nowhere/exec-server"]),
        failure("a wrong key", "ssh://locked", &["ssh locked", "Permission denied"]),
        failure("an unknown host key", "ssh://stranger", &["ssh stranger", "Host key verification failed"]),
        failure(
            "a name that nobody has",
            &format!("ssh://{unresolved}"),
            &["no-such-host.invalid", "resolve hostname"],
        ),
        failure("a closed port", "ssh://closed", &["ssh://closed", "Connection refused"]),
        failure("a closed port in the URL", &closed, &["127.0.0.1", "Connection refused"]),
    ]
}

fn check(host: &RemoteHost<'_>, failure: &ConnectFailure) -> Result<()> {
    let mut command = host.exec_server(&["run", "--connect", &failure.url, "--", "true"]);
    let output = environment::output_of(&mut command, WITHIN)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(255), "exit code: {}", environment::describe(&output));
    ensure!(output.stdout.is_empty(), "standard output is the program's, and has {:?}", output.stdout);
    for part in failure.says {
        ensure!(stderr.contains(part), "the message lacks `{part}`: {stderr}");
    }
    ensure!(stderr.starts_with("exec-server: "), "the message does not begin with who says it: {stderr}");
    ensure!(stderr.lines().count() <= 4, "the message has {} lines: {stderr}", stderr.lines().count());
    Ok(())
}
