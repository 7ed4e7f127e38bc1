//! `run --login`: the environment that the user's login shell has on the host where the program will run.
//!
//! The login shell is started there once, reads its profile, and prints its variables. The program itself then starts without a shell,
//! so its arguments, its signals and the error for a missing program stay as they are without the flag.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, bail};
use exec_server_client::{Client, Event, Process, Start, protocol::process::Stream};
use tokio::time;

use crate::ids;

/// The time limit for the login shell. A profile that takes longer is probably waiting for input.
const WITHIN: Duration = Duration::from_secs(10);

/// An environment larger than this could not be passed to a program anyway.
const OUTPUT_MAX: usize = 2 << 20;

/// How many bytes of the shell's stderr an error message quotes.
const QUOTE_MAX: usize = 500;

/// Printed by `SCRIPT` to separate the output of the profile from the variables.
const MARK: &str = "exec-server:login-environment:";

/// Finds the login shell (`SHELL`, else the passwd database) and makes it print its environment, with a NUL after each variable.
const SCRIPT: &str = r#"
shell=$SHELL
[ -n "$shell" ] || shell=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f7)
exec "${shell:-/bin/sh}" -l -c 'printf %s exec-server:login-environment:; exec env -0'"#;

/// Variables that describe the shell itself.
const SHELL_VARIABLES: [&str; 4] = ["_", "SHLVL", "PWD", "OLDPWD"];

/// Runs the login shell and returns its variables. `base` adds the options of the shell's own start, such as the variables that it
/// inherits.
pub(crate) async fn environment(
    client: &Client,
    base: impl FnOnce(Start) -> Start,
) -> anyhow::Result<BTreeMap<String, String>> {
    let start = base(Start::new(["/bin/sh", "-c", SCRIPT]).id(ids::generate("login")));
    let process = client.start(start).await.context("start the login shell for `--login`")?;
    let Ok(outcome) = time::timeout(WITHIN, read_output(&process)).await else {
        // If this request fails, the end of the session kills the shell.
        process.terminate(Some(Duration::ZERO)).await.ok();
        let within = WITHIN.as_secs();
        bail!("the login shell did not print its environment within {within} s; does its profile wait for input?");
    };
    // The output was read. If this request fails, the shell's log stays until the end of the session.
    process.forget().await.ok();
    outcome.context("read the environment of the login shell")
}

async fn read_output(process: &Process) -> anyhow::Result<BTreeMap<String, String>> {
    let mut events = process.events();
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let mut code = None;
    while let Some(event) = events.next().await {
        match event {
            Event::Output { stream: Stream::Stderr, bytes, .. } => stderr.extend_from_slice(&bytes),
            Event::Output { bytes, .. } => stdout.extend_from_slice(&bytes),
            Event::Exited { exit, .. } => code = Some(exit.code),
            Event::Failed(error) => return Err(error.into()),
            Event::Gap { .. } | Event::Closed { .. } => {}
        }
        if stdout.len() + stderr.len() > OUTPUT_MAX {
            bail!("the shell printed more than {} MiB", OUTPUT_MAX >> 20);
        }
    }
    match parse(&stdout) {
        Some(variables) if code == Some(0) => Ok(variables),
        Some(_) | None => {
            let text = String::from_utf8_lossy(&stderr);
            let text = text.trim();
            bail!("the shell exited with code {}: {}", code.unwrap_or(-1), &text[..text.floor_char_boundary(QUOTE_MAX)])
        }
    }
}

/// The variables after the mark; `None` without a mark. Variables that are not UTF-8 cannot be sent and are left out.
fn parse(output: &[u8]) -> Option<BTreeMap<String, String>> {
    let at = output.windows(MARK.len()).position(|part| part == MARK.as_bytes())?;
    let variables = output[at + MARK.len()..].split(|byte| *byte == 0).filter_map(|line| {
        let (name, value) = std::str::from_utf8(line).ok()?.split_once('=')?;
        let is_wanted = !name.is_empty() && !SHELL_VARIABLES.contains(&name);
        is_wanted.then(|| (name.to_owned(), value.to_owned()))
    });
    Some(variables.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_the_profile_and_variables_of_the_shell_are_skipped() {
        let output =
            b"Welcome!\nexec-server:login-environment:A=1\0PATH=/x:/y\0_=/usr/bin/env\0SHLVL=1\0B=two\nlines\0=odd\0";
        let expected = [("A", "1"), ("B", "two\nlines"), ("PATH", "/x:/y")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(parse(output), Some(BTreeMap::from(expected)));
        assert_eq!(parse(b"A=1\0"), None);
    }

    #[test]
    fn the_script_prints_the_mark() {
        assert!(SCRIPT.contains(MARK));
    }
}
