//! Golden messages of every generation. Each one is decoded as its type and encoded again.
//!
//! A file is named `GENERATION.METHOD.WHAT.json`. Messages of the reference may lack members that we encode, and may contain nulls that we
//! omit. Our own messages must be encoded exactly as they were read.

use std::{collections::BTreeMap, path::Path};

use exec_server_protocol::{
    Incoming, decode,
    message::{self, encode_error, encode_notification, encode_request, encode_result},
    method::{METHODS, Message, Method, NOTIFICATIONS, Notification, TypeVisitor},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
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
fn every_fixture_round_trips() {
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

/// Decodes as the type of the message and encodes again.
struct ThroughType<'a> {
    fixture: &'a Fixture,
    params: Option<&'a RawValue>,
}

impl<'a> ThroughType<'a> {
    fn through<T: Deserialize<'a> + Serialize>(self) -> Box<RawValue> {
        let value: T = message::params(self.params).unwrap_or_else(|error| panic!("{}: {error}", self.fixture.name()));
        serde_json::value::to_raw_value(&value).expect("wire types are JSON")
    }
}

impl<'a> TypeVisitor for ThroughType<'a> {
    type Output = Box<RawValue>;

    fn visit_params<M: Message>(self) -> Box<RawValue> {
        self.through::<M::Params<'a>>()
    }

    fn visit_result<T: Serialize + DeserializeOwned>(self) -> Box<RawValue> {
        self.through::<T>()
    }
}

fn typed(fixture: &Fixture, params: Option<&RawValue>) -> Box<RawValue> {
    let visitor = ThroughType { fixture, params };
    let (name, what) = (fixture.method.as_str(), fixture.what.as_str());
    match (Method::find(name), Notification::find(name), what) {
        (Some(method), None, "request") => method.visit_params(visitor),
        (Some(method), None, "result") => method.visit_result(visitor),
        (None, Some(notification), "notification") => notification.visit_params(visitor),
        _ => panic!("no type for {name} {what}"),
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
