//! Tests of the decoder: classification of messages, limits, and agreement with serde_json on which texts are JSON.

#![allow(clippy::disallowed_methods, reason = "the bounds are also bounds in time, which is measured here")]

use std::time::{Duration, Instant};

use exec_server_protocol::{
    Incoming, RequestId, decode,
    message::{self, DecodeError, ScanError},
    process,
};
use proptest::prelude::*;
use serde_json::Value;

/// A one-line description of a message, or of the error.
fn describe(text: &[u8]) -> String {
    match decode(text) {
        Ok(Incoming::Request { id, method, params, .. }) => {
            format!("request {id} {method} {}", params.map_or("-", |params| params.get()))
        }
        Ok(Incoming::Notification { method, params }) => {
            format!("notification {method} {}", params.map_or("-", |params| params.get()))
        }
        Ok(Incoming::Response { id, result }) => format!("response {id} {result}"),
        Ok(Incoming::Error { id, error }) => format!("error {id} {} {}", error.code, error.message),
        Err(error) => error.to_string(),
    }
}

#[test]
fn messages_are_classified_strictly() {
    for (text, expected) in [
        (r#"{"id":1,"method":"a"}"#, "request 1 a -"),
        (r#" { "method" : "a" , "id" : "x" , "params" : { } } "#, r#"request "x" a { }"#),
        (r#"{"id":-9223372036854775808,"method":"a","params":null}"#, "request -9223372036854775808 a -"),
        (r#"{"jsonrpc":"2.0","id":"","method":"","params":[1]}"#, r#"request ""  [1]"#),
        (r#"{"method":"process\/\u0061ck"}"#, "notification process/ack -"),
        (r#"{"meth\u006fd":"a","id":1,"\u0070arams":1}"#, "request 1 a 1"),
        (r#"{"method":"a","params":1e999}"#, "notification a 1e999"),
        (r#"{"method":"a","params":0.10000000000000000000001}"#, "notification a 0.10000000000000000000001"),
        (r#"{"id":1,"result":null}"#, "response 1 null"),
        (r#"{"id":1,"result":{"a":[]},"error":{"code":1,"message":"m"}}"#, r#"response 1 {"a":[]}"#),
        (r#"{"id":1,"method":"a","result":1}"#, "request 1 a -"),
        (r#"{"id":1,"error":{"code":-32600,"message":"m\n","data":{}}}"#, "error 1 -32600 m\n"),
        (r#"{"id":null,"method":"a"}"#, "the member `id` has a wrong type"),
        (r#"{"id":1.0,"method":"a"}"#, "the member `id` has a wrong type"),
        (r#"{"id":-0,"method":"a"}"#, "the member `id` has a wrong type"),
        (r#"{"id":9223372036854775808,"method":"a"}"#, "the member `id` has a wrong type"),
        (r#"{"id":{},"method":"a"}"#, "the member `id` has a wrong type"),
        (r#"{"id":1,"method":2}"#, "the member `method` has a wrong type"),
        (r#"{"id":1,"method":null}"#, "the member `method` has a wrong type"),
        (r#"{"id":1,"method":"a","trace":3}"#, "the member `trace` has a wrong type"),
        (r#"{"result":1}"#, "the message lacks the member `id`"),
        (r#"{"id":1,"error":"x"}"#, "the member `error` has a wrong type"),
        (r#"{"id":1,"error":[1,"x"]}"#, "the member `error` has a wrong type"),
        (r#"{"id":1}"#, "the message lacks the member `method`"),
        ("{}", "the message lacks the member `method`"),
        ("[]", "the message is not a JSON object"),
        ("3", "the message is not a JSON object"),
        ("", "the JSON text ends too early"),
        ("   ", "the JSON text ends too early"),
        (r#"{"method":"a""#, "the JSON text ends too early"),
        (r#"{"method":"a"}{}"#, "invalid JSON at byte 14"),
        (r#"{"method":"a",}"#, "invalid JSON at byte 14"),
        (r#"{"method":"\ud800"}"#, "invalid JSON at byte 17"),
        ("{\"method\":\"\u{1}\"}", "invalid JSON at byte 11"),
    ] {
        assert_eq!(describe(text.as_bytes()), expected, "{text}");
    }
    assert_eq!(describe(b"{\"method\":\"\xff\"}"), "the message is not UTF-8 at byte 11");
}

#[test]
fn a_trace_decodes_and_null_means_none() {
    let text = br#"{"id":1,"method":"a","trace":{"traceparent":"00-1","x":1}}"#;
    let Ok(Incoming::Request { trace: Some(trace), .. }) = decode(text) else { panic!("no trace") };
    assert_eq!((trace.traceparent.as_deref(), trace.tracestate), (Some("00-1"), None));
    let text = br#"{"id":1,"method":"a","trace":null}"#;
    assert!(matches!(decode(text), Ok(Incoming::Request { trace: None, .. })));
}

#[test]
fn duplicate_keys_are_refused_at_every_level_and_in_every_spelling() {
    for text in [
        r#"{"id":1,"method":"a","id":2}"#.to_owned(),
        r#"{"method":"a","params":{"x":1,"x":2}}"#.to_owned(),
        r#"{"method":"a","params":[[{"x":{"y":1,"y":1}}]]}"#.to_owned(),
        r#"{"method":"a","params":{"x":1,"\u0078":2}}"#.to_owned(),
        r#"{"method":"a","params":{"\ud83d\ude00":1,"😀":2}}"#.to_owned(),
        r#"{"method":"a","params":{"\/":1,"/":2}}"#.to_owned(),
        many_keys(17, "k16"),
        many_keys(40, "k3"),
        many_keys(40, r"\u006b39"),
        many_keys(40, r"k3\u0039"),
        format!(r#"{{"method":"a","params":{{"{0}":1,"{0}":2}}}}"#, "é".repeat(300)),
        format!(r#"{{"method":"a","params":{{"{}":1,"{}":2}}}}"#, "k".repeat(300), r"\u006b".repeat(300)),
    ] {
        let found = decode(text.as_bytes());
        assert!(matches!(found, Err(DecodeError::Scan(ScanError::DuplicateKey { .. }))), "{text}: {found:?}");
    }
    for text in [
        many_keys(40, "other"),
        r#"{"method":"a","params":{"x":{"x":{"x":1}},"y":[{"x":1},{"x":1}]}}"#.to_owned(),
        r#"{"method":"a","params":{"\\u0078":1,"x":2,"":3," ":4}}"#.to_owned(),
    ] {
        assert!(decode(text.as_bytes()).is_ok(), "{text}");
    }
}

fn many_keys(count: usize, last: &str) -> String {
    let keys: String = (0..count).map(|n| format!(r#""k{n}":[{{"k{n}":1}}],"#)).collect();
    format!(r#"{{"method":"a","params":{{{keys}"{last}":0}}}}"#)
}

#[test]
fn the_depth_limit_is_exact() {
    let nested = |depth: usize| format!(r#"{{"method":"a","params":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    let deepest = nested(127);
    let Ok(Incoming::Notification { params: Some(params), .. }) = decode(deepest.as_bytes()) else {
        panic!("127 levels of params are allowed");
    };
    // The typed decoder accepts the same depth.
    serde_json::from_str::<Value>(params.get()).unwrap();
    assert_eq!(decode(nested(128).as_bytes()).err(), Some(ScanError::Depth.into()));
}

#[test]
fn the_limit_of_values_is_exact() {
    // The object, the method, the array and each of its items count as one value.
    let items = |count: usize| format!(r#"{{"method":"a","params":[0{}]}}"#, ",0".repeat(count - 1));
    assert!(decode(items(262_141).as_bytes()).is_ok());
    assert_eq!(decode(items(262_142).as_bytes()).err(), Some(ScanError::Values.into()));
}

#[test]
fn hostile_messages_are_refused_quickly() {
    let many_values = format!(r#"{{"method":"a","params":[0{}]}}"#, ",0".repeat(3_000_000));
    let deep = format!(r#"{{"method":"a","params":{}"#, "[".repeat(200_000));
    let long_text = format!("\"{}\"", "x".repeat(90 << 20));
    let keys: String = (0..250_000).map(|n| format!(r#""{n}":0,"#)).collect();
    let many_keys = format!(r#"{{"method":"a","params":{{{keys}"0":0}}}}"#);
    let long_keys: String = (0..16).map(|n| format!(r#""\u0061{}{n:02}":0,"#, "x".repeat(1 << 20))).collect();
    let long_keys = format!(r#"{{"method":"a","params":{{{long_keys}"a":}}}}"#);
    for (text, seconds) in [(&many_values, 5), (&deep, 1), (&long_text, 1), (&many_keys, 10), (&long_keys, 10)] {
        let start = Instant::now();
        assert!(decode(text.as_bytes()).is_err());
        let took = start.elapsed();
        assert!(took < Duration::from_secs(seconds), "{took:?} for {} bytes: {}", text.len(), &text[..40]);
    }
}

#[test]
fn a_long_string_is_accepted_without_a_copy() {
    let text = format!(r#"{{"id":1,"method":"a","params":{{"processId":"p","chunk":"{}"}}}}"#, "A".repeat(32 << 20));
    let Ok(Incoming::Request { params, .. }) = decode(text.as_bytes()) else { panic!("it is a request") };
    let write: process::WriteParams<'_> = message::params(params).unwrap();
    assert!(matches!(write.chunk, std::borrow::Cow::Borrowed(chunk) if chunk.len() == 32 << 20));
}

#[test]
fn params_are_tolerant_in_keys_and_strict_in_types() {
    fn read(text: &str) -> Result<process::ReadParams, String> {
        let raw: &serde_json::value::RawValue = serde_json::from_str(text).unwrap();
        message::params(Some(raw)).map_err(|error| error.to_string())
    }
    let params = read(r#"{"processId":"p","afterSeq":null,"more":[{}],"waitMs":5}"#).unwrap();
    assert_eq!((params.after_seq, params.max_bytes, params.wait_ms), (None, None, Some(5)));
    for bad in [r#"{"processId":1}"#, r#"{"processId":"p","afterSeq":-1}"#, r#"["p"]"#, "3", "{}"] {
        assert!(read(bad).is_err(), "{bad}");
    }
    let long = read(&format!(r#"{{"processId":"p","afterSeq":"{}"}}"#, "é".repeat(1 << 20))).unwrap_err();
    assert!(long.len() <= 512, "{}", long.len());
    assert_eq!(message::params::<process::ListParams>(None).unwrap().scope, process::Scope::Session);
    assert_eq!(message::params::<process::ListParams>(None), message::params(Some(&raw(r#"{"scope":null}"#))));
}

fn raw(text: &str) -> Box<serde_json::value::RawValue> {
    serde_json::from_str(text).expect("the test's own text is JSON")
}

#[test]
fn ids_are_echoed_unchanged() {
    for id in [RequestId::Number(i64::MAX), RequestId::Text("a\"\n\u{1F600}".to_owned())] {
        let mut out = Vec::new();
        message::encode_request(&mut out, &id, "m", &Value::Null);
        let Ok(Incoming::Request { id: read, params: None, .. }) = decode(&out) else { panic!("it is a request") };
        assert_eq!(read, id);
    }
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::hash_map(any::<String>(), inner, 0..24)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn is_malformed(text: &[u8]) -> bool {
    matches!(decode(text), Err(DecodeError::Utf8 { .. } | DecodeError::Scan(ScanError::Syntax { .. } | ScanError::End)))
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        decode(&bytes).ok();
    }

    #[test]
    fn texts_that_resemble_json_are_judged_as_by_serde_json(inside in r#"([\[\]{}:,"\\u0-9a-f .eE+\-]|true|null|"a":|\\n){0,24}"#) {
        let text = format!(r#"{{"method":"a","params":{inside}}}"#);
        let serde = serde_json::from_str::<Value>(&text);
        // Skip two cases where serde_json decides differently: numbers too large for a float, and duplicate keys.
        let beyond = serde.as_ref().is_err_and(|error| error.to_string().contains("out of range"));
        let bounds = matches!(decode(text.as_bytes()), Err(DecodeError::Scan(ScanError::DuplicateKey { .. })));
        prop_assume!(!beyond && !bounds);
        prop_assert_eq!(is_malformed(text.as_bytes()), serde.is_err(), "{}", text);
    }

    #[test]
    fn generated_json_is_accepted_and_damaged_json_is_refused(value in json(), cut in any::<prop::sample::Index>(), put in any::<u8>()) {
        let mut out = Vec::new();
        message::encode_notification(&mut out, "a", &value);
        let Ok(Incoming::Notification { params, .. }) = decode(&out) else {
            panic!("{}: {}", String::from_utf8_lossy(&out), describe(&out));
        };
        prop_assert_eq!(params.map_or("null", |params| params.get()), value.to_string());
        let at = cut.index(out.len());
        out[at] = put;
        let serde = serde_json::from_slice::<Value>(&out);
        let beyond = serde.as_ref().is_err_and(|error| error.to_string().contains("out of range"));
        let other = matches!(decode(&out), Err(DecodeError::Scan(ScanError::DuplicateKey { .. } | ScanError::NotAnObject)));
        if !beyond && !other {
            prop_assert_eq!(is_malformed(&out), serde.is_err(), "{}", String::from_utf8_lossy(&out));
        }
    }
}

#[test]
fn an_invalid_trace_parent_is_ignored() {
    use exec_server_protocol::message::Trace;
    let parent = |text: &str| {
        let trace = Trace { traceparent: Some(text.to_owned()), tracestate: None };
        trace.parent().map(|parent| (parent.trace_id.to_owned(), parent.span_id.to_owned()))
    };
    let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let both = Some((trace.to_owned(), span.to_owned()));
    assert_eq!(parent(&format!("00-{trace}-{span}-01")), both);
    assert_eq!(parent(&format!("cc-{trace}-{span}-01-what-comes-later")), both);
    for bad in [
        String::new(),
        format!("00-{trace}-{span}"),
        format!("00-{trace}-{span}-01-more"),
        format!("ff-{trace}-{span}-01"),
        format!("00-{}-{span}-01", trace.to_uppercase()),
        format!("00-{}-{span}-01", "0".repeat(32)),
        format!("00-{trace}-{}-01", "0".repeat(16)),
        format!("00-{trace}x-{span}-01"),
    ] {
        assert_eq!(parent(&bad), None, "{bad}");
    }
    assert_eq!(Trace::default().parent(), None);
}

#[test]
fn attached_bytes_round_trip_and_a_wrong_header_is_refused() {
    for attached in [&b""[..], b"{\x80\xff"] {
        let mut message = b"before".to_vec();
        message::attach(&mut message, |out| out.extend(b"{}"));
        message.extend_from_slice(attached);
        let message = &message[6..];
        assert_eq!(message, [&[0x80, 2, 0, 0, 0, b'{', b'}'][..], attached].concat());
        assert_eq!(message::detach(message), (&b"{}"[..], Some(attached)));
    }
    for plain in [&b""[..], b"{}", b"{\x80\0\0\0\0}", &[0x80], &[0x80, 0, 0, 0], &[0x80, 3, 0, 0, 0, b'{', b'}']] {
        assert_eq!(message::detach(plain), (plain, None));
    }
    assert!(message::decode(&[0x80, 3, 0, 0, 0, b'{', b'}']).is_err());
}
