//! Golden messages of every generation. Each one is decoded as its type and encoded again.
//!
//! A file is named `GENERATION.METHOD.WHAT.json`. Messages of the reference may lack members that we encode, and may contain nulls that we
//! omit. Our own messages must be encoded exactly as they were read.

use std::{collections::BTreeMap, path::Path};

use exec_server_protocol::{
    Empty, Incoming, command, decode, environment, fs, http, initialize,
    message::{self, encode_error, encode_notification, encode_request, encode_result},
    method::{METHODS, NOTIFICATIONS},
    process, session,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

struct Fixture {
    generation: String,
    method: String,
    what: String,
    text: String,
}

impl Fixture {
    fn name(&self) -> String {
        format!("{}.{}.{}", self.generation, self.method, self.what)
    }
}

#[test]
fn every_fixture_is_read_and_written_again() {
    for fixture in load() {
        let written = write_again(&fixture);
        let read: Value = serde_json::from_str(&fixture.text).expect("fixtures are JSON");
        let again: Value = serde_json::from_slice(&written).expect("what we write is JSON");
        if fixture.generation == "ours" {
            assert_eq!(again, read, "{}", fixture.name());
        } else if let Some(place) = lost(&read, &again, "") {
            panic!("{}: {place} of {read} became {again}", fixture.name());
        }
    }
}

#[test]
fn every_method_and_notification_has_a_fixture() {
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    for fixture in load() {
        *seen.entry((fixture.method, fixture.what)).or_default() += 1;
    }
    let has = |name: &str, what: &str| seen.contains_key(&(name.to_owned(), what.to_owned()));
    for method in METHODS {
        assert!(has(method.name, "request") && has(method.name, "result"), "{}", method.name);
    }
    for notification in NOTIFICATIONS {
        assert!(has(notification.name, "notification"), "{}", notification.name);
    }
}

fn load() -> Vec<Fixture> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut fixtures = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the fixtures are there") {
        let path = entry.expect("the fixtures can be listed").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("names are ASCII").to_owned();
        let parts: Vec<&str> = name.split('.').collect();
        let [generation, method, what, "json"] = parts[..] else {
            panic!("{name} is not named GENERATION.METHOD.WHAT.json");
        };
        fixtures.push(Fixture {
            generation: generation.to_owned(),
            method: method.replace('-', "/"),
            what: what.to_owned(),
            text: std::fs::read_to_string(&path).expect("fixtures are UTF-8"),
        });
    }
    assert!(fixtures.len() > 60, "only {} fixtures", fixtures.len());
    fixtures
}

fn write_again(fixture: &Fixture) -> Vec<u8> {
    let mut out = Vec::new();
    let incoming = decode(fixture.text.as_bytes()).unwrap_or_else(|error| panic!("{}: {error}", fixture.name()));
    match (incoming, fixture.what.as_str()) {
        (Incoming::Request { id, method, params, trace }, "request") => {
            assert_eq!(method, fixture.method);
            encode_request(&mut out, &id, &method, &*typed(fixture, params));
            if let Some(trace) = trace {
                out.pop();
                out.extend_from_slice(b",\"trace\":");
                serde_json::to_writer(&mut out, &trace).expect("a trace is JSON");
                out.push(b'}');
            }
        }
        (Incoming::Notification { method, params }, "notification") => {
            assert_eq!(method, fixture.method);
            if params.is_none() {
                return fixture.text.clone().into_bytes();
            }
            encode_notification(&mut out, &method, &*typed(fixture, params));
        }
        (Incoming::Response { id, result }, "result") => {
            encode_result(&mut out, &id, &*typed(fixture, Some(result)));
        }
        (Incoming::Error { id, error }, "error") => match error.kind() {
            Some(kind) => {
                assert_eq!(kind.code(), error.code, "{}", fixture.name());
                encode_error(&mut out, &id, error.code, kind, &error.message);
            }
            None => {
                let kind = exec_server_protocol::failure::Kind::Internal;
                encode_error(&mut out, &id, error.code, kind, &error.message);
            }
        },
        (other, what) => panic!("{} is no {what}: {other:?}", fixture.name()),
    }
    out
}

/// Decodes as `T` and encodes again.
fn through<'a, T: Deserialize<'a> + Serialize>(fixture: &Fixture, params: Option<&'a RawValue>) -> Box<RawValue> {
    let value: T = message::params(params).unwrap_or_else(|error| panic!("{}: {error}", fixture.name()));
    serde_json::value::to_raw_value(&value).expect("wire types are JSON")
}

fn typed(fixture: &Fixture, params: Option<&RawValue>) -> Box<RawValue> {
    match (fixture.method.as_str(), fixture.what.as_str()) {
        ("initialize", "request") => through::<initialize::InitializeParams>(fixture, params),
        ("initialize", _) => through::<initialize::InitializeResult>(fixture, params),
        ("process/start", "request") => through::<process::StartParams>(fixture, params),
        ("process/start", _) => through::<process::StartResult>(fixture, params),
        ("process/read", "request") => through::<process::ReadParams>(fixture, params),
        ("process/read", _) => through::<process::ReadResult>(fixture, params),
        ("process/write", "request") => through::<process::WriteParams<'_>>(fixture, params),
        ("process/write", _) => through::<process::WriteResult>(fixture, params),
        ("process/signal", "request") => through::<process::SignalParams>(fixture, params),
        ("process/signal", _) => through::<process::SignalResult>(fixture, params),
        ("process/terminate", "request") => through::<process::TerminateParams>(fixture, params),
        ("process/terminate", _) => through::<process::TerminateResult>(fixture, params),
        ("process/closeStdin", "request") => through::<process::CloseStdinParams>(fixture, params),
        ("process/closeStdin", _) => through::<process::CloseStdinResult>(fixture, params),
        ("process/resize", "request") => through::<process::ResizeParams>(fixture, params),
        ("process/resize", _) => through::<process::ResizeResult>(fixture, params),
        ("process/list", "request") => through::<process::ListParams>(fixture, params),
        ("process/list", _) => through::<process::ListResult>(fixture, params),
        ("process/subscribe", "request") => through::<process::SubscribeParams>(fixture, params),
        ("process/subscribe", _) => through::<process::SubscribeResult>(fixture, params),
        ("process/unsubscribe", "request") => through::<process::UnsubscribeParams>(fixture, params),
        ("process/unsubscribe", _) => through::<process::UnsubscribeResult>(fixture, params),
        ("process/forget", "request") => through::<process::ForgetParams>(fixture, params),
        ("process/forget", _) => through::<process::ForgetResult>(fixture, params),
        ("session/end", "request") => through::<session::EndParams>(fixture, params),
        ("session/end", _) => through::<session::EndResult>(fixture, params),
        ("environment/info", "result") => through::<environment::InfoResult>(fixture, params),
        ("environment/status", "result") => through::<environment::StatusResult>(fixture, params),
        ("environment/info" | "environment/status", _) => through::<Empty>(fixture, params),
        ("fs/readFile", "request") => through::<fs::ReadFileParams>(fixture, params),
        ("fs/readFile", _) => through::<fs::ReadFileResult>(fixture, params),
        ("fs/writeFile", "request") => through::<fs::WriteFileParams<'_>>(fixture, params),
        ("fs/writeFile", _) => through::<fs::WriteFileResult>(fixture, params),
        ("fs/createDirectory", "request") => through::<fs::CreateDirectoryParams>(fixture, params),
        ("fs/createDirectory", _) => through::<fs::CreateDirectoryResult>(fixture, params),
        ("fs/getMetadata", "request") => through::<fs::GetMetadataParams>(fixture, params),
        ("fs/getMetadata", _) => through::<fs::GetMetadataResult>(fixture, params),
        ("fs/setMetadata", "request") => through::<fs::SetMetadataParams>(fixture, params),
        ("fs/setMetadata", _) => through::<fs::SetMetadataResult>(fixture, params),
        ("fs/canonicalize", "request") => through::<fs::CanonicalizeParams>(fixture, params),
        ("fs/canonicalize", _) => through::<fs::CanonicalizeResult>(fixture, params),
        ("fs/readDirectory", "request") => through::<fs::ReadDirectoryParams>(fixture, params),
        ("fs/readDirectory", _) => through::<fs::ReadDirectoryResult>(fixture, params),
        ("fs/walk", "request") => through::<fs::WalkParams>(fixture, params),
        ("fs/walk", _) => through::<fs::WalkResult>(fixture, params),
        ("fs/remove", "request") => through::<fs::RemoveParams>(fixture, params),
        ("fs/remove", _) => through::<fs::RemoveResult>(fixture, params),
        ("fs/copy", "request") => through::<fs::CopyParams>(fixture, params),
        ("fs/copy", _) => through::<fs::CopyResult>(fixture, params),
        ("fs/createSymlink", "request") => through::<fs::CreateSymlinkParams>(fixture, params),
        ("fs/createSymlink", _) => through::<fs::CreateSymlinkResult>(fixture, params),
        ("fs/open", "request") => through::<fs::OpenParams>(fixture, params),
        ("fs/open", _) => through::<fs::OpenResult>(fixture, params),
        ("fs/readBlock", "request") => through::<fs::ReadBlockParams>(fixture, params),
        ("fs/readBlock", _) => through::<fs::ReadBlockResult>(fixture, params),
        ("fs/close", "request") => through::<fs::CloseParams>(fixture, params),
        ("fs/close", _) => through::<fs::CloseResult>(fixture, params),
        ("fs/create", "request") => through::<fs::CreateParams>(fixture, params),
        ("fs/create", _) => through::<fs::CreateResult>(fixture, params),
        ("fs/writeBlock", "request") => through::<fs::WriteBlockParams<'_>>(fixture, params),
        ("fs/writeBlock", _) => through::<fs::WriteBlockResult>(fixture, params),
        ("fs/commit", "request") => through::<fs::CommitParams>(fixture, params),
        ("fs/commit", _) => through::<fs::CommitResult>(fixture, params),
        ("http/request", "request") => through::<http::RequestParams>(fixture, params),
        ("http/request", _) => through::<http::RequestResult>(fixture, params),
        ("http/cancel", "request") => through::<http::CancelParams>(fixture, params),
        ("http/cancel", _) => through::<http::CancelResult>(fixture, params),
        ("http/request/ack", _) => through::<http::AckParams>(fixture, params),
        ("http/request/bodyDelta", _) => through::<http::BodyDeltaParams<'_>>(fixture, params),
        ("command/exec", "request") => through::<command::ExecParams>(fixture, params),
        ("command/exec", _) => through::<command::ExecResult>(fixture, params),
        ("command/exec/write", "request") => through::<command::WriteParams<'_>>(fixture, params),
        ("command/exec/write", _) => through::<command::WriteResult>(fixture, params),
        ("command/exec/terminate", "request") => through::<command::TerminateParams>(fixture, params),
        ("command/exec/terminate", _) => through::<command::TerminateResult>(fixture, params),
        ("fs/search", "request") => through::<fs::SearchParams>(fixture, params),
        ("fs/searchNext", "request") => through::<fs::SearchNextParams>(fixture, params),
        ("fs/search" | "fs/searchNext", _) => through::<fs::SearchResult>(fixture, params),
        ("fs/glob", "request") => through::<fs::GlobParams>(fixture, params),
        ("fs/glob", _) => through::<fs::GlobResult>(fixture, params),
        ("fs/watch", "request") => through::<fs::WatchParams>(fixture, params),
        ("fs/watch", _) => through::<fs::WatchResult>(fixture, params),
        ("fs/watchNext", "request") => through::<fs::WatchNextParams>(fixture, params),
        ("fs/watchNext", _) => through::<fs::WatchNextResult>(fixture, params),
        ("initialized", _) => through::<Empty>(fixture, params),
        ("process/ack", _) => through::<process::AckParams>(fixture, params),
        ("process/output", _) => through::<process::OutputParams>(fixture, params),
        ("process/exited", _) => through::<process::ExitedParams>(fixture, params),
        ("process/closed", _) => through::<process::ClosedParams>(fixture, params),
        ("process/gap", _) => through::<process::GapParams>(fixture, params),
        ("process/channel", _) => through::<process::ChannelParams>(fixture, params),
        ("command/exec/outputDelta", _) => through::<command::OutputDeltaParams>(fixture, params),
        ("command/exec/exited", _) => through::<command::ExitedParams>(fixture, params),
        (method, what) => panic!("no type for {method} {what}"),
    }
}

/// The path of the first member of `read` that is missing or different in `again`. A null or a false may be missing.
fn lost(read: &Value, again: &Value, place: &str) -> Option<String> {
    match (read, again) {
        (Value::Object(read), Value::Object(again)) => read.iter().find_map(|(key, value)| {
            let place = format!("{place}/{key}");
            match again.get(key) {
                Some(other) => lost(value, other, &place),
                None if value.is_null() || *value == Value::Bool(false) => None,
                None => Some(place),
            }
        }),
        (Value::Array(read), Value::Array(again)) if read.len() == again.len() => {
            read.iter().zip(again).find_map(|(read, again)| lost(read, again, place))
        }
        _ if read == again => None,
        _ => Some(place.to_owned()),
    }
}
