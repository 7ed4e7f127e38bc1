//! Fuzz target: the message decoder, and the params of every method.
//!
//! The decoder must accept exactly the messages that a naive JSON parser accepts, classify them by their members, and allocate little. A
//! decoded message must survive encoding and decoding again.

use exec_server_protocol::{
    Incoming, decode,
    message::{self, RequestId},
};
use serde_json::value::RawValue;

use crate::{
    model::{self, Members},
    params, weight,
};

pub fn check(data: &[u8]) {
    // Decoded messages borrow from the input, except for ids and escaped names. The scan also keeps 24 bytes per open key, which takes at
    // least two bytes of text.
    let decoded = weight::within(32 * data.len() + 8192, || decode(data));
    let members = std::str::from_utf8(data).ok().and_then(model::object);
    match (decoded, members) {
        (Ok(incoming), Some(members)) => {
            classify(&incoming, &members);
            again(&incoming);
        }
        (Err(_), None) => {}
        (Ok(incoming), None) => panic!("took what is no message: {incoming:?}"),
        (Err(error), Some(members)) => assert!(!is_message(&members), "refused a message: {error}"),
    }
}

fn member<'a>(members: &Members<'a>, name: &str) -> Option<&'a str> {
    members.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
}

/// Whether the members have the types that the envelope requires.
fn is_message(members: &Members<'_>) -> bool {
    let is_text = |text: &str| text.starts_with('"');
    let is_id = |text: &str| is_text(text) || (text != "-0" && text.parse::<i64>().is_ok());
    match (member(members, "method"), member(members, "result"), member(members, "id")) {
        (Some(method), _, None) => is_text(method),
        (Some(method), _, Some(id)) => {
            let trace = member(members, "trace")
                .is_none_or(|trace| serde_json::from_str::<Option<message::Trace>>(trace).is_ok());
            is_text(method) && is_id(id) && trace
        }
        (None, Some(_), id) => id.is_some_and(is_id),
        (None, None, id) => {
            let error = member(members, "error").filter(|error| error.starts_with('{'));
            id.is_some_and(is_id)
                && error.is_some_and(|error| serde_json::from_str::<message::ErrorObject<'_>>(error).is_ok())
        }
    }
}

fn classify(incoming: &Incoming<'_>, members: &Members<'_>) {
    assert!(is_message(members), "took a wrong envelope: {incoming:?}");
    let has = |name: &str| member(members, name).is_some();
    let params = member(members, "params").filter(|params| *params != "null");
    match incoming {
        Incoming::Request { params: read, .. } => {
            assert!(has("method") && has("id"));
            assert_eq!(read.map(RawValue::get), params);
        }
        Incoming::Notification { params: read, .. } => {
            assert!(has("method") && !has("id"));
            assert_eq!(read.map(RawValue::get), params);
        }
        Incoming::Response { result, .. } => {
            assert!(!has("method"));
            assert_eq!(Some(result.get()), member(members, "result"));
        }
        Incoming::Error { .. } => assert!(!has("method") && !has("result") && has("error")),
    }
}

/// Encodes the decoded message and decodes it again. Then checks its params or result with the types of its method.
fn again(incoming: &Incoming<'_>) {
    let mut out = Vec::new();
    match incoming {
        Incoming::Request { id, method, params, .. } => {
            message::encode_request(&mut out, id, method, params.unwrap_or(RawValue::NULL));
            let Ok(Incoming::Request { id: id_again, method: method_again, params: params_again, .. }) = decode(&out)
            else {
                panic!("{} is no request", String::from_utf8_lossy(&out));
            };
            assert_eq!((&id_again, &method_again), (id, method));
            assert_eq!(params_again.map(RawValue::get), params.map(RawValue::get));
            params::check_params(method, params.unwrap_or(RawValue::NULL));
        }
        Incoming::Notification { method, params } => {
            message::encode_notification(&mut out, method, params.unwrap_or(RawValue::NULL));
            assert!(matches!(decode(&out), Ok(Incoming::Notification { method: again, .. }) if again == *method));
            params::check_params(method, params.unwrap_or(RawValue::NULL));
        }
        Incoming::Response { id, result } => {
            message::encode_result(&mut out, id, result);
            assert!(matches!(decode(&out), Ok(Incoming::Response { id: again, result: text })
                if again == *id && text.get() == result.get()));
            params::check_result(result);
        }
        Incoming::Error { id, error } => {
            if let Some(kind) = error.kind() {
                message::encode_error(&mut out, id, error.code, kind, &error.message);
                let Ok(Incoming::Error { error: again, .. }) = decode(&out) else { panic!("an error is no error") };
                assert_eq!((again.code, again.kind(), again.message), (error.code, Some(kind), error.message.clone()));
            }
        }
    }
    if let Incoming::Request { id, .. } | Incoming::Response { id, .. } | Incoming::Error { id, .. } = incoming {
        let text = serde_json::to_string(id).unwrap();
        assert_eq!(&serde_json::from_str::<RequestId>(&text).unwrap(), id);
    }
}
