//! Prints servers, tools and results: as tables for people, as JSON for programs.

use std::io::{self, IsTerminal as _};

use exec_server_mcp::{
    config::{Placement, ServerConfig, ServerTransport},
    manager::place_of,
};
use serde_json::{Map, Value};

use crate::{
    display::{self, Palette, TableCell},
    ids, print, printable,
};

/// Maximum width of the last column, on a terminal of any width, and maximum length of an item's description.
const LAST_MAX: usize = 200;

/// Formats a table of texts from a configuration or a server. The last column is cut so that a line fits into `width` cells.
pub(super) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]], width: usize) -> String {
    let rows = rows.iter().map(|row| {
        let mut cells = row.each_ref().map(|cell| ids::clean(cell));
        cells[N - 1] = display::fit(&cells[N - 1], LAST_MAX);
        cells.map(TableCell::from)
    });
    display::table(heads, rows.collect(), Palette::of_stdout(), width)
}

/// Where a server runs, in one word. For a URL, without the parts that may contain a token.
pub(super) fn environment(server: &ServerConfig) -> String {
    match &server.placement {
        Placement::Local => "local".to_owned(),
        Placement::Remote => "remote".to_owned(),
        Placement::Named(name) => name.clone(),
        Placement::Url(url) => place_of(url),
    }
}

/// The program or the address of a server. Arguments and queries are omitted because they may contain secrets.
pub(super) fn target(server: &ServerConfig) -> String {
    match &server.transport {
        ServerTransport::Stdio(stdio) => stdio.command.clone(),
        ServerTransport::Http(http) => place_of(&http.url),
    }
}

/// The JSON fields common to all listings of a server.
pub(super) fn server(name: &str, config: &ServerConfig, state: &str, reason: Option<&str>) -> Map<String, Value> {
    let mut shown = Map::new();
    shown.insert("name".to_owned(), name.into());
    shown.insert("state".to_owned(), state.into());
    if let Some(reason) = reason {
        shown.insert("reason".to_owned(), reason.into());
    }
    shown.insert("environment".to_owned(), environment(config).into());
    let is_stdio = matches!(config.transport, ServerTransport::Stdio(_));
    shown.insert("transport".to_owned(), if is_stdio { "stdio" } else { "http" }.into());
    shown
}

/// Prints the result of a call: its texts, or with `json` the whole result on one line.
pub(super) fn result(result: &Value, json: bool) -> anyhow::Result<()> {
    if json {
        return print::json(&format!("{result}\n"));
    }
    let (text, other) = plain(result);
    for kind in other {
        report!("{kind} is not shown; see --json");
    }
    // A tool must not control the terminal, so escape control characters there. A pipe gets the text unchanged.
    let text = if io::stdout().is_terminal() { printable::clean_lines(&text) } else { text };
    print::put(text.as_bytes())
}

/// The texts of a result, each ending with a newline, and descriptions of the other items. Without any items, the text is
/// `structuredContent`.
fn plain(result: &Value) -> (String, Vec<String>) {
    let mut text = String::new();
    let mut other = Vec::new();
    let empty = Vec::new();
    let items = result["content"].as_array().unwrap_or(&empty);
    for item in items {
        let said = match item["type"].as_str() {
            Some("text") => item["text"].as_str(),
            Some("resource") => item["resource"]["text"].as_str(),
            Some("resource_link") => item["uri"].as_str(),
            _ => None,
        };
        match said {
            Some(said) => {
                text += said;
                if !said.ends_with('\n') {
                    text.push('\n');
                }
            }
            None => other.push(describe(item)),
        }
    }
    if items.is_empty() && !result["structuredContent"].is_null() {
        text = format!("{}\n", result["structuredContent"]);
    }
    (text, other)
}

/// Describes an item that has no text.
fn describe(item: &Value) -> String {
    let kind = item["type"].as_str().unwrap_or("an item");
    let mime = item["mimeType"].as_str().or_else(|| item["resource"]["mimeType"].as_str());
    let mime = mime.map(|mime| format!(" ({mime})")).unwrap_or_default();
    ids::clean(&format!("content of the kind `{kind}`{mime}").chars().take(LAST_MAX).collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_fit_and_control_characters_are_escaped() {
        let rows = [
            ["git".to_owned(), "log".to_owned(), "shows \x1b[2J the log of a repository".to_owned()],
            ["a-long-name".to_owned(), String::new(), String::new()],
        ];
        let heads = ["SERVER", "TOOL", "DESCRIPTION"];
        let expected = "\
SERVER       TOOL  DESCRIPTION
git          log   shows \\u{1b}[2J the log of a repository
a-long-name
";
        assert_eq!(table(heads, &rows, 0), expected);
        assert_eq!(table(heads, &rows, 35).lines().nth(1), Some("git          log   shows \\u{1b}[2J…"));
    }

    #[test]
    fn urls_are_shown_without_parts_that_may_be_secret() {
        for (url, shown) in [
            ("ws://h:4000/?token=secret", "ws://h:4000/"),
            ("https://me:secret@h/mcp/a@b#secret", "https://h/mcp/a@b"),
            ("stdio:run --token secret", "stdio:run"),
            ("unix:///run/x.sock", "unix:///run/x.sock"),
        ] {
            assert_eq!(place_of(url), shown);
        }
    }

    #[test]
    fn texts_of_a_result_are_printed_and_other_items_are_named() {
        let result = json!({"content": [
            {"type": "text", "text": "one"},
            {"type": "image", "mimeType": "image/png", "data": "AA=="},
            {"type": "resource", "resource": {"uri": "a:b", "text": "two\n"}},
            {"type": "resource_link", "uri": "a:c"},
        ], "structuredContent": {"x": 1}});
        let other = vec!["content of the kind `image` (image/png)".to_owned()];
        assert_eq!(plain(&result), ("one\ntwo\na:c\n".to_owned(), other));
        assert_eq!(plain(&json!({"structuredContent": {"x": 1}})), ("{\"x\":1}\n".to_owned(), Vec::new()));
        assert_eq!(plain(&json!({})), (String::new(), Vec::new()));
    }
}
