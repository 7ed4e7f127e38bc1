//! The keys of `environments.toml` and their types. Does not depend on what the keys mean together.
//!
//! Errors say what is allowed. They do not repeat the value, which may be a secret.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};
use toml::de::DeTable;

use super::EnvironmentError;

/// The longest timeout that a file can set: one day. A larger value is a mistake.
const TIMEOUT_MAX_S: f64 = 86_400.0;

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTable {
    #[serde(default, deserialize_with = "text")]
    pub(super) default: Option<String>,
    #[serde(default, deserialize_with = "flag")]
    pub(super) include_local: Option<bool>,
    #[serde(default)]
    pub(super) environments: Vec<EntryTable>,
}

/// One entry of `[[environments]]`. Paths are as they were written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntryTable {
    #[serde(default, deserialize_with = "text")]
    pub(super) id: Option<String>,
    #[serde(default, deserialize_with = "text")]
    pub(super) url: Option<String>,
    #[serde(default, deserialize_with = "program")]
    pub(super) program: Option<String>,
    #[serde(default, deserialize_with = "texts")]
    pub(super) args: Option<Vec<String>>,
    #[serde(default, deserialize_with = "variables")]
    pub(super) env: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "file")]
    pub(super) cwd: Option<String>,
    #[serde(default, deserialize_with = "texts")]
    pub(super) path: Option<Vec<String>>,
    #[serde(default, deserialize_with = "seconds")]
    pub(super) connect_timeout_sec: Option<Duration>,
    #[serde(default, deserialize_with = "seconds")]
    pub(super) initialize_timeout_sec: Option<Duration>,
    #[serde(default, deserialize_with = "file")]
    pub(super) token_file: Option<String>,
    #[serde(default, deserialize_with = "file")]
    pub(super) ca_file: Option<String>,
    #[serde(default, deserialize_with = "file")]
    pub(super) client_cert: Option<String>,
    #[serde(default, deserialize_with = "file")]
    pub(super) client_key: Option<String>,
    #[serde(default, deserialize_with = "flag")]
    pub(super) insecure_plaintext: Option<bool>,
}

/// Deserializes a value and checks it.
fn read<'de, D: Deserializer<'de>, T: Deserialize<'de>, U>(
    value: D,
    expected: &str,
    check: impl FnOnce(T) -> Option<U>,
) -> Result<U, D::Error> {
    let value = T::deserialize(value).ok().and_then(check);
    value.ok_or_else(|| D::Error::custom(format_args!("must be {expected}")))
}

fn flag<'de, D: Deserializer<'de>>(value: D) -> Result<Option<bool>, D::Error> {
    read(value, "true or false", Some).map(Some)
}

fn text<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    read(value, "text in quotes", without_nul).map(Some)
}

fn program<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    read(value, "the name or the path of a program", not_empty).map(Some)
}

fn file<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    read(value, "a path in quotes", not_empty).map(Some)
}

fn texts<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Vec<String>>, D::Error> {
    let check = |texts: Vec<String>| texts.into_iter().map(without_nul).collect();
    read(value, "a list of texts, such as [\"a\", \"b\"]", check).map(Some)
}

fn variables<'de, D: Deserializer<'de>>(value: D) -> Result<BTreeMap<String, String>, D::Error> {
    let is_variable =
        |(name, value): (&String, &String)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
    let check = |all: BTreeMap<String, String>| all.iter().all(is_variable).then_some(all);
    read(value, "a table of texts, such as { NAME = \"value\" }", check)
}

fn seconds<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    let check = |seconds: f64| (seconds > 0.0 && seconds <= TIMEOUT_MAX_S).then(|| Duration::from_secs_f64(seconds));
    read(value, "a number of seconds above 0 and up to 86400", check).map(Some)
}

/// The text, unless it contains a NUL, which no system call accepts.
fn without_nul(text: String) -> Option<String> {
    (!text.contains('\0')).then_some(text)
}

fn not_empty(text: String) -> Option<String> {
    without_nul(text).filter(|text| !text.is_empty())
}

/// Converts an error of the parser: finds the line, the environment and the key.
pub(super) fn file_error(text: &str, path: &Path, error: &toml::de::Error) -> EnvironmentError {
    let path = path.to_owned();
    let line = error.span().and_then(|span| Some(text.get(..span.start)?.split('\n').count()));
    let reason = error.message().to_owned();
    let Ok(table) = DeTable::parse(text) else { return EnvironmentError::Syntax { path, line, reason } };
    let at = error.span().map_or(0, |span| span.start);
    let (environment, key) = key_at(table.get_ref(), at);
    EnvironmentError::Key { path, environment, key, reason, line }
}

/// The environment, by id or position, and the key at this offset in the file.
fn key_at(file: &DeTable<'_>, at: usize) -> (Option<String>, String) {
    let key_in = |table: &DeTable<'_>| {
        let found = table.iter().find(|(key, value)| key.span().start <= at && at < value.span().end);
        found.map(|(key, _)| key.get_ref().to_string())
    };
    let entries = file.get("environments").and_then(|entries| entries.get_ref().as_array());
    for (position, entry) in entries.into_iter().flat_map(|entries| entries.iter()).enumerate() {
        let Some(entry) = entry.get_ref().as_table() else { continue };
        if let Some(key) = key_in(entry) {
            let id = entry.get("id").and_then(|id| id.get_ref().as_str());
            return (Some(id.map_or_else(|| format!("#{}", position + 1), str::to_owned)), key);
        }
    }
    (None, key_in(file).unwrap_or_else(|| "environments".to_owned()))
}
