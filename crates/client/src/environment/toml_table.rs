//! Typed access to the keys of one table of `environments.toml`, with errors that name the place. Does not depend on the meaning of the
//! keys.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use toml::{Table, Value};

use super::{EnvironmentError, KeyFault};

/// The longest timeout that a file can set: one day. A larger value is a mistake.
const TIMEOUT_MAX_S: f64 = 86_400.0;

/// A table, with its place in the file for errors.
pub(super) struct TomlTable<'a> {
    pub(super) path: &'a Path,
    /// The environment that the table describes.
    pub(super) environment: Option<String>,
    pub(super) table: &'a Table,
}

impl<'a> TomlTable<'a> {
    pub(super) fn fault(&self, key: &str, fault: KeyFault) -> EnvironmentError {
        let (path, environment) = (self.path.to_owned(), self.environment.clone());
        EnvironmentError::Key { path, environment, key: key.to_owned(), fault }
    }

    pub(super) fn check_known(&self, known: &[&str]) -> Result<(), EnvironmentError> {
        match self.table.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                let known = known.iter().map(|key| (*key).to_owned()).collect();
                Err(self.fault(key, KeyFault::UnknownKey { known }))
            }
        }
    }

    fn get<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, EnvironmentError> {
        match self.table.get(key) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.fault(key, KeyFault::Type { expected })),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, EnvironmentError> {
        self.get(key, "true or false", Value::as_bool)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, EnvironmentError> {
        self.get(key, "text in quotes", plain)
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<&'a str>, EnvironmentError> {
        let read = |value: &'a Value| value.as_array()?.iter().map(plain).collect::<Option<Vec<_>>>();
        Ok(self.get(key, "a list of texts, such as [\"a\", \"b\"]", read)?.unwrap_or_default())
    }

    pub(super) fn pairs(&self, key: &str) -> Result<BTreeMap<&'a str, &'a str>, EnvironmentError> {
        let pair = |(name, value): (&'a String, &'a Value)| {
            let is_name = !name.is_empty() && !name.contains(['=', '\0']);
            Some((name.as_str(), plain(value)?)).filter(|_| is_name)
        };
        let read = |value: &'a Value| value.as_table()?.iter().map(pair).collect::<Option<_>>();
        Ok(self.get(key, "a table of texts, such as { NAME = \"value\" }", read)?.unwrap_or_default())
    }

    pub(super) fn seconds(&self, key: &str) -> Result<Option<Duration>, EnvironmentError> {
        let read = |value: &Value| {
            #[expect(clippy::cast_precision_loss, reason = "what is not exact is far beyond the bound")]
            let seconds = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))?;
            (seconds > 0.0 && seconds <= TIMEOUT_MAX_S).then(|| Duration::from_secs_f64(seconds))
        };
        self.get(key, "a number of seconds above 0 and up to 86400", read)
    }

    /// A path. A relative one starts from the directory of the file.
    pub(super) fn file(&self, key: &str) -> Result<Option<PathBuf>, EnvironmentError> {
        let read = |value: &'a Value| plain(value).filter(|path| !path.is_empty());
        Ok(self.get(key, "a path in quotes", read)?.map(|path| self.resolve(path)))
    }

    /// A program: a plain name is looked up in `PATH`, and a path is resolved like other paths.
    pub(super) fn program(&self, program: &str) -> Result<PathBuf, EnvironmentError> {
        match program {
            "" => Err(self.fault("program", KeyFault::Type { expected: "the name or the path of a program" })),
            path if path.contains('/') => Ok(self.resolve(path)),
            name => Ok(name.into()),
        }
    }

    fn resolve(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    pub(super) fn entries(&self, key: &str) -> Result<impl Iterator<Item = &'a Table>, EnvironmentError> {
        let read = |value: &'a Value| value.as_array()?.iter().map(Value::as_table).collect::<Option<Vec<_>>>();
        Ok(self.get(key, "tables: `[[environments]]`", read)?.unwrap_or_default().into_iter())
    }
}

/// The text of a value, unless it contains a NUL, which no system call accepts.
fn plain(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.contains('\0'))
}
