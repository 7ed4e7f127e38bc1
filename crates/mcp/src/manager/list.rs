//! Reads paged lists completely, within limits.

use std::{collections::BTreeSet, time::Duration};

use rmcp::model::ServerCapabilities;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time;

use super::{connection::ServerConnection, error::Error};

/// The maximum number of pages and items of one list, and the maximum length of a cursor. Without these limits, a broken server could send
/// pages without end.
const PAGES: usize = 100;
const ITEMS: usize = 2048;
const CURSOR_BYTES: usize = 64 << 10; // 64 KiB

/// A kind of list.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListKind {
    method: &'static str,
    key: &'static str,
    /// Whether a server has such a list. Without the capability the list is empty.
    is_offered: fn(&ServerCapabilities) -> bool,
}

pub(super) const TOOLS: ListKind =
    ListKind { method: "tools/list", key: "tools", is_offered: |server| server.tools.is_some() };
pub(super) const RESOURCES: ListKind =
    ListKind { method: "resources/list", key: "resources", is_offered: |server| server.resources.is_some() };
pub(super) const RESOURCE_TEMPLATES: ListKind =
    ListKind { method: "resources/templates/list", key: "resourceTemplates", ..RESOURCES };
pub(super) const PROMPTS: ListKind =
    ListKind { method: "prompts/list", key: "prompts", is_offered: |server| server.prompts.is_some() };

/// Returns the items of all pages, within the time limit. Items that cannot be parsed are left out.
pub(super) async fn list<T: DeserializeOwned>(
    connection: &ServerConnection,
    kind: ListKind,
    within: Duration,
) -> Result<Vec<T>, Error> {
    if !connection.info.as_ref().is_some_and(|info| (kind.is_offered)(&info.capabilities)) {
        return Ok(Vec::new());
    }
    let pages = pages(connection, kind);
    let timed_out = |_| Error::Timeout { server: connection.server.clone(), method: kind.method.to_owned(), within };
    time::timeout(within, pages).await.map_err(timed_out)?
}

async fn pages<T: DeserializeOwned>(connection: &ServerConnection, kind: ListKind) -> Result<Vec<T>, Error> {
    let server = &connection.server;
    let unreadable = |reason: String| Error::Unreadable { server: server.clone(), method: kind.method, reason };
    let mut items = Vec::new();
    let mut seen = BTreeSet::new();
    let mut params = None;
    for _ in 0..PAGES {
        let mut page = connection.request(kind.method, params, None, None).await?;
        let Some(Value::Array(found)) = page.get_mut(kind.key).map(Value::take) else {
            return Err(unreadable(format!("the result has no list `{}`", kind.key)));
        };
        if items.len() + found.len() > ITEMS {
            return Err(unreadable(format!("more than {ITEMS} items")));
        }
        for item in found {
            match T::deserialize(item) {
                Ok(item) => items.push(item),
                Err(error) => tracing::warn!(server, method = kind.method, %error, "an unreadable item is left out"),
            }
        }
        let cursor = match page.get_mut("nextCursor").map(Value::take) {
            Some(Value::String(cursor)) if !cursor.is_empty() => cursor,
            Some(Value::String(_) | Value::Null) | None => return Ok(items),
            Some(_) => return Err(unreadable("`nextCursor` is not a string".to_owned())),
        };
        if cursor.len() > CURSOR_BYTES {
            return Err(unreadable(format!("a `nextCursor` of more than {} KiB", CURSOR_BYTES >> 10)));
        }
        params = Some(json!({ "cursor": cursor }));
        if !seen.insert(cursor) {
            return Err(unreadable("the same `nextCursor` twice, so the list has no end".to_owned()));
        }
    }
    Err(unreadable(format!("more than {PAGES} pages")))
}
