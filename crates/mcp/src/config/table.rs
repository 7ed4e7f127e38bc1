//! Parses the two file formats, TOML and JSON, and lists the keys that the table of one MCP server may have, with their types.
//!
//! Both formats are parsed into JSON values, so that each rule is written once. Each key of a server is then checked against `KEYS`.
//! serde's messages about wrong types are not used: they quote values, which can be secrets, and do not name the key.

use std::{fmt, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{ConfigError, EnvSource, EnvVar, Format, KeyFault, error::shown};

/// A type of value: its description for errors, its check, and the keys that have it.
type KnownKeys = (&'static str, fn(&Value) -> bool, &'static [&'static str]);

/// The known keys. `misspelt` suggests the first one that is similar.
const KEYS: [KnownKeys; 10] = [
    (
        // `is_text` accepts an empty text. `ServerReader::non_empty` refuses it for each key that applies to the kind of server.
        "text in quotes, and not empty",
        is_text,
        &[
            "command",
            "cwd",
            "url",
            "serverUrl",
            "httpUrl",
            "environment",
            "experimental_environment",
            "environment_id",
            "type",
            "transport",
        ],
    ),
    (
        "a list of texts, such as [\"a\", \"b\"]",
        |value| value.as_array().is_some_and(|list| list.iter().all(is_text)),
        &["args", "enabled_tools", "disabled_tools", "includeTools", "excludeTools", "disabledTools"],
    ),
    (
        "a table of texts, such as { NAME = \"value\" }",
        |value| is_table(value, |name, text| is_variable(name) && is_plain(text)),
        &["env"],
    ),
    (
        "a list of names, or of { name, source } with the source `local` or `remote`",
        |value| env_vars(value).is_some(),
        &["env_vars"],
    ),
    // `bearer_token` is always refused earlier, with its own message. It is here so that a typo of it is not just ignored.
    ("the name of a variable", is_text, &["bearer_token_env_var", "bearer_token"]),
    (
        "a table of headers, such as { X-Name = \"value\" }",
        |value| is_table(value, |name, text| is_header(name) && http::HeaderValue::from_str(text).is_ok()),
        &["http_headers", "headers"],
    ),
    (
        "a table of headers with names of variables, such as { X-Name = \"VARIABLE\" }",
        |value| is_table(value, |name, variable| is_header(name) && is_variable(variable)),
        &["env_http_headers"],
    ),
    ("true or false", Value::is_boolean, &["enabled", "disabled", "required", "supports_parallel_tool_calls"]),
    (
        "a number of seconds, not below 0",
        |value| value.as_f64().is_some_and(|seconds| seconds >= 0.0),
        &["startup_timeout_sec", "tool_timeout_sec"],
    ),
    ("a whole number of milliseconds, not below 0", Value::is_u64, &["startup_timeout_ms"]),
];

/// Keys of other programs, which are ignored and never taken for typos of known keys.
const KEYS_OF_OTHERS: [&str; 18] = [
    "default_tools_approval_mode",
    "tools",
    "scopes",
    "oauth_resource",
    "oauth",
    "auth",
    "http_headers_helper",
    "authProviderType",
    "autoApprove",
    "alwaysAllow",
    "trust",
    // Some programs mean seconds, others milliseconds.
    "timeout",
    "envFile",
    "name",
    "description",
    "icon",
    "dev",
    "version",
];

/// Checks the keys of a server and their values. A null value counts as absent. Returns the keys that have no effect, or the key at fault.
pub(super) fn check(table: &Map<String, Value>) -> Result<Vec<&str>, (&str, KeyFault)> {
    let mut ignored = Vec::new();
    for (key, value) in table {
        match KEYS.iter().find(|(_, _, keys)| keys.contains(&key.as_str())) {
            Some((_, is_valid, _)) if value.is_null() || is_valid(value) => {}
            Some(_) => return Err((key, wrong_type(key))),
            None => match misspelt(key) {
                Some(meant) => return Err((key, KeyFault::Misspelt { meant })),
                None => ignored.push(key.as_str()),
            },
        }
    }
    Ok(ignored)
}

/// The fault of a key whose value does not have the type in `KEYS`.
pub(super) fn wrong_type(key: &str) -> KeyFault {
    let expected =
        KEYS.iter().find(|(_, _, keys)| keys.contains(&key)).map_or("another type", |(expected, _, _)| expected);
    KeyFault::Type { expected }
}

/// The known key that was probably meant by an unknown key. The two are compared without `_`, `-` and case. Their edit distance must be at
/// most a quarter of the known key's length, and at most 2.
fn misspelt(key: &str) -> Option<&'static str> {
    let joined = |key: &str| -> String {
        key.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect()
    };
    let is_similar = |known: &&&str| {
        // A much longer key cannot be a typo. Returning early also avoids the cost of the comparison.
        if key.len() > known.len() + 8 {
            return false;
        }
        let known = joined(known);
        let most = (known.len() / 4).min(2);
        distance(joined(key).as_bytes(), known.as_bytes()) <= most
    };
    if KEYS_OF_OTHERS.contains(&key) {
        return None;
    }
    KEYS.iter().flat_map(|(_, _, keys)| *keys).find(is_similar).copied()
}

/// The Levenshtein distance: how many bytes must be inserted, deleted or replaced.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(is_plain)
}

/// Whether a value is a table of texts that all fit a rule about name and text.
fn is_table(value: &Value, rule: fn(&str, &str) -> bool) -> bool {
    let fits = |(name, value): (&String, &Value)| value.as_str().is_some_and(|text| rule(name, text));
    value.as_object().is_some_and(|table| table.iter().all(fits))
}

/// A variable in a list: its name, or its name and source.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum EnvVarEntry {
    Name(String),
    Named { name: String, source: Option<EnvSource> },
}

/// Reads a list of variables. `None` if it breaks a rule.
pub(super) fn env_vars(value: &Value) -> Option<Vec<EnvVar>> {
    let entries = Vec::deserialize(value).ok()?;
    let variables = entries.into_iter().map(|entry| match entry {
        EnvVarEntry::Name(name) => EnvVar { name, source: EnvSource::Local },
        EnvVarEntry::Named { name, source } => EnvVar { name, source: source.unwrap_or_default() },
    });
    // The executor treats the names of its variables as patterns, so `*` and `?` would match other variables too.
    let is_valid = |variable: &EnvVar| {
        is_variable(&variable.name) && !(variable.source == EnvSource::Remote && variable.name.contains(['*', '?']))
    };
    variables.map(|variable| Some(variable).filter(is_valid)).collect()
}

pub(super) fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains('=') && is_plain(name)
}

fn is_header(name: &str) -> bool {
    http::HeaderName::from_bytes(name.as_bytes()).is_ok()
}

/// Whether a text has no NUL byte, which the OS would reject.
fn is_plain(text: &str) -> bool {
    !text.contains('\0')
}

/// Parses the text of a file. The parsers bound the nesting depth.
pub(super) fn parse(text: &str, path: &Path, format: Format) -> Result<Map<String, Value>, ConfigError> {
    let syntax = |format, line, reason| ConfigError::Syntax { path: path.to_owned(), format, line, reason };
    let StrictValue(value) = match format {
        Format::Toml => toml::from_str(text).map_err(|error| {
            let line = error.span().and_then(|span| Some(text.get(..span.start)?.split('\n').count()));
            syntax("TOML", line, error.message().to_owned())
        })?,
        // The message of serde_json already contains the line.
        Format::Json => serde_json::from_str(text).map_err(|error| syntax("JSON", None, error.to_string()))?,
    };
    match value {
        Value::Object(top) => Ok(top),
        _ => Err(syntax("JSON", None, "the top level must be an object, `{ \"mcpServers\": { … } }`".to_owned())),
    }
}

/// A value whose tables have no duplicate keys: with serde_json's own `Value`, one of two servers with the same name would be dropped
/// silently. Infinities and NaN, which a `Value` cannot hold, become strings, so that they are rejected where a number is expected.
struct StrictValue(Value);

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(if number.is_finite() { number.into() } else { number.to_string().into() })
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(StrictValue(value)) = from.next_element()? {
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut table = Map::new();
        while let Some((key, StrictValue(value))) = from.next_entry::<String, _>()? {
            if table.contains_key(&key) {
                return Err(Error::custom(format_args!("`{}` is defined twice", shown(&key))));
            }
            table.insert(key, value);
        }
        Ok(table.into())
    }
}
