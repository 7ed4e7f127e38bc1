//! The part `deploy`: checks docs/deploy.md as far as possible on a machine without a booted systemd and without a container engine.
//! systemd itself parses both units; the server runs as pid 1 of a pid namespace, as in a container.

use crate::prelude::*;
use exec_server_harness::environment::{OwnedChild, output_of, success_of};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let mut lines = vec![unit(world)?, user_unit(world)?];
    lines.extend(first_process(world)?);
    println!("interop: not tried: running units (no booted systemd), the image (no container engine)");
    Ok(lines)
}

/// Checks that systemd accepts every line of the system unit.
fn unit(world: &Environment) -> Result<String> {
    let text = fs::read_to_string(cargo::root().join("docs/systemd/exec-server.service"))?;
    let program = world.binary.display().to_string();
    // Use a program and a user that exist; the rest is as shipped.
    let here = text.replace("/usr/local/bin/exec-server", &program).replace("User=exec\n", "User=daemon\n");
    let file = world.folder("deploy-unit")?.join("exec-server.service");
    fs::write(&file, here)?;
    verify(world.command("systemd-analyze").arg("verify").arg(&file))?;
    Ok("systemd reads the system unit".to_owned())
}

/// The same for the user unit, in the mode of a user's service manager.
fn user_unit(world: &Environment) -> Result<String> {
    let text = fs::read_to_string(cargo::root().join("docs/systemd/exec-server-user.service"))?;
    let here = text.replace("%h/.local/bin/exec-server", &world.binary.display().to_string());
    let dir = world.folder("deploy-user-unit")?;
    let file = dir.join("exec-server.service");
    fs::write(&file, here)?;
    let mut command = world.command("systemd-analyze");
    verify(command.args(["--user", "verify"]).arg(&file).env("XDG_RUNTIME_DIR", &dir))?;
    // A broken unit must cause a complaint; otherwise the check above would prove nothing.
    fs::write(&file, "[Service]\nType=notify\nExecStart=/bin/true\nNonsense=yes\n")?;
    let mut command = world.command("systemd-analyze");
    let broken = verify(command.args(["--user", "verify"]).arg(&file).env("XDG_RUNTIME_DIR", &dir));
    ensure!(broken.is_err(), "systemd complains about no line of a user's unit, so that its word means nothing");
    Ok("systemd reads the user's unit".to_owned())
}

fn verify(command: &mut Command) -> Result<()> {
    let output = output_of(command, PATIENCE)?;
    let output_text = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success() && !output_text.contains("exec-server.service"),
        "systemd does not like the unit: {output_text}"
    );
    Ok(())
}

/// Runs the server as pid 1 of its namespace: it serves, and reaps orphans of a command.
fn first_process(world: &Environment) -> Result<Vec<String>> {
    let dir = world.folder("deploy-first")?;
    let url = format!("unix://{}/x.sock", dir.display());
    let mut command = world.command("unshare");
    command.args(["-pf", "--mount-proc", "--kill-child"]).arg(&world.binary);
    command.args(["serve", "--kill-on-exit", "--listen", &url, "--state-dir"]).arg(dir.join("state"));
    let server = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("start `unshare`")?;
    // `--kill-child` makes `unshare` kill what it started.
    let _server = OwnedChild(server);
    wait_until("the socket", PATIENCE, || dir.join("x.sock").exists())?;
    let script = "echo $PPID; (setsid sleep 0.1 &); sleep 0.5; grep -l '^State:.Z' /proc/[0-9]*/status || echo none";
    let mut run = world.exec_server(&["run", "--connect", &url, "--", "sh", "-c", script]);
    let output_text = String::from_utf8(success_of(&mut run, PATIENCE)?)?;
    ensure!(output_text.trim_end().ends_with("none"), "zombies are left: {output_text}");
    Ok(vec!["as the first process of a namespace it serves".to_owned(), "and orphans are reaped there".to_owned()])
}
