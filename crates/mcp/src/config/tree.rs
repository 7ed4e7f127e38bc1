//! Parses the text of a TOML or JSON file into one kind of value tree.

use std::{fmt, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{ConfigError, Format, error::ShownText};

/// Parses a text. The parsers bound the nesting depth.
pub(super) fn tree(text: &str, path: &Path, format: Format) -> Result<Map<String, Value>, ConfigError> {
    let syntax = |format, line, reason| ConfigError::Syntax { path: path.to_owned(), format, line, reason };
    let value = match format {
        Format::Toml => {
            let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
                let line = error.span().and_then(|span| Some(text.get(..span.start)?.split('\n').count()));
                syntax("TOML", line, error.message().to_owned())
            })?;
            plain(toml::Value::Table(table))
        }
        Format::Json => {
            // The message of serde_json already contains the line.
            let StrictValue(value) =
                serde_json::from_str(text).map_err(|error| syntax("JSON", None, error.to_string()))?;
            value
        }
    };
    match value {
        Value::Object(top) => Ok(top),
        _ => Err(syntax("JSON", None, "it must be an object, `{ \"mcpServers\": { … } }`".to_owned())),
    }
}

/// Converts a TOML value to JSON. Values that JSON cannot express, such as dates and infinities, become strings, so they are rejected where
/// a number is expected.
fn plain(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) if number.is_finite() => number.into(),
        toml::Value::Float(number) => number.to_string().into(),
        toml::Value::Boolean(flag) => flag.into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(list) => list.into_iter().map(plain).collect(),
        toml::Value::Table(table) => table.into_iter().map(|(key, value)| (key, plain(value))).collect(),
    }
}

/// A JSON value without duplicate keys. serde_json would silently drop one of two servers with the same name.
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
        Ok(number.into())
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
                return Err(de::Error::custom(format_args!("`{}` is there twice", ShownText(&key))));
            }
            table.insert(key, value);
        }
        Ok(table.into())
    }
}
