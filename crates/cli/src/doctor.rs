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

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    what: &'static str,
    state: CheckState,
    /// The observed value.
    seen: String,
    /// A remedy; empty if none is needed.
    #[serde(skip_serializing_if = "str::is_empty")]
    advice: &'static str,
}

impl Finding {
    fn fine(what: &'static str, seen: impl Into<String>) -> Self {
        Self { what, state: CheckState::Fine, seen: seen.into(), advice: "" }
    }

    fn weak(what: &'static str, seen: impl Into<String>, advice: &'static str) -> Self {
        Self { what, state: CheckState::Weak, seen: seen.into(), advice }
    }

    /// Whether a call of the kernel works, and how bad it is if it does not.
    fn of_call<T, E: fmt::Display>(
        what: &'static str,
        called: Result<T, E>,
        failed: CheckState,
        advice: &'static str,
    ) -> Self {
        match called {
            Ok(_) => Self::fine(what, "available"),
            Err(error) => Self { what, state: failed, seen: error.to_string(), advice },
        }
    }

    fn missing(what: &'static str, seen: impl Into<String>, advice: &'static str) -> Self {
        Self { what, state: CheckState::Missing, seen: seen.into(), advice }
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
    print::text(&text).context("write standard output")?;
    let is_missing = findings.iter().any(|finding| finding.state == CheckState::Missing);
    Ok(if is_missing { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn line(finding: &Finding, palette: Palette) -> String {
    let (word, style) = match finding.state {
        CheckState::Fine => ("fine", display::GREEN),
        CheckState::Weak => ("weak", display::YELLOW),
        CheckState::Missing => ("MISSING", display::RED.bold()),
    };
    let word = palette.paint(style, &display::pad(word, 8));
    let what = display::pad(finding.what, 20);
    let mut text = format!("{word}{what}{}\n", finding.seen);
    if !finding.advice.is_empty() {
        text += &format!("{:28}{}\n", "", palette.paint(display::DIM, finding.advice));
    }
    text
}
