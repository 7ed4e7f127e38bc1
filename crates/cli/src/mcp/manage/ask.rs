//! Asks the user at the terminal on behalf of an MCP server, with one line per field of its form.
//!
//! Text from the server is shown with control characters escaped and with the name of the server. EOF declines.

use std::io::Write;

use serde_json::{Map, Value};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

use crate::ids;

/// Attempts per field before the whole form is declined.
const ATTEMPTS: usize = 3;

/// Maximum bytes of an answer.
const LINE_MAX: u64 = 64 << 10;

/// Maximum number of fields of a form.
const FIELDS_MAX: usize = 100;

/// Maximum characters shown of a text from the server.
const SHOWN_MAX: usize = 4096;

/// The input and output of the user's terminal.
pub(super) struct TerminalPrompt<L> {
    /// One reader for all questions, so that input buffered for a cancelled question is not lost.
    pub(super) lines: L,
    pub(super) screen: Box<dyn Write + Send>,
}

impl<L: AsyncBufRead + Unpin> TerminalPrompt<L> {
    /// Asks for each field of a form. Returns the content of the form; `None` if the user declined.
    pub(super) async fn form(&mut self, server: &str, message: &str, schema: &Value) -> Option<Value> {
        self.head(server, message);
        let empty = Map::new();
        let fields = schema["properties"].as_object().unwrap_or(&empty);
        if fields.len() > FIELDS_MAX {
            self.show(&format!("  declined: a form of more than {FIELDS_MAX} fields\n"));
            return None;
        }
        if fields.is_empty() {
            return self.confirms().await.then(|| Map::new().into());
        }
        let mut content = Map::new();
        for (name, field) in fields {
            let required = schema["required"].as_array();
            let is_required = required.is_some_and(|all| all.iter().any(|one| one == name.as_str()));
            if let Some(value) = self.field(name, field, is_required).await? {
                content.insert(name.clone(), value);
            }
        }
        Some(content.into())
    }

    /// Asks whether the user agrees to open a page. We do not open it ourselves.
    pub(super) async fn url(&mut self, server: &str, message: &str, url: &str) -> bool {
        self.head(server, message);
        self.show(&format!("  open this page: {}\n", shown(url)));
        self.confirms().await
    }

    fn head(&mut self, server: &str, message: &str) {
        self.show(&format!("exec-server: `{}` asks (Ctrl-D declines):\n", shown(server)));
        for line in message.chars().take(SHOWN_MAX).collect::<String>().lines() {
            self.show(&format!("  {}\n", ids::clean(line)));
        }
    }

    async fn confirms(&mut self) -> bool {
        self.show("  accept? [y/N] ");
        self.line().await.is_some_and(|said| is_yes(&said) == Some(true))
    }

    /// Asks for one field. The inner `None` means that an optional field was left out; the outer `None` means that the user declined.
    async fn field(&mut self, name: &str, field: &Value, is_required: bool) -> Option<Option<Value>> {
        let title = field["title"].as_str().unwrap_or(name);
        let about = field["description"].as_str().map(|about| format!(" ({})", shown(about))).unwrap_or_default();
        let default = field.get("default").filter(|default| !default.is_null());
        let hint = match (default, is_required) {
            (Some(default), _) => format!(" [{}]", shown(&default.to_string())),
            (None, true) => String::new(),
            (None, false) => " [leave out]".to_owned(),
        };
        for _ in 0..ATTEMPTS {
            self.show(&format!("  {}{about}, {}{hint}: ", shown(title), kind(field)));
            let said = self.line().await?;
            match (said.trim(), default, is_required) {
                ("", Some(default), _) => return Some(Some(default.clone())),
                ("", None, false) => return Some(None),
                (said, _, _) => match read(said, field) {
                    Some(value) => return Some(Some(value)),
                    None => self.show(&format!("  that is not {}\n", kind(field))),
                },
            }
        }
        None
    }

    fn show(&mut self, text: &str) {
        // If the terminal is gone, the question is not shown, and the read that follows gets EOF.
        self.screen.write_all(text.as_bytes()).and_then(|()| self.screen.flush()).ok();
    }

    /// Reads one line without its line end; `None` at EOF.
    async fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let read = (&mut self.lines).take(LINE_MAX).read_until(b'\n', &mut line).await;
        match read {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned()),
        }
    }
}

/// Describes the expected value of a field to the user.
fn kind(field: &Value) -> String {
    let listed = |words: Vec<&str>| words.into_iter().map(shown).collect::<Vec<_>>().join(", ");
    if let Some(words) = words(field) {
        return format!("one of {}", listed(words));
    }
    match field["type"].as_str() {
        Some("boolean") => "yes or no".to_owned(),
        Some("integer") => "a whole number".to_owned(),
        Some("number") => "a number".to_owned(),
        Some("array") => match words(&field["items"]) {
            Some(words) => format!("any of {}, separated by commas", listed(words)),
            None => "texts, separated by commas".to_owned(),
        },
        _ => "text".to_owned(),
    }
}

/// The allowed values of a field, if it has a list of them.
fn words(field: &Value) -> Option<Vec<&str>> {
    if let Some(words) = field["enum"].as_array() {
        return words.iter().map(Value::as_str).collect();
    }
    let choices = field["oneOf"].as_array().or_else(|| field["anyOf"].as_array())?;
    choices.iter().map(|choice| choice["const"].as_str()).collect()
}

/// The value of an answer; `None` if it does not fit the field.
fn read(said: &str, field: &Value) -> Option<Value> {
    if let Some(words) = words(field) {
        return words.contains(&said).then(|| said.into());
    }
    match field["type"].as_str() {
        Some("boolean") => is_yes(said).map(Value::Bool),
        Some("integer") => said.parse::<i64>().ok().map(Into::into),
        Some("number") => said.parse::<f64>().ok().filter(|number| number.is_finite()).map(Into::into),
        Some("array") => {
            let words = words(&field["items"]);
            let all: Vec<&str> = said.split(',').map(str::trim).filter(|one| !one.is_empty()).collect();
            let is_good = |one: &&str| words.as_ref().is_none_or(|words| words.contains(one));
            all.iter().all(is_good).then(|| all.into())
        }
        _ => (!said.is_empty()).then(|| said.into()),
    }
}

fn is_yes(said: &str) -> Option<bool> {
    match said.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" | "true" => Some(true),
        "n" | "no" | "false" => Some(false),
        _ => None,
    }
}

fn shown(text: &str) -> String {
    ids::clean(&text.chars().take(SHOWN_MAX).collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prompt(typed: &str) -> TerminalPrompt<&[u8]> {
        TerminalPrompt { lines: typed.as_bytes(), screen: Box::new(std::io::sink()) }
    }

    async fn answer(typed: &str, schema: Value) -> Option<Value> {
        prompt(typed).form("s", "a question", &schema).await
    }

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "age": {"type": "integer"},
                "colour": {"type": "string", "enum": ["red", "blue"], "default": "blue"},
                "likes": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}},
                "name": {"type": "string"},
                "ok": {"type": "boolean"},
            },
            "required": ["name", "ok"],
        })
    }

    #[tokio::test]
    async fn each_field_is_asked_for_and_read_by_its_type() {
        let said = answer("7\nred\na, c\nAda\nyes\n", schema()).await;
        let expected = json!({"age": 7, "colour": "red", "likes": ["a", "c"], "name": "Ada", "ok": true});
        assert_eq!(said, Some(expected));
        // Optional fields are left out, and a default is used.
        let said = answer("\n\n\nAda\nn\n", schema()).await;
        assert_eq!(said, Some(json!({"colour": "blue", "name": "Ada", "ok": false})));
    }

    #[tokio::test]
    async fn an_invalid_answer_is_asked_for_again_and_then_declined() {
        let said = answer("x\n7\ngreen\nred\nz\n\nAda\nmaybe\ny\n", schema()).await;
        assert_eq!(said, Some(json!({"age": 7, "colour": "red", "name": "Ada", "ok": true})));
        assert_eq!(answer("a\nb\nc\n", schema()).await, None);
        assert_eq!(answer("7\n", schema()).await, None, "the end of the input");
        assert_eq!(answer("\n\n\n\n\n\n", schema()).await, None, "a name is required");
    }

    #[tokio::test]
    async fn a_form_without_fields_and_a_page_need_a_yes() {
        assert_eq!(answer("y\n", json!({"type": "object"})).await, Some(json!({})));
        assert_eq!(answer("\n", json!({"type": "object"})).await, None);
        assert!(prompt("yes\n").url("s", "m", "https://h/").await);
        assert!(!prompt("").url("s", "m", "https://h/").await);
    }
}
