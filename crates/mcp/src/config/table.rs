//! The table of one server as the file has it: the types of its keys, and how both file formats are parsed.
//!
//! A file is parsed into one kind of value tree, so that each rule is written once. The table of a server is then deserialized from that
//! tree, and `serde_ignored` reports the keys that have no field here. serde's own messages are not used: they quote values, which can be
//! secrets, and do not name the key.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{ConfigError, EnvSource, EnvVar, Format, KeyFault, error::shown};

/// The known keys, grouped by what a value must be. A misspelt key is compared with them in this order.
const KEYS: [(&str, &[&str]); 10] = [
    (
        "text in quotes, and not empty",
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
        &["args", "enabled_tools", "disabled_tools", "includeTools", "excludeTools", "disabledTools"],
    ),
    ("a table of texts, such as { NAME = \"value\" }", &["env"]),
    ("a list of names, or of { name, source } with the source `local` or `remote`", &["env_vars"]),
    ("the name of a variable", &["bearer_token_env_var", "bearer_token"]),
    ("a table of headers, such as { X-Name = \"value\" }", &["http_headers", "headers"]),
    ("a table of headers with names of variables, such as { X-Name = \"VARIABLE\" }", &["env_http_headers"]),
    ("true or false", &["enabled", "disabled", "required", "supports_parallel_tool_calls"]),
    ("a number of seconds, not below 0", &["startup_timeout_sec", "tool_timeout_sec"]),
    ("a whole number of milliseconds, not below 0", &["startup_timeout_ms"]),
];

/// Keys that other programs use and this one ignores: tool approval, logins, and descriptions for people.
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

/// All keys of a server. A null value counts as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ServerTable {
    #[serde(deserialize_with = "text")]
    pub(super) command: Option<String>,
    #[serde(deserialize_with = "texts")]
    pub(super) args: Option<Vec<String>>,
    #[serde(deserialize_with = "variables")]
    pub(super) env: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "env_vars")]
    pub(super) env_vars: Option<Vec<EnvVar>>,
    #[serde(deserialize_with = "text")]
    pub(super) cwd: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(super) url: Option<String>,
    #[serde(deserialize_with = "text", rename = "serverUrl")]
    pub(super) server_url: Option<String>,
    #[serde(deserialize_with = "text", rename = "httpUrl")]
    pub(super) http_url: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(super) bearer_token_env_var: Option<String>,
    #[serde(deserialize_with = "literal_headers")]
    pub(super) http_headers: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "literal_headers")]
    pub(super) headers: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "header_variables")]
    pub(super) env_http_headers: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "text")]
    pub(super) environment: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(super) experimental_environment: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(super) environment_id: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(super) r#type: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(super) transport: Option<String>,
    pub(super) enabled: Option<bool>,
    pub(super) disabled: Option<bool>,
    pub(super) required: Option<bool>,
    pub(super) supports_parallel_tool_calls: Option<bool>,
    #[serde(deserialize_with = "seconds")]
    pub(super) startup_timeout_sec: Option<f64>,
    pub(super) startup_timeout_ms: Option<u64>,
    #[serde(deserialize_with = "seconds")]
    pub(super) tool_timeout_sec: Option<f64>,
    #[serde(deserialize_with = "names")]
    pub(super) enabled_tools: Option<BTreeSet<String>>,
    #[serde(deserialize_with = "names", rename = "includeTools")]
    pub(super) include_tools: Option<BTreeSet<String>>,
    #[serde(deserialize_with = "names")]
    pub(super) disabled_tools: Option<BTreeSet<String>>,
    #[serde(deserialize_with = "names", rename = "excludeTools")]
    pub(super) exclude_tools: Option<BTreeSet<String>>,
    #[serde(deserialize_with = "names", rename = "disabledTools")]
    pub(super) disabled_tools_camel: Option<BTreeSet<String>>,
}

impl ServerTable {
    /// Reads the table of a server, and the keys in it that have no effect. The error is the key at fault.
    pub(super) fn read(table: &Value) -> Result<(Self, Vec<String>), (String, KeyFault)> {
        let mut ignored = Vec::new();
        let read = serde_ignored::deserialize(table, |path| ignored.push(path.to_string()));
        for key in &ignored {
            if let Some(meant) = misspelt(key) {
                return Err((key.clone(), KeyFault::Misspelt { meant }));
            }
        }
        match read {
            Ok(read) => Ok((read, ignored)),
            Err(_) => {
                let entries = table.as_object().into_iter().flatten();
                let is_bad = |(key, value): &(&String, &Value)| {
                    let alone = Map::from_iter([((*key).clone(), (*value).clone())]);
                    Self::deserialize(Value::Object(alone)).is_err()
                };
                let key = entries.into_iter().find(is_bad).map_or_else(String::new, |(key, _)| key.clone());
                let fault = wrong_type(&key);
                Err((key, fault))
            }
        }
    }
}

/// The fault of a key whose value is not what `KEYS` says.
pub(super) fn wrong_type(key: &str) -> KeyFault {
    let expected = KEYS.iter().find(|(_, keys)| keys.contains(&key)).map_or("a table", |(expected, _)| expected);
    KeyFault::Type { expected }
}

/// The known key of which an unknown one is probably a typo: the same words joined in another way, or an edit distance of at most a
/// quarter of its length, and at most 2.
fn misspelt(key: &str) -> Option<&'static str> {
    // The key in lower case, without `_` and `-`.
    let joined = |key: &str| -> String {
        key.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect()
    };
    let is_meant = |known: &&&str| {
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
    KEYS.iter().flat_map(|(_, keys)| *keys).find(is_meant).copied()
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

/// Reads an optional value, and fails if it breaks a rule.
fn checked<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
    is_valid: impl Fn(&T) -> bool,
) -> Result<Option<T>, D::Error> {
    let value: Option<T> = Option::deserialize(from)?;
    if value.as_ref().is_none_or(is_valid) { Ok(value) } else { Err(Error::custom("a broken rule")) }
}

fn text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    checked(from, |text: &String| is_plain(text))
}

fn texts<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    checked(from, |texts: &Vec<String>| texts.iter().all(|text| is_plain(text)))
}

fn names<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BTreeSet<String>>, D::Error> {
    Ok(texts(from)?.map(BTreeSet::from_iter))
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    checked(from, |seconds| *seconds >= 0.0)
}

type TextMap = BTreeMap<String, String>;

fn variables<'de, D: Deserializer<'de>>(from: D) -> Result<Option<TextMap>, D::Error> {
    checked(from, |all: &TextMap| all.iter().all(|(name, value)| is_variable(name) && is_plain(value)))
}

fn literal_headers<'de, D: Deserializer<'de>>(from: D) -> Result<Option<TextMap>, D::Error> {
    let is_value = |value: &str| http::HeaderValue::from_str(value).is_ok();
    checked(from, |all: &TextMap| all.iter().all(|(name, value)| is_header(name) && is_value(value)))
}

fn header_variables<'de, D: Deserializer<'de>>(from: D) -> Result<Option<TextMap>, D::Error> {
    checked(from, |all: &TextMap| all.iter().all(|(name, value)| is_header(name) && is_variable(value)))
}

/// A variable in a list: its name, or its name and source.
#[derive(Deserialize)]
#[serde(untagged)]
enum EnvVarEntry {
    Name(String),
    Named(NamedEnvVar),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedEnvVar {
    name: String,
    source: Option<EnvSource>,
}

fn env_vars<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<EnvVar>>, D::Error> {
    let Some(entries) = Option::<Vec<EnvVarEntry>>::deserialize(from)? else { return Ok(None) };
    let variables = entries.into_iter().map(|entry| match entry {
        EnvVarEntry::Name(name) => EnvVar { name, source: EnvSource::Local },
        EnvVarEntry::Named(entry) => EnvVar { name: entry.name, source: entry.source.unwrap_or_default() },
    });
    let variables: Vec<EnvVar> = variables.collect();
    // The executor treats the names of its variables as patterns, so `*` and `?` would match other variables too.
    let is_valid = |variable: &EnvVar| {
        is_variable(&variable.name) && !(variable.source == EnvSource::Remote && variable.name.contains(['*', '?']))
    };
    if variables.iter().all(is_valid) { Ok(Some(variables)) } else { Err(Error::custom("a broken rule")) }
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
        _ => Err(syntax("JSON", None, "it must be an object, `{ \"mcpServers\": { … } }`".to_owned())),
    }
}

/// A value without duplicate keys: serde_json would silently drop one of two servers with the same name. Infinities and NaN, which a
/// `Value` cannot hold, become strings, so that they are rejected where a number is expected.
struct StrictValue(Value);

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        StrictVisitor.deserialize(from).map(Self)
    }
}

struct StrictVisitor;

impl<'de> DeserializeSeed<'de> for StrictVisitor {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

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
        while let Some(value) = from.next_element_seed(Self)? {
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut table = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            let value = from.next_value_seed(Self)?;
            if table.contains_key(&key) {
                return Err(Error::custom(format_args!("`{}` is there twice", shown(&key))));
            }
            table.insert(key, value);
        }
        Ok(table.into())
    }
}
