//! `exec-server serve --print-config`: prints the effective settings and the fixed limits. Starts nothing and reads no token: the output
//! contains the names of files, never their contents.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use crate::{
    args::{FlagSetting, ValueOrigin},
    limits, print,
};

/// Prints the settings of a server as JSON.
pub(crate) fn run(settings: &[FlagSetting]) -> anyhow::Result<ExitCode> {
    let settings: Map<String, Value> =
        settings.iter().map(|setting| (setting.name.clone(), describe(setting))).collect();
    let fixed: Map<String, Value> = limits::all()
        .into_iter()
        .filter(|limit| limit.flag.is_none())
        .map(|limit| (limit.name.to_owned(), json!({"value": limit.default.to_string(), "at": limit.at})))
        .collect();
    let config = json!({"version": env!("CARGO_PKG_VERSION"), "settings": settings, "fixed": fixed});
    let text = serde_json::to_string_pretty(&config).context("write the settings")?;
    print::data(format!("{text}\n").as_bytes()).context("write standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn describe(setting: &FlagSetting) -> Value {
    let value = match (setting.is_switch, setting.is_list, setting.values.as_slice()) {
        (true, _, values) => json!(values.first().is_some_and(|value| value == "true")),
        (_, true, values) => json!(values),
        (_, _, []) => Value::Null,
        (_, _, [value, ..]) => json!(value),
    };
    let origin = match setting.origin {
        ValueOrigin::Default => "default",
        ValueOrigin::Flag => "flag",
    };
    let mut described = json!({"value": value, "origin": origin});
    if let Some(limit) = limits::all().into_iter().find(|limit| limit.flag == Some(&setting.name)) {
        described["limits"] = json!(limit.name);
        described["at"] = json!(limit.at);
    }
    described
}
