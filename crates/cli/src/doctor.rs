//! `exec-server doctor`: reports what this host can enforce, what it cannot, and why. Only reads; changes nothing.

mod host;
mod state_dir;

use std::{fmt, process::ExitCode};

use anyhow::Context as _;
use serde::Serialize;

use crate::{
    args,
    display::{self, Palette},
    print, state_location,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckState {
    Fine,
    /// Works, but with a weaker guarantee.
    Weak,
    /// The server cannot work without it.
    Missing,
}

/// A check and its result.
#[derive(Serialize)]
struct Finding {
    what: &'static str,
    #[serde(flatten)]
    outcome: CheckOutcome,
}

#[derive(Serialize)]
struct CheckOutcome {
    state: CheckState,
    /// The observed value.
    seen: String,
    /// A remedy; empty if none is needed.
    #[serde(skip_serializing_if = "str::is_empty")]
    advice: &'static str,
}

fn fine(seen: impl Into<String>) -> CheckOutcome {
    CheckOutcome { state: CheckState::Fine, seen: seen.into(), advice: "" }
}

fn weak(seen: impl Into<String>, advice: &'static str) -> CheckOutcome {
    CheckOutcome { state: CheckState::Weak, seen: seen.into(), advice }
}

fn missing(seen: impl Into<String>, advice: &'static str) -> CheckOutcome {
    CheckOutcome { state: CheckState::Missing, seen: seen.into(), advice }
}

/// The outcome of trying a system call. `if_failed` is the state if the call fails.
fn of_call<T>(called: Result<T, impl fmt::Display>, if_failed: CheckState, advice: &'static str) -> CheckOutcome {
    match called {
        Ok(_) => fine("available"),
        Err(error) => CheckOutcome { state: if_failed, seen: error.to_string(), advice },
    }
}

/// Runs all checks and prints the findings. The exit code is 1 if something essential is missing.
pub(crate) fn run(args: &args::DoctorArgs) -> anyhow::Result<ExitCode> {
    let dir = state_location::of_user(args.state_dir.as_deref())?;
    let mut findings = host::check();
    findings.extend(state_dir::check(&dir));
    let text = if args.json {
        serde_json::to_string_pretty(&findings).context("write the findings")? + "\n"
    } else {
        findings.iter().map(|finding| line(finding, Palette::of_stdout())).collect()
    };
    print::text(&text)?;
    let is_missing = findings.iter().any(|finding| finding.outcome.state == CheckState::Missing);
    Ok(if is_missing { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn line(Finding { what, outcome }: &Finding, palette: Palette) -> String {
    let (word, style) = match outcome.state {
        CheckState::Fine => ("fine", display::GREEN),
        CheckState::Weak => ("weak", display::YELLOW),
        CheckState::Missing => ("MISSING", display::RED.bold()),
    };
    let word = palette.paint(style, &display::pad(word, 8));
    let mut text = format!("{word}{}{}\n", display::pad(what, 20), outcome.seen);
    if !outcome.advice.is_empty() {
        text += &format!("{:28}{}\n", "", palette.paint(display::DIM, outcome.advice));
    }
    text
}
