//! Typed access to the keys of one server. Errors name the file, the server and the key. The meaning of each key is in `read`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use serde_json::{Map, Value};

use super::{ConfigError, EnvSource, EnvVar, KeyFault, TIMEOUT_MAX};

const NUMBER: &str = "a number of seconds, not below 0";
const WHOLE: &str = "a whole number of milliseconds, not below 0";
const VARIABLE: &str = "the name of a variable";
const VARIABLES: &str = "a list of names, or of { name, source } with the source `local` or `remote`";

/// The table of one server, with the path and server name for errors.
pub(super) struct ServerKeys<'a> {
    pub(super) path: &'a Path,
    pub(super) server: &'a str,
    pub(super) table: &'a Map<String, Value>,
}

impl<'a> ServerKeys<'a> {
    pub(super) fn fault(&self, key: &str, fault: KeyFault) -> ConfigError {
        let (path, server) = (self.path.to_owned(), Some(self.server.to_owned()));
        ConfigError::Key { path, server, key: key.to_owned(), fault }
    }

    /// The value of a key. A null value counts as absent.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.table.get(key).filter(|value| !value.is_null())
    }

    fn get<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.fault(key, KeyFault::Type { expected })),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.get(key, "true or false", Value::as_bool)
    }

    /// A string that is not empty.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        self.get(key, "text in quotes, and not empty", |value| plain(value).filter(|text| !text.is_empty()))
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
        let read = |value: &'a Value| value.as_array()?.iter().map(|one| plain(one).map(str::to_owned)).collect();
        self.get(key, "a list of texts, such as [\"a\", \"b\"]", read)
    }

    pub(super) fn names(&self, key: &str) -> Result<Option<BTreeSet<String>>, ConfigError> {
        Ok(self.texts(key)?.map(|names| names.into_iter().collect()))
    }

    /// Variable names with literal values.
    pub(super) fn variables(&self, key: &str) -> Result<BTreeMap<String, String>, ConfigError> {
        let expected = "a table of texts, such as { NAME = \"value\" }";
        Ok(self.get(key, expected, |value| pairs(value, is_variable, |_| true))?.unwrap_or_default())
    }

    /// Header names with literal values.
    pub(super) fn headers(&self, key: &str) -> Result<BTreeMap<String, String>, ConfigError> {
        let is_value = |value: &str| http::HeaderValue::from_str(value).is_ok();
        let expected = "a table of headers, such as { X-Name = \"value\" }";
        Ok(self.get(key, expected, |value| pairs(value, is_header, is_value))?.unwrap_or_default())
    }

    /// Header names, each with the name of a variable.
    pub(super) fn header_variables(&self, key: &str) -> Result<BTreeMap<String, String>, ConfigError> {
        let expected = "a table of headers with names of variables, such as { X-Name = \"VARIABLE\" }";
        Ok(self.get(key, expected, |value| pairs(value, is_header, is_variable))?.unwrap_or_default())
    }

    pub(super) fn variable(&self, key: &str) -> Result<Option<String>, ConfigError> {
        let read = |value: &'a Value| plain(value).filter(|name| is_variable(name)).map(str::to_owned);
        self.get(key, VARIABLE, read)
    }

    pub(super) fn env_vars(&self, key: &str) -> Result<Vec<EnvVar>, ConfigError> {
        let read = |value: &'a Value| value.as_array()?.iter().map(env_var).collect::<Option<Vec<_>>>();
        Ok(self.get(key, VARIABLES, read)?.unwrap_or_default())
    }

    /// A number of seconds, possibly fractional. The flag is true if the value was above `TIMEOUT_MAX` and was reduced to it.
    pub(super) fn seconds(&self, key: &str) -> Result<Option<(Duration, bool)>, ConfigError> {
        let read = |value: &Value| {
            let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0)?;
            // The conversion fails if the value is too large for a `Duration`.
            Some(bounded(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
        };
        self.get(key, NUMBER, read)
    }

    /// Like `seconds`, but in whole milliseconds.
    pub(super) fn millis(&self, key: &str) -> Result<Option<(Duration, bool)>, ConfigError> {
        self.get(key, WHOLE, |value| Some(bounded(Duration::from_millis(value.as_u64()?))))
    }
}

fn bounded(asked: Duration) -> (Duration, bool) {
    (asked.min(TIMEOUT_MAX), asked > TIMEOUT_MAX)
}

fn pairs(
    value: &Value,
    is_name: impl Fn(&str) -> bool,
    is_value: impl Fn(&str) -> bool,
) -> Option<BTreeMap<String, String>> {
    let pair = |(name, value): (&String, &Value)| {
        let value = plain(value).filter(|value| is_name(name) && is_value(value))?;
        Some((name.clone(), value.to_owned()))
    };
    value.as_object()?.iter().map(pair).collect()
}

fn env_var(value: &Value) -> Option<EnvVar> {
    let Some(entry) = value.as_object() else {
        let name = plain(value).filter(|name| is_variable(name))?.to_owned();
        return Some(EnvVar { name, source: EnvSource::Local });
    };
    if entry.keys().any(|key| key != "name" && key != "source") {
        return None;
    }
    let source = match entry.get("source") {
        None | Some(Value::Null) => EnvSource::Local,
        Some(source) => match source.as_str()? {
            "local" => EnvSource::Local,
            "remote" => EnvSource::Remote,
            _ => return None,
        },
    };
    let name = entry.get("name").and_then(plain).filter(|name| is_variable(name))?;
    // The executor treats these names as patterns, so `*` and `?` would match other variables too.
    let is_pattern = source == EnvSource::Remote && name.contains(['*', '?']);
    (!is_pattern).then(|| EnvVar { name: name.to_owned(), source })
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains('=')
}

fn is_header(name: &str) -> bool {
    http::HeaderName::from_bytes(name.as_bytes()).is_ok()
}

/// A string without NUL bytes, which the OS would reject.
fn plain(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.contains('\0'))
}
