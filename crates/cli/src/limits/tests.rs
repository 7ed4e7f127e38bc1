//! Checks the list against `docs/reference/limits.md`, its own ranges, and the constants that must be in it. Contains the rows of
//! `mcp serve`, which only that page shows.

use exec_server_mcp::serve::limits as mcp;

use super::*;

#[test]
fn values_are_printed_in_the_form_that_flags_accept() {
    for (value, text) in [
        (Bytes(16 << 20), "16MiB"),
        (Bytes(0), "0B"),
        (Bytes(1500), "1500B"),
        (Bytes(1 << 50), "1024TiB"),
        (Time(Duration::from_secs(86_400)), "24h"),
        (Time(Duration::from_secs(30 * 86_400)), "30d"),
        (Time(Duration::from_millis(1500)), "1500ms"),
        (Count(64), "64"),
    ] {
        assert_eq!(value.to_string(), text);
    }
}

/// The limits of `mcp serve`.
fn of_mcp_serve() -> Vec<Limit> {
    let ms = |ms| Time(Duration::from_millis(ms));
    limits! {
        "`mcp serve`: a message": Bytes(mcp::MESSAGE_BYTES as u64) => "413, or the end of the streams";
        "`mcp serve`: calls under way, of a session": Count(mcp::CALLS_OF_SESSION as u64) => "`isError`";
        "`mcp serve`: calls under way, of all sessions": Count(u64::from(mcp::CALLS)) => "`isError`";
        "`mcp serve`: sessions over HTTP": Count(mcp::SESSIONS as u64) => "503";
        "`mcp serve`: connections": Count(mcp::CONNECTIONS as u64) => "others wait to be accepted";
        "`mcp serve`: connections that have shown no token": Count(mcp::UNAUTHENTICATED as u64) =>
            "the oldest makes room for the next";
        "`mcp serve`: head of a request": Bytes(mcp::HEAD_BYTES as u64) => "431";
        "`mcp serve`: headers of a request": Count(mcp::HEADERS as u64) => "431";
        "`mcp serve`: time for the head of a request": Time(mcp::HEAD_WITHIN) => "the connection is closed";
        "`mcp serve`: time for its body": Time(mcp::BODY_WITHIN) => "408";
        "`mcp serve`: bytes of a command": Bytes(mcp::COMMAND_BYTES as u64) => "`isError`";
        "`mcp serve`: `timeout_ms` of a command": ms(mcp::TIMEOUT_MS) => "`isError`; the default is 2m";
        "`mcp serve`: bytes of output in one answer, of each stream": Bytes(mcp::OUTPUT_BYTES) =>
            "`isError`; the default is 64KiB, and the answer says how much is missing";
        "`mcp serve`: `wait_ms` of `read_output`": ms(mcp::WAIT_MS) => "`isError`";
        "`mcp serve`: processes of a session": Count(mcp::PROCESSES as u64) =>
            "one that has ended is forgotten, else `isError`";
        "`mcp serve`: lines of a file in one answer": Count(mcp::LINES) =>
            "`isError`; the default is 2000, and the answer says that there are more";
        "`mcp serve`: bytes of a line of a file": Bytes(mcp::LINE_BYTES as u64) => "it is truncated and marked so";
        "`mcp serve`: bytes of lines in one answer": Bytes(mcp::ANSWER_BYTES as u64) => "the rest is for the next one";
        "`mcp serve`: entries of a directory in one answer": Count(mcp::ENTRIES) => "`isError`; the default is 1000";
        "`mcp serve`: bytes of a file that is edited": Bytes(mcp::EDITED_BYTES) => "`isError`";
        "`mcp serve`: matches of a search": Count(mcp::RESULTS) => "`isError`; the default is 200";
        "`mcp serve`: bytes of a line that is found": Bytes(mcp::FOUND_LINE_BYTES) => "it is cut";
        "`mcp serve`: time of a search": ms(mcp::SEARCH_MS) => "it is truncated and marked so";
    }
}

/// The limits table of `docs/reference/limits.md`.
fn table() -> String {
    let mut text = "| what | default | flag of `serve` | at the limit |\n|---|---|---|---|\n".to_owned();
    for Limit { name, flag, default, when_reached, .. } in all().into_iter().chain(of_mcp_serve()) {
        let flag = flag.map_or_else(|| "–".to_owned(), |flag| format!("`--{flag}`"));
        text += &format!("| {name} | {default} | {flag} | {when_reached} |\n");
    }
    text
}

#[test]
fn limits_md_has_every_limit_as_it_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/limits.md");
    let page = std::fs::read_to_string(path).expect("read limits.md");
    let begin = "<!-- limits: made by `UPDATE=1 cargo test -p exec-server limits_md_has` -->\n";
    let end = "<!-- end of limits -->";
    let (before, rest) = page.split_once(begin).expect("limits.md has the mark of the table");
    let (table_now, after) = rest.split_once(end).expect("limits.md has the mark of the table's end");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, format!("{before}{begin}{}{end}{after}", table())).expect("write limits.md");
    } else {
        assert_eq!(table_now, table(), "limits.md is stale: UPDATE=1 cargo test -p exec-server limits_md_has");
    }
}

#[test]
fn a_default_lies_in_its_range_and_a_flag_has_one_limit() {
    let all = all();
    for limit in &all {
        let number = |value: LimitValue| match value {
            Bytes(n) | Count(n) => u128::from(n),
            Time(time) => time.as_millis(),
            Unbounded => u128::MAX,
        };
        if let Some((least, most)) = limit.range {
            let default = number(limit.default);
            assert!(number(least) <= default && default <= number(most), "{}", limit.name);
        }
        let same = all.iter().filter(|other| other.flag.is_some() && other.flag == limit.flag).count();
        assert!(same <= 1, "{:?}", limit.flag);
    }
}

/// Wire constants that are not listed as a limit, and the reason.
const NOT_LISTED: &[(&str, &str)] = &[
    ("CHUNK_BYTES", "how output is cut, nothing is refused"),
    ("FRAME_OUT_BYTES", "how messages are cut, nothing is refused"),
    ("CLOSED_ID_TAKEN", "a rule of the reference's ids"),
    ("REFERENCE_TTL", "in the row of `--session-ttl`"),
    ("SESSION_TTL", "in the row of `--session-ttl`"),
    ("CATCH_UP_WAIT", "how soon pushes to a resumed client begin"),
    ("ERROR_TEXT_BYTES", "how error texts are cut"),
    ("EVENT_OVERHEAD", "how the room in a log is counted"),
    ("READABLE_BYTES", "a promise: at least this stays readable"),
    ("UNREAD_BYTES", "in the row of `--memory-per-process`"),
    ("READ_WAIT", "a day, longer than any client waits"),
    ("ANSWERS_WAITING", "in the row of its bytes"),
    ("HANDLE_ID_BYTES", "names that the server makes"),
    ("SEARCH_MATCHES", "a default, in the row of its maximum"),
    ("SEARCH_LINE_BYTES", "how lines are cut"),
    ("SEARCH_LINE_BYTES_MAX", "how lines are cut"),
    ("SEARCH_FILE_BYTES", "default size above which a search skips files"),
    ("SEARCH_CONTEXT", "a range in PROTOCOL.md"),
    ("SEARCH_BYTES", "in the row of what a search finds in pages"),
    ("SEARCH_PAGE_BYTES", "how results are cut"),
    ("GLOB_RESULTS", "in the row of `fs/glob`"),
    ("SCAN_DEPTH", "a default, in the row of its maximum"),
    ("SCAN_TIME", "a default, in the row of its maximum"),
    ("WATCHED_DIRECTORIES", "a default, in the row of its maximum"),
    ("WATCH_SETTLE", "when changes are reported"),
    ("WATCH_SETTLE_MAX", "when changes are reported"),
    ("SESSION_KEY_BYTES", "a range in PROTOCOL.md"),
    ("ENDED_KEY_KEPT", "in the row of ended sessions"),
    ("HTTP_DELTA_BYTES", "what the reference may send"),
    ("HTTP_PIECES_KEPT", "a limit of the client, not of the server"),
    ("HTTP_BYTES_KEPT", "a limit of the client, not of the server"),
];

/// Constants that are the defaults of configuration values. The list takes them from the configuration.
const BY_CONFIG: &[&str] = &[
    "ACK_WINDOW_BYTES",
    "CLOSED_KEPT",
    "CLOSED_PROCESSES",
    "INCOMING_BYTES",
    "MEMORY_PER_PROCESS",
    "RUNNING_PROCESSES",
    "SESSIONS",
    "TAKEOVER_SILENCE",
];

#[test]
fn every_constant_of_the_wire_is_listed_or_says_why_not() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).expect("read our own source");
    let wire = read("protocol/src/limits.rs");
    let list = read("cli/src/limits.rs");
    let config = read("server/src/core/config.rs");
    let has = |text: &str, word: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.match_indices(word)
            .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
    };
    let names: Vec<&str> = wire
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split_once(':'))
        .map(|(name, _)| name)
        .collect();
    assert!(names.len() > 80, "the constants were found: {}", names.len());
    for name in &names {
        let is_listed = has(&list, &format!("wire::{name}"));
        let is_default = BY_CONFIG.contains(name) && has(&config, &format!("limits::{name}"));
        let is_exempt = NOT_LISTED.iter().any(|(exempt, _)| exempt == name);
        assert!(
            u8::from(is_listed) + u8::from(is_default) + u8::from(is_exempt) == 1,
            "{name}: listed {is_listed}, a default {is_default}, exempt {is_exempt}; it must be one of them"
        );
    }
    for name in BY_CONFIG.iter().chain(NOT_LISTED.iter().map(|(name, _)| name)) {
        assert!(names.contains(name), "the constant {name} no longer exists");
    }
}

#[test]
fn every_limit_of_mcp_serve_is_listed() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).expect("read our own source");
    let all = read("mcp/src/serve/limits.rs");
    let list = read("cli/src/limits/tests.rs");
    for (name, _) in all.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(':')) {
        assert!(list.contains(&format!("mcp::{name}")), "{name} is missing in the list");
    }
}
