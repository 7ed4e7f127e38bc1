//! Runs the examples of `PROTOCOL.md` against a real server, and checks its tables against the protocol crate. The beginning of that page
//! says how to read an example.

use crate::prelude::*;
use exec_server_protocol::{
    capabilities::ServerCapabilities,
    failure::Kind,
    limits,
    method::{METHODS, NOTIFICATIONS},
};

/// A line of an example.
#[derive(Debug)]
enum Line {
    Send {
        second: bool,
        text: String,
    },
    Receive {
        second: bool,
        message: Value,
    },
    /// Skips further messages, up to the one that is expected next.
    Skip {
        second: bool,
    },
}

/// The blocks that are examples, each with the number of its first line.
fn examples(page: &str) -> Vec<(usize, Vec<Line>)> {
    let mut found = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line != "```json" {
            continue;
        }
        let block = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        found.push((number + 2, block.map(parse).collect()));
    }
    found
}

fn parse(line: &str) -> Line {
    let (second, rest) = match line.strip_prefix('2') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    if let Some(text) = rest.strip_prefix("-> ") {
        return Line::Send { second, text: text.to_owned() };
    }
    match rest.strip_prefix("<- ") {
        Some("…") => Line::Skip { second },
        Some(text) => {
            let message = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            Line::Receive { second, message }
        }
        None => panic!("neither to nor from the server: {line}"),
    }
}

/// An example that is being run.
struct Play<'a> {
    server: &'a TestServer,
    clients: BTreeMap<bool, Client>,
    /// The values of the placeholders.
    values: BTreeMap<String, Value>,
    /// Messages expected since the last request.
    expected: Vec<(bool, Value)>,
}

impl<'a> Play<'a> {
    fn run(server: &'a TestServer, lines: Vec<Line>) {
        let mut play = Self { server, clients: BTreeMap::new(), values: BTreeMap::new(), expected: Vec::new() };
        let begins = |text: &str| text.contains("\"initialize\"") || text.contains("\"command/");
        let Some(Line::Send { text, .. }) = lines.first() else {
            panic!("an example begins with a message to the server")
        };
        let mut first = server.connect();
        if !begins(text) {
            play.values.insert("$sessionId".to_owned(), json!(first.initialize()));
        }
        play.values.insert("$readyz".to_owned(), json!(format!("http://{}/readyz", server.address())));
        play.clients.insert(false, first);
        let mut lines = lines.into_iter();
        while let Some(line) = lines.next() {
            match line {
                Line::Send { second, text } => {
                    play.settle();
                    let text = play.filled(&text);
                    play.client(second).send_text(&text);
                }
                Line::Receive { second, message } => play.expected.push((second, message)),
                Line::Skip { second } => {
                    play.settle();
                    match lines.next() {
                        Some(Line::Receive { message, .. }) => play.skip_to(second, &message),
                        Some(Line::Send { .. } | Line::Skip { .. }) | None => {}
                    }
                }
            }
        }
        play.settle();
    }

    fn client(&mut self, second: bool) -> &mut Client {
        let server = self.server;
        self.clients.entry(second).or_insert_with(|| server.connect())
    }

    /// Replaces placeholders by their values.
    fn filled(&self, text: &str) -> String {
        self.values
            .iter()
            .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("\"{name}\""), &value.to_string()))
    }

    /// Receives as many messages as are expected; each must match one of them.
    fn settle(&mut self) {
        let mut expected = std::mem::take(&mut self.expected);
        for second in [false, true] {
            let count = expected.iter().filter(|(whose, _)| *whose == second).count();
            for _ in 0..count {
                let message = self.client(second).next();
                let at =
                    expected.iter().position(|(whose, expected)| *whose == second && self.agrees(expected, &message));
                let at = at.unwrap_or_else(|| panic!("{message}\nis none of {expected:#?}"));
                let (_, expected) = expected.remove(at);
                self.learn(&expected, &message);
            }
        }
    }

    fn skip_to(&mut self, second: bool, expected: &Value) {
        loop {
            let message = self.client(second).next();
            if self.agrees(expected, &message) {
                return self.learn(expected, &message);
            }
        }
    }

    fn agrees(&self, expected: &Value, actual: &Value) -> bool {
        match (expected, actual) {
            (Value::String(name), actual) if name.starts_with('$') => {
                self.values.get(name).is_none_or(|known| known == actual) && !actual.is_null()
            }
            (Value::Object(expected), Value::Object(actual)) => {
                let is_open = expected.contains_key("…");
                let named = expected.iter().filter(|(key, _)| *key != "…");
                let all =
                    named.clone().all(|(key, value)| actual.get(key).is_some_and(|actual| self.agrees(value, actual)));
                all && (is_open || named.count() == actual.len())
            }
            (Value::Array(expected), Value::Array(actual)) => {
                expected.len() == actual.len()
                    && expected.iter().zip(actual).all(|(expected, actual)| self.agrees(expected, actual))
            }
            (expected, actual) => expected == actual,
        }
    }

    /// Records the values of the placeholders in a message.
    fn learn(&mut self, expected: &Value, actual: &Value) {
        match (expected, actual) {
            (Value::String(name), actual) if name.starts_with('$') => {
                self.values.insert(name.clone(), actual.clone());
            }
            (Value::Object(expected), Value::Object(actual)) => {
                for (key, value) in expected {
                    if let Some(actual) = actual.get(key) {
                        self.learn(value, actual);
                    }
                }
            }
            (Value::Array(expected), Value::Array(actual)) => {
                expected.iter().zip(actual).for_each(|(expected, actual)| self.learn(expected, actual));
            }
            _ => {}
        }
    }
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../PROTOCOL.md");
    fs::read_to_string(path).expect("PROTOCOL.md is at the root of the repository")
}

/// The rows of the table whose header begins with these cells, without backticks.
fn table(page: &str, header: &str) -> Vec<Vec<String>> {
    let rows =
        page.lines().skip_while(|line| !line.starts_with(header)).skip(2).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| {
        row.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`').to_owned()).collect::<Vec<String>>()
    };
    let rows: Vec<Vec<String>> = rows.map(cells).collect();
    assert!(!rows.is_empty(), "no table `{header}`");
    rows
}

#[test]
fn every_example_holds() {
    let server = TestServer::start();
    let page = page();
    let examples = examples(&page);
    assert!(examples.len() >= 20);
    for (number, lines) in examples {
        // Shown only when the test fails.
        println!("example at PROTOCOL.md:{number}");
        Play::run(&server, lines);
    }
}

#[test]
fn every_method_and_notification_has_a_section_and_an_example() {
    let page = page();
    let mut shown = BTreeSet::new();
    for (_, lines) in examples(&page) {
        for line in lines {
            let method = match line {
                Line::Send { text, .. } => {
                    serde_json::from_str::<Value>(&text).ok().map(|message| message["method"].clone())
                }
                Line::Receive { message, .. } => Some(message["method"].clone()),
                Line::Skip { .. } => None,
            };
            shown.extend(method.as_ref().and_then(Value::as_str).map(str::to_owned));
        }
    }
    let names = METHODS.iter().map(|method| method.name).chain(NOTIFICATIONS.iter().map(|note| note.name));
    for name in names {
        assert!(page.lines().any(|line| line.starts_with(&format!("### `{name}`"))), "no section on `{name}`");
        assert!(shown.contains(name), "no example of `{name}`");
    }
}

#[test]
fn the_table_of_error_kinds_is_complete() {
    let expected: Vec<Vec<String>> = Kind::ALL
        .iter()
        .map(|kind| vec![kind.as_str().to_owned(), kind.code().to_string(), kind.description().to_owned()])
        .collect();
    // The last cell may itself begin or end with a backtick.
    let marks = |rows: Vec<Vec<String>>| -> Vec<Vec<String>> {
        rows.into_iter().map(|row| row.into_iter().map(|cell| cell.trim_matches('`').to_owned()).collect()).collect()
    };
    assert_eq!(marks(table(&page(), "| Kind | Code |")), marks(expected));
}

#[test]
fn every_error_kind_that_a_method_names_exists() {
    let page = page();
    let errors = page.split("Errors: ").skip(1).chain(page.split("Error: ").skip(1));
    for text in errors.filter_map(|text| text.split(['.', '\n']).next()) {
        for word in text.split('`').skip(1).step_by(2).filter(|word| !word.contains('/')) {
            assert!(Kind::find(word).is_some(), "`{word}` in `{text}`");
        }
    }
}

#[test]
fn the_table_of_limits_is_true() {
    let bytes = |n: u64| format!("{n} bytes");
    let expected = [
        ("message, frame or line in", bytes(limits::MESSAGE_BYTES as u64)),
        ("frame out", bytes(limits::FRAME_OUT_BYTES as u64)),
        ("depth of a message", limits::DEPTH.to_string()),
        ("values in a message", limits::VALUES.to_string()),
        ("chunk of output", bytes(limits::CHUNK_BYTES as u64)),
        ("output in one `process/read", bytes(limits::READ_BYTES as u64)),
        ("window of acknowledgement", bytes(limits::ACK_WINDOW_BYTES)),
        ("starts that run", limits::STARTS_RUNNING.to_string()),
        ("starts that wait", limits::STARTS_WAITING.to_string()),
        ("bytes of requests that wait", bytes(limits::REQUESTS_WAITING_BYTES as u64)),
        ("reads that wait", limits::READS_WAITING.to_string()),
        ("write ids remembered per process", limits::REMEMBERED_WRITES.to_string()),
        ("closed processes kept per session", limits::CLOSED_PROCESSES.to_string()),
        ("name of a process", bytes(limits::PROCESS_ID_BYTES as u64)),
        ("program and arguments kept of a process", bytes(limits::KEPT_ARGV_BYTES as u64)),
        ("answer of `process/list", bytes(limits::LIST_BYTES as u64)),
        ("file in one message", bytes(limits::FILE_BYTES as u64)),
        ("block of a file", bytes(limits::BLOCK_BYTES as u64)),
        ("files open for reading per session, and drafts", limits::OPEN_FILES.to_string()),
        ("name of an open file", bytes(limits::HANDLE_ID_BYTES as u64)),
        ("entries of a directory, or of a walk", limits::DIRECTORY_ENTRIES.to_string()),
        ("levels of a walk", limits::WALK_DEPTH.to_string()),
        ("directories of a walk", limits::WALK_DIRECTORIES.to_string()),
        ("answer of a walk", bytes(limits::WALK_BYTES as u64)),
        ("searches and globs under way per connection", limits::SEARCHES.to_string()),
        ("watches per connection", limits::WATCHES.to_string()),
        ("searches of all connections, and watches", limits::SEARCHES_OF_SERVER.to_string()),
        ("results of a search or glob in one answer", bytes(limits::SEARCH_BYTES as u64)),
        ("results of a search in pages", bytes(limits::SEARCH_PAGED_BYTES as u64)),
        ("HTTP requests under way per connection", limits::HTTP_REQUESTS.to_string()),
        ("HTTP requests of all connections", limits::HTTP_REQUESTS_OF_SERVER.to_string()),
        ("body in the answer to `http/request", bytes(limits::HTTP_BODY_BYTES as u64)),
        ("piece of a streamed body", bytes(limits::HTTP_DELTA_BYTES as u64)),
        ("headers of an HTTP request, and of its answer", limits::HTTP_HEADERS.to_string()),
        ("names and values of those headers", bytes(limits::HTTP_HEADER_BYTES as u64)),
        ("URL of an HTTP request", bytes(limits::HTTP_URL_BYTES as u64)),
        ("name of an HTTP request", bytes(limits::HTTP_REQUEST_ID_BYTES as u64)),
        ("redirects of an HTTP request", limits::HTTP_REDIRECTS.to_string()),
        ("error text", bytes(limits::ERROR_TEXT_BYTES as u64)),
    ];
    let expected: Vec<Vec<String>> = expected.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    assert_eq!(table(&page(), "| Limit | Value |"), expected);
}

#[test]
fn the_table_of_capabilities_is_what_the_server_announces() {
    let served = serde_json::to_value(ServerCapabilities::served()).expect("capabilities serialize");
    let told: BTreeMap<String, Value> = table(&page(), "| Server | Value |")
        .into_iter()
        .map(|row| (row[0].clone(), serde_json::from_str(&row[1]).expect("a JSON value")))
        .collect();
    let served: BTreeMap<String, Value> = served.as_object().expect("an object").clone().into_iter().collect();
    assert_eq!(told, served);
}
