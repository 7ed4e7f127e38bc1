//! `exec-server serve --print-config`: prints the effective settings and the fixed limits. Starts no server and opens no file of the
//! settings: the output contains the names of files, never their contents.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};
use serde_json::{Map, Value, json};

use crate::{limits, print};

/// Every visible flag of a command with its value and its origin, read from the clap grammar, so that new flags are included automatically.
pub(crate) fn settings(command: &Command, matches: &ArgMatches) -> Map<String, Value> {
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    // `--help` and `--print-config` are not settings.
    let settings = visible.filter(|arg| !matches!(arg.get_id().as_str(), "help" | "print_config"));
    settings.filter_map(|arg| Some((arg.get_long()?.to_owned(), describe(arg, matches)))).collect()
}

fn describe(arg: &Arg, matches: &ArgMatches) -> Value {
    let id = arg.get_id().as_str();
    let mut values = matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy());
    let value = match arg.get_action() {
        ArgAction::SetTrue => json!(values.next().is_some_and(|value| value == "true")),
        ArgAction::Append => json!(values.collect::<Vec<_>>()),
        _ => json!(values.next()),
    };
    let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
    let mut described = json!({"value": value, "origin": if is_given { "flag" } else { "default" }});
    if let Some(limit) = limits::all().into_iter().find(|limit| limit.flag == arg.get_long()) {
        described["limits"] = json!(limit.name);
        described["at"] = json!(limit.when_reached);
    }
    described
}

/// Prints the settings of a server as JSON.
pub(crate) fn run(settings: &Map<String, Value>) -> anyhow::Result<ExitCode> {
    let fixed: Map<String, Value> = limits::all()
        .into_iter()
        .filter(|limit| limit.flag.is_none())
        .map(|limit| (limit.name.to_owned(), json!({"value": limit.default.to_string(), "at": limit.when_reached})))
        .collect();
    let config = json!({"version": env!("CARGO_PKG_VERSION"), "settings": settings, "fixed": fixed});
    let text = serde_json::to_string_pretty(&config).context("write the settings")?;
    print::put(format!("{text}\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
